"""What failed in the last minutes, for whoever asks whether all is well."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from foveate.engine.calls import StepFailure

RECENT_SECONDS = 300.0
_MAX_FAILURES = 1000


@dataclass(frozen=True, slots=True)
class RecentFailure:
    """A failure, the request that it happened to, and when."""

    problem: StepFailure
    request_id: str
    at: float


class RecentFailures:
    """The last failures; a thousand at most, and only recent ones are told."""

    def __init__(self) -> None:
        self._failures: deque[RecentFailure] = deque(maxlen=_MAX_FAILURES)

    def add(self, problem: StepFailure, request_id: str, *, at: float) -> None:
        """Remember a failure."""
        self._failures.append(RecentFailure(problem, request_id, at))

    def count_by_step(self, now: float, *, seconds: float = RECENT_SECONDS) -> Mapping[str, int]:
        """How often each step failed in the last `seconds`."""
        return Counter(failure.problem.step for failure in self._failures if now - failure.at <= seconds)

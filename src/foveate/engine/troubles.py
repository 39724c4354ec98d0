"""What failed in the last minutes, for whoever asks whether all is well."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from foveate.engine.calls import Problem

RECENT_SECONDS = 300.0
_MOST = 1000


@dataclass(frozen=True, slots=True)
class Trouble:
    """A failure, the request that it happened to, and when."""

    problem: Problem
    request_id: str
    at: float


class Troubles:
    """The last failures; a thousand at most, and only recent ones are told."""

    def __init__(self) -> None:
        self._kept: deque[Trouble] = deque(maxlen=_MOST)

    def add(self, problem: Problem, request_id: str, *, at: float) -> None:
        """Remember a failure."""
        self._kept.append(Trouble(problem, request_id, at))

    def recent(self, now: float, *, seconds: float = RECENT_SECONDS) -> Mapping[str, int]:
        """How often each step failed in the last `seconds`."""
        return Counter(trouble.problem.step for trouble in self._kept if now - trouble.at <= seconds)

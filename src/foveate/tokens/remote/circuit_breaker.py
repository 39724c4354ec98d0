"""A circuit breaker: three failures open it, and each failed trial doubles the wait.

A value: what happens to it gives the next one, and the time is an argument.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreaker:
    """Whether it is worth asking a server that has been failing."""

    failures_to_open: int = 3
    first_wait_seconds: float = 30.0
    max_wait_seconds: float = 300.0
    failures: int = 0
    wait_seconds: float = 0.0
    open_until: float = 0.0
    on_trial: bool = False

    @property
    def is_closed(self) -> bool:
        """No wait is running and no trial is due."""
        return self.wait_seconds == 0.0

    def allows(self, now: float) -> bool:
        """Whether a call may be tried at `now`: always while closed, once the wait is over while open."""
        return self.is_closed or now >= self.open_until

    def with_trial(self, now: float) -> "CircuitBreaker":
        """The breaker while a trial is under way: others wait on, so that one call tries at a time."""
        if self.is_closed:
            return self
        return replace(self, open_until=now + self.wait_seconds, on_trial=True)

    def with_failure(self, now: float) -> "CircuitBreaker":
        """One more failure: opens at the third, and doubles the wait if this was the trial.

        Calls that were under way when it opened change nothing, or a burst of them would open it for longest.
        """
        failures = self.failures + 1
        if self.is_closed and failures < self.failures_to_open:
            return replace(self, failures=failures)
        if not self.is_closed and not self.on_trial:
            return self
        wait = min(self.wait_seconds * 2 or self.first_wait_seconds, self.max_wait_seconds)
        return replace(self, failures=failures, wait_seconds=wait, open_until=now + wait, on_trial=False)

    def with_success(self) -> "CircuitBreaker":
        """Closed, with nothing held against the server."""
        return replace(self, failures=0, wait_seconds=0.0, open_until=0.0, on_trial=False)

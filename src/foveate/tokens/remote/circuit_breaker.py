"""Circuit breaker: three failures open it, and each failed trial doubles the wait."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreaker:
    """State of a circuit breaker, as a value: each event returns the next state, and time is an argument."""

    failures_to_open: int = 3
    first_wait_seconds: float = 30.0
    max_wait_seconds: float = 300.0
    failures: int = 0
    wait_seconds: float = 0.0
    open_until: float = 0.0
    on_trial: bool = False

    @property
    def is_closed(self) -> bool:
        """Whether no wait is running and no trial is due."""
        return self.wait_seconds == 0.0

    def allows(self, now: float) -> bool:
        """Whether a call may be made at `now`: always if closed, after the wait if open."""
        return self.is_closed or now >= self.open_until

    def with_trial(self, now: float) -> "CircuitBreaker":
        """Start a trial if open. Other calls keep waiting, so only one call tries at a time."""
        if self.is_closed:
            return self
        return replace(self, open_until=now + self.wait_seconds, on_trial=True)

    def with_failure(self, now: float) -> "CircuitBreaker":
        """Record a failure: the third opens the breaker, and a failed trial doubles the wait.

        Calls that were under way when it opened do not count, or a burst of them would cause the longest wait.
        """
        failures = self.failures + 1
        if self.is_closed and failures < self.failures_to_open:
            return replace(self, failures=failures)
        if not self.is_closed and not self.on_trial:
            return self
        wait = min(self.wait_seconds * 2 or self.first_wait_seconds, self.max_wait_seconds)
        return replace(self, failures=failures, wait_seconds=wait, open_until=now + wait, on_trial=False)

    def with_success(self) -> "CircuitBreaker":
        """Close the breaker and reset its failures."""
        return replace(self, failures=0, wait_seconds=0.0, open_until=0.0, on_trial=False)

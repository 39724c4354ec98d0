"""COUNT-3: three failures open the breaker; 30 s, doubling to 300 s; then one call tries."""

from hypothesis import given
from hypothesis import strategies as st

from foveate.tokens.remote.endpoints import CircuitBreaker

CLOSED = CircuitBreaker()


def open_breaker(now: float = 0.0) -> CircuitBreaker:
    return CLOSED.with_failure(now).with_failure(now).with_failure(now)


def test_two_failures_leave_the_breaker_closed() -> None:
    breaker = CLOSED.with_failure(0.0).with_failure(0.0)

    assert breaker.is_closed
    assert breaker.allows(0.0)


def test_the_third_failure_opens_the_breaker_for_thirty_seconds() -> None:
    breaker = open_breaker(now=100.0)

    assert not breaker.is_closed
    assert not breaker.allows(129.9)
    assert breaker.allows(130.0)


def test_a_success_resets_the_number_of_failures() -> None:
    breaker = CLOSED.with_failure(0.0).with_failure(0.0).with_success().with_failure(0.0).with_failure(0.0)

    assert breaker.is_closed


def test_each_failed_trial_doubles_the_wait_up_to_five_minutes() -> None:
    now, breaker, waits = 0.0, open_breaker(), []
    for _ in range(6):
        waits.append(breaker.wait_seconds)
        now = breaker.open_until
        breaker = breaker.with_trial(now).with_failure(now)

    assert waits == [30, 60, 120, 240, 300, 300]


def test_no_other_call_is_allowed_during_a_trial() -> None:
    breaker = open_breaker().with_trial(30.0)

    assert not breaker.allows(30.0)
    assert not breaker.allows(59.9)


def test_a_trial_without_an_outcome_is_followed_by_another() -> None:
    assert open_breaker().with_trial(30.0).allows(60.0)


def test_a_successful_trial_closes_the_breaker() -> None:
    breaker = open_breaker().with_trial(30.0).with_success()

    assert breaker == CLOSED
    assert breaker.with_failure(31.0).is_closed


def test_failures_of_calls_started_before_the_breaker_opened_do_not_double_the_wait() -> None:
    """Regression: ten concurrent timeouts opened the breaker for five minutes instead of half a minute."""
    breaker = CLOSED
    for _ in range(10):
        breaker = breaker.with_failure(5.0)

    assert breaker.wait_seconds == 30.0
    assert breaker.allows(35.0)


EVENTS = st.lists(
    st.tuples(st.sampled_from(("call", "failed", "succeeded")), st.floats(0, 400, allow_nan=False)), max_size=60
)


@given(EVENTS)
def test_at_most_one_call_is_allowed_per_wait(events: list[tuple[str, float]]) -> None:
    now, breaker, tried_at = 0.0, CLOSED, -1000.0
    for event, seconds in events:
        now += seconds
        match event:
            case "call" if breaker.allows(now):
                if not breaker.is_closed:
                    assert now - tried_at >= breaker.first_wait_seconds
                    tried_at = now
                breaker = breaker.with_trial(now)
            case "failed":
                breaker = breaker.with_failure(now)
            case "succeeded":
                breaker, tried_at = breaker.with_success(), -1000.0
            case _:
                assert not breaker.allows(now)


@given(EVENTS)
def test_the_wait_is_zero_or_between_minimum_and_maximum(events: list[tuple[str, float]]) -> None:
    now, breaker, failures = 0.0, CLOSED, 0
    for event, seconds in events:
        now += seconds
        if event == "failed":
            breaker, failures = breaker.with_failure(now), failures + 1
        elif event == "succeeded":
            breaker, failures = breaker.with_success(), 0
        elif breaker.allows(now):
            breaker = breaker.with_trial(now)
        assert breaker.is_closed == (failures < breaker.failures_to_open)
        assert breaker.is_closed or 30 <= breaker.wait_seconds <= 300
        assert breaker.open_until <= now + breaker.wait_seconds

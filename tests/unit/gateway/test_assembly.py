"""What a gateway takes from the configuration."""

import pytest

from foveate.config.settings import Timeouts
from foveate.gateway.assembly import admission_options, upstream_timeouts


@pytest.mark.parametrize("total_seconds", [1, 3600, 86_400])
def test_something_stays_reserved_for_a_call_for_longer_than_it_may_take(total_seconds: float) -> None:
    """Defect: it ran out after twenty minutes, and a call may take an hour."""
    waits = Timeouts(connect_seconds=10, total_seconds=total_seconds)

    # Where its marks are refused, a call is sent twice. A summary may take five minutes.
    assert admission_options(waits).lifetime_seconds > max(2 * (10 + total_seconds), 300)


@pytest.mark.parametrize("total_seconds", [1, 3600, 40_000, 1_000_000])
def test_a_call_never_outlasts_what_is_reserved_for_it_also_where_its_time_is_raised_later(
    total_seconds: float,
) -> None:
    lifetime_seconds = admission_options(Timeouts()).lifetime_seconds

    waits = upstream_timeouts(Timeouts(total_seconds=total_seconds), lifetime_seconds=lifetime_seconds)

    assert 2 * (waits.connect_seconds + waits.total_seconds) < lifetime_seconds
    assert waits.total_seconds == min(total_seconds, waits.total_seconds)
    assert total_seconds > 40_000 or waits.total_seconds == total_seconds

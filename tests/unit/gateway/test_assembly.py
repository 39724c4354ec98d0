"""What a gateway takes from the configuration."""

import pytest

from foveate.config.settings import Timeouts
from foveate.gateway.assembly import admission_options


@pytest.mark.parametrize("total_seconds", [1, 3600, 86_400])
def test_something_stays_reserved_for_a_call_for_longer_than_it_may_take(total_seconds: float) -> None:
    """Defect: it ran out after twenty minutes, and a call may take an hour."""
    waits = Timeouts(connect_seconds=10, total_seconds=total_seconds)

    # Where its marks are refused, a call is sent twice. A summary may take five minutes.
    assert admission_options(waits).lifetime_seconds > max(2 * (10 + total_seconds), 300)

"""What there is before the first request comes."""

import gc

from foveate.gateway.server.serve import freeze_garbage_collector


def test_what_stays_to_the_end_is_not_searched_for_garbage() -> None:
    """Defect: every now and then all requests waited while code and tables were looked through."""
    before = gc.get_threshold()
    try:
        freeze_garbage_collector()

        assert gc.get_freeze_count() > len(gc.get_objects())
        assert gc.get_threshold() > before
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)

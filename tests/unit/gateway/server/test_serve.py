"""Preparation before the first request."""

import gc

from foveate.gateway.server.serve import freeze_garbage_collector


def test_permanent_objects_are_excluded_from_garbage_collection() -> None:
    """Regression: now and then all requests waited while the collector scanned code and tables."""
    before = gc.get_threshold()
    try:
        freeze_garbage_collector()

        assert gc.get_freeze_count() > len(gc.get_objects())
        assert gc.get_threshold() > before
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)

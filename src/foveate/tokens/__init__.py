"""Token counts: tokenizers, whole requests, calibration, and remote counters.

Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from foveate.lazy_imports import import_on_first_use

if TYPE_CHECKING:
    from foveate.caching import drop_caches
    from foveate.tokens.calibration import Calibration
    from foveate.tokens.counter import RequestCount, RequestCounter
    from foveate.tokens.offline_counters import Backend, CounterOptions, counter_for
    from foveate.tokens.remote.counter import ConnectedCounter
    from foveate.tokens.request_bodies import Conversation, count_body, sum_counts, with_model

__all__ = [
    "Backend",
    "Calibration",
    "ConnectedCounter",
    "Conversation",
    "CounterOptions",
    "RequestCount",
    "RequestCounter",
    "count_body",
    "counter_for",
    "drop_caches",
    "sum_counts",
    "with_model",
]

__getattr__ = import_on_first_use(
    __name__,
    {
        "foveate.caching": ("drop_caches",),
        "foveate.tokens.calibration": ("Calibration",),
        "foveate.tokens.counter": ("RequestCount", "RequestCounter"),
        "foveate.tokens.offline_counters": ("Backend", "CounterOptions", "counter_for"),
        "foveate.tokens.remote.counter": ("ConnectedCounter",),
        "foveate.tokens.request_bodies": ("Conversation", "count_body", "sum_counts", "with_model"),
    },
)

"""Token counts: tokenizers, whole requests, calibration, and remote counters.

Names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveate.caching import drop_caches
    from foveate.tokens.calibration import Calibration
    from foveate.tokens.counter import RequestCounter
    from foveate.tokens.families import counter_for
    from foveate.tokens.options import Backend, CounterOptions
    from foveate.tokens.remote.backends import ConnectedCounter
    from foveate.tokens.request_bodies import (
        Conversation,
        count_body,
        parse_message_list,
        sum_counts,
        with_model,
    )
    from foveate.tokens.request_count import PartCount, RequestCount

__all__ = [
    "Backend",
    "Calibration",
    "ConnectedCounter",
    "Conversation",
    "CounterOptions",
    "PartCount",
    "RequestCount",
    "RequestCounter",
    "count_body",
    "counter_for",
    "drop_caches",
    "parse_message_list",
    "sum_counts",
    "with_model",
]

_MODULES_BY_NAME = {
    "Backend": "foveate.tokens.options",
    "Calibration": "foveate.tokens.calibration",
    "ConnectedCounter": "foveate.tokens.remote.backends",
    "Conversation": "foveate.tokens.request_bodies",
    "CounterOptions": "foveate.tokens.options",
    "PartCount": "foveate.tokens.request_count",
    "RequestCount": "foveate.tokens.request_count",
    "RequestCounter": "foveate.tokens.counter",
    "count_body": "foveate.tokens.request_bodies",
    "counter_for": "foveate.tokens.families",
    "drop_caches": "foveate.caching",
    "parse_message_list": "foveate.tokens.request_bodies",
    "sum_counts": "foveate.tokens.request_bodies",
    "with_model": "foveate.tokens.request_bodies",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES_BY_NAME[name]), name)
    globals()[name] = value
    return value

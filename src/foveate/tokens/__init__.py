"""How many tokens: tokenizers, whole requests, calibration, and the endpoints that count.

What other rooms and users need is here by name, and is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveate.tokens.backends import ConnectedCounter
    from foveate.tokens.bodies import count_body, sum_counts, with_model
    from foveate.tokens.caches import drop_caches
    from foveate.tokens.calibration import Calibration
    from foveate.tokens.conversation import Conversation
    from foveate.tokens.counter import RequestCounter
    from foveate.tokens.families import counter_for
    from foveate.tokens.options import Backend, CounterOptions
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
    "sum_counts",
    "with_model",
]

_MODULES_BY_NAME = {
    "Backend": "options",
    "Calibration": "calibration",
    "Conversation": "conversation",
    "CounterOptions": "options",
    "ConnectedCounter": "backends",
    "PartCount": "request_count",
    "RequestCount": "request_count",
    "RequestCounter": "counter",
    "count_body": "bodies",
    "counter_for": "families",
    "drop_caches": "caches",
    "sum_counts": "bodies",
    "with_model": "bodies",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES_BY_NAME[name]}"), name)
    globals()[name] = value
    return value

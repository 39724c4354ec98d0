"""How many tokens: tokenizers, whole requests, calibration, and the endpoints that count.

What other rooms and users need is here by name, and is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveate.tokens.backends import Counting
    from foveate.tokens.bodies import count_body, summed, with_model
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
    "Conversation",
    "CounterOptions",
    "Counting",
    "PartCount",
    "RequestCount",
    "RequestCounter",
    "count_body",
    "counter_for",
    "drop_caches",
    "summed",
    "with_model",
]

_HOMES = {
    "Backend": "options",
    "Calibration": "calibration",
    "Conversation": "conversation",
    "CounterOptions": "options",
    "Counting": "backends",
    "PartCount": "request_count",
    "RequestCount": "request_count",
    "RequestCounter": "counter",
    "count_body": "bodies",
    "counter_for": "families",
    "drop_caches": "caches",
    "summed": "bodies",
    "with_model": "bodies",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found

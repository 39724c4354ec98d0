"""Wire formats of the providers: requests parsed and edited as bytes, responses read for usage and content.

Names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveate.formats.incremental.history import MessageHistory, MessageNode
    from foveate.formats.request import (
        FORMATS,
        apply_edits,
        automatic_breakpoint,
        blocks_at,
        detect_format,
        detect_message_format,
        known_bytes,
        message_blocks,
        message_history,
        parse_message,
        parse_request,
        parse_tool,
        preamble_blocks,
        request_blocks,
        strip_breakpoints,
        wrap_messages,
    )
    from foveate.formats.request_limits import RequestLimits
    from foveate.formats.response.streaming import StreamError, StreamReader, UsageChunkFilter
    from foveate.formats.response.usage import parse_usage, read_response_usage

__all__ = [
    "FORMATS",
    "MessageHistory",
    "MessageNode",
    "RequestLimits",
    "StreamError",
    "StreamReader",
    "UsageChunkFilter",
    "apply_edits",
    "automatic_breakpoint",
    "blocks_at",
    "detect_format",
    "detect_message_format",
    "known_bytes",
    "message_blocks",
    "message_history",
    "parse_message",
    "parse_request",
    "parse_tool",
    "parse_usage",
    "preamble_blocks",
    "read_response_usage",
    "request_blocks",
    "strip_breakpoints",
    "wrap_messages",
]

_MODULES_BY_NAME = {
    "FORMATS": "foveate.formats.request",
    "MessageHistory": "foveate.formats.incremental.history",
    "MessageNode": "foveate.formats.incremental.history",
    "RequestLimits": "foveate.formats.request_limits",
    "StreamError": "foveate.formats.response.streaming",
    "StreamReader": "foveate.formats.response.streaming",
    "UsageChunkFilter": "foveate.formats.response.streaming",
    "apply_edits": "foveate.formats.request",
    "automatic_breakpoint": "foveate.formats.request",
    "blocks_at": "foveate.formats.request",
    "detect_format": "foveate.formats.request",
    "detect_message_format": "foveate.formats.request",
    "known_bytes": "foveate.formats.request",
    "message_blocks": "foveate.formats.request",
    "message_history": "foveate.formats.request",
    "parse_message": "foveate.formats.request",
    "parse_request": "foveate.formats.request",
    "parse_tool": "foveate.formats.request",
    "parse_usage": "foveate.formats.response.usage",
    "preamble_blocks": "foveate.formats.request",
    "read_response_usage": "foveate.formats.response.usage",
    "request_blocks": "foveate.formats.request",
    "strip_breakpoints": "foveate.formats.request",
    "wrap_messages": "foveate.formats.request",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES_BY_NAME[name]), name)
    globals()[name] = value
    return value

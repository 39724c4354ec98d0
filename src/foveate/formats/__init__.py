"""Wire formats of the providers: requests parsed and edited as bytes, responses read for usage and content.

Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from foveate.lazy_imports import import_on_first_use

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
    from foveate.formats.response.streaming import StreamReader, UsageChunkFilter
    from foveate.formats.response.usage import parse_usage, read_response_usage

__all__ = [
    "FORMATS",
    "MessageHistory",
    "MessageNode",
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

__getattr__ = import_on_first_use(
    __name__,
    {
        "foveate.formats.incremental.history": ("MessageHistory", "MessageNode"),
        "foveate.formats.request": (
            "FORMATS",
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
            "preamble_blocks",
            "request_blocks",
            "strip_breakpoints",
            "wrap_messages",
        ),
        "foveate.formats.response.streaming": ("StreamReader", "UsageChunkFilter"),
        "foveate.formats.response.usage": ("parse_usage", "read_response_usage"),
    },
)

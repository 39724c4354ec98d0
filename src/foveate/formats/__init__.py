"""Wire formats of the providers: requests parsed and edited as bytes, responses read for usage and content."""

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

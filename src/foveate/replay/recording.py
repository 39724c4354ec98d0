"""Recorded sessions: what was sent, when, to which model, and its usage.

Messages form a tree: each points to the previous one. So a session of a thousand calls holds each message
once, and two calls share exactly the common part of their histories, even if a session was rewound or forked.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from foveate.model import Format, Ttl, Usage


class RecordingSource(StrEnum):
    CLAUDE_CODE = "claude-code"
    PI = "pi"
    CODEX = "codex"
    GEMINI_CLI = "gemini-cli"
    QWEN_CODE = "qwen-code"
    OPENCODE = "opencode"
    OPENHANDS = "openhands"
    SWE_AGENT = "swe-agent"
    TAU_BENCH = "tau-bench"
    MESSAGES = "messages"  # one list of messages, or several, one per line
    REQUESTS = "requests"  # one request body per line
    STORE = "store"  # Foveate's own store


class MissingPart(StrEnum):
    SYSTEM = "system prompt"
    TOOLS = "tools"
    MESSAGES = "messages"
    TIME = "times"
    USAGE = "bill"
    MODEL = "model"
    TIER_PRICE = "price of a tier"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecordedMessage:
    """One message and the previous one. `raw` is its JSON in the format of the recording.

    `last_logged_block` is the block that was logged last, if blocks were reordered.
    """

    previous: "RecordedMessage | None"
    role: str
    raw: bytes
    depth: int  # the number of messages before it
    last_logged_block: int = -1

    def history(self) -> "list[RecordedMessage]":
        return list(self._iterate_backwards())[::-1]

    def _iterate_backwards(self) -> "Iterator[RecordedMessage]":
        message: RecordedMessage | None = self
        while message is not None:
            yield message
            message = message.previous


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One request of a recording and its usage, as far as recorded.

    `id` is the same in every copy of the recording. `conversation` separates the calls of sub-agents from
    those of their parent. `response` is the message that came back, as it is sent again. `envelope` is the
    request without its messages (system prompt, tools, parameters) as JSON, empty if not recorded.
    `has_thinking` says whether a response of the same turn contains thinking. `breakpoint_ttl` is the TTL of
    its cache breakpoints, if any are recorded. `usage` is what the provider reported; its output tokens may
    be a placeholder if `output_is_known` is False. Times are seconds since 1970, 0 if unknown.
    """

    id: str
    conversation: str
    model: str
    at: float
    response_at: float
    last_message: RecordedMessage
    response: bytes = b""
    envelope: bytes = b""
    has_thinking: bool = False
    breakpoint_ttl: Ttl | None = None
    usage: Usage | None = None
    output_is_known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableLine:
    """A line that could not be read, by its number from 1, and the reason; 0 for the whole file."""

    line: int
    reason: str
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A whole session with its calls in order of time.

    `reported_dollars` is the cost that the recording itself reports. `hidden_tokens` are the unrecorded
    tokens before the messages of each call, if known without usage.
    """

    name: str
    source: RecordingSource
    format: Format
    calls: tuple[RecordedCall, ...]
    missing: frozenset[MissingPart] = frozenset()
    unreadable: tuple[UnreadableLine, ...] = ()
    reported_dollars: Decimal | None = None
    hidden_tokens: int | None = None
    size_bytes: int = 0


def find_missing_parts(calls: Iterable[RecordedCall]) -> frozenset[MissingPart]:
    missing = set()
    for call in calls:
        if not call.at:
            missing.add(MissingPart.TIME)
        if call.usage is None:
            missing.add(MissingPart.USAGE)
        if not call.model:
            missing.add(MissingPart.MODEL)
    return frozenset(missing)

"""A recorded session as values: what was sent, when, to which model, and what was billed for it.

Messages stand in a tree: each knows the one before it. So a session of a thousand calls holds each message
once, and two calls share exactly what their histories share, also where a session was rewound or forked.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from foveate.model import Format, Ttl, Usage


class RecordingSource(StrEnum):
    """Who wrote a recording."""

    CLAUDE_CODE = "claude-code"
    PI = "pi"
    CODEX = "codex"
    GEMINI_CLI = "gemini-cli"
    QWEN_CODE = "qwen-code"
    OPENCODE = "opencode"
    OPENHANDS = "openhands"
    SWE_AGENT = "swe-agent"
    TAU_BENCH = "tau-bench"
    MESSAGES = "messages"  # one list of messages, or several, a line each
    REQUESTS = "requests"  # one request body a line
    STORE = "store"  # what Foveate keeps itself


class MissingPart(StrEnum):
    """What a recording does not hold of its requests."""

    SYSTEM = "system prompt"
    TOOLS = "tools"
    MESSAGES = "messages"
    TIME = "times"
    USAGE = "bill"
    MODEL = "model"
    TIER_PRICE = "price of a tier"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecordedMessage:
    """One message, and the one that was said before it. `raw` is its JSON in the format of its recording.

    `latest` is the block of it that was logged last, where blocks stand in another order than they came in.
    """

    previous: "RecordedMessage | None"
    role: str
    raw: bytes
    depth: int  # how many stand before it
    last_logged_block: int = -1

    def history(self) -> "list[RecordedMessage]":
        """All messages up to this one, the first one first."""
        return list(self._iterate_backwards())[::-1]

    def _iterate_backwards(self) -> "Iterator[RecordedMessage]":
        message: RecordedMessage | None = self
        while message is not None:
            yield message
            message = message.previous


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One request of a recording and its bill, as far as the recording shows them.

    `id` names it in every copy of the recording. `conversation` tells a sub-agent's calls from those of the one
    who sent it. `answer` is the message that came back, as one that is sent again. `around` is the request
    without its messages (system prompt, tools, parameters) as JSON, empty where that was not recorded. `thinks`
    says whether an answer of the same turn shows thinking. `marks` is for how long its marks for the cache ask,
    where the recording shows any. `billed` is what the provider said it counted; its output tokens may be a
    placeholder where `output_is_known` is False. Times are seconds since 1970, 0 where there are none.
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
    """A line that could not be read, by its number from 1, and why; 0 where it is the whole file."""

    line: int
    reason: str
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A whole session: its calls in the order of time.

    `said_dollars` is what the recording itself says it cost, where it does. `hidden_tokens` is how much stood
    before the messages of each call and was not recorded, where that is known without bills.
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
    """What one of the calls or another does not say of itself: its time, its bill, its model."""
    missing = set()
    for call in calls:
        if not call.at:
            missing.add(MissingPart.TIME)
        if call.usage is None:
            missing.add(MissingPart.USAGE)
        if not call.model:
            missing.add(MissingPart.MODEL)
    return frozenset(missing)

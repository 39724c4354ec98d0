"""Frozen values that packages exchange: requests, messages, blocks, edits, usage and token counts.

A request keeps its original bytes: `Request` has the JSON of each message and tool, which is parsed into a
`Message` or `Tool` on demand. Values that are created for every message are msgspec structs, which are created
ten times as fast as dataclasses.
"""

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Literal

import msgspec


class Format(StrEnum):
    """Wire formats that Foveate supports."""

    ANTHROPIC = "anthropic"
    CHAT = "openai-chat"
    RESPONSES = "openai-responses"
    GEMINI = "gemini"
    BEDROCK = "bedrock"


ApiFormat = Literal["anthropic", "openai-chat", "openai-responses", "gemini", "bedrock"]
"""Names of the formats, for type checkers."""


@dataclass(frozen=True, slots=True)
class TokenCount:
    """A number of tokens, and how far it can be trusted.

    `exact`: counted with the model's own tokenizer. `upper`: a bound that hard limits can rely on.
    """

    tokens: int
    exact: bool
    upper: int

    def __add__(self, other: "TokenCount") -> "TokenCount":
        """Add two counts; the sum is exact only if both are."""
        return TokenCount(self.tokens + other.tokens, self.exact and other.exact, self.upper + other.upper)

    def _repr_html_(self) -> str:
        if self.exact:
            return f"<strong>{self.tokens:,}</strong> tokens"
        return f"<strong>~{self.tokens:,}</strong> tokens, at most {self.upper:,}"


ZERO_TOKENS = TokenCount(0, True, 0)

STORED_HISTORY = frozenset(("thread", "previous_response_id", "conversation"))
"""Fields by which a request continues a conversation that the provider stores."""

SYSTEM_ROLES = frozenset(("system", "developer"))


class MediaSource(StrEnum):
    """Location of the bytes of an image or document."""

    INLINE = "inline"
    URL = "url"
    FILE = "file"


class Text(msgspec.Struct, frozen=True, gc=False):
    text: str


class Thinking(msgspec.Struct, frozen=True):
    """Reasoning of a model, sent back by the client. `encrypted_chars` is the length of its encrypted part."""

    text: str
    encrypted_chars: int = 0


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """An image; its size in pixels is None if the request does not contain it."""

    source: MediaSource
    width: int | None = None
    height: int | None = None
    detail: str = "auto"


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A document: its text if it can be read, its pages if they can be counted."""

    source: MediaSource
    media_type: str
    text: str = ""
    pages: int | None = None
    size_bytes: int = 0


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of the model. `arguments` is the original JSON; `item_id` names a stored Responses item."""

    name: str
    arguments: str
    format: Format
    id: str = ""
    item_id: str = ""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    parts: tuple["Part", ...]
    id: str = ""
    name: str = ""
    is_error: bool = False


class Opaque(msgspec.Struct, frozen=True):
    """A block of an unknown kind."""

    kind: str
    raw: bytes


Part = Text | Thinking | Image | Document | ToolCall | ToolResult | Opaque


class Message(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    parts: tuple[Part, ...]
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that the model may call. `kind` is `function`, or the provider's name of a built-in tool.

    `parameters` is the original JSON schema, `raw` the whole definition.
    """

    kind: str
    name: str
    description: str
    parameters: bytes
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseSchema:
    """JSON schema that the request requires of the response."""

    name: str
    description: str
    schema: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request body, parsed as far as every request needs.

    `messages` and `tools` are the original JSON of each. `extras` names parameters that make the provider add
    text, `unexplained` what it will add that the body does not contain (a stored conversation, results of a
    server-side tool, …). `envelope`, `message_offsets` and `history` are caches of `foveate.formats`.
    """

    format: Format
    model: str
    body: bytes
    system: tuple[Part, ...]
    tools: tuple[bytes, ...]
    messages: tuple[bytes, ...]
    tool_choice: str = ""
    thinking: str = ""
    schema: ResponseSchema | None = None
    extras: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()
    envelope: object = field(default=None, repr=False, compare=False)
    message_offsets: object = field(default=None, repr=False, compare=False)
    history: object = field(default=None, repr=False, compare=False)

    @property
    def continues_stored_conversation(self) -> bool:
        """Return whether only the provider has earlier messages of the conversation."""
        return not STORED_HISTORY.isdisjoint(self.unexplained)


class Area(StrEnum):
    """Parts of a request, in the order in which a provider reads them."""

    TOOLS = "tools"
    SYSTEM = "system"
    MESSAGES = "messages"


class Place(msgspec.Struct, frozen=True, gc=False):
    """Position in a request: a tool, a block of the system prompt, a message, or a block of a message.

    Content that is a plain string is one block with index 0.
    """

    area: Area
    index: int
    block: int | None = None


class Ttl(StrEnum):
    """Lifetime of a cached prefix."""

    FIVE_MINUTES = "5m"
    THIRTY_MINUTES = "30m"
    ONE_HOUR = "1h"
    TWELVE_HOURS = "12h"

    @property
    def seconds(self) -> int:
        return int(self[:-1]) * (60 if self.endswith("m") else 3600)


class Block(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One block of a request, as a provider's cache compares it.

    `kind` is the provider's name (`tool`, `text`, `tool_use`, `thinking`, …). `canonical_json` is normalized
    and has no breakpoint: it is equal for a string and the equivalent text block. `breakpoint_ttl` is that of
    the client's breakpoint.
    """

    place: Place
    kind: str
    canonical_json: bytes
    role: str = ""
    breakpoint_ttl: Ttl | None = None
    is_empty: bool = False


class CacheUsage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Input tokens of a call, by how the cache was used.

    `written_5m` has the provider's short TTL (5 minutes at Anthropic, 30 at OpenAI), `written_1h` its long one.
    """

    uncached: int = 0
    read: int = 0
    written_5m: int = 0
    written_1h: int = 0

    @property
    def input_tokens(self) -> int:
        return self.uncached + self.read + self.written_5m + self.written_1h


class SimulatedState(StrEnum):
    """Stages of a request, from the client's own to the one that is sent.

    Each stage adds one mechanism to the previous one and is named after it. The difference between two stages
    is what the mechanism of the second one saves.
    """

    CLIENT = "client"
    COMPACTION = "compaction"
    CONTEXT = "context"
    BREAKPOINTS = "breakpoints"
    KEEP_ALIVE = "keep_alive"


class ComparisonOutcome(StrEnum):
    """Result of comparing the cost of a call with its cost without Foveate.

    `EARLIER`: recorded by a version that did not compare. `WOULD_NOT_FIT`: without Foveate, the session would
    have exceeded the context window before. `UNKNOWN`: the price is unknown, or nothing was simulated.
    """

    SIMULATED = "simulated"
    WOULD_NOT_FIT = "would_not_fit"
    UNKNOWN = "unknown"
    EARLIER = "earlier"


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """Simulated cost of a call without Foveate, and the savings of each mechanism; losses are negative.

    `without` minus the savings is the simulated cost with Foveate; `simulation_error` is the charge minus that.
    All are None unless `comparison` is `SIMULATED`.
    """

    comparison: ComparisonOutcome = ComparisonOutcome.UNKNOWN
    without: Decimal | None = None
    compaction: Decimal | None = None
    context: Decimal | None = None
    breakpoints: Decimal | None = None
    keep_alive: Decimal | None = None
    simulation_error: Decimal | None = None

    @property
    def total(self) -> Decimal | None:
        parts = (self.compaction, self.context, self.breakpoints, self.keep_alive)
        known = [part for part in parts if part is not None]
        return sum(known, Decimal(0)) if known else None


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Usage of one call as the provider reported it.

    `raw` is its original block, with the searches that OpenAI reports outside of it.
    `reasoning_tokens` are part of `output_tokens`. `reported_dollars` is the price, if the provider states one.
    `tier` is its service tier (`batch`, `flex`, `priority`, …). `is_unreadable`: a number is impossible, so
    none is used, and the cost is unknown.
    """

    cache: CacheUsage
    output_tokens: int = 0
    reasoning_tokens: int = 0
    reported_dollars: Decimal | None = msgspec.field(default=None, name="said_dollars")
    tier: str = ""
    raw: bytes = b""
    is_unreadable: bool = False

    @property
    def is_empty(self) -> bool:
        """A call always has some numbers, so an empty usage is unknown, not free."""
        return not self.output_tokens and self.reported_dollars is None and not self.cache.input_tokens


class BreakpointStyle(StrEnum):
    """JSON styles of cache breakpoints."""

    CACHE_CONTROL = "cache_control"  # Anthropic, and hosts that forward its breakpoints
    PROMPT_CACHE_BREAKPOINT = "prompt_cache_breakpoint"  # OpenAI; the TTL is set once for the whole request
    CACHE_POINT = "cachePoint"  # Bedrock: a separate block after the cached one


class CacheBreakpoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Cache everything up to this block. Without `ttl`, the provider's default applies."""

    place: Place
    reason: str
    ttl: Ttl | None = None
    saved_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveBreakpoint:
    """Remove the client's cache breakpoint from a block."""

    place: Place
    reason: str
    saved_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceText:
    """Replace the text of a block, or the whole content of a tool result."""

    place: Place
    text: str
    reason: str
    saved_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceMessages:
    """Replace the messages from `start` to `end`, exclusive, or drop them."""

    start: int
    end: int
    messages: tuple[Message, ...]
    reason: str
    saved_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertParts:
    """Insert parts before `place`; if that is a message, as a new message by `role`.

    An index or block after the last one appends. With `join_texts`, texts appended to a plain string become
    part of it, and those of a new message become part of the message that such an edit has inserted there
    before, each after a blank line, so that no list is created where there was none.
    """

    place: Place
    parts: tuple[Part, ...]
    reason: str
    role: str = "user"
    join_texts: bool = False
    saved_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReorderTools:
    """Reorder the tools: `order[i]` is the present index of the i-th one."""

    order: tuple[int, ...]
    reason: str
    saved_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SetParameter:
    """Set a parameter of the request by path (`prompt_cache_key`, `stream_options.include_usage`)."""

    path: tuple[str, ...]
    value: str | int | bool | None
    reason: str
    saved_tokens: int = 0


Edit = (
    CacheBreakpoint
    | RemoveBreakpoint
    | ReplaceText
    | ReplaceMessages
    | InsertParts
    | ReorderTools
    | SetParameter
)

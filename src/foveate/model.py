"""The values that the rooms hand to each other, all of them frozen.

A request stays in the bytes it came in: `Request` holds each message and tool as its own JSON, and only the
ones that somebody looks at are read into a `Message` or a `Tool`. What every message makes a few of, its parts
and blocks, and every bill, are msgspec's structs, which are made ten times as fast as dataclasses.
"""

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

import msgspec


class Format(StrEnum):
    """The wire formats that Foveate reads."""

    ANTHROPIC = "anthropic"
    CHAT = "openai-chat"
    RESPONSES = "openai-responses"
    GEMINI = "gemini"
    BEDROCK = "bedrock"


@dataclass(frozen=True, slots=True)
class TokenCount:
    """A number of tokens and how far it can be trusted.

    `exact` says that the model's own tokenizer gave it; `upper` is a bound that a hard limit may rely on.
    """

    tokens: int
    exact: bool
    upper: int

    def __add__(self, other: "TokenCount") -> "TokenCount":
        """The count of two things side by side, exact only if both are."""
        return TokenCount(self.tokens + other.tokens, self.exact and other.exact, self.upper + other.upper)


ZERO_TOKENS = TokenCount(0, True, 0)

STORED_HISTORY = frozenset(("thread", "previous_response_id", "conversation"))
"""Fields with which a request continues a conversation that the provider stores."""


class MediaSource(StrEnum):
    """Where the bytes of an image or a document are."""

    INLINE = "inline"
    URL = "url"
    FILE = "file"


class Text(msgspec.Struct, frozen=True):
    """Plain text."""

    text: str


class Thinking(msgspec.Struct, frozen=True):
    """A model's reasoning, sent back. `sealed` is the length of what only the provider can read."""

    text: str
    encrypted_chars: int = 0


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """A picture; its size in pixels is None where the request does not show it."""

    source: MediaSource
    width: int | None = None
    height: int | None = None
    detail: str = "auto"


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A file in the conversation: its text where that can be read, its pages where they can be counted."""

    source: MediaSource
    media_type: str
    text: str = ""
    pages: int | None = None
    size_bytes: int = 0


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A model's call of a tool. `arguments` is JSON, as it came; `item_id` names a stored Responses item."""

    name: str
    arguments: str
    format: Format
    id: str = ""
    item_id: str = ""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool answered."""

    parts: tuple["Part", ...]
    id: str = ""
    name: str = ""
    is_error: bool = False


class Opaque(msgspec.Struct, frozen=True):
    """A block that Foveate does not know, kept as it is."""

    kind: str
    raw: bytes


Part = Text | Thinking | Image | Document | ToolCall | ToolResult | Opaque


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One turn's worth of parts, by one speaker."""

    role: str
    parts: tuple[Part, ...]
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that the model may call. `kind` is `function`, or the provider's name for one of its own.

    `parameters` is the JSON schema as it came, `raw` the whole definition.
    """

    kind: str
    name: str
    description: str
    parameters: bytes
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseSchema:
    """The form that the request asks the answer to have."""

    name: str
    description: str
    schema: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request body, read as far as every request needs.

    `body` is the whole of it, `messages` and `tools` the JSON of each, byte for byte. `extras` names parameters
    that add a text of the provider's, `unexplained` what it will add that the body does not show (a stored
    conversation, a server-side tool's results, …). `around` is what `wire` knows of all but its messages, and
    `laid` is where these lie in the body, where it knows that. `trail` is what it knows of the messages of a
    request that is too large to be remembered.
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
        """Whether earlier messages of its conversation are only stored by the provider."""
        return not STORED_HISTORY.isdisjoint(self.unexplained)


class Area(StrEnum):
    """The three stretches of a request, in the order in which a provider reads them."""

    TOOLS = "tools"
    SYSTEM = "system"
    MESSAGES = "messages"


class Place(msgspec.Struct, frozen=True):
    """Where something stands in a request: a tool, a block of the system prompt, a message or a block of it.

    A content that is a plain string is one block, number 0.
    """

    area: Area
    index: int
    block: int | None = None


class Ttl(StrEnum):
    """How long a provider is asked to keep a prefix."""

    FIVE_MINUTES = "5m"
    THIRTY_MINUTES = "30m"
    ONE_HOUR = "1h"
    TWELVE_HOURS = "12h"

    @property
    def seconds(self) -> int:
        """The same in seconds."""
        return int(self[:-1]) * (60 if self.endswith("m") else 3600)


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One block of a request, as far as a cache looks at it.

    `kind` is the provider's own word (`tool`, `text`, `tool_use`, `thinking`, …), `said` the JSON of the block
    in one spelling and without its mark: equal for a string and for the one text block that means the same.
    `role` is who says it, in a message. `mark` is the client's own.
    """

    place: Place
    kind: str
    canonical_json: bytes
    role: str = ""
    breakpoint_ttl: Ttl | None = None
    is_empty: bool = False


class CacheUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The input tokens of a bill, by what the cache did for them.

    `written_5m` is what was written for the provider's short time (5 minutes at Anthropic, 30 at OpenAI), and
    `written_1h` for its long one.
    """

    uncached: int = 0
    read: int = 0
    written_5m: int = 0
    written_1h: int = 0

    @property
    def input_tokens(self) -> int:
        """All of them."""
        return self.uncached + self.read + self.written_5m + self.written_1h


class SimulatedState(StrEnum):
    """A request with some of what Foveate does, from the client's own request to the one that is sent.

    Each state adds a mechanism to the one before and is named after it, so that the difference between two
    neighbours is what the second one's mechanism saves.
    """

    CLIENT = "client"
    COMPACTION = "compaction"
    CONTEXT = "context"
    BREAKPOINTS = "breakpoints"
    KEEP_ALIVE = "keep_alive"


class Comparison(StrEnum):
    """How the cost of a call compares with what it would have been without Foveate.

    `EARLIER`: it was recorded by a version that did not compare. `WOULD_NOT_FIT`: without Foveate its session
    would have outgrown the model's window before. `UNKNOWN`: the price is not known, or it was not simulated.
    """

    SIMULATED = "simulated"
    WOULD_NOT_FIT = "would_not_fit"
    UNKNOWN = "unknown"
    EARLIER = "earlier"


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """The simulated cost of a call without Foveate, and what each mechanism saved of it; a loss is negative.

    `without` less the savings is the simulated cost with Foveate, and `simulation_error` is what was charged
    less that. All are None unless `comparison` is `SIMULATED`.
    """

    comparison: Comparison = Comparison.UNKNOWN
    without: Decimal | None = None
    compaction: Decimal | None = None
    context: Decimal | None = None
    breakpoints: Decimal | None = None
    keep_alive: Decimal | None = None
    simulation_error: Decimal | None = None

    @property
    def total(self) -> Decimal | None:
        """What all mechanisms saved together."""
        parts = (self.compaction, self.context, self.breakpoints, self.keep_alive)
        known = [part for part in parts if part is not None]
        return sum(known, Decimal(0)) if known else None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider billed for one call; `raw` is its own block of numbers, as it came.

    `reasoning_tokens` are part of `output_tokens`; `said_dollars` is the price, where the provider says one;
    `tier` is its word for how the call was served (`batch`, `flex`, `priority`, …). `is_unreadable`: its
    block has a number that cannot be, so it has none here, and the cost of the call is unknown.
    """

    cache: CacheUsage
    output_tokens: int = 0
    reasoning_tokens: int = 0
    said_dollars: Decimal | None = None
    tier: str = ""
    raw: bytes = b""
    is_unreadable: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing: no call reads nothing, and what is not known is not free."""
        return not self.output_tokens and self.said_dollars is None and not self.cache.input_tokens


class BreakpointStyle(StrEnum):
    """The ways in which providers want a mark written."""

    CACHE_CONTROL = "cache_control"  # Anthropic, and who passes its marks on
    PROMPT_CACHE_BREAKPOINT = (
        "prompt_cache_breakpoint"  # OpenAI; the time to live is said once for the whole request
    )
    CACHE_POINT = "cachePoint"  # Bedrock: a block of its own behind the marked one


class CacheBreakpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Keep what stands up to here: a cache mark on a block. Without a `ttl` it is the provider's usual one."""

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
    """Another text for a block; for a tool result, in the place of all that it holds."""

    place: Place
    text: str
    reason: str
    saved_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceMessages:
    """Other messages for those from `start` up to, not with, `end`; none to drop them."""

    start: int
    end: int
    messages: tuple[Message, ...]
    reason: str
    saved_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertParts:
    """Parts put before `place`: as a message of their own, by `role`, where it names a message.

    An index or block that is one more than the last puts them at the end. With `joins`, texts that are put
    behind a plain string become part of it, and those of a message of their own become part of the one that
    such an edit has put there before, each after a blank line: no list comes about where there was none.
    """

    place: Place
    parts: tuple[Part, ...]
    reason: str
    role: str = "user"
    join_texts: bool = False
    saved_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReorderTools:
    """The tools in another order: `order[i]` is the present index of the one that comes i-th."""

    order: tuple[int, ...]
    reason: str
    saved_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SetParameter:
    """A parameter of the whole request, by its path (`prompt_cache_key`, `stream_options.include_usage`)."""

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

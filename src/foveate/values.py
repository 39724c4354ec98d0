"""The values that the rooms hand to each other, all of them frozen.

A request stays in the bytes it came in: `Request` holds each message and tool as its own JSON, and only the
ones that somebody looks at are read into a `Message` or a `Tool`.
"""

from dataclasses import dataclass
from enum import StrEnum


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


NOTHING = TokenCount(0, True, 0)


class Source(StrEnum):
    """Where the bytes of an image or a document are."""

    INLINE = "inline"
    URL = "url"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """A model's reasoning, sent back. `sealed` is the length of what only the provider can read."""

    text: str
    sealed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A picture; its size in pixels is None where the request does not show it."""

    source: Source
    width: int | None = None
    height: int | None = None
    detail: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A file in the conversation: its text where that can be read, its pages where they can be counted."""

    source: Source
    media_type: str
    text: str = ""
    pages: int | None = None
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A model's call of a tool. `arguments` is JSON, as it came; `item_id` names a stored Responses item."""

    name: str
    arguments: str
    format: Format
    id: str = ""
    item_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a tool answered."""

    parts: tuple["Part", ...]
    id: str = ""
    name: str = ""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Opaque:
    """A block that Foveate does not know, kept as it is."""

    kind: str
    raw: bytes


Part = Text | Thinking | Image | Document | ToolCall | ToolResult | Opaque


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
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
class Schema:
    """The form that the request asks the answer to have."""

    name: str
    description: str
    schema: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request body, read as far as every request needs.

    `body` is the whole of it, `messages` and `tools` the JSON of each, byte for byte. `extras` names parameters
    that add a text of the provider's, `unexplained` what it will add that the body does not show (a stored
    conversation, a server-side tool's results, …).
    """

    format: Format
    model: str
    body: bytes
    system: tuple[Part, ...]
    tools: tuple[bytes, ...]
    messages: tuple[bytes, ...]
    tool_choice: str = ""
    thinking: str = ""
    schema: Schema | None = None
    extras: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()

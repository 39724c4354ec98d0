"""How a wire format is laid out, as far as blocks and edits need to know; each format's file says its own.

Cache marks as the formats write them: found on a block, taken off it, and the JSON of a new one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from foveate.formats.json_text.parse import as_dict, as_text, json_type_name
from foveate.model import BreakpointStyle, CacheBreakpoint, RemoveBreakpoint, Ttl

FieldPath = tuple[str, ...]

_TEXT_KINDS = frozenset(("text", "input_text", "output_text"))

# What stands beside the one name that says what a block is, where blocks have no `type`.
_METADATA_FIELDS = frozenset(
    ("thought", "thoughtSignature", "thought_signature", "videoMetadata", "video_metadata",
     "mediaResolution", "media_resolution", "partMetadata", "part_metadata")
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatLayout:
    """Where a format keeps what, and how it writes a text and a mark.

    `messages` and `system` are the names a field goes by, the first of them the one to write; `tools` are the
    paths of the lists of tools, `wrapper` the field that may hold the whole request. `text_kind` is the `type`
    of a text block (by role where they differ), none where blocks have no type. `results` are the kinds of
    block that hold a tool's result, and where in them its content is; `whole_kind` gives the kind of a message
    that is one block, nothing for others.
    """

    message_fields: FieldPath
    content_field: str
    tool_paths: tuple[FieldPath, ...]
    system_fields: FieldPath = ()
    system_blocks_field: str = ""  # where the system prompt is an object, the name of its list of blocks
    system_is_text: bool = False  # one string, never blocks
    wrapper_field: str = ""
    declaration_fields: FieldPath = ()  # where tools are lists inside of the list of tools, the names of these
    allows_single: bool = False  # one message or block may stand without a list around it
    text_kind: str = ""
    text_kind_by_role: Mapping[str, str] = field(default_factory=dict)
    result_paths: Mapping[str, FieldPath] = field(default_factory=dict)
    result_is_object: bool = False
    breakpoints_inside_results: bool = False  # a mark on a result stands on the last part of its content
    single_block_kind: Callable[[Mapping[str, Any]], str] = lambda _: ""
    tool_calls_field: str = ""  # the field beside the content that lists a message's calls of tools
    breakpoint_styles: tuple[BreakpointStyle, ...] = ()

    def text_kind_for(self, role: str) -> str:
        """The `type` of a text block that `role` says; none where blocks have no type."""
        return self.text_kind_by_role.get(role, self.text_kind)

    def text_block_prefix(self, role: str) -> bytes:
        """What stands before the string of a text block; a brace closes it."""
        kind = self.text_kind_for(role)
        return b'{"type":"' + kind.encode() + b'","text":' if kind else b'{"text":'

    def make_text_block(self, text: str, role: str) -> dict[str, Any]:
        """The block that means the same as the plain string `text`."""
        kind = self.text_kind_for(role)
        return {"type": kind, "text": text} if kind else {"text": text}

    def make_plain_text_block(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """The one text block that a message is which says a plain string and nothing else; None for others."""
        text = message.get(self.content_field)
        if (
            not isinstance(text, str)
            or len(message) != 2
            or "role" not in message
            or self.single_block_kind(message)
        ):
            return None
        return self.make_text_block(text, as_text(message["role"]))

    def block_kind(self, block: object) -> str:
        """What a block calls itself; what JSON calls it where it does not say."""
        fields = as_dict(block)
        if self.text_kind:
            return as_text(fields.get("type")) or json_type_name(block)
        if fields.get("thought") is True:
            return "thought"
        return next(
            (name for name in fields if name not in _METADATA_FIELDS), next(iter(fields), json_type_name(block))
        )

    def is_text(self, block: object) -> bool:
        """Whether a block is plain text."""
        return self.block_kind(block) in _TEXT_KINDS


# Those that are members of what they mark.
BREAKPOINT_FIELDS = (BreakpointStyle.CACHE_CONTROL.value, BreakpointStyle.PROMPT_CACHE_BREAKPOINT.value)
_TTLS = {ttl.value: ttl for ttl in Ttl}
CACHE_POINT_FIELD = BreakpointStyle.CACHE_POINT.value


def read_breakpoint(fields: dict[str, Any], breakpoint_ttl: Ttl) -> Ttl | None:
    """The mark that an object bears; `breakpoint_ttl` is that of all breakpoints of its request."""
    if fields.get("cache_control") is not None:
        return read_ttl(fields["cache_control"])
    return None if fields.get("prompt_cache_breakpoint") is None else breakpoint_ttl


def read_ttl(value: object, default: Ttl = Ttl.FIVE_MINUTES) -> Ttl:
    """How long a mark asks for: the usual time where it does not say, or says what nobody knows."""
    ttl = value.get("ttl") if isinstance(value, dict) else None
    return _TTLS.get(ttl, default) if isinstance(ttl, str) else default


def is_cache_point(block: object) -> bool:
    """Whether it is no block but Bedrock's mark on the one before it."""
    return CACHE_POINT_FIELD in as_dict(block)


def remove_breakpoints(entry: Any) -> Any:
    """A message or block without its marks; the same word in a tool's arguments is a word like any other."""
    if not isinstance(entry, dict):
        return entry
    kept = {name: inner for name, inner in entry.items() if name not in BREAKPOINT_FIELDS}
    if isinstance(kept.get("content"), list):
        kept["content"] = [remove_breakpoints(block) for block in kept["content"]]
    return kept


def breakpoint_json(cache_breakpoint: CacheBreakpoint | RemoveBreakpoint, style: BreakpointStyle) -> bytes:
    """The JSON of a mark: a member's value, or for Bedrock a whole block; `null` for one that is removed."""
    if isinstance(cache_breakpoint, RemoveBreakpoint):
        return b"null"
    if style is BreakpointStyle.PROMPT_CACHE_BREAKPOINT:
        return b'{"mode":"explicit"}'
    ttl = (
        b""
        if cache_breakpoint.ttl in (None, Ttl.FIVE_MINUTES)
        else b',"ttl":"' + str(cache_breakpoint.ttl).encode() + b'"'
    )
    if style is BreakpointStyle.CACHE_POINT:
        return b'{"cachePoint":{"type":"default"' + ttl + b"}}"
    return b'{"type":"ephemeral"' + ttl + b"}"

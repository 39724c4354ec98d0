"""Layout of a wire format: names of fields, kinds of blocks, and the JSON of cache breakpoints."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from foveate.formats.json_text.parse import as_dict, as_text, json_type_name
from foveate.model import BreakpointStyle, CacheBreakpoint, RemoveBreakpoint, Ttl

FieldPath = tuple[str, ...]

_TEXT_KINDS = frozenset(("text", "input_text", "output_text"))

# Fields besides the one that names the kind of a block without `type`.
_METADATA_FIELDS = frozenset(
    ("thought", "thoughtSignature", "thought_signature", "videoMetadata", "video_metadata",
     "mediaResolution", "media_resolution", "partMetadata", "part_metadata")
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatLayout:
    """Names of the fields of a format, and its JSON for texts and breakpoints.

    `message_fields` and `system_fields` are accepted names; the first is the one to write. `tool_paths` lead to
    the lists of tools, `wrapper_field` may contain the whole request. `text_kind` is the `type` of a text
    block, empty if blocks have no type. `result_paths` maps kinds of tool-result blocks to the path of their
    content; `single_block_kind` returns the kind of a message that is one block, otherwise an empty string.
    """

    message_fields: FieldPath
    content_field: str
    tool_paths: tuple[FieldPath, ...]
    system_fields: FieldPath = ()
    system_blocks_field: str = ""  # list of blocks in a system prompt that is an object
    system_is_text: bool = False  # a string, never a list of blocks
    wrapper_field: str = ""
    declaration_fields: FieldPath = ()  # nested lists of tools
    allows_single: bool = False  # one message or block may be given without a list
    text_kind: str = ""
    text_kind_by_role: Mapping[str, str] = field(default_factory=dict)
    result_paths: Mapping[str, FieldPath] = field(default_factory=dict)
    result_is_object: bool = False
    breakpoints_inside_results: bool = False  # a breakpoint on a result is on its last part
    single_block_kind: Callable[[Mapping[str, Any]], str] = lambda _: ""
    tool_calls_field: str = ""  # field of a message that lists its tool calls
    breakpoint_styles: tuple[BreakpointStyle, ...] = ()

    def text_kind_for(self, role: str) -> str:
        return self.text_kind_by_role.get(role, self.text_kind)

    def text_block_prefix(self, role: str) -> bytes:
        """Return the JSON before the string of a text block. A brace closes the block."""
        kind = self.text_kind_for(role)
        return b'{"type":"' + kind.encode() + b'","text":' if kind else b'{"text":'

    def make_text_block(self, text: str, role: str) -> dict[str, Any]:
        kind = self.text_kind_for(role)
        return {"type": kind, "text": text} if kind else {"text": text}

    def make_plain_text_block(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
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
        fields = as_dict(block)
        if self.text_kind:
            return as_text(fields.get("type")) or json_type_name(block)
        if fields.get("thought") is True:
            return "thought"
        return next(
            (name for name in fields if name not in _METADATA_FIELDS), next(iter(fields), json_type_name(block))
        )

    def is_text(self, block: object) -> bool:
        return self.block_kind(block) in _TEXT_KINDS


# Breakpoints that are members of the object that they apply to.
BREAKPOINT_FIELDS = (BreakpointStyle.CACHE_CONTROL.value, BreakpointStyle.PROMPT_CACHE_BREAKPOINT.value)
_TTLS = {ttl.value: ttl for ttl in Ttl}
CACHE_POINT_FIELD = BreakpointStyle.CACHE_POINT.value


def read_breakpoint(fields: dict[str, Any], breakpoint_ttl: Ttl) -> Ttl | None:
    """Return the TTL of an object's breakpoint. `breakpoint_ttl` is that of OpenAI's by default."""
    if fields.get("cache_control") is not None:
        return read_ttl(fields["cache_control"])
    openai_breakpoint = fields.get("prompt_cache_breakpoint")
    return None if openai_breakpoint is None else read_ttl(openai_breakpoint, default=breakpoint_ttl)


def read_ttl(value: object, default: Ttl = Ttl.FIVE_MINUTES) -> Ttl:
    ttl = value.get("ttl") if isinstance(value, dict) else None
    return _TTLS.get(ttl, default) if isinstance(ttl, str) else default


def is_cache_point(block: object) -> bool:
    """Return whether an entry is Bedrock's breakpoint for the block before it."""
    return CACHE_POINT_FIELD in as_dict(block)


def remove_breakpoints(entry: Any) -> Any:
    """Return a message or block without breakpoints. The same names in tool arguments are left alone."""
    if not isinstance(entry, dict):
        return entry
    cleaned_entry = {name: inner for name, inner in entry.items() if name not in BREAKPOINT_FIELDS}
    if isinstance(cleaned_entry.get("content"), list):
        cleaned_entry["content"] = [remove_breakpoints(block) for block in cleaned_entry["content"]]
    return cleaned_entry


def breakpoint_json(cache_breakpoint: CacheBreakpoint | RemoveBreakpoint, style: BreakpointStyle) -> bytes:
    """Return the JSON of a breakpoint: a member's value, for Bedrock a whole block, `null` to remove one."""
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

"""How a wire format is laid out, as far as blocks and edits need to know; each format's file says its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from foveate.values import BreakpointStyle
from foveate.wire.body import as_dict, as_text, json_type_name

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

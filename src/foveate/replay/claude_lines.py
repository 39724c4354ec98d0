"""The lines of a Claude Code log, each read as far as a conversation needs it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from foveate.replay.log_files import LogFile, decode_line, describe_decode_error
from foveate.replay.times import parse_time
from foveate.wire.body import as_list, as_text

_NULL = msgspec.Raw(b"null")
_MESSAGE_TYPES = ("user", "assistant")
# What the agent prints in the end, with what all of it cost.
_RESULT_TYPE = "result"
# A line with which an agent begins anew, from a summary.
COMPACTION_BOUNDARY = "compact_boundary"
# What a command printed that a user ran in the agent; it is sent along as the user's.
_LOCAL_COMMAND = "local_command"


class _RawLine(msgspec.Struct, rename="camel"):
    """The members of a line that matter; whatever they hold, the line is read."""

    type: Any = None
    subtype: Any = None
    uuid: Any = None
    parent_uuid: Any = msgspec.UNSET
    logical_parent_uuid: Any = None
    session_id: Any = None
    streamed_session: Any = msgspec.field(default=None, name="session_id")
    agent_id: Any = None
    parent_tool_use: Any = msgspec.field(default=None, name="parent_tool_use_id")
    is_sidechain: Any = None
    is_api_error_message: Any = None
    request_id: Any = None
    timestamp: Any = None
    cost: Any = msgspec.field(default=None, name="costUSD")
    total_cost: Any = msgspec.field(default=None, name="total_cost_usd")
    content: msgspec.Raw = _NULL
    message: msgspec.Raw = _NULL
    compact_metadata: msgspec.Raw = _NULL


class _RawMessage(msgspec.Struct):
    """The message of a line."""

    id: Any = None
    model: Any = None
    stop_reason: Any = None
    content: msgspec.Raw = _NULL
    usage: msgspec.Raw = _NULL


class _RawBlock(msgspec.Struct):
    """What a block says of itself."""

    type: Any = None
    id: Any = None
    tool_use_id: Any = None


class _PreservedLines(msgspec.Struct, rename="camel"):
    """Which lines a summary left standing: by name, or the first and the last; and which line they follow."""

    head_uuid: Any = None
    anchor_uuid: Any = None
    tail_uuid: Any = None
    uuids: Any = None


class _CompactMetadata(msgspec.Struct, rename="camel"):
    preserved_segment: _PreservedLines | None = None
    preserved_messages: _PreservedLines | None = None


_LINE_DECODER = msgspec.json.Decoder(_RawLine)
_MESSAGE_DECODER = msgspec.json.Decoder(_RawMessage)
_BLOCK_DECODER = msgspec.json.Decoder(_RawBlock)
_LIST_DECODER = msgspec.json.Decoder(list[msgspec.Raw])
_METADATA_DECODER = msgspec.json.Decoder(_CompactMetadata)


# These are made by the hundred thousand, and a struct is made several times as fast as a dataclass.
class LoggedBlock(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A block of a message; `call` names the call of a tool that it is, or is the result of."""

    raw: bytes
    kind: str
    tool_call_id: str


@dataclass(frozen=True, slots=True)
class PreservedSegment:
    """Lines that a summary left standing, to be read behind `anchor`: `names`, or from `head` to `tail`."""

    anchor: str
    head: str
    tail: str
    uuids: tuple[str, ...]


class LoggedLine(msgspec.Struct, frozen=True, eq=False, kw_only=True, gc=False):
    """A line that has a place in the conversation; `role` is empty where it only stands between others.

    Where it `follows`, it does not name the one before it: what the agent prints as it goes on is in order.
    """

    uuid: str
    parent: str
    follows_previous: bool
    role: str
    at: float
    session: str
    agent: str
    is_sidechain: bool
    is_compaction: bool = False
    preserved: PreservedSegment | None = None
    blocks: tuple[LoggedBlock, ...] = ()
    request: str = ""
    message: str = ""
    model: str = ""
    stop_reason: str = ""
    usage: bytes = b""
    cost: Any = None
    total_cost: Any = None
    is_error: bool = False


def read_lines(file: LogFile) -> Iterator[LoggedLine]:
    """Every line of `file` with a place in its conversation; what cannot be read is noted there.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    for number, raw in file.objects():
        try:
            line = decode_line(_LINE_DECODER, raw)
        except msgspec.ValidationError:
            file.report_unreadable(number, "is JSON, but no object")
            continue
        except (msgspec.DecodeError, RecursionError) as error:
            file.report_unreadable(number, describe_decode_error(error))
            continue
        try:
            found = _convert_line(line, number)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            file.report_unreadable(number, describe_decode_error(error))
            continue
        if found is not None:
            yield found


def _convert_line(line: _RawLine, number: int) -> LoggedLine | None:
    kind = as_text(line.type)
    message = _decode_message(line.message) if kind in _MESSAGE_TYPES else None
    uuid = as_text(line.uuid) or (f"line {number}" if message is not None or kind == _RESULT_TYPE else "")
    if not uuid:
        return None
    blocks: tuple[LoggedBlock, ...] = ()
    role = ""
    if message is not None:
        blocks = _decode_blocks(message.content)
        role = kind
    elif kind == "system" and line.subtype == _LOCAL_COMMAND:
        blocks = _decode_blocks(line.content)
        role = "user"
    is_compaction = line.subtype == COMPACTION_BOUNDARY
    return LoggedLine(
        uuid=uuid,
        parent=as_text(line.parent_uuid) or ("" if is_compaction else as_text(line.logical_parent_uuid)),
        role=role,
        at=parse_time(line.timestamp),
        follows_previous=line.parent_uuid is msgspec.UNSET and role != "",
        session=as_text(line.session_id) or as_text(line.streamed_session),
        agent=as_text(line.agent_id) or as_text(line.parent_tool_use),
        is_sidechain=line.is_sidechain is True,
        is_compaction=is_compaction,
        preserved=_decode_preserved(line.compact_metadata) if is_compaction else None,
        blocks=blocks,
        request=as_text(line.request_id),
        message=as_text(message.id) if message else "",
        model=as_text(message.model) if message else "",
        stop_reason=as_text(message.stop_reason) if message else "",
        usage=bytes(message.usage) if message and bytes(message.usage) != b"null" else b"",
        cost=line.cost,
        total_cost=line.total_cost if kind == _RESULT_TYPE else None,
        is_error=line.is_api_error_message is True,
    )


def _decode_message(raw: msgspec.Raw) -> _RawMessage | None:
    try:
        return _MESSAGE_DECODER.decode(raw)
    except msgspec.ValidationError:
        return None


def _decode_preserved(raw: msgspec.Raw) -> PreservedSegment | None:
    try:
        metadata = _METADATA_DECODER.decode(raw)
    except msgspec.ValidationError:
        return None
    segment, listed = (
        metadata.preserved_segment or _PreservedLines(),
        metadata.preserved_messages or _PreservedLines(),
    )
    anchor = as_text(segment.anchor_uuid) or as_text(listed.anchor_uuid)
    names = tuple(name for name in map(as_text, as_list(listed.uuids)) if name)
    head, tail = as_text(segment.head_uuid), as_text(segment.tail_uuid)
    return PreservedSegment(anchor, head, tail, names) if anchor and (names or (head and tail)) else None


def _decode_blocks(content: msgspec.Raw) -> tuple[LoggedBlock, ...]:
    first = bytes(memoryview(content)[:1])
    if first == b'"':
        raw = bytes(content)
        return () if raw == b'""' else (LoggedBlock(b'{"type":"text","text":' + raw + b"}", "text", ""),)
    if first != b"[":
        return ()
    found = []
    for item in _LIST_DECODER.decode(content):
        raw = bytes(item)
        if raw.startswith(b'"'):
            found.append(LoggedBlock(b'{"type":"text","text":' + raw + b"}", "text", ""))
        elif raw.startswith(b"{"):
            head = _BLOCK_DECODER.decode(item)
            call = as_text(head.tool_use_id) or as_text(head.id)
            found.append(LoggedBlock(raw, as_text(head.type), call))
    return tuple(found)

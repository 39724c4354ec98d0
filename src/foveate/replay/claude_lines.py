"""The lines of a Claude Code log, each read as far as a conversation needs it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from foveate.replay.log_files import LogFile, decoded, why_broken
from foveate.replay.times import seconds
from foveate.wire.body import as_list, as_text

_NO_JSON = msgspec.Raw(b"null")
_SPOKEN = ("user", "assistant")
# What the agent prints in the end, with what all of it cost.
_RESULT = "result"
# A line with which an agent begins anew, from a summary.
BOUNDARY = "compact_boundary"
# What a command printed that a user ran in the agent; it is sent along as the user's.
_LOCAL_COMMAND = "local_command"


class _Line(msgspec.Struct, rename="camel"):
    """The members of a line that matter; whatever they hold, the line is read."""

    type: Any = None
    subtype: Any = None
    uuid: Any = None
    parent_uuid: Any = msgspec.UNSET
    logical_parent_uuid: Any = None
    session_id: Any = None
    streamed_session: Any = msgspec.field(default=None, name="session_id")
    agent_id: Any = None
    sent_by: Any = msgspec.field(default=None, name="parent_tool_use_id")
    is_sidechain: Any = None
    is_api_error_message: Any = None
    request_id: Any = None
    timestamp: Any = None
    cost: Any = msgspec.field(default=None, name="costUSD")
    total_cost: Any = msgspec.field(default=None, name="total_cost_usd")
    content: msgspec.Raw = _NO_JSON
    message: msgspec.Raw = _NO_JSON
    compact_metadata: msgspec.Raw = _NO_JSON


class _Message(msgspec.Struct):
    """The message of a line."""

    id: Any = None
    model: Any = None
    stop_reason: Any = None
    content: msgspec.Raw = _NO_JSON
    usage: msgspec.Raw = _NO_JSON


class _Head(msgspec.Struct):
    """What a block says of itself."""

    type: Any = None
    id: Any = None
    tool_use_id: Any = None


class _Segment(msgspec.Struct, rename="camel"):
    """Which lines a summary left standing: by name, or the first and the last; and which line they follow."""

    head_uuid: Any = None
    anchor_uuid: Any = None
    tail_uuid: Any = None
    uuids: Any = None


class _Compacted(msgspec.Struct, rename="camel"):
    preserved_segment: _Segment | None = None
    preserved_messages: _Segment | None = None


_LINES = msgspec.json.Decoder(_Line)
_MESSAGES = msgspec.json.Decoder(_Message)
_HEADS = msgspec.json.Decoder(_Head)
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_COMPACTED = msgspec.json.Decoder(_Compacted)


# These are made by the hundred thousand, and a struct is made several times as fast as a dataclass.
class LoggedBlock(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A block of a message; `call` names the call of a tool that it is, or is the result of."""

    raw: bytes
    kind: str
    call: str


@dataclass(frozen=True, slots=True)
class Kept:
    """Lines that a summary left standing, to be read behind `anchor`: `names`, or from `head` to `tail`."""

    anchor: str
    head: str
    tail: str
    names: tuple[str, ...]


class Logged(msgspec.Struct, frozen=True, eq=False, kw_only=True, gc=False):
    """A line that has a place in the conversation; `role` is empty where it only stands between others.

    Where it `follows`, it does not name the one before it: what the agent prints as it goes on is in order.
    """

    uuid: str
    parent: str
    follows: bool
    role: str
    at: float
    session: str
    agent: str
    is_side: bool
    begins: bool = False
    kept: Kept | None = None
    blocks: tuple[LoggedBlock, ...] = ()
    request: str = ""
    message: str = ""
    model: str = ""
    stop: str = ""
    usage: bytes = b""
    cost: Any = None
    total_cost: Any = None
    is_error: bool = False


def logged_lines(file: LogFile) -> Iterator[Logged]:
    """Every line of `file` with a place in its conversation; what cannot be read is noted there.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    for number, raw in file.objects():
        try:
            line = decoded(_LINES, raw)
        except msgspec.ValidationError:
            file.broke(number, "is JSON, but no object")
            continue
        except (msgspec.DecodeError, RecursionError) as error:
            file.broke(number, why_broken(error))
            continue
        try:
            found = _logged(line, number)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            file.broke(number, why_broken(error))
            continue
        if found is not None:
            yield found


def _logged(line: _Line, number: int) -> Logged | None:
    kind = as_text(line.type)
    said = _message(line.message) if kind in _SPOKEN else None
    uuid = as_text(line.uuid) or (f"line {number}" if said is not None or kind == _RESULT else "")
    if not uuid:
        return None
    blocks: tuple[LoggedBlock, ...] = ()
    role = ""
    if said is not None:
        blocks = _blocks(said.content)
        role = kind
    elif kind == "system" and line.subtype == _LOCAL_COMMAND:
        blocks = _blocks(line.content)
        role = "user"
    begins = line.subtype == BOUNDARY
    return Logged(
        uuid=uuid,
        parent=as_text(line.parent_uuid) or ("" if begins else as_text(line.logical_parent_uuid)),
        role=role,
        at=seconds(line.timestamp),
        follows=line.parent_uuid is msgspec.UNSET and role != "",
        session=as_text(line.session_id) or as_text(line.streamed_session),
        agent=as_text(line.agent_id) or as_text(line.sent_by),
        is_side=line.is_sidechain is True,
        begins=begins,
        kept=_kept(line.compact_metadata) if begins else None,
        blocks=blocks,
        request=as_text(line.request_id),
        message=as_text(said.id) if said else "",
        model=as_text(said.model) if said else "",
        stop=as_text(said.stop_reason) if said else "",
        usage=bytes(said.usage) if said and bytes(said.usage) != b"null" else b"",
        cost=line.cost,
        total_cost=line.total_cost if kind == _RESULT else None,
        is_error=line.is_api_error_message is True,
    )


def _message(raw: msgspec.Raw) -> _Message | None:
    try:
        return _MESSAGES.decode(raw)
    except msgspec.ValidationError:
        return None


def _kept(raw: msgspec.Raw) -> Kept | None:
    try:
        told = _COMPACTED.decode(raw)
    except msgspec.ValidationError:
        return None
    segment, listed = told.preserved_segment or _Segment(), told.preserved_messages or _Segment()
    anchor = as_text(segment.anchor_uuid) or as_text(listed.anchor_uuid)
    names = tuple(name for name in map(as_text, as_list(listed.uuids)) if name)
    head, tail = as_text(segment.head_uuid), as_text(segment.tail_uuid)
    return Kept(anchor, head, tail, names) if anchor and (names or (head and tail)) else None


def _blocks(content: msgspec.Raw) -> tuple[LoggedBlock, ...]:
    first = bytes(memoryview(content)[:1])
    if first == b'"':
        raw = bytes(content)
        return () if raw == b'""' else (LoggedBlock(b'{"type":"text","text":' + raw + b"}", "text", ""),)
    if first != b"[":
        return ()
    found = []
    for item in _ITEMS.decode(content):
        raw = bytes(item)
        if raw.startswith(b'"'):
            found.append(LoggedBlock(b'{"type":"text","text":' + raw + b"}", "text", ""))
        elif raw.startswith(b"{"):
            head = _HEADS.decode(item)
            call = as_text(head.tool_use_id) or as_text(head.id)
            found.append(LoggedBlock(raw, as_text(head.type), call))
    return tuple(found)

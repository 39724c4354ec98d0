"""Reads session logs of Claude Code.

Each line names its parent, so a log is a tree. The request of a response consists of the messages between the
response and the root, or the last compaction. Each block of a response is a line of its own, and the usage of
the last one counts. Results of parallel tool calls may be on side branches.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from foveate import formats
from foveate.formats.json_text.parse import as_list, as_text
from foveate.model import Format, Usage
from foveate.replay.readers.log_file import LogFile, decode_line, describe_decode_error, parse_time
from foveate.replay.readers.usage_scan import LoggedCall, ScannedLog, UsageLines, count_tokens
from foveate.replay.recording import (
    MissingPart,
    RecordedCall,
    RecordedMessage,
    Recording,
    RecordingSource,
    find_missing_parts,
)

_NULL = msgspec.Raw(b"null")
_MESSAGE_TYPES = ("user", "assistant")
# The agent's final line, with the total cost.
_RESULT_TYPE = "result"
# The line after which the history starts anew with a summary.
COMPACTION_BOUNDARY = "compact_boundary"
# Output of a command that the user ran in the agent; it is sent as user content.
_LOCAL_COMMAND = "local_command"
_LIST_DECODER = msgspec.json.Decoder(list[msgspec.Raw])
# The model name of messages that the agent writes itself.
_SYNTHETIC_MODEL = "<synthetic>"
# No tokenizer has longer tokens on average, so a smaller count is the one from the start of the stream. If
# the log contains the end of the response, the count is trusted more.
_MAX_BYTES_PER_TOKEN = 8
_MAX_BYTES_PER_TOKEN_AT_END = 16
_TOOL_CALL_OVERHEAD_BYTES = 80  # id and type of a tool call, which the model does not generate
_EMPTY_MESSAGE = b'{"role":"user","content":""}'
# Shorter ids of messages are not unique: some hosts give every message the same.
_MIN_UNIQUE_ID_CHARS = 20


class _RawLine(msgspec.Struct, rename="camel"):
    """The relevant members of a line, of any type, so that every line can be decoded."""

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
    id: Any = None
    model: Any = None
    stop_reason: Any = None
    content: msgspec.Raw = _NULL
    usage: msgspec.Raw = _NULL


class _RawBlock(msgspec.Struct):
    type: Any = None
    id: Any = None
    tool_use_id: Any = None


class _PreservedLines(msgspec.Struct, rename="camel"):
    """The lines that a compaction preserved: all of them by id, or the first and the last; and their new
    parent.
    """

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
_METADATA_DECODER = msgspec.json.Decoder(_CompactMetadata)


# Structs, since hundreds of thousands are created, several times as fast as dataclasses.
class LoggedBlock(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A block of a message; `tool_call_id` is that of the tool call or result."""

    raw: bytes
    kind: str
    tool_call_id: str


@dataclass(frozen=True, slots=True)
class PreservedSegment:
    """Lines that a compaction preserved after `anchor`: `uuids`, or those from `head` to `tail`."""

    anchor: str
    head: str
    tail: str
    uuids: tuple[str, ...]


class LoggedLine(msgspec.Struct, frozen=True, eq=False, kw_only=True, gc=False):
    """A line of the conversation; `role` is empty if it contains no message.

    `follows_previous`: the line names no parent and follows the previous one, as in streamed output.
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
    """The lines of `file` that are part of a conversation. Unreadable lines are reported there.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    for number, raw in file.objects():
        try:
            line = decode_line(_LINE_DECODER, raw)
        except msgspec.ValidationError:
            file.report_unreadable(number, "is JSON, but not an object")
            continue
        except (msgspec.DecodeError, RecursionError) as error:
            file.report_unreadable(number, describe_decode_error(error))
            continue
        try:
            logged_line = _convert_line(line, number)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            file.report_unreadable(number, describe_decode_error(error))
            continue
        if logged_line is not None:
            yield logged_line


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
    blocks = []
    for item in _LIST_DECODER.decode(content):
        raw = bytes(item)
        if raw.startswith(b'"'):
            blocks.append(LoggedBlock(b'{"type":"text","text":' + raw + b"}", "text", ""))
        elif raw.startswith(b"{"):
            head = _BLOCK_DECODER.decode(item)
            call = as_text(head.tool_use_id) or as_text(head.id)
            blocks.append(LoggedBlock(raw, as_text(head.type), call))
    return tuple(blocks)


class _ConversationPoint:
    """The conversation up to a line: the previous messages, and the current one up to this line."""

    __slots__ = ("line", "message", "previous_line", "previous_message", "role", "root", "sent_at", "turns")

    def __init__(
        self,
        line: LoggedLine,
        previous_line: "_ConversationPoint | None",
        previous_message: "_ConversationPoint | None",
        root: str,
    ) -> None:
        self.line = line
        self.role = line.role
        self.previous_line = previous_line  # the same message, one line earlier
        self.previous_message = previous_message  # the message before this one
        self.root = root
        self.message: RecordedMessage | None = None
        self.sent_at = 0.0
        self.turns = 0

    def lines(self) -> list[LoggedLine]:
        lines = []
        point: _ConversationPoint | None = self
        while point is not None:
            lines.append(point.line)
            point = point.previous_line
        return lines[::-1]


@dataclass(slots=True)
class LoggedResponse:
    key: str
    lines: list[LoggedLine]
    root: str
    last_message: RecordedMessage | None = None
    sent_at: float = 0.0
    turns: int = 0

    @property
    def has_ended(self) -> bool:
        """Return whether the log contains a stop reason."""
        return any(line.stop_reason for line in self.lines)


class _ResponseKeys:
    def __init__(self) -> None:
        self._by_line: dict[str, str] = {}
        self._by_message: dict[str, str] = {}
        self._nameless: dict[str, LoggedLine] = {}
        self._last: dict[str, tuple[str, LoggedLine]] = {}

    def find(self, line: LoggedLine) -> str:
        return self._by_line.get(line.uuid, "")

    def add(self, line: LoggedLine) -> None:
        """Find the request of a line: by request id, or at least by message id."""
        name = line.request or self._by_message.get(line.message) or line.message or self._inherit_key(line)
        if line.message:
            name = self._by_message.setdefault(line.message, name)
        key, last = self._last.get(name, (name, line))
        # Some hosts give every message the same id, but lines of one request have the same input tokens.
        if (
            last.parent != line.parent
            and self._by_line.get(line.parent) != key
            and _are_different_requests(last, line)
        ):
            key = f"{name} {line.uuid}"
        self._last[name] = key, line
        self._by_line[line.uuid] = key

    def _inherit_key(self, line: LoggedLine) -> str:
        """The key of the response that a line without any id continues, or a new key."""
        self._nameless[line.uuid] = line
        above = self._nameless.get(line.parent)
        return (
            self._by_line[above.uuid]
            if above is not None and not _are_different_requests(above, line)
            else line.uuid
        )


def _are_different_requests(first: LoggedLine, second: LoggedLine) -> bool:
    input_counts = {_input_tokens(first), _input_tokens(second)} - {0}  # 0 if only the last line has the usage
    return len(input_counts) > 1


def _input_tokens(line: LoggedLine) -> int:
    usage = formats.parse_usage(Format.ANTHROPIC, line.usage) if line.usage else None
    return usage.cache.input_tokens if usage is not None else 0


class LogTree:
    def __init__(self, lines: Iterable[LoggedLine]) -> None:
        self._by_id: dict[str, LoggedLine] = {}
        self._repeated: list[LoggedLine] = []
        self._keys = _ResponseKeys()
        self._preserved: dict[str, PreservedSegment] = {}  # by the line that they follow
        last: dict[tuple[str, str], str] = {}  # the last message line, by session and agent
        for line in lines:
            if line.follows_previous:
                line = msgspec.structs.replace(line, parent=last.get((line.session, line.agent), ""))
            if line.role:
                last[line.session, line.agent] = line.uuid
            if self._by_id.setdefault(line.uuid, line) is not line:
                self._repeated.append(line)
            elif line.role == "assistant":
                self._keys.add(line)
            elif line.preserved is not None:
                self._preserved[line.preserved.anchor] = line.preserved
        self._points: dict[str, _ConversationPoint | None] = {}
        self._responses: dict[str, LoggedResponse] = {}
        self._results: dict[str, LoggedLine] = {}

    def responses(self) -> list[LoggedResponse]:
        """All responses with their requests, in the order of the log."""
        for line in self._by_id.values():
            self._point_at(line)
            for block in line.blocks if line.role == "user" else ():
                if block.kind == "tool_result":
                    self._results[block.tool_call_id] = line
            if line.role == "assistant" and not line.is_error:
                self._add_line(line)
        for line in self._repeated:  # the same line written again, with a later token count
            response = self._responses.get(self._keys.find(line)) if line.usage else None
            if response is not None and line.uuid == response.lines[-1].uuid:
                response.lines[-1] = line
        return list(self._responses.values())

    def _add_line(self, line: LoggedLine) -> None:
        key = self._keys.find(line)
        known = self._responses.get(key)
        if known is not None:
            known.lines.append(line)
            return
        point = self._point_before(line)
        response = LoggedResponse(key, [line], point.root if point is not None else line.uuid)
        self._responses[key] = response
        if point is not None:
            response.last_message = self._build_message(point)
            response.sent_at, response.turns = point.sent_at, point.turns

    def _point_at(self, line: LoggedLine) -> _ConversationPoint | None:
        pending: list[LoggedLine] = []
        current: LoggedLine | None = line
        pending_ids: set[str] = set()
        while current is not None and current.uuid not in self._points and current.uuid not in pending_ids:
            pending.append(current)
            pending_ids.add(current.uuid)
            current = None if current.is_compaction else self._by_id.get(current.parent)
        point = (
            self._points.get(current.uuid) if current is not None and current.uuid not in pending_ids else None
        )
        for step in reversed(pending):
            point = self._advance(self._add_preserved(point, step), step)
            self._points[step.uuid] = point
        return point

    def _point_before(self, line: LoggedLine) -> _ConversationPoint | None:
        above = self._by_id.get(line.parent)
        preserved = self._preserved.get(line.parent)
        if (
            preserved is not None and line.uuid in preserved.uuids[1:]
        ):  # an earlier line that was only attached again
            before = self._by_id.get(preserved.uuids[preserved.uuids.index(line.uuid) - 1])
            return self._point_at(before) if before is not None and before is not line else None
        return self._add_preserved(self._point_at(above), line) if above is not None else None

    def _add_preserved(self, point: _ConversationPoint | None, line: LoggedLine) -> _ConversationPoint | None:
        preserved = self._preserved.get(line.parent)
        if preserved is None or line.uuid == preserved.head:
            return point
        for step in self._preserved_lines(preserved):
            if step is line:
                break
            point = self._advance(point, step)
        return point

    def _preserved_lines(self, preserved: PreservedSegment) -> list[LoggedLine]:
        if preserved.uuids:
            return [line for name in preserved.uuids if (line := self._by_id.get(name)) is not None]
        path: dict[LoggedLine, None] = {}
        current = self._by_id.get(preserved.tail)
        while current is not None and current not in path:
            path[current] = None
            if current.uuid == preserved.head:
                return list(reversed(path))
            current = self._by_id.get(current.parent)
        return []

    def _advance(self, point: _ConversationPoint | None, line: LoggedLine) -> _ConversationPoint | None:
        if line.is_compaction:
            return None
        if not line.role or not line.blocks or line.is_error:
            return point
        if point is None:
            return _ConversationPoint(line, None, None, line.uuid)
        if point.role == line.role:
            return _ConversationPoint(line, point, point.previous_message, point.root)
        if (
            line.role == "assistant"
            and point.previous_message is not None
            and self._continues_response(point.previous_message, line)
        ):
            return point
        return _ConversationPoint(line, None, point, point.root)

    def _continues_response(self, point: _ConversationPoint, line: LoggedLine) -> bool:
        """Return whether `line` belongs to the previous response, of which a tool ran while it was still being
        streamed.
        """
        key = self._keys.find(line)
        return point.role == "assistant" and any(
            self._keys.find(point_line) == key for point_line in point.lines()
        )

    def _build_message(self, point: _ConversationPoint) -> RecordedMessage:
        pending = []
        current: _ConversationPoint | None = point
        while current is not None and current.message is None:
            pending.append(current)
            current = current.previous_message
        for step in reversed(pending):
            self._build_one_message(step)
        assert point.message is not None
        return point.message

    def _build_one_message(self, point: _ConversationPoint) -> None:
        previous = point.previous_message.message if point.previous_message is not None else None
        if point.role == "assistant":
            blocks, latest, point.sent_at = self._response_blocks(point), -1, 0.0
        else:
            blocks, latest, point.sent_at = self._user_blocks(point)
            point.turns = any(block.kind != "tool_result" for block in blocks)
        if point.previous_message is not None:
            point.sent_at = max(point.sent_at, point.previous_message.sent_at)
            point.turns += point.previous_message.turns
        point.message = RecordedMessage(
            previous=previous,
            role=point.role,
            raw=encode_message(point.role, blocks),
            depth=0 if previous is None else previous.depth + 1,
            last_logged_block=latest,
        )

    def _response_blocks(self, point: _ConversationPoint) -> list[LoggedBlock]:
        """All logged blocks of the responses in a message, including those on side branches."""
        lines = point.lines()
        lines_by_uuid: dict[str, LoggedLine] = {}
        for key in dict.fromkeys(map(self._keys.find, lines)):
            response = self._responses.get(key)
            lines_by_uuid |= {line.uuid: line for line in (response.lines if response is not None else ())}
        lines_by_uuid |= {line.uuid: line for line in lines}  # lines whose response comes later
        return remove_duplicates(block for line in lines_by_uuid.values() for block in line.blocks)

    def _user_blocks(self, point: _ConversationPoint) -> tuple[list[LoggedBlock], int, float]:
        """The blocks of a user message, tool results in the order of their calls, including those on side
        branches.

        Also returns the index of the block that was logged last, and its time.
        """
        lines = point.lines()
        calls: dict[str, int] = {}
        if point.previous_message is not None and point.previous_message.message is not None:
            response_blocks = self._response_blocks(point.previous_message)
            calls = {
                block.tool_call_id: at for at, block in enumerate(response_blocks) if block.kind == "tool_use"
            }
        present = {block.tool_call_id for line in lines for block in line.blocks if block.kind == "tool_result"}
        lines_by_uuid: dict[str, LoggedLine] = {}
        for call in calls:
            result = self._results.get(call)
            if call not in present and result is not None:
                lines_by_uuid[result.uuid] = result
        lines = [*lines_by_uuid.values(), *lines]
        blocks = [block for line in lines for block in line.blocks]
        if lines_by_uuid:  # a line may contain several results, some of which are already present
            blocks = remove_duplicates(blocks)
        at = max(line.at for line in lines)
        if not calls:
            return blocks, -1, at
        ordered_blocks = sorted(blocks, key=lambda block: calls.get(block.tool_call_id, len(calls)))
        latest = next(at for at, block in enumerate(ordered_blocks) if block is blocks[-1])
        return ordered_blocks, latest, at


def remove_duplicates(blocks: Iterable[LoggedBlock]) -> list[LoggedBlock]:
    """Some lines of a log are written more than once."""
    unique_blocks: dict[bytes, LoggedBlock] = {}
    for block in blocks:
        unique_blocks.setdefault(block.raw, block)
    return list(unique_blocks.values())


def encode_message(role: str, blocks: Iterable[LoggedBlock]) -> bytes:
    return b'{"role":"%s","content":[%s]}' % (role.encode(), b",".join(block.raw for block in blocks))


def read_claude_code(file: LogFile, model: str | None = None) -> list[Recording]:
    """Read the sessions of a log, with the sub-agents in it.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    totals = _RecordedTotals()
    tree = LogTree(totals.collect(read_lines(file)))
    found = [(response, call) for response in tree.responses() if (call := _make_call(response, model))]
    by_session: dict[str, list[tuple[LoggedResponse, RecordedCall]]] = {}
    for response, call in _distrust_output_counts(found):
        by_session.setdefault(response.lines[0].session, []).append((response, call))
    return [
        Recording(
            name=session or file.name,
            source=RecordingSource.CLAUDE_CODE,
            format=Format.ANTHROPIC,
            calls=_order_calls(calls),
            missing=frozenset((MissingPart.SYSTEM, MissingPart.TOOLS))
            | find_missing_parts(call for _, call in calls),
            unreadable=tuple(file.unreadable) if at == 0 else (),
            reported_dollars=totals.total_dollars(session)
            or _reported_dollars(response for response, _ in calls),
            size_bytes=file.size_bytes if at == 0 else 0,
        )
        for at, (session, calls) in enumerate(by_session.items())
    ]


def _make_call(response: LoggedResponse, model: str | None) -> RecordedCall | None:
    first, last = response.lines[0], response.lines[-1]
    if first.model == _SYNTHETIC_MODEL:
        return None
    usage = _read_usage(response.lines)
    blocks = remove_duplicates(block for line in response.lines for block in line.blocks)
    if usage is not None and not usage.cache.input_tokens:
        if not usage.output_tokens:
            return None
        usage = None  # some hosts report only output tokens
    last_message = response.last_message
    if last_message is None:
        last_message = RecordedMessage(previous=None, role="user", raw=_EMPTY_MESSAGE, depth=0)
    return RecordedCall(
        id=_call_id(response),
        conversation=_conversation_name(response),
        model=last.model or first.model or model or "",
        at=min(response.sent_at or first.at, first.at) if first.at else response.sent_at,
        response_at=first.at or response.sent_at,
        last_message=last_message,
        response=encode_message("assistant", blocks),
        has_thinking=any("thinking" in block.kind for block in blocks),
        usage=usage,
        output_is_known=usage is None or _is_output_complete(usage, blocks, has_ended=response.has_ended),
    )


def _call_id(response: LoggedResponse) -> str:
    """The id of the message, as in `_message_key`."""
    first = response.lines[0]
    is_unique = len(first.message) >= _MIN_UNIQUE_ID_CHARS and response.key in (first.request, first.message)
    return first.message if is_unique else response.key


def _read_usage(lines: list[LoggedLine]) -> Usage | None:
    usage = next((line.usage for line in reversed(lines) if line.usage), b"")
    return formats.parse_usage(Format.ANTHROPIC, usage) if usage else None


def _is_output_complete(usage: Usage, blocks: Iterable[LoggedBlock], *, has_ended: bool) -> bool:
    """Return whether the output tokens can be those of the whole response."""
    output_bytes = sum(
        max(len(block.raw) - _TOOL_CALL_OVERHEAD_BYTES, 0) for block in blocks if "thinking" not in block.kind
    )
    max_bytes = _MAX_BYTES_PER_TOKEN_AT_END if has_ended else _MAX_BYTES_PER_TOKEN
    return usage.output_tokens * max_bytes >= output_bytes


def _conversation_name(response: LoggedResponse) -> str:
    first = response.lines[0]
    if first.agent:
        return first.agent
    return response.root if first.is_sidechain else first.session


def _distrust_output_counts(
    calls: list[tuple[LoggedResponse, RecordedCall]],
) -> list[tuple[LoggedResponse, RecordedCall]]:
    """Mark output counts as unknown if the log never contains final counts."""
    if all(call.output_is_known for _, call in calls) or any(
        _has_changing_usage(response) for response, _ in calls
    ):
        return calls
    return [
        (response, call if response.has_ended else replace(call, output_is_known=False))
        for response, call in calls
    ]


def _has_changing_usage(response: LoggedResponse) -> bool:
    """Return whether the lines of a response have different usage, as in a stream whose end was logged."""
    return len({line.usage for line in response.lines}) > 1


def _reported_dollars(responses: Iterable[LoggedResponse]) -> Decimal | None:
    """The cost that old versions of the agent report per response."""
    costs_by_response = [
        [line.cost for line in response.lines if isinstance(line.cost, int | float)] for response in responses
    ]
    return (
        sum((Decimal(repr(costs[-1])) for costs in costs_by_response if costs), Decimal(0))
        if any(costs_by_response)
        else None
    )


class _RecordedTotals:
    def __init__(self) -> None:
        self._reported: dict[str, list[Decimal]] = {}

    def collect(self, lines: Iterable[LoggedLine]) -> Iterator[LoggedLine]:
        for line in lines:
            if isinstance(line.total_cost, int | float) and line.total_cost > 0:
                self._reported.setdefault(line.session, []).append(Decimal(repr(line.total_cost)))
            yield line

    def total_dollars(self, session: str) -> Decimal | None:
        """The cost of a session. The total grows with every turn, and restarts when the agent does."""
        reported = self._reported.get(session, [])
        ends = [total for total, later in pairwise((*reported, Decimal(0))) if later < total]
        return sum(ends, Decimal(0)) if ends else None


def _order_calls(calls: list[tuple[LoggedResponse, RecordedCall]]) -> tuple[RecordedCall, ...]:
    """Sort by time, and set `has_thinking` on all calls of a turn if one has thinking: not every response
    shows it.
    """
    thinking = {(call.conversation, response.turns) for response, call in calls if call.has_thinking}
    adjusted = [
        call
        if call.has_thinking or (call.conversation, response.turns) not in thinking
        else replace(call, has_thinking=True)
        for response, call in calls
    ]
    return tuple(sorted(adjusted, key=lambda call: call.at))


class _ClaudeUsageMessage(msgspec.Struct):
    id: Any = None
    model: Any = None
    usage: msgspec.Raw = msgspec.Raw(b"null")


class _ClaudeUsageLine(msgspec.Struct, rename="camel"):
    type: Any = None
    uuid: Any = None
    timestamp: Any = None
    session_id: Any = None
    request_id: Any = None
    cwd: Any = None
    cost: Any = msgspec.field(default=None, name="costUSD")
    message: _ClaudeUsageMessage | None = None


_USAGE_DECODER = msgspec.json.Decoder(_ClaudeUsageLine)


def scan_claude_code(path: Path) -> ScannedLog:
    """Read the line with the most tokens of each message: others can have the usage from the stream's start."""
    reader = UsageLines(path)
    raw, usage = b"", None
    lines: dict[str, tuple[_ClaudeUsageLine, _ClaudeUsageMessage, Usage]] = {}
    for line in reader.read(_USAGE_DECODER, b'"usage"'):
        message = line.message
        if line.type != "assistant" or message is None or message.model == _SYNTHETIC_MODEL:
            continue
        if (found := bytes(message.usage)) != raw:  # most lines of a message have the same
            raw, usage = found, formats.parse_usage(Format.ANTHROPIC, found)
        if usage is None or usage.is_empty:
            reader.unreadable += usage is not None and usage.is_unreadable
            continue
        key = _message_key(line, message, usage)
        known = lines.get(key)
        if known is None or count_tokens(known[2]) <= count_tokens(usage):
            lines[key] = line, message, usage
    folder = _project_folder(path)
    projects: dict[str, str] = {}
    calls = []
    for key, (line, message, usage) in lines.items():
        if (dollars := _to_dollars(line.cost)) is not None:
            usage = msgspec.structs.replace(usage, reported_dollars=dollars)
        working_folder = as_text(line.cwd)
        if working_folder not in projects:
            projects[working_folder] = _find_project(folder, working_folder)
        calls.append(
            LoggedCall(
                key=key,
                at=parse_time(line.timestamp),
                session=as_text(line.session_id) or path.stem,
                project=projects[working_folder],
                model=as_text(message.model),
                usage=usage,
            )
        )
    return ScannedLog(calls=calls, unreadable_lines=reader.unreadable)


def _message_key(line: _ClaudeUsageLine, message: _ClaudeUsageMessage, usage: Usage) -> str:
    """The id of the message: copies in side conversations have other request ids."""
    message_id = as_text(message.id)
    if len(message_id) >= _MIN_UNIQUE_ID_CHARS:
        return message_id
    name = f"{message_id}:{as_text(line.request_id)}".strip(":") or as_text(line.uuid)
    return f"{name}:{usage.cache}"


def _project_folder(path: Path) -> str:
    """The folder of a project below `projects`; sub-agents are deeper."""
    parts = path.parts
    index = len(parts) - 1 - parts[::-1].index("projects") if "projects" in parts else len(parts) - 3
    return parts[index + 1] if index + 2 < len(parts) else path.parent.name


def _find_project(folder: str, working_folder: str) -> str:
    """The path of a project: that part of the working folder after which Claude Code named the folder."""
    candidate = working_folder
    while candidate.strip("/"):
        if "".join(char if char.isalnum() and char.isascii() else "-" for char in candidate) == folder:
            return candidate
        candidate = candidate.rpartition("/")[0]
    return folder


def _to_dollars(value: object) -> Decimal | None:
    is_amount = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return Decimal(repr(value)) if is_amount else None

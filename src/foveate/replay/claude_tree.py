"""The lines of a Claude Code log as the tree that they are, and each answer with what was asked for it."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from foveate import wire
from foveate.replay.claude_lines import LoggedBlock, LoggedLine, PreservedSegment
from foveate.replay.recordings import RecordedMessage
from foveate.values import Format


class _ConversationPoint:
    """The conversation up to a line: messages said before, and the one that is still being said."""

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
        self.previous_line = previous_line  # the same message, one line before
        self.previous_message = previous_message  # the message before it
        self.root = root
        self.message: RecordedMessage | None = None
        self.sent_at = 0.0
        self.turns = 0

    def lines(self) -> list[LoggedLine]:
        """Those of the message that is being said, in their order."""
        found = []
        point: _ConversationPoint | None = self
        while point is not None:
            found.append(point.line)
            point = point.previous_line
        return found[::-1]


@dataclass(slots=True)
class LoggedResponse:
    """The lines of one answer, and the last message of the request that it answers."""

    key: str
    lines: list[LoggedLine]
    root: str
    last_message: RecordedMessage | None = None
    sent_at: float = 0.0
    turns: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether the log says why the model stopped."""
        return any(line.stop_reason for line in self.lines)


class _ResponseKeys:
    """Which request each line of an answer belongs to."""

    def __init__(self) -> None:
        self._by_line: dict[str, str] = {}
        self._by_message: dict[str, str] = {}
        self._nameless: dict[str, LoggedLine] = {}
        self._last: dict[str, tuple[str, LoggedLine]] = {}

    def find(self, line: LoggedLine) -> str:
        """The name of a line's request."""
        return self._by_line.get(line.uuid, "")

    def add(self, line: LoggedLine) -> None:
        """Find the request of a line: those of one have its id, or at least that of the message."""
        name = line.request or self._by_message.get(line.message) or line.message or self._inherit_key(line)
        if line.message:
            name = self._by_message.setdefault(line.message, name)
        key, last = self._last.get(name, (name, line))
        # Some hosts give every message the same id. But lines of one request were billed the same input.
        if (
            last.parent != line.parent
            and self._by_line.get(line.parent) != key
            and _are_different_requests(last, line)
        ):
            key = f"{name} {line.uuid}"
        self._last[name] = key, line
        self._by_line[line.uuid] = key

    def _inherit_key(self, line: LoggedLine) -> str:
        """The name of the answer that a line without any id goes on with, or a new one."""
        self._nameless[line.uuid] = line
        above = self._nameless.get(line.parent)
        return (
            self._by_line[above.uuid]
            if above is not None and not _are_different_requests(above, line)
            else line.uuid
        )


def _are_different_requests(first: LoggedLine, second: LoggedLine) -> bool:
    input_counts = {_input_tokens(first), _input_tokens(second)} - {0}  # none where it is told only in the end
    return len(input_counts) > 1


def _input_tokens(line: LoggedLine) -> int:
    """The input tokens that a line tells."""
    usage = wire.parse_usage(Format.ANTHROPIC, line.usage) if line.usage else None
    return usage.cache.input_tokens if usage is not None else 0


class LogTree:
    """The lines of a log, each hung on the one that it names."""

    def __init__(self, lines: Iterable[LoggedLine]) -> None:
        self._by_id: dict[str, LoggedLine] = {}
        self._repeated: list[LoggedLine] = []
        self._keys = _ResponseKeys()
        self._preserved: dict[str, PreservedSegment] = {}  # by the line that they follow
        last: dict[tuple[str, str], str] = {}  # the line said last, by session and agent
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
        """Every answer with what was asked, in the order of the log."""
        for line in self._by_id.values():
            self._point_at(line)
            for block in line.blocks if line.role == "user" else ():
                if block.kind == "tool_result":
                    self._results[block.tool_call_id] = line
            if line.role == "assistant" and not line.is_error:
                self._add_line(line)
        for line in self._repeated:  # the same line written again, with a later number of tokens
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
        """The conversation up to `line`; None where nothing was said before."""
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
        """The conversation that `line` answers."""
        above = self._by_id.get(line.parent)
        preserved = self._preserved.get(line.parent)
        if (
            preserved is not None and line.uuid in preserved.uuids[1:]
        ):  # it was said before, and only hung up anew
            before = self._by_id.get(preserved.uuids[preserved.uuids.index(line.uuid) - 1])
            return self._point_at(before) if before is not None and before is not line else None
        return self._add_preserved(self._point_at(above), line) if above is not None else None

    def _add_preserved(self, point: _ConversationPoint | None, line: LoggedLine) -> _ConversationPoint | None:
        """The conversation before `line`, with what a summary left standing where one stands before it."""
        preserved = self._preserved.get(line.parent)
        if preserved is None or line.uuid == preserved.head:
            return point
        for step in self._preserved_lines(preserved):
            if step is line:
                break
            point = self._advance(point, step)
        return point

    def _preserved_lines(self, preserved: PreservedSegment) -> list[LoggedLine]:
        """The lines that a summary left standing, in their order; none where the log does not hold them."""
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
        """Whether `line` is of the answer before, of which a tool was run while it was still being written."""
        key = self._keys.find(line)
        return point.role == "assistant" and any(self._keys.find(one) == key for one in point.lines())

    def _build_message(self, point: _ConversationPoint) -> RecordedMessage:
        """The message at `state` as it was sent, with all before it."""
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
        """All that was logged of the answers that the message holds, also on side branches."""
        lines = point.lines()
        found: dict[str, LoggedLine] = {}
        for key in dict.fromkeys(map(self._keys.find, lines)):
            response = self._responses.get(key)
            found |= {line.uuid: line for line in (response.lines if response is not None else ())}
        found |= {line.uuid: line for line in lines}  # those whose answer stands further down
        return remove_duplicates(block for line in found.values() for block in line.blocks)

    def _user_blocks(self, point: _ConversationPoint) -> tuple[list[LoggedBlock], int, float]:
        """What the user says, results in the order of their calls, those from side branches among them.

        Also which of it was logged last, and when.
        """
        lines = point.lines()
        calls: dict[str, int] = {}
        if point.previous_message is not None and point.previous_message.message is not None:
            response_blocks = self._response_blocks(point.previous_message)
            calls = {
                block.tool_call_id: at for at, block in enumerate(response_blocks) if block.kind == "tool_use"
            }
        present = {block.tool_call_id for line in lines for block in line.blocks if block.kind == "tool_result"}
        found: dict[str, LoggedLine] = {}
        for call in calls:
            result = self._results.get(call)
            if call not in present and result is not None:
                found[result.uuid] = result
        lines = [*found.values(), *lines]
        blocks = [block for line in lines for block in line.blocks]
        if found:  # a line may hold several results, of which some are there
            blocks = remove_duplicates(blocks)
        at = max(line.at for line in lines)
        if not calls:
            return blocks, -1, at
        sent = sorted(blocks, key=lambda block: calls.get(block.tool_call_id, len(calls)))
        latest = next(at for at, block in enumerate(sent) if block is blocks[-1])
        return sent, latest, at


def remove_duplicates(blocks: Iterable[LoggedBlock]) -> list[LoggedBlock]:
    """The blocks without those that stand there already: some lines are written more than once."""
    found: dict[bytes, LoggedBlock] = {}
    for block in blocks:
        found.setdefault(block.raw, block)
    return list(found.values())


def encode_message(role: str, blocks: Iterable[LoggedBlock]) -> bytes:
    """The message of these blocks, as JSON."""
    return b'{"role":"%s","content":[%s]}' % (role.encode(), b",".join(block.raw for block in blocks))

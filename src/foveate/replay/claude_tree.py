"""The lines of a Claude Code log as the tree that they are, and each answer with what was asked for it."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from foveate import wire
from foveate.replay.claude_lines import Kept, Logged, LoggedBlock
from foveate.replay.recordings import Said
from foveate.values import Format


class _State:
    """The conversation up to a line: messages said before, and the one that is still being said."""

    __slots__ = ("above", "line", "role", "root", "said", "sent_at", "turns", "whole")

    def __init__(self, line: Logged, above: "_State | None", whole: "_State | None", root: str) -> None:
        self.line = line
        self.role = line.role
        self.above = above  # the same message, one line before
        self.whole = whole  # the message before it
        self.root = root
        self.said: Said | None = None
        self.sent_at = 0.0
        self.turns = 0

    def lines(self) -> list[Logged]:
        """Those of the message that is being said, in their order."""
        found = []
        here: _State | None = self
        while here is not None:
            found.append(here.line)
            here = here.above
        return found[::-1]


@dataclass(slots=True)
class Answer:
    """The lines of one answer, and the last message of the request that it answers."""

    key: str
    lines: list[Logged]
    root: str
    last: Said | None = None
    sent_at: float = 0.0
    turns: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether the log says why the model stopped."""
        return any(line.stop for line in self.lines)


class _Keys:
    """Which request each line of an answer belongs to."""

    def __init__(self) -> None:
        self._by_line: dict[str, str] = {}
        self._by_message: dict[str, str] = {}
        self._nameless: dict[str, Logged] = {}
        self._last: dict[str, tuple[str, Logged]] = {}

    def of(self, line: Logged) -> str:
        """The name of a line's request."""
        return self._by_line.get(line.uuid, "")

    def add(self, line: Logged) -> None:
        """Find the request of a line: those of one have its id, or at least that of the message."""
        name = line.request or self._by_message.get(line.message) or line.message or self._above(line)
        if line.message:
            name = self._by_message.setdefault(line.message, name)
        key, last = self._last.get(name, (name, line))
        # Some hosts give every message the same id. But lines of one request were billed the same input.
        if last.parent != line.parent and self._by_line.get(line.parent) != key and _are_two(last, line):
            key = f"{name} {line.uuid}"
        self._last[name] = key, line
        self._by_line[line.uuid] = key

    def _above(self, line: Logged) -> str:
        """The name of the answer that a line without any id goes on with, or a new one."""
        self._nameless[line.uuid] = line
        above = self._nameless.get(line.parent)
        return self._by_line[above.uuid] if above is not None and not _are_two(above, line) else line.uuid


def _are_two(one: Logged, other: Logged) -> bool:
    billed = {_input(one), _input(other)} - {0}  # none where it is told only in the end
    return len(billed) > 1


def _input(line: Logged) -> int:
    """The input tokens that a line tells."""
    billed = wire.block_usage(Format.ANTHROPIC, line.usage) if line.usage else None
    return billed.cache.input_tokens if billed is not None else 0


class Tree:
    """The lines of a log, each hung on the one that it names."""

    def __init__(self, lines: Iterable[Logged]) -> None:
        self._by_id: dict[str, Logged] = {}
        self._again: list[Logged] = []
        self._keys = _Keys()
        self._kept: dict[str, Kept] = {}  # by the line that they follow
        last: dict[tuple[str, str], str] = {}  # the line said last, by session and agent
        for line in lines:
            if line.follows:
                line = msgspec.structs.replace(line, parent=last.get((line.session, line.agent), ""))
            if line.role:
                last[line.session, line.agent] = line.uuid
            if self._by_id.setdefault(line.uuid, line) is not line:
                self._again.append(line)
            elif line.role == "assistant":
                self._keys.add(line)
            elif line.kept is not None:
                self._kept[line.kept.anchor] = line.kept
        self._states: dict[str, _State | None] = {}
        self._answers: dict[str, Answer] = {}
        self._results: dict[str, Logged] = {}

    def answers(self) -> list[Answer]:
        """Every answer with what was asked, in the order of the log."""
        for line in self._by_id.values():
            self._state(line)
            for block in line.blocks if line.role == "user" else ():
                if block.kind == "tool_result":
                    self._results[block.call] = line
            if line.role == "assistant" and not line.is_error:
                self._add(line)
        for line in self._again:  # the same line written again, with a later number of tokens
            answer = self._answers.get(self._keys.of(line)) if line.usage else None
            if answer is not None and line.uuid == answer.lines[-1].uuid:
                answer.lines[-1] = line
        return list(self._answers.values())

    def _add(self, line: Logged) -> None:
        key = self._keys.of(line)
        known = self._answers.get(key)
        if known is not None:
            known.lines.append(line)
            return
        asked = self._before(line)
        answer = Answer(key, [line], asked.root if asked is not None else line.uuid)
        self._answers[key] = answer
        if asked is not None:
            answer.last = self._said(asked)
            answer.sent_at, answer.turns = asked.sent_at, asked.turns

    def _state(self, line: Logged) -> _State | None:
        """The conversation up to `line`; None where nothing was said before."""
        way: list[Logged] = []
        here: Logged | None = line
        on_way: set[str] = set()
        while here is not None and here.uuid not in self._states and here.uuid not in on_way:
            way.append(here)
            on_way.add(here.uuid)
            here = None if here.begins else self._by_id.get(here.parent)
        state = self._states.get(here.uuid) if here is not None and here.uuid not in on_way else None
        for step in reversed(way):
            state = self._after(self._with_kept(state, step), step)
            self._states[step.uuid] = state
        return state

    def _before(self, line: Logged) -> _State | None:
        """The conversation that `line` answers."""
        above = self._by_id.get(line.parent)
        kept = self._kept.get(line.parent)
        if kept is not None and line.uuid in kept.names[1:]:  # it was said before, and only hung up anew
            before = self._by_id.get(kept.names[kept.names.index(line.uuid) - 1])
            return self._state(before) if before is not None and before is not line else None
        return self._with_kept(self._state(above), line) if above is not None else None

    def _with_kept(self, state: _State | None, line: Logged) -> _State | None:
        """The conversation before `line`, with what a summary left standing where one stands before it."""
        kept = self._kept.get(line.parent)
        if kept is None or line.uuid == kept.head:
            return state
        for step in self._left_standing(kept):
            if step is line:
                break
            state = self._after(state, step)
        return state

    def _left_standing(self, kept: Kept) -> list[Logged]:
        """The lines that a summary left standing, in their order; none where the log does not hold them."""
        if kept.names:
            return [line for name in kept.names if (line := self._by_id.get(name)) is not None]
        way: dict[Logged, None] = {}
        here = self._by_id.get(kept.tail)
        while here is not None and here not in way:
            way[here] = None
            if here.uuid == kept.head:
                return list(reversed(way))
            here = self._by_id.get(here.parent)
        return []

    def _after(self, state: _State | None, line: Logged) -> _State | None:
        if line.begins:
            return None
        if not line.role or not line.blocks or line.is_error:
            return state
        if state is None:
            return _State(line, None, None, line.uuid)
        if state.role == line.role:
            return _State(line, state, state.whole, state.root)
        if line.role == "assistant" and state.whole is not None and self._goes_on(state.whole, line):
            return state
        return _State(line, None, state, state.root)

    def _goes_on(self, said: _State, line: Logged) -> bool:
        """Whether `line` is of the answer before, of which a tool was run while it was still being written."""
        key = self._keys.of(line)
        return said.role == "assistant" and any(self._keys.of(one) == key for one in said.lines())

    def _said(self, state: _State) -> Said:
        """The message at `state` as it was sent, with all before it."""
        way = []
        here: _State | None = state
        while here is not None and here.said is None:
            way.append(here)
            here = here.whole
        for step in reversed(way):
            self._say(step)
        assert state.said is not None
        return state.said

    def _say(self, state: _State) -> None:
        before = state.whole.said if state.whole is not None else None
        if state.role == "assistant":
            blocks, latest, state.sent_at = self._answered(state), -1, 0.0
        else:
            blocks, latest, state.sent_at = self._asked(state)
            state.turns = any(block.kind != "tool_result" for block in blocks)
        if state.whole is not None:
            state.sent_at = max(state.sent_at, state.whole.sent_at)
            state.turns += state.whole.turns
        state.said = Said(
            before=before,
            role=state.role,
            raw=message_of(state.role, blocks),
            depth=0 if before is None else before.depth + 1,
            latest=latest,
        )

    def _answered(self, state: _State) -> list[LoggedBlock]:
        """All that was logged of the answers that the message holds, also on side branches."""
        lines = state.lines()
        found: dict[str, Logged] = {}
        for key in dict.fromkeys(map(self._keys.of, lines)):
            answer = self._answers.get(key)
            found |= {line.uuid: line for line in (answer.lines if answer is not None else ())}
        found |= {line.uuid: line for line in lines}  # those whose answer stands further down
        return once(block for line in found.values() for block in line.blocks)

    def _asked(self, state: _State) -> tuple[list[LoggedBlock], int, float]:
        """What the user says, results in the order of their calls, those from side branches among them.

        Also which of it was logged last, and when.
        """
        lines = state.lines()
        calls: dict[str, int] = {}
        if state.whole is not None and state.whole.said is not None:
            said = self._answered(state.whole)
            calls = {block.call: at for at, block in enumerate(said) if block.kind == "tool_use"}
        there = {block.call for line in lines for block in line.blocks if block.kind == "tool_result"}
        found: dict[str, Logged] = {}
        for call in calls:
            result = self._results.get(call)
            if call not in there and result is not None:
                found[result.uuid] = result
        lines = [*found.values(), *lines]
        blocks = [block for line in lines for block in line.blocks]
        if found:  # a line may hold several results, of which some are there
            blocks = once(blocks)
        at = max(line.at for line in lines)
        if not calls:
            return blocks, -1, at
        sent = sorted(blocks, key=lambda block: calls.get(block.call, len(calls)))
        latest = next(at for at, block in enumerate(sent) if block is blocks[-1])
        return sent, latest, at


def once(blocks: Iterable[LoggedBlock]) -> list[LoggedBlock]:
    """The blocks without those that stand there already: some lines are written more than once."""
    found: dict[bytes, LoggedBlock] = {}
    for block in blocks:
        found.setdefault(block.raw, block)
    return list(found.values())


def message_of(role: str, blocks: Iterable[LoggedBlock]) -> bytes:
    """The message of these blocks, as JSON."""
    return b'{"role":"%s","content":[%s]}' % (role.encode(), b",".join(block.raw for block in blocks))

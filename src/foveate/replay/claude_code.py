"""Claude Code's session logs: which requests were sent, and what was billed for each.

Each line names the one before it, so a log is a tree. A request is what stands on the way from its answer up to
the root, or to the last compaction. Each block of an answer is a line of its own, and the usage of the last one
counts. Results of calls that were made side by side may stand on side branches.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal

from foveate import wire
from foveate.replay.claude_lines import Logged, LoggedBlock, logged_lines
from foveate.replay.log_files import LogFile
from foveate.replay.recordings import Call, Lacking, Recording, Said, Source, lacks_of
from foveate.values import Format, Usage

# What the agent itself says in the model's name.
_SYNTHETIC = "<synthetic>"
# No tokenizer's tokens are so long, on the average of an answer: a smaller number is the one that a stream
# begins with. Where the answer's end is said, the number is believed more readily.
_MOST_BYTES_PER_TOKEN = 8
_MOST_BYTES_PER_TOKEN_AT_END = 16
_CALL_BYTES = 80  # of a block that calls a tool: its id and type, which are not written by the model
_NOTHING_ASKED = b'{"role":"user","content":""}'


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
class _Answer:
    """The lines of one answer, and where the request that it answers ends."""

    key: str
    lines: list[Logged]
    asked: _State | None
    root: str
    last: Said | None = None
    sent_at: float = 0.0
    turns: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether the log says why the model stopped."""
        return any(line.stop for line in self.lines)


def read_claude_code(file: LogFile, model: str | None = None) -> list[Recording]:
    """The sessions of a log, sub-agents in it with the session that sent them.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    asked = [(answer, call) for answer in _Tree(logged_lines(file)).answers() if (call := _call(answer, model))]
    by_session: dict[str, list[tuple[_Answer, Call]]] = {}
    for answer, call in _with_doubts(asked):
        by_session.setdefault(answer.lines[0].session, []).append((answer, call))
    return [
        Recording(
            name=session or file.name,
            source=Source.CLAUDE_CODE,
            format=Format.ANTHROPIC,
            calls=_in_order(calls),
            lacks=frozenset((Lacking.SYSTEM, Lacking.TOOLS)) | lacks_of(call for _, call in calls),
            broken=tuple(file.broken) if at == 0 else (),
            said_dollars=_dollars(answer for answer, _ in calls),
            size_bytes=file.size_bytes if at == 0 else 0,
        )
        for at, (session, calls) in enumerate(by_session.items())
    ]


class _Tree:
    """The lines of a log, each hung on the one that it names."""

    def __init__(self, lines: Iterable[Logged]) -> None:
        self._by_id: dict[str, Logged] = {}
        self._again: list[Logged] = []
        for line in lines:
            if self._by_id.setdefault(line.uuid, line) is not line:
                self._again.append(line)
        self._states: dict[str, _State | None] = {}
        self._answers: dict[str, _Answer] = {}
        self._names: dict[str, str] = {}
        self._results: dict[str, Logged] = {}

    def answers(self) -> list[_Answer]:
        """Every answer with what was asked, in the order of the log."""
        for line in self._by_id.values():
            self._state(line)
            for block in line.blocks if line.role == "user" else ():
                if block.kind == "tool_result":
                    self._results[block.call] = line
            if line.role == "assistant" and not line.is_error:
                self._add(line)
        for line in self._again:  # the same line written again, with a later number of tokens
            answer = self._answers.get(self._key(line)) if line.usage else None
            if answer is not None and line.uuid == answer.lines[-1].uuid:
                answer.lines[-1] = line
        return list(self._answers.values())

    def _key(self, line: Logged) -> str:
        name = line.request or self._names.get(line.message) or line.message or line.uuid
        if line.message:
            name = self._names.setdefault(line.message, name)
        return name

    def _add(self, line: Logged) -> None:
        key = self._key(line)
        known = self._answers.get(key)
        if known is not None:
            known.lines.append(line)
            return
        here = self._by_id.get(line.parent)
        asked = self._state(here) if here is not None else None
        answer = _Answer(key, [line], asked, _root(line, asked))
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
            state = self._after(state, step)
            self._states[step.uuid] = state
        return state

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
        key = self._key(line)
        return said.role == "assistant" and any(self._key(one) == key for one in said.lines())

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
            lines, blocks, latest = self._answered(state.lines())
        else:
            lines, blocks, latest = self._asked(state)
        state.sent_at = state.whole.sent_at if state.whole is not None else 0.0
        state.turns = state.whole.turns if state.whole is not None else 0
        if state.role == "user":
            state.sent_at = max([state.sent_at, *(line.at for line in lines)])
            state.turns += any(block.kind != "tool_result" for block in blocks)
        state.said = Said(
            before=before,
            role=state.role,
            raw=_message(state.role, blocks),
            depth=0 if before is None else before.depth + 1,
            latest=latest,
        )

    def _answered(self, lines: list[Logged]) -> tuple[list[Logged], list[LoggedBlock], int]:
        """All that was logged of the answers that `lines` are of, also on side branches."""
        found: dict[str, Logged] = {}
        for line in lines:
            answer = self._answers.get(self._key(line))
            for one in answer.lines if answer is not None else (line,):
                found[one.uuid] = one
        blocks = _once(block for line in found.values() for block in line.blocks)
        return list(found.values()), blocks, -1

    def _asked(self, state: _State) -> tuple[list[Logged], list[LoggedBlock], int]:
        """The user's lines, results in the order of their calls, those from side branches among them."""
        lines = state.lines()
        calls: dict[str, int] = {}
        if state.whole is not None and state.whole.said is not None:
            _, said, _ = self._answered(state.whole.lines())
            calls = {block.call: at for at, block in enumerate(said) if block.kind == "tool_use"}
        there = {block.call for line in lines for block in line.blocks if block.kind == "tool_result"}
        found: dict[str, Logged] = {}
        for call in calls:
            result = self._results.get(call)
            if call not in there and result is not None:
                found[result.uuid] = result
        lines = [*found.values(), *lines]
        blocks = _once(block for line in lines for block in line.blocks)
        if not calls:
            return lines, blocks, -1
        sent = sorted(blocks, key=lambda block: calls.get(block.call, len(calls)))
        latest = next(at for at, block in enumerate(sent) if block is blocks[-1])
        return lines, sent, latest


def _root(line: Logged, asked: _State | None) -> str:
    return asked.root if asked is not None else line.uuid


def _once(blocks: Iterable[LoggedBlock]) -> list[LoggedBlock]:
    """The blocks without those that stand there already: some lines are written more than once."""
    found: dict[bytes, LoggedBlock] = {}
    for block in blocks:
        found.setdefault(block.raw, block)
    return list(found.values())


def _message(role: str, blocks: Iterable[LoggedBlock]) -> bytes:
    return b'{"role":"%s","content":[%s]}' % (role.encode(), b",".join(block.raw for block in blocks))


def _call(answer: _Answer, model: str | None) -> Call | None:
    """The call that an answer shows; None where no model was asked."""
    first, last = answer.lines[0], answer.lines[-1]
    if first.model == _SYNTHETIC:
        return None
    billed = _billed(answer.lines)
    blocks = _once(block for line in answer.lines for block in line.blocks)
    if billed is not None and not billed.cache.input_tokens:
        if not billed.output_tokens:
            return None
        billed = None  # some hosts count only what they write
    said = answer.last
    if said is None:
        said = Said(before=None, role="user", raw=_NOTHING_ASKED, depth=0)
    return Call(
        id=answer.key,
        conversation=_conversation(answer),
        model=last.model or first.model or model or "",
        at=min(answer.sent_at or first.at, first.at) if first.at else answer.sent_at,
        answers_at=first.at or answer.sent_at,
        last=said,
        answer=_message("assistant", blocks),
        thinks=any("thinking" in block.kind for block in blocks),
        billed=billed,
        output_is_known=billed is None or _is_whole(billed, blocks, has_ended=answer.has_ended),
    )


def _billed(lines: list[Logged]) -> Usage | None:
    usage = next((line.usage for line in reversed(lines) if line.usage), b"")
    return wire.block_usage(Format.ANTHROPIC, usage) if usage else None


def _is_whole(billed: Usage, blocks: Iterable[LoggedBlock], *, has_ended: bool) -> bool:
    """Whether the output tokens of a bill can be those of the whole answer."""
    written = sum(max(len(block.raw) - _CALL_BYTES, 0) for block in blocks if "thinking" not in block.kind)
    most = _MOST_BYTES_PER_TOKEN_AT_END if has_ended else _MOST_BYTES_PER_TOKEN
    return billed.output_tokens * most >= written


def _conversation(answer: _Answer) -> str:
    first = answer.lines[0]
    if first.agent:
        return first.agent
    return answer.root if first.is_side else first.session


def _with_doubts(asked: list[tuple[_Answer, Call]]) -> list[tuple[_Answer, Call]]:
    """The same; where a log never has the last number of an answer, none is believed that may be the first."""
    if all(call.output_is_known for _, call in asked) or any(_has_grown(answer) for answer, _ in asked):
        return asked
    return [
        (answer, call if answer.has_ended else replace(call, output_is_known=False)) for answer, call in asked
    ]


def _has_grown(answer: _Answer) -> bool:
    """Whether lines of an answer tell different numbers, as those of a stream do whose end was logged."""
    return len({line.usage for line in answer.lines}) > 1


def _dollars(answers: Iterable[_Answer]) -> Decimal | None:
    """What the agent itself says that the answers cost: old versions did."""
    said = [[line.cost for line in answer.lines if isinstance(line.cost, int | float)] for answer in answers]
    return sum((Decimal(repr(costs[-1])) for costs in said if costs), Decimal(0)) if any(said) else None


def _in_order(calls: list[tuple[_Answer, Call]]) -> tuple[Call, ...]:
    """By time, each of them thinking if one of its turn does: not every answer shows that it could."""
    thinking = {(call.conversation, answer.turns) for answer, call in calls if call.thinks}
    told = [
        call if call.thinks or (call.conversation, answer.turns) not in thinking else replace(call, thinks=True)
        for answer, call in calls
    ]
    return tuple(sorted(told, key=lambda call: call.at))

"""Claude Code's session logs: which requests were sent, and what was billed for each.

Each line names the one before it, so a log is a tree. A request is what stands on the way from its answer up to
the root, or to the last compaction. Each block of an answer is a line of its own, and the usage of the last one
counts. Results of calls that were made side by side may stand on side branches.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

from foveate import wire
from foveate.replay.claude_lines import Logged, LoggedBlock, logged_lines
from foveate.replay.claude_tree import Answer, Tree, message_of, once
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


def read_claude_code(file: LogFile, model: str | None = None) -> list[Recording]:
    """The sessions of a log, sub-agents in it with the session that sent them.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    totals = _Totals()
    tree = Tree(totals.noted(logged_lines(file)))
    asked = [(answer, call) for answer in tree.answers() if (call := _call(answer, model))]
    by_session: dict[str, list[tuple[Answer, Call]]] = {}
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
            said_dollars=totals.of(session) or _dollars(answer for answer, _ in calls),
            size_bytes=file.size_bytes if at == 0 else 0,
        )
        for at, (session, calls) in enumerate(by_session.items())
    ]


def _call(answer: Answer, model: str | None) -> Call | None:
    """The call that an answer shows; None where no model was asked."""
    first, last = answer.lines[0], answer.lines[-1]
    if first.model == _SYNTHETIC:
        return None
    billed = _billed(answer.lines)
    blocks = once(block for line in answer.lines for block in line.blocks)
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
        answer=message_of("assistant", blocks),
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


def _conversation(answer: Answer) -> str:
    first = answer.lines[0]
    if first.agent:
        return first.agent
    return answer.root if first.is_side else first.session


def _with_doubts(asked: list[tuple[Answer, Call]]) -> list[tuple[Answer, Call]]:
    """The same; where a log never has the last number of an answer, none is believed that may be the first."""
    if all(call.output_is_known for _, call in asked) or any(_has_grown(answer) for answer, _ in asked):
        return asked
    return [
        (answer, call if answer.has_ended else replace(call, output_is_known=False)) for answer, call in asked
    ]


def _has_grown(answer: Answer) -> bool:
    """Whether lines of an answer tell different numbers, as those of a stream do whose end was logged."""
    return len({line.usage for line in answer.lines}) > 1


def _dollars(answers: Iterable[Answer]) -> Decimal | None:
    """What the agent itself says that the answers cost: old versions did."""
    said = [[line.cost for line in answer.lines if isinstance(line.cost, int | float)] for answer in answers]
    return sum((Decimal(repr(costs[-1])) for costs in said if costs), Decimal(0)) if any(said) else None


class _Totals:
    """What each session cost by the lines in which the agent says it, where it was printed as it went on."""

    def __init__(self) -> None:
        self._said: dict[str, list[Decimal]] = {}

    def noted(self, lines: Iterable[Logged]) -> Iterator[Logged]:
        """The same lines, their totals noted."""
        for line in lines:
            if isinstance(line.total_cost, int | float) and line.total_cost > 0:
                self._said.setdefault(line.session, []).append(Decimal(repr(line.total_cost)))
            yield line

    def of(self, session: str) -> Decimal | None:
        """The sum of a session: a total grows with every question, and begins anew when the agent does."""
        said = self._said.get(session, [])
        ends = [one for one, later in pairwise((*said, Decimal(0))) if later < one]
        return sum(ends, Decimal(0)) if ends else None


def _in_order(calls: list[tuple[Answer, Call]]) -> tuple[Call, ...]:
    """By time, each of them thinking if one of its turn does: not every answer shows that it could."""
    thinking = {(call.conversation, answer.turns) for answer, call in calls if call.thinks}
    told = [
        call if call.thinks or (call.conversation, answer.turns) not in thinking else replace(call, thinks=True)
        for answer, call in calls
    ]
    return tuple(sorted(told, key=lambda call: call.at))

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
from foveate.replay.claude_lines import LoggedBlock, LoggedLine, read_lines
from foveate.replay.claude_tree import LoggedResponse, LogTree, encode_message, remove_duplicates
from foveate.replay.log_files import LogFile
from foveate.replay.recordings import (
    MissingPart,
    RecordedCall,
    RecordedMessage,
    Recording,
    RecordingSource,
    find_missing_parts,
)
from foveate.values import Format, Usage

# What the agent itself says in the model's name.
_SYNTHETIC_MODEL = "<synthetic>"
# No tokenizer's tokens are so long, on the average of an answer: a smaller number is the one that a stream
# begins with. Where the answer's end is said, the number is believed more readily.
_MAX_BYTES_PER_TOKEN = 8
_MAX_BYTES_PER_TOKEN_AT_END = 16
_TOOL_CALL_OVERHEAD_BYTES = (
    80  # of a block that calls a tool: its id and type, which are not written by the model
)
_EMPTY_MESSAGE = b'{"role":"user","content":""}'


def read_claude_code(file: LogFile, model: str | None = None) -> list[Recording]:
    """The sessions of a log, sub-agents in it with the session that sent them.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    totals = _SessionTotals()
    tree = LogTree(totals.collect(read_lines(file)))
    found = [(answer, call) for answer in tree.responses() if (call := _make_call(answer, model))]
    by_session: dict[str, list[tuple[LoggedResponse, RecordedCall]]] = {}
    for answer, call in _distrust_output_counts(found):
        by_session.setdefault(answer.lines[0].session, []).append((answer, call))
    return [
        Recording(
            name=session or file.name,
            source=RecordingSource.CLAUDE_CODE,
            format=Format.ANTHROPIC,
            calls=_order_calls(calls),
            missing=frozenset((MissingPart.SYSTEM, MissingPart.TOOLS))
            | find_missing_parts(call for _, call in calls),
            unreadable=tuple(file.unreadable) if at == 0 else (),
            reported_dollars=totals.total_dollars(session) or _reported_dollars(answer for answer, _ in calls),
            size_bytes=file.size_bytes if at == 0 else 0,
        )
        for at, (session, calls) in enumerate(by_session.items())
    ]


def _make_call(response: LoggedResponse, model: str | None) -> RecordedCall | None:
    """The call that an answer shows; None where no model was asked."""
    first, last = response.lines[0], response.lines[-1]
    if first.model == _SYNTHETIC_MODEL:
        return None
    usage = _read_usage(response.lines)
    blocks = remove_duplicates(block for line in response.lines for block in line.blocks)
    if usage is not None and not usage.cache.input_tokens:
        if not usage.output_tokens:
            return None
        usage = None  # some hosts count only what they write
    last_message = response.last_message
    if last_message is None:
        last_message = RecordedMessage(previous=None, role="user", raw=_EMPTY_MESSAGE, depth=0)
    return RecordedCall(
        id=response.key,
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


def _read_usage(lines: list[LoggedLine]) -> Usage | None:
    usage = next((line.usage for line in reversed(lines) if line.usage), b"")
    return wire.parse_usage(Format.ANTHROPIC, usage) if usage else None


def _is_output_complete(usage: Usage, blocks: Iterable[LoggedBlock], *, has_ended: bool) -> bool:
    """Whether the output tokens of a bill can be those of the whole answer."""
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
    """The same; where a log never has the last number of an answer, none is believed that may be the first."""
    if all(call.output_is_known for _, call in calls) or any(
        _has_changing_usage(response) for response, _ in calls
    ):
        return calls
    return [
        (response, call if response.has_ended else replace(call, output_is_known=False))
        for response, call in calls
    ]


def _has_changing_usage(response: LoggedResponse) -> bool:
    """Whether lines of an answer tell different numbers, as those of a stream do whose end was logged."""
    return len({line.usage for line in response.lines}) > 1


def _reported_dollars(responses: Iterable[LoggedResponse]) -> Decimal | None:
    """What the agent itself says that the answers cost: old versions did."""
    costs_by_response = [
        [line.cost for line in response.lines if isinstance(line.cost, int | float)] for response in responses
    ]
    return (
        sum((Decimal(repr(costs[-1])) for costs in costs_by_response if costs), Decimal(0))
        if any(costs_by_response)
        else None
    )


class _SessionTotals:
    """What each session cost by the lines in which the agent says it, where it was printed as it went on."""

    def __init__(self) -> None:
        self._reported: dict[str, list[Decimal]] = {}

    def collect(self, lines: Iterable[LoggedLine]) -> Iterator[LoggedLine]:
        """The same lines, their totals noted."""
        for line in lines:
            if isinstance(line.total_cost, int | float) and line.total_cost > 0:
                self._reported.setdefault(line.session, []).append(Decimal(repr(line.total_cost)))
            yield line

    def total_dollars(self, session: str) -> Decimal | None:
        """The sum of a session: a total grows with every question, and begins anew when the agent does."""
        reported = self._reported.get(session, [])
        ends = [total for total, later in pairwise((*reported, Decimal(0))) if later < total]
        return sum(ends, Decimal(0)) if ends else None


def _order_calls(calls: list[tuple[LoggedResponse, RecordedCall]]) -> tuple[RecordedCall, ...]:
    """By time, each of them thinking if one of its turn does: not every answer shows that it could."""
    thinking = {(call.conversation, response.turns) for response, call in calls if call.has_thinking}
    adjusted = [
        call
        if call.has_thinking or (call.conversation, response.turns) not in thinking
        else replace(call, has_thinking=True)
        for response, call in calls
    ]
    return tuple(sorted(adjusted, key=lambda call: call.at))

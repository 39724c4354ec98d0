"""Recorded requests stay valid when they are compacted or shortened."""

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from foveate import formats
from foveate.compaction.apply import build_compaction_edits
from foveate.compaction.overflow import OnOverflow, OverflowOptions, plan_overflow
from foveate.errors import MalformedRequest
from foveate.model import Format, Message, Request, TokenCount, ToolCall, ToolResult
from foveate.sandbox import validate_request
from foveate.sandbox.validation.dispatch import SUPPORTED_FORMATS
from foveate.session.hash_chain import compute_chain
from tests.support.strategies.tool_conversations import find_cuts, make_compaction_at

MAKES_ROOM = OverflowOptions(compaction=False, on_overflow=OnOverflow.MAKE_ROOM)
EACH = 1000


def recorded(path: Path) -> Iterator[Request]:
    """The recorded requests that have a boundary."""
    with gzip.open(path / "usage_pairs.jsonl.gz") as rows:
        for row in map(json.loads, rows):
            try:
                request = formats.parse_request(row["request"])
            except MalformedRequest:
                continue
            if find_cuts(request):
                yield request


def orphans(messages: Sequence[Message]) -> set[str]:
    """Ids of calls without a result and of results without a call."""
    balance: Counter[str] = Counter()
    for part in (part for message in messages for part in message.parts):
        match part:
            case ToolCall():
                balance[part.id or part.name] += 1
            case ToolResult():
                balance[part.id or part.name] -= 1
            case _:
                pass
    return {known_by for known_by, left in balance.items() if left}


@pytest.mark.slow
def test_every_compaction_of_a_recorded_request_is_valid_and_keeps_its_tail(shared_data: Path) -> None:
    result: Counter[Format] = Counter()
    for request in recorded(shared_data):
        is_taken = request.format in SUPPORTED_FORMATS and validate_request(request) is None
        for cut in find_cuts(request):
            edits = build_compaction_edits(request, compute_chain(request), [make_compaction_at(request, cut)])
            sent = formats.parse_request(formats.apply_edits(request, edits), request.format)
            assert sent.messages[-(len(request.messages) - cut) :] == request.messages[cut:]
            assert not is_taken or validate_request(sent) is None
            result[request.format] += 1
    assert len(result) == len(Format)
    assert result.total() > 300


@pytest.mark.slow
def test_removing_messages_of_a_recorded_request_never_separates_calls_from_results(shared_data: Path) -> None:
    edited = 0
    for request in recorded(shared_data):
        is_taken = request.format in SUPPORTED_FORMATS and validate_request(request) is None
        messages = [formats.parse_message(request.format, raw) for raw in request.messages]
        total = EACH * len(messages)
        for limit_tokens in range(EACH // 2, total, EACH):
            plan = plan_overflow(
                request,
                messages,
                [EACH] * len(messages),
                TokenCount(total, True, total),
                limit_tokens=limit_tokens,
                options=MAKES_ROOM,
                can_compact=False,
            )
            sent = formats.parse_request(formats.apply_edits(request, plan.edits), request.format)
            left = [formats.parse_message(request.format, raw) for raw in sent.messages]
            assert orphans(left) <= orphans(messages)
            assert not is_taken or validate_request(sent) is None
            edited += bool(plan.edits)
    assert edited > 100

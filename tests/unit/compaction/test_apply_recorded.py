"""Recorded requests that are compacted or shortened stay valid."""

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
from foveate.sandbox.validation import SUPPORTED_FORMATS
from foveate.session.hash_chain import compute_chain
from tests.support.strategies.tool_conversations import find_cuts, make_compaction_at

MAKE_ROOM = OverflowOptions(compaction=False, on_overflow=OnOverflow.MAKE_ROOM)
TOKENS_PER_MESSAGE = 1000


def read_recorded_requests(path: Path) -> Iterator[Request]:
    """Yield the recorded requests that have a boundary."""
    with gzip.open(path / "usage_pairs.jsonl.gz") as rows:
        for row in map(json.loads, rows):
            try:
                request = formats.parse_request(row["request"])
            except MalformedRequest:
                continue
            if find_cuts(request):
                yield request


def find_orphans(messages: Sequence[Message]) -> set[str]:
    """Return the ids of calls without a result and of results without a call."""
    balance: Counter[str] = Counter()
    for part in (part for message in messages for part in message.parts):
        match part:
            case ToolCall():
                balance[part.id or part.name] += 1
            case ToolResult():
                balance[part.id or part.name] -= 1
            case _:
                pass
    return {call_id for call_id, count in balance.items() if count}


@pytest.mark.slow
def test_every_compaction_of_a_recorded_request_is_valid_and_keeps_its_tail(shared_data: Path) -> None:
    counts: Counter[Format] = Counter()
    for request in read_recorded_requests(shared_data):
        is_accepted = request.format in SUPPORTED_FORMATS and validate_request(request) is None
        for cut in find_cuts(request):
            edits = build_compaction_edits(request, compute_chain(request), [make_compaction_at(request, cut)])
            compacted = formats.parse_request(formats.apply_edits(request, edits), request.format)
            assert compacted.messages[-(len(request.messages) - cut) :] == request.messages[cut:]
            assert not is_accepted or validate_request(compacted) is None
            counts[request.format] += 1
    assert len(counts) == len(Format)
    assert counts.total() > 300


@pytest.mark.slow
def test_removing_messages_of_a_recorded_request_never_separates_calls_from_results(shared_data: Path) -> None:
    edited_requests = 0
    for request in read_recorded_requests(shared_data):
        is_accepted = request.format in SUPPORTED_FORMATS and validate_request(request) is None
        messages = [formats.parse_message(request.format, raw) for raw in request.messages]
        total = TOKENS_PER_MESSAGE * len(messages)
        for limit_tokens in range(TOKENS_PER_MESSAGE // 2, total, TOKENS_PER_MESSAGE):
            plan = plan_overflow(
                request,
                messages,
                [TOKENS_PER_MESSAGE] * len(messages),
                TokenCount(total, True, total),
                limit_tokens=limit_tokens,
                options=MAKE_ROOM,
                can_compact=False,
            )
            shortened = formats.parse_request(formats.apply_edits(request, plan.edits), request.format)
            remaining = [formats.parse_message(request.format, raw) for raw in shortened.messages]
            assert find_orphans(remaining) <= find_orphans(messages)
            assert not is_accepted or validate_request(shortened) is None
            edited_requests += bool(plan.edits)
    assert edited_requests > 100

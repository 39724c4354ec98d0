"""Results that are cleared stay cleared with the same bytes, wherever their conversation goes on."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from foveate import formats
from foveate.compaction.clearing import (
    ClearableBlock,
    build_clearing_edits,
    can_clear,
    find_clearable_blocks,
    make_clearing_record,
)
from foveate.compaction.store import ClearedBlock, Compaction, EditDecision
from foveate.model import Format, Request, ToolResult
from foveate.session.hash_chain import compute_chain
from foveate.tokens import counter_for
from tests.support.scenarios.compaction_sessions import MODEL

DECISION = EditDecision(
    moment="arrival", gain_dollars=1.0, cost_dollars=0.1, expected_requests=9.0, growth_tokens=500.0
)


def make_request(
    files: Sequence[str], *, model: str = MODEL, thinking: bool = False, api_format: Format = Format.ANTHROPIC
) -> Request:
    """A conversation in which the model reads these files, one after the other."""
    system = [{"role": "system", "content": "Be brief."}] if api_format is Format.CHAT else []
    messages: list[dict[str, Any]] = [*system, {"role": "user", "content": "Look."}]
    for number, path in enumerate(files):
        content = f"{path}\n" + f"line of {path} {number}\n" * 80
        if api_format is Format.CHAT:
            function = {"name": "Read", "arguments": json.dumps({"file_path": path})}
            calls = [{"id": f"c{number}", "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": content})
            continue
        call = {"type": "tool_use", "id": f"c{number}", "name": "Read", "input": {"file_path": path}}
        signed = [{"type": "thinking", "thinking": "hm", "signature": "s"}] if thinking else []
        text = {"type": "text", "text": "Here it is."}
        result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": content}
        messages.append({"role": "assistant", "content": [*signed, call]})
        messages.append({"role": "user", "content": [text, result]})
    messages.append({"role": "assistant", "content": "Seen."})
    messages.append({"role": "user", "content": "Go on."})
    body = {"model": model, "max_tokens": 10, "messages": messages}
    return formats.parse_request(json.dumps(body).encode(), api_format)


def find_blocks(
    request: Request, compactions: Sequence[Compaction] = (), start: int = 0
) -> list[ClearableBlock]:
    chain = compute_chain(request)
    first = chain.leading_system_messages + start
    return find_clearable_blocks(
        request,
        [formats.parse_message(request.format, raw) for raw in request.messages[first:]],
        chain,
        compactions,
        counter_for(MODEL),
        start=first,
        tokens_per_raw_token=1.0,
    )


def clear(request: Request, blocks: Sequence[ClearedBlock]) -> Compaction:
    chain = compute_chain(request)
    return make_clearing_record(blocks, chain, DECISION, agent="ana", session_id="s", model=MODEL, now=100.0)


def sent_results(request: Request, *records: Compaction, start: int = 0) -> list[str]:
    edits = build_clearing_edits(compute_chain(request), records, start=start)
    edited = formats.parse_request(formats.apply_edits(request, edits), request.format)
    messages = [formats.parse_message(request.format, raw) for raw in edited.messages]
    results = [part for message in messages for part in message.parts if isinstance(part, ToolResult)]
    return ["".join(getattr(part, "text", "") for part in result.parts) for result in results]


@pytest.mark.parametrize("api_format", [Format.ANTHROPIC, Format.CHAT])
def test_a_superseded_result_is_sent_as_its_placeholder_from_then_on(api_format: Format) -> None:
    request = make_request(["a.py", "b.py", "a.py"], api_format=api_format)
    (clearable,) = find_blocks(request)
    record = clear(request, [clearable.block])
    longer = make_request(["a.py", "b.py", "a.py", "c.py", "d.py"], api_format=api_format)

    assert clearable.option.saved_tokens == clearable.block.saved_tokens > 100
    assert record.freed_tokens == clearable.block.saved_tokens
    for later in (request, longer):
        first, *others = sent_results(later, record)
        assert first == clearable.block.text
        assert first.startswith("[cleared: ")
        assert not any(text.startswith("[cleared: ") for text in others)
    assert find_blocks(request, [record]) == []


def test_a_conversation_that_differs_before_the_boundary_keeps_its_results() -> None:
    request = make_request(["a.py", "b.py", "a.py"])
    record = clear(request, [find_blocks(request)[0].block])

    assert not any(text.startswith("[cleared") for text in sent_results(make_request(["x.py", "a.py"]), record))


def test_an_undone_clearing_and_a_compacted_head_have_no_edits() -> None:
    request = make_request(["a.py", "b.py", "a.py"])
    record = clear(request, [find_blocks(request)[0].block])

    assert sent_results(request, replace(record, undone_at=200.0)) == sent_results(request)
    assert build_clearing_edits(compute_chain(request), [record], start=4) == ()
    assert find_blocks(request, start=4) == []


def test_a_restored_result_is_not_cleared_again() -> None:
    """Defect: it was, at the next moment when that paid, and requests with and without it alternated."""
    request = make_request(["a.py", "b.py", "a.py"])
    record = clear(request, [find_blocks(request)[0].block])

    assert find_blocks(request, [replace(record, undone_at=200.0)]) == []


def test_of_two_placeholders_for_one_result_the_first_stays() -> None:
    request = make_request(["a.py", "b.py", "a.py"])
    block = find_blocks(request)[0].block
    first = clear(request, [block])
    later = replace(clear(request, [replace(block, text="[cleared: otherwise]")]), compacted_at=200.0)

    assert sent_results(request, later, first)[0] == block.text  # the newest record comes first


def test_the_same_decision_has_the_same_id_in_every_process() -> None:
    request = make_request(["a.py", "b.py", "a.py", "b.py"])
    first, second = (item.block for item in find_blocks(request))

    assert clear(request, [first]).id == clear(request, [first]).id
    assert clear(request, [first]).id != clear(request, [first, second]).id


def test_messages_with_bound_thinking_are_not_changed() -> None:
    bound = make_request(["a.py", "a.py"], model="claude-opus-5-5", thinking=True)

    assert not can_clear(bound, "claude-opus-5-5", start=0)
    assert can_clear(bound, "claude-opus-5-5", start=len(bound.messages) - 1)
    assert can_clear(make_request(["a.py", "a.py"]), MODEL, start=0)
    assert can_clear(make_request(["a.py"], thinking=True), "claude-sonnet-4-6", start=0)

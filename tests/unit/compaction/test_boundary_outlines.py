
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from foveate import formats
from foveate.budget.evict import has_calls_for_all_results
from foveate.caching import drop_caches
from foveate.compaction.apply import build_compaction_edits
from foveate.compaction.boundary import strip_message_text
from foveate.formats.json_text.parse import to_json
from foveate.model import (
    Document,
    Edit,
    Format,
    MediaSource,
    Message,
    Request,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from foveate.session.hash_chain import compute_chain
from tests.support.harness.example_limits import limit_examples
from tests.support.strategies.tool_conversations import Body, any_requests, find_cuts, make_compaction_at

CALL = ToolCall(name="read", arguments='{"path":"a"}', format=Format.ANTHROPIC, id="1")
RESULT = ToolResult(parts=(Text("much"),), id="1")


def by(role: str, *parts: Text | Thinking | ToolCall | ToolResult | Document) -> Message:
    return Message(role=role, parts=parts)


@pytest.mark.slow
@settings(max_examples=limit_examples(60))
@given(any_requests(), st.data())
def test_a_session_that_grows_message_by_message_is_folded_as_one_that_nobody_knows(
    body: Body, data: st.DataObject
) -> None:
    request = formats.parse_request(to_json(body))
    assume(find_cuts(request))
    cut = data.draw(st.sampled_from(find_cuts(request)))
    compaction = make_compaction_at(request, cut)
    field = "input" if "input" in body else "messages"
    said = body[field]
    # Repeat some at the end: results of compacted calls, or calls without results.
    said = [*said, *data.draw(st.lists(st.sampled_from(said), max_size=3))]

    def at(size: int) -> Request:
        return formats.parse_request(to_json({**body, field: said[:size]}))

    def edits(size: int) -> tuple[Edit, ...]:
        return build_compaction_edits(at(size), compute_chain(at(size)), [compaction])

    drop_caches()
    noted = [edits(size) for size in range(cut + 1, len(said) + 1)]
    fresh = []
    for size in range(cut + 1, len(said) + 1):
        drop_caches()
        fresh.append(edits(size))

    assert noted == fresh


def test_a_late_answer_to_a_folded_call_is_seen_in_a_session_that_was_folded_before() -> None:
    """Nothing may be compacted then: the result would be sent without its call."""

    def request(*more: Body) -> Request:
        call = {"id": "1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        begun: list[Body] = [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "done"},
            {"role": "assistant", "content": "It is there."},
            {"role": "user", "content": "Then?"},
        ]
        return formats.parse_request({"model": "gpt-4.1", "messages": [*begun, *more]}, Format.CHAT)

    compaction = make_compaction_at(request(), 4)
    late: Body = {"role": "tool", "tool_call_id": "1", "content": "once more"}

    assert build_compaction_edits(request(), compute_chain(request()), [compaction])
    assert build_compaction_edits(request(late), compute_chain(request(late)), [compaction]) == ()


@pytest.mark.parametrize(
    ("messages", "is_so"),
    [
        ([], True),
        ([by("user", Text("Go."))], True),
        ([by("assistant", CALL), by("user", RESULT)], True),
        ([by("user", RESULT)], False),
        ([by("user", RESULT), by("assistant", CALL)], False),
        ([by("assistant", CALL), by("user", RESULT, RESULT)], False),
        ([by("assistant", CALL, CALL), by("user", RESULT, RESULT)], True),
    ],
)
def test_what_answers_only_itself(messages: list[Message], is_so: bool) -> None:
    assert has_calls_for_all_results(messages) is is_so


def test_an_outline_has_who_speaks_calls_answers_and_thinks_and_not_a_word() -> None:
    shown = Document(source=MediaSource.INLINE, media_type="text/plain", text="secret")
    message = by("assistant", Text("secret"), Thinking("secret", 400), CALL, RESULT, shown)

    found = strip_message_text(message)

    assert [type(part) for part in found.parts] == [type(part) for part in message.parts]
    assert (found.role, found.parts[2], found.parts[3]) == (
        "assistant",
        ToolCall(name="read", arguments="", format=Format.ANTHROPIC, id="1"),
        ToolResult(parts=(), id="1"),
    )
    assert "secret" not in repr(found)

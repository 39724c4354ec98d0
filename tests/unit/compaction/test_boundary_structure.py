import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foveate import formats
from foveate.budget.turn_structure import has_calls_for_all_results
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
from tests.support.strategies.tool_conversations import Body, any_requests, find_cuts, make_compaction_at

CALL = ToolCall(name="read", arguments='{"path":"a"}', format=Format.ANTHROPIC, id="1")
RESULT = ToolResult(parts=(Text("much"),), id="1")


def make_message(role: str, *parts: Text | Thinking | ToolCall | ToolResult | Document) -> Message:
    return Message(role=role, parts=parts)


@pytest.mark.slow
@given(any_requests(), st.data())
def test_a_growing_session_is_compacted_like_an_unknown_one(body: Body, data: st.DataObject) -> None:
    request = formats.parse_request(to_json(body))
    assume(find_cuts(request))
    cut = data.draw(st.sampled_from(find_cuts(request)))
    compaction = make_compaction_at(request, cut)
    field = "input" if "input" in body else "messages"
    messages = body[field]
    # Repeat some at the end: results of compacted calls, or calls without results.
    messages = [*messages, *data.draw(st.lists(st.sampled_from(messages), max_size=3))]

    def build_request(size: int) -> Request:
        return formats.parse_request(to_json({**body, field: messages[:size]}))

    def build_edits(size: int) -> tuple[Edit, ...]:
        return build_compaction_edits(build_request(size), compute_chain(build_request(size)), [compaction])

    drop_caches()
    cached = [build_edits(size) for size in range(cut + 1, len(messages) + 1)]
    fresh = []
    for size in range(cut + 1, len(messages) + 1):
        drop_caches()
        fresh.append(build_edits(size))

    assert cached == fresh


def test_a_late_result_of_a_compacted_call_is_noticed_despite_the_cache() -> None:
    """Nothing may be compacted in that case: the result would be sent without its call."""

    def request(*extra: Body) -> Request:
        call = {"id": "1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        history: list[Body] = [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "done"},
            {"role": "assistant", "content": "It is there."},
            {"role": "user", "content": "Then?"},
        ]
        return formats.parse_request({"model": "gpt-4.1", "messages": [*history, *extra]}, Format.CHAT)

    compaction = make_compaction_at(request(), 4)
    late_result: Body = {"role": "tool", "tool_call_id": "1", "content": "once more"}

    assert build_compaction_edits(request(), compute_chain(request()), [compaction])
    assert build_compaction_edits(request(late_result), compute_chain(request(late_result)), [compaction]) == ()


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], True),
        ([make_message("user", Text("Go."))], True),
        ([make_message("assistant", CALL), make_message("user", RESULT)], True),
        ([make_message("user", RESULT)], False),
        ([make_message("user", RESULT), make_message("assistant", CALL)], False),
        ([make_message("assistant", CALL), make_message("user", RESULT, RESULT)], False),
        ([make_message("assistant", CALL, CALL), make_message("user", RESULT, RESULT)], True),
    ],
)
def test_results_without_a_call_in_the_same_messages_are_found(messages: list[Message], expected: bool) -> None:
    assert has_calls_for_all_results(messages) is expected


def test_a_structure_has_roles_calls_results_and_thinking_but_no_text() -> None:
    document = Document(source=MediaSource.INLINE, media_type="text/plain", text="secret")
    message = make_message("assistant", Text("secret"), Thinking("secret", 400), CALL, RESULT, document)

    stripped = strip_message_text(message)

    assert [type(part) for part in stripped.parts] == [type(part) for part in message.parts]
    assert (stripped.role, stripped.parts[2], stripped.parts[3]) == (
        "assistant",
        ToolCall(name="read", arguments="", format=Format.ANTHROPIC, id="1"),
        ToolResult(parts=(), id="1"),
    )
    assert "secret" not in repr(stripped)

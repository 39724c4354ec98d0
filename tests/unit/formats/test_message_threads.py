"""Requests of message threads are expanded, and messages rebuilt from responses and streams."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate import formats
from foveate.errors import DuplicateKey, MalformedRequest
from foveate.formats.json_text.offsets import find_members, value_span
from foveate.formats.message_threads import (
    ThreadHistory,
    expand_body,
    extend_history,
    find_changed_fields,
    read_response_message,
    read_thread_request,
    remove_threads_beta,
)
from foveate.model import Format
from foveate.prompt_cache.prompt.build import block_tokens_for, build_cached_prompt
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt
from foveate.prompt_cache.rules import CacheRules, rules_for
from foveate.prompt_cache.simulator import SimulatedCache
from foveate.sandbox.stored_conversations import _without_breakpoints
from tests.support.harness.example_limits import limit_examples

Json = dict[str, Any]
EPHEMERAL = {"type": "ephemeral"}
short_texts = st.text(max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | short_texts,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(short_texts, children, max_size=3),
    max_leaves=6,
)
breakpoint_fields = st.sampled_from(({}, {"cache_control": EPHEMERAL}))
tool_results = st.builds(
    lambda text, fields: {"type": "tool_result", "tool_use_id": "t", "content": text, **fields},
    short_texts,
    breakpoint_fields,
)
user_blocks = (
    st.builds(lambda text, fields: {"type": "text", "text": text, **fields}, short_texts, breakpoint_fields)
    | tool_results
)
response_contents = st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, short_texts)
    | st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "c2ln"}, short_texts)
    | st.builds(
        lambda arguments: {"type": "tool_use", "id": "t", "name": "n", "input": arguments},
        st.dictionaries(short_texts, json_values),
    )
    | st.builds(
        lambda said: {"type": "web_search_tool_result", "tool_use_id": "s", "content": [said]}, json_values
    )
    | st.builds(
        lambda text, cited: {"type": "text", "text": text, "citations": [cited]}, short_texts, json_values
    ),
    max_size=3,
)
user_messages = st.lists(
    st.builds(
        lambda content: {"role": "user", "content": content}, short_texts | st.lists(user_blocks, max_size=3)
    ),
    min_size=1,
    max_size=2,
)
thread_turns = st.lists(st.tuples(user_messages, response_contents, st.booleans()), min_size=1, max_size=5)
indents = st.sampled_from((None, 1, 2))


def stream_events(message_id: str, content: list[Json], piece_chars: int = 3) -> bytes:
    """Write the events of a response, with content blocks split into deltas."""
    events: list[Json] = [{"type": "message_start", "message": {"id": message_id, "content": []}}]
    for index, block in enumerate(content):
        deltas: list[Json] = []
        started_block = dict(block)
        if block["type"] == "text":
            started_block["text"] = ""
            deltas = [{"type": "text_delta", "text": piece} for piece in split_text(block["text"], piece_chars)]
            if "citations" in block:
                started_block["citations"] = None
                deltas += [{"type": "citations_delta", "citation": item} for item in block["citations"]]
        elif block["type"] == "thinking":
            started_block |= {"thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": item}
                for item in split_text(block["thinking"], piece_chars)
            ]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif block["type"] == "tool_use":
            started_block["input"] = {}
            input_json = json.dumps(block["input"])
            deltas = [
                {"type": "input_json_delta", "partial_json": item}
                for item in split_text(input_json, piece_chars)
            ]
        events.append({"type": "content_block_start", "index": index, "content_block": started_block})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events += [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}]
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def split_text(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def encode_response(message_id: str, content: list[Json], *, is_stream: bool) -> bytes:
    if is_stream:
        return stream_events(message_id, content)
    return json.dumps({"id": message_id, "role": "assistant", "content": content}).encode()


def assistant_messages(content: list[Json]) -> list[Json]:
    """Return the message of a response in later requests: without blank texts, which are rejected."""
    blocks = [block for block in content if block["type"] != "text" or block["text"].strip()]
    return [{"role": "assistant", "content": blocks}] if blocks else []


def read_request(body: bytes | Json) -> Any:
    thread_request = read_thread_request(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert thread_request is not None
    return thread_request


@given(thread_turns, indents, st.permutations(("model", "messages", "thread", "system")), st.booleans())
@settings(max_examples=limit_examples(100))
def test_a_threaded_conversation_expands_to_the_complete_conversation(
    turns: list[tuple[list[Json], list[Json], bool]],
    indent: int | None,
    order: list[str],
    has_system: bool,
) -> None:
    """The bytes of a turn are the same in every later request, and the same as in the complete request."""
    history: ThreadHistory | None = None
    complete_messages: list[Json] = []
    previous_messages = b""
    for number, (new_messages, content, is_stream) in enumerate(turns):
        thread: Json = {"type": "create"}
        if history is not None:
            thread = {"type": "continue", "previous_message_id": f"msg_{number - 1}"}
        fields: Json = {"model": "m", "messages": new_messages, "thread": thread}
        if has_system and history is None:
            fields["system"] = [{"type": "text", "text": "Be kind.", "cache_control": EPHEMERAL}]
        body = {name: fields[name] for name in order if name in fields}
        thread_request = read_request(json.dumps(body, indent=indent, ensure_ascii=number % 2 == 0).encode())
        expanded = expand_body(thread_request, history)

        expanded_body = msgspec.json.decode(expanded)
        assert expanded_body["messages"] == [*complete_messages, *new_messages]
        assert "thread" not in expanded_body
        assert ("system" in expanded_body) is has_system
        messages_json = find_members(expanded, value_span(expanded)).values["messages"].read(expanded)
        assert messages_json.startswith(b"[" + previous_messages)

        message = read_response_message(
            encode_response(f"msg_{number}", content, is_stream=is_stream), is_stream=is_stream
        )
        assert message is not None
        assert message[0] == f"msg_{number}"
        history = extend_history(thread_request, history, message[1])
        assert history.messages.startswith(previous_messages)
        previous_messages = history.messages
        complete_messages += [_without_breakpoints(message) for message in new_messages]
        complete_messages += assistant_messages(content)


@pytest.mark.slow
@given(thread_turns)
@settings(max_examples=limit_examples(50))
def test_a_threaded_conversation_costs_the_same_as_the_complete_one(
    turns: list[tuple[list[Json], list[Json], bool]],
) -> None:
    """The simulated cache of the provider gives the same usage, with the client's breakpoints."""
    history: ThreadHistory | None = None
    complete_messages: list[Json] = []
    threaded, unthreaded = SimulatedCache(), SimulatedCache()
    rules = rules_for("claude-opus-5-5", "anthropic")
    system = [{"type": "text", "text": "Be kind. " * 400, "cache_control": EPHEMERAL}]
    for number, (new_messages, content, is_stream) in enumerate(turns):
        thread_request = read_request(
            {"model": "claude-opus-5-5", "max_tokens": 9, "messages": new_messages}
            | ({"thread": {"type": "continue", "previous_message_id": "m"}} if number else {"system": system})
            | ({} if number else {"thread": {"type": "create"}})
        )
        complete_body = {"model": "claude-opus-5-5", "max_tokens": 9, "system": system}
        bodies = (
            expand_body(thread_request, history),
            json.dumps(complete_body | {"messages": [*complete_messages, *new_messages]}).encode(),
        )
        served = [
            cache.serve(_build_prompt(body, rules), rules, at=float(number), response_at=float(number))
            for cache, body in zip((threaded, unthreaded), bodies, strict=True)
        ]
        assert served[0].usage == served[1].usage
        assert not number or served[0].usage.read > 1000
        threaded, unthreaded = served[0].cache, served[1].cache
        message = read_response_message(
            encode_response(f"msg_{number}", content, is_stream=is_stream), is_stream=is_stream
        )
        assert message is not None
        history = extend_history(thread_request, history, message[1])
        complete_messages += [_without_breakpoints(message) for message in new_messages]
        complete_messages += assistant_messages(content)


def _build_prompt(body: bytes, rules: CacheRules) -> CachedPrompt:
    return build_cached_prompt(
        formats.parse_request(body, Format.ANTHROPIC), rules, block_tokens_for("claude-opus-5-5")
    )


@given(response_contents)
def test_a_streamed_response_is_rebuilt_like_a_complete_one(content: list[Json]) -> None:
    from_response = read_response_message(encode_response("msg_1", content, is_stream=False), is_stream=False)
    from_stream = read_response_message(encode_response("msg_1", content, is_stream=True), is_stream=True)

    assert from_response is not None
    assert from_stream is not None
    assert from_response[0] == from_stream[0]
    assert [
        msgspec.json.decode(message) if message else None for message in (from_response[1], from_stream[1])
    ] == 2 * [next(iter(assistant_messages(content)), None)]


@pytest.mark.parametrize(
    "events",
    [
        b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n',
        b'data: {"type":"message_start","message":{"id":"m"}}\n\n'
        b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"new_delta","text":"a"}}\n\n',
        b'data: {"type":"message_start","message":{"id":"m"}}\n\n'
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}\n\n',
        b'data: {"type":"message_start","message":{"id":"m"}}\n\n'
        b'data: {"type":"content_block_start","index":0,"content_block":{"type":"tool_use","input":{}}}\n\n'
        b'data: {"type":"content_block_delta","index":0,'
        b'"delta":{"type":"input_json_delta","partial_json":"{"}}\n\n',
        b"data: nothing\n\n",
        b'data: {"type":"message_start","message":{"id":"m"}}\n\n'
        b'data: {"type":"content_block_start","index":0,'
        b'"content_block":{"type":"text","text":"","citations":7}}\n\n'
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"citations_delta","citation":{}}}\n\n',
    ],
    ids=["no id", "unknown delta", "no block", "truncated input", "no JSON", "unusual citations"],
)
def test_a_stream_that_cannot_be_rebuilt_gives_no_message(events: bytes) -> None:
    assert read_response_message(events, is_stream=True) is None


@pytest.mark.parametrize(
    "response_body", [b"", b"{}", b'{"id":"m"}', b'{"id":"","content":[]}', b'{"id":"m","content":"x"}']
)
def test_a_response_without_an_id_or_a_list_of_blocks_gives_no_message(response_body: bytes) -> None:
    assert read_response_message(response_body, is_stream=False) is None


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"model":"m"}', b'{"thread":null}', b'{"a":"thread"}', b'{"a":{"thread":{}}}', b'{"thread"'],
)
def test_other_requests_use_no_thread(body: bytes) -> None:
    assert read_thread_request(body) is None


@pytest.mark.parametrize(
    "body",
    [
        {"thread": "create", "messages": []},
        {"thread": {"type": "open"}, "messages": []},
        {"thread": {"type": "continue"}, "messages": []},
        {"thread": {"type": "create"}},
        {"thread": {"type": "create"}, "messages": "Hello"},
    ],
)
def test_an_invalid_thread_is_an_error(body: Json) -> None:
    with pytest.raises(MalformedRequest):
        read_thread_request(json.dumps(body).encode())


def test_a_second_thread_field_is_an_error() -> None:
    with pytest.raises(DuplicateKey):
        read_thread_request(b'{"thread":{"type":"create"},"messages":[],"\\u0074hread":{"type":"create"}}')


def test_only_fixed_fields_with_a_different_value_have_changed() -> None:
    history = ThreadHistory(b'"Be kind."', b"", b"")
    thread = {"type": "continue", "previous_message_id": "m"}

    def find_changes(**fields: object) -> list[str]:
        return find_changed_fields(read_request({"thread": thread, "messages": []} | fields), history)

    assert find_changes() == []
    assert find_changes(system="Be kind.", tools=None, max_tokens=5) == []
    assert find_changes(system="Be rude.") == ["system"]
    assert find_changes(tools=[{"name": "look"}]) == ["tools"]


@pytest.mark.parametrize("empty_value", [None, [], ""])
def test_empty_fixed_fields_take_their_values_from_the_thread(empty_value: object) -> None:
    """Regression: clients that send every field got `thread_fingerprint_mismatch`."""
    history = ThreadHistory(b'"Be kind."', b'[{"name":"look"}]', b'{"role":"user","content":"a"}')
    thread = {"type": "continue", "previous_message_id": "m"}
    thread_request = read_request(
        {"system": empty_value, "thread": thread, "messages": [], "tools": empty_value}
    )

    assert find_changed_fields(thread_request, history) == []
    assert msgspec.json.decode(expand_body(thread_request, history)) == {
        "system": "Be kind.",
        "messages": [{"role": "user", "content": "a"}],
        "tools": [{"name": "look"}],
    }


def test_a_thread_field_with_an_escaped_key_is_a_thread() -> None:
    """Regression: a request with such a key was forwarded as if it used no thread."""
    body = b'{"messages":[],"\\u0074hr\\u0065ad":{"type":"create"},"model":"m"}'

    assert expand_body(read_request(body), None) == b'{"messages":[],"model":"m"}'


@pytest.mark.parametrize("is_stream", [False, True])
def test_empty_texts_of_a_response_are_not_sent_back(is_stream: bool) -> None:
    """Regression: the provider rejected the next request because of an empty text block."""
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    empty_text = {"type": "text", "text": ""}
    message = read_response_message(
        encode_response("m", [empty_text, call, empty_text], is_stream=is_stream), is_stream=is_stream
    )
    empty_message = read_response_message(
        encode_response("m", [empty_text], is_stream=is_stream), is_stream=is_stream
    )

    assert message is not None
    assert msgspec.json.decode(message[1])["content"] == [call]
    assert empty_message == ("m", b"")


def test_a_thread_is_resumed_without_new_messages() -> None:
    """After a `pause_turn` response, the client sends no new message."""
    history = ThreadHistory(b"", b"", b'{"role":"user","content":"a"}')
    thread_request = read_request({"thread": {"type": "continue", "previous_message_id": "m"}, "messages": []})

    assert msgspec.json.decode(expand_body(thread_request, history)) == {
        "messages": [{"role": "user", "content": "a"}]
    }


def test_data_named_cache_control_is_unchanged() -> None:
    call = {
        "type": "tool_use",
        "id": "t",
        "name": "n",
        "input": {"cache_control": 1},
        "cache_control": EPHEMERAL,
    }
    thread_request = read_request(
        {"thread": {"type": "create"}, "messages": [{"role": "assistant", "content": [call]}]}
    )
    del call["cache_control"]

    stored = msgspec.json.decode(b"[" + extend_history(thread_request, None, b"").messages + b"]")
    assert stored == [{"role": "assistant", "content": [call]}]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("message-threads-2026-08-12", ""),
        ("a-1, message-threads-2026-08-12,b-2", "a-1,b-2"),
        ("a-1", "a-1"),
        ("", ""),
    ],
)
def test_only_the_beta_value_of_threads_is_removed(header: str, expected: str) -> None:
    assert remove_threads_beta(header) == expected

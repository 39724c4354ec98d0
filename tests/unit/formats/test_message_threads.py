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
from foveate.sandbox.message_threads import _without_breakpoints
from tests.support.harness.example_limits import limit_examples

Json = dict[str, Any]
EPHEMERAL = {"type": "ephemeral"}
texts = st.text(max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
marks = st.sampled_from(({}, {"cache_control": EPHEMERAL}))
results = st.builds(
    lambda said, mark: {"type": "tool_result", "tool_use_id": "t", "content": said, **mark}, texts, marks
)
user_blocks = st.builds(lambda text, mark: {"type": "text", "text": text, **mark}, texts, marks) | results
answers = st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, texts)
    | st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "c2ln"}, texts)
    | st.builds(
        lambda said: {"type": "tool_use", "id": "t", "name": "n", "input": said}, st.dictionaries(texts, values)
    )
    | st.builds(lambda said: {"type": "web_search_tool_result", "tool_use_id": "s", "content": [said]}, values)
    | st.builds(lambda text, cited: {"type": "text", "text": text, "citations": [cited]}, texts, values),
    max_size=3,
)
messages = st.lists(
    st.builds(lambda said: {"role": "user", "content": said}, texts | st.lists(user_blocks, max_size=3)),
    min_size=1,
    max_size=2,
)
turns = st.lists(st.tuples(messages, answers, st.booleans()), min_size=1, max_size=5)
spacings = st.sampled_from((None, 1, 2))


def streamed(message_id: str, content: list[Json], piece_chars: int = 3) -> bytes:
    """The events of a response, with content blocks cut into deltas."""
    events: list[Json] = [{"type": "message_start", "message": {"id": message_id, "content": []}}]
    for index, block in enumerate(content):
        deltas: list[Json] = []
        empty = dict(block)
        if block["type"] == "text":
            empty["text"] = ""
            deltas = [{"type": "text_delta", "text": piece} for piece in cut(block["text"], piece_chars)]
            if "citations" in block:
                empty["citations"] = None
                deltas += [{"type": "citations_delta", "citation": one} for one in block["citations"]]
        elif block["type"] == "thinking":
            empty |= {"thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": one} for one in cut(block["thinking"], piece_chars)
            ]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif block["type"] == "tool_use":
            empty["input"] = {}
            written = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": one} for one in cut(written, piece_chars)]
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events += [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}]
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def response(message_id: str, content: list[Json], *, is_stream: bool) -> bytes:
    if is_stream:
        return streamed(message_id, content)
    return json.dumps({"id": message_id, "role": "assistant", "content": content}).encode()


def assistant(content: list[Json]) -> list[Json]:
    """The message of a response in later requests: without blank texts, which are rejected."""
    kept = [block for block in content if block["type"] != "text" or block["text"].strip()]
    return [{"role": "assistant", "content": kept}] if kept else []


def request(body: bytes | Json) -> Any:
    found = read_thread_request(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert found is not None
    return found


@given(turns, spacings, st.permutations(("model", "messages", "thread", "system")), st.booleans())
@settings(max_examples=limit_examples(300))
def test_a_threaded_conversation_says_what_the_same_conversation_says_whole(
    turns: list[tuple[list[Json], list[Json], bool]], indent: int | None, order: list[str], has_system: bool
) -> None:
    """The bytes of a turn are the same in every later request, and all of them as they are sent whole."""
    history: ThreadHistory | None = None
    sent_whole: list[Json] = []
    before = b""
    for number, (new, content, is_stream) in enumerate(turns):
        thread: Json = {"type": "create"}
        if history is not None:
            thread = {"type": "continue", "previous_message_id": f"msg_{number - 1}"}
        fields: Json = {"model": "m", "messages": new, "thread": thread}
        if has_system and history is None:
            fields["system"] = [{"type": "text", "text": "Be kind.", "cache_control": EPHEMERAL}]
        body = {name: fields[name] for name in order if name in fields}
        asked = request(json.dumps(body, indent=indent, ensure_ascii=number % 2 == 0).encode())
        rebuilt = expand_body(asked, history)

        found = msgspec.json.decode(rebuilt)
        assert found["messages"] == [*sent_whole, *new]
        assert "thread" not in found
        assert ("system" in found) is has_system
        listed = find_members(rebuilt, value_span(rebuilt)).values["messages"].read(rebuilt)
        assert listed.startswith(b"[" + before)

        answer = read_response_message(
            response(f"msg_{number}", content, is_stream=is_stream), is_stream=is_stream
        )
        assert answer is not None
        assert answer[0] == f"msg_{number}"
        history = extend_history(asked, history, answer[1])
        assert history.messages.startswith(before)
        before = history.messages
        sent_whole += [_without_breakpoints(message) for message in new]
        sent_whole += assistant(content)


@pytest.mark.slow
@given(turns)
@settings(max_examples=limit_examples(50))
def test_a_threaded_conversation_costs_what_the_same_conversation_costs_whole(
    turns: list[tuple[list[Json], list[Json], bool]],
) -> None:
    """By the simulated cache of the provider, with the client's breakpoints."""
    history: ThreadHistory | None = None
    sent_whole: list[Json] = []
    threaded, unthreaded = SimulatedCache(), SimulatedCache()
    rules = rules_for("claude-opus-5-5", "anthropic")
    system = [{"type": "text", "text": "Be kind. " * 400, "cache_control": EPHEMERAL}]
    for number, (new, content, is_stream) in enumerate(turns):
        asked = request(
            {"model": "claude-opus-5-5", "max_tokens": 9, "messages": new}
            | ({"thread": {"type": "continue", "previous_message_id": "m"}} if number else {"system": system})
            | ({} if number else {"thread": {"type": "create"}})
        )
        sent = {"model": "claude-opus-5-5", "max_tokens": 9, "system": system}
        bodies = expand_body(asked, history), json.dumps(sent | {"messages": [*sent_whole, *new]}).encode()
        served = [
            cache.serve(_prompt(body, rules), rules, at=float(number), response_at=float(number))
            for cache, body in zip((threaded, unthreaded), bodies, strict=True)
        ]
        assert served[0].usage == served[1].usage
        assert not number or served[0].usage.read > 1000
        threaded, unthreaded = served[0].cache, served[1].cache
        answer = read_response_message(
            response(f"msg_{number}", content, is_stream=is_stream), is_stream=is_stream
        )
        assert answer is not None
        history = extend_history(asked, history, answer[1])
        sent_whole += [_without_breakpoints(message) for message in new]
        sent_whole += assistant(content)


def _prompt(body: bytes, rules: CacheRules) -> CachedPrompt:
    return build_cached_prompt(
        formats.parse_request(body, Format.ANTHROPIC), rules, block_tokens_for("claude-opus-5-5")
    )


@given(answers)
def test_a_streamed_answer_is_rebuilt_like_a_whole_one(content: list[Json]) -> None:
    plain = read_response_message(response("msg_1", content, is_stream=False), is_stream=False)
    stream = read_response_message(response("msg_1", content, is_stream=True), is_stream=True)

    assert plain is not None
    assert stream is not None
    assert plain[0] == stream[0]
    assert [msgspec.json.decode(each) if each else None for each in (plain[1], stream[1])] == 2 * [
        next(iter(assistant(content)), None)
    ]


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
    ids=["no id", "unknown delta", "no block", "half an input", "no JSON", "odd citations"],
)
def test_a_stream_that_cannot_be_rebuilt_gives_no_message(events: bytes) -> None:
    assert read_response_message(events, is_stream=True) is None


@pytest.mark.parametrize(
    "answer", [b"", b"{}", b'{"id":"m"}', b'{"id":"","content":[]}', b'{"id":"m","content":"x"}']
)
def test_a_response_without_an_id_or_a_list_of_blocks_gives_no_message(answer: bytes) -> None:
    assert read_response_message(answer, is_stream=False) is None


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
def test_a_thread_that_cannot_be_understood_is_an_error(body: Json) -> None:
    with pytest.raises(MalformedRequest):
        read_thread_request(json.dumps(body).encode())


def test_a_second_thread_field_is_an_error() -> None:
    with pytest.raises(DuplicateKey):
        read_thread_request(b'{"thread":{"type":"create"},"messages":[],"\\u0074hread":{"type":"create"}}')


def test_only_fixed_fields_with_a_different_value_have_changed() -> None:
    history = ThreadHistory(b'"Be kind."', b"", b"")
    thread = {"type": "continue", "previous_message_id": "m"}

    def changed(**said: object) -> list[str]:
        return find_changed_fields(request({"thread": thread, "messages": []} | said), history)

    assert changed() == []
    assert changed(system="Be kind.", tools=None, max_tokens=5) == []
    assert changed(system="Be rude.") == ["system"]
    assert changed(tools=[{"name": "look"}]) == ["tools"]


@pytest.mark.parametrize("nothing", [None, [], ""])
def test_fixed_fields_that_say_nothing_are_those_of_the_thread(nothing: object) -> None:
    """Regression: clients that send every field got `thread_fingerprint_mismatch`."""
    history = ThreadHistory(b'"Be kind."', b'[{"name":"look"}]', b'{"role":"user","content":"a"}')
    thread = {"type": "continue", "previous_message_id": "m"}
    asked = request({"system": nothing, "thread": thread, "messages": [], "tools": nothing})

    assert find_changed_fields(asked, history) == []
    assert msgspec.json.decode(expand_body(asked, history)) == {
        "system": "Be kind.",
        "messages": [{"role": "user", "content": "a"}],
        "tools": [{"name": "look"}],
    }


def test_a_thread_field_with_an_escaped_key_is_a_thread() -> None:
    """Regression: a request with such a key was forwarded as if it used no thread."""
    body = b'{"messages":[],"\\u0074hr\\u0065ad":{"type":"create"},"model":"m"}'

    assert expand_body(request(body), None) == b'{"messages":[],"model":"m"}'


@pytest.mark.parametrize("is_stream", [False, True])
def test_empty_texts_of_a_response_are_not_sent_back(is_stream: bool) -> None:
    """Regression: the provider rejected the next request because of an empty text block."""
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    empty = {"type": "text", "text": ""}
    found = read_response_message(response("m", [empty, call, empty], is_stream=is_stream), is_stream=is_stream)
    none = read_response_message(response("m", [empty], is_stream=is_stream), is_stream=is_stream)

    assert found is not None
    assert msgspec.json.decode(found[1])["content"] == [call]
    assert none == ("m", b"")


def test_a_thread_is_resumed_without_new_messages() -> None:
    """After a `pause_turn` response, the client sends no new message."""
    history = ThreadHistory(b"", b"", b'{"role":"user","content":"a"}')
    asked = request({"thread": {"type": "continue", "previous_message_id": "m"}, "messages": []})

    assert msgspec.json.decode(expand_body(asked, history)) == {"messages": [{"role": "user", "content": "a"}]}


def test_data_that_is_called_cache_control_stays() -> None:
    call = {
        "type": "tool_use",
        "id": "t",
        "name": "n",
        "input": {"cache_control": 1},
        "cache_control": EPHEMERAL,
    }
    asked = request({"thread": {"type": "create"}, "messages": [{"role": "assistant", "content": [call]}]})
    del call["cache_control"]

    kept = msgspec.json.decode(b"[" + extend_history(asked, None, b"").messages + b"]")
    assert kept == [{"role": "assistant", "content": [call]}]


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        ("message-threads-2026-08-12", ""),
        ("a-1, message-threads-2026-08-12,b-2", "a-1,b-2"),
        ("a-1", "a-1"),
        ("", ""),
    ],
)
def test_only_the_beta_value_of_threads_is_removed(header: str, kept: str) -> None:
    assert remove_threads_beta(header) == kept

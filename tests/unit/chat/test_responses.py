"""Responses and requests of a conversation, in both formats."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.chat.requests import (
    CUT_OFF_TEXT,
    ModelTarget,
    SessionIdentity,
    assistant_turn,
    build_body,
    build_scope,
    user_turn,
)
from foveate.chat.responses import (
    FailureKind,
    FragmentKind,
    ResponseFragment,
    ResponseStream,
    classify_failure,
    read_response,
)
from foveate.gateway.auth.callers import NoKeys, identify_agent
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.request import parse_request
from foveate.gateway.routing import KNOWN_UPSTREAMS, Upstream
from foveate.model import Format
from foveate.tokens.tokenizers.bpe import split_into_tokens
from foveate.tokens.tokenizers.vocabularies import bundled_vocabulary
from tests.support.harness.example_limits import limit_examples

ANTHROPIC = (
    "event: content_block_start\n"
    'data: {"type":"content_block_start","content_block":{"type":"thinking","thinking":""}}\n\n'
    'data: {"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"Hm."}}\n\n'
    'data: {"type":"content_block_start","content_block":{"type":"text","text":""}}\n\n'
    'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"Hello 👩\u200d👧"}}\n\n'
    'data: {"type":"content_block_start","content_block":{"type":"tool_use","name":"look_up","input":{}}}\n\n'
    'data: {"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{}"}}\n\n'
    'data: {"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":5}}\n\n'
    'data: {"type":"message_stop"}\n\n'
)
CHAT = (
    'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    'data: {"choices":[{"delta":{"reasoning_content":"Hm."}}]}\n\n'
    ": a comment of the host\n\n"
    'data: {"choices":[{"delta":{"content":"Hello 👩\u200d👧"}}]}\n\n'
    'data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"look_up","arguments":""}}]}}]}\n\n'
    'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}\n\n'
    'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n'
    'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}\n\n'
    "data: [DONE]\n\n"
)
EXPECTED = [
    ResponseFragment(FragmentKind.THINKING, "Hm."),
    ResponseFragment(FragmentKind.TEXT, "Hello 👩\u200d👧"),
    ResponseFragment(FragmentKind.TOOL_CALL, "look_up"),
]
STREAMS = {Format.ANTHROPIC: (ANTHROPIC, "max_tokens"), Format.CHAT: (CHAT, "length")}


@pytest.mark.parametrize("api_format", STREAMS)
@given(cuts=st.lists(st.integers(0, 1200), max_size=12))
@settings(max_examples=limit_examples(25))
def test_a_response_is_parsed_wherever_the_network_splits_it(api_format: Format, cuts: list[int]) -> None:
    text, stop = STREAMS[api_format]
    data = text.encode()
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    stream = ResponseStream(api_format)
    received = [fragment for start, end in pairwise(places) for fragment in stream.feed(data[start:end])]
    received += stream.end()

    assert received == EXPECTED
    assert stream.reader.stop_reason == stop
    assert stream.reader.is_complete


def test_a_response_that_does_not_stream_is_parsed_too() -> None:
    chat = {"choices": [{"message": {"content": "Hello", "tool_calls": [{"function": {"name": "look_up"}}]}}]}
    blocks = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hello"}]

    assert read_response(Format.CHAT, json.dumps(chat).encode()) == [
        ResponseFragment(FragmentKind.TEXT, "Hello"),
        ResponseFragment(FragmentKind.TOOL_CALL, "look_up"),
    ]
    assert read_response(Format.ANTHROPIC, json.dumps({"content": blocks}).encode()) == [
        ResponseFragment(FragmentKind.THINKING, "Hm."),
        ResponseFragment(FragmentKind.TEXT, "Hello"),
    ]
    assert read_response(Format.CHAT, b"<html>") == []
    assert read_response(Format.CHAT, b'{"choices": []}') == []


def make_target(
    name: str = "openai", api_format: Format = Format.CHAT, key: str | None = "sk-1"
) -> ModelTarget:
    known = KNOWN_UPSTREAMS[name]
    upstream = Upstream(
        name=name, base_url=known.base_url, family=known.family, provider=known.provider, key=key
    )
    return ModelTarget(model="some-model", upstream=upstream, api_format=api_format)


def test_a_conversation_is_sent_in_the_format_of_each_provider() -> None:
    turns = (user_turn("Hi"), assistant_turn("Hello, I", is_cut=True), user_turn("Go on"))
    openai = json.loads(build_body(turns, make_target(), max_tokens=9))
    others = json.loads(build_body(turns, make_target("vllm"), max_tokens=9))
    anthropic = json.loads(build_body(turns, make_target("anthropic", Format.ANTHROPIC), max_tokens=9))

    assert openai["max_completion_tokens"] == others["max_tokens"] == anthropic["max_tokens"] == 9
    assert openai["messages"] == anthropic["messages"]
    assert openai["messages"][1] == {"role": "assistant", "content": f"Hello, I {CUT_OFF_TEXT}"}
    assert openai["stream"] is True


@pytest.mark.parametrize("agent", ["ana", "Zoë", "日本 🦊", "50%25"])
def test_an_agent_can_have_any_name(agent: str) -> None:
    """Regression: an agent with a non-Latin name could not be used."""
    request = parse_request(build_scope(make_target(), SessionIdentity(agent=agent, session="s")))

    assert identify_agent(request, NoKeys()) == agent


def test_the_key_is_sent_in_the_header_of_its_api_family() -> None:
    identity = SessionIdentity(agent="ana", session="s", focus="the glasshouse, ü")
    openai_headers = dict(build_scope(make_target(), identity)["headers"])
    anthropic_headers = dict(build_scope(make_target("anthropic", Format.ANTHROPIC), identity)["headers"])
    keyless_headers = dict(build_scope(make_target(key=None), identity)["headers"])

    assert openai_headers[b"authorization"] == b"Bearer sk-1"
    assert anthropic_headers[b"x-api-key"] == b"sk-1"
    assert anthropic_headers[b"anthropic-version"] == b"2023-06-01"
    assert keyless_headers.keys() == {
        b"content-type",
        b"x-foveate-agent",
        b"x-foveate-session",
        b"x-foveate-focus",
    }
    assert openai_headers[b"x-foveate-focus"] == b"the%20glasshouse%2C%20%C3%BC"
    assert make_target().upstream.family is ApiFamily.OPENAI


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind", "message"),
    [
        (401, {}, b'{"error": {"message": "bad key."}}', FailureKind.KEY, "bad key; check OPENAI_API_KEY"),
        (402, {}, b'{"error": {"message": "the cap on a day"}}', FailureKind.CAP, "the cap on a day"),
        (429, {"retry-after": "12"}, b"", FailureKind.BUSY, "try again in 12 s"),
        (429, {"retry-after": "soon"}, b"{}", FailureKind.BUSY, "try again in a moment"),
        (400, {}, b'{"error": {"message": "prompt is too long: 9 > 8"}}', FailureKind.WINDOW, ":compact"),
        (400, {}, b'{"error": "what?"}', FailureKind.REFUSED, "rejected the request (400): what?"),
        (404, {}, b'{"error": {"message": "no such model"}}', FailureKind.REFUSED, ":model switches to"),
        (502, {}, b"<html>\nBad\ngateway", FailureKind.UNREACHABLE, "<html> Bad gateway"),
        (500, {}, b"\xff" * 5000, FailureKind.UNREACHABLE, "failed (500)"),
    ],
)
def test_an_error_response_is_described_in_one_line_with_advice(
    status: int, headers: dict[str, str], body: bytes, kind: FailureKind, message: str
) -> None:
    failure = classify_failure(status, headers, body, make_target(), has_history=True)

    assert failure.kind is kind
    assert message in failure.text
    assert "\n" not in failure.text
    assert len(failure.text) <= 500


def test_advice_follows_even_a_very_long_provider_message() -> None:
    body = json.dumps({"error": {"message": "there is no such model. " * 200}}).encode()

    failure_text = classify_failure(404, {}, body, make_target(), has_history=True).text

    assert failure_text.endswith("…; :model switches to another model")


def test_compaction_is_not_advised_for_a_question_that_is_too_long_by_itself() -> None:
    body = b'{"error": {"message": "prompt is too long: 9 > 8"}}'

    failure_text = classify_failure(400, {}, body, make_target(), has_history=False).text

    assert ":compact" not in failure_text
    assert "send a shorter message" in failure_text


@pytest.mark.parametrize("vocabulary", ["o200k_base", "llama3", "mistral_v3"])
@given(text=st.text(max_size=60))
@settings(max_examples=limit_examples(30))
def test_the_pieces_of_a_tokenized_text_are_the_text(vocabulary: str, text: str) -> None:
    result = split_into_tokens(bundled_vocabulary(vocabulary), text)

    if result is not None:  # a vocabulary may normalize some characters
        assert b"".join(result) == text.encode("utf-8", "replace")
        assert len(result) == bundled_vocabulary(vocabulary).count(text)
    assert split_into_tokens(bundled_vocabulary(vocabulary), "Hello world") is not None

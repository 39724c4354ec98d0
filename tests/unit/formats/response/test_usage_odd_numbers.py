"""Usage that is easily lost or misread: invalid numbers, inconsistent totals, splits by TTL."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.formats.response.streaming import StreamReader, UsageChunkFilter
from foveate.formats.response.usage import parse_usage, read_response_usage
from foveate.model import CacheUsage, Format, Usage
from foveate.sandbox.http import SandboxRequest
from foveate.sandbox.rendering.openai_responses import usage_block
from foveate.sandbox.response import ResponseMetadata
from foveate.sandbox.sandbox import Sandbox
from foveate.sandbox.script import Script
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.valid_requests import BREAKPOINT_GPT, response
from tests.support.servers.sandbox import ManualClock

CHAT_BILL = b'"usage":{"prompt_tokens":1000,"completion_tokens":500}'


def cache(usage: Usage | None) -> CacheUsage:
    assert usage is not None
    return usage.cache


def read(api_format: Format, numbers: dict[str, Any]) -> Usage:
    usage = parse_usage(api_format, json.dumps(numbers).encode())
    assert usage is not None
    return usage


def streamed(api_format: Format, *events: bytes) -> Usage | None:
    reader = StreamReader(api_format)
    for event in events:
        reader.feed(b"data: " + event + b"\n\n")
    reader.end()
    return reader.usage


@pytest.mark.parametrize(
    "reply",
    [
        b'{"choices":[{"logprobs":{"content":[{"logprob":-Infinity}]}}],' + CHAT_BILL + b"}",
        b"{" + CHAT_BILL + b',"choices":[{"score":NaN}]}',
        b'{"temperature":1e999,' + CHAT_BILL + b"}",
        b"\xef\xbb\xbf{" + CHAT_BILL + b',"choices":[{"score":NaN}]}',
        b'{"usage":null,"choices":[{"score":NaN,' + CHAT_BILL + b"}]}",
        b'{"usage":null,"x_groq":{"score":[Infinity],' + CHAT_BILL + b"}}",
        b"{" + CHAT_BILL[:-1] + b',"cost":NaN}}',
        b"{" + CHAT_BILL[:-1] + b',"cost":1e999}}',
        b"{" + CHAT_BILL[:-1] + b',"cost":-Infinity}}',
        b"{" + CHAT_BILL[:-1] + b',"cost":1' + b"0" * 400 + b"}}",
    ],
)
def test_an_invalid_number_does_not_lose_the_usage(reply: bytes) -> None:
    for usage in (read_response_usage(Format.CHAT, reply), streamed(Format.CHAT, reply)):
        assert usage is not None
        assert (usage.cache, usage.output_tokens) == (CacheUsage(uncached=1000), 500)
        assert usage.said_dollars is None or usage.said_dollars == Decimal(10**400)


@pytest.mark.parametrize(
    ("api_format", "event"),
    [
        (Format.RESPONSES, b'{"type":"response.completed","response":{"n":NaN,"usage":{"input_tokens":7}}}'),
        (Format.GEMINI, b'{"candidates":[{"avgLogprobs":NaN}],"usageMetadata":{"promptTokenCount":7}}'),
        (Format.ANTHROPIC, b'{"type":"message_start","message":{"n":NaN,"usage":{"input_tokens":7}}}'),
    ],
)
def test_an_invalid_number_does_not_lose_the_usage_of_a_stream(api_format: Format, event: bytes) -> None:
    assert cache(streamed(api_format, event)) == CacheUsage(uncached=7)


def test_the_chunk_of_usage_is_stripped_though_a_number_in_it_is_none() -> None:
    chunk = b'data: {"choices":[],' + CHAT_BILL[:-1] + b',"cost":NaN}}\n\n'

    assert UsageChunkFilter().feed(chunk) == b""


def test_usage_in_a_list_is_read_despite_an_invalid_number() -> None:
    chunks = b'[{"usageMetadata":{"promptTokenCount":3}},{"n":NaN,"usageMetadata":{"promptTokenCount":4}}]'

    assert cache(read_response_usage(Format.GEMINI, chunks)) == CacheUsage(uncached=4)


@pytest.mark.parametrize(
    "reply", [b'{"usage":{"prompt_tokens":5}', b'{"usage":{"prompt_tokens":tru}}', b"{NaN}"]
)
def test_truncated_usage_is_ignored(reply: bytes) -> None:
    assert read_response_usage(Format.CHAT, reply) is None


counts = st.integers(0, 10**6)


@given(st.builds(CacheUsage, uncached=counts, read=counts, written_5m=counts, written_1h=counts), counts)
@settings(max_examples=limit_examples(60))
def test_usage_of_responses_is_read_as_the_sandbox_writes_it(meant: CacheUsage, output: int) -> None:
    sheet = ResponseMetadata(
        model="gpt", created_at=0, usage=Usage(cache=meant, output_tokens=output), new_id=lambda prefix: prefix
    )

    usage = read(Format.RESPONSES, usage_block(sheet))

    assert (usage.cache, usage.output_tokens) == (meant, output)


def test_what_responses_keep_for_twelve_hours_is_written_for_the_long_time() -> None:
    text = "These words are kept. " * 800
    asked = response(
        {"role": "user", "content": text}, model=BREAKPOINT_GPT, prompt_cache_options={"ttl": "12h"}
    )
    headers = {"authorization": "Bearer k"}
    sandbox = Sandbox(clock=ManualClock(), seed=b"x", script=Script(steps=()))
    ask = SandboxRequest(method="POST", path="/v1/responses", headers=headers, body=json.dumps(asked).encode())

    reply = b"".join(sandbox.reply(ask).chunks)

    billed = json.loads(reply)["usage"]["input_tokens_details"]["cache_write_tokens"]
    assert billed > 3_000
    assert cache(read_response_usage(Format.RESPONSES, reply)).written_1h == billed


def test_a_split_that_is_larger_than_its_sum_never_gives_less_than_nothing() -> None:
    long = {"ephemeral_1h_input_tokens": 20}

    assert read(Format.ANTHROPIC, {"input_tokens": 1, "cache_creation": long}).cache == CacheUsage(
        uncached=1, written_1h=20
    )


def test_no_more_is_written_for_the_long_time_than_was_sent() -> None:
    details = {"cached_tokens": 4, "cache_creation": {"ephemeral_1h_input_tokens": 40}}

    assert read(Format.CHAT, {"prompt_tokens": 10, "prompt_tokens_details": details}).cache == CacheUsage(
        read=4, written_1h=6
    )


@pytest.mark.parametrize(
    ("reasoning", "total", "output"),
    [
        (233, 800, 763),  # xAI, which counts reasoning in the total alone
        (233, 567, 530),
        (233, 10**9, 763),  # and no more than the reasoning that it says
        (0, 10**9, 400_530),
        (0, 600, 563),  # Gemini behind its OpenAI route, which does not say how much it thought
        (0, 5, 530),
    ],
)
def test_a_total_adds_at_most_what_a_model_can_think(reasoning: int, total: int, output: int) -> None:
    numbers = {"prompt_tokens": 37, "completion_tokens": 530, "total_tokens": total}
    details = {"completion_tokens_details": {"reasoning_tokens": reasoning}}

    assert read(Format.CHAT, numbers | details).output_tokens == output


def test_the_output_of_gemini_follows_from_the_total_if_it_is_missing() -> None:
    prompt = {"promptTokenCount": 10, "toolUsePromptTokenCount": 5, "totalTokenCount": 40}

    assert read(Format.GEMINI, prompt).output_tokens == 25
    assert read(Format.GEMINI, prompt | {"thoughtsTokenCount": 30}).output_tokens == 30
    assert read(Format.GEMINI, prompt | {"candidatesTokenCount": 0}).output_tokens == 0


def anthropic(start: dict[str, Any], end: dict[str, Any]) -> CacheUsage:
    started = {"type": "message_start", "message": {"usage": start}}
    ended = {"type": "message_delta", "delta": {}, "usage": end}
    return cache(streamed(Format.ANTHROPIC, *(json.dumps(event).encode() for event in (started, ended))))


SPLIT = {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20}
START = {
    "input_tokens": 4,
    "cache_read_input_tokens": 90,
    "cache_creation_input_tokens": 30,
    "cache_creation": SPLIT,
}


@pytest.mark.parametrize("nothing", [0, 0.0, None])
@pytest.mark.parametrize("name", ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"])
def test_a_later_nothing_unsays_no_number(name: str, nothing: Any) -> None:
    """Even if the same event has another number."""
    others = {other: START[other] for other in START if other not in (name, "cache_creation")}

    assert anthropic(START, {**others, name: nothing}) == anthropic(START, {})


@pytest.mark.parametrize("odd", [-1, "x", True, 10**12, float("nan"), float("inf")])
@pytest.mark.parametrize("name", [*START, "output_tokens"])
def test_absurd_usage_at_the_end_of_a_stream_makes_it_unknown(name: str, odd: Any) -> None:
    """Attack: the output of message_start, one token, was recorded in place of a negative one at the end."""
    said = {"cache_creation": {"ephemeral_5m_input_tokens": odd}} if name == "cache_creation" else {name: odd}
    usage = streamed(
        Format.ANTHROPIC,
        json.dumps({"type": "message_start", "message": {"usage": START | {"output_tokens": 1}}}).encode(),
        json.dumps({"type": "message_delta", "usage": said}).encode(),
    )
    assert usage is not None
    assert usage.is_unreadable
    assert usage.is_empty
    assert name.encode() in usage.raw


def test_absurd_searches_at_the_end_of_a_stream_make_it_unknown() -> None:
    """Attack: a negative number of searches was recorded as zero."""
    started = START | {"server_tool_use": {"web_search_requests": 1}}
    usage = streamed(
        Format.ANTHROPIC,
        json.dumps({"type": "message_start", "message": {"usage": started}}).encode(),
        b'{"type": "message_delta", "usage": {"server_tool_use": {"web_search_requests": -1}}}',
    )
    assert usage is not None
    assert usage.is_unreadable


def test_a_later_split_of_zeros_unsays_no_split() -> None:
    zeros = dict.fromkeys(SPLIT, 0)

    assert anthropic(START, {"cache_creation": zeros}) == anthropic(START, {})
    assert anthropic(START, {"cache_creation": {}, "iterations": []}) == anthropic(START, {})


def test_a_split_is_dropped_if_its_sum_differs() -> None:
    grown = {"cache_creation_input_tokens": 50}

    assert anthropic(START, grown) == CacheUsage(uncached=4, read=90, written_5m=50)
    assert anthropic(START, {"cache_creation_input_tokens": 30}).written_1h == 20
    assert anthropic(START, {**grown, "cache_creation": {"ephemeral_1h_input_tokens": 50}}).written_1h == 50

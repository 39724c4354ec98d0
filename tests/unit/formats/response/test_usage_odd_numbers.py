"""Usage that is easily lost or misread: invalid numbers, inconsistent totals, splits by TTL."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.formats.response.streaming import StreamReader, UsageChunkFilter
from foveate.formats.response.usage import parse_usage, read_response_usage
from foveate.model import CacheUsage, Format, Usage
from foveate.sandbox.http import SandboxRequest
from foveate.sandbox.providers.openai_responses import usage_block
from foveate.sandbox.response import ResponseMetadata
from foveate.sandbox.sandbox import Sandbox
from foveate.sandbox.script import Script
from tests.support.scenarios.valid_requests import BREAKPOINT_GPT, response
from tests.support.servers.sandbox import ManualClock

CHAT_USAGE = b'"usage":{"prompt_tokens":1000,"completion_tokens":500}'


def require_cache_usage(usage: Usage | None) -> CacheUsage:
    assert usage is not None
    return usage.cache


def read_usage(api_format: Format, raw_usage: dict[str, Any]) -> Usage:
    usage = parse_usage(api_format, json.dumps(raw_usage).encode())
    assert usage is not None
    return usage


def read_stream_usage(api_format: Format, *events: bytes) -> Usage | None:
    reader = StreamReader(api_format)
    for event in events:
        reader.feed(b"data: " + event + b"\n\n")
    reader.end()
    return reader.usage


@pytest.mark.parametrize(
    "reply",
    [
        b'{"choices":[{"logprobs":{"content":[{"logprob":-Infinity}]}}],' + CHAT_USAGE + b"}",
        b"{" + CHAT_USAGE + b',"choices":[{"score":NaN}]}',
        b'{"temperature":1e999,' + CHAT_USAGE + b"}",
        b"\xef\xbb\xbf{" + CHAT_USAGE + b',"choices":[{"score":NaN}]}',
        b'{"usage":null,"choices":[{"score":NaN,' + CHAT_USAGE + b"}]}",
        b'{"usage":null,"x_groq":{"score":[Infinity],' + CHAT_USAGE + b"}}",
        b"{" + CHAT_USAGE[:-1] + b',"cost":NaN}}',
        b"{" + CHAT_USAGE[:-1] + b',"cost":1e999}}',
        b"{" + CHAT_USAGE[:-1] + b',"cost":-Infinity}}',
        b"{" + CHAT_USAGE[:-1] + b',"cost":1' + b"0" * 400 + b"}}",
    ],
)
def test_an_invalid_number_does_not_lose_the_usage(reply: bytes) -> None:
    for usage in (read_response_usage(Format.CHAT, reply), read_stream_usage(Format.CHAT, reply)):
        assert usage is not None
        assert (usage.cache, usage.output_tokens) == (CacheUsage(uncached=1000), 500)
        assert usage.reported_dollars is None or usage.reported_dollars == Decimal(10**400)


@pytest.mark.parametrize(
    ("api_format", "event"),
    [
        (Format.RESPONSES, b'{"type":"response.completed","response":{"n":NaN,"usage":{"input_tokens":7}}}'),
        (Format.GEMINI, b'{"candidates":[{"avgLogprobs":NaN}],"usageMetadata":{"promptTokenCount":7}}'),
        (Format.ANTHROPIC, b'{"type":"message_start","message":{"n":NaN,"usage":{"input_tokens":7}}}'),
    ],
)
def test_an_invalid_number_does_not_lose_the_usage_of_a_stream(api_format: Format, event: bytes) -> None:
    assert require_cache_usage(read_stream_usage(api_format, event)) == CacheUsage(uncached=7)


def test_the_usage_chunk_is_stripped_even_if_a_number_in_it_is_invalid() -> None:
    chunk = b'data: {"choices":[],' + CHAT_USAGE[:-1] + b',"cost":NaN}}\n\n'

    assert UsageChunkFilter().feed(chunk) == b""


def test_usage_in_a_list_is_read_despite_an_invalid_number() -> None:
    chunks = b'[{"usageMetadata":{"promptTokenCount":3}},{"n":NaN,"usageMetadata":{"promptTokenCount":4}}]'

    assert require_cache_usage(read_response_usage(Format.GEMINI, chunks)) == CacheUsage(uncached=4)


@pytest.mark.parametrize(
    "reply", [b'{"usage":{"prompt_tokens":5}', b'{"usage":{"prompt_tokens":tru}}', b"{NaN}"]
)
def test_truncated_usage_is_ignored(reply: bytes) -> None:
    assert read_response_usage(Format.CHAT, reply) is None


token_counts = st.integers(0, 10**6)


@given(
    st.builds(
        CacheUsage, uncached=token_counts, read=token_counts, written_5m=token_counts, written_1h=token_counts
    ),
    token_counts,
)
def test_usage_of_responses_is_read_as_the_sandbox_writes_it(expected: CacheUsage, output: int) -> None:
    metadata = ResponseMetadata(
        model="gpt",
        created_at=0,
        usage=Usage(cache=expected, output_tokens=output),
        new_id=lambda prefix: prefix,
    )

    usage = read_usage(Format.RESPONSES, usage_block(metadata))

    assert (usage.cache, usage.output_tokens) == (expected, output)


def test_responses_cached_for_twelve_hours_are_counted_as_one_hour_writes() -> None:
    text = "These words are cached. " * 800
    body = response(
        {"role": "user", "content": text}, model=BREAKPOINT_GPT, prompt_cache_options={"ttl": "12h"}
    )
    headers = {"authorization": "Bearer k"}
    sandbox = Sandbox(clock=ManualClock(), seed=b"x", script=Script(steps=()))
    request = SandboxRequest(
        method="POST", path="/v1/responses", headers=headers, body=json.dumps(body).encode()
    )

    reply = b"".join(sandbox.reply(request).chunks)

    written_tokens = json.loads(reply)["usage"]["input_tokens_details"]["cache_write_tokens"]
    assert written_tokens > 3_000
    assert require_cache_usage(read_response_usage(Format.RESPONSES, reply)).written_1h == written_tokens


def test_a_split_larger_than_its_total_never_gives_negative_numbers() -> None:
    split = {"ephemeral_1h_input_tokens": 20}

    assert read_usage(Format.ANTHROPIC, {"input_tokens": 1, "cache_creation": split}).cache == CacheUsage(
        uncached=1, written_1h=20
    )


def test_one_hour_writes_never_exceed_the_prompt() -> None:
    details = {"cached_tokens": 4, "cache_creation": {"ephemeral_1h_input_tokens": 40}}

    assert read_usage(Format.CHAT, {"prompt_tokens": 10, "prompt_tokens_details": details}).cache == CacheUsage(
        read=4, written_1h=6
    )


@pytest.mark.parametrize(
    ("reasoning", "total", "output"),
    [
        (233, 800, 763),  # xAI counts reasoning only in the total
        (233, 567, 530),
        (233, 10**9, 763),  # and no more than the reported reasoning
        (0, 10**9, 400_530),
        (0, 600, 563),  # Gemini on its OpenAI route, which does not report reasoning
        (0, 5, 530),
    ],
)
def test_tokens_added_from_the_total_are_limited_to_possible_reasoning(
    reasoning: int, total: int, output: int
) -> None:
    numbers = {"prompt_tokens": 37, "completion_tokens": 530, "total_tokens": total}
    details = {"completion_tokens_details": {"reasoning_tokens": reasoning}}

    assert read_usage(Format.CHAT, numbers | details).output_tokens == output


def test_the_output_of_gemini_follows_from_the_total_if_it_is_missing() -> None:
    prompt = {"promptTokenCount": 10, "toolUsePromptTokenCount": 5, "totalTokenCount": 40}

    assert read_usage(Format.GEMINI, prompt).output_tokens == 25
    assert read_usage(Format.GEMINI, prompt | {"thoughtsTokenCount": 30}).output_tokens == 30
    assert read_usage(Format.GEMINI, prompt | {"candidatesTokenCount": 0}).output_tokens == 0


def read_anthropic_stream(start: dict[str, Any], end: dict[str, Any]) -> CacheUsage:
    start_event = {"type": "message_start", "message": {"usage": start}}
    end_event = {"type": "message_delta", "delta": {}, "usage": end}
    return require_cache_usage(
        read_stream_usage(Format.ANTHROPIC, *(json.dumps(event).encode() for event in (start_event, end_event)))
    )


TTL_SPLIT = {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20}
START_USAGE = {
    "input_tokens": 4,
    "cache_read_input_tokens": 90,
    "cache_creation_input_tokens": 30,
    "cache_creation": TTL_SPLIT,
}


@pytest.mark.parametrize("zero", [0, 0.0, None])
@pytest.mark.parametrize("name", ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"])
def test_a_later_zero_or_null_does_not_overwrite_a_number(name: str, zero: Any) -> None:
    """This holds also if the same event has another number."""
    other_fields = {other: START_USAGE[other] for other in START_USAGE if other not in (name, "cache_creation")}

    assert read_anthropic_stream(START_USAGE, {**other_fields, name: zero}) == read_anthropic_stream(
        START_USAGE, {}
    )


@pytest.mark.parametrize("number", [-1, "x", True, 10**12, float("nan"), float("inf")])
@pytest.mark.parametrize("name", [*START_USAGE, "output_tokens"])
def test_absurd_usage_at_the_end_of_a_stream_makes_it_unknown(name: str, number: Any) -> None:
    """Attack: the output token of message_start was recorded in place of a negative number at the end."""
    end_usage = (
        {"cache_creation": {"ephemeral_5m_input_tokens": number}}
        if name == "cache_creation"
        else {name: number}
    )
    usage = read_stream_usage(
        Format.ANTHROPIC,
        json.dumps(
            {"type": "message_start", "message": {"usage": START_USAGE | {"output_tokens": 1}}}
        ).encode(),
        json.dumps({"type": "message_delta", "usage": end_usage}).encode(),
    )
    assert usage is not None
    assert usage.is_unreadable
    assert usage.is_empty
    assert name.encode() in usage.raw


def test_absurd_searches_at_the_end_of_a_stream_make_it_unknown() -> None:
    """Attack: a negative number of searches was recorded as zero."""
    start_usage = START_USAGE | {"server_tool_use": {"web_search_requests": 1}}
    usage = read_stream_usage(
        Format.ANTHROPIC,
        json.dumps({"type": "message_start", "message": {"usage": start_usage}}).encode(),
        b'{"type": "message_delta", "usage": {"server_tool_use": {"web_search_requests": -1}}}',
    )
    assert usage is not None
    assert usage.is_unreadable


def test_a_later_split_of_zeros_does_not_overwrite_a_split() -> None:
    zeros = dict.fromkeys(TTL_SPLIT, 0)

    assert read_anthropic_stream(START_USAGE, {"cache_creation": zeros}) == read_anthropic_stream(
        START_USAGE, {}
    )
    assert read_anthropic_stream(
        START_USAGE, {"cache_creation": {}, "iterations": []}
    ) == read_anthropic_stream(START_USAGE, {})


def test_a_split_is_dropped_if_the_total_differs() -> None:
    larger_total = {"cache_creation_input_tokens": 50}

    assert read_anthropic_stream(START_USAGE, larger_total) == CacheUsage(uncached=4, read=90, written_5m=50)
    assert read_anthropic_stream(START_USAGE, {"cache_creation_input_tokens": 30}).written_1h == 20
    assert (
        read_anthropic_stream(
            START_USAGE, {**larger_total, "cache_creation": {"ephemeral_1h_input_tokens": 50}}
        ).written_1h
        == 50
    )

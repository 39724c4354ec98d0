"""Usage of every provider is converted to one form that adds up."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.formats.response.usage import parse_usage, read_response_usage
from foveate.model import CacheUsage, Format, Usage


def read_usage(api_format: Format, raw_usage: dict[str, Any]) -> Usage:
    usage = parse_usage(api_format, json.dumps(raw_usage).encode())
    assert usage is not None
    return usage


@pytest.mark.parametrize(
    ("api_format", "raw_usage", "cache", "output", "reasoning"),
    [
        pytest.param(
            Format.ANTHROPIC,
            {
                "input_tokens": 5,
                "cache_read_input_tokens": 100,
                "cache_creation_input_tokens": 30,
                "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
                "output_tokens": 7,
                "output_tokens_details": {"thinking_tokens": 3},
                "server_tool_use": {"web_search_requests": 2},
            },
            CacheUsage(uncached=5, read=100, written_5m=10, written_1h=20),
            7,
            3,
            id="anthropic",
        ),
        pytest.param(
            Format.ANTHROPIC,
            {"input_tokens": 5, "cache_creation_input_tokens": 30, "cache_creation": None, "output_tokens": 7},
            CacheUsage(uncached=5, written_5m=30),
            7,
            0,
            id="anthropic, only the total of cache writes",
        ),
        pytest.param(
            Format.CHAT,
            {
                "prompt_tokens": 2649,
                "completion_tokens": 100,
                "prompt_tokens_details": {"cached_tokens": 2569, "cache_write_tokens": 79},
                "completion_tokens_details": {"reasoning_tokens": 40},
            },
            CacheUsage(uncached=1, read=2569, written_5m=79),
            100,
            40,
            id="openai and openrouter",
        ),
        pytest.param(
            Format.CHAT,
            {"prompt_cache_hit_tokens": 512, "prompt_cache_miss_tokens": 51, "completion_tokens": 3},
            CacheUsage(uncached=51, read=512),
            3,
            0,
            id="deepseek",
        ),
        pytest.param(
            Format.CHAT,
            {
                "prompt_tokens": 150,
                "completion_tokens": 6,
                "num_cached_tokens": 149,
                "prompt_tokens_details": {"cached_tokens": 128},
            },
            CacheUsage(uncached=22, read=128),
            6,
            0,
            id="mistral, cached tokens only in the details",
        ),
        pytest.param(
            Format.CHAT,
            {
                "prompt_tokens": 33,
                "completion_tokens": 7_163,
                "total_tokens": 7_196,
                "citation_tokens": 19_028,
                "reasoning_tokens": 95_305,
            },
            CacheUsage(uncached=33),
            102_468,
            95_305,
            id="perplexity deep research, reasoning not in the completion",
        ),
        pytest.param(
            Format.CHAT,
            {
                "input_tokens": 400,
                "input_token_details": {"audio_tokens": 300, "cached_tokens": 128},
                "output_tokens": 45,
                "total_tokens": 445,
            },
            CacheUsage(uncached=272, read=128),
            45,
            0,
            id="openai, speech",
        ),
        pytest.param(
            Format.CHAT,
            {"prompt_tokens": 64, "completion_tokens": 6, "cached_tokens": 32},
            CacheUsage(uncached=32, read=32),
            6,
            0,
            id="moonshot",
        ),
        pytest.param(
            Format.CHAT,
            {
                "prompt_tokens": 37,
                "completion_tokens": 530,
                "total_tokens": 800,
                "prompt_tokens_details": {"text_tokens": 37, "cached_tokens": 8},
                "completion_tokens_details": {"reasoning_tokens": 233},
            },
            CacheUsage(uncached=29, read=8),
            763,
            233,
            id="xai, reasoning not in the completion",
        ),
        pytest.param(
            Format.CHAT,
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": None},
            CacheUsage(uncached=9),
            2,
            0,
            id="vllm",
        ),
        pytest.param(
            Format.CHAT,
            {
                "prompt_tokens": 90,
                "completion_tokens": 2,
                "cache_read_input_tokens": 20,
                "cache_creation_input_tokens": 50,
                "prompt_tokens_details": {
                    "cached_tokens": 20,
                    "cache_creation_tokens": 50,
                    "cache_creation_token_details": {
                        "ephemeral_5m_input_tokens": 10,
                        "ephemeral_1h_input_tokens": 40,
                    },
                },
            },
            CacheUsage(uncached=20, read=20, written_5m=10, written_1h=40),
            2,
            0,
            id="litellm",
        ),
        pytest.param(
            Format.CHAT,
            {"prompt_n": 1, "cache_n": 236, "predicted_n": 35, "predicted_ms": 661.06},
            CacheUsage(uncached=1, read=236),
            35,
            0,
            id="llama.cpp, only timings",
        ),
        pytest.param(
            Format.RESPONSES,
            {
                "input_tokens": 4020,
                "input_tokens_details": {"cached_tokens": 1000, "cache_write_tokens": 3012},
                "output_tokens": 4,
                "output_tokens_details": {"reasoning_tokens": 2},
                "total_tokens": 4024,
            },
            CacheUsage(uncached=8, read=1000, written_5m=3012),
            4,
            2,
            id="responses",
        ),
        pytest.param(
            Format.GEMINI,
            {
                "promptTokenCount": 100,
                "cachedContentTokenCount": 60,
                "toolUsePromptTokenCount": 11,
                "candidatesTokenCount": 5,
                "thoughtsTokenCount": 20,
            },
            CacheUsage(uncached=51, read=60),
            25,
            20,
            id="gemini",
        ),
        pytest.param(
            Format.BEDROCK,
            {
                "inputTokens": 3,
                "outputTokens": 4,
                "cacheReadInputTokens": 50,
                "cacheWriteInputTokens": 30,
                "cacheDetails": [{"ttl": "1h", "inputTokens": 20}, {"ttl": "5m", "inputTokens": 10}],
            },
            CacheUsage(uncached=3, read=50, written_5m=10, written_1h=20),
            4,
            0,
            id="bedrock",
        ),
        pytest.param(
            Format.CHAT, {"total_tokens": 9}, CacheUsage(uncached=9), 0, 0, id="an embedding, only a total"
        ),
    ],
)
def test_the_usage_format_of_each_provider_is_read(
    api_format: Format, raw_usage: dict[str, Any], cache: CacheUsage, output: int, reasoning: int
) -> None:
    usage = read_usage(api_format, raw_usage)

    assert (usage.cache, usage.output_tokens, usage.reasoning_tokens) == (cache, output, reasoning)


def test_usage_of_server_side_compaction_is_added_once() -> None:
    main_call = {"input_tokens": 229, "output_tokens": 5, "cache_read_input_tokens": 0}
    compaction = {
        "type": "compaction",
        "input_tokens": 100,
        "output_tokens": 131,
        "cache_read_input_tokens": 55_000,
    }
    cache_writes = {"cache_creation_input_tokens": 96, "cache_creation": {"ephemeral_1h_input_tokens": 96}}

    usage = read_usage(
        Format.ANTHROPIC,
        {**main_call, "iterations": [{**compaction, **cache_writes}, {**main_call, "type": "message"}]},
    )

    assert usage.cache == CacheUsage(uncached=329, read=55_000, written_1h=96)
    assert usage.output_tokens == 136


def test_usage_is_found_where_each_host_puts_it() -> None:
    usage_block = {"prompt_tokens": 20, "completion_tokens": 2}
    expected = CacheUsage(uncached=20)
    for reply in (
        {"usage": usage_block},
        {"usage": None, "x_groq": {"id": "req", "usage": usage_block}},
        {"usage": None, "choices": [{"index": 0, "delta": {}, "usage": usage_block}]},
        {"meta": {"api_version": {}, "billed_units": {"input_tokens": 20}}},
        {"type": "response.done", "response": {"id": "resp", "usage": usage_block}},
        {"success": True, "result": {"response": "Hi", "usage": usage_block}},
    ):
        usage = read_response_usage(Format.CHAT, json.dumps(reply).encode())
        assert usage is not None
        assert usage.cache == expected
    with_timings = {"usage": usage_block, "timings": {"cache_n": 15, "prompt_n": 5}}
    usage = read_response_usage(Format.CHAT, json.dumps(with_timings).encode())
    assert usage is not None
    assert usage.cache == CacheUsage(uncached=5, read=15)
    gemini_list = [{"usageMetadata": {"promptTokenCount": 3}}, {"usageMetadata": {"promptTokenCount": 4}}, {}]
    usage = read_response_usage(Format.GEMINI, json.dumps(gemini_list).encode())
    assert usage is not None
    assert usage.cache == CacheUsage(uncached=4)


@pytest.mark.parametrize(
    "reply", [b"", b"Bad Gateway", b"[]", b"null", b"{", b'{"usage": 3}', b'{"usage": {}}', b"[3]"]
)
@pytest.mark.parametrize("api_format", Format)
def test_a_response_without_usage_has_none(api_format: Format, reply: bytes) -> None:
    assert read_response_usage(api_format, reply) is None


_FIELD_NAMES = """
input_tokens output_tokens total_tokens prompt_tokens completion_tokens cache_read_input_tokens
cache_creation_input_tokens cache_creation ephemeral_5m_input_tokens ephemeral_1h_input_tokens iterations type
output_tokens_details thinking_tokens prompt_tokens_details prompt_token_details cached_tokens
cache_write_tokens completion_tokens_details reasoning_tokens prompt_cache_hit_tokens prompt_cache_miss_tokens
num_cached_tokens citation_tokens input_token_details cost_in_usd_ticks total_cost
timings cache_n prompt_n predicted_n input_tokens_details promptTokenCount totalTokenCount
candidatesTokenCount thoughtsTokenCount toolUsePromptTokenCount cachedContentTokenCount inputTokens outputTokens
totalTokens cacheReadInputTokens cacheWriteInputTokens cacheDetails ttl tokens billed_units cost is_byok
cost_details upstream_inference_cost usage usageMetadata x_groq choices meta
"""
FIELD_NAMES = _FIELD_NAMES.split()
json_leaves = (
    st.none()
    | st.booleans()
    | st.integers(-5, 2_000)
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["12", "compaction", "message", "1h", ""])
)
json_values = st.recursive(
    json_leaves,
    lambda children: (
        st.lists(children, max_size=2) | st.dictionaries(st.sampled_from(FIELD_NAMES), children, max_size=6)
    ),
    max_leaves=20,
)


@pytest.mark.slow
@given(
    api_format=st.sampled_from(list(Format)),
    raw_usage=st.dictionaries(st.sampled_from(FIELD_NAMES), json_values, max_size=10),
)
def test_any_usage_is_read_into_possible_numbers(api_format: Format, raw_usage: dict[str, Any]) -> None:
    raw_bytes = json.dumps(raw_usage).encode()
    for usage in (parse_usage(api_format, raw_bytes), read_response_usage(api_format, raw_bytes)):
        if usage is not None:
            cache = usage.cache
            parts = (cache.uncached, cache.read, cache.written_5m, cache.written_1h)
            assert all(type(part) is int and part >= 0 for part in (*parts, usage.output_tokens))
            assert cache.read <= cache.input_tokens
            assert 0 <= usage.reasoning_tokens <= usage.output_tokens


@given(
    prompt=st.integers(0, 1_000),
    output=st.integers(0, 1_000),
    cached=st.integers(0, 2_000),
    cache_writes=st.integers(0, 2_000),
    reasoning=st.integers(0, 2_000),
)
def test_parts_never_exceed_their_total(
    prompt: int, output: int, cached: int, cache_writes: int, reasoning: int
) -> None:
    details = {"cached_tokens": cached, "cache_write_tokens": cache_writes}
    output_details = {"reasoning_tokens": reasoning}
    for api_format, raw_usage in (
        (
            Format.CHAT,
            {
                "prompt_tokens": prompt,
                "prompt_tokens_details": details,
                "completion_tokens": output,
                "completion_tokens_details": output_details,
            },
        ),
        (
            Format.RESPONSES,
            {
                "input_tokens": prompt,
                "input_tokens_details": details,
                "output_tokens": output,
                "output_tokens_details": output_details,
            },
        ),
    ):
        usage = read_usage(api_format, raw_usage)

        assert usage.cache.input_tokens == prompt
        assert usage.cache.read == min(cached, prompt)
        assert usage.cache.written_5m == min(cache_writes, prompt - usage.cache.read)
        assert usage.cache.uncached >= 0
        assert (usage.output_tokens, usage.reasoning_tokens) == (output, min(reasoning, output))


def test_a_null_number_is_missing_and_derived_from_the_total() -> None:
    missing = None
    chat = {"prompt_tokens": missing, "completion_tokens": 4, "prompt_tokens_details": missing}
    responses = {
        "input_tokens": 9,
        "output_tokens": missing,
        "input_tokens_details": {"cached_tokens": missing},
    }

    assert read_usage(Format.CHAT, chat).cache == CacheUsage()
    assert read_usage(Format.CHAT, {**chat, "total_tokens": 10}).cache == CacheUsage(uncached=6)
    assert read_usage(Format.RESPONSES, responses).output_tokens == 0
    assert read_usage(Format.RESPONSES, {**responses, "total_tokens": 10}).output_tokens == 1
    assert read_usage(Format.RESPONSES, responses).cache == CacheUsage(uncached=9)
    assert read_usage(Format.ANTHROPIC, {"input_tokens": 9, "output_tokens": missing}).cache == CacheUsage(
        uncached=9
    )
    assert read_usage(Format.CHAT, {"prompt_tokens": 9.0}).cache == CacheUsage(uncached=9)


ABSURD_NUMBERS = ["7", -3, 1.5, True, [], {}, 10**9 + 1, 10**12, 10**30, float("nan"), float("inf"), 1e300]
USAGES_WITH_PLACEHOLDER: list[tuple[Format, str, dict[str, Any]]] = [
    (Format.ANTHROPIC, "usage", {"input_tokens": ..., "output_tokens": 4}),
    (Format.ANTHROPIC, "usage", {"input_tokens": 9, "output_tokens": ...}),
    (Format.ANTHROPIC, "usage", {"input_tokens": 9, "output_tokens": 4, "cache_read_input_tokens": ...}),
    (Format.ANTHROPIC, "usage", {"output_tokens": 4, "server_tool_use": {"web_search_requests": ...}}),
    (Format.CHAT, "usage", {"prompt_tokens": 9, "completion_tokens": 4, "num_search_queries": ...}),
    (Format.CHAT, "usage", {"prompt_tokens": ..., "completion_tokens": 4, "total_tokens": 13}),
    (Format.CHAT, "usage", {"prompt_tokens": 9, "completion_tokens": ...}),
    (Format.CHAT, "usage", {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": ...}}),
    (Format.CHAT, "usage", {"prompt_tokens": ..., "cost": 0.25}),
    (Format.RESPONSES, "usage", {"input_tokens": 9, "output_tokens": ..., "total_tokens": 13}),
    (Format.GEMINI, "usageMetadata", {"promptTokenCount": ..., "candidatesTokenCount": 4}),
    (Format.GEMINI, "usageMetadata", {"promptTokenCount": 9, "candidatesTokenCount": ...}),
    (Format.BEDROCK, "usage", {"inputTokens": ..., "outputTokens": 4}),
]


@pytest.mark.parametrize("number", ABSURD_NUMBERS, ids=repr)
@pytest.mark.parametrize(("api_format", "field", "usage"), USAGES_WITH_PLACEHOLDER)
def test_absurd_usage_is_unknown_and_keeps_its_raw_block(
    api_format: Format, field: str, usage: dict[str, Any], number: Any
) -> None:
    def fill(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: fill(child) for name, child in part.items()}
        return number if part is ... else part

    raw_usage = json.dumps(fill(usage))
    parsed = read_response_usage(api_format, f'{{"{field}": {raw_usage}}}'.encode())
    assert parsed == Usage(cache=CacheUsage(), raw=raw_usage.encode(), is_unreadable=True)
    assert parsed is not None
    assert parsed.is_empty

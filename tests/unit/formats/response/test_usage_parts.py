"""Stated prices, service tiers, other units, and calls within a call."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.formats.response.streaming import StreamReader
from foveate.formats.response.usage import (
    BillableUnit,
    UsagePart,
    parse_usage,
    read_response_usage,
    split_usage,
)
from foveate.model import CacheUsage, Format, Usage
from tests.support.scenarios.streams import frame


def read_usage(api_format: Format, raw_usage: dict[str, Any]) -> Usage:
    usage = parse_usage(api_format, json.dumps(raw_usage).encode())
    assert usage is not None
    return usage


def read_only_part(api_format: Format, raw_usage: dict[str, Any]) -> UsagePart:
    (part,) = split_usage(read_usage(api_format, raw_usage))
    return part


def test_the_price_stated_by_openrouter_is_exact() -> None:
    usage = {"prompt_tokens": 1, "cost": 0.00341475, "is_byok": False}
    own_key_usage = {
        **usage,
        "cost": 0,
        "is_byok": True,
        "cost_details": {"upstream_inference_cost": 0.0003253},
    }

    assert read_usage(Format.CHAT, usage).reported_dollars == Decimal("0.00341475")
    assert read_usage(Format.CHAT, own_key_usage).reported_dollars == Decimal("0.0003253")
    for wrong_cost in (
        {"cost": -1},
        {"cost": "1"},
        {"cost": None},
        {"cost": True},
        {"cost": 1, "is_byok": True},
    ):
        assert read_usage(Format.CHAT, {"prompt_tokens": 1, **wrong_cost}).reported_dollars is None


def test_prices_stated_by_other_providers_are_read_too() -> None:
    ticks_usage = {"prompt_tokens": 1, "cost_in_usd_ticks": 37_756_001}
    perplexity_usage = {"prompt_tokens": 1, "cost": {"request_cost": 0.006, "total_cost": 0.00725}}

    assert read_usage(Format.CHAT, ticks_usage).reported_dollars == Decimal("0.0037756001")
    assert read_usage(Format.CHAT, perplexity_usage).reported_dollars == Decimal("0.00725")
    wrong_cost: dict[str, Any]
    for wrong_cost in ({"cost": {}}, {"cost": {"total_cost": "1"}}, {"cost_in_usd_ticks": -1}):
        assert read_usage(Format.CHAT, {"prompt_tokens": 1, **wrong_cost}).reported_dollars is None


@pytest.mark.parametrize(
    ("cost", "dollars"),
    [
        ("0.1234567890123456789012345678901", "0.1234567890123456789012345678901"),
        ("1.50e-3", "0.00150"),
        ('{"total_cost": 0.1234567890123456789}', "0.1234567890123456789"),
        (
            '0.1234567890123456789, "is_byok": true, "cost_details": {"upstream_inference_cost": 1e-30}',
            "0.123456789012345678900000000001",
        ),
        ("1e300", None),
        ("1e-300", None),
        ("1" + "0" * 60, None),
        ("[1]", None),
    ],
)
def test_a_stated_price_never_becomes_a_float(cost: str, dollars: str | None) -> None:
    usage = parse_usage(Format.CHAT, f'{{"prompt_tokens": 1, "cost": {cost}}}'.encode())

    assert usage is not None
    assert usage.reported_dollars == (None if dollars is None else Decimal(dollars))


def test_the_service_tier_is_read_wherever_providers_report_it() -> None:
    chat, gemini = {"prompt_tokens": 1}, {"promptTokenCount": 1}
    for reply, tier in (
        ({"usage": chat, "service_tier": "flex"}, "flex"),
        ({"usage": chat, "service_tier": None}, ""),
        ({"usage": chat, "service_tier": ["flex"]}, ""),
        ({"usage": {"input_tokens": 1, "service_tier": "batch"}}, "batch"),
        ({"usage": {"input_tokens": 1, "service_tier": "standard", "speed": "fast"}}, "fast"),
        ({"usageMetadata": {**gemini, "serviceTier": "priority"}}, "priority"),
        ({"usageMetadata": {**gemini, "trafficType": "ON_DEMAND_FLEX"}}, "ON_DEMAND_FLEX"),
    ):
        usage = read_response_usage(Format.CHAT, json.dumps(reply).encode())
        assert usage is not None
        assert usage.tier == tier


def test_usage_without_a_raw_block_is_one_call() -> None:
    usage = Usage(cache=CacheUsage(uncached=3), output_tokens=2)

    assert split_usage(usage) == (UsagePart(usage=usage),)
    assert split_usage(Usage(cache=CacheUsage(), raw=b"not json")) == (
        UsagePart(usage=Usage(cache=CacheUsage(), raw=b"not json")),
    )


MAIN_USAGE = {"input_tokens": 200, "output_tokens": 20, "cache_read_input_tokens": 1_000}
ADVISOR_USAGE = {
    "type": "advisor_message",
    "model": "claude-opus-4-8",
    "input_tokens": 2_500,
    "output_tokens": 22,
}
COMPACTION_USAGE = {
    "type": "compaction",
    "input_tokens": 100,
    "output_tokens": 80,
    "cache_creation_input_tokens": 55,
}


def test_inner_calls_are_separated_and_add_up_to_the_usage() -> None:
    iterations = [{**MAIN_USAGE, "type": "message"}, ADVISOR_USAGE, COMPACTION_USAGE]
    usage = read_usage(Format.ANTHROPIC, {**MAIN_USAGE, "iterations": iterations, "service_tier": "batch"})

    main, advisor, compaction = split_usage(usage)

    assert main.usage.cache == CacheUsage(uncached=200, read=1_000)
    assert (main.model, main.usage.output_tokens) == ("", 20)
    assert (advisor.model, advisor.usage.cache.uncached) == ("claude-opus-4-8", 2_500)
    assert (compaction.model, compaction.usage.cache.written_5m) == ("", 55)
    assert {part.usage.tier for part in (main, advisor, compaction)} == {"batch"}
    assert sum(part.usage.output_tokens for part in (main, advisor, compaction)) == usage.output_tokens
    assert (
        sum(part.usage.cache.input_tokens for part in (main, advisor, compaction)) == usage.cache.input_tokens
    )


def test_a_call_of_another_model_is_subtracted_from_the_totals() -> None:
    fallback = {"type": "fallback_message", "model": "claude-opus-4-8", "input_tokens": 150, "output_tokens": 5}

    main, fallback_part = split_usage(read_usage(Format.ANTHROPIC, {**MAIN_USAGE, "iterations": [fallback]}))

    assert (main.usage.cache.uncached, main.usage.output_tokens) == (50, 15)
    assert (fallback_part.usage.cache.uncached, fallback_part.usage.output_tokens) == (150, 5)


def test_cohere_charges_for_fewer_tokens_than_its_model_reads() -> None:
    part = read_only_part(
        Format.CHAT,
        {
            "billed_units": {"input_tokens": 11, "output_tokens": 4, "search_units": 1},
            "tokens": {"input_tokens": 507, "output_tokens": 9},
        },
    )

    assert (part.usage.cache, part.usage.output_tokens) == (CacheUsage(uncached=11), 4)
    assert part.units == ((BillableUnit.RERANKS, 1),)


@pytest.mark.parametrize(
    ("api_format", "raw_usage", "units"),
    [
        pytest.param(
            Format.ANTHROPIC,
            {"input_tokens": 9, "output_tokens": 1, "server_tool_use": {"web_search_requests": 2}},
            {BillableUnit.WEB_SEARCHES: 2},
            id="anthropic, searches",
        ),
        pytest.param(
            Format.CHAT,
            {
                "prompt_tokens": 100,
                "completion_tokens": 50,
                "prompt_tokens_details": {"audio_tokens": 70, "cached_tokens": 40, "image_tokens": 0},
                "completion_tokens_details": {"audio_tokens": 45},
            },
            {BillableUnit.INPUT_AUDIO: 60, BillableUnit.READ_AUDIO: 10, BillableUnit.OUTPUT_AUDIO: 45},
            id="openai, audio; cached tokens are assumed to be text first",
        ),
        pytest.param(
            Format.CHAT,
            {
                "input_tokens": 100,
                "output_tokens": 50,
                "input_token_details": {
                    "audio_tokens": 70,
                    "cached_tokens": 40,
                    "cached_tokens_details": {"audio_tokens": 25, "text_tokens": 15},
                },
                "output_token_details": {"audio_tokens": 45, "text_tokens": 5},
            },
            {BillableUnit.INPUT_AUDIO: 45, BillableUnit.READ_AUDIO: 25, BillableUnit.OUTPUT_AUDIO: 45},
            id="openai, speech",
        ),
        pytest.param(
            Format.GEMINI,
            {
                "promptTokenCount": 1_000,
                "cachedContentTokenCount": 300,
                "toolUsePromptTokenCount": 20,
                "candidatesTokenCount": 90,
                "promptTokensDetails": [
                    {"modality": "TEXT", "tokenCount": 100},
                    {"modality": "AUDIO", "tokenCount": 500},
                    {"modality": "DOCUMENT", "tokenCount": 150},
                    {"modality": "IMAGE", "tokenCount": 250},
                    {"modality": "VIDEO"},
                ],
                "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 300}],
                "toolUsePromptTokensDetails": [{"modality": "AUDIO", "tokenCount": 20}],
                "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 90}],
            },
            {
                BillableUnit.INPUT_AUDIO: 220,
                BillableUnit.INPUT_IMAGE: 400,
                BillableUnit.READ_AUDIO: 300,
                BillableUnit.OUTPUT_IMAGE: 90,
            },
            id="gemini, by modality",
        ),
        pytest.param(
            Format.CHAT,
            {"prompt_tokens": 9, "completion_tokens": 9, "num_search_queries": 3, "citation_tokens": 70},
            {BillableUnit.CITATIONS: 70, BillableUnit.SEARCH_QUERIES: 3},
            id="perplexity",
        ),
    ],
)
def test_other_billable_units_are_found_for_each_provider(
    api_format: Format, raw_usage: dict[str, Any], units: dict[BillableUnit, int]
) -> None:
    assert dict(read_only_part(api_format, raw_usage).units) == units


SEARCH_CALL = {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}
OPENED_PAGE = {"type": "web_search_call", "status": "completed", "action": {"type": "open_page", "url": "u"}}
MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "a web_search_call"}]}


@pytest.mark.parametrize(
    ("fields", "searches"),
    [
        ({"tool_usage": {"web_search": {"num_requests": 2}}, "output": [SEARCH_CALL] * 3}, 2),
        ({"tool_usage": {"web_search": {"num_requests": 0}}, "output": [SEARCH_CALL]}, 0),
        ({"tool_usage": None, "output": [SEARCH_CALL, OPENED_PAGE, MESSAGE, SEARCH_CALL]}, 2),
        ({"output": [{"type": "web_search_call", "status": "completed"}]}, 1),
        ({"output": [SEARCH_CALL | {"status": "failed"}]}, 0),
        ({"output": [MESSAGE]}, 0),
        ({"output": []}, 0),
        ({}, 0),
    ],
)
def test_web_searches_of_openai_responses_are_counted(fields: dict[str, Any], searches: int) -> None:
    response = {"object": "response", "usage": {"input_tokens": 9, "output_tokens": 1}, **fields}
    completed_event = {"type": "response.completed", "response": response}
    stream = StreamReader(Format.RESPONSES)
    stream.feed(b"event: response.completed\ndata: " + json.dumps(completed_event).encode() + b"\n\n")

    for usage in (
        read_response_usage(Format.RESPONSES, json.dumps(response).encode()),
        read_response_usage(Format.RESPONSES, json.dumps(completed_event).encode()),
        stream.usage,
    ):
        assert usage is not None
        (part,) = split_usage(usage)
        assert usage.cache == CacheUsage(uncached=9)
        assert part.units == (((BillableUnit.WEB_SEARCHES, searches),) if searches else ())


def test_file_searches_of_openai_responses_are_counted() -> None:
    file_search = {"type": "file_search_call", "status": "completed", "queries": ["q"], "results": None}
    response = {
        "usage": {"input_tokens": 9, "output_tokens": 1},
        "output": [file_search, MESSAGE, file_search, file_search | {"status": "failed"}, SEARCH_CALL],
    }

    usage = read_response_usage(Format.RESPONSES, json.dumps(response).encode())

    assert usage is not None
    assert dict(split_usage(usage)[0].units) == {BillableUnit.WEB_SEARCHES: 1, BillableUnit.FILE_SEARCHES: 2}


def test_an_impossible_number_of_searches_makes_the_usage_unreadable() -> None:
    response = b'{"usage": {"input_tokens": 9}, "tool_usage": {"web_search": {"num_requests": -1}}}'

    usage = read_response_usage(Format.RESPONSES, response)

    assert usage is not None
    assert usage.is_unreadable


def test_searches_that_the_usage_itself_has_are_not_counted_again() -> None:
    raw_usage = {"input_tokens": 9, "output_tokens": 1, "tool_calls_details": {"search_web": {"invocation": 3}}}
    response = json.dumps({"usage": raw_usage, "output": [SEARCH_CALL]}).encode()

    usage = read_response_usage(Format.RESPONSES, response)

    assert usage is not None
    assert split_usage(usage)[0].units == ((BillableUnit.WEB_SEARCHES, 3),)


@pytest.mark.parametrize(
    ("model", "searches"),
    [("gpt-4o-mini-search-preview-2025-03-11", 1), ("gpt-5-search-api", 1), ("gpt-5.5", 0), (None, 0)],
)
def test_a_chat_with_a_search_model_of_openai_is_one_search(model: str | None, searches: int) -> None:
    response = {"model": model, "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}

    usage = read_response_usage(Format.CHAT, json.dumps(response).encode())

    assert usage is not None
    assert dict(split_usage(usage)[0].units).get(BillableUnit.WEB_SEARCHES, 0) == searches


def test_the_service_tier_of_bedrock_is_outside_of_the_usage() -> None:
    usage = {"inputTokens": 5, "outputTokens": 2, "totalTokens": 7}
    response = {"output": {}, "usage": usage, "serviceTier": {"type": "priority"}}
    read = read_response_usage(Format.BEDROCK, json.dumps(response).encode())
    stream = StreamReader(Format.BEDROCK)
    stream.feed(frame(b"metadata", json.dumps({"usage": usage, "serviceTier": {"type": "flex"}}).encode()))

    assert read is not None
    assert read.tier == "priority"
    assert stream.usage is not None
    assert (stream.usage.tier, stream.usage.output_tokens) == ("flex", 2)


def test_the_region_of_a_call_is_read() -> None:
    assert read_only_part(Format.ANTHROPIC, {"input_tokens": 9, "inference_geo": "us"}).region == "us"


media_details = st.fixed_dictionaries(
    {}, optional={f"{name}_tokens": st.integers(0, 50) for name in ("audio", "image")}
)


@given(
    prompt=st.integers(0, 100),
    cached=st.integers(0, 120),
    details=media_details,
    output_details=media_details,
    seed=st.randoms(),
)
def test_media_units_never_exceed_their_tokens_in_any_order(
    prompt: int, cached: int, details: dict[str, int], output_details: dict[str, int], seed: Any
) -> None:
    raw_usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": 40,
        "prompt_tokens_details": {**details, "cached_tokens": cached},
        "completion_tokens_details": output_details,
    }
    field_names = list(raw_usage)
    seed.shuffle(field_names)

    part = read_only_part(Format.CHAT, raw_usage)

    units = dict(part.units)
    input_units = sum(count for unit, count in units.items() if unit.startswith("input_"))
    read_units = sum(count for unit, count in units.items() if unit.startswith("read_"))
    assert input_units <= part.usage.cache.uncached
    assert read_units <= part.usage.cache.read
    assert input_units + read_units == min(sum(details.values()), prompt)
    assert sum(count for unit, count in units.items() if unit.startswith("output_")) <= 40
    assert read_only_part(Format.CHAT, {name: raw_usage[name] for name in field_names}).units == part.units

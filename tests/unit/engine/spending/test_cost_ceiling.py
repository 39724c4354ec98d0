"""Cost ceilings: the provider never charges more, whatever the request contains."""

import json
from decimal import Decimal
from typing import Any

import pytest

from foveate import formats
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.options import AgentOptions
from foveate.engine.request import IncomingRequest
from foveate.engine.request_context import RequestContext
from foveate.engine.spending.cost_ceiling import (
    CostCeiling,
    CostParameters,
    compute_cost_ceiling,
    max_breakpoint_ttl,
    read_cost_parameters,
)
from foveate.model import Format, TokenCount, Ttl
from foveate.tokens import counter_for

COUNT = TokenCount(tokens=1_000, exact=False, upper=1_200)


def read_parameters(api_format: Format = Format.CHAT, **fields: Any) -> CostParameters:
    return read_cost_parameters(formats.parse_request(_make_body(api_format, fields), api_format))


def make_ceiling(
    window_tokens: int | None, api_format: Format = Format.CHAT, **fields: Any
) -> CostCeiling | None:
    request = formats.parse_request(_make_body(api_format, fields), api_format)
    return compute_cost_ceiling(
        request, COUNT, provider="openai", window_tokens=window_tokens, ttl=Ttl.ONE_HOUR, at=1.8e9
    )


def _make_body(api_format: Format, fields: dict[str, Any]) -> bytes:
    messages = "input" if api_format is Format.RESPONSES else "messages"
    return json.dumps({"model": "gpt-5", messages: [{"role": "user", "content": "Hi"}], **fields}).encode()


@pytest.mark.parametrize(
    ("fields", "limit_tokens"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 100_000.0}, 100_000),
        ({"max_tokens": "32000"}, 32_000),
        ({"max_completion_tokens": 10, "max_tokens": 32_000}, 32_000),
        ({"max_completion_tokens": 32_000, "max_tokens": 10}, 32_000),
        ({"max_completion_tokens": None, "max_tokens": 10}, 10),
        ({"max_completion_tokens": "many", "max_tokens": 10}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": 1.5}, None),
        ({}, None),
    ],
)
def test_the_largest_limit_counts_and_an_invalid_one_is_none(
    fields: dict[str, Any], limit_tokens: int | None
) -> None:
    assert read_parameters(**fields).output_tokens == limit_tokens
    assert read_parameters(Format.ANTHROPIC, **fields).output_tokens == limit_tokens


def test_anthropic_writes_nothing_with_a_limit_of_zero() -> None:
    """Defect: a request that only fills the cache reserved the longest output of its model."""
    ceiling = make_ceiling(200_000, Format.ANTHROPIC, model="claude-opus-4-5", max_tokens=0)

    assert ceiling is not None
    assert ceiling.output_tokens == 0
    assert read_parameters(Format.ANTHROPIC, max_tokens=False).output_tokens is None
    assert read_parameters(max_tokens=0).output_tokens is None


def test_tier_and_region_are_in_the_providers_words() -> None:
    assert read_parameters(service_tier="priority").tier == "priority"
    assert read_parameters(Format.ANTHROPIC, speed="fast", service_tier="auto").tier == "fast"
    assert read_parameters(Format.ANTHROPIC, inference_geo="us").region == "us"
    assert (read_parameters().tier, read_parameters().region) == ("", None)


def test_every_choice_is_charged() -> None:
    eight_choices, invalid_choices = (
        make_ceiling(None, n=8, max_tokens=100),
        make_ceiling(None, n="all", max_tokens=100),
    )

    assert eight_choices is not None
    assert eight_choices.output_tokens == 800
    assert invalid_choices is None


@pytest.mark.parametrize(
    ("window_tokens", "output_tokens"), [(1_000_000, 999_200), (16_000, 16_000), (None, 128_000)]
)
def test_without_a_limit_the_output_of_an_unknown_model_may_fill_the_window(
    window_tokens: int | None, output_tokens: int
) -> None:
    ceiling = make_ceiling(window_tokens, model="my-model")

    assert ceiling is not None
    assert (ceiling.input_tokens, ceiling.output_tokens) == (1_200, output_tokens)


@pytest.mark.parametrize(
    ("model", "output_tokens"), [("gpt-5", 128_000), ("gpt-4.1-mini", 32_768), ("gpt-4o-2024-11-20", 16_384)]
)
def test_without_a_limit_the_output_is_bounded_by_the_model(model: str, output_tokens: int) -> None:
    """Defect: it was the rest of the window, so that a small cap had no room for one short question."""
    ceiling = make_ceiling(1_000_000, model=model)

    assert ceiling is not None
    assert ceiling.output_tokens == output_tokens


def test_a_limit_is_bounded_by_the_maximum_output_of_the_model() -> None:
    for limit, output_tokens in ((1_000_000, 128_000), (100, 100)):
        fields = {"model": "gpt-5", "max_completion_tokens": limit, "messages": []}
        ceiling = compute_cost_ceiling(
            formats.parse_request(json.dumps(fields).encode(), Format.CHAT),
            TokenCount(1_000, True, 1_000),
            provider="openai",
            window_tokens=None,
            ttl=None,
            at=0.0,
        )
        assert ceiling is not None
        assert ceiling.output_tokens == output_tokens


@pytest.mark.parametrize("name", ["previous_response_id", "conversation", "prompt"])
def test_input_added_by_the_provider_may_fill_the_window(name: str) -> None:
    ceiling = make_ceiling(50_000, Format.RESPONSES, max_output_tokens=9, **{name: "kept_1"})

    assert ceiling is not None
    assert ceiling.input_tokens == 50_000
    assert make_ceiling(None, Format.RESPONSES, **{name: "kept_1"}) is None


WINDOW_TOKENS = 200_000
BY_URL = {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}}
BY_ID = {"type": "document", "source": {"type": "file", "file_id": "file_1"}}
SEARCH_RESULT = {
    "type": "web_search_tool_result",
    "content": [{"type": "web_search_result", "encrypted_content": "x"}],
}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
FETCH = {"type": "web_fetch_20250910", "name": "web_fetch"}
CLEAR_THINKING = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
SUMMARIZE = {"edits": [{"type": "compact_20260112"}]}


def input_windows(
    model: str, api_format: Format, fields: dict[str, Any], window_tokens: int | None = WINDOW_TOKENS
) -> Any:
    """Number of full windows of input that are reserved; None if unknown."""
    request = formats.parse_request(_make_body(api_format, {"model": model, **fields}), api_format)
    count = counter_for(model).count_request(request)
    ceiling = compute_cost_ceiling(
        request,
        count.total,
        provider="anthropic" if api_format is Format.ANTHROPIC else "openai",
        window_tokens=window_tokens,
        ttl=None,
        at=1.8e9,
        unexplained=count.unexplained,
    )
    return None if ceiling is None else ceiling.input_tokens // WINDOW_TOKENS


def user_messages(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*blocks, {"type": "text", "text": "Sum it up."}]}]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 0),
        ({"messages": user_messages(BY_URL)}, 1),
        ({"messages": user_messages(BY_ID)}, 1),
        ({"messages": user_messages(SEARCH_RESULT)}, 1),
        (
            {
                "messages": user_messages(
                    {"type": "image", "source": {"type": "url", "url": "https://example.com/a"}}
                )
            },
            0,
        ),
        ({"container": "container_1"}, 1),
        ({"mcp_servers": []}, 0),
        ({"mcp_servers": [{"type": "url", "url": "https://example.com", "name": "x"}]}, 11),
        ({"tools": [{**SEARCH, "max_uses": 3}]}, 4),
        ({"tools": [{**SEARCH, "max_uses": 3}, {**FETCH, "max_uses": 2}]}, 6),
        ({"tools": [SEARCH, FETCH]}, 11),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 0),
        ({"context_management": CLEAR_THINKING}, 0),
        ({"context_management": SUMMARIZE}, 2),
    ],
)
def test_fetched_input_may_fill_the_window_in_every_pass(fields: dict[str, Any], expected: int) -> None:
    """Defect: for a document by URL, or for searches, only the tokens of the request were reserved."""
    assert input_windows("claude-sonnet-4-6", Format.ANTHROPIC, fields) == expected
    assert input_windows("claude-sonnet-4-6", Format.ANTHROPIC, fields, None) == (None if expected else 0)


@pytest.mark.parametrize(
    ("api_format", "fields", "expected"),
    [
        (Format.CHAT, {"web_search_options": {}}, 1),
        (Format.CHAT, {"web_search_options": None}, 0),
        (Format.CHAT, {"plugins": [{"id": "web"}]}, 1),
        (Format.CHAT, {"data_sources": [{"type": "azure_search"}]}, 1),
        (Format.RESPONSES, {"tools": [{"type": "web_search"}, {"type": "file_search"}]}, 11),
        (Format.RESPONSES, {"tools": [{"type": "web_search"}], "max_tool_calls": 2}, 3),
        (Format.RESPONSES, {"tools": [{"type": "mcp", "server_url": "https://x"}], "max_tool_calls": 2}, 11),
        (Format.RESPONSES, {"tools": [{"type": "local_shell"}, {"type": "apply_patch"}]}, 0),
        (Format.RESPONSES, {"conversation": {}}, 1),
        (Format.RESPONSES, {"previous_response_id": ""}, 0),
    ],
)
def test_input_added_by_openai_is_recognised_for_an_empty_object_too(
    api_format: Format, fields: dict[str, Any], expected: int
) -> None:
    """Defect: `"web_search_options": {}` was ignored."""
    assert input_windows("gpt-5", api_format, fields) == expected


def test_a_client_tool_includes_the_providers_definition() -> None:
    without_tools = make_ceiling(None, Format.RESPONSES, max_output_tokens=9)
    with_tool = make_ceiling(None, Format.RESPONSES, max_output_tokens=9, tools=[{"type": "local_shell"}])

    assert without_tools is not None
    assert with_tool is not None
    assert 0 <= with_tool.input_tokens - without_tools.input_tokens < 5_000


def test_searches_are_charged_individually() -> None:
    def dollars(searches: int) -> Any:
        return PriceBook().ceiling(
            "claude-sonnet-4-6",
            provider="anthropic",
            input_tokens=10,
            output_tokens=10,
            at=1.8e9,
            searches=searches,
        )

    ceiling = make_ceiling(100, Format.ANTHROPIC, max_tokens=9, tools=[{**SEARCH, "max_uses": 3}])
    assert ceiling is not None
    assert ceiling.searches == 3
    assert dollars(3) - dollars(0) == 3 * Decimal("0.01")


@pytest.mark.parametrize(
    ("configured_tokens", "betas", "max_window_tokens"),
    [
        (None, "", 200_000),
        (50_000, "", 200_000),
        (300_000, "", 300_000),
        (None, "context-1m-2025-08-07", 10**6),
    ],
)
def test_input_is_bounded_by_the_providers_own_window(
    configured_tokens: int | None, betas: str, max_window_tokens: int
) -> None:
    body = _make_body(Format.ANTHROPIC, {"model": "claude-sonnet-4-5"})
    request = formats.parse_request(body, Format.ANTHROPIC)
    incoming = IncomingRequest(
        id="r", agent="a", api_format=request.format, provider="anthropic", upstream="a", body=body, betas=betas
    )
    options = AgentOptions(window_tokens=configured_tokens)
    context = RequestContext(
        incoming=incoming, options=options, received_at=1.0, original=request, request=request
    )

    assert context.max_window_tokens == max_window_tokens


@pytest.mark.parametrize(
    "cache_control",
    [
        rb'"cache_control":{"type":"ephemeral","ttl":"1h"}',
        rb'"cache_control":{"type":"ephemeral","\u0074tl":"1h"}',
        rb'"cache_control":{"type":"ephemeral","t\u0074\u006C":"1h"}',
        rb'"cache\u005Fcontrol":{"\u0074ype":"ephemeral","tt\u006c":"\u0031h"}',
    ],
)
def test_a_breakpoint_is_found_however_its_name_is_spelled(cache_control: bytes) -> None:
    """Defect: a breakpoint for an hour was reserved as one for five minutes if its name had an escape."""
    block = b'{"type":"text","text":"Hi",' + cache_control + b"}"
    body = b'{"model":"claude-opus-4-5","messages":[{"role":"user","content":[' + block + b"]}]}"

    assert max_breakpoint_ttl(formats.parse_request(body, Format.ANTHROPIC)) is Ttl.ONE_HOUR


def test_tier_region_and_ttl_are_in_the_price() -> None:
    prices, default_tier = PriceBook(), make_ceiling(None, max_tokens=1_000)
    priority_tier = make_ceiling(None, max_tokens=1_000, service_tier="priority")

    assert default_tier is not None
    assert priority_tier is not None
    assert priority_tier.ttl is Ttl.ONE_HOUR
    default_dollars, priority_dollars = default_tier.dollars(prices), priority_tier.dollars(prices)
    assert default_dollars is not None
    assert priority_dollars is not None
    assert priority_dollars > default_dollars > 0


@pytest.mark.parametrize(
    ("config", "limit_tokens", "choices"),
    [
        ({"maxOutputTokens": 7}, 7, 1),
        ({"max_output_tokens": 7, "candidateCount": 3}, 7, 3),
        ({"maxOutputTokens": "many"}, None, 1),
        ({"candidate_count": "many"}, None, None),
        ({}, None, 1),
    ],
)
def test_gemini_has_its_limits_inside_a_configuration(
    config: dict[str, Any], limit_tokens: int | None, choices: int | None
) -> None:
    contents = [{"role": "user", "parts": [{"text": "Hi"}]}]
    body: dict[str, Any] = {"contents": contents, "generationConfig": config, "serviceTier": "flex"}
    wrapped = {"generateContentRequest": body}

    for fields in (body, wrapped):
        parameters = read_cost_parameters(
            formats.parse_request(json.dumps(fields).encode(), Format.GEMINI, model="gemini-3-pro")
        )
        assert (parameters.output_tokens, parameters.choices, parameters.tier) == (
            limit_tokens,
            choices,
            "flex",
        )


def test_bedrock_has_its_limit_inside_a_configuration() -> None:
    body = {"messages": [{"role": "user", "content": [{"text": "Hi"}]}], "inferenceConfig": {"maxTokens": 7}}

    assert (
        read_cost_parameters(formats.parse_request(json.dumps(body).encode(), Format.BEDROCK)).output_tokens
        == 7
    )

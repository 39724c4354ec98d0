"""Features of requests whose cost is unknown, and ceilings of those whose cost is known."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foveate import formats
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.spending.cost_ceiling import CostCeiling, compute_cost_ceiling, unknown_features
from foveate.formats.response.usage import BillableUnit
from foveate.model import Format
from foveate.tokens import counter_for

PRICES = PriceBook()
_MINIMAL_BODIES: dict[Format, dict[str, Any]] = {
    Format.CHAT: {"model": "gpt-5", "messages": [{"role": "user", "content": "Hi"}]},
    Format.RESPONSES: {"model": "gpt-5", "input": [{"role": "user", "content": "Hi"}]},
    Format.ANTHROPIC: {
        "model": "claude-opus-4-5",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hi"}],
    },
    Format.GEMINI: {"model": "gemini-2.5-flash", "contents": [{"parts": [{"text": "Hi"}]}]},
    Format.BEDROCK: {"modelId": "anthropic.claude-opus-4-5", "messages": [{"role": "user", "content": []}]},
}


def list_unknown_features(
    api_format: Format, fields: Mapping[str, Any], provider: str = "openai", allowed: tuple[str, ...] = ()
) -> str:
    """Names of unknown features of a request."""
    request = formats.parse_request(json.dumps({**_MINIMAL_BODIES[api_format], **fields}).encode(), api_format)
    return ", ".join(str(feature) for feature in unknown_features(request, provider, allowed))


def make_ceiling(
    fields: Mapping[str, Any], api_format: Format = Format.CHAT, provider: str = "openai"
) -> CostCeiling | None:
    request = formats.parse_request(json.dumps({**_MINIMAL_BODIES[api_format], **fields}).encode(), api_format)
    count = counter_for(request.model).count_request(request)
    return compute_cost_ceiling(
        request,
        count.total,
        provider=provider,
        window_tokens=400_000,
        ttl=None,
        at=1.8e9,
        unexplained=count.unexplained,
    )


CLIENTS: list[tuple[Format, dict[str, Any]]] = [
    (
        Format.ANTHROPIC,
        {
            "system": [
                {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}}
            ],
            "tools": [
                {"name": "Read", "description": "Reads.", "input_schema": {"type": "object"}},
                {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
            ],
            "metadata": {"user_id": "u"},
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "high"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "temperature": 1,
            "stream": True,
        },
    ),
    (
        Format.RESPONSES,
        {
            "instructions": "You are Codex.",
            "tools": [
                {"type": "function", "name": "shell", "parameters": {"type": "object"}},
                {"type": "custom", "name": "apply_patch"},
                {"type": "web_search", "external_web_access": False},
                {"type": "local_shell"},
            ],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "k",
            "text": {"verbosity": "low"},
            "client_metadata": {"session_id": "s"},
            "service_tier": "priority",
        },
    ),
    (
        Format.CHAT,
        {
            "tools": [{"type": "function", "function": {"name": "read", "parameters": {}}}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_completion_tokens": 32_000,
            "reasoning_effort": "high",
            "temperature": 0,
            "usage": {"include": True},
            "reasoning": {"effort": "high"},
            "transforms": ["middle-out"],
            "provider": {"sort": "price", "max_price": {"prompt": 1}},
            "plugins": [],
            "search_parameters": {"mode": "off"},
            "new_field": None,
        },
    ),
    (
        Format.GEMINI,
        {
            "systemInstruction": {"parts": [{"text": "You are Gemini CLI."}]},
            "tools": [{"functionDeclarations": [{"name": "read"}]}, {"google_search": {}}],
            "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
            "generationConfig": {
                "temperature": 1,
                "top_p": 0.95,
                "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 8192},
                "maxOutputTokens": 9,
            },
            "safetySettings": [],
        },
    ),
    (
        Format.BEDROCK,
        {
            "inferenceConfig": {"maxTokens": 9},
            "system": [{"text": "Be brief."}],
            "toolConfig": {"tools": [{"toolSpec": {"name": "read", "inputSchema": {"json": {}}}}]},
            "additionalModelRequestFields": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            "serviceTier": {"type": "default"},
        },
    ),
]


@pytest.mark.parametrize(("api_format", "fields"), CLIENTS)
def test_everything_that_coding_agents_send_is_known(api_format: Format, fields: dict[str, Any]) -> None:
    assert list_unknown_features(api_format, fields) == ""


@pytest.mark.parametrize(
    ("api_format", "fields", "unknown"),
    [
        (Format.CHAT, {"plugins": [{"id": "web"}]}, "the field `plugins`"),
        (Format.CHAT, {"preset": "dear"}, "the field `preset`"),
        (Format.CHAT, {"models": "all"}, "the field `models`"),
        (Format.CHAT, {"provider": {"order": ["dear"]}}, "the field `provider.order`"),
        (Format.CHAT, {"provider": {"sort": "throughput"}}, "the field `provider.sort`"),
        (Format.CHAT, {"provider": "dear"}, "the field `provider.*`"),
        (Format.CHAT, {"search_parameters": {"mode": "on"}}, "the field `search_parameters`"),
        (Format.CHAT, {"service_tier": "gold"}, "the field `service_tier`"),
        (Format.CHAT, {"modalities": ["text", "smell"]}, "the field `modalities`"),
        (Format.CHAT, {"tools": [{"type": "openrouter:web_search"}]}, "the tool `openrouter:web_search`"),
        (Format.RESPONSES, {"prompt": {"id": "pmpt_1"}}, "the field `prompt`"),
        (Format.RESPONSES, {"reasoning": {"mode": "pro"}}, "the field `reasoning`"),
        (Format.RESPONSES, {"tools": [{"type": "image_generation"}]}, "the tool `image_generation`"),
        (Format.RESPONSES, {"tools": [{"type": "code_interpreter"}]}, "the tool `code_interpreter`"),
        (
            Format.RESPONSES,
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]}]},
            "the tool `web_search`",
        ),
        (Format.CHAT, {"prediction": "Hi"}, "the field `prediction`"),
        (Format.CHAT, {"prediction": {"content": [{"data": "Hi"}]}}, "the field `prediction`"),
        (Format.ANTHROPIC, {"container": "c_1"}, "the field `container`"),
        (Format.ANTHROPIC, {"fallbacks": "default"}, "the field `fallbacks`"),
        (Format.ANTHROPIC, {"speed": "ludicrous"}, "the field `speed`"),
        (Format.ANTHROPIC, {"inference_geo": "moon"}, "the field `inference_geo`"),
        (
            Format.ANTHROPIC,
            {"context_management": {"edits": [{"type": "ponder"}]}},
            "the field `context_management`",
        ),
        (
            Format.ANTHROPIC,
            {"tools": [{"type": "code_execution_20260120", "name": "code_execution"}]},
            "the tool `code_execution_20260120`",
        ),
        (
            Format.GEMINI,
            {"generationConfig": {"routingConfig": {}}},
            "the field `generationConfig.routingConfig`",
        ),
        (
            Format.GEMINI,
            {"generation_config": {"routing_config": {}}},
            "the field `generation_config.routing_config`",
        ),
        (Format.GEMINI, {"tools": [{"googleMaps": {}}]}, "the tool `googleMaps`"),
        (Format.GEMINI, {"modelArmorConfig": {}}, "the field `modelArmorConfig`"),
        (Format.BEDROCK, {"guardrailConfig": {}}, "the field `guardrailConfig`"),
        (Format.BEDROCK, {"performanceConfig": {"latency": "optimized"}}, "the field `performanceConfig`"),
        (
            Format.BEDROCK,
            {"additionalModelRequestFields": {"max_tokens": 64_000}},
            "the field `additionalModelRequestFields.max_tokens`",
        ),
        (
            Format.BEDROCK,
            {"additionalModelRequestFields": {"inferenceConfig": {"maxTokens": 64_000}}},
            "the field `additionalModelRequestFields.inferenceConfig`",
        ),
        (Format.BEDROCK, {"toolConfig": {"tools": [{"systemTool": {"name": "x"}}]}}, "the tool `systemTool`"),
    ],
)
def test_features_that_may_add_to_the_cost_are_named(
    api_format: Format, fields: dict[str, Any], unknown: str
) -> None:
    assert list_unknown_features(api_format, fields) == unknown


@pytest.mark.parametrize("model", ["anthropic/claude-sonnet-4.5:online", "openai/gpt-5:NITRO", "x/y:new"])
def test_a_model_variant_that_may_cost_more_is_unknown(model: str) -> None:
    assert list_unknown_features(Format.CHAT, {"model": model}, "openrouter") == f"the model `{model}`"
    assert list_unknown_features(Format.CHAT, {"models": [model]}, "openrouter") == f"the model `{model}`"


def test_deep_research_is_unknown_unless_the_request_limits_its_tool_calls() -> None:
    model = {"model": "o3-deep-research", "tools": [{"type": "web_search_preview"}]}

    assert list_unknown_features(Format.RESPONSES, model) == "the model `o3-deep-research`"
    assert (
        list_unknown_features(Format.RESPONSES, {**model, "max_tool_calls": None})
        == "the model `o3-deep-research`"
    )
    assert list_unknown_features(Format.RESPONSES, {**model, "max_tool_calls": 5}) == ""
    assert (
        list_unknown_features(Format.CHAT, {"model": "O4-mini-deep-research"})
        == "the model `O4-mini-deep-research`"
    )


@pytest.mark.parametrize("kind", ["functions_remote", "customx", "namespace_remote", "local_shell_at_provider"])
def test_a_tool_whose_kind_only_begins_like_a_client_tool_is_unknown(kind: str) -> None:
    assert list_unknown_features(Format.RESPONSES, {"tools": [{"type": kind}]}) == f"the tool `{kind}`"
    assert list_unknown_features(Format.RESPONSES, {"tools": [{"type": "custom", "name": "patch"}]}) == ""


def test_the_tag_of_a_local_model_is_not_a_variant() -> None:
    assert list_unknown_features(Format.CHAT, {"model": "qwen3-coder:30b"}, "ollama") == ""
    assert list_unknown_features(Format.CHAT, {"model": "meta/llama:free"}, "openrouter") == ""


def test_a_searching_model_is_recognised_in_capitals_too() -> None:
    ceiling = make_ceiling({"model": "GPT-4O-SEARCH-PREVIEW"})

    assert ceiling is not None
    assert ceiling.searches > 0


@pytest.mark.parametrize("name", ["additional_tools", "\\u0061dditional_tools"])
def test_tools_that_a_message_adds_are_tools_of_the_request(name: str) -> None:
    body = (
        '{"model": "gpt-5", "input": [{"role": "user", "content": "Hi"}, '
        f'{{"type": "{name}", "tools": [{{"type": "function"}}, {{"type": "code_interpreter"}}]}}]}}'
    )
    features = unknown_features(formats.parse_request(body.encode(), Format.RESPONSES), "openai")

    assert [str(feature) for feature in features] == ["the tool `code_interpreter`"]


@pytest.mark.parametrize("tool", ['{"type": "T"}', '{"type": "namespace", "tools": [{"type": "T"}]}'])
def test_tools_found_by_a_tool_search_are_tools_of_the_request(tool: str) -> None:
    def list_features(kind: str) -> list[str]:
        item = f'{{"type": "tool_search_output", "tools": [{tool.replace("T", kind)}]}}'
        body = f'{{"model": "gpt-5", "input": [{{"role": "user", "content": "Hi"}}, {item}]}}'
        return [
            str(feature)
            for feature in unknown_features(formats.parse_request(body.encode(), Format.RESPONSES), "openai")
        ]

    assert list_features("image_generation") == ["the tool `image_generation`"]
    assert list_features("function") == []


def test_a_feature_can_be_allowed_by_name_or_glob() -> None:
    fields = {"provider": {"order": ["a"]}, "tools": [{"type": "code_interpreter"}]}

    assert (
        list_unknown_features(Format.CHAT, fields) == "the field `provider.order`, the tool `code_interpreter`"
    )
    assert list_unknown_features(Format.CHAT, fields, allowed=("provider.*",)) == "the tool `code_interpreter`"
    assert list_unknown_features(Format.CHAT, fields, allowed=("provider.order", "code_*")) == ""


@example(api_format=Format.CHAT, name="models_", value=["a"])
@example(api_format=Format.ANTHROPIC, name="Container", value="c")
@given(
    api_format=st.sampled_from(list(_MINIMAL_BODIES)),
    name=st.text(min_size=1, max_size=12).map(lambda text: f"x{text}"),
    value=st.one_of(
        st.booleans(), st.integers(), st.text(), st.lists(st.text()), st.dictionaries(st.text(), st.text())
    ),
)
def test_an_unlisted_field_is_always_unknown(api_format: Format, name: str, value: object) -> None:
    if api_format is Format.CHAT and name == "xtc_probability":
        return
    assert f"the field `{name[:100]}`" in list_unknown_features(api_format, {name: value})


def test_the_ceiling_of_fallback_models_is_that_of_the_most_expensive() -> None:
    fields = {
        "model": "openai/gpt-4o-mini",
        "max_tokens": 1_000,
        "models": ["anthropic/claude-opus-4.5", "openai/gpt-4.1"],
    }
    with_fallbacks = make_ceiling(fields, provider="openrouter")
    most_expensive = make_ceiling(
        {"model": "anthropic/claude-opus-4.5", "max_tokens": 1_000}, provider="openrouter"
    )

    assert with_fallbacks is not None
    assert most_expensive is not None
    fallback_dollars, most_expensive_dollars = with_fallbacks.dollars(PRICES), most_expensive.dollars(PRICES)
    assert fallback_dollars is not None
    assert most_expensive_dollars is not None
    assert fallback_dollars >= most_expensive_dollars > 0


def test_a_fallback_model_without_a_price_makes_the_cost_unknown() -> None:
    fields = {"model": "openai/gpt-4o-mini", "max_tokens": 9, "models": ["nobody/knows-it"]}
    ceiling = make_ceiling(fields, provider="openrouter")

    assert ceiling is not None
    assert ceiling.dollars(PRICES) is None
    assert ceiling.describe_unpriced(PRICES) == "the fallback model `nobody/knows-it`"


@pytest.mark.parametrize("content", ["word " * 1_000, [{"type": "text", "text": "word " * 1_000}]])
def test_an_unused_prediction_is_charged_as_output(content: Any) -> None:
    without_prediction = make_ceiling({"model": "gpt-4.1", "max_tokens": 100})
    with_prediction = make_ceiling(
        {"model": "gpt-4.1", "max_tokens": 100, "prediction": {"type": "content", "content": content}, "n": 2}
    )

    assert without_prediction is not None
    assert with_prediction is not None
    assert with_prediction.extra_output_tokens >= 2 * 1_000
    assert (with_prediction.output_tokens, without_prediction.output_tokens) == (200, 100)
    dollars_with, dollars_without = with_prediction.dollars(PRICES), without_prediction.dollars(PRICES)
    assert dollars_with is not None
    assert dollars_without is not None
    assert dollars_with > 10 * dollars_without


def test_every_choice_of_best_of_is_charged() -> None:
    ceiling = make_ceiling({"model": "gpt-4.1", "max_tokens": 100, "n": 2, "best_of": 5})

    assert ceiling is not None
    assert ceiling.output_tokens == 500


def test_a_summary_by_the_provider_is_charged_besides_the_response() -> None:
    edits = {"context_management": {"edits": [{"type": "compact_20260112"}]}}
    ceiling = make_ceiling(edits, Format.ANTHROPIC, "anthropic")

    assert ceiling is not None
    assert ceiling.extra_output_tokens > 10_000


@pytest.mark.parametrize(
    ("fields", "unpriced"),
    [
        ({"model": "gpt-4.1", "modalities": ["text", "audio"]}, "audio output"),
        ({"model": "gpt-4o-audio-preview"}, "audio input"),
        ({"model": "gpt-4.1", "modalities": ["image", "text"]}, "generated images"),
    ],
)
def test_a_unit_without_a_price_makes_the_cost_unknown(fields: dict[str, Any], unpriced: str) -> None:
    ceiling = make_ceiling({**fields, "max_tokens": 9})

    assert ceiling is not None
    assert ceiling.dollars(PRICES) is None
    assert ceiling.describe_unpriced(PRICES) == unpriced


def test_a_unit_with_a_price_is_part_of_the_ceiling() -> None:
    searching = make_ceiling({"model": "gpt-4o-mini-search-preview", "max_tokens": 9})
    drawing = make_ceiling(
        {"model": "gemini-2.5-flash-image", "generationConfig": {"responseModalities": ["TEXT", "IMAGE"]}},
        Format.GEMINI,
        "google",
    )

    assert searching is not None
    assert drawing is not None
    assert (searching.dollars(PRICES) or 0) > 0
    assert drawing.units == (BillableUnit.OUTPUT_IMAGE,)
    assert (drawing.dollars(PRICES) or 0) > 0

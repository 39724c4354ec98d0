"""The cost of one call from its response, as users of the library get it."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from anthropic.types import Message
from google.genai.types import GenerateContentResponse
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

import foveate
from foveate.cost.call_cost import read_usage, to_seconds
from foveate.errors import BadOption

AT = datetime(2026, 11, 1, tzinfo=UTC)
CHAT_USAGE = {"prompt_tokens": 2000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 1024}}
ANTHROPIC_USAGE = {
    "input_tokens": 100,
    "output_tokens": 50,
    "cache_read_input_tokens": 4000,
    "cache_creation_input_tokens": 300,
}
RESPONSES_USAGE = {
    "input_tokens": 2000,
    "output_tokens": 100,
    "total_tokens": 2100,
    "input_tokens_details": {"cached_tokens": 1024, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}
GEMINI_USAGE = {"promptTokenCount": 1000, "candidatesTokenCount": 10, "totalTokenCount": 1010}
BEDROCK_USAGE = {"inputTokens": 1000, "outputTokens": 10, "totalTokens": 1010}


def parts(cost: foveate.Cost | None) -> Decimal:
    assert cost is not None
    return cost.input + cost.cached_read + cost.cache_write + cost.output + cost.other


def test_the_parts_of_a_chat_completion_add_up() -> None:
    cost = foveate.cost(CHAT_USAGE, model="gpt-4o", at=AT)

    assert cost is not None
    assert cost.input == Decimal("0.00244")  # 976 tokens at $2.50 per million
    assert cost.cached_read == Decimal("0.00128")  # 1,024 at $1.25
    assert cost.output == Decimal("0.001")  # 100 at $10
    assert cost.dollars == parts(cost) == Decimal("0.00472")
    assert (cost.currency, cost.source, cost.exact, cost.inherited_from) == ("USD", "table", True, "")
    assert cost.origin.startswith("genai-prices ")


def test_cache_reads_and_writes_of_anthropic_have_their_own_parts() -> None:
    cost = foveate.cost(ANTHROPIC_USAGE, model="claude-sonnet-4-5", at=AT)

    assert cost is not None
    assert cost.input == Decimal("0.0003")
    assert cost.cached_read == Decimal("0.0012")
    assert cost.cache_write == Decimal("0.001125")
    assert cost.output == Decimal("0.00075")
    assert cost.dollars == parts(cost)


def test_input_tokens_of_the_responses_api_include_cached_ones() -> None:
    usage = {name: value for name, value in RESPONSES_USAGE.items() if name != "input_tokens_details"}
    bare = foveate.cost({"object": "response", "usage": usage}, model="gpt-4o", at=AT)
    chat = foveate.cost(CHAT_USAGE, model="gpt-4o", at=AT)

    assert foveate.cost(RESPONSES_USAGE, model="gpt-4o", at=AT) == chat
    assert bare is not None
    assert bare.input == Decimal("0.005")


OPENAI = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4o",
    "choices": [],
    "usage": CHAT_USAGE,
}
ANTHROPIC: dict[str, Any] = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": ANTHROPIC_USAGE,
}
RESPONSES = {
    "id": "r",
    "object": "response",
    "created_at": 1,
    "model": "gpt-4o",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": RESPONSES_USAGE,
}
GEMINI = {"candidates": [], "usageMetadata": GEMINI_USAGE}


@pytest.mark.parametrize(
    ("sdk_response", "usage", "model"),
    [
        (
            ChatCompletion.model_validate({**OPENAI, "usage": {**CHAT_USAGE, "total_tokens": 2100}}),
            CHAT_USAGE,
            "gpt-4o",
        ),
        (Message.model_validate(ANTHROPIC), ANTHROPIC_USAGE, "claude-sonnet-4-5"),
        (Response.model_validate(RESPONSES), RESPONSES_USAGE, "gpt-4o"),
        (GenerateContentResponse.model_validate(GEMINI), GEMINI_USAGE, "gemini-2.5-flash"),
    ],
    ids=["chat", "anthropic", "responses", "gemini"],
)
def test_an_sdk_response_its_dict_and_its_usage_cost_the_same(
    sdk_response: Any, usage: Any, model: str
) -> None:
    expected = foveate.cost(usage, model=model, at=AT)
    usage_object = getattr(sdk_response, "usage", None) or sdk_response.usage_metadata

    assert expected is not None
    assert expected.dollars > 0
    assert foveate.cost(sdk_response, model=model, at=AT) == expected
    assert foveate.cost(usage_object, model=model, at=AT) == expected
    assert foveate.cost(sdk_response.model_dump(mode="json", by_alias=True), model=model, at=AT) == expected
    assert foveate.cost({"usage": usage_object}, model=model, at=AT) == expected


def test_a_bedrock_response_is_priced_by_its_provider() -> None:
    model = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"

    cost = foveate.cost({"usage": BEDROCK_USAGE}, model=model, at=AT)

    assert cost is not None
    assert cost == foveate.cost(BEDROCK_USAGE, model=model, provider="bedrock", at=AT)


def test_web_searches_of_openai_are_part_of_the_cost() -> None:
    searched = {
        "object": "response",
        "model": "gpt-5.5",
        "usage": RESPONSES_USAGE,
        "tool_usage": {"web_search": {"num_requests": 2}},
    }
    chat = {"object": "chat.completion", "model": "gpt-5-search-api-2025-10-14", "usage": CHAT_USAGE}

    for response, model, fee in ((searched, "gpt-5.5", "0.02"), (chat, "gpt-5-search-api", "0.01")):
        cost = foveate.cost(response, model=model, at=AT)
        assert cost is not None
        assert cost.other == Decimal(fee)


def test_a_price_that_a_trusted_provider_states_is_used() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 10, "cost": 0.25}

    cost = foveate.cost(usage, model="openai/gpt-4o", provider="openrouter", at=AT)
    other = foveate.cost(usage, model="gpt-4o", provider="openai", at=AT)

    assert cost is not None
    assert (cost.dollars, cost.other, cost.source, cost.origin) == (
        Decimal("0.25"),
        Decimal("0.25"),
        "said",
        "openrouter",
    )
    assert other is not None
    assert other.dollars < Decimal("0.001")


def test_a_model_without_a_price_costs_at_most_what_its_family_does() -> None:
    cost = foveate.cost(CHAT_USAGE, model="gpt-9", at=AT)

    assert cost is not None
    assert cost.inherited_from == "gpt"
    assert not cost.exact
    assert str(cost).startswith("~$")


@pytest.mark.parametrize(
    "usage",
    [
        {},
        {"usage": None},
        {"usage": {}},
        {"id": "no usage"},
        {"prompt_tokens": 0, "completion_tokens": 0},
        {"prompt_tokens": -5, "completion_tokens": 3},
        {"prompt_tokens": "many", "completion_tokens": 3},
        {"prompt_tokens": 1.5, "completion_tokens": 3},
        {"prompt_tokens": 10**30, "completion_tokens": 3},
        {"prompt_tokens": float("nan"), "completion_tokens": 3},
        {"usage": {"prompt_tokens": float("inf"), "completion_tokens": 3}},
        {"input_tokens": True},
        {"prompt_tokens": object()},
    ],
)
def test_a_usage_that_cannot_be_read_has_no_cost(usage: Any) -> None:
    assert foveate.cost(usage, model="gpt-4o", at=AT) is None


def test_an_unknown_price_is_unknown_and_not_zero() -> None:
    assert foveate.cost(CHAT_USAGE, model="nobody/knows-this") is None
    assert foveate.cost(CHAT_USAGE, model="") is None
    assert foveate.cost(CHAT_USAGE, model="gpt-4o", provider="nobody") is None


@pytest.mark.parametrize("value", [None, 5, "text", b"{}", [CHAT_USAGE], object(), SimpleNamespace(usage=None)])
def test_anything_but_a_response_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match=f"not {type(value).__name__}"):
        foveate.cost(value, model="gpt-4o")


numbers = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({})
)
names = st.sampled_from(
    ("input_tokens", "output_tokens", "prompt_tokens", "completion_tokens", "total_tokens", "promptTokenCount",
     "inputTokens", "cache_read_input_tokens", "cost", "usage", "prompt_tokens_details")
)  # fmt: skip


@given(usage=st.dictionaries(names, numbers))
def test_garbage_never_raises_and_never_costs_less_than_nothing(usage: dict[str, Any]) -> None:
    cost = foveate.cost(usage, model="gpt-4o", at=AT)

    assert cost is None or cost.dollars == parts(cost) >= 0


@given(
    uncached=st.integers(0, 10**6),
    read=st.integers(0, 10**6),
    written=st.integers(0, 10**6),
    output=st.integers(1, 10**6),
)
def test_the_parts_always_add_up(uncached: int, read: int, written: int, output: int) -> None:
    usage = {
        "input_tokens": uncached,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens": output,
    }
    cost = foveate.cost(usage, model="claude-sonnet-4-5", at=AT)

    assert cost is not None
    assert cost.dollars == parts(cost)
    assert bool(cost.cached_read) == bool(read)
    assert bool(cost.cache_write) == bool(written)


def test_the_time_of_a_call_selects_its_price() -> None:
    times = [AT, AT.date(), AT.replace(tzinfo=None), AT.astimezone(timezone(timedelta(hours=9)))]

    assert {to_seconds(at, now=0) for at in times} == {AT.timestamp()}
    assert to_seconds(None, now=5.0) == 5.0
    before, after = (
        foveate.cost(CHAT_USAGE, model="o3", at=day) for day in (date(2025, 6, 1), date(2025, 7, 1))
    )
    assert before is not None
    assert after is not None
    assert before.dollars > after.dollars  # o3 became cheaper on 10 June 2025
    wrong: Any = "2025-06-01"
    with pytest.raises(BadOption, match="at is a date or a datetime, not str"):
        foveate.cost(CHAT_USAGE, model="o3", at=wrong)


def test_a_usage_is_found_wherever_providers_put_it() -> None:
    assert read_usage({"response": {"usage": RESPONSES_USAGE}}) is not None
    assert read_usage({"x_groq": {"usage": CHAT_USAGE}}) is not None


def test_the_repr_has_the_parts_that_cost_something() -> None:
    cost = foveate.cost(ANTHROPIC_USAGE, model="claude-sonnet-4-5", at=AT)

    assert str(cost) == "$0.003375"
    assert repr(cost).startswith(
        "<Cost $0.003375: input $0.0003, cached read $0.0012, cache write $0.001125, output "
    )

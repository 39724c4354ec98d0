"""How dear a call can be: whatever its request asks for, the provider bills no more."""

import json
from typing import Any

import pytest

from foveate import wire
from foveate.cost.price_book import PriceBook
from foveate.engine.bounds import Asked, AtMost, asked_of, at_most
from foveate.values import Format, TokenCount, Ttl

COUNT = TokenCount(tokens=1_000, exact=False, upper=1_200)


def asked(spoken: Format = Format.CHAT, **said: Any) -> Asked:
    return asked_of(wire.read(_body(spoken, said), spoken))


def bound(window_tokens: int | None, spoken: Format = Format.CHAT, **said: Any) -> AtMost | None:
    request = wire.read(_body(spoken, said), spoken)
    return at_most(request, COUNT, provider="openai", window_tokens=window_tokens, ttl=Ttl.ONE_HOUR, at=1.8e9)


def _body(spoken: Format, said: dict[str, Any]) -> bytes:
    messages = "input" if spoken is Format.RESPONSES else "messages"
    return json.dumps({"model": "gpt-5", messages: [{"role": "user", "content": "Hi"}], **said}).encode()


@pytest.mark.parametrize(
    ("said", "limit_tokens"),
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
def test_the_largest_limit_counts_and_one_that_cannot_be_read_is_none(
    said: dict[str, Any], limit_tokens: int | None
) -> None:
    assert asked(**said).output_tokens == limit_tokens
    assert asked(Format.ANTHROPIC, **said).output_tokens == limit_tokens


def test_how_and_where_a_request_is_to_be_served_is_told_in_its_own_words() -> None:
    assert asked(service_tier="priority").tier == "priority"
    assert asked(Format.ANTHROPIC, speed="fast", service_tier="auto").tier == "fast"
    assert asked(Format.ANTHROPIC, inference_geo="us").region == "us"
    assert (asked().tier, asked().region) == ("", None)


def test_every_answer_that_is_asked_for_is_paid() -> None:
    many, odd = bound(None, n=8, max_tokens=100), bound(None, n="all", max_tokens=100)

    assert many is not None
    assert many.output_tokens == 800
    assert odd is None


@pytest.mark.parametrize(
    ("window_tokens", "output_tokens"), [(1_000_000, 999_200), (16_000, 16_000), (None, 128_000)]
)
def test_without_a_limit_an_answer_of_an_unknown_model_may_fill_the_window(
    window_tokens: int | None, output_tokens: int
) -> None:
    found = bound(window_tokens, model="my-model")

    assert found is not None
    assert (found.input_tokens, found.output_tokens) == (1_200, output_tokens)


@pytest.mark.parametrize(
    ("model", "output_tokens"), [("gpt-5", 128_000), ("gpt-4.1-mini", 32_768), ("gpt-4o-2024-11-20", 16_384)]
)
def test_without_a_limit_an_answer_is_as_long_as_the_model_can_write(model: str, output_tokens: int) -> None:
    """Was the rest of the window: a small cap had no room for one short question."""
    found = bound(1_000_000, model=model)

    assert found is not None
    assert found.output_tokens == output_tokens


@pytest.mark.parametrize("name", ["previous_response_id", "conversation", "prompt"])
def test_what_the_provider_adds_to_the_input_may_fill_the_window(name: str) -> None:
    found = bound(50_000, Format.RESPONSES, max_output_tokens=9, **{name: "kept_1"})

    assert found is not None
    assert found.input_tokens == 50_000
    assert bound(None, Format.RESPONSES, **{name: "kept_1"}) is None


def test_tier_region_and_time_in_the_cache_are_in_the_price() -> None:
    prices, usual = PriceBook(), bound(None, max_tokens=1_000)
    dear = bound(None, max_tokens=1_000, service_tier="priority")

    assert usual is not None
    assert dear is not None
    assert dear.ttl is Ttl.ONE_HOUR
    at_usual, at_dear = usual.dollars(prices), dear.dollars(prices)
    assert at_usual is not None
    assert at_dear is not None
    assert at_dear > at_usual > 0

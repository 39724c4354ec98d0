"""Cost ceilings hold for any tokens, region and service tier."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.cost.pricing.price_book import PriceBook
from foveate.cost.pricing.rates import PriceSource, Rate, Rates, RateTier, TokenKind, compute_ceiling
from foveate.formats.response.usage import BillableUnit, parse_usage
from foveate.model import Format

AT = datetime(2026, 11, 10, 12, tzinfo=UTC).timestamp()
BOOK = PriceBook()


def ceiling_for(
    model: str, provider: str, *, tier: str | None = None, region: str | None = None, tokens: int = 1_000
) -> Decimal | None:
    return BOOK.ceiling(
        model, provider=provider, input_tokens=tokens, output_tokens=tokens, at=AT, tier=tier, region=region
    )


def chat(prompt: dict[str, int], completion: dict[str, int]) -> dict[str, Any]:
    return {
        "prompt_tokens": 1_000,
        "completion_tokens": 1_000,
        "prompt_tokens_details": prompt,
        "completion_tokens_details": completion,
    }


def gemini(modality: str) -> dict[str, Any]:
    details = [{"modality": modality, "tokenCount": 1_000}]
    return {
        "promptTokenCount": 1_000,
        "candidatesTokenCount": 1_000,
        "promptTokensDetails": details,
        "candidatesTokensDetails": details,
    }


@pytest.mark.parametrize(
    ("model", "provider", "api_format", "numbers"),
    [
        ("gpt-audio", "openai", Format.CHAT, chat({"audio_tokens": 1_000}, {"audio_tokens": 1_000})),
        ("gpt-audio", "openai", Format.CHAT, chat({}, {"audio_tokens": 1_000})),
        ("gemini-2.5-flash", "google", Format.CHAT, gemini("AUDIO")),
        ("gemini-2.5-flash-image", "google", Format.CHAT, gemini("IMAGE")),
        (
            "claude-opus-5-5",
            "anthropic",
            Format.ANTHROPIC,
            {"cache_creation_input_tokens": 1_000, "output_tokens": 1_000, "inference_geo": "us"},
        ),
    ],
)
def test_no_charge_for_audio_images_or_a_region_exceeds_the_ceiling(
    model: str, provider: str, api_format: Format, numbers: dict[str, Any]
) -> None:
    """Regression: the ceiling covered only text without a region."""
    usage = parse_usage(api_format, json.dumps(numbers).encode())
    assert usage is not None
    price = BOOK.price(model, usage, provider=provider, at=AT)
    ceiling = ceiling_for(model, provider)

    assert price is not None
    assert ceiling is not None
    assert ceiling >= price.dollars


def test_a_requested_tier_raises_the_ceiling_but_never_lowers_it() -> None:
    standard = Decimal("0.01125")

    assert ceiling_for("gpt-5", "openai") == standard
    assert ceiling_for("gpt-5", "openai", tier="priority") == 2 * standard
    assert ceiling_for("gpt-5", "openai", tier="flex") == standard
    assert ceiling_for("gpt-5", "openai", tier="scale") is None


def test_a_requested_region_has_its_ceiling_and_an_unknown_one_the_highest() -> None:
    anywhere = Decimal("0.025")

    assert ceiling_for("claude-opus-5-5", "anthropic", region="global") == anywhere
    assert ceiling_for("claude-opus-5-5", "anthropic", region="us") == anywhere * Decimal("1.1")
    assert ceiling_for("claude-opus-5-5", "anthropic") == anywhere * Decimal("1.1")
    assert ceiling_for("claude-sonnet-4-5", "anthropic") == ceiling_for(
        "claude-sonnet-4-5", "anthropic", region="global"
    )
    for region in (None, "us", "europe-west1"):
        assert ceiling_for("claude-opus-5-5", "vertex", region=region) == anywhere * Decimal("1.1")
    assert ceiling_for("claude-opus-5-5", "vertex", region="global") == anywhere
    sol = ceiling_for("gpt-6.1-sol", "openai")
    assert sol is not None
    assert ceiling_for("gpt-6.1-sol", "openai", region="eu") == sol * Decimal("1.1")


@pytest.mark.parametrize(
    ("unit", "dollars"),
    [
        *((unit, 1_000 * 9 + 10 * 2) for unit in BillableUnit if unit.startswith(("input_", "read_"))),
        *((unit, 1_000 * 1 + 10 * 9) for unit in BillableUnit if unit.startswith("output_")),
        *(
            (unit, 1_000 * 1 + 10 * 2)
            for unit in (BillableUnit.WEB_SEARCHES, BillableUnit.RERANKS, BillableUnit.CITATIONS)
        ),
        (BillableUnit.REQUESTS, 1_000 * 1 + 10 * 2 + 9),
    ],
)
def test_media_are_part_of_the_ceiling_and_optional_units_are_not(unit: BillableUnit, dollars: int) -> None:
    rates = Rates(
        by_kind={
            TokenKind.UNCACHED: Rate(Decimal(1)),
            TokenKind.OUTPUT: Rate(Decimal(2)),
            unit: Rate(Decimal(9)),
        },
        source=PriceSource.TABLE,
        origin="a table",
    )

    assert compute_ceiling(rates, input_tokens=1_000, output_tokens=10) == dollars
    cheap = replace(rates, by_kind={**rates.by_kind, unit: Rate(Decimal(0))})
    assert compute_ceiling(cheap, input_tokens=1_000, output_tokens=10) == 1_000 * 1 + 10 * 2


AMOUNTS = st.decimals(min_value=0, max_value=100, places=2)
SIZES = st.integers(0, 30)
# A long input may be cheaper, and each kind may change at a size of its own.
RATES = st.builds(
    Rate,
    AMOUNTS,
    st.lists(st.tuples(SIZES, AMOUNTS), max_size=3, unique_by=lambda step: step[0]).map(
        lambda steps: tuple(RateTier(size, dollars) for size, dollars in sorted(steps))
    ),
)


@given(SIZES, SIZES, RATES, RATES, RATES)
def test_the_ceiling_uses_the_most_expensive_kind_at_any_input_size(
    input_tokens: int, output_tokens: int, uncached: Rate, written: Rate, output: Rate
) -> None:
    by_kind: dict[TokenKind | BillableUnit, Rate] = {
        TokenKind.UNCACHED: uncached,
        TokenKind.WRITTEN_5M: written,
        TokenKind.OUTPUT: output,
    }
    rates = Rates(by_kind=by_kind, source=PriceSource.TABLE, origin="a table")

    max_input_rate = max(rate.at(size) for rate in (uncached, written) for size in range(input_tokens + 1))
    max_output_rate = max(output.at(size) for size in range(input_tokens + 1))

    ceiling = compute_ceiling(rates, input_tokens=input_tokens, output_tokens=output_tokens)
    assert ceiling == max_input_rate * input_tokens + max_output_rate * output_tokens

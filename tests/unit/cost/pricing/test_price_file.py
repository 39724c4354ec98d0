"""Price files of users: read, rejected, stored, and compared with current prices."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.cost.pricing.price_book import PriceBook, PriceChange, find_differences
from foveate.cost.pricing.price_facts import load_price_facts
from foveate.cost.pricing.price_file import (
    ImportedPrices,
    price_file_json,
    read_price_file,
    read_stored_price_file,
)
from foveate.cost.pricing.rates import Rates, TokenKind
from foveate.errors import UnreadableInput

AT = datetime(2026, 11, 17, 12, tzinfo=UTC).timestamp()
TODAY = date(2026, 11, 17)
MILLION = 1_000_000


def genai(prices: object = None, **model: Any) -> bytes:
    """genai-prices' data with one model of OpenAI."""
    default_model = {
        "id": "gpt-9",
        "match": {"equals": "gpt-9"},
        "prices": prices or {"input_mtok": 3, "output_mtok": 9},
    }
    return json.dumps(
        [{"id": "openai", "name": "OpenAI", "api_pattern": "x", "models": [default_model | model]}]
    ).encode()


def litellm(**models: dict[str, Any]) -> bytes:
    defaults = {"litellm_provider": "anthropic", "mode": "chat"}
    return json.dumps({name.replace("_", "-"): defaults | entry for name, entry in models.items()}).encode()


def read(data: bytes, day: date = TODAY) -> ImportedPrices:
    return read_price_file(data, day=day, source="prices.json")


def rates(update: ImportedPrices | None, model: str, provider: str = "openai", **options: Any) -> Rates | None:
    return PriceBook(load_imported=lambda: update).rates(
        model, provider=provider, at=options.pop("at", AT), **options
    )


def dollars(model_rates: Rates | None, kind: TokenKind, input_tokens: int = 0) -> Decimal:
    assert model_rates is not None
    return model_rates.by_kind[kind].at(input_tokens) * MILLION


def test_a_model_of_a_price_file_has_its_price() -> None:
    model_rates = rates(read(genai()), "gpt-9")

    assert dollars(model_rates, TokenKind.UNCACHED) == 3
    assert dollars(model_rates, TokenKind.OUTPUT) == 9
    assert model_rates is not None
    assert not model_rates.inherited_from
    assert model_rates.origin == "genai-prices file, 2026-11-17"


def test_prices_missing_from_a_price_file_come_from_the_tables() -> None:
    update = read(
        litellm(
            gpt_5={"litellm_provider": "openai", "input_cost_per_token": 2e-06, "output_cost_per_token": 9e-06}
        )
    )

    assert dollars(rates(update, "gpt-5"), TokenKind.UNCACHED) == 2
    for tier, kind in (("priority", TokenKind.UNCACHED), ("flex", TokenKind.OUTPUT)):
        assert dollars(rates(update, "gpt-5", tier=tier), kind) == dollars(
            rates(None, "gpt-5", tier=tier), kind
        )
    assert dollars(rates(update, "gpt-5"), TokenKind.READ) < 2


def test_tiers_variants_and_times_of_genai_prices_are_read() -> None:
    tiered = {"base": 3, "tiers": [{"start": 100_000, "price": 6.5}]}
    update = read(
        genai(
            [
                {"prices": {"input_mtok": tiered, "output_mtok": 9}},
                {"constraint": {"start_date": "2027-01-01"}, "prices": {"input_mtok": 1, "output_mtok": 2}},
                {
                    "constraint": {"start_time": "20:00:00Z", "end_time": "21:00:00Z"},
                    "prices": {"input_mtok": 0.5, "output_mtok": 1},
                },
            ],
            price_variants=[
                {"when": {"processing": "batch"}, "prices": {"input_mtok": 1.5, "output_mtok": 4.5}}
            ],
            match={"or": [{"starts_with": "gpt-9"}, {"regex": "^gpt9-\\d{4}$"}]},
        )
    )
    for imported in (update, read_stored_price_file(price_file_json(update), source="stored")):
        assert dollars(rates(imported, "gpt-9-mini"), TokenKind.UNCACHED, 100_001) == Decimal("6.5")
        assert dollars(rates(imported, "gpt9-1234"), TokenKind.UNCACHED) == 3
        assert dollars(rates(imported, "gpt-9", tier="batch"), TokenKind.OUTPUT) == Decimal("4.5")
        assert dollars(rates(imported, "gpt-9", at=AT + 60 * 86_400), TokenKind.OUTPUT) == 2
        assert dollars(rates(imported, "gpt-9", at=AT + 8.5 * 3_600), TokenKind.OUTPUT) == 1


def test_litellm_price_lists_are_read() -> None:
    update = read(
        litellm(
            claude_opus_9={
                "input_cost_per_token": 2e-06,
                "output_cost_per_token": 1e-05,
                "cache_read_input_token_cost": 1e-07,
                "input_cost_per_token_above_200k_tokens": 4e-06,
                "input_cost_per_token_batches": 1e-06,
                "output_cost_per_token_batches": 5e-06,
            },
            claude_picture_1={"mode": "image_generation", "output_cost_per_image": 1},
            claude_free_1={"input_cost_per_token": 0.0, "output_cost_per_token": 0.0},
            claude_half_1={"input_cost_per_token": 1e-06, "output_cost_per_token": 0},
        )
    )
    model_rates = rates(update, "claude-opus-9", "anthropic")

    assert [*update.models()] == [("anthropic", "claude-opus-9")]
    assert update.skipped == {"not billed by the token": 1, "without a price": 2}
    assert dollars(model_rates, TokenKind.UNCACHED) == 2
    assert dollars(model_rates, TokenKind.OUTPUT) == 10
    assert dollars(model_rates, TokenKind.READ) == Decimal("0.1")
    assert dollars(model_rates, TokenKind.UNCACHED, 200_001) == 4
    # Prices missing from the list follow the provider's rules, or the multiple of the other prices.
    assert dollars(model_rates, TokenKind.WRITTEN_5M) == Decimal("2.5")
    assert dollars(model_rates, TokenKind.WRITTEN_1H) == 4
    batch = rates(update, "claude-opus-9", "anthropic", tier="batch")
    assert dollars(batch, TokenKind.UNCACHED) == 1
    assert dollars(batch, TokenKind.UNCACHED, 200_001) == 2


@pytest.mark.parametrize(
    ("name", "provider", "expected"),
    [
        ("gemini/gemini-9-pro", "gemini", ("google", "gemini-9-pro")),
        ("vertex_ai/claude-opus-9", "vertex_ai-anthropic_models", ("google", "claude-opus-9")),
        ("us.anthropic.claude-opus-9", "bedrock_converse", ("aws", "us.anthropic.claude-opus-9")),
        ("openrouter/anthropic/claude-opus-9", "openrouter", ("openrouter", "anthropic/claude-opus-9")),
        ("xai/grok-9", "xai", ("x-ai", "grok-9")),
    ],
)
def test_litellm_model_names_are_mapped_to_provider_and_model(
    name: str, provider: str, expected: tuple[str, str]
) -> None:
    entry = {"mode": "chat", "input_cost_per_token": 1e-06, "output_cost_per_token": 1e-06}
    update = read(json.dumps({name: entry | {"litellm_provider": provider}}).encode())

    assert [*update.models()] == [expected]
    assert not (rates(update, expected[1], expected[0]) or pytest.fail("unknown")).inherited_from


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[]",
        b"{}",
        b"7",
        b'"x"',
        b"[" * 100_000,
        b'[{"id": "openai"}]',
        b'[{"id": "openai", "models": {}}]',
        b'[{"id": 7, "models": []}]',
        b'[{"id": "openai", "models": [7]}]',
        genai({"input_mtok": -1, "output_mtok": 1}),
        genai({"input_mtok": 1e9, "output_mtok": 1}),
        genai({"input_mtok": True, "output_mtok": 1}),
        genai({"input_mtok": "a lot", "output_mtok": 1}),
        genai({"input_mtok": "NaN", "output_mtok": 1}),
        genai({"input_mtok": "Infinity", "output_mtok": 1}),
        genai({"input_mtok": [1], "output_mtok": 1}),
        genai({"input_mtok": {"base": 1, "tiers": [{"start": -5, "price": 2}]}}),
        genai({"input_mtok": {"base": 1, "tiers": [{"start": 9, "price": 2}, {"start": 8, "price": 2}]}}),
        genai({"input_mtok": {"base": 1, "tiers": 7}}),
        genai({"input_mtok": 0, "output_mtok": 0}),
        genai("free"),
        genai().replace(b": 3,", b": NaN,"),
        genai().replace(b": 3,", b": Infinity,"),
        genai().replace(b": 3,", b": 1e999999999999999999999,"),
        genai().replace(b": 3,", b": 0." + b"1" * 200 + b","),
        genai(id="x" * 1_000),
        genai(id="a\u0000b"),
        genai(match={"equals": "a", "or": []}),
        genai(match={"like": "a"}),
        genai(match=7),
        genai([{"constraint": {"start_date": "soon"}, "prices": {"input_mtok": 1}}]),
        genai([{"constraint": {"start_time": "25:00"}, "prices": {"input_mtok": 1}}]),
        genai(price_variants=[{"when": {}, "prices": {"input_mtok": 1}}]),
        litellm(claude_opus_9={"input_cost_per_token": -1e-06, "output_cost_per_token": 1e-06}),
        litellm(claude_opus_9={"input_cost_per_token": "1e-06 dollars", "output_cost_per_token": 1e-06}),
        litellm(claude_opus_9={"input_cost_per_token": 5, "output_cost_per_token": 5}),
    ],
)
def test_invalid_price_files_are_rejected(data: bytes) -> None:
    with pytest.raises(UnreadableInput, match=r"prices\.json"):
        read(data)


@pytest.mark.parametrize(
    "regex",
    [
        "(a+)+$",
        "(a*)*b",
        "(a|aa)+$",
        "a?" * 30 + "a" * 30,
        "(a?){30}a{30}",
        "a{1,30}b{1,30}c",
        ".*.*.*x",
        "(",
        "a" * 500,
    ],
)
def test_slow_regular_expressions_are_dropped(regex: str) -> None:
    update = read(genai(match={"or": [{"regex": regex[:299]}, {"starts_with": "gpt-nine"}]}))

    assert "regex" not in price_file_json(update).decode()
    assert dollars(rates(update, "gpt-nine-1"), TokenKind.OUTPUT) == 9
    assert dollars(rates(update, "gpt-9"), TokenKind.OUTPUT) == 9
    assert read(genai(match={"and": [{"regex": regex[:299]}, {"contains": "a"}]})).providers


_WORDS = [
    "id",
    "models",
    "openai",
    "match",
    "prices",
    "input_mtok",
    "or",
    "tiers",
    "base",
    "start",
    "constraint",
]
_WORDS += ["litellm_provider", "mode", "chat", "input_cost_per_token", "output_cost_per_token"]
_WORDS += ["search_context_cost_per_query"]
_LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(_WORDS)
)
_TREES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(_WORDS), inner, max_size=5),
    max_leaves=25,
)


@given(_TREES)
def test_any_json_is_read_or_rejected(value: object) -> None:
    for document in (value, [value], {"x": value}, [{"id": "openai", "models": [value]}]):
        try:
            update = read(json.dumps(document).encode())
        except UnreadableInput:
            continue
        assert price_file_json(
            read_stored_price_file(price_file_json(update), source="stored")
        ) == price_file_json(update)


def test_the_newer_of_two_sources_wins() -> None:
    price = {"input_cost_per_token": 3e-06, "output_cost_per_token": 9e-06}
    data = litellm(claude_fable_5_2=price, claude_opus_5_5=price, claude_opus_99=price)
    table_day = next(model.day for model in load_price_facts().models if model.id == "claude-fable-5-2")

    newer, older = read(data, table_day), read(data, table_day - timedelta(days=1))

    assert dollars(rates(newer, "claude-fable-5-2", "anthropic"), TokenKind.OUTPUT) == 9
    assert dollars(rates(newer, "claude-opus-5-5", "anthropic"), TokenKind.OUTPUT) == 9
    assert dollars(rates(older, "claude-fable-5-2", "anthropic"), TokenKind.OUTPUT) == 40
    assert dollars(rates(older, "claude-opus-5-5", "anthropic"), TokenKind.OUTPUT) == 20
    assert dollars(rates(older, "claude-opus-99", "anthropic"), TokenKind.OUTPUT) == 9


def test_models_of_a_price_file_join_their_family() -> None:
    update = read(litellm(claude_opus_9={"input_cost_per_token": 9e-05, "output_cost_per_token": 9e-05}))
    model_rates = rates(update, "claude-opus-10", "anthropic")

    assert model_rates is not None
    assert model_rates.inherited_from == "claude-opus"
    assert dollars(model_rates, TokenKind.OUTPUT) == 90


def test_a_new_price_file_applies_to_the_next_price() -> None:
    files: list[ImportedPrices | None] = [None]
    book = PriceBook(load_imported=lambda: files[-1])

    assert book.rates("gpt-9", provider="openai", at=AT) != rates(read(genai()), "gpt-9")
    files.append(read(genai()))
    assert dollars(book.rates("gpt-9", provider="openai", at=AT), TokenKind.OUTPUT) == 9
    files.append(None)
    assert (book.rates("gpt-9", provider="openai", at=AT) or pytest.fail("unknown")).inherited_from == "gpt"


def test_differences_list_the_change_of_each_model() -> None:
    def entry(input_: float, output: float) -> dict[str, float]:
        return {"input_cost_per_token": input_ / MILLION, "output_cost_per_token": output / MILLION}

    data = litellm(
        claude_opus_9=entry(3, 9),
        claude_opus_5_5=entry(4, 21),
        claude_opus_4_1=entry(15, 75),
        claude_fable_5_2=entry(8, 41),
    )

    def changes(day: date) -> dict[str, PriceChange]:
        return {
            difference.model: difference.change
            for difference in find_differences(PriceBook(), read(data, day), at=AT)
        }

    assert changes(TODAY) == {
        "claude-fable-5-2": PriceChange.CHANGED,
        "claude-opus-4-1": PriceChange.SAME,
        "claude-opus-5-5": PriceChange.CHANGED,
        "claude-opus-9": PriceChange.NEW,
    }
    assert changes(date(2026, 1, 1)) == {
        "claude-fable-5-2": PriceChange.KEPT,
        "claude-opus-4-1": PriceChange.KEPT,
        "claude-opus-5-5": PriceChange.KEPT,
        "claude-opus-9": PriceChange.NEW,
    }

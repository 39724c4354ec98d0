"""Caps and custom prices in the configuration."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foveate.config.cost_settings import (
    CAP_KEYS,
    PRICE_KEYS,
    TOKEN_KIND_BY_KEY,
    CostOptions,
    load_cost,
    parse_cost,
)
from foveate.cost.caps import DEFAULT_WARN_AT, Cap, CapScope, UnknownPricePolicy
from foveate.cost.pricing.custom_prices import CustomPrice, CustomPriceTier, DollarsPerMillion
from foveate.cost.pricing.price_book import PriceBook
from foveate.errors import BadSetting, UnreadableInput
from foveate.model import CacheUsage, Usage
from tests.support.oracles.setting_errors import read_error

FULL_CONFIG = """\
server: {port: 8090}
cost:
  caps:
    - {scope: call, dollars: 0.50}
    - {scope: session, dollars: 5, warn_at: 0.9}
    - scope: day
      agent: ana
      dollars: 20.10
      unknown: allow
  prices:
    - model: qwen3-*
      provider: vllm
      input: 0.20
      cached_read: 0.02
      output: 0.80
      tiers:
        - {over_tokens: 200000, input: 0.40, output: 1.2}
    - {model: claude-*, provider: bedrock, discount: 0.15, since: 2026-07-01}
"""
EXPECTED = CostOptions(
    caps=(
        Cap(scope=CapScope.CALL, dollars=Decimal("0.50")),
        Cap(scope=CapScope.SESSION, dollars=Decimal(5), warn_at=Decimal("0.9")),
        Cap(scope=CapScope.DAY, dollars=Decimal("20.10"), agent="ana", unknown=UnknownPricePolicy.ALLOW),
    ),
    prices=(
        CustomPrice(
            model="qwen3-*",
            provider="vllm",
            dollars_per_million=DollarsPerMillion(
                uncached=Decimal("0.20"), read=Decimal("0.02"), output=Decimal("0.80")
            ),
            tiers=(
                CustomPriceTier(
                    over_tokens=200_000,
                    dollars_per_million=DollarsPerMillion(uncached=Decimal("0.40"), output=Decimal("1.2")),
                ),
            ),
        ),
        CustomPrice(model="claude-*", provider="bedrock", discount=Decimal("0.15"), since=date(2026, 7, 1)),
    ),
)


def parse(text: str) -> CostOptions:
    return parse_cost(text.encode(), "foveate.yaml")


def parse_error(text: str) -> BadSetting:
    return read_error(parse, text)


def test_caps_and_prices_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_text(FULL_CONFIG, encoding="utf-8")

    assert load_cost(file) == EXPECTED


def test_a_configuration_may_be_json(tmp_path: Path) -> None:
    file = tmp_path / "foveate.json"
    file.write_text('{"cost": {"caps": [{"scope": "total", "dollars": 0.1}]}}', encoding="utf-8")

    assert load_cost(file).caps == (Cap(scope=CapScope.TOTAL, dollars=Decimal("0.1")),)


@pytest.mark.parametrize("text", ["server: {}\n", "cost:\n", "cost: {}\n", "cost: {caps: [], prices: []}\n"])
def test_a_configuration_without_a_cost_section_has_no_caps(text: str) -> None:
    assert parse(text) == CostOptions()


def test_the_minimum_output_limit_is_read() -> None:
    assert parse("cost: {min_output_tokens: 1000}").min_output_tokens == 1_000
    assert parse("cost: {allow_fields: [provider.*]}").allow_fields == ("provider.*",)
    assert CostOptions().allow_fields == ()
    assert CostOptions().min_output_tokens == 4_000


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="No such file"):
        load_cost(tmp_path / "no.yaml")


def test_omitted_values_have_their_defaults() -> None:
    (cap,) = parse("cost: {caps: [{scope: agent, dollars: 1}]}").caps

    assert (cap.agent, cap.warn_at, cap.unknown) == (None, DEFAULT_WARN_AT, UnknownPricePolicy.REJECT)


# Caps are exact to the picodollar, prices to twelve decimal places.
AMOUNTS = st.decimals(0, 4_000_000, places=12, allow_nan=False, allow_infinity=False)


@given(AMOUNTS, st.sampled_from(("yaml", "json")))
@example(Decimal("0.1"), "yaml")
@example(Decimal("3999999.123456789012"), "yaml")  # more digits than a float has
@example(Decimal("3999999.123456789012"), "json")
def test_money_is_always_read_exactly(amount: Decimal, suffix: str) -> None:
    written = f"{amount:f}"
    text = f'{{"cost": {{"caps": [{{"scope": "day", "dollars": {written}}}]}}}}'

    (cap,) = parse_cost(text.encode(), f"foveate.{suffix}").caps

    assert f"{cap.dollars:f}" == written


def test_configured_prices_are_applied_to_a_call() -> None:
    book = PriceBook(parse(FULL_CONFIG).prices)
    usage = Usage(cache=CacheUsage(uncached=100_000, read=50_000), output_tokens=10_000)

    price = book.price("qwen3-32b", usage, provider="vllm", at=datetime(2026, 11, 1, tzinfo=UTC).timestamp())

    assert price is not None
    assert price.dollars == Decimal("0.029")


PRICE = "cost:\n  prices:\n    - model: m\n"


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
    [
        ("- a\n", 1, "", "the configuration must be a mapping"),
        (
            "a: 1\ncost: 5\n",
            2,
            "cost",
            "cost must be a mapping with caps, min_output_tokens, allow_fields, prices",
        ),
        ("cost:\n  cap: []\n", 2, "cost.cap", "did you mean caps?"),
        ("cost:\n  caps:\n", 2, "cost.caps", "caps must be a list"),
        ("cost:\n  caps: {scope: day}\n", 2, "cost.caps", "caps must be a list"),
        ("cost:\n  caps:\n    - 5\n", 3, "cost.caps.0", "a cap must be a mapping with scope"),
        ("cost:\n  caps:\n    - {scope: day}\n", 3, "cost.caps.0", "a cap needs dollars"),
        ("cost:\n  caps:\n    - {dollars: 1}\n", 3, "cost.caps.0", "a cap needs scope"),
        (
            "cost:\n  caps:\n    - {scope: day, dollars: 1}\n    - scope: week\n      dollars: 1\n",
            4,
            "cost.caps.1.scope",
            "call, session, agent, day, total, not 'week'",
        ),
        ("cost:\n  caps: [{scope: 5, dollars: 1}]\n", 2, "cost.caps.0.scope", "not 5"),
        ("cost:\n  caps:\n    - {scope: day, dolars: 1}\n", 3, "cost.caps.0.dolars", "did you mean dollars?"),
        ("cost: {caps: [{scope: day, dollars: '1.5'}]}", 1, "cost.caps.0.dollars", "write 1.5 without quotes"),
        ("cost: {caps: [{scope: day, dollars: 1e3}]}", 1, "cost.caps.0.dollars", "write 1e3 as 1000"),
        ("cost: {caps: [{scope: day, dollars: 25E-2}]}", 1, "cost.caps.0.dollars", "write 25E-2 as 0.25"),
        (
            "cost: {caps: [{scope: day, dollars: 1e999}]}",
            1,
            "cost.caps.0.dollars",
            "be a number, not '1e999'",
        ),
        (
            "cost: {caps: [{scope: day, dollars: many}]}",
            1,
            "cost.caps.0.dollars",
            "be a number, not 'many'",
        ),
        ("cost: {caps: [{scope: day, dollars: yes}]}", 1, "cost.caps.0.dollars", "be a number, not True"),
        ("cost: {caps: [{scope: day, dollars: null}]}", 1, "cost.caps.0.dollars", "be a number, not None"),
        ("cost: {caps: [{scope: day, dollars: -1}]}", 1, "cost.caps.0.dollars", "from 0 to 4,000,000 dollars"),
        (
            "cost: {caps: [{scope: day, dollars: .inf}]}",
            1,
            "cost.caps.0.dollars",
            "be a number, not Decimal",
        ),
        (
            "cost: {caps: [{scope: day, dollars: .nan}]}",
            1,
            "cost.caps.0.dollars",
            "be a number, not Decimal",
        ),
        ("cost: {caps: [{scope: day, dollars: 1.0e+99}]}", 1, "cost.caps.0.dollars", "too many digits"),
        ("cost: {caps: [{scope: day, dollars: 1.0e+999999999}]}", 1, "cost.caps.0.dollars", "too many digits"),
        (
            "cost: {caps: [{scope: day, dollars: 1.0e+99999999999999999999}]}",
            1,
            "cost.caps.0.dollars",
            "this number is out of range",
        ),
        ("cost: {caps: [{scope: day, dollars: 1, agent: 7}]}", 1, "cost.caps.0.agent", "put it in quotes"),
        ("cost: {caps: [{scope: day, dollars: 1, agent: ''}]}", 1, "cost.caps.0.agent", "agent is empty"),
        ("cost: {caps: [{scope: day, dollars: 1, warn_at: 80}]}", 1, "cost.caps.0.warn_at", "from 0 to 1"),
        ("cost: {caps: [{scope: day, dollars: 1, unknown: no}]}", 1, "cost.caps.0.unknown", "refuse, allow"),
        (
            "cost:\n  caps:\n    - {scope: day, dollars: 1}\n    - {scope: day, dollars: 2}\n",
            4,
            "cost.caps.1",
            "is defined twice, as cap 1 and cap 2",
        ),
        (
            "cost:\n caps:\n - {scope: agent, agent: a, dollars: 1}\n - {scope: total, agent: a, dollars: 2}\n",
            4,
            "cost.caps.1",
            "the cap on agent a is defined twice",
        ),
        (
            "cost:\n  prices:\n    - {input: 1, output: 2}\n",
            3,
            "cost.prices.0",
            "needs the name or glob",
        ),
        (
            "cost:\n  min_output_tokens: 0\n",
            2,
            "cost.min_output_tokens",
            "a whole number of tokens, at least 1",
        ),
        ("cost:\n  allow_fields: provider\n", 2, "cost.allow_fields", "allow_fields must be a list"),
        ("cost:\n  allow_fields: [1]\n", 2, "cost.allow_fields.0", "names such as `provider.order`, not 1"),
        ("cost: {min_output_tokens: many}\n", 1, "cost.min_output_tokens", "not 'many'"),
        (PRICE, 3, "cost.prices.0", "the price of m needs input and output"),
        (f"{PRICE}      input: 1\n", 3, "cost.prices.0", "the price of m needs output"),
        (
            f"{PRICE}      input: -1\n      output: 1\n",
            4,
            "cost.prices.0.input",
            "input must be a number, 0 or more, not",
        ),
        (
            f"{PRICE}      input: 1\n      output: 1\n      write_1h: 0.1234567890123\n",
            6,
            "cost.prices.0.write_1h",
            "write_1h must be at most 1,000,000,000 with at most 12 decimals",
        ),
        (f"{PRICE}      input: 1\n      discount: 0.1\n", 5, "cost.prices.0.discount", ", not both"),
        (f"{PRICE}      discount: 15\n", 4, "cost.prices.0.discount", "write 0.15 for 15%"),
        (f"{PRICE}      cache_read: 1\n", 4, "cost.prices.0.cache_read", "did you mean cached_read?"),
        (
            f"{PRICE}      discount: 0.1\n      since: 2026-02-30\n",
            5,
            "cost.prices.0.since",
            "must be a date such as",
        ),
        (f"{PRICE}      discount: 0.1\n      since: 2026\n", 5, "cost.prices.0.since", "not 2026"),
        (
            f"{PRICE}      input: 1\n      output: 1\n      tiers:\n        - {{input: 2}}\n",
            7,
            "cost.prices.0.tiers.0",
            "needs over_tokens",
        ),
        (
            f"{PRICE}      input: 1\n      output: 1\n      tiers:\n        - {{over_tokens: 2}}\n",
            7,
            "cost.prices.0.tiers.0",
            "a tier needs a price",
        ),
        (
            f"{PRICE}      input: 1\n      output: 1\n      tiers:\n        - {{over_tokens: 2.5, input: 1}}\n",
            7,
            "cost.prices.0.tiers.0.over_tokens",
            "must be a whole number",
        ),
        (
            f"{PRICE}      discount: 0.1\n    - model: M\n      discount: 0.2\n",
            5,
            "cost.prices.1",
            "there are two prices of M",
        ),
    ],
)
def test_invalid_values_are_reported_with_file_line_and_key(
    text: str, line: int, key: str, message: str
) -> None:
    error = parse_error(text)

    assert str(error).startswith(f"foveate.yaml:{line}: ")
    assert error.key == key
    assert message in error.reason


@pytest.mark.parametrize("number", ["1e99999999999999999999", "NaN", "-Infinity", "1e400"])
def test_a_json_number_that_is_not_an_amount_is_rejected(number: str) -> None:
    text = f'{{"cost": {{"caps": [{{"scope": "day", "dollars": {number}}}]}}}}'

    assert isinstance(read_error(parse_cost, text.encode(), "foveate.json"), BadSetting)


JUNK: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.decimals().map(str),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from((*CAP_KEYS, *PRICE_KEYS, *TOKEN_KIND_BY_KEY, "caps", "prices")), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@given(JUNK, JUNK)
def test_any_value_is_read_or_rejected_with_its_key_path(caps: Any, prices: Any) -> None:
    data = json.dumps({"cost": {"caps": caps, "prices": prices}}).encode()
    try:
        options = parse_cost(data, "foveate.json")
    except BadSetting as error:
        key = error.key
    else:
        assert (len(options.caps), len(options.prices)) == (len(caps), len(prices))
        return
    assert key == "" or key.startswith("cost.")

"""The documentation of costs has every scope, category and setting, and a valid example."""

import re
from pathlib import Path

import pytest

from foveate.config.cost_settings import CAP_KEYS, COST_KEYS, PRICE_KEYS, TIER_KEYS, parse_cost
from foveate.cost.admission import AdmissionOptions
from foveate.cost.caps import DEFAULT_WARN_AT, CapScope, UnknownPricePolicy
from foveate.cost.ledger import Category, GroupBy
from foveate.cost.pricing.price_book import PriceBook


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    """The two pages on costs and on caps."""
    return "\n".join(
        (root / "docs" / "guides" / name).read_text(encoding="utf-8")
        for name in ("cost.md", "spending-caps.md")
    )


@pytest.mark.parametrize("word", [*CapScope, *Category])
def test_every_scope_and_category_is_documented(page: str, word: str) -> None:
    assert re.search(rf"^\| `{word}` \| \S", page, re.MULTILINE), (
        f"docs/guides/cost.md and spending-caps.md do not explain {word}"
    )


@pytest.mark.parametrize("key", sorted({*CAP_KEYS, *PRICE_KEYS}))
def test_every_setting_is_documented(page: str, key: str) -> None:
    assert re.search(rf"^\| (`\w+`, )*`{key}`[^|]*\| \S", page, re.MULTILINE), (
        f"docs/guides/cost.md and spending-caps.md do not explain {key}"
    )


@pytest.mark.parametrize(
    "word", [*COST_KEYS, *TIER_KEYS, *UnknownPricePolicy, *GroupBy, "warnings", "lease_seconds"]
)
def test_every_term_is_documented(page: str, word: str) -> None:
    assert re.search(rf"\b{word}\b", page), f"docs/guides/cost.md and spending-caps.md do not mention {word}"


def test_documented_defaults_are_correct(page: str) -> None:
    assert re.search(rf"^\| `warn_at` \|.*\| {DEFAULT_WARN_AT} \|$", page, re.MULTILINE)
    options = AdmissionOptions()
    assert f"`lease_seconds` ({options.lease_seconds:g} s)" in page
    assert f"({options.max_waiting:,} of them at most)" in page


def test_the_documented_examples_are_valid(page: str) -> None:
    examples = re.findall(r"^```yaml\n(cost:\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    parsed = [parse_cost(example.encode(), "cost.yaml") for example in examples]

    assert {cap.scope for options in parsed for cap in options.caps} == set(CapScope)
    (prices,) = (options.prices for options in parsed if options.prices)
    assert len(prices) == 4
    PriceBook(prices)

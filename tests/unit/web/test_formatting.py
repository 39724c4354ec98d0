"""Formats of numbers and times."""

from collections.abc import Sequence
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.web import formatting


@pytest.mark.parametrize(
    ("dollars", "text"),
    [
        (None, "unknown"),
        (Decimal(0), "$0.00"),
        (Decimal("0.0000004"), "<$0.0001"),
        (Decimal("0.00005"), "$0.0001"),
        (Decimal("0.0071049"), "$0.0071"),
        (Decimal("0.5"), "$0.50"),
        (Decimal("0.0123"), "$0.0123"),
        (Decimal("1.265"), "$1.27"),
        (Decimal("-3.1"), "-$3.10"),
        (Decimal("12345.678"), "$12,345.68"),
    ],
)
def test_money_has_two_decimals_and_small_amounts_up_to_four(dollars: Decimal | None, text: str) -> None:
    assert formatting.format_money(dollars) == text


@pytest.mark.parametrize(
    ("amounts", "texts"),
    [
        (("0.5", "0.01234", "0"), ("$0.5000", "$0.0123", "$0.0000")),
        (("1.5", "0.004", "0.0001"), ("$1.500", "$0.004", "<$0.001")),
        (("12.5", "0.004", None), ("$12.50", "<$0.01", "unknown")),
        (("0", "0"), ("$0.00", "$0.00")),
        (("-0.2", "0.00001"), ("-$0.2000", "<$0.0001")),
    ],
)
def test_amounts_of_a_column_have_the_same_decimals(
    amounts: Sequence[str | None], texts: Sequence[str]
) -> None:
    column = [None if amount is None else Decimal(amount) for amount in amounts]
    decimals = formatting.choose_decimals(column)

    assert [formatting.format_money(amount, decimals) for amount in column] == list(texts)


def test_money_in_a_chart_has_no_floating_point_noise() -> None:
    assert formatting.format_chart_dollars(0.1 + 0.2) == "$0.30"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"), (0, "0"), (999, "999"), (1_000, "1k"), (9_994, "9.99k"), (12_345, "12.3k"),
        (99_950, "100k"), (999_499, "999k"), (999_950, "1M"), (1_250_000, "1.25M"), (1_234_567_890, "1,235M"),
        (-12_345, "-12.3k"),
    ],
)  # fmt: skip
def test_tokens_have_at_most_three_digits(count: int | None, text: str) -> None:
    assert formatting.format_tokens(count) == text


@given(st.integers(min_value=0, max_value=10**15))
def test_formatted_tokens_are_within_half_a_percent(count: int) -> None:
    text = formatting.format_tokens(count).replace(",", "")
    value = float(text.rstrip("kM")) * {"k": 1e3, "M": 1e6}.get(text[-1], 1)

    assert value == pytest.approx(count, rel=0.0051)


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(None, "unknown"), (0.0, "0%"), (0.0001, "0.1%"), (0.934, "93.4%"), (0.99999, "99.9%"), (1.0, "100%")],
)
def test_a_percentage_is_100_or_0_only_if_exact(fraction: float | None, text: str) -> None:
    assert formatting.format_percent(fraction) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"), (0.0, "0 ms"), (1e-9, "1 µs"), (0.00004, "40 µs"), (0.0000996, "0.1 ms"),
        (0.0008, "0.8 ms"), (0.012, "12 ms"), (0.9996, "1.0 s"), (59.96, "1 min"), (240.0, "4 min"),
        (9_000.0, "2.5 h"),
    ],
)  # fmt: skip
def test_durations_use_a_suitable_unit(seconds: float | None, text: str) -> None:
    assert formatting.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-10_900, "in 3 h"), (-60, "in 1 min"),
        (-5, "just now"), (1, "just now"), (42.9, "42 s ago"), (119, "1 min ago"), (7_000, "1 h ago"),
        (100_000, "27 h ago"), (1e6, "11 days ago"),
    ],
)  # fmt: skip
def test_an_age_is_never_overstated(seconds: float, text: str) -> None:
    assert formatting.format_age(1_000.0, 1_000.0 + seconds) == text


def test_moments_are_in_utc() -> None:
    assert formatting.format_moment(1_794_744_000.0) == "2026-11-15 12:00:00 UTC"
    assert formatting.format_iso_moment(1_794_744_000.0) == "2026-11-15T12:00:00+00:00"


@pytest.mark.parametrize("name", ["👨‍👩‍👧" * 20, "é" * 40, "a" * 500, "🇩🇪" * 300])
def test_a_long_name_is_shortened_between_graphemes(name: str) -> None:
    shortened = formatting.shorten_name(name)

    assert shortened.endswith("…")
    assert len(shortened) <= 24
    rest = name.removeprefix(shortened.removesuffix("…"))
    assert not rest[0].startswith(("\u200d", "\u0301", "\ufe0f"))
    assert len(shortened.removesuffix("…")) % len(name[: {"👨": 5, "🇩": 2}.get(name[0], 1)]) == 0


def test_any_name_is_one_segment_of_a_path() -> None:
    assert formatting.quote_path_segment("a/b?c#d <script>") == "a%2Fb%3Fc%23d%20%3Cscript%3E"


def test_a_count_of_one_has_a_singular_noun() -> None:
    assert [formatting.format_count(count, "call") for count in (0, 1, 1_234)] == [
        "0 calls",
        "1 call",
        "1,234 calls",
    ]
    assert formatting.format_count(2, "cache miss") == "2 cache misses"

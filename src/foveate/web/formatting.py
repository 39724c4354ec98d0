"""Formats numbers and times for pages."""

import shlex
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Any
from urllib.parse import quote

from foveate.budget import graphemes
from foveate.compaction.store import CompactionOutcome
from foveate.cost.money import format_dollars
from foveate.prompt_cache.misses.causes import describe_cause
from foveate.session.traces import describe_action, describe_step

UNKNOWN = "unknown"
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_FEW_DECIMALS, _MANY_DECIMALS = 2, 4
_EXACT_DIGITS = 9


def format_money(dollars: Decimal | None, decimals: int | None = None) -> str:
    """`$1.27`, `$0.0413`; an amount that would be rounded to zero is `<$0.0001`.

    Without `decimals`, amounts from a dollar on have two decimals, and smaller ones two to four.
    """
    if dollars is None:
        return UNKNOWN
    max_decimals = decimals or (_FEW_DECIMALS if abs(dollars) >= 1 else _MANY_DECIMALS)
    smallest = Decimal(1).scaleb(-max_decimals)
    rounded = abs(dollars).quantize(smallest, ROUND_HALF_UP)
    sign = "-" if dollars < 0 else ""
    if dollars and not rounded:
        return f"{sign}<${smallest:f}"
    return f"{sign}${rounded:,f}" if decimals else format_dollars(rounded.copy_sign(dollars))


def choose_decimals(amounts: Iterable[Decimal | float | None]) -> int:
    """Choose the decimals of a column by its largest amount: four below a dollar, three below ten, else two."""
    largest = max((abs(float(amount)) for amount in amounts if amount is not None), default=0.0)
    if not 0 < largest < 10:
        return _FEW_DECIMALS
    return _MANY_DECIMALS if largest < 1 else 3


def format_chart_dollars(amount: float, decimals: int | None = None) -> str:
    """Format a chart value, without floating-point noise."""
    return format_money(Decimal(str(round(amount, _EXACT_DIGITS))), decimals)


def format_savings(dollars: Decimal | None, decimals: int | None = None) -> str:
    """`$1.27`; additional cost is negative, `−$0.0413`."""
    if dollars is not None and dollars < 0:
        return f"−{format_money(-dollars, decimals)}"
    return format_money(dollars, decimals)


def format_difference(dollars: Decimal, decimals: int | None = None) -> str:
    """`+$1.27`, `−$0.0413`."""
    return f"{'+' if dollars > 0 else '−' if dollars < 0 else ''}{format_money(abs(dollars), decimals)}"


_OUTCOME_LABELS = {
    CompactionOutcome.OK: "done",
    CompactionOutcome.FAILED: "failed",
    CompactionOutcome.LOCK_HELD: "skipped",
    CompactionOutcome.NO_BOUNDARY: "not possible",
    CompactionOutcome.TOOL_RESULT_TRUNCATED: "tool results shortened",
    CompactionOutcome.RESULTS_CLEARED: "tool results cleared",
    CompactionOutcome.SECTIONS_MOVED: "sections moved",
}


def format_outcome(outcome: CompactionOutcome) -> str:
    return _OUTCOME_LABELS[outcome]


def format_number(count: float | None) -> str:
    """`12,345`."""
    return UNKNOWN if count is None else f"{count:,.0f}"


def format_tokens(count: int | None) -> str:
    """`950`, `12.3k`, `1.25M`: at most three digits."""
    if count is None:
        return UNKNOWN
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        # What would be rounded to 1,000k is 1M.
        if abs(count) >= size - size / 2_000 and abs(count) >= 1_000:
            scaled = abs(count) / size
            digits = 0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2
            text = f"{count / size:,.{digits}f}"
            return f"{text.rstrip('0').rstrip('.') if digits else text}{letter}"
    return str(count)


def format_percent(part: float | None) -> str:
    """`93.4%`; 100% only if it is all, and 0% only if it is nothing."""
    if part is None:
        return UNKNOWN
    percentage = min(round(100 * part, 1), 99.9) if part < 1 else round(100 * part, 1)
    return f"{max(percentage, 0.1) if part > 0 else percentage:g}%"


def format_duration(duration: float | None) -> str:
    """`40 µs`, `0.8 ms`, `12 ms`, `3.1 s`, `4 min`, `2.5 h`; zero only if it is zero."""
    if duration is None:
        return UNKNOWN
    milliseconds = 1_000 * duration
    if 0 < milliseconds < 0.0995:
        return f"{max(1, 1_000 * milliseconds):.0f} µs"
    if milliseconds < 999.5:
        return f"{milliseconds:.{1 if 0 < milliseconds < 9.95 else 0}f} ms"
    if duration < _MINUTE - 0.05:
        return f"{duration:.1f} s"
    return f"{duration / _MINUTE:.0f} min" if duration < 2 * _HOUR else f"{duration / _HOUR:,.1f} h"


def format_moment(at: float) -> str:
    """`2026-11-16 09:30:12 UTC`."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_clock(at: float) -> str:
    """`2026-11-16 09:30:12`, if the page says that times are UTC."""
    return format_moment(at).removesuffix(" UTC")


def format_iso_moment(at: float) -> str:
    """Format a time for the `datetime` attribute."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def format_age(at: float, now: float) -> str:
    """`just now`, `42 s ago`, `5 min ago`, `3 h ago`, `12 days ago`; `in 3 h` if the clock was set back."""
    elapsed_seconds = now - at
    # Clocks of two machines always differ a little.
    if -_MINUTE < elapsed_seconds < 2:
        return "just now"
    return (
        f"{_format_elapsed(elapsed_seconds)} ago"
        if elapsed_seconds > 0
        else f"in {_format_elapsed(-elapsed_seconds)}"
    )


def _format_elapsed(elapsed_seconds: float) -> str:
    for size, word in ((_DAY, "days"), (_HOUR, "h"), (_MINUTE, "min")):
        if elapsed_seconds >= 2 * size or (size < _DAY and elapsed_seconds >= size):
            return f"{elapsed_seconds // size:,.0f} {word}"
    return f"{elapsed_seconds // 1:.0f} s"


def shorten_name(name: str, max_chars: int = 24) -> str:
    """Shorten a name without splitting a grapheme."""
    return (
        name
        if len(name) <= max_chars
        else f"{name[: graphemes.boundary_at_or_before(name[: 4 * max_chars], max_chars - 1)]}…"
    )


def format_count(count: int, noun: str) -> str:
    """`1 request`, `12 requests`, `2 cache misses`."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{'' if count == 1 else plural}"


def quote_path_segment(name: str) -> str:
    return quote(name, safe="")


FILTERS: dict[str, Callable[..., Any]] = {
    "action": describe_action,
    "ago": format_age,
    "as_dollars": format_chart_dollars,
    "cause": describe_cause,
    "clock": format_clock,
    "counted": format_count,
    "decimals": choose_decimals,
    "exact_dollars": format_dollars,
    "in_path": quote_path_segment,
    "machine_moment": format_iso_moment,
    "moment": format_moment,
    "money": format_money,
    "number": format_number,
    "outcome": format_outcome,
    "percent": format_percent,
    "saved": format_savings,
    "signed": format_difference,
    "seconds": format_duration,
    "short": shorten_name,
    "step": describe_step,
    "tokens": format_tokens,
}


def export_lines(url: str) -> tuple[str, ...]:
    return f"export ANTHROPIC_BASE_URL={shlex.quote(url)}", f"export OPENAI_BASE_URL={shlex.quote(f'{url}/v1')}"

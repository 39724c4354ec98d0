"""Converts charges to rows of the ledger and back, and builds queries that sum them."""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from blake3 import blake3

from foveate.cost.caps import utc_day
from foveate.cost.ledger import Call, Category, Charge, ChargeTotal, GroupBy
from foveate.cost.money import to_dollars, to_picodollars
from foveate.errors import BadOption
from foveate.model import CacheUsage, ComparisonOutcome, Savings, Usage
from foveate.store.database import build_where_clause

SAVINGS_COLUMNS = (
    "comparison, without_picodollars, saved_by_compaction, saved_by_context, saved_by_breakpoints,"
    " saved_by_keep_alive, simulation_error"
)
LEDGER_COLUMNS = f"""
call_id, at, agent, session_id, provider, model, category, uncached, read, written_5m, written_1h,
output_tokens, reasoning_tokens, picodollars, said_dollars, tier, estimated_input_tokens,
estimated_picodollars, {SAVINGS_COLUMNS}, is_partial, usage, is_inherited, is_subscription,
is_possibly_charged, charged_picodollars
"""
_ROW_COLUMNS = ["day", *(name.strip() for name in LEDGER_COLUMNS.split(","))]
SPENT_INDEX = _ROW_COLUMNS.index("picodollars")
CHARGED_INDEX = _ROW_COLUMNS.index("charged_picodollars")
"""The amount charged to accounts, also if the price is unknown."""
ADD_CHARGES = f"""
INSERT INTO ledger_v1 (day, {LEDGER_COLUMNS}) VALUES {{}} ON CONFLICT (call_id) DO NOTHING RETURNING call_id
"""
_TOKEN_COLUMNS = ("uncached", "read", "written_5m", "written_1h", "output_tokens", "reasoning_tokens")
_MONEY_COLUMNS = (
    *("picodollars", "estimated_picodollars", "without_picodollars", "saved_by_compaction", "saved_by_context"),
    *("saved_by_breakpoints", "saved_by_keep_alive", "simulation_error"),
)
_WOULD_NOT_FIT = f"comparison = '{ComparisonOutcome.WOULD_NOT_FIT}'"
# SQLite's sums overflow at 64 bits, so high and low digits are summed separately.
_LOW_DIGITS = 10**9
_SUM_EXPRESSIONS = ", ".join(
    f"sum({column} / {_LOW_DIGITS}), sum({column} - {column} / {_LOW_DIGITS} * {_LOW_DIGITS})"
    for column in (
        *(*_TOKEN_COLUMNS, *_MONEY_COLUMNS, f"(CASE WHEN {_WOULD_NOT_FIT} THEN picodollars END)"),
        *("(picodollars * is_inherited)", "(picodollars * is_subscription)"),
        "(charged_picodollars * is_possibly_charged)",
    )
)
# PostgreSQL's index entries have at most 2,700 bytes.
_MAX_NAME_CHARS = 500
_MAX_TOKENS = 2**62
_GROUP_COLUMNS = {
    GroupBy.AGENT: "agent",
    GroupBy.SESSION: "session_id",
    GroupBy.MODEL: "model",
    GroupBy.CATEGORY: "category",
    GroupBy.DAY: "day",
}


def build_condition(
    since: float | None,
    until: float | None,
    agent: str | None,
    session_id: str | None,
    after: tuple[float, str] | None = None,
) -> tuple[str, list[Any]]:
    return build_where_clause(
        {
            "at >= ?": None if since is None else (since,),
            "at < ?": None if until is None else (until,),
            "agent = ?": None if agent is None else (to_storable_name(agent),),
            "session_id = ?": None if session_id is None else (to_storable_name(session_id),),
            "(at, call_id) > (?, ?)": after,
        }
    )


def build_sum_query(by: Sequence[GroupBy], where_clause: str) -> str:
    groups = [_GROUP_COLUMNS[dimension] for dimension in by]
    counts = (
        *("count(*)", "count(picodollars)", "sum(is_partial)", "count(without_picodollars)"),
        *(f"sum(CASE WHEN {_WOULD_NOT_FIT} THEN 1 ELSE 0 END)", "sum(is_inherited)", "sum(is_subscription)"),
        "sum(is_possibly_charged)",
    )
    group_by = f"GROUP BY {', '.join(groups)}" if groups else ""
    return (
        f"SELECT {', '.join((*groups, *counts))}, {_SUM_EXPRESSIONS} FROM ledger_v1 {where_clause} {group_by}"
    )


def to_sum(
    group: tuple[str, ...],
    calls: int,
    known: int,
    partial: int | None,
    compared: int,
    would_not_fit: int | None,
    inherited: int | None,
    subscription: int | None,
    possibly_charged: int | None,
    *halves: Any,
) -> ChargeTotal:
    added = [
        None if high is None else int(high) * _LOW_DIGITS + int(low)
        for high, low in zip(halves[::2], halves[1::2], strict=True)
    ]
    tokens = dict(zip(_TOKEN_COLUMNS, (number or 0 for number in added), strict=False))
    spent, estimated, *saved, not_fitting, inherited_spent, subscription_spent, possible = added[
        len(_TOKEN_COLUMNS) :
    ]
    return ChargeTotal(
        group=group,
        calls=calls,
        unknown_calls=calls - known,
        dollars=to_dollars(spent or 0),
        estimated_dollars=to_dollars(estimated or 0),
        savings=to_savings(ComparisonOutcome.SIMULATED, *saved),
        partial_calls=int(partial or 0),
        compared_calls=compared,
        would_not_fit_calls=int(would_not_fit or 0),
        would_not_fit_dollars=to_dollars(not_fitting or 0),
        inherited_calls=int(inherited or 0),
        inherited_dollars=to_dollars(inherited_spent or 0),
        subscription_calls=int(subscription or 0),
        subscription_dollars=to_dollars(subscription_spent or 0),
        possibly_charged_calls=int(possibly_charged or 0),
        possibly_charged_dollars=to_dollars(possible or 0),
        **tokens,
    )


def to_ledger_row(charge: Charge) -> tuple[Any, ...]:
    """Convert a charge to its day and the values of `LEDGER_COLUMNS`.

    Raises:
        BadOption: a number is out of range.
    """
    call, usage, cache, savings = charge.call, charge.usage, charge.usage.cache, charge.savings
    raw_names = (call.id, call.agent, call.session_id, call.provider, call.model, usage.tier)
    id_, agent, session_id, provider, model, tier = to_storable_names(*raw_names)
    input_tokens = (cache.uncached, cache.read, cache.written_5m, cache.written_1h)
    tokens = (*input_tokens, usage.output_tokens, usage.reasoning_tokens)
    estimated = charge.estimated_input_tokens
    for number in tokens if estimated is None else (*tokens, estimated):
        if not 0 <= number <= _MAX_TOKENS:
            raise BadOption(f"{number} is not a valid number of tokens")
    saved = (
        *(savings.without, savings.compaction, savings.context, savings.breakpoints, savings.keep_alive),
        savings.simulation_error,
    )
    spent = None if charge.dollars is None else read_amount(charge.dollars)
    charged = read_amount(charge.charge) if spent is None and charge.charge is not None else spent
    return (
        utc_day(call.at),
        id_,
        call.at,
        agent,
        session_id,
        provider,
        model,
        call.category.value,
        *tokens,
        spent,
        None if usage.reported_dollars is None else str(usage.reported_dollars),
        tier,
        estimated,
        _to_picodollars_or_none(charge.estimated_dollars),
        savings.comparison.value,
        *[_to_picodollars_or_none(amount) for amount in saved],
        int(charge.is_partial),
        usage.raw,
        int(charge.is_inherited),
        int(call.is_subscription),
        int(charge.is_possibly_charged),
        charged,
    )


def from_ledger_row(
    id_: str,
    at: float,
    agent: str,
    session_id: str,
    provider: str,
    model: str,
    category: str,
    uncached: int,
    read: int,
    written_5m: int,
    written_1h: int,
    output_tokens: int,
    reasoning_tokens: int,
    spent: int | None,
    reported: str | None,
    tier: str,
    estimated_input_tokens: int | None,
    estimated: int | None,
    comparison: str,
    without: int | None,
    by_compaction: int | None,
    by_context: int | None,
    by_breakpoints: int | None,
    by_keep_alive: int | None,
    simulation_error: int | None,
    is_partial: int,
    raw: bytes,
    is_inherited: int,
    is_subscription: int,
    is_possibly_charged: int,
    charged: int | None,
) -> Charge:
    saved = without, by_compaction, by_context, by_breakpoints, by_keep_alive, simulation_error
    return Charge(
        call=Call(
            id=id_,
            agent=agent,
            session_id=session_id,
            provider=provider,
            model=model,
            category=Category(category),
            at=at,
            is_subscription=bool(is_subscription),
        ),
        usage=Usage(
            cache=CacheUsage(uncached=uncached, read=read, written_5m=written_5m, written_1h=written_1h),
            output_tokens=output_tokens,
            reasoning_tokens=reasoning_tokens,
            reported_dollars=None if reported is None else Decimal(reported),
            tier=tier,
            raw=raw,
        ),
        dollars=_to_dollars(spent),
        estimated_input_tokens=estimated_input_tokens,
        estimated_dollars=_to_dollars(estimated),
        savings=to_savings(comparison, *saved),
        is_partial=bool(is_partial),
        is_inherited=bool(is_inherited),
        is_possibly_charged=bool(is_possibly_charged),
        charge=_to_dollars(charged) if spent is None and charged else None,
    )


def to_savings(comparison: str, *amounts: int | None) -> Savings:
    without, compaction, context, breakpoints, keep_alive, simulation_error = map(_to_dollars, amounts)
    return Savings(
        comparison=ComparisonOutcome(comparison),
        without=without,
        compaction=compaction,
        context=context,
        breakpoints=breakpoints,
        keep_alive=keep_alive,
        simulation_error=simulation_error,
    )


def _to_dollars(amount: int | None) -> Decimal | None:
    return None if amount is None else to_dollars(amount)


def read_amount(money: Decimal, *, convert: Callable[[Decimal], int] = to_picodollars) -> int:
    """Convert an amount that is charged to whole picodollars.

    Raises:
        BadOption: the amount is negative, too large or not a number.
    """
    try:
        amount = convert(money)
    except OverflowError as error:
        raise BadOption(str(error)) from None
    if amount < 0:
        raise BadOption(f"an amount of dollars must not be negative: {money}")
    return amount


def _to_picodollars_or_none(money: Decimal | None) -> int | None:
    """Convert an amount that is not charged; None if it cannot be stored, so that the charge still can be."""
    if money is None:
        return None
    try:
        return to_picodollars(money)
    except OverflowError:
        return None


def to_storable_names(*raw_names: str) -> tuple[str, ...]:
    """Apply `to_storable_name` to each name; faster if all are storable as they are."""
    joined = "".join(raw_names)
    is_storable = len(joined) <= _MAX_NAME_CHARS and joined.isprintable()
    return raw_names if is_storable else tuple(map(to_storable_name, raw_names))


def to_storable_name(raw_name: str) -> str:
    """Replace what a database cannot store, and cut long names, so that no charge is lost because of a name."""
    if len(raw_name) <= _MAX_NAME_CHARS and raw_name.isprintable():
        return raw_name
    encoded = raw_name.replace("\0", "\ufffd").encode("utf-8", "replace")
    if len(raw_name) <= _MAX_NAME_CHARS:
        return encoded.decode()
    return f"{encoded.decode()[:_MAX_NAME_CHARS]}… {blake3(encoded).hexdigest(16)}"

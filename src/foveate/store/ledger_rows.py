"""Calls and what they cost as rows of a table, there and back, and how they are added up."""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from blake3 import blake3

from foveate.cost.caps import day_of
from foveate.cost.ledger import By, Call, Category, Entry, Sum
from foveate.cost.money import dollars, picodollars
from foveate.errors import BadOption
from foveate.store.database import where_of
from foveate.values import CacheUsage, Comparison, Savings, Usage

SAVINGS_COLUMNS = (
    "comparison, without_picodollars, saved_by_compaction, saved_by_context, saved_by_breakpoints,"
    " saved_by_keep_alive, simulation_error"
)
COLUMNS = f"""
call_id, at, agent, session_id, provider, model, category, uncached, read, written_5m, written_1h,
output_tokens, reasoning_tokens, picodollars, said_dollars, tier, estimated_input_tokens,
estimated_picodollars, {SAVINGS_COLUMNS}, is_partial, usage, is_inherited, is_subscription,
is_possibly_charged, charged_picodollars
"""
_PLACES = ["day", *(name.strip() for name in COLUMNS.split(","))]
SPENT_AT = _PLACES.index("picodollars")
"""Where a row has what its call cost."""
CHARGED_AT = _PLACES.index("charged_picodollars")
"""Where a row has what its accounts are charged, known or not what it cost."""
ADD_ENTRIES = f"""
INSERT INTO ledger_v1 (day, {COLUMNS}) VALUES {{}} ON CONFLICT (call_id) DO NOTHING RETURNING call_id
"""
_TOKENS = ("uncached", "read", "written_5m", "written_1h", "output_tokens", "reasoning_tokens")
_MONEY = (
    *("picodollars", "estimated_picodollars", "without_picodollars", "saved_by_compaction", "saved_by_context"),
    *("saved_by_breakpoints", "saved_by_keep_alive", "simulation_error"),
)
_WOULD_NOT_FIT = f"comparison = '{Comparison.WOULD_NOT_FIT}'"
# SQLite adds up to 64 bits and no further: the high digits apart from the low ones, there are enough of them.
_LOW = 10**9
_ALL_SUMS = ", ".join(
    f"sum({column} / {_LOW}), sum({column} - {column} / {_LOW} * {_LOW})"
    for column in (
        *(*_TOKENS, *_MONEY, f"(CASE WHEN {_WOULD_NOT_FIT} THEN picodollars END)"),
        *("(picodollars * is_inherited)", "(picodollars * is_subscription)"),
        "(charged_picodollars * is_possibly_charged)",
    )
)
# PostgreSQL's indexes take 2,700 bytes.
_LONGEST_NAME = 500
_MOST_TOKENS = 2**62
_COLUMN_OF = {
    By.AGENT: "agent",
    By.SESSION: "session_id",
    By.MODEL: "model",
    By.CATEGORY: "category",
    By.DAY: "day",
}


def condition(
    since: float | None,
    until: float | None,
    agent: str | None,
    session_id: str | None,
    after: tuple[float, str] | None = None,
) -> tuple[str, list[Any]]:
    """The condition that says which entries are asked for, and its values."""
    return where_of(
        {
            "at >= ?": None if since is None else (since,),
            "at < ?": None if until is None else (until,),
            "agent = ?": None if agent is None else (name_of(agent),),
            "session_id = ?": None if session_id is None else (name_of(session_id),),
            "(at, call_id) > (?, ?)": after,
        }
    )


def summing(by: Sequence[By], where: str) -> str:
    """The statement that adds up entries, its rows as `sum_of` reads them."""
    groups = [_COLUMN_OF[one] for one in by]
    counted = (
        *("count(*)", "count(picodollars)", "sum(is_partial)", "count(without_picodollars)"),
        *(f"sum(CASE WHEN {_WOULD_NOT_FIT} THEN 1 ELSE 0 END)", "sum(is_inherited)", "sum(is_subscription)"),
        "sum(is_possibly_charged)",
    )
    grouped = f"GROUP BY {', '.join(groups)}" if groups else ""
    return f"SELECT {', '.join((*groups, *counted))}, {_ALL_SUMS} FROM ledger_v1 {where} {grouped}"


def sum_of(
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
) -> Sum:
    """A group's sum, by what the statement above says of it."""
    added = [
        None if high is None else int(high) * _LOW + int(low)
        for high, low in zip(halves[::2], halves[1::2], strict=True)
    ]
    tokens = dict(zip(_TOKENS, (number or 0 for number in added), strict=False))
    spent, estimated, *saved, not_fitting, inherited_spent, subscription_spent, possible = added[len(_TOKENS) :]
    return Sum(
        group=group,
        calls=calls,
        unknown_calls=calls - known,
        dollars=dollars(spent or 0),
        estimated_dollars=dollars(estimated or 0),
        savings=savings_of(Comparison.SIMULATED, *saved),
        partial_calls=int(partial or 0),
        compared_calls=compared,
        would_not_fit_calls=int(would_not_fit or 0),
        would_not_fit_dollars=dollars(not_fitting or 0),
        inherited_calls=int(inherited or 0),
        inherited_dollars=dollars(inherited_spent or 0),
        subscription_calls=int(subscription or 0),
        subscription_dollars=dollars(subscription_spent or 0),
        possibly_charged_calls=int(possibly_charged or 0),
        possibly_charged_dollars=dollars(possible or 0),
        **tokens,
    )


def row_of(entry: Entry) -> tuple[Any, ...]:
    """An entry as a row: its day, then the columns above.

    Raises:
        BadOption: it has numbers that cannot be.
    """
    call, usage, cache, savings = entry.call, entry.usage, entry.usage.cache, entry.savings
    named = (call.id, call.agent, call.session_id, call.provider, call.model, usage.tier)
    id_, agent, session_id, provider, model, tier = names_of(*named)
    entered = (cache.uncached, cache.read, cache.written_5m, cache.written_1h)
    tokens = (*entered, usage.output_tokens, usage.reasoning_tokens)
    estimated = entry.estimated_input_tokens
    for number in tokens if estimated is None else (*tokens, estimated):
        if not 0 <= number <= _MOST_TOKENS:
            raise BadOption(f"{number} tokens: that cannot be")
    saved = (
        *(savings.without, savings.compaction, savings.context, savings.breakpoints, savings.keep_alive),
        savings.simulation_error,
    )
    spent = None if entry.dollars is None else amount_of(entry.dollars)
    charged = amount_of(entry.charge) if spent is None and entry.charge is not None else spent
    return (
        day_of(call.at),
        id_,
        call.at,
        agent,
        session_id,
        provider,
        model,
        call.category.value,
        *tokens,
        spent,
        None if usage.said_dollars is None else str(usage.said_dollars),
        tier,
        estimated,
        _expected(entry.estimated_dollars),
        savings.comparison.value,
        *[_expected(one) for one in saved],
        int(entry.is_partial),
        usage.raw,
        int(entry.is_inherited),
        int(call.is_subscription),
        int(entry.is_possibly_charged),
        charged,
    )


def entry_of(
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
    said: str | None,
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
) -> Entry:
    saved = without, by_compaction, by_context, by_breakpoints, by_keep_alive, simulation_error
    return Entry(
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
            said_dollars=None if said is None else Decimal(said),
            tier=tier,
            raw=raw,
        ),
        dollars=_known(spent),
        estimated_input_tokens=estimated_input_tokens,
        estimated_dollars=_known(estimated),
        savings=savings_of(comparison, *saved),
        is_partial=bool(is_partial),
        is_inherited=bool(is_inherited),
        is_possibly_charged=bool(is_possibly_charged),
        charge=_known(charged) if spent is None and charged else None,
    )


def savings_of(comparison: str, *amounts: int | None) -> Savings:
    """The savings that `SAVINGS_COLUMNS` tell."""
    without, compaction, context, breakpoints, keep_alive, simulation_error = map(_known, amounts)
    return Savings(
        comparison=Comparison(comparison),
        without=without,
        compaction=compaction,
        context=context,
        breakpoints=breakpoints,
        keep_alive=keep_alive,
        simulation_error=simulation_error,
    )


def _known(amount: int | None) -> Decimal | None:
    return None if amount is None else dollars(amount)


def amount_of(money: Decimal, *, rounded: Callable[[Decimal], int] = picodollars) -> int:
    """Dollars that somebody pays, in whole picodollars.

    Raises:
        BadOption: less than nothing, more than can be kept, or no number.
    """
    try:
        found = rounded(money)
    except OverflowError as error:
        raise BadOption(str(error)) from None
    if found < 0:
        raise BadOption(f"{money} dollars: nothing costs less than nothing")
    return found


def _expected(money: Decimal | None) -> int | None:
    """Dollars that nobody pays, in whole picodollars; None where they cannot be kept: the bill can be."""
    if money is None:
        return None
    try:
        return picodollars(money)
    except OverflowError:
        return None


def names_of(*said: str) -> tuple[str, ...]:
    """Names that both databases can hold, as `name_of` makes each of them: mostly they are as they were."""
    together = "".join(said)
    is_fine = len(together) <= _LONGEST_NAME and together.isprintable()
    return said if is_fine else tuple(map(name_of, said))


def name_of(said: str) -> str:
    """A name that both databases can hold: no bill is lost since somebody wrote half a character, or a book."""
    if len(said) <= _LONGEST_NAME and said.isprintable():
        return said
    name = said.replace("\0", "\ufffd").encode("utf-8", "replace")
    if len(said) <= _LONGEST_NAME:
        return name.decode()
    return f"{name.decode()[:_LONGEST_NAME]}… {blake3(name).hexdigest(16)}"

"""Manual corrections of charges: parse the options, apply a correction and format it."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from foveate.cli.shared.console import Display
from foveate.cli.shared.tables import Column, Fit, format_dollar_column, format_table
from foveate.cost.ledger import Correction
from foveate.cost.money import format_dollars
from foveate.errors import BadOption

if TYPE_CHECKING:
    from foveate.store import Store

_COLUMNS = (
    Column(heading="time (UTC)"),
    Column(heading="corrected", fit=Fit.SHORTEN),
    Column(heading="before", align="right"),
    Column(heading="after", align="right"),
    Column(heading="reason", fit=Fit.WRAP),
)


def parse_dollars(text: str) -> Decimal:
    """Parse an amount of dollars.

    Raises:
        BadOption: it is not a valid amount.
    """
    try:
        amount = Decimal(text.strip().removeprefix("$"))
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or amount < 0:
        raise BadOption(f"--dollars takes an amount of 0 or more, e.g. 0.25, not {text!r:.40}")
    return amount


def parse_day(text: str) -> str:
    """Parse a UTC day.

    Raises:
        BadOption: it is not a valid day.
    """
    try:
        return datetime.strptime(text, "%Y-%m-%d").date().isoformat()
    except ValueError:
        raise BadOption(f"--day takes a UTC date, e.g. 2026-11-17, not {text!r:.40}") from None


def check_target(
    *, call: str | None, session: str | None, agent: str | None, day: str | None, is_total: bool
) -> None:
    """Check that exactly one call or account is named.

    Raises:
        BadOption: none is, or several are.
    """
    for option, value in (("--call", call), ("--session", session), ("--agent", agent), ("--day", day)):
        if value == "":
            raise BadOption(f"{option} needs a value")
    targets = [call is not None, session is not None, agent is not None or day is not None, is_total]
    if sum(targets) != 1:
        raise BadOption(
            "name one call (--call) or one account (--session, --agent, --day, --agent with --day, or --total)"
        )


async def apply_correction(
    store: "Store",
    dollars: Decimal,
    *,
    reason: str,
    at: float,
    call: str | None,
    session: str | None,
    agent: str | None,
    day: str | None,
) -> Correction:
    """Correct the named call or account.

    Raises:
        BadOption: the store has no such call or account.
    """
    from foveate.cli.cost.selection import CallSelection, resolve_session_id
    from foveate.cost.caps import account_name

    if call is not None:
        correction = await store.corrections.correct_call(call, dollars, reason=reason, at=at)
        if correction is None:
            raise BadOption(f"there is no call {call!r:.80}; `foveate cost export` lists all calls")
        return correction
    session_id = await resolve_session_id(store.ledger, CallSelection(session=session))
    account = account_name(agent=agent, session_id=session_id, day=day)
    correction = await store.corrections.correct_account(account, dollars, reason=reason, at=at)
    if correction is None:
        raise BadOption(f"there are no charges for {account!r:.80}; `foveate cost caps` lists the accounts")
    return correction


def correction_object(correction: Correction) -> dict[str, object]:
    """Return a correction as JSON: money as strings, null if unknown."""
    return {
        "id": correction.id,
        "at": correction.at,
        "call": correction.call_id or None,
        "agent": correction.agent or None,
        "session": correction.session_id or None,
        "account": correction.account or None,
        "before_dollars": None if correction.before is None else f"{correction.before:f}",
        "charged_dollars": None if correction.charged is None else f"{correction.charged:f}",
        "after_dollars": f"{correction.after:f}",
        "reason": correction.reason,
    }


def correction_lines(correction: Correction) -> Iterator[str]:
    before = "unknown" if correction.before is None else format_dollars(correction.before)
    amounts = f"{before} -> {format_dollars(correction.after)}"
    yield f"{_format_time(correction)} UTC  {_target(correction)}: {amounts}  ({correction.reason})"
    if correction.account:
        return
    if correction.charged is None:
        yield "  cap accounts are unchanged: the amount charged to them for this call is unknown"
    elif correction.charged != correction.after:
        yield f"  cap accounts: {format_dollars(correction.charged)} -> {format_dollars(correction.after)}"


def corrections_table(corrections: Sequence[Correction], display: Display) -> list[str]:
    if not corrections:
        return []
    amounts = format_dollar_column(
        [amount for correction in corrections for amount in (correction.before, correction.after)]
    )
    rows = [
        (_format_time(correction), _target(correction), before, after, correction.reason)
        for correction, before, after in zip(corrections, amounts[::2], amounts[1::2], strict=True)
    ]
    return format_table(_COLUMNS, rows, display)


def _format_time(correction: Correction) -> str:
    return datetime.fromtimestamp(correction.at, UTC).strftime("%Y-%m-%d %H:%M")


def _target(correction: Correction) -> str:
    if correction.account:
        return f"account {correction.account}"
    return f"call {correction.call_id} of {correction.agent}"

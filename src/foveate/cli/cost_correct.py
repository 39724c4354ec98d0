"""`foveate cost correct` and `foveate cost corrections`: change what was charged by hand, with a record."""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from foveate.cost.corrections import Correction
from foveate.cost.money import in_words
from foveate.errors import BadOption

if TYPE_CHECKING:
    from foveate.store import Store


def dollars_in(said: str) -> Decimal:
    """Read an amount of dollars.

    Raises:
        BadOption: it is not one.
    """
    try:
        found = Decimal(said.strip().removeprefix("$"))
    except InvalidOperation:
        found = Decimal("NaN")
    if not found.is_finite() or found < 0:
        raise BadOption(f"--dollars takes an amount from 0 up, e.g. 0.25, not {said!r:.40}")
    return found


def day_in(said: str) -> str:
    """Read a day of UTC.

    Raises:
        BadOption: it is not one.
    """
    try:
        return datetime.strptime(said, "%Y-%m-%d").date().isoformat()
    except ValueError:
        raise BadOption(f"--day takes a day (UTC), e.g. 2026-11-17, not {said!r:.40}") from None


def check_target(
    *, call: str | None, session: str | None, agent: str | None, day: str | None, is_total: bool
) -> None:
    """Check that exactly one call or account is named.

    Raises:
        BadOption: none is, or several are.
    """
    for option, said in (("--call", call), ("--session", session), ("--agent", agent), ("--day", day)):
        if said == "":
            raise BadOption(f"{option} needs a value")
    named = [call is not None, session is not None, agent is not None or day is not None, is_total]
    if sum(named) != 1:
        raise BadOption(
            "name one call (--call), or one account: --session, --agent, --day, --agent with --day, or --total"
        )


async def correct(
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
    """Correct what is named.

    Raises:
        BadOption: the store has no such call or account.
    """
    from foveate.cli.cost_asked import Asked, session_named
    from foveate.cost.caps import account_name

    if call is not None:
        corrected = await store.corrections.correct_call(call, dollars, reason=reason, at=at)
        if corrected is None:
            raise BadOption(f"the ledger has no call {call!r:.80}; `foveate cost export` lists the calls")
        return corrected
    session_id = await session_named(store.ledger, Asked(session=session))
    account = account_name(agent=agent, session_id=session_id, day=day)
    corrected = await store.corrections.correct_account(account, dollars, reason=reason, at=at)
    if corrected is None:
        raise BadOption(f"nothing was ever charged to {account!r:.80}; `foveate cost caps` lists the accounts")
    return corrected


def correction_object(one: Correction) -> dict[str, object]:
    """Return a correction as JSON: money as strings, null if unknown."""
    return {
        "id": one.id,
        "at": one.at,
        "call": one.call_id or None,
        "agent": one.agent or None,
        "session": one.session_id or None,
        "account": one.account or None,
        "before_dollars": None if one.before is None else f"{one.before:f}",
        "charged_dollars": None if one.charged is None else f"{one.charged:f}",
        "after_dollars": f"{one.after:f}",
        "reason": one.reason,
    }


def correction_lines(one: Correction) -> Iterator[str]:
    """Say what a correction changed."""
    moment = datetime.fromtimestamp(one.at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    before = "unknown" if one.before is None else in_words(one.before)
    what = f"account {one.account}" if one.account else f"call {one.call_id} of {one.agent}"
    yield f"{moment}  {what}: {before} -> {in_words(one.after)}  ({one.reason})"
    if one.account:
        return
    if one.charged is None:
        yield "  its accounts stay as they are: what they were charged for it is not known"
    elif one.charged != one.after:
        yield f"  its accounts were charged {in_words(one.charged)}, and are now charged {in_words(one.after)}"

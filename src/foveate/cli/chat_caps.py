"""How the caps stand that the next call of a conversation is under."""

from collections.abc import Sequence

from foveate.chat.talk import ChatConversation
from foveate.cost.caps import Cap, CapScope, utc_day
from foveate.cost.held import CapStatus, CapUse
from foveate.cost.ledger import Call, Category, Ledger


async def cap_statuses(
    ledger: Ledger, caps: Sequence[Cap], talk: ChatConversation, *, now: float
) -> list[CapStatus]:
    """Each cap that holds for the conversation, with what is used of it."""
    call = Call(
        id="",
        agent=talk.agent,
        session_id=talk.session_id,
        provider=talk.target.upstream.provider,
        model=talk.target.model,
        category=Category.MAIN,
        at=now,
    )
    applicable = [cap for cap in caps if cap.applies_to(call)]
    accounts = {cap: account for cap in applicable if (account := cap.find_account(call)) is not None}
    standings = await ledger.get_balances(sorted(set(accounts.values())), now=now) if accounts else {}
    unpriced_calls = talk.total_charges.unknown_calls
    statuses = []
    for cap in applicable:
        standing = standings.get(accounts.get(cap, ""))
        if cap.scope is CapScope.CALL or standing is None:
            statuses.append(CapStatus(cap=cap))
            continue
        use = CapUse(
            cap=cap,
            agent=None
            if cap.scope is CapScope.TOTAL and cap.agent is None
            else cap.agent or _charged_agent(cap, talk),
            session_id=talk.session_id if cap.scope is CapScope.SESSION else None,
            day=utc_day(now) if cap.scope is CapScope.DAY else None,
            balance=standing,
            unknown_calls=unpriced_calls if cap.scope is CapScope.SESSION else 0,
        )
        statuses.append(CapStatus(cap=cap, uses=(use,)))
    return statuses


def _charged_agent(cap: Cap, talk: ChatConversation) -> str | None:
    """On whose account a cap on each of them is; a day of all agents is on nobody's."""
    return None if cap.scope is CapScope.DAY else talk.agent

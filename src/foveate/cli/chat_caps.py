"""How the caps stand that the next call of a conversation is under."""

from collections.abc import Sequence

from foveate.chat.talk import Talk
from foveate.cost.caps import Cap, Scope, day_of
from foveate.cost.held import Held, Use
from foveate.cost.ledger import Call, Category, Ledger


async def held_for(ledger: Ledger, caps: Sequence[Cap], talk: Talk, *, now: float) -> list[Held]:
    """Each cap that holds for the conversation, with what is used of it."""
    call = Call(
        id="",
        agent=talk.agent,
        session_id=talk.session_id,
        provider=talk.speaking.upstream.provider,
        model=talk.speaking.model,
        category=Category.MAIN,
        at=now,
    )
    held = [cap for cap in caps if cap.holds(call)]
    accounts = {cap: account for cap in held if (account := cap.account(call)) is not None}
    standings = await ledger.standing(sorted(set(accounts.values())), now=now) if accounts else {}
    unknown = talk.spent.unknown_calls
    found = []
    for cap in held:
        standing = standings.get(accounts.get(cap, ""))
        if cap.scope is Scope.CALL or standing is None:
            found.append(Held(cap=cap))
            continue
        use = Use(
            cap=cap,
            agent=None if cap.scope is Scope.TOTAL and cap.agent is None else cap.agent or _agent(cap, talk),
            session_id=talk.session_id if cap.scope is Scope.SESSION else None,
            day=day_of(now) if cap.scope is Scope.DAY else None,
            standing=standing,
            unknown_calls=unknown if cap.scope is Scope.SESSION else 0,
        )
        found.append(Held(cap=cap, uses=(use,)))
    return found


def _agent(cap: Cap, talk: Talk) -> str | None:
    """On whose account a cap on each of them is; a day of all agents is on nobody's."""
    return None if cap.scope is Scope.DAY else talk.agent

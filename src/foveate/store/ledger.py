"""What calls cost and what is reserved for them, as `foveate.cost` asks to have it kept."""

import math
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from typing import Any, cast

from foveate.cost.ledger import By, Entry, Over, Reservation, Standing, Sum
from foveate.errors import BadOption
from foveate.store.booking import (
    Answer,
    Asked,
    Release,
    Renewal,
    Settlement,
    Wanted,
    book,
    find_standings,
    free,
    standing_of,
)
from foveate.store.database import Database
from foveate.store.gathering import Gathering
from foveate.store.ledger_rows import COLUMNS, condition, entry_of, name_of, sum_of, summing

_MOST_TOGETHER = 256
_AT_ONCE = 64
"""So many reservations that have run out are freed in one transaction, so that nobody else waits long."""
_FREED_EVERY_SECONDS = 60.0
"""And whenever they stand in the way."""
_PAGE = 500

_FIND_EXPIRED = f"""
SELECT call_id FROM reservations_v1 WHERE expires_at <= ? ORDER BY expires_at LIMIT {_AT_ONCE}
"""

_COUNT_BEFORE = "SELECT count(*) FROM ledger_v1 WHERE at < ?"
_FORGET_BEFORE = f"""
DELETE FROM ledger_v1 WHERE call_id IN (
    SELECT call_id FROM ledger_v1 WHERE at < ? ORDER BY at, call_id LIMIT {_PAGE}
)
"""


class KeptLedger:
    """Implements `foveate.cost.ledger.Ledger` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._together: Gathering[Asked, Answer] = Gathering(self._book, most=_MOST_TOGETHER)
        self._freed_at = -math.inf

    async def reserve(self, reservation: Reservation, *, now: float) -> Mapping[str, Standing] | Over:
        """Take the dollars from all accounts or from none: then the first that has no room is told."""
        wanted = Wanted.of(reservation)
        if not self._freed_at <= now < self._freed_at + _FREED_EVERY_SECONDS:
            self._freed_at = now
            await self._free_expired(now)
        while True:
            found = cast("Mapping[str, Standing] | Over", await self._together.done(wanted))
            if not isinstance(found, Over) or not await self._free_expired(now):
                return found

    async def settle_all(self, bills: Sequence[tuple[Entry, Sequence[str]]]) -> Sequence[bool | Exception]:
        """Keep what calls cost, book each on its accounts and free what was reserved for it, all in one."""
        rows = [_settlement(entry, accounts) for entry, accounts in bills]
        answers = iter(await self._together.all_done([row for row in rows if isinstance(row, Settlement)]))
        found = [row if isinstance(row, Exception) else next(answers) for row in rows]
        return cast("list[bool | Exception]", found)

    async def release(self, call_id: str) -> bool:
        """Free what was reserved for a call that is not billed; False where nothing is."""
        return bool(await self._together.done(Release(name_of(call_id))))

    async def renew(self, call_ids: Sequence[str], *, expires_at: float) -> Set[str]:
        """Those of the calls that something is reserved for; it now runs out at `expires_at`."""
        names = {name_of(call_id): call_id for call_id in call_ids}
        found = cast("frozenset[str]", await self._together.done(Renewal(list(names), expires_at)))
        return {names[name] for name in found}

    async def standing(self, accounts: Sequence[str], *, now: float) -> Mapping[str, Standing]:
        """How accounts stand; one that nothing was ever booked on is at zero."""
        names = {name_of(account): account for account in accounts}
        found = await self._database.read(lambda rows: find_standings(rows, names, now))
        return {account: standing_of(*found.get(name, (0, 0))) for name, account in names.items()}

    async def sums(
        self,
        by: Sequence[By],
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        session_id: str | None = None,
    ) -> Sequence[Sum]:
        """What calls cost, from `since` up to, not with, `until`; days are those of UTC. The dearest first."""
        where, values = condition(since, until, agent, session_id)
        found = await self._read(summing(by, where), values)
        sums = [sum_of(row[: len(by)], *row[len(by) :]) for row in found]
        return sorted(sums, key=lambda one: (-one.dollars, one.group))

    async def entries(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        session_id: str | None = None,
    ) -> AsyncIterator[Entry]:
        """Every call, the oldest first, read a few at a time."""
        last: tuple[float, str] | None = None
        while True:
            where, values = condition(since, until, agent, session_id, after=last)
            statement = f"SELECT {COLUMNS} FROM ledger_v1 {where} ORDER BY at, call_id LIMIT {_PAGE}"
            found = await self._read(statement, values)
            for row in found:
                yield entry_of(*row)
            if len(found) < _PAGE:
                return
            last = found[-1][1], found[-1][0]

    async def entry(self, call_id: str) -> Entry | None:
        """Return one call; None if it is not in the ledger."""
        found = await self._read(f"SELECT {COLUMNS} FROM ledger_v1 WHERE call_id = ?", (name_of(call_id),))
        return entry_of(*found[0]) if found else None

    async def would_forget(self, *, before: float) -> int:
        """How many calls there are from before that time."""
        ((number,),) = await self._read(_COUNT_BEFORE, (before,))
        return int(number)

    async def forget(self, *, before: float) -> int:
        """How many calls from before that time were forgotten, a few at a time. Accounts stand as they did."""
        forgotten = 0
        while gone := await self._database.write(
            lambda rows: rows.change(_FORGET_BEFORE, (before,)), again=True
        ):
            forgotten += gone
        return forgotten

    async def _book(self, asked: Sequence[Asked]) -> list[Answer | Exception]:
        return await self._database.write(lambda rows: book(rows, asked), again=True)

    async def _free_expired(self, now: float) -> int:
        """How many reservations that have run out were freed; there may be more."""
        found = [call_id for (call_id,) in await self._read(_FIND_EXPIRED, (now,))]
        return await self._database.write(lambda rows: free(rows, found), again=True) if found else 0

    async def _read(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return await self._database.read(lambda rows: rows.all(statement, values))


def _settlement(entry: Entry, accounts: Sequence[str]) -> Settlement | BadOption:
    try:
        return Settlement.of(entry, accounts)
    except BadOption as error:
        return error

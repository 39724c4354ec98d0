"""Totals of requests, costs and outcomes by hour and by session, and the interface of their store.

They are updated as requests are traced and charges recorded, so that a page over a million requests reads a few
hundred rows. They remain when requests and charges are deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Protocol

from foveate.model import CacheUsage


class TotalsGroup(StrEnum):
    """Dimensions of totals; hours and days are UTC: `2026-11-16T09`, `2026-11-16`."""

    HOUR = "hour"
    DAY = "day"
    AGENT = "agent"
    MODEL = "model"
    CATEGORY = "category"


class SessionOrder(StrEnum):
    NEWEST = "newest"
    DEAREST = "dearest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Requests and charges, added up.

    `failed` requests got an error from the provider; `added_seconds` is the time that Foveate took before
    sending them; `cache_misses` lost tokens and dollars. `calls` are charged calls, including
    compactions and keep-alive requests. `unpriced` ones have no known price; `compared` ones would have cost
    `without` dollars without Foveate. Calls that `would_not_fit` without it are not compared.
    `planned_rewrites` of histories are not cache misses. `inherited` calls have the price of their family,
    `subscription` calls the list price, which nobody is charged. `possibly_charged` calls were in flight when
    their process ended; they are among the `unpriced`, and cost at most `possibly_charged_dollars`.
    """

    requests: int = 0
    failed: int = 0
    added_seconds: float = 0.0
    cache_misses: int = 0
    lost_tokens: int = 0
    lost_dollars: Decimal = Decimal(0)
    calls: int = 0
    unpriced: int = 0
    cache: CacheUsage = field(default_factory=CacheUsage)
    output_tokens: int = 0
    dollars: Decimal = Decimal(0)
    planned_rewrites: int = 0
    rewritten_tokens: int = 0
    compared: int = 0
    without: Decimal = Decimal(0)
    saved_by_compaction: Decimal = Decimal(0)
    saved_by_context: Decimal = Decimal(0)
    saved_by_breakpoints: Decimal = Decimal(0)
    saved_by_keep_alive: Decimal = Decimal(0)
    simulation_error: Decimal = Decimal(0)
    would_not_fit: int = 0
    would_not_fit_dollars: Decimal = Decimal(0)
    inherited: int = 0
    inherited_dollars: Decimal = Decimal(0)
    subscription: int = 0
    subscription_dollars: Decimal = Decimal(0)
    possibly_charged: int = 0
    possibly_charged_dollars: Decimal = Decimal(0)

    @property
    def hit_ratio(self) -> float | None:
        """Share of the input read from a cache; None without input."""
        return self.cache.read / self.cache.input_tokens if self.cache.input_tokens else None

    @property
    def paid(self) -> Decimal | None:
        """Dollars of calls with a known price; None if no price is known."""
        return None if self.calls and self.unpriced >= self.calls else self.dollars

    @property
    def saved(self) -> Decimal:
        """Savings of all mechanisms on compared calls; a loss is negative."""
        edits = self.saved_by_compaction + self.saved_by_context
        return edits + self.saved_by_breakpoints + self.saved_by_keep_alive


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTotals:
    """Totals of a session, with its last model and window fill (None: unknown).

    `first_at` and `last_at` are the times of its first and last request or charge. The model is never that of a
    summary.
    """

    session_id: str
    agent: str
    model: str
    first_at: float
    last_at: float
    tokens: int | None = None
    window_tokens: int | None = None
    totals: Totals


class RollupStore(Protocol):
    """Reads totals.

    Raises:
        StoreUnavailable: it cannot be reached.
    """

    async def sum_totals(
        self,
        group_by: Sequence[TotalsGroup] = (),
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
    ) -> Sequence[tuple[tuple[str, ...], Totals]]:
        """Return totals by group, in the order of the groups, for whole hours from `since` to `until`.

        An `until` on the hour excludes that hour. Without `group_by` there is one group, `()`, even if it is
        empty.
        """

    async def list_sessions(
        self,
        *,
        limit: int,
        order: SessionOrder = SessionOrder.NEWEST,
        after: SessionTotals | None = None,
        before: SessionTotals | None = None,
        since: float | None = None,
        agent: str | None = None,
        id_prefix: str = "",
    ) -> Sequence[SessionTotals]:
        """Return a page of sessions, filtered by time, agent and id.

        The next page is `after` its last session, the previous one `before` its first.
        """

    async def count_sessions(
        self, *, since: float | None = None, agent: str | None = None, id_prefix: str = ""
    ) -> int: ...

    async def get_session(self, session_id: str) -> SessionTotals | None: ...

    async def list_agents(self) -> Sequence[str]: ...

    async def get_change_token(self, session_id: str | None = None, *, agent: str | None = None) -> str:
        """Return a token that changes with every addition, for one session also with a compaction or its undo.

        Without a session, only additions of `agent` count, or all if it is None.
        """

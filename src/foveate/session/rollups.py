"""What was asked, what it cost and what became of it, added up by the hour and by the session.

It is added to as requests are traced and bills are booked, so that a page over a million of them reads a few
hundred rows. Where requests and bills are forgotten, what they add up to stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Protocol

from foveate.model import CacheUsage


class TotalsGroup(StrEnum):
    """What totals are parted by; hours and days are those of UTC, as `2026-11-16T09` and `2026-11-16`."""

    HOUR = "hour"
    DAY = "day"
    AGENT = "agent"
    MODEL = "model"
    CATEGORY = "category"


class SessionOrder(StrEnum):
    """Which sessions come first."""

    NEWEST = "newest"
    DEAREST = "dearest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Requests and bills, added up.

    Of `requests` that were sent, so many `failed` (with an error of the provider), and `added_seconds` is what
    Foveate took before all of them; so many had cache `breaks`, which lost tokens and dollars. Of `calls` that
    were billed, those of folds and pings too, so many are `unpriced`, and so many `compared`: `without` is what
    those would have cost without Foveate. Calls that `would_not_fit` without it are not among them.
    `planned_rewrites` of histories by Foveate are no breaks. `inherited` calls are priced by their family, and
    `subscription` calls at list prices, which nobody is billed. `possibly_charged` calls were under way when
    their process ended; they are among the `unpriced`, and cost at most `possibly_charged_dollars`.
    """

    requests: int = 0
    failed: int = 0
    added_seconds: float = 0.0
    breaks: int = 0
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
        """The part of the input that was read from a cache; None where there was no input."""
        return self.cache.read / self.cache.input_tokens if self.cache.input_tokens else None

    @property
    def paid(self) -> Decimal | None:
        """What the calls cost, as far as prices are known; None where that of none is."""
        return None if self.calls and self.unpriced >= self.calls else self.dollars

    @property
    def saved(self) -> Decimal:
        """What all mechanisms saved on the calls that were compared; a loss is negative."""
        edits = self.saved_by_compaction + self.saved_by_context
        return edits + self.saved_by_breakpoints + self.saved_by_keep_alive


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTotals:
    """A session: its last model, how full its window last was (None: not known), and all of it added up.

    It was first asked or billed at `first_at`, last at `last_at`. Its model is not that of a fold's summary.
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
    """Reads what was added up.

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
        """Totals by their groups, in the order of these; whole hours, from that of `since` to that of `until`.

        An `until` on the hour ends with the one before. Without `per` it is one group, `()`, also where nothing
        was asked.
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
        """A page of sessions asked `since`, of an agent, by an id.

        The next page is `after` the last of it, the one that comes first is `before` the first of it.
        """

    async def count_sessions(
        self, *, since: float | None = None, agent: str | None = None, id_prefix: str = ""
    ) -> int:
        """How many sessions those pages have in all."""

    async def get_session(self, session_id: str) -> SessionTotals | None:
        """One session."""

    async def list_agents(self) -> Sequence[str]:
        """The agents that have asked anything, by their names."""

    async def get_change_token(self, session_id: str | None = None, *, agent: str | None = None) -> str:
        """What is another as soon as anything was added, or of one session: also a fold or its undo.

        Without a session, `agent` is whose additions count; None: those of all.
        """

"""Usage of single calls with their cost, and its sums by day, week, month, session, project or block of five
hours.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from foveate.cost.money import to_dollars, to_picodollars
from foveate.replay.recording import RecordingSource

if TYPE_CHECKING:
    from foveate.cost.ledger import Charge
    from foveate.cost.pricing.price_book import PriceBook
    from foveate.replay.readers.usage_scan import LoggedCall


MAIN = "main"
"""The category of calls that agents make themselves, as in the ledger."""
MAX_MATCH_SECONDS = 900.0
"""The most time between a call in the ledger and its response in a log."""

# Those that Codex has built in.
_LOCAL_CODEX_PROVIDERS = frozenset(("lmstudio", "ollama", "ollama-chat", "oss"))


class UsageRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The usage and cost of one call.

    `picodollars` is None if the price is unknown. `has_logged_cost`: the agent logged it. `is_inherited`: it is
    an upper bound by the model's family. Calls that the gateway made itself have other categories than `main`.
    """

    agent: str
    key: str
    at: float
    session: str
    project: str
    model: str
    uncached: int
    read: int
    written_5m: int
    written_1h: int
    output_tokens: int
    reasoning_tokens: int
    picodollars: int | None
    has_logged_cost: bool = False
    is_inherited: bool = False
    category: str = MAIN

    @property
    def tokens(self) -> int:
        return self.uncached + self.read + self.written_5m + self.written_1h + self.output_tokens


def price_calls(agent: str, calls: "Iterable[LoggedCall]", book: "PriceBook") -> list[UsageRecord]:
    """Price calls with the cost that the agent logged, or else with the prices on the day of the call."""
    return [_price_call(agent, call, book) for call in calls]


def _price_call(agent: str, call: "LoggedCall", book: "PriceBook") -> UsageRecord:
    usage, cache = call.usage, call.usage.cache
    dollars, is_inherited = usage.reported_dollars, False
    if dollars is None:
        from foveate.prompt_cache.rules import rules_for  # not needed for records from the cache

        maker = rules_for(call.model).provider
        provider = call.provider or maker
        dollars = book.dollars(call.model, usage, provider=provider, at=call.at)
        if dollars is None and agent == RecordingSource.CODEX and provider not in _LOCAL_CODEX_PROVIDERS:
            # Users name the providers in Codex's configuration, such as `foveate` for the gateway.
            provider = maker
            dollars = book.dollars(call.model, usage, provider=provider, at=call.at)
        rates = book.rates(call.model, provider=provider, at=call.at)
        is_inherited = dollars is not None and rates is not None and bool(rates.inherited_from)
    return UsageRecord(
        agent=agent,
        key=call.key,
        at=call.at,
        session=call.session,
        project=call.project,
        model=call.model,
        uncached=cache.uncached,
        read=cache.read,
        written_5m=cache.written_5m,
        written_1h=cache.written_1h,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        picodollars=_to_picodollars(dollars),
        has_logged_cost=usage.reported_dollars is not None,
        is_inherited=is_inherited,
    )


def _to_picodollars(dollars: Decimal | None) -> int | None:
    try:
        return None if dollars is None else to_picodollars(dollars)
    except OverflowError:  # no call costs millions: the log is wrong
        return None


def to_record(charge: "Charge") -> UsageRecord:
    call, usage, cache = charge.call, charge.usage, charge.usage.cache
    return UsageRecord(
        agent=call.agent,
        key=call.id,
        at=call.at,
        session=call.session_id,
        project="",
        model=call.model,
        uncached=cache.uncached,
        read=cache.read,
        written_5m=cache.written_5m,
        written_1h=cache.written_1h,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        picodollars=_to_picodollars(charge.dollars),
        is_inherited=charge.is_inherited,
        category=call.category.value,
    )


def remove_copies(records: Iterable[UsageRecord]) -> list[UsageRecord]:
    """Keep one record of each call: the one with the most tokens, since others were logged while the response
    was streamed, and of equal ones the earliest.
    """
    by_key: dict[tuple[str, str], UsageRecord] = {}
    for record in records:
        key = record.agent, record.key
        known = by_key.get(key)
        if known is None or (known.tokens, -known.at) < (record.tokens, -record.at):
            by_key[key] = record
    return list(by_key.values())


def merge_ledger(records: Iterable[UsageRecord], charged: Iterable[UsageRecord]) -> list[UsageRecord]:
    """Add the calls of the ledger that are in no log.

    A call through the gateway is in the ledger and in the log of its agent. No id is in both, so they are
    matched by their input tokens, of which the cached ones alone are nearly unique, and by time. The log knows
    session and project of such a call, and the ledger its final output and its cost. Calls that the gateway
    made itself are only in the ledger.
    """
    merged = sorted(records, key=lambda record: record.at)
    unmatched: dict[tuple[int, int, int], list[int]] = {}
    for index, record in enumerate(merged):
        unmatched.setdefault(_input_tokens(record), []).append(index)
    for charge in charged:
        candidates = unmatched.get(_input_tokens(charge), []) if charge.category == MAIN else []
        place = bisect_left(candidates, charge.at, key=lambda index: merged[index].at)
        nearest = min(
            (number for number in (place - 1, place) if 0 <= number < len(candidates)),
            key=lambda number: abs(merged[candidates[number]].at - charge.at),
            default=-1,
        )
        if nearest < 0 or abs(merged[candidates[nearest]].at - charge.at) > MAX_MATCH_SECONDS:
            merged.append(charge)
            continue
        index = candidates.pop(nearest)
        is_priced = charge.picodollars is not None
        merged[index] = msgspec.structs.replace(
            merged[index],
            output_tokens=max(charge.output_tokens, merged[index].output_tokens),
            picodollars=charge.picodollars if is_priced else merged[index].picodollars,
            has_logged_cost=merged[index].has_logged_cost and not is_priced,
            is_inherited=charge.is_inherited if is_priced else merged[index].is_inherited,
        )
    return merged


def _input_tokens(record: UsageRecord) -> tuple[int, int, int]:
    """Not by TTL, which some agents do not log."""
    return record.uncached, record.read, record.written_5m + record.written_1h


BLOCK_SECONDS = 5 * 3600
_HOUR_SECONDS = 3600
# Time zones differ by multiples of this, so all times within it are on the same day.
_DAY_STEP_SECONDS = 900


class ReportKind(StrEnum):
    DAILY = "daily"
    WEEKLY = "weekly"
    MONTHLY = "monthly"
    SESSIONS = "sessions"
    PROJECTS = "projects"
    BLOCKS = "blocks"


@dataclass(slots=True)
class UsageSum:
    """The usage of a group of calls.

    `picodollars` are those of calls with a known price; `unknown_calls` have none. `logged_cost_calls` are
    priced by their agent, and `inherited_calls` by the model's family. `gateway_calls` are those that the
    gateway made itself.
    """

    calls: int = 0
    uncached: int = 0
    read: int = 0
    written_5m: int = 0
    written_1h: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    picodollars: int = 0
    unknown_calls: int = 0
    logged_cost_calls: int = 0
    inherited_calls: int = 0
    gateway_calls: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    tokens_by_model: dict[str, int] = field(default_factory=dict)
    agents: dict[str, None] = field(default_factory=dict)

    def add(self, record: UsageRecord) -> None:
        self.calls += 1
        self.uncached += record.uncached
        self.read += record.read
        self.written_5m += record.written_5m
        self.written_1h += record.written_1h
        self.output_tokens += record.output_tokens
        self.reasoning_tokens += record.reasoning_tokens
        if record.picodollars is None:
            self.unknown_calls += 1
        else:
            self.picodollars += record.picodollars
        self.logged_cost_calls += record.has_logged_cost
        self.inherited_calls += record.is_inherited
        self.gateway_calls += record.category != "main"
        if record.at:
            self.first_at = min(self.first_at or record.at, record.at)
            self.last_at = max(self.last_at, record.at)
        self.tokens_by_model[record.model] = self.tokens_by_model.get(record.model, 0) + record.tokens
        self.agents[record.agent] = None

    @property
    def written(self) -> int:
        return self.written_5m + self.written_1h

    @property
    def tokens(self) -> int:
        return self.uncached + self.read + self.written + self.output_tokens

    @property
    def dollars(self) -> Decimal | None:
        return None if self.unknown_calls == self.calls else to_dollars(self.picodollars)

    @property
    def models(self) -> list[str]:
        return sorted(self.tokens_by_model, key=lambda model: -self.tokens_by_model[model])


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """A row of a report: the day, the first day of the week, the month, the session or the project.

    `project` is that of a session. `start` and `end` are those of a block, in seconds since 1970.
    """

    name: str
    sum: UsageSum
    project: str = ""
    start: float = 0.0
    end: float = 0.0

    def is_active(self, now: float) -> bool:
        return self.start <= now < self.end

    def dollars_per_hour(self) -> Decimal | None:
        """The rate of an active block; None if it has lasted less than a minute, or a price is unknown."""
        seconds = self.sum.last_at - self.sum.first_at
        if seconds < 60 or self.sum.unknown_calls or self.sum.dollars is None:
            return None
        return self.sum.dollars * _HOUR_SECONDS / Decimal(seconds)

    def tokens_per_minute(self) -> float | None:
        seconds = self.sum.last_at - self.sum.first_at
        return None if seconds < 60 else self.sum.tokens * 60 / seconds

    def projected_dollars(self, now: float) -> Decimal | None:
        """The cost at the end of an active block if it goes on like this."""
        rate = self.dollars_per_hour()
        if rate is None or self.sum.dollars is None or not self.is_active(now):
            return None
        return self.sum.dollars + rate * Decimal(self.end - now) / _HOUR_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    kind: ReportKind
    rows: Sequence[UsageRow]
    total: UsageSum


def build_usage_report(
    records: Iterable[UsageRecord], kind: ReportKind, *, zone: tzinfo | None = None
) -> UsageReport:
    """Sum usage. Days are those of `zone`; None is the local time zone."""
    records = list(records)
    total = _sum(records)
    match kind:
        case ReportKind.SESSIONS:
            rows = _session_rows(records)
        case ReportKind.PROJECTS:
            by_project = _group(records, lambda record: record.project)
            rows = sorted(
                (UsageRow(name=name, sum=sum_) for name, sum_ in by_project.items()),
                key=lambda row: (-row.sum.picodollars, row.name),
            )
        case ReportKind.BLOCKS:
            rows = find_blocks(records)
        case _:
            by_period = _group(records, _PeriodNames(kind, zone))
            rows = [UsageRow(name=name, sum=sum_) for name, sum_ in sorted(by_period.items())]
    return UsageReport(kind=kind, rows=rows, total=total)


def _sum(records: Iterable[UsageRecord]) -> UsageSum:
    total = UsageSum()
    for record in records:
        total.add(record)
    return total


def _group(records: Iterable[UsageRecord], name: Callable[[UsageRecord], str]) -> dict[str, UsageSum]:
    groups: dict[str, UsageSum] = {}
    for record in records:
        key = name(record)
        if key not in groups:
            groups[key] = UsageSum()
        groups[key].add(record)
    return groups


class _PeriodNames:
    """The names of periods, such as 2026-11-16 or 2026-11; empty for a call without a time."""

    def __init__(self, kind: ReportKind, zone: tzinfo | None) -> None:
        self._kind = kind
        self._zone = zone
        self._names: dict[int, str] = {}

    def __call__(self, record: UsageRecord) -> str:
        if not record.at:
            return ""
        step = int(record.at // _DAY_STEP_SECONDS)
        name = self._names.get(step)
        if name is None:
            name = self._names[step] = self._format(datetime.fromtimestamp(record.at, self._zone).date())
        return name

    def _format(self, day: date) -> str:
        match self._kind:
            case ReportKind.WEEKLY:
                return (day - timedelta(days=day.weekday())).isoformat()
            case ReportKind.MONTHLY:
                return f"{day:%Y-%m}"
            case _:
                return day.isoformat()


def _session_rows(records: Iterable[UsageRecord]) -> list[UsageRow]:
    """The sessions, the last used one last. Sub-agents count to the session that started them."""
    sessions: dict[tuple[str, str], tuple[UsageSum, str]] = {}
    for record in records:
        key = record.agent, record.session
        if key not in sessions:
            sessions[key] = UsageSum(), record.project
        sessions[key][0].add(record)
    rows = [
        UsageRow(name=session, sum=sum_, project=project) for (_, session), (sum_, project) in sessions.items()
    ]
    return sorted(rows, key=lambda row: (row.sum.last_at, row.name))


def find_blocks(records: Iterable[UsageRecord]) -> list[UsageRow]:
    """Blocks of five hours, as subscriptions limit them, for each agent.

    A block starts with the hour of its first call. The next one starts with the first call after its end.
    """
    blocks: dict[str, list[UsageRow]] = {}
    for record in sorted(records, key=lambda record: record.at):
        if not record.at:
            continue
        of_agent = blocks.setdefault(record.agent, [])
        if not of_agent or record.at >= of_agent[-1].end:
            start = record.at // _HOUR_SECONDS * _HOUR_SECONDS
            name = f"{datetime.fromtimestamp(start, UTC):%Y-%m-%dT%H:%MZ}"
            of_agent.append(UsageRow(name=name, sum=UsageSum(), start=start, end=start + BLOCK_SECONDS))
        of_agent[-1].sum.add(record)
    return sorted(
        (row for rows in blocks.values() for row in rows), key=lambda row: (row.start, *row.sum.agents)
    )

"""What is counted of requests: a watch that adds up."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from foveate.cache.hits import Hits
from foveate.cost.admission import Outcome as Bill
from foveate.cost.admission import Settled
from foveate.cost.ledger import Entry
from foveate.engine import series
from foveate.engine.board import Board, Sample, Spread, Tally
from foveate.engine.calls import Incoming, Problem
from foveate.engine.exchange import Exchange
from foveate.engine.labels import MOST_LETTERS_OF_PATHS, MOST_SETS, OTHER, Few
from foveate.engine.series import Series
from foveate.engine.troubles import Troubles
from foveate.engine.watch import SeenBreak
from foveate.errors import FoveateError
from foveate.fold.folding import Folded
from foveate.fold.journal import Outcome
from foveate.values import Comparison
from foveate.wire.rate_limits import RateLimit

_COMPACTION = "compaction"
_EXACT = {True: "true", False: "false"}
_Set = tuple[str, str, str]
# The numbers of so many requests are added up together.
_TOGETHER = 64


class Bundles(Protocol):
    """How often the bundles of a workspace were there already, had to be read, and were dropped."""

    @property
    def hits(self) -> int:
        """There already."""

    @property
    def misses(self) -> int:
        """Read."""

    @property
    def invalidations(self) -> int:
        """Dropped, since a file has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Billed:
    """The numbers of calls of one kind whose bills were whole, or of those whose were not."""

    input: Tally
    output: Tally
    read: Tally
    created: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """The numbers of calls of one kind that were counted exactly, or of those that were estimated."""

    estimated: Spread
    drift: Spread


class _Calls:
    """The numbers of calls of one kind, found once: `shown` are its agent, provider and model."""

    __slots__ = ("_board", "billed", "compared", "counted", "dollars", "savings", "shown", "statuses")

    def __init__(self, board: Board, shown: _Set) -> None:
        self._board = board
        self.shown = shown
        self.billed: dict[bool, _Billed] = {}
        self.counted: dict[bool, _Counted] = {}
        self.statuses: dict[int, Tally] = {}
        self.dollars: dict[str, Tally] = {}
        self.savings: dict[str, tuple[Tally, Tally]] = {}
        self.compared: dict[str, Tally] = {}

    def billed_as(self, is_whole: bool) -> _Billed:
        found = self.billed.get(is_whole)
        if found is None:
            labels = (*self.shown, _EXACT[is_whole])
            found = self.billed[is_whole] = _Billed(
                input=self._board.tally(series.INPUT_TOKENS, *labels),
                output=self._board.tally(series.OUTPUT_TOKENS, *labels),
                read=self._board.tally(series.CACHE_READ, *labels),
                created=self._board.tally(series.CACHE_CREATION, *labels),
            )
        return found

    def counted_as(self, exact: bool) -> _Counted:
        found = self.counted.get(exact)
        if found is None:
            labels = (*self.shown, _EXACT[exact])
            found = self.counted[exact] = _Counted(
                estimated=self._board.spread(series.ESTIMATED, *labels),
                drift=self._board.spread(series.DRIFT, *labels),
            )
        return found

    def cost(self, category: str) -> Tally:
        found = self.dollars.get(category)
        if found is None:
            found = self.dollars[category] = self._board.tally(series.COST, *self.shown, category)
        return found

    def save(self, by: str, dollars: float) -> None:
        found = self.savings.get(by)
        if found is None:
            labels = self.shown[0], by
            found = self.savings[by] = (
                self._board.tally(series.SAVED, *labels),
                self._board.tally(series.OVERPAID, *labels),
            )
        found[dollars < 0].value += abs(dollars)

    def compare(self, cost: str, dollars: float) -> None:
        found = self.compared.get(cost)
        if found is None:
            found = self.compared[cost] = self._board.tally(series.COMPARED, self.shown[0], cost)
        found.value += dollars

    def answered(self, status: int) -> Tally:
        found = self.statuses.get(status)
        if found is None:
            found = self.statuses[status] = self._board.tally(series.REQUESTS, *self.shown, str(status))
        return found


class Metrics:
    """The numbers of one process. For one event loop: nothing here is locked."""

    def __init__(self, *, version: str, clock: Callable[[], float] = time.time) -> None:
        """Nothing is counted yet, and all is taken to be well."""
        self._clock = clock
        self._board = Board()
        self._agents, self._models = Few(), Few()
        self._paths = Few(most_letters=MOST_LETTERS_OF_PATHS)  # an operator names them, and they are long
        self._calls: dict[_Set, _Calls] = {}
        self._kinds: dict[_Set, _Calls] = {}
        self._steps: dict[str, Spread] = {}
        self._edits: dict[str, Tally] = {}
        self._waits: dict[str, tuple[Spread, Spread]] = {}
        self._bills = {outcome: self._board.tally(series.BILLS, outcome.value) for outcome in Bill}
        self._hits = Hits()
        self._waiting = 0
        self._seen_agents: set[str] = set()
        self._polls: list[Callable[[], None]] = []
        self._grown: dict[tuple[str, str], float] = {}
        self._limits: dict[tuple[str, str, str], RateLimit] = {}
        self._added = self._board.spread(series.ADDED_SECONDS)
        self.troubles = Troubles()
        self.open_requests = self._board.tally(series.OPEN_REQUESTS)
        self.open_streams = self._board.tally(series.OPEN_STREAMS)
        self.request_bytes = self._board.tally(series.REQUEST_BYTES)
        self.response_bytes = self._board.tally(series.RESPONSE_BYTES)
        self._board.tally(series.BUILD, version).value = 1
        self.bills(waiting=0, lost=0, lapsed=0)
        self.holds(config=True, store=True)

    def know(self, agents: Iterable[str]) -> None:
        """Have these agents shown by their names, whoever else comes."""
        self._agents.know(agents)

    def failed(self, incoming: Incoming, problem: Problem) -> None:
        """Count it, and remember it for a while."""
        self._board.tally(series.STEP_FAILURES, problem.step).value += 1
        self.troubles.add(problem, incoming.id, at=self._clock())

    def took(self, step: str, seconds: float) -> None:
        """Add it up."""
        found = self._steps.get(step)
        if found is None:
            found = self._steps[step] = self._board.spread(series.STEP_SECONDS, step)
        found.observe(seconds if seconds > 0 else 0.0)

    def refused(self, agent: str, error: FoveateError) -> None:
        """Count it by its code."""
        self.refused_as(agent, error.code)

    def refused_as(self, agent: str, code: str) -> None:
        """Count an error of our own by a word for it."""
        self._board.tally(series.REFUSALS, self._agents.of(agent), code).value += 1

    def folded(self, agent: str, folded: Folded) -> None:
        """Count it, with how long it took where it is our own."""
        labels = self._agents.of(agent), folded.outcome.value
        self._board.tally(series.FOLDS, *labels).value += 1
        if folded.has_failed:
            request_id = "" if folded.fold is None else folded.fold.id
            self.troubles.add(Problem(_COMPACTION, folded.reason), request_id, at=self._clock())
        if folded.fold is not None and folded.outcome is not Outcome.LOCK_HELD:
            self._board.spread(series.FOLD_SECONDS, *labels).observe(folded.fold.duration_seconds)

    def broke(self, seen: SeenBreak) -> None:
        """Count it by its cause."""
        labels = self._agents.of(seen.agent), seen.verdict.cause.value
        found = series.PLANNED_REWRITES if seen.is_planned else series.CACHE_BREAKS
        self._board.tally(found, *labels).value += 1

    def billed(self, entry: Entry, settled: Settled) -> None:
        """Add up its dollars, unless the same bill was told before."""
        self._bills[settled.outcome].value += 1
        if settled.outcome is Bill.KNOWN:
            return
        call = entry.call
        kind = self._kind(call.agent, call.provider, call.model)
        if entry.dollars is None:
            self._board.tally(series.UNPRICED, *kind.shown, call.category.value).value += 1
            if entry.is_possibly_charged:
                self._board.tally(series.POSSIBLY_CHARGED, *kind.shown, call.category.value).value += 1
        else:
            kind.cost(call.category.value).value += float(entry.dollars)
            if call.is_subscription:
                self._board.tally(series.SUBSCRIPTION_COST, *kind.shown).value += float(entry.dollars)
            if entry.is_inherited:
                self._board.tally(series.INHERITED_COST, *kind.shown).value += float(entry.dollars)
        self._compared(kind, entry)

    def _compared(self, kind: _Calls, entry: Entry) -> None:
        saved = entry.savings
        if saved.comparison is Comparison.WOULD_NOT_FIT:
            self._board.tally(series.NOT_FITTING, kind.shown[0]).value += 1
        if saved.without is None or saved.total is None or entry.dollars is None:
            return
        kind.compare("charged", float(entry.dollars))
        kind.compare("simulated", float(saved.without - saved.total))
        kind.compare("without", float(saved.without))
        for by, dollars in (
            ("compaction", saved.compaction),
            ("context", saved.context),
            ("breakpoints", saved.breakpoints),
            ("keep_alive", saved.keep_alive),
        ):
            if dollars:
                kind.save(by, float(dollars))

    def ended(self, exchange: Exchange) -> None:
        """Add up what an exchange was about."""
        incoming, work = exchange.incoming, exchange.work
        self._added.observe(max(0.0, exchange.sent_at - exchange.came_at))
        for done in exchange.outgoing.done:
            self._edited(done.step).value += 1
        if work is not None and work.cut_results:
            labels = self._agents.of(incoming.agent), Outcome.TOOL_RESULT_TRUNCATED.value
            self._board.tally(series.FOLDS, *labels).value += work.cut_results
        if not exchange.status:
            return
        for limit in exchange.rate_limits:
            key = self._agents.of(incoming.agent), incoming.provider, limit.name
            if key in self._limits or len(self._limits) < MOST_SETS:
                self._limits[key] = limit
        first, whole = self._waited(incoming.provider)
        first.observe(max(0.0, exchange.begun_at - exchange.sent_at))
        whole.observe(max(0.0, exchange.ended_at - exchange.came_at))
        usage = exchange.usage
        if usage is None or not 200 <= exchange.status < 300:
            return
        kind, is_whole = self._kind(incoming.agent, incoming.provider, model_of(exchange)), exchange.has_bill
        cache, billed = usage.cache, kind.billed_as(is_whole)
        input_tokens = cache.input_tokens
        billed.input.value += input_tokens
        billed.output.value += usage.output_tokens
        billed.read.value += cache.read
        billed.created.value += cache.written_5m + cache.written_1h
        self._hits.add(kind.shown[0], cache, at=exchange.begun_at)
        if work is None or work.count is None:
            return
        counted = kind.counted_as(work.count.exact)
        counted.estimated.observe(work.count.tokens)
        if work.drift_percent is not None:
            counted.drift.observe(work.drift_percent)

    def answered(self, agent: str, provider: str, model: str, status: int) -> None:
        """Count a request by the status that its client got; a model is believed where it has answered."""
        self._waiting += 1
        if self._waiting >= _TOGETHER:
            self._waiting = 0
            self._board.add_up()
        self._kind(agent, provider, model, may_be_new=200 <= status < 300).answered(status).value += 1

    def holds(self, *, config: bool | None = None, store: bool | None = None) -> None:
        """Whether the configuration can be used, and the store be reached."""
        if config is not None:
            self._board.tally(series.CONFIG_VALID).value = int(config)
        if store is not None:
            self._board.tally(series.STORE_UP).value = int(store)

    def polls(self, poll: Callable[[], None]) -> None:
        """Have `poll` called before the numbers are looked at."""
        self._polls.append(poll)

    def bills(self, *, waiting: int, lost: int, lapsed: int) -> None:
        """How many bills wait by now, and are lost, and how many reservations ran out."""
        self._board.tally(series.BILLS_WAITING).value = waiting
        self._board.tally(series.BILLS_LOST).value = lost
        self._board.tally(series.LAPSED).value = lapsed

    def workspaces(self, counts: Mapping[str, Bundles]) -> None:
        """How often bundles were kept, read and dropped by now, by the roots of their workspaces."""
        for root, count in counts.items():
            self._grow(series.WORKSPACE_HITS, root, count.hits)
            self._grow(series.WORKSPACE_MISSES, root, count.misses)
            self._grow(series.WORKSPACE_INVALIDATIONS, root, count.invalidations)

    def samples(self) -> list[Sample]:
        """All numbers as they are now, those too that change by themselves, as a sliding hour does."""
        for poll in self._polls:
            poll()
        for labels, limit in self._limits.items():
            is_reset = limit.resets_at is not None and limit.resets_at <= self._clock()
            if limit.used is not None:
                self._board.tally(series.RATE_LIMIT_USED, *labels).value = 0 if is_reset else limit.used
            if limit.resets_at is not None:
                self._board.tally(series.RATE_LIMIT_RESET, *labels).value = limit.resets_at
        ratios = self._hits.ratios(at=self._clock())
        for agent in self._seen_agents | set(ratios):
            found = ratios.get(agent)
            self._board.tally(series.WINDOW_READ, agent).value = found.read_tokens if found else 0
            self._board.tally(series.WINDOW_INPUT, agent).value = found.input_tokens if found else 0
        self._seen_agents |= set(ratios)
        return self._board.samples()

    def _kind(self, agent: str, provider: str, model: str, *, may_be_new: bool = True) -> _Calls:
        """The numbers of a call: at most so many kinds of calls are told apart."""
        known = self._calls.get((agent, provider, model))
        if known is not None:
            return known
        shown = self._agents.of(agent), provider, self._models.of(model, may_be_new=may_be_new)
        if shown not in self._kinds and len(self._kinds) >= MOST_SETS:
            shown = (OTHER, provider, OTHER)
        kind = self._kinds.get(shown) or self._kinds.setdefault(shown, _Calls(self._board, shown))
        if shown == (agent, provider, model):
            self._calls[shown] = kind
        return kind

    def _edited(self, step: str) -> Tally:
        found = self._edits.get(step)
        if found is None:
            found = self._edits[step] = self._board.tally(series.EDITS, step)
        return found

    def _waited(self, provider: str) -> tuple[Spread, Spread]:
        found = self._waits.get(provider)
        if found is None:
            found = self._waits[provider] = (
                self._board.spread(series.FIRST_BYTE_SECONDS, provider),
                self._board.spread(series.CALL_SECONDS, provider),
            )
        return found

    def _grow(self, what: Series, root: str, total: float) -> None:
        """Add by how much something has grown since it was last looked at."""
        before = self._grown.get((what.name, root), 0)
        self._grown[what.name, root] = total
        self._board.tally(what, self._paths.of(root)).value += max(0, total - before)


def model_of(exchange: Exchange) -> str:
    """The model that answers an exchange; empty where nobody could tell."""
    if exchange.work is not None:
        return exchange.work.model
    return exchange.entry.call.model if exchange.entry is not None else ""

"""What is counted of requests, for Prometheus: a watch that adds up, and a page of numbers.

On the way of a request every number is one call on something that was looked up before: prometheus-client finds
a series by its labels in several microseconds, and adds to it in less than one.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

from foveate.cache.hits import Hits
from foveate.cost.admission import Outcome as Bill
from foveate.cost.admission import Settled
from foveate.cost.ledger import Entry, Savings
from foveate.engine import series
from foveate.engine.calls import Incoming, Problem
from foveate.engine.exchange import Exchange
from foveate.engine.labels import MOST_SETS, OTHER, Few
from foveate.engine.series import Kind, Series
from foveate.engine.troubles import Troubles
from foveate.errors import FoveateError
from foveate.fold.folding import Folded
from foveate.fold.journal import Outcome

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_EXACT = {True: "true", False: "false"}
_Set = tuple[str, str, str]


class Bundles(Protocol):
    """How often the bundles of a workspace were there already, had to be read, and were dropped."""

    @property
    def hits(self) -> int: ...

    @property
    def misses(self) -> int: ...

    @property
    def invalidations(self) -> int: ...


class Metrics:
    """The numbers of one process, or of all workers where they share a folder. Closed with the process."""

    def __init__(self, *, version: str, clock: Callable[[], float] = time.time) -> None:
        """Whether there is a folder that workers share is decided when this is first made in a process."""
        from prometheus_client import CollectorRegistry, disable_created_metrics

        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._clock = clock
        self._folder = os.environ.get(_FOLDER)
        self._registry = CollectorRegistry(auto_describe=False)
        self._made = {
            each.name: _made(each, self._registry) for each in series.SERIES if each is not series.HIT_RATIO
        }
        self._children: dict[tuple[str, ...], Any] = {}
        self._agents, self._models, self._paths = Few(), Few(), Few()
        self._sets: dict[_Set, _Set] = {}
        self._hits = Hits()
        self._seen_agents: set[str] = set()
        self._polled: dict[tuple[str, ...], float] = {}
        self._polls: list[Callable[[], None]] = []
        self.troubles = Troubles()
        self.added = self._child(series.ADDED_SECONDS)
        self.open_requests = self._child(series.OPEN_REQUESTS)
        self.open_streams = self._child(series.OPEN_STREAMS)
        self.request_bytes = self._child(series.REQUEST_BYTES)
        self.response_bytes = self._child(series.RESPONSE_BYTES)
        self._child(series.BUILD, version).set(1)
        self._child(series.CONFIG_VALID).set(1)
        self._child(series.STORE_UP).set(1)
        self._child(series.BILLS_LOST)
        self._child(series.BILLS_WAITING)

    def know(self, agents: Iterable[str]) -> None:
        """Have these agents shown by their names, whoever else comes."""
        self._agents.know(agents)

    def failed(self, incoming: Incoming, problem: Problem) -> None:
        """Count it, and remember it for a while."""
        self._child(series.STEP_FAILURES, problem.step).inc()
        self.troubles.add(problem, incoming.id, at=self._clock())

    def took(self, step: str, seconds: float) -> None:
        """Add it up."""
        self._child(series.STEP_SECONDS, step).observe(max(0.0, seconds))

    def refused(self, agent: str, error: FoveateError) -> None:
        """Count it by its code."""
        self.answered_ourselves(agent, error.code)

    def answered_ourselves(self, agent: str, code: str) -> None:
        """Count an error of our own by a word for it."""
        self._child(series.REFUSALS, self._agents.of(agent), code).inc()

    def folded(self, agent: str, folded: Folded) -> None:
        """Count it, with how long it took where it is our own."""
        labels = self._agents.of(agent), folded.outcome.value
        self._child(series.FOLDS, *labels).inc()
        if folded.fold is not None and folded.outcome is not Outcome.LOCK_HELD:
            self._child(series.FOLD_SECONDS, *labels).observe(folded.fold.duration_seconds)

    def billed(self, entry: Entry, settled: Settled) -> None:
        """Add up its dollars, unless the same bill was told before."""
        self._child(series.BILLS, settled.outcome.value).inc()
        if settled.outcome is Bill.KNOWN:
            return
        call = entry.call
        labels = *self._set(call.agent, call.provider, call.model), call.category.value
        if entry.dollars is None:
            self._child(series.UNPRICED, *labels).inc()
        else:
            self._child(series.COST, *labels).inc(float(entry.dollars))
        if entry.savings != _NOTHING_SAVED:
            self._saved(labels[0], entry.savings)

    def _saved(self, agent: str, savings: Savings) -> None:
        for by, dollars in (("cache", savings.cache), ("folds", savings.folds), ("cuts", savings.cuts)):
            if dollars is not None and dollars:
                which = series.SAVED if dollars > 0 else series.OVERPAID
                self._child(which, agent, by).inc(float(abs(dollars)))

    def ended(self, exchange: Exchange) -> None:
        """Add up what an exchange was about."""
        incoming, work = exchange.incoming, exchange.work
        self.added.observe(max(0.0, exchange.sent_at - exchange.came_at))
        for done in exchange.outgoing.done:
            self._child(series.EDITS, done.step).inc()
        if work is not None and work.cut_results:
            agent = self._agents.of(incoming.agent)
            self._child(series.FOLDS, agent, Outcome.TOOL_RESULT_TRUNCATED.value).inc(work.cut_results)
        if exchange.status:
            waited = max(0.0, exchange.begun_at - exchange.sent_at)
            self._child(series.FIRST_BYTE_SECONDS, incoming.provider).observe(waited)
            whole = max(0.0, exchange.ended_at - exchange.came_at)
            self._child(series.CALL_SECONDS, incoming.provider).observe(whole)
        usage = exchange.usage
        if usage is None or not 200 <= exchange.status < 300:
            return
        shown = self._set(incoming.agent, incoming.provider, model_of(exchange))
        cache, is_whole = usage.cache, _EXACT[exchange.has_bill]
        self._hits.add(shown[0], cache, at=exchange.begun_at)
        self._child(series.INPUT_TOKENS, *shown, is_whole).inc(cache.input_tokens)
        self._child(series.OUTPUT_TOKENS, *shown, is_whole).inc(usage.output_tokens)
        self._child(series.CACHE_READ, *shown, is_whole).inc(cache.read)
        self._child(series.CACHE_CREATION, *shown, is_whole).inc(cache.written_5m + cache.written_1h)
        if work is None or work.count is None:
            return
        counted, exact = work.count.tokens, _EXACT[work.count.exact]
        self._child(series.ESTIMATED, *shown, exact).observe(counted)
        if counted > 0 and cache.input_tokens > 0 and exchange.has_bill:
            self._child(series.DRIFT, *shown, exact).observe(100 * (cache.input_tokens / counted - 1))

    def answered(self, agent: str, provider: str, model: str, status: int) -> None:
        """Count a request by the status that its client got; a model is believed where it has answered."""
        shown = self._set(agent, provider, model, may_be_new=200 <= status < 300)
        self._child(series.REQUESTS, *shown, str(status)).inc()

    def holds(self, *, config: bool | None = None, store: bool | None = None) -> None:
        """Whether the configuration can be used, and the store be reached."""
        if config is not None:
            self._child(series.CONFIG_VALID).set(config)
        if store is not None:
            self._child(series.STORE_UP).set(store)

    def polls(self, poll: Callable[[], None]) -> None:
        """Have `poll` called before the numbers are shown, and every now and then."""
        self._polls.append(poll)

    def bills(self, *, waiting: int, lost: int) -> None:
        """How many bills wait by now, and are lost."""
        self._child(series.BILLS_WAITING).set(waiting)
        self._grown(series.BILLS_LOST, lost)

    def workspaces(self, counts: Mapping[str, Bundles]) -> None:
        """How often bundles were kept, read and dropped by now, by the roots of their workspaces."""
        for root, count in counts.items():
            self._grown(series.WORKSPACE_HITS, count.hits, root)
            self._grown(series.WORKSPACE_MISSES, count.misses, root)
            self._grown(series.WORKSPACE_INVALIDATIONS, count.invalidations, root)

    def refresh(self) -> None:
        """Bring up to date what changes by itself, as a sliding hour does."""
        for poll in self._polls:
            poll()
        ratios = self._hits.ratios(at=self._clock())
        for agent in self._seen_agents | set(ratios):
            found = ratios.get(agent)
            self._child(series.WINDOW_READ, agent).set(found.read_tokens if found else 0)
            self._child(series.WINDOW_INPUT, agent).set(found.input_tokens if found else 0)
        self._seen_agents |= set(ratios)

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """All numbers as Prometheus reads them, and their content type. It takes its time: not in the loop."""
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        return encode(_WithRatios(self._registry, self._folder)), content_type

    def _set(self, agent: str, provider: str, model: str, *, may_be_new: bool = True) -> _Set:
        """How a call is shown: at most so many kinds of calls are told apart."""
        shown = self._agents.of(agent), provider, self._models.of(model, may_be_new=may_be_new)
        known = self._sets.get(shown)
        if known is not None:
            return known
        if len(self._sets) >= MOST_SETS:
            return OTHER, provider, OTHER
        return self._sets.setdefault(shown, shown)

    def _grown(self, what: Series, total: float, path: str | None = None) -> None:
        labels = () if path is None else (self._paths.of(path),)
        key = (what.name, path or "")
        before = self._polled.get(key, 0)
        if total > before:
            self._polled[key] = total
        self._child(what, *labels).inc(max(0, total - before))

    def _child(self, what: Series, *labels: str) -> Any:
        key = (what.name, *labels)
        found = self._children.get(key)
        if found is None:
            family = self._made[what.name]
            found = self._children[key] = family.labels(*labels) if what.labels else family
        return found


_NOTHING_SAVED = Savings()


def model_of(exchange: Exchange) -> str:
    """The model that answers an exchange; empty where nobody could tell."""
    if exchange.work is not None:
        return exchange.work.model
    return exchange.entry.call.model if exchange.entry is not None else ""


def dollars_of(exchange: Exchange) -> Decimal | None:
    """What an exchange cost, where that is known."""
    return exchange.entry.dollars if exchange.entry is not None else None


def _made(what: Series, registry: "CollectorRegistry") -> Any:
    from prometheus_client import Counter, Gauge, Histogram

    match what.kind:
        case Kind.COUNTER:
            return Counter(what.name, what.help, what.labels, registry=registry)
        case Kind.GAUGE:
            return Gauge(
                what.name, what.help, what.labels, registry=registry, multiprocess_mode=what.across.value
            )
        case Kind.HISTOGRAM:
            return Histogram(what.name, what.help, what.labels, registry=registry, buckets=what.buckets)


class _WithRatios:
    """All families of one process or of all workers, and the hit ratio, which is had from their sums."""

    def __init__(self, registry: "CollectorRegistry", folder: str | None) -> None:
        self._registry = registry
        self._folder = folder

    def collect(self) -> "Iterable[Metric]":
        from prometheus_client.metrics_core import GaugeMetricFamily
        from prometheus_client.multiprocess import MultiProcessCollector

        # The collector's own registry is not wanted, and it takes none for an answer.
        families = list(
            self._registry.collect()
            if self._folder is None
            else MultiProcessCollector(None, self._folder).collect()  # type: ignore[no-untyped-call]
        )
        read, sent = (
            {
                sample.labels["agent"]: sample.value
                for family in families
                if family.name == which.name
                for sample in family.samples
            }
            for which in (series.WINDOW_READ, series.WINDOW_INPUT)
        )
        ratio = GaugeMetricFamily(series.HIT_RATIO.name, series.HIT_RATIO.help, labels=series.HIT_RATIO.labels)
        for agent, tokens in sent.items():
            if tokens:
                ratio.add_metric([agent], read.get(agent, 0) / tokens)
        return [*families, ratio]

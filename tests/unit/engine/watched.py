"""Exchanges as they end, for those that watch them, and the numbers of a page of metrics."""

from decimal import Decimal

from prometheus_client.parser import text_string_to_metric_families

from foveate import wire
from foveate.cost.ledger import Call, Category, Entry
from foveate.engine.behind import Behind
from foveate.engine.board import page
from foveate.engine.calibrating import Calibrate, Calibrations
from foveate.engine.calls import Done, Incoming, Outgoing, Problem
from foveate.engine.exchange import Exchange
from foveate.engine.metrics import Metrics
from foveate.engine.options import AgentOptions
from foveate.engine.watch import UNWATCHED, Watch
from foveate.engine.work import Work
from foveate.values import Area, CacheUsage, Comparison, Format, Mark, Place, Savings, TokenCount, Usage

COUNTED = TokenCount(80, False, 90)
MARK = Mark(place=Place(Area.MESSAGES, 0, 0), reason="it pays")


def numbers(metrics: Metrics) -> dict[str, float]:
    """Every sample of a page of metrics, by its name and labels as they are written there."""
    written, _ = page(metrics.samples())
    return {
        sample.name + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(written.decode())
        for sample in family.samples
    }


def entry(*, dollars: str | None = "0.5", agent: str = "ana", model: str = "claude-opus-4-5") -> Entry:
    """A bill."""
    call = Call(
        id="r", agent=agent, session_id="s", provider="anthropic", model=model, category=Category.MAIN, at=0.0
    )
    return Entry(
        call=call,
        usage=Usage(cache=CacheUsage(uncached=10, read=80, written_5m=6, written_1h=4), output_tokens=7),
        dollars=None if dollars is None else Decimal(dollars),
        savings=Savings()
        if dollars is None
        else Savings(
            comparison=Comparison.SIMULATED,
            without=Decimal("0.5625"),
            breakpoints=Decimal("0.25"),
            compaction=Decimal("-0.125"),
            simulation_error=Decimal("0.0625"),
        ),
    )


async def ended(
    watch: Watch = UNWATCHED,
    *,
    agent: str = "ana",
    model: str = "claude-opus-4-5",
    provider: str = "anthropic",
    status: int = 200,
    counted: TokenCount | None = COUNTED,
    problems: tuple[Problem, ...] = (),
    cut_results: int = 0,
) -> Exchange:
    """An exchange that came to its end: 100 tokens in, 80 of them read, 10 written; 7 out."""
    times = iter([100.001, 100.5, 102.0])
    body = wire_body(model)
    incoming = Incoming(
        id="req_1", agent=agent, spoken=Format.ANTHROPIC, provider=provider, upstream=provider, body=body
    )
    request = wire.read(body, Format.ANTHROPIC)
    work = Work(incoming=incoming, options=AgentOptions(), now=100.0, came=request, request=request)
    work.count, work.cut_results = counted, cut_results
    outgoing = Outgoing(body=body, done=(Done("cache", MARK), Done("cache", MARK)), problems=problems)
    exchange = Exchange(
        incoming,
        work,
        outgoing,
        settle=(Calibrate(Calibrations()),),
        clock=lambda: next(times),
        watch=watch,
        came_at=100.0,
        behind=Behind(),
    )
    exchange.begun(status, streams=False)
    exchange.passed(
        b'{"type":"message","role":"assistant","content":[],"usage":{"input_tokens":10,"output_tokens":7,'
        b'"cache_read_input_tokens":80,"cache_creation_input_tokens":10}}'
    )
    exchange.rest()
    exchange.entry = entry(agent=agent, model=model)
    exchange.over()
    await exchange.settled()
    return exchange


def wire_body(model: str) -> bytes:
    """A small request for a model."""
    return b'{"model": "%s", "max_tokens": 9, "messages": [{"role":"user","content":"SECRET TEXT"}]}' % (
        model.encode()
    )

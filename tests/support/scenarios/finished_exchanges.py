"""Finished exchanges for observers, and a parser of metrics pages."""

from decimal import Decimal

from prometheus_client.parser import text_string_to_metric_families

from foveate import formats
from foveate.cost.ledger import Call, Category, Charge
from foveate.engine.completion_queue import CompletionQueue
from foveate.engine.counting.calibration import Calibrate, Calibrations
from foveate.engine.exchange import CallHooks, Exchange
from foveate.engine.metrics.collector import MetricsCollector
from foveate.engine.metrics.registry import render_metrics
from foveate.engine.observer import NO_OBSERVER, Observer
from foveate.engine.options import AgentOptions
from foveate.engine.request import AppliedEdit, IncomingRequest, StepFailure, UpstreamRequest
from foveate.engine.request_context import RequestContext
from foveate.model import (
    Area,
    CacheBreakpoint,
    CacheUsage,
    ComparisonOutcome,
    Format,
    Place,
    Savings,
    TokenCount,
    Usage,
)

COUNTED = TokenCount(80, False, 90)
BREAKPOINT = CacheBreakpoint(place=Place(Area.MESSAGES, 0, 0), reason="it pays")


def metric_values(metrics: MetricsCollector) -> dict[str, float]:
    """Return every sample of a metrics page, by its name and labels as written."""
    page, _ = render_metrics(metrics.samples())
    return {
        sample.name + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def make_exchange_charge(
    *, dollars: str | None = "0.5", agent: str = "ana", model: str = "claude-opus-4-5"
) -> Charge:
    """Build a charge."""
    call = Call(
        id="r", agent=agent, session_id="s", provider="anthropic", model=model, category=Category.MAIN, at=0.0
    )
    return Charge(
        call=call,
        usage=Usage(cache=CacheUsage(uncached=10, read=80, written_5m=6, written_1h=4), output_tokens=7),
        dollars=None if dollars is None else Decimal(dollars),
        savings=Savings()
        if dollars is None
        else Savings(
            comparison=ComparisonOutcome.SIMULATED,
            without=Decimal("0.5625"),
            breakpoints=Decimal("0.25"),
            compaction=Decimal("-0.125"),
            simulation_error=Decimal("0.0625"),
        ),
    )


async def finish_exchange(
    watch: Observer = NO_OBSERVER,
    *,
    agent: str = "ana",
    model: str = "claude-opus-4-5",
    provider: str = "anthropic",
    status: int = 200,
    counted: TokenCount | None = COUNTED,
    problems: tuple[StepFailure, ...] = (),
    cut_results: int = 0,
) -> Exchange:
    """Build a finished exchange: 100 tokens in, 80 of them read, 10 written; 7 out."""
    times = iter([100.001, 100.5, 102.0])
    body = wire_body(model)
    incoming = IncomingRequest(
        id="req_1", agent=agent, api_format=Format.ANTHROPIC, provider=provider, upstream=provider, body=body
    )
    request = formats.parse_request(body, Format.ANTHROPIC)
    context = RequestContext(
        incoming=incoming, options=AgentOptions(), received_at=100.0, original=request, request=request
    )
    context.count.total, context.truncated_result_count = counted, cut_results
    outgoing = UpstreamRequest(
        body=body,
        applied_edits=(AppliedEdit("cache", BREAKPOINT), AppliedEdit("cache", BREAKPOINT)),
        problems=problems,
    )
    exchange = Exchange(
        incoming,
        context,
        outgoing,
        hooks=CallHooks(in_background=(Calibrate(Calibrations()),)),
        clock=lambda: next(times),
        observer=watch,
        received_at=100.0,
        completer=CompletionQueue(),
    )
    exchange.on_response_start(status, is_streaming=False)
    exchange.on_chunk(
        b'{"type":"message","role":"assistant","content":[],"usage":{"input_tokens":10,"output_tokens":7,'
        b'"cache_read_input_tokens":80,"cache_creation_input_tokens":10}}'
    )
    exchange.flush()
    exchange.charge = make_exchange_charge(agent=agent, model=model)
    exchange.finish()
    await exchange.wait_until_completed()
    return exchange


def wire_body(model: str) -> bytes:
    """Build a small request for a model."""
    return b'{"model": "%s", "max_tokens": 9, "messages": [{"role":"user","content":"SECRET TEXT"}]}' % (
        model.encode()
    )

"""OpenTelemetry: a span and numbers for each call of a model, by the conventions for generative AI.

Their status is "development": names as of November 2026. Nothing of a message is in a span. Where it goes is
said by OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT and so on). The packages are an extra.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from foveate.engine.labels import Few
from foveate.engine.metrics import model_of
from foveate.errors import BadOption
from foveate.gateway.asks import Ask
from foveate.gateway.client import Client
from foveate.gateway.doors import Asks

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

    from foveate.values import Usage

NAME = "foveate"
_OPERATIONS = {Asks.ANSWER: "chat", Asks.EMBEDDINGS: "embeddings"}
# Those that the conventions call by another name than Foveate.
_PROVIDERS = {
    "google": "gcp.gemini",
    "vertex": "gcp.vertex_ai",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")

_Attributes = dict[str, str | int | float]


def check(needed: Sequence[str] = _NEEDED) -> None:
    """Whether the packages are there.

    Raises:
        BadOption: they are not.
    """
    if not all(_is_there(name) for name in needed):
        raise BadOption(
            "opentelemetry needs packages that are not there: pip install 'foveate[otel]'",
            path=("server", "opentelemetry"),
        )


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # not even what it is a part of
        return False


class Telemetry:
    """Makes spans and numbers of requests as they end."""

    def __init__(self, spans: "TracerProvider", meters: "MeterProvider") -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._providers = (spans, meters)
        self._tracer = spans.get_tracer(NAME)
        meter = meters.get_meter(NAME)
        self._seconds = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="How long calls of models took.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._tokens = {
            kind: meter.create_counter(
                f"gen_ai.client.inference.usage.{kind}", unit="{token}", description=f"{kind}, as billed."
            )
            for kind in ("input_tokens", "output_tokens", "cache_read.input_tokens", "cache_write.input_tokens")
        }
        self._from_headers = TraceContextTextMapPropagator()
        self._models = Few()

    def ended(self, ask: Ask, client: Client) -> None:
        """Make a span of a request, as a part of the trace that its client is in, and count it."""
        operation, exchange = _OPERATIONS.get(ask.door.asks), client.exchange
        if operation is None or exchange is None:
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode

        provider = _PROVIDERS.get(client.provider, client.provider)
        is_good = 200 <= client.status < 300
        model = self._models.of(model_of(exchange), may_be_new=is_good)
        shared: _Attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": model,
        }
        problem = client.refused or ("" if is_good else str(client.status or "client_gone"))
        if problem:
            shared["error.type"] = problem
        usage = exchange.usage
        billed = _billed(usage) if usage is not None else {}
        session = exchange.work.session_id if exchange.work is not None else exchange.incoming.session or ""
        span = self._tracer.start_span(
            f"{operation} {model}",
            context=self._from_headers.extract(dict(ask.headers)),
            kind=SpanKind.CLIENT,
            start_time=_nanoseconds(exchange.came_at),
            attributes={
                **shared,
                **{f"gen_ai.usage.{kind}": tokens for kind, tokens in billed.items()},
                "gen_ai.conversation.id": session,
                "http.response.status_code": client.status,
                "foveate.request.id": ask.id,
                "foveate.agent": client.agent,
                "foveate.added_seconds": exchange.sent_at - exchange.came_at,
                "foveate.edits": len(exchange.outgoing.done),
            },
        )
        if exchange.entry is not None and exchange.entry.dollars is not None:
            span.set_attribute("foveate.dollars", str(exchange.entry.dollars))
        if problem:
            span.set_status(Status(StatusCode.ERROR, problem))
        span.end(end_time=_nanoseconds(exchange.ended_at))
        self._seconds.record(max(0.0, exchange.ended_at - exchange.came_at), shared)
        for kind, tokens in billed.items():
            self._tokens[kind].add(tokens, shared)

    def close(self) -> None:
        """Send what is left. It may take its time where nobody takes it: not in the event loop."""
        for provider in self._providers:
            provider.shutdown()


def _billed(usage: "Usage") -> dict[str, int]:
    """The tokens of a bill; the cached ones are part of the input."""
    cache = usage.cache
    return {
        "input_tokens": cache.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read.input_tokens": cache.read,
        "cache_write.input_tokens": cache.written_5m + cache.written_1h,
    }


def _nanoseconds(at: float) -> int:
    return int(at * 1_000_000_000)


def exporting(version: str) -> Telemetry:
    """Telemetry that goes where OpenTelemetry's own variables say, over OTLP.

    Raises:
        BadOption: the packages are not there.
    """
    check()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = Resource.create({"service.name": NAME, "service.version": version})
    resource = named.merge(OTELResourceDetector().detect())  # what its variables say goes over that
    spans = TracerProvider(resource=resource)
    spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Telemetry(
        spans, MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource=resource)
    )

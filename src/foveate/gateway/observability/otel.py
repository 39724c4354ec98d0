"""OpenTelemetry: a span and metrics for each model call, by the semantic conventions for generative AI.

The conventions are in status "development"; names as of November 2026. Spans contain no message text.
OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT and so on) set the destination. The packages are an
extra.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from foveate.engine.metrics.collector import CardinalityLimiter, response_model
from foveate.errors import BadOption
from foveate.extras import install_command
from foveate.gateway.endpoints import Operation
from foveate.gateway.request import ClientRequest
from foveate.gateway.response import ClientResponse

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

    from foveate.model import Usage

SERVICE_NAME = "foveate"
_OPERATION_NAMES = {Operation.GENERATE: "chat", Operation.EMBEDDINGS: "embeddings"}
# Providers that the conventions name differently.
_PROVIDER_NAMES = {
    "google": "gcp.gemini",
    "vertex": "gcp.vertex_ai",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
_DURATION_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_REQUIRED_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")

_Attributes = dict[str, str | int | float]


def check_installed(packages: Sequence[str] = _REQUIRED_PACKAGES) -> None:
    """Check that the packages are installed.

    Raises:
        BadOption: they are not.
    """
    if not all(_is_installed(name) for name in packages):
        raise BadOption(
            f"opentelemetry needs packages that are not installed: {install_command()} 'foveate[otel]'",
            path=("server", "opentelemetry"),
        )


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


class Telemetry:
    def __init__(self, spans: "TracerProvider", meters: "MeterProvider") -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._providers = (spans, meters)
        self._tracer = spans.get_tracer(SERVICE_NAME)
        meter = meters.get_meter(SERVICE_NAME)
        self._durations = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="Duration of model calls.",
            explicit_bucket_boundaries_advisory=_DURATION_BUCKETS,
        )
        self._tokens = {
            kind: meter.create_counter(
                f"gen_ai.client.inference.usage.{kind}",
                unit="{token}",
                description=f"{kind}, as reported by the provider.",
            )
            for kind in ("input_tokens", "output_tokens", "cache_read.input_tokens", "cache_write.input_tokens")
        }
        self._propagator = TraceContextTextMapPropagator()
        self._models = CardinalityLimiter()

    def on_request_end(self, request: ClientRequest, response: ClientResponse) -> None:
        """Create the span of a request in its client's trace, and count it."""
        operation, exchange = _OPERATION_NAMES.get(request.endpoint.operation), response.exchange
        if operation is None or exchange is None:
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode

        provider = _PROVIDER_NAMES.get(response.provider, response.provider)
        is_success = 200 <= response.status < 300
        model = self._models.label(response_model(exchange), may_be_new=is_success)
        shared: _Attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": model,
        }
        problem = response.error_code or ("" if is_success else str(response.status or "client_gone"))
        if problem:
            shared["error.type"] = problem
        usage = exchange.usage
        token_counts = _count_tokens(usage) if usage is not None else {}
        session = (
            exchange.context.session_id if exchange.context is not None else exchange.incoming.session or ""
        )
        span = self._tracer.start_span(
            f"{operation} {model}",
            context=self._propagator.extract(dict(request.headers)),
            kind=SpanKind.CLIENT,
            start_time=_nanoseconds(exchange.received_at),
            attributes={
                **shared,
                **{f"gen_ai.usage.{kind}": tokens for kind, tokens in token_counts.items()},
                "gen_ai.conversation.id": session,
                "http.response.status_code": response.status,
                "foveate.request.id": request.id,
                "foveate.agent": response.agent,
                "foveate.added_seconds": exchange.sent_at - exchange.received_at,
                "foveate.edits": len(exchange.upstream_request.applied_edits),
            },
        )
        if exchange.charge is not None and exchange.charge.dollars is not None:
            span.set_attribute("foveate.dollars", str(exchange.charge.dollars))
        if problem:
            span.set_status(Status(StatusCode.ERROR, problem))
        span.end(end_time=_nanoseconds(exchange.ended_at))
        self._durations.record(max(0.0, exchange.ended_at - exchange.received_at), shared)
        for kind, tokens in token_counts.items():
            self._tokens[kind].add(tokens, shared)

    def close(self) -> None:
        """Send what is left. This can block, so do not call it in the event loop."""
        for provider in self._providers:
            provider.shutdown()


def _count_tokens(usage: "Usage") -> dict[str, int]:
    """Return the tokens by kind; cached tokens are part of the input."""
    cache = usage.cache
    return {
        "input_tokens": cache.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read.input_tokens": cache.read,
        "cache_write.input_tokens": cache.written_5m + cache.written_1h,
    }


def _nanoseconds(at: float) -> int:
    return int(at * 1_000_000_000)


def create_telemetry(version: str) -> Telemetry:
    """Create telemetry that is exported over OTLP, as OpenTelemetry's own variables say.

    Raises:
        BadOption: the packages are not installed.
    """
    check_installed()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    service = Resource.create({"service.name": SERVICE_NAME, "service.version": version})
    resource = service.merge(OTELResourceDetector().detect())  # its own variables take precedence
    spans = TracerProvider(resource=resource)
    spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Telemetry(
        spans, MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource=resource)
    )

"""OpenTelemetry by the conventions for generative AI, seen by in-memory exporters."""

from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from foveate.config.load import load_and_build
from foveate.engine.exchange import Exchange
from foveate.errors import BadSetting
from foveate.gateway.config import resolve_config
from foveate.gateway.observability import otel
from foveate.gateway.observability.otel import Telemetry
from foveate.gateway.request import ClientRequest, parse_request
from foveate.gateway.response import ClientResponse
from tests.support.scenarios.finished_exchanges import finish_exchange

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class InMemoryTelemetry:
    """Telemetry with in-memory exporters."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        spans = TracerProvider()
        spans.add_span_processor(SimpleSpanProcessor(self._spans))
        self.telemetry = Telemetry(spans, MeterProvider([self._reader]))

    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._spans.get_finished_spans()

    def points(self) -> dict[str, float]:
        data = self._reader.get_metrics_data()
        values: dict[str, float] = {}
        for resource in data.resource_metrics if data else ():
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                for point in metric.data.data_points:
                    values[metric.name] = float(getattr(point, "value", 0) or getattr(point, "sum", 0))
        return values


def make_request(path: str = "/v1/messages", **headers: str) -> ClientRequest:
    names = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", **headers}
    raw = [(name.encode(), value.encode()) for name, value in names.items()]
    return parse_request(
        {"method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": raw}
    )


def finish_request(
    request: ClientRequest, exchange: Exchange | None, status: int = 200, error_code: str = ""
) -> ClientResponse:
    async def send(_: object) -> None:
        """Discard the message."""

    client = ClientResponse(request, send)
    client.exchange, client.status, client.error_code = exchange, status, error_code
    client.agent, client.provider = "ana", "anthropic"
    return client


async def test_a_call_is_a_span_in_its_clients_trace_with_its_usage() -> None:
    exporters, request = InMemoryTelemetry(), make_request()

    exporters.telemetry.on_request_end(request, finish_request(request, await finish_exchange()))

    (span,) = exporters.spans()
    assert (span.name, span.kind) == ("chat claude-opus-4-5", SpanKind.CLIENT)
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    assert (span.start_time, span.end_time) == (100 * 10**9, 102 * 10**9)
    assert span.attributes is not None
    attributes = dict(span.attributes)
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.provider.name"] == "anthropic"
    assert attributes["gen_ai.request.model"] == "claude-opus-4-5"
    assert attributes["gen_ai.usage.input_tokens"] == 100
    assert attributes["gen_ai.usage.output_tokens"] == 7
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 80
    assert attributes["gen_ai.usage.cache_write.input_tokens"] == 10
    assert attributes["foveate.dollars"] == "0.5"
    assert "SECRET TEXT" not in span.to_json()
    assert exporters.points() == {
        "gen_ai.client.operation.duration": 2.0,
        "gen_ai.client.inference.usage.input_tokens": 100,
        "gen_ai.client.inference.usage.output_tokens": 7,
        "gen_ai.client.inference.usage.cache_read.input_tokens": 80,
        "gen_ai.client.inference.usage.cache_write.input_tokens": 10,
    }


@pytest.mark.parametrize(
    ("status", "error_code", "kind"),
    [(529, "", "529"), (0, "", "client_gone"), (502, "upstream_broken", "upstream_broken")],
)
async def test_a_failed_call_has_an_error_status(status: int, error_code: str, kind: str) -> None:
    exporters, request = InMemoryTelemetry(), make_request()

    exporters.telemetry.on_request_end(
        request, finish_request(request, await finish_exchange(status=status or 200), status, error_code)
    )

    (span,) = exporters.spans()
    assert span.attributes is not None
    assert span.attributes["error.type"] == kind
    assert span.status.status_code is StatusCode.ERROR


async def test_requests_without_a_model_call_have_no_span() -> None:
    exporters = InMemoryTelemetry()

    for path in ("/v1/messages/count_tokens", "/v1/models", "/v1/messages"):
        request = make_request(path)
        exchange = None if path == "/v1/messages" else await finish_exchange()
        exporters.telemetry.on_request_end(request, finish_request(request, exchange))

    assert exporters.spans() == ()
    assert exporters.points() == {}


async def test_an_invalid_traceparent_starts_a_new_trace() -> None:
    exporters, request = InMemoryTelemetry(), make_request(traceparent="nonsense")

    exporters.telemetry.on_request_end(request, finish_request(request, await finish_exchange()))

    assert exporters.spans()[0].parent is None


def test_without_the_packages_the_setting_is_an_error_that_says_what_to_install(tmp_path: Path) -> None:
    config = tmp_path / "foveate.yaml"
    config.write_text("server:\n  opentelemetry: true\n")
    assert load_and_build(config, lambda result: resolve_config(result, {})).settings.server.opentelemetry

    with pytest.raises(BadSetting, match=r"foveate.yaml:2: .*pip install .*'foveate\[otel\]'"):
        load_and_build(
            config, lambda _: otel.check_installed(("opentelemetry.sdk", "no_such_package_here.of_it"))
        )

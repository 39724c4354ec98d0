"""Metrics, OpenTelemetry and log keys of a gateway."""

import io
import json
import logging
import sys
from collections.abc import Iterable
from decimal import Decimal

import msgspec
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from foveate.engine.metrics.definitions import METRICS
from foveate.engine.request import AppliedEdit, StepFailure
from foveate.gateway.observability.access_log import AccessRecord, LogWriter
from foveate.gateway.observability.otel import Telemetry
from foveate.gateway.request import parse_request
from foveate.gateway.response import ClientResponse
from tests.golden.shapes import describe_shape
from tests.support.scenarios.finished_exchanges import BREAKPOINT, finish_exchange


def metrics() -> dict[str, str]:
    """List every metric: its type, its labels, and the buckets of a histogram."""
    return {
        metric.name: f"{metric.kind} {{{', '.join(metric.labels)}}}"
        + (f" buckets {', '.join(map(str, metric.buckets))}" if metric.buckets else "")
        for metric in METRICS
    }


async def telemetry() -> dict[str, str]:
    """List OpenTelemetry metrics and attributes, as in-memory exporters see two calls, one of which failed."""
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    exported = Telemetry(tracing, MeterProvider([reader]))
    for status in (200, 529):
        path = "/v1/messages"
        request = parse_request(
            {"method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": []}
        )
        client = ClientResponse(request, _send_nothing)
        client.exchange, client.status, client.provider = (
            await finish_exchange(status=status),
            status,
            "anthropic",
        )
        exported.on_request_end(request, client)
    descriptions = {
        f"span attribute {name}": type(value).__name__
        for span in spans.get_finished_spans()
        for name, value in (span.attributes or {}).items()
    }
    data = reader.get_metrics_data()
    assert data is not None
    for resource in data.resource_metrics:
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            names = {name for point in metric.data.data_points for name in point.attributes or {}}
            descriptions[f"metric {metric.name}"] = (
                f"{type(metric.data).__name__} in {metric.unit} {{{', '.join(sorted(names))}}}"
            )
    return descriptions


async def _send_nothing(_: object) -> None:
    pass


def log_keys() -> dict[str, str]:
    """List the keys of JSON log lines: of finished requests, and of all other lines."""
    request = AccessRecord(
        at=0.0,
        id="r",
        method="POST",
        path="/",
        agent="a",
        status=200,
        total_seconds=1.0,
        added_seconds=0.1,
        dollars=Decimal(1),
        applied_edits=(AppliedEdit(step="cache", edit=BREAKPOINT),),
        problems=(StepFailure(step="cache", reason="x"),),
    )
    try:
        raise ValueError("x")
    except ValueError:
        failed = logging.LogRecord("foveate", logging.ERROR, "", 0, "x", None, sys.exc_info())
    plain = logging.LogRecord("foveate", logging.INFO, "", 0, "x", None, None)
    lines_by_kind = {
        "request": _write_log(
            logging.LogRecord("foveate.requests", logging.INFO, "", 0, each, None, None)
            for each in (request, msgspec.structs.replace(request, added_seconds=None, dollars=None))
        ),
        "message": _write_log([plain, failed]),
    }
    return {
        f"{kind}: {path}": type_text
        for kind, lines in lines_by_kind.items()
        for path, type_text in describe_shape(lines, maps=["edits"]).items()
    }


def _write_log(records: Iterable[logging.LogRecord]) -> list[object]:
    output = io.BytesIO()
    writer = LogWriter(output, as_json=True, colours=False)
    for record in records:
        writer.handle(record)
    writer.close()
    return [json.loads(line) for line in output.getvalue().splitlines()]

"""The Grafana dashboard and the alert rules use only existing series, and promtool accepts them."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from foveate.engine.metrics.definitions import METRICS, MetricKind
from foveate.engine.metrics.registry import MetricsRegistry, render_metrics

FOLDER = Path(__file__).parents[2] / "dashboards"
RULES = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))

SERIES = {
    name: series
    for series in METRICS
    for name in (
        (f"{series.name}_bucket", f"{series.name}_count", f"{series.name}_sum")
        if series.kind is MetricKind.HISTOGRAM
        else (series.name,)
    )
}
# A selector of PromQL: the name of a series and its labels.
SELECTOR = re.compile(r"\b((?:foveate|llm|workspace)_[a-z_]+)(?:\{([^}]*)\})?")


def list_rules() -> Iterator[dict[str, Any]]:
    for group in RULES["groups"]:
        yield from group["rules"]


def list_panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


EXPRESSIONS = [rule["expr"] for rule in list_rules()] + [
    target["expr"] for panel in list_panels() for target in panel["targets"]
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_selects_only_existing_series_and_labels(expression: str) -> None:
    selectors = SELECTOR.findall(expression)
    assert selectors or expression.startswith("up{")
    for name, labels in selectors:
        assert name in SERIES
        label_names = re.findall(r"(\w+)\s*=", labels)
        assert set(label_names) <= {*SERIES[name].labels, "le"}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_series_summed_by_a_label_have_that_label(expression: str) -> None:
    for grouped, name in re.findall(
        r"sum by \(([^)]*)\) \((?:(?:rate|increase)\()?((?:foveate|llm|workspace)_[a-z_]+)", expression
    ):
        assert {label.strip() for label in grouped.split(",")} <= {*SERIES[name].labels, "le"}


def test_every_series_is_on_the_dashboard_or_in_a_rule() -> None:
    used = {SERIES[name].name for expression in EXPRESSIONS for name, _ in SELECTOR.findall(expression)}

    assert {series.name for series in METRICS} - used == set()


def test_every_health_level_of_the_contract_has_a_rule() -> None:
    expressions = "\n".join(rule["expr"] for rule in list_rules())

    assert "llm_cache_hit_ratio < 0.3" in expressions
    assert re.search(r"histogram_quantile\(0.99, .*llm_prompt_tokens_drift_bucket.* > 20", expressions)
    assert "llm_compaction_duration_seconds_bucket" in expressions
    assert 'llm_compaction_triggered_total{outcome="lock_held"}' in expressions
    assert "workspace_cache_invalidations_total" in expressions


def test_panels_have_unique_ids_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        position = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert not cells & taken
        assert position["x"] + position["w"] <= 24
        taken |= cells


@pytest.fixture(scope="module")
def promtool() -> str:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip(
            "promtool is not there (Debian: the package prometheus); rules and metrics are not checked by it"
        )
    return path


@pytest.mark.slow
@pytest.mark.process
def test_promtool_accepts_the_rules_and_they_fire_as_intended(promtool: str) -> None:
    for arguments in (("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")):
        result = subprocess.run([promtool, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.process
def test_promtool_accepts_every_expression_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": target["expr"].replace("$__rate_interval", "5m")}
        for number, target in enumerate(target for panel in list_panels() for target in panel["targets"])
    ]
    file = tmp_path / "dashboard.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))

    result = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.process
def test_promtool_accepts_the_metrics_page(promtool: str) -> None:
    registry = MetricsRegistry()
    for series in METRICS:
        labels = ["x"] * len(series.labels)
        if series.kind is MetricKind.HISTOGRAM:
            registry.histogram(series, *labels).observe(1.5)
        else:
            registry.scalar(series, *labels).value = 1
    page, _ = render_metrics(registry.samples())

    result = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False)

    # Code 3 is a matter of style, e.g. the names of gauges in the contract (`llm_prompt_tokens_estimated`).
    assert b"error while linting" not in result.stderr, result.stderr
    assert result.returncode in (0, 3), result.stderr

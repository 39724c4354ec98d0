"""The dashboard and the alert rules: they use only series that there are, and promtool takes them."""

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

SHOWN = {
    name: series
    for series in METRICS
    for name in (
        (f"{series.name}_bucket", f"{series.name}_count", f"{series.name}_sum")
        if series.kind is MetricKind.HISTOGRAM
        else (series.name,)
    )
}
# A selector: what is asked for, and by which labels.
SELECTOR = re.compile(r"\b((?:foveate|llm|workspace)_[a-z_]+)(?:\{([^}]*)\})?")


def rules() -> Iterator[dict[str, Any]]:
    for group in RULES["groups"]:
        yield from group["rules"]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


EXPRESSIONS = [rule["expr"] for rule in rules()] + [
    target["expr"] for panel in panels() for target in panel["targets"]
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_asks_only_for_series_and_labels_that_there_are(expression: str) -> None:
    asked = SELECTOR.findall(expression)
    assert asked or expression.startswith("up{")
    for name, labels in asked:
        assert name in SHOWN
        said = re.findall(r"(\w+)\s*=", labels)
        assert set(said) <= {*SHOWN[name].labels, "le"}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_is_summed_by_a_label_has_that_label(expression: str) -> None:
    for grouped, name in re.findall(
        r"sum by \(([^)]*)\) \((?:(?:rate|increase)\()?((?:foveate|llm|workspace)_[a-z_]+)", expression
    ):
        assert {label.strip() for label in grouped.split(",")} <= {*SHOWN[name].labels, "le"}


def test_every_series_is_on_the_dashboard_or_in_a_rule() -> None:
    used = {SHOWN[name].name for expression in EXPRESSIONS for name, _ in SELECTOR.findall(expression)}

    assert {series.name for series in METRICS} - used == set()


def test_every_health_level_of_the_contract_has_a_rule() -> None:
    said = "\n".join(rule["expr"] for rule in rules())

    assert "llm_cache_hit_ratio < 0.3" in said
    assert re.search(r"histogram_quantile\(0.99, .*llm_prompt_tokens_drift_bucket.* > 20", said)
    assert "llm_compaction_duration_seconds_bucket" in said
    assert 'llm_compaction_triggered_total{outcome="lock_held"}' in said
    assert "workspace_cache_invalidations_total" in said


def test_panels_have_ids_of_their_own_and_lie_side_by_side() -> None:
    identities = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identities)) == len(identities)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip(
            "promtool is not there (Debian: the package prometheus); rules and metrics are not checked by it"
        )
    return found


@pytest.mark.slow
@pytest.mark.process
def test_promtool_takes_the_rules_and_they_fire_on_what_they_are_for(promtool: str) -> None:
    for asked in (("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")):
        done = subprocess.run([promtool, *asked], cwd=FOLDER, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.process
def test_promtool_takes_every_expression_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    listed = [
        {"record": f"panel:{number}", "expr": target["expr"].replace("$__rate_interval", "5m")}
        for number, target in enumerate(target for panel in panels() for target in panel["targets"])
    ]
    file = tmp_path / "dashboard.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": listed}]}))

    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.process
def test_promtool_takes_the_page_of_metrics(promtool: str) -> None:
    board = MetricsRegistry()
    for series in METRICS:
        labels = ["x"] * len(series.labels)
        if series.kind is MetricKind.HISTOGRAM:
            board.histogram(series, *labels).observe(1.5)
        else:
            board.scalar(series, *labels).value = 1
    written, _ = render_metrics(board.samples())

    done = subprocess.run([promtool, "check", "metrics"], input=written, capture_output=True, check=False)

    # It has taste, too: gauges named by the contract (`llm_prompt_tokens_estimated`) are no errors.
    assert b"error while linting" not in done.stderr, done.stderr
    assert done.returncode in (0, 3), done.stderr

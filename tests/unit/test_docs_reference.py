"""The reference is generated from the code: no table is outdated, and none is missing."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from foveate.cli import app
from foveate.config.settings import Settings
from foveate.engine.metrics.definitions import METRICS
from tools.docs_reference import commands_help, metrics_table, regenerate, settings_at, settings_table

ROOT = Path(__file__).parents[2]
PAGES = sorted(ROOT.glob("docs/**/*.md"))
TABLES = re.compile(r"^<!-- made from the code: (\w+) (\S+) -->$", re.MULTILINE)


def list_tables(page: str, kind: str) -> list[str]:
    """Names of the generated tables of one kind in a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [table for table_kind, table in TABLES.findall(text) if table_kind == kind]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_tables_are_current(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert regenerate(text) == text, "call .venv/bin/python tools/docs_reference.py"


def test_every_setting_is_in_the_page_once_and_explained() -> None:
    documented = [
        f"{place}.{'.'.join(setting.name)}"
        for place in list_tables("reference/configuration.md", "settings")
        for setting in settings_at(place)
        if setting.words
    ]

    assert sorted(documented) == sorted(list_settings(Settings().model_json_schema()))


def list_settings(schema: dict[str, object]) -> list[str]:
    """Every setting in the schema of the configuration, through lists and mappings."""
    definitions = schema["$defs"]
    assert isinstance(definitions, dict)

    def walk(part: object, name: str) -> list[str]:
        reference = re.search(r"'#/\$defs/(\w+)'", str(part))
        if reference is None:
            return [name]
        properties = definitions[reference[1]]["properties"]
        return [setting for key, child in properties.items() for setting in walk(child, f"{name}.{key}")]

    properties = schema["properties"]
    assert isinstance(properties, dict)
    return [setting for key, child in properties.items() if key != "cost" for setting in walk(child, key)]


def test_a_setting_has_its_type_default_and_when_it_applies() -> None:
    rows = settings_table("server").splitlines()

    workers = "Number of worker processes. *Requires a restart.*"
    assert f"| `workers` | integer, more than 0, at most 256 | `1` | {workers} |" in rows
    assert "| `log` | `lines`, `json` | `lines` | Log format, on standard error. |" in rows
    assert any(
        row.startswith("| `tls.key` | path | required |") and row.endswith("*Requires a restart.* |")
        for row in rows
    )


def test_every_series_is_in_the_page_once() -> None:
    documented = [
        name
        for group in list_tables("reference/metrics.md", "metrics")
        for name in re.findall(r"^\| `(\w+)` \|", metrics_table(group), re.MULTILINE)
    ]

    assert documented == [series.name for series in METRICS]


def test_the_help_of_every_command_is_generated_with_its_options() -> None:
    text = commands_help()
    cost = text[text.index("### `foveate cost`") :].partition("\n### ")[0]

    group: Any = typer.main.get_command(app)
    for word in group.commands:
        assert f"\n### `foveate {word}`\n" in text
    assert "| `--by GROUP,...` | Group calls by" in cost
    assert "#### `foveate cost caps`" in cost

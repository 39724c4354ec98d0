"""The documentation names every command and option, has no dead links, and its examples work."""

import dataclasses
import doctest
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foveate
from foveate.budget import Keep, Priority, Section, SectionRule, Stability
from foveate.budget.ladder import BUILT_IN_LADDERS, LOWEST
from foveate.budget.model_limits import MAX_TOKENS_VARIABLE
from foveate.compaction.overflow import OnOverflow, OverflowAction, OverflowOptions
from foveate.compaction.plan import CompactionOptions
from foveate.compaction.store import CompactionOutcome
from foveate.compaction.tool_results import TOOL_RESULT_MAX_PCT
from foveate.config.settings import CompactionSettings
from foveate.memory.search.relevance import RelevanceWeights, default_weights
from tests.support.oracles.command_tree import COMMANDS

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference" / "cli.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


OPTIONS = [
    (name, max(parameter.opts, key=len))
    for name, command in COMMANDS.items()
    for parameter in command.params
    if parameter.param_type_name == "option" and not getattr(parameter, "hidden", False)
]


def find_section(command: str) -> str:
    """The part of the reference under the heading that names `command`; the whole page for `foveate`."""
    text = REFERENCE.read_text(encoding="utf-8")
    if command == "foveate":
        return text
    heading = re.search(rf"^(#+) .*\b{re.escape(command)}\b(?! [a-z])", text, re.MULTILINE)
    assert heading, f"docs/reference/cli.md has no heading that names `{command}`"
    body = text[heading.end() :]
    next_heading = re.search(rf"^#{{1,{len(heading[1])}}} ", body, re.MULTILINE)
    return body[: next_heading.start()] if next_heading else body


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_a_section_in_the_reference(command: str) -> None:
    assert find_section(command).strip()


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_an_option_is_in_the_section_of_its_command(command: str, option: str) -> None:
    assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", find_section(command)), (
        f"docs/reference/cli.md does not mention {option} under `{command}`"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_of_the_project_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{target} in {page.relative_to(ROOT)}"


def budget_settings() -> Iterator[str]:
    """Every setting of a budget or a section, and its possible values."""
    yield from ("total_tokens", "output_reserve", "ladder", "overflow_policy", "sections", MAX_TOKENS_VARIABLE)
    yield from inspect.signature(Section).parameters
    yield from (field.name for field in dataclasses.fields(SectionRule))
    yield from (word for words in (Priority, Keep, Stability) for word in words)
    yield from (*BUILT_IN_LADDERS, LOWEST, "truncate", "drop", "last_lines", "replace", "with", "of")


@pytest.mark.parametrize("setting", sorted(set(budget_settings())))
def test_a_setting_of_a_budget_is_in_the_page_on_budgets(setting: str) -> None:
    page = page_text("guides/budgets.md")

    assert re.search(rf"`(\w+: )?{re.escape(setting)}\b[^`\n]*`", page), (
        f"docs/guides/budgets.md does not explain {setting}"
    )


@pytest.mark.parametrize("name", foveate.__all__)
def test_a_public_name_is_in_the_page_on_the_python_api(name: str) -> None:
    page = page_text("reference/python-api.md")
    is_described = re.search(rf"^(?:### `{name}`$|\| `{name}` \|)", page, re.MULTILINE)

    assert is_described, f"docs/reference/python-api.md does not describe {name}"


VARIABLE_NAMES = re.compile(r"\"((?:CONTEXT|TIME|DEADLINE|FOVEATE)_[A-Z_]+|[A-Z]+_API_KEY)\"")
VARIABLES = {
    name
    for file in ROOT.glob("src/foveate/**/*.py")
    for name in VARIABLE_NAMES.findall(file.read_text(encoding="utf-8"))
}


def test_environment_variables_in_the_code_are_found() -> None:
    assert {
        "CONTEXT_LOG_LIMIT",
        "CONTEXT_MAX_TOKENS",
        "CONTEXT_SEMANTIC_THRESHOLD",
        "DEADLINE_WARNING_MINUTES",
        "FOVEATE_HOME",
        "TIME_AWARENESS",
        "TIME_FORMAT",
    } <= VARIABLES


@pytest.mark.parametrize("name", sorted(VARIABLES))
def test_an_environment_variable_is_in_the_reference(name: str) -> None:
    text = page_text("reference/configuration.md").partition("\n## Environment variables\n")[2]

    assert re.search(rf"^\|.*`{name}`.*\|", text, re.MULTILINE), (
        f"docs/reference/configuration.md does not explain {name}"
    )


@pytest.mark.parametrize("weight", dataclasses.fields(RelevanceWeights), ids=lambda field: field.name)
def test_a_weight_of_relevance_is_in_the_page_on_memory_with_its_value(
    weight: dataclasses.Field[float],
) -> None:
    page = page_text("reference/memory-syntax.md")

    match = re.search(rf"`{weight.name}` ([\d.]+)", page)
    assert match, f"docs/reference/memory-syntax.md does not explain {weight.name}"
    assert float(match[1]) == getattr(default_weights(), weight.name)


COMPACTION_OPTIONS = [
    field for kind in (CompactionOptions, OverflowOptions) for field in dataclasses.fields(kind)
]


@pytest.mark.parametrize("option", COMPACTION_OPTIONS, ids=lambda field: field.name)
def test_a_compaction_option_is_in_its_page_with_its_default(option: dataclasses.Field[Any]) -> None:
    page = page_text("guides/compaction.md")
    match = re.search(rf"^\| `(?:context_optimization\.)?{option.name}` \| ([^|]+) \|", page, re.MULTILINE)

    assert match, f"docs/guides/compaction.md does not explain {option.name}"
    if isinstance(option.default, int | float):  # a flag too
        assert json.loads(match[1].replace(",", "")) == option.default


@pytest.mark.parametrize("word", [*CompactionOutcome, *OnOverflow, *OverflowAction])
def test_a_compaction_outcome_or_action_is_in_its_page(word: str) -> None:
    assert re.search(rf"^\| .*`([a-z_]+: )?{word}`", page_text("guides/compaction.md"), re.MULTILINE), (
        f"docs/guides/compaction.md does not explain {word}"
    )


def test_the_limit_of_a_tool_result_is_in_the_page_with_its_default() -> None:
    assert f"\n| `tool_result_max_pct` | {TOOL_RESULT_MAX_PCT:.2f} |" in page_text("guides/compaction.md")


def test_the_page_on_compaction_has_every_setting_in_one_table() -> None:
    page = page_text("guides/compaction.md")
    table = page.partition("\n### Settings of `context_optimization.compaction`\n")[2].partition("\n### ")[0]

    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(CompactionSettings.model_fields)


def page_text(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


# Pages on a mechanism that can be turned off and can fail.
MECHANISMS = [
    *(
        f"guides/{name}.md"
        for name in (
            "budgets",
            "compaction",
            "cost",
            "counting",
            "injected-context",
            "memory",
            "sandbox",
            "spending-caps",
        )
    ),
    *(f"reference/{name}.md" for name in ("gateway", "metrics", "store", "stored-conversations")),
    "background/breakpoints.md",
]


@pytest.mark.parametrize("page", MECHANISMS)
def test_a_page_on_a_mechanism_says_what_to_watch_when_to_turn_it_off_and_how_it_fails(page: str) -> None:
    text = page_text(page)

    for part in ("What to watch", "When to turn it off", "How it fails"):
        assert re.search(rf"^## {part}\n+ *\S", text, re.MULTILINE), f"docs/{page} does not say: {part}"


EXAMPLES = [page for page in PAGES if "\n>>> " in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.name)
def test_examples_in_a_page_produce_the_output_shown(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # examples name files relative to the project
    text = page.read_text(encoding="utf-8")
    examples = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    output: list[str] = []

    results = doctest.DocTestRunner().run(examples, out=output.append)

    assert not output, "".join(output)
    assert results.attempted == text.count("\n>>> ") > 0


def test_pages_with_examples_are_found() -> None:
    assert {"budgets.md", "compaction.md", "memory.md", "injected-context.md"} <= {
        page.name for page in EXAMPLES
    }


# Attributes of spans and log records, and files: not Python.
NOT_PYTHON = {
    *("foveate.added_seconds", "foveate.agent", "foveate.dollars", "foveate.edits", "foveate.request.id"),
    *("foveate.sqlite", "foveate.yaml"),
}


def python_names() -> Iterator[str]:
    for page in PAGES:
        if page.name != "CHANGELOG.md":  # says what was called so at the time
            yield from re.findall(r"`(foveate(?:\.[a-z_]+)+)", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(set(python_names()) - NOT_PYTHON))
def test_a_python_name_in_the_documentation_exists(name: str) -> None:
    assert pkgutil.resolve_name(name) is not None

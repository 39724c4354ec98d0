"""Public contracts that the code declares; `tests/e2e` tests those that only a run shows."""

import ast
from pathlib import Path

import pytest

from benchmarks import harness
from tests.golden import contract_file, from_code, from_commands
from tests.golden.shapes import describe_shape

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def current() -> dict[str, dict[str, str]]:
    return from_code.contracts()


def test_contracts_that_the_code_declares_are_as_in_the_golden_file(current: dict[str, dict[str, str]]) -> None:
    if problem := contract_file.problem(current):
        pytest.fail(problem, pytrace=False)


def test_every_section_of_the_golden_file_is_derived_and_has_items(current: dict[str, dict[str, str]]) -> None:
    golden = contract_file.load()

    assert sorted(golden) == sorted([*current, *from_commands.SECTIONS])
    assert all(golden.values())


def test_the_golden_file_is_written_as_it_is_saved() -> None:
    assert contract_file.GOLDEN.read_text(encoding="utf-8") == contract_file.text(contract_file.load())


def test_differences_are_listed_by_section() -> None:
    golden = {"headers": {"x-a": "header"}, "metrics": {"hits": "counter {agent}", "same": "gauge {}"}}
    current_items = {"headers": {"x-b": "header"}, "metrics": {"hits": "counter {}", "same": "gauge {}"}}

    assert contract_file.differences(golden, current_items).splitlines() == [
        "headers:",
        "  - x-a: header",
        "  + x-b: header",
        "metrics:",
        "  - hits: counter {agent}",
        "  + hits: counter {}",
    ]
    assert not contract_file.differences(golden, golden)


def test_the_shape_of_json_has_paths_and_types_and_no_values() -> None:
    documents = [
        {"rows": [{"name": "a", "tokens": 1}, {"name": None, "tokens": 2.5}], "by_model": {"gpt-4o": True}},
        {"rows": [], "by_model": {}, "note": "x"},
    ]

    assert describe_shape(documents, maps=["by_model"]) == {
        "rows": "list",
        "rows[]": "object",
        "rows[].name": "null or text",
        "rows[].tokens": "number",
        "by_model": "object",
        "by_model.*": "boolean",
        "note": "text, not always there",
    }


@pytest.mark.parametrize("benchmark", harness.discover().values(), ids=lambda benchmark: benchmark.name)
def test_every_figure_that_a_benchmark_declares_is_named_in_its_code(benchmark: harness.Benchmark) -> None:
    texts = _string_literals(ROOT / f"{benchmark.module.replace('.', '/')}.py")

    missing = [
        figure
        for figure in benchmark.figures
        if not all(_is_named(part.strip("_"), texts) for part in harness.fixed_parts(figure))
    ]

    assert benchmark.figures, f"{benchmark.module} declares no FIGURES"
    assert not missing, f"{benchmark.module} declares these figures and never writes them"


def _is_named(part: str, texts: set[str]) -> bool:
    """Find a part of a figure's name in the code, whole or as two joined strings."""
    words = part.split("_")
    halves = ({"_".join(words[:at]), "_".join(words[at:])} for at in range(1, len(words)))
    return not part or part in texts or any(pair <= texts for pair in halves)


def _string_literals(path: Path) -> set[str]:
    """String literals of a benchmark and the benchmark modules it imports, without those in `FIGURES`."""
    paths_to_read, seen, literals = [path], set[Path](), set[str]()
    while paths_to_read:
        path = paths_to_read.pop()
        if path in seen or not path.exists():
            continue
        seen.add(path)
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node in (
            inner for statement in body if not _is_declaration(statement) for inner in ast.walk(statement)
        ):
            match node:
                case ast.Constant(str(text)):
                    literals.add(text.strip("_"))
                case ast.ImportFrom(module=str(module), names=names) if module.startswith("benchmarks"):
                    modules = [module, *(f"{module}.{alias.name}" for alias in names)]
                    paths_to_read += [ROOT / f"{name.replace('.', '/')}.py" for name in modules]
    return literals


def _is_declaration(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "FIGURES"

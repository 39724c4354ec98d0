"""The tree of the source: no import circles, no crowded packages, and unit tests beside what they test."""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
UNIT_TESTS = ROOT / "tests" / "unit"
MAX_MODULES = 16
MAX_LINES = 1000


@cache
def list_modules() -> Mapping[str, Path]:
    """All modules and packages of the source by their dotted names."""
    paths = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def find_imports(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """Modules of `known` that a file imports anywhere, `TYPE_CHECKING` blocks and functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.module in known:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in known else node.module


def find_circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        stack.append(module)
        for imported in sorted(graph[module]):
            if imported not in numbers:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in stack:
                lowest[module] = min(lowest[module], numbers[imported])
        if lowest[module] == numbers[module]:
            circle = [stack.pop()]
            while circle[-1] != module:
                circle.append(stack.pop())
            if len(circle) > 1:
                circles.append(sorted(circle))

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        for module in list(graph):
            if module not in numbers:
                visit(module)
    finally:
        sys.setrecursionlimit(limit)
    return circles


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = list_modules()
    graph: dict[str, set[str]] = defaultdict(set)
    for name, path in known.items():
        graph[name] = set(find_imports(path, known)) - {name}

    assert find_circles(graph) == []


def test_a_circle_of_three_modules_is_found() -> None:
    assert find_circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_no_package_has_too_many_modules() -> None:
    sizes = Counter(path.parent for path in list_modules().values() if path.name != "__init__.py")
    # Migrations are numbered steps, and the command line has one file for each command.
    crowded = {
        str(package.relative_to(SRC)): size
        for package, size in sizes.items()
        if size > MAX_MODULES and package.name not in {"migrations", "cli"}
    }

    assert crowded == {}


def test_no_module_is_longer_than_a_thousand_lines() -> None:
    lengths = {name: path.read_text(encoding="utf-8").count("\n") for name, path in list_modules().items()}

    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_no_two_classes_have_the_same_name() -> None:
    """A reader who searches for a class finds the one that is meant."""
    defined = defaultdict(list)
    for name, path in list_modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(name)

    assert {name: modules for name, modules in defined.items() if len(modules) > 1} == {}


def test_ignored_type_errors_name_their_kind() -> None:
    """The type checker would accept one without a name, and does not read those of other type checkers."""
    nameless = re.compile(r"# *(?:type: *ignore|pyrefly: *ignore(?!\[))")
    files = [
        path for folder in ("src", "tests", "benchmarks", "tools") for path in (ROOT / folder).rglob("*.py")
    ]

    assert [str(path) for path in files if nameless.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "test_file", [path.relative_to(UNIT_TESTS).as_posix() for path in sorted(UNIT_TESTS.glob("*/**/test_*.py"))]
)
def test_every_unit_test_is_named_after_the_module_it_tests(test_file: str) -> None:
    path = UNIT_TESTS / test_file
    package = SRC / "foveate" / path.parent.relative_to(UNIT_TESTS)
    assert package.is_dir(), f"there is no package {package.relative_to(SRC)}"
    names = {module.stem for module in package.glob("*.py")} | {
        folder.name for folder in package.iterdir() if (folder / "__init__.py").exists()
    }
    tested = path.stem.removeprefix("test_")

    assert any(tested == name or tested.startswith(f"{name}_") for name in names), (
        f"no module of {package.relative_to(SRC)} has a name that test_{tested}.py begins with"
    )

"""Every public function has a caller: code that only its own tests use is dead."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Who may use a function beside the package itself: the documented Python API, benchmarks, tools and examples.
OTHERS = ("README.md", "docs/**/*.md", "benchmarks/**/*.py", "tools/*", "examples/**/*.py")


def functions(tree: ast.Module) -> Iterator[str]:
    """The public functions of a module that no decorator hands to somebody else."""
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if not name.startswith("_") and not node.decorator_list:
                    yield name


def names_used(tree: ast.Module) -> Iterator[str]:
    """All names that a module reads, also as an attribute or in a string such as `module:name`."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.Constant(value=str() as text):
                yield text.rpartition(":")[2]


def unused(trees: list[ast.Module], others: str) -> list[str]:
    """The public functions that nothing but tests can use."""
    used = Counter(name for tree in trees for name in names_used(tree))
    named = {name for tree in trees for name in functions(tree)}
    return sorted(name for name in named if not used[name] and not re.search(rf"\b{name}\b", others))


@pytest.mark.slow
def test_every_public_function_is_used_by_something_beside_its_tests() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "src").rglob("*.py"))]
    files = [path for pattern in OTHERS for path in sorted(ROOT.glob(pattern)) if path.is_file()]
    others = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)

    assert unused(trees, others) == []


def test_a_function_without_a_caller_is_found() -> None:
    code = "def called(): ...\ndef dead(): ...\ndef shown(): ...\ndef _own(): called()\n"

    assert unused([ast.parse(code)], "see `shown`") == ["dead"]

"""Every public function has a caller: code that only its own tests use is dead."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Callers besides the package itself: the documented Python API, benchmarks, tools and examples.
OTHER_CALLERS = ("README.md", "docs/**/*.md", "benchmarks/**/*.py", "tools/*", "examples/**/*.py")


def public_functions(tree: ast.Module) -> Iterator[str]:
    """Public functions of a module without decorators, which may register a function elsewhere."""
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


def find_unused(trees: list[ast.Module], other_text: str) -> list[str]:
    """Public functions that only tests can use."""
    used = Counter(name for tree in trees for name in names_used(tree))
    defined = {name for tree in trees for name in public_functions(tree)}
    return sorted(name for name in defined if not used[name] and not re.search(rf"\b{name}\b", other_text))


@pytest.mark.slow
def test_every_public_function_is_used_outside_its_tests() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "src").rglob("*.py"))]
    files = [path for pattern in OTHER_CALLERS for path in sorted(ROOT.glob(pattern)) if path.is_file()]
    other_text = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)

    assert find_unused(trees, other_text) == []


def test_a_function_without_a_caller_is_found() -> None:
    code = "def called(): ...\ndef dead(): ...\ndef shown(): ...\ndef _own(): called()\n"

    assert find_unused([ast.parse(code)], "see `shown`") == ["dead"]

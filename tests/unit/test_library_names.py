"""The source uses no private names of other packages."""

import ast
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
# Only ever shorten this list.
ALLOWED = {
    "os._exit": "documented",
    "_replace": "documented for named tuples",
    "watchfiles._rust_notify": "documented in watchfiles' own manual (api/rust_backend)",
    "_resize_cache": "no other way to limit the cache of a tokenizer that was read from a file",
}
_ATTRIBUTE_FUNCTIONS = ("getattr", "setattr", "hasattr", "delattr")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def own_names(nodes: Iterable[ast.AST]) -> set[str]:
    """All names that the nodes define: functions, classes, variables, attributes and slots."""
    names: set[str] = set()
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
    return names


def find_private_names(nodes: Iterable[ast.AST], own: set[str]) -> Iterator[str]:
    """Private names that nodes import from other packages, or use without any module defining them."""
    for node in nodes:
        match node:
            case ast.ImportFrom(module=str() as module, level=0) if module.split(".")[0] != "foveate":
                if any(map(is_private, module.split("."))):
                    yield module
                yield from (f"{module}.{alias.name}" for alias in node.names if is_private(alias.name))
            case ast.Import():
                names = (alias.name for alias in node.names)
                yield from (name for name in names if any(map(is_private, name.split("."))))
            case ast.Attribute(attr=name) if is_private(name) and name not in own:
                yield f"os.{name}" if ast.unparse(node.value) == "os" else name
            case ast.Call(func=ast.Name(id=function), args=[_, ast.Constant(value=str() as name), *_]):
                if function in _ATTRIBUTE_FUNCTIONS and is_private(name) and name not in own:
                    yield name


@pytest.mark.slow
def test_no_private_names_of_other_packages_are_used() -> None:
    files = {
        str(path.relative_to(SRC)): list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        for path in sorted(SRC.rglob("*.py"))
    }
    own = own_names(chain.from_iterable(files.values()))
    found = [(path, name) for path, nodes in files.items() for name in find_private_names(nodes, own)]

    assert [(path, name) for path, name in found if name not in ALLOWED] == []
    assert {name for _, name in found} == set(ALLOWED), "remove names from ALLOWED that nothing uses"


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("from uvicorn._types import Scope", ["uvicorn._types"]),
        ("from bm25s.scoring import _select, public", ["bm25s.scoring._select"]),
        ("import a, watchfiles._rust", ["watchfiles._rust"]),
        ("import numpy as np\nnp._core.x", ["_core"]),
        ("class Own(Base):\n    def run(self):\n        self._inherited()", ["_inherited"]),
        ("getattr(tokenizer, '_cache', None)", ["_cache"]),
        ("class Own:\n    def _run(self):\n        self._x = 1\n        self._run(self._x)", []),
        ("from foveate.caching import _entries\nfrom .own import _a", []),
        ("__name__\nobject.__new__\nfor _ in []: ...", []),
    ],
)
def test_private_names_are_found(code: str, names: list[str]) -> None:
    nodes = list(ast.walk(ast.parse(code)))

    assert list(find_private_names(nodes, own_names(nodes))) == names

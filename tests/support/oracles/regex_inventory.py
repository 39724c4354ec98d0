"""All regular expressions of the package, and the methods by which the code runs them."""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import msgspec
import regex

import foveate

METHODS = frozenset(("match", "fullmatch", "search", "finditer", "findall", "split", "sub", "subn"))
_MODULES = {"re": re, "regex": regex}
# Attributes that do not run the expression.
_METADATA_ATTRIBUTES = frozenset(("pattern", "flags", "groups", "groupindex"))


@dataclass(frozen=True, slots=True)
class FoundPattern:
    """An expression, its location, and the methods by which it is run."""

    where: str
    pattern: Any
    methods: frozenset[str]


@dataclass(frozen=True, slots=True)
class HiddenPattern:
    """A call that compiles or runs an expression which is only known at run time."""

    where: str
    line: int


@cache
def load_modules() -> Mapping[str, ModuleType]:
    """Return all modules of the package by name."""
    names = [module.name for module in pkgutil.walk_packages(foveate.__path__, "foveate.")]
    return {name: importlib.import_module(name) for name in ["foveate", *names]}


def find_patterns() -> Iterator[FoundPattern]:
    """Return expressions in module variables, and those written inline in functions."""
    for name, module in load_modules().items():
        scan = _scan_module(name)
        for variable in scan.assigned:
            for path, pattern in patterns_in(getattr(module, variable, None), variable):
                yield FoundPattern(f"{name}.{path}", pattern, find_methods_used(name, variable))
        yield from scan.inline


def find_hidden_patterns() -> Iterator[HiddenPattern]:
    """Return what `find_patterns` cannot see."""
    for name in load_modules():
        yield from _scan_module(name).hidden


def find_methods_used(module: str, variable: str) -> frozenset[str]:
    """Return the methods by which a module's expression is run anywhere; all if unknown."""
    methods: set[str] = set()
    for other in load_modules():
        scan = _scan_module(other)
        alias = variable if other == module else scan.imported.get((module, variable))
        if alias is not None:
            methods |= scan.uses.get(alias, set())
    return frozenset(methods) if methods <= METHODS else METHODS


def find_field_methods_used(name: str, package: str) -> frozenset[str]:
    """Return the methods by which a package runs an expression in a field; all if unknown."""
    scans = [_scan_module(module) for module in load_modules() if module.startswith(f"{package}.")]
    methods: set[str] = set().union(*(scan.field_uses.get(name, set()) for scan in scans))
    return frozenset(methods) if methods and methods <= METHODS else METHODS


def patterns_in(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the expressions inside a value, each with its path."""
    if isinstance(value, (re.Pattern, regex.Pattern)):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from patterns_in(inner, f"{path}[{key!r}]")
    elif isinstance(value, (tuple, list, set, frozenset)):
        for at, inner in enumerate(value):
            yield from patterns_in(inner, f"{path}[{at}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from patterns_in(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from patterns_in(getattr(value, name), f"{path}.{name}")


@dataclass(frozen=True, slots=True)
class _Scan:
    assigned: list[str]
    imported: dict[tuple[str, str], str]
    uses: dict[str, set[str]]
    field_uses: dict[str, set[str]]
    inline: list[FoundPattern]
    hidden: list[HiddenPattern]


@cache
def _scan_module(name: str) -> _Scan:
    tree = ast.parse(inspect.getsource(load_modules()[name]))
    # One walk for everything: the package has half a million nodes.
    parents: dict[ast.AST, ast.AST] = {}
    nodes: list[ast.AST] = [tree]
    for parent in nodes:
        for child in ast.iter_child_nodes(parent):
            if not isinstance(child, ast.expr_context | ast.operator | ast.cmpop):
                parents[child] = parent
                nodes.append(child)
    scan = _Scan(_assigned_names(nodes), {}, {}, {}, [], [])
    for node in nodes:
        match node:
            case ast.ImportFrom(module=str(origin), names=names):
                assert origin not in _MODULES, f"{name}: write `import {origin}`, so that tests see its use"
                scan.imported.update({(origin, a.name): a.asname or a.name for a in names})
            case ast.Import(names=names):
                renamed = [a.name for a in names if a.name in _MODULES and a.asname not in (None, a.name)]
                assert not renamed, f"{name}: write `import {renamed[0]}`, so that tests see its use"
            case ast.Name(id=variable, ctx=ast.Load()):
                scan.uses.setdefault(variable, set()).update(_methods(node, parents))
            case ast.Attribute(attr=field, ctx=ast.Load()):
                scan.field_uses.setdefault(field, set()).update(_methods(node, parents))
        if (call := _call(node)) is not None and (function_name := _function(node, parents)) is not None:
            _record_call(scan, f"{name}.{function_name}", *call)
    return scan


def _assigned_names(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the names that a module assigns, in tuples too."""
    targets: list[ast.expr] = []
    for node in nodes:
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, ast.AnnAssign):
            targets.append(node.target)
    inner = [part for target in targets for part in ast.walk(target)]
    return list(dict.fromkeys(part.id for part in inner if isinstance(part, ast.Name)))


def _methods(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> set[str]:
    """Yield the methods called on a name, "" for any other use; nothing for metadata attributes."""
    parent = parents.get(node)
    # `(_ONE if first else _OTHER).match(...)` and `_EACH[name].match(...)`
    while (isinstance(parent, ast.IfExp) and node is not parent.test) or (
        isinstance(parent, ast.Subscript) and node is parent.value
    ):
        node, parent = parent, parents.get(parent)
    if not isinstance(parent, ast.Attribute) or parent.value is not node:
        return {""}
    return set() if parent.attr in _METADATA_ATTRIBUTES else {parent.attr}


def _call(node: ast.AST) -> tuple[ast.Call, str, str] | None:
    """Return module and name of a call of re or regex that compiles or runs an expression."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=function)) if (
            module in _MODULES and function in METHODS | {"compile"}
        ):
            return node, module, function
    return None


def _function(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> str | None:
    """Return the function or class around a node; None at module level."""
    names: list[str] = []
    while (parent := parents.get(node)) is not None:
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(parent.name)
        node = parent
    return ".".join(reversed(names)) or None


def _record_call(scan: _Scan, where: str, call: ast.Call, module: str, function: str) -> None:
    flags = [key.value for key in call.keywords if key.arg == "flags"] + call.args[
        3 if "sub" in function else 2 :
    ]
    if isinstance(call.args[0], ast.Constant) and not flags:
        text: Any = call.args[0].value
        pattern = _MODULES[module].compile(text)
        methods = METHODS if function == "compile" else frozenset((function,))
        scan.inline.append(FoundPattern(f"{where}:{call.lineno}", pattern, methods))
    else:
        scan.hidden.append(HiddenPattern(where, call.lineno))

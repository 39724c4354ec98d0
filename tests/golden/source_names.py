"""Names that the code uses as strings: its own headers and environment variables."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import foveate
from foveate.gateway.config import DEFAULT_KEY_VARIABLES

SOURCE = Path(foveate.__file__).parent


def _parse_modules(pattern: str) -> Iterator[tuple[str, list[ast.AST]]]:
    """Yield the syntax nodes of each module whose text matches `pattern`."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if re.search(pattern, text):
            parts = path.relative_to(SOURCE.parent).with_suffix("").parts
            yield ".".join(parts).removesuffix(".__init__"), list(ast.walk(ast.parse(text)))


def _list_strings(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield every string in the code except docstrings."""
    statements = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and id(node) not in statements:
            if isinstance(node.value, str):
                yield node.value
            elif isinstance(node.value, bytes):
                yield node.value.decode("latin-1")


_HEADER = r"x-foveate-[a-z-]*"


def headers() -> dict[str, str]:
    """List every header of Foveate that the code names; one that ends in `*` is a prefix."""
    names = {
        name
        for _, nodes in _parse_modules(_HEADER)
        for text in _list_strings(nodes)
        for name in re.findall(_HEADER, text)
    }
    return {name + "*" * name.endswith("-"): "prefix" if name.endswith("-") else "header" for name in names}


_ENVIRONMENT = r"\b(environ|environment)\b"
# Looked up through tables of names.
_INDIRECT_VARIABLE = r"\b(CONTEXT|DEADLINE|FOVEATE|TIME)(_[A-Z]+)+|[A-Z]+_(API_KEY|PROXY)\b"


def environment_variables() -> dict[str, str]:
    """List every variable that the code looks up by name."""
    names = set(DEFAULT_KEY_VARIABLES.values())
    for module, nodes in _parse_modules(f"{_ENVIRONMENT}|{_INDIRECT_VARIABLE}"):
        names.update(text for text in _list_strings(nodes) if re.fullmatch(_INDIRECT_VARIABLE, text))
        for node in nodes:
            match _find_lookup(node):
                case ast.Constant(str(name)):
                    names.add(name)
                case ast.Name(constant) if constant.isupper():
                    names.add(_module_constant(module, nodes, constant))
    return dict.fromkeys(names, "variable")


def _find_lookup(node: ast.AST) -> ast.expr | None:
    """Return the variable that a node looks up, if any."""
    match node:
        case ast.Call(func=ast.Attribute(value=mapping, attr="get"), args=[name, *_]):
            pass
        case ast.Subscript(value=mapping, slice=name):
            pass
        case ast.Compare(left=name, ops=[ast.In() | ast.NotIn()], comparators=[mapping]):
            pass
        case _:
            return None
    return name if re.search(f"{_ENVIRONMENT}$", ast.unparse(mapping)) else None


def _module_constant(module: str, nodes: list[ast.AST], constant: str) -> str:
    """Return the value of a name in a module, also if a function imports it."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == constant:
                    return str(getattr(importlib.import_module(node.module), alias.name))
    return str(getattr(importlib.import_module(module), constant))

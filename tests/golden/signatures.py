"""Signatures of a package's public names, independent of the modules that define them."""

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

from foveate.errors import FoveateError

_MODULES = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")


def signatures(package: ModuleType) -> Iterator[tuple[str, str]]:
    """List every name in `__all__`: signatures of functions, members of classes, literals, errors by code."""
    for name in package.__all__:
        value = getattr(package, name)
        if inspect.isclass(value) and issubclass(value, FoveateError):
            yield name, f"error {value.code}"
        elif inspect.isclass(value):
            yield name, f"class {signature(value)}"
            yield from ((f"{name}.{member}", description) for member, description in _members(value))
        elif get_origin(value) is Literal:
            yield name, f"one of {', '.join(map(str, get_args(value)))}"
        else:
            yield name, f"function {signature(value)}"


def _members(kind: type) -> Iterator[tuple[str, str]]:
    annotations: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        annotations |= inspect.get_annotations(base)
    for name in sorted({*dir(kind), *annotations}):
        if name.startswith("_"):
            continue
        member = inspect.getattr_static(kind, name, None)
        match member:
            case property():
                yield name, f"property -> {_type(member.fget.__annotations__['return'])}" if member.fget else ""
            case staticmethod() | classmethod():
                yield name, f"{type(member).__name__} {signature(member.__func__)}"
            case _ if inspect.isfunction(member):
                is_async = "async " if inspect.iscoroutinefunction(member) else ""
                yield name, f"{is_async}method {signature(member)}"
            case _:
                yield name, f"attribute {_type(annotations.get(name, ''))}".rstrip()


def signature(found: Any) -> str:
    signature = inspect.signature(found)
    parts: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
        parts.append(f"{stars}{parameter.name}: {parameter_text(parameter)}".removesuffix(": "))
    ends = "" if inspect.isclass(found) else f" -> {_type(signature.return_annotation)}"
    return f"({', '.join(parts)}){ends}"


def parameter_text(parameter: inspect.Parameter) -> str:
    """Format the type and default of a parameter, without its name."""
    type_text = "" if parameter.annotation is parameter.empty else _type(parameter.annotation)
    return type_text if parameter.default is parameter.empty else f"{type_text} = {_default(parameter.default)}"


def _default(value: object) -> str:
    return repr(value.value) if isinstance(value, Enum) else repr(value)


def _type(annotation: object) -> str:
    """Format an annotation without module names."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _MODULES.sub("", text.replace("'", ""))

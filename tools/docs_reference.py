"""Generate the tables of settings, metrics and commands in `docs/` from the code.

The tables stand between the lines

    <!-- made from the code: settings server -->
    <!-- until here -->

A test fails if a page is not current.
"""

import ast
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer.main
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from foveate.cli import app
from foveate.config import settings
from foveate.config.settings import Settings
from foveate.engine.metrics.definitions import CONFIG_VALID, METRICS, REQUESTS, WINDOW_READ, MetricDefinition
from foveate.gateway.server.serve import load_live_config, settings_fixed_at_start

DOCS = Path(__file__).parents[1] / "docs"
_GENERATED_BLOCK = re.compile(
    r"^<!-- made from the code: (\w+) ?(\S*) -->\n(.*?)^<!-- until here -->$", re.MULTILINE | re.DOTALL
)

_BOUNDS = {"gt": "more than {}", "ge": "at least {}", "lt": "less than {}", "le": "at most {}"}


def regenerate(page: str) -> str:
    """Return a page with its generated parts rewritten."""

    def table(found: re.Match[str]) -> str:
        kind, argument, _ = found.groups()
        opening_comment = f"<!-- made from the code: {' '.join(filter(None, (kind, argument)))} -->"
        return f"{opening_comment}\n\n{GENERATORS[kind](argument)}\n\n<!-- until here -->"

    return _GENERATED_BLOCK.sub(table, page)


# Settings


def settings_table(place: str) -> str:
    """Format the settings below a path such as `server` or `agents.sections`."""
    above = place.split(".")[1:]
    rows = [
        f"| `{'.'.join([*above, *setting.name])}` | {setting.kind} | {_default(setting.default)} "
        f"| {_describe(place, setting)} |"
        for setting in settings_at(place)
    ]
    return "\n".join(["| setting | type | default | description |", "| --- | --- | --- | --- |", *rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting: its name, type, default, and its documentation in the code."""

    name: tuple[str, ...]
    kind: str
    default: object
    words: str


def settings_at(place: str) -> Iterator[Setting]:
    """Return the settings in the table of a path."""
    model: type[BaseModel] = Settings
    for step in place.split("."):
        (model,) = _models(model.model_fields[step].annotation)
    yield from _fields(model, place, ())


def _fields(model: type[BaseModel], place: str, above: tuple[str, ...]) -> Iterator[Setting]:
    words = _setting_docs()[model.__name__]
    for field, about in model.model_fields.items():
        name = (*above, field)
        below = list(_models(about.annotation))
        if not below:
            bounds = [bound for constraint in about.metadata for bound in _bounds(constraint)]
            kind = ", ".join([_kind(about.annotation), *bounds])
            yield Setting(name=name, kind=kind, default=about.default, words=words.get(field, ""))
        elif f"{place}.{'.'.join(name)}" not in OWN_TABLES:
            yield from _fields(below[0], place, name)


OWN_TABLES = {"context_optimization.prompt_cache.pings", "agents.sections"}
"""Paths with a table of their own although they are inside another."""


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models(argument)


def _setting_docs() -> dict[str, dict[str, str]]:
    """Return the docstring of each setting by class and name."""
    tree = ast.parse(Path(settings.__file__).read_text(encoding="utf-8"))
    found: dict[str, dict[str, str]] = {}
    for part in tree.body:
        if isinstance(part, ast.ClassDef):
            pairs = zip(part.body, part.body[1:], strict=False)
            found[part.name] = {
                field.target.id: " ".join(words.value.value.split())
                for field, words in pairs
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(words, ast.Expr)
                and isinstance(words.value, ast.Constant)
                and isinstance(words.value.value, str)
            }
    return found


def _kind(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return ", ".join(
            [_kind(arguments[0]), *(bound for argument in arguments[1:] for bound in _bounds(argument))]
        )
    if origin is typing.Literal:
        return ", ".join(f"`{word}`" for word in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_kind(argument) for argument in arguments if argument is not type(None))
    if origin is list:
        return "list"
    if origin is dict:
        return "mapping"
    return {bool: "`true`, `false`", int: "integer", float: "number", Path: "path"}.get(annotation, "string")


def _bounds(constraint: Any) -> Iterator[str]:
    for name, words in _BOUNDS.items():
        bound = getattr(constraint, name, None)
        if bound is not None:
            yield words.format(f"{bound:,}")
    for inner in getattr(constraint, "metadata", ()):
        yield from _bounds(inner)


def _default(default: Any) -> str:
    if default is PydanticUndefined:
        return "required"
    if default is None or default in ([], {}, ""):
        return "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`[{', '.join(default)}]`" if isinstance(default, list) else f"`{default}`"


def _describe(place: str, setting: Setting) -> str:
    ways = [".".join((place, *setting.name[:length])) for length in range(1, len(setting.name) + 1)]
    return f"{setting.words} *Requires a restart.*" if _AT_START.intersection(ways) else setting.words


_AT_START = frozenset(settings_fixed_at_start(load_live_config(None, {}).current().value))


# Metrics


def metrics_table(group: str) -> str:
    """Format the metrics of a group in the order of the code."""
    starts = {
        "contract": 0,
        "money": _index(WINDOW_READ),
        "requests": _index(REQUESTS),
        "runs": _index(CONFIG_VALID),
    }
    first = starts[group]
    end = min((start for start in starts.values() if start > first), default=len(METRICS))
    rows = [
        f"| `{series.name}` | {series.kind} |{_labels(series)}| {series.help} |"
        for series in METRICS[first:end]
    ]
    return "\n".join(["| name | kind | labels | description |", "| --- | --- | --- | --- |", *rows])


def _index(series: MetricDefinition) -> int:
    return METRICS.index(series)


def _labels(series: MetricDefinition) -> str:
    return f" {', '.join(f'`{label}`' for label in series.labels)} " if series.labels else " "


# Commands


def commands_help(_: str = "") -> str:
    """Format the help of every command: usage, description, arguments and options."""
    return "\n\n".join(
        _command_help(name, command) for name, command in _commands("foveate", typer.main.get_command(app))
    )


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not command.hidden:
        yield name, command
        for word, below in getattr(command, "commands", {}).items():
            yield from _commands(f"{name} {word}", below)


def _command_help(name: str, command: Any) -> str:
    level = "#" * min(name.count(" ") + 2, 4)
    parts = [f"{level} `{name}`", _paragraphs(inspect.cleandoc(command.help or ""))]
    for kind in ("argument", "option"):
        rows = [
            f"| {_parameter_name(parameter)} | {_cell(_parameter_help(parameter))} |"
            for parameter in command.params
            if parameter.param_type_name == kind and not getattr(parameter, "hidden", False)
        ]
        if rows:
            parts.append("\n".join([f"| {kind} | description |", "| --- | --- |", *rows]))
    return "\n\n".join(part for part in parts if part)


def _parameter_name(parameter: Any) -> str:
    metavar = f" {parameter.metavar}" if parameter.metavar and parameter.param_type_name == "option" else ""
    names = (
        parameter.opts + parameter.secondary_opts
        if parameter.param_type_name == "option"
        else [parameter.metavar or parameter.name.upper()]
    )
    return ", ".join(f"`{name}{metavar}`" for name in names)


def _parameter_help(parameter: Any) -> str:
    """The help of a parameter, with its default as the command line shows it."""
    parts = [getattr(parameter, "help", None) or ""]
    if parameter.param_type_name == "option" and parameter.required:
        parts.append("Required.")
    elif getattr(parameter, "show_default", False) and parameter.default not in (None, False, ()):
        parts.append(f"Default: {parameter.default}.")
    return " ".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;").replace("*", "\\*")


def _paragraphs(text: str) -> str:
    """Convert help to Markdown: examples become code, everything else is escaped."""
    text = text.replace("\b", "")
    paragraphs = [re.sub(r"\s*\n\s*", " ", part).strip() for part in re.split(r"\n\s*\n", text)]
    return "\n\n".join(re.sub(r"^(Examples?): (.*)$", r"\1: `\2`", part) for part in paragraphs if part)


GENERATORS: dict[str, Callable[[str], str]] = {
    "settings": settings_table,
    "metrics": metrics_table,
    "commands": commands_help,
}
"""Generators by the word in a page."""


if __name__ == "__main__":
    for page in sorted(DOCS.glob("**/*.md")):
        text = page.read_text(encoding="utf-8")
        if (fresh := regenerate(text)) != text:
            page.write_text(fresh, encoding="utf-8")
            print(f"{page.relative_to(DOCS.parent)} is current again")

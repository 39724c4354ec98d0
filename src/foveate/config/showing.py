"""What holds in the end: every setting with its value, and where that is from. Never a key."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from foveate.budget.limits import VARIABLE as LIMIT_VARIABLE
from foveate.config.documents import Document
from foveate.config.loading import settings_in
from foveate.config.overriding import STORE_VARIABLE
from foveate.config.places import Place, dotted
from foveate.prompt.time import AWARENESS, FORMAT, WARNING_MINUTES, TimeOptions

if TYPE_CHECKING:
    from pathlib import Path

    from foveate.config.settings import Settings


# libpq takes a password among a URL's parameters too, and some servers a key.
_SECRET = re.compile(r"([?&](?:password|token|[a-z_-]*key)=)[^&]*", re.IGNORECASE)


_TIME_VARIABLES = {"enabled": AWARENESS, "format": FORMAT, "warning_minutes": WARNING_MINUTES}


class Source(StrEnum):
    """Where a value is from."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND = "command line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A setting that holds: from a `line` of the file, or a `variable`, where it is from one.

    Of one that has to be said, or is the user's own, the `default` is None.
    """

    key: str
    value: object
    source: Source
    line: int | None = None
    variable: str | None = None
    default: object = None

    @property
    def differs(self) -> bool:
        """Whether it is another than by default."""
        return self.value != self.default

    @property
    def in_words(self) -> str:
        """Its value as people read it."""
        return value_in_words(self.value)

    def origin(self, path: "Path | None") -> str:
        """Where it is from: a line of the file at `path`, a variable, the command line, or the default."""
        if self.variable is not None:
            return self.variable
        return f"{path}:{self.line}" if self.line is not None else self.source.value


def value_in_words(value: object) -> str:
    """A value as people read it."""
    if isinstance(value, str):
        return value or '""'
    return "-" if value is None else json.dumps(value, default=str, ensure_ascii=False)


def held(
    settings: "Settings", document: Document | None, environment: Mapping[str, str], keys: Mapping[str, str]
) -> list[Held]:
    """Every setting that holds, and of which upstreams there is a key.

    `keys` are the variables that these are in, by the upstreams' names. `settings` are those that hold in the
    end, `document` is what the file says.
    """
    said = _said(document)
    found = [_held(leaf, said, environment) for leaf in _leaves(settings)]
    found += [
        Held(key=f"cost.{dotted(place)}", value=value, source=Source.FILE, line=said.line(("cost", *place)))
        for place, value in _plain_leaves(settings.cost, ())
    ]
    found += [
        Held(key=f"upstreams.{name}.key", value="set", source=Source.ENVIRONMENT, variable=variable)
        for name, variable in keys.items()
        if environment.get(variable)
    ]
    return found


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A setting that is no model itself."""

    place: Place
    value: object
    default: object


@dataclass(frozen=True, slots=True)
class _Said:
    """What the file alone would have hold, and on which line each thing stands in it."""

    values: Mapping[Place, object]
    lines: Mapping[Place, int]
    data: object

    def line(self, place: Place) -> int | None:
        """The line that says what stands at a place; None where the file does not."""
        said: Any = self.data
        for step in place:
            is_there = (
                step in said if isinstance(said, dict) else isinstance(said, list) and int(step) < len(said)
            )
            if not is_there:
                return None
            said = said[step]
        # What an alias stands for has no line of its own.
        return next(
            (line for depth in range(len(place), -1, -1) if (line := self.lines.get(place[:depth]))), None
        )


def _said(document: Document | None) -> _Said:
    from foveate.config.settings import Settings

    settings = Settings() if document is None else settings_in(document)
    lines = {} if document is None else document.lines()
    values = {leaf.place: leaf.value for leaf in _leaves(settings)}
    return _Said(values, lines, None if document is None else document.data)


def _held(leaf: _Leaf, said: _Said, environment: Mapping[str, str]) -> Held:
    place = leaf.place
    line = said.line(place)
    source = Source.DEFAULT if line is None else Source.FILE
    value, variable = _from_environment(place, leaf.value, environment)
    if variable is not None:
        source, line = Source.ENVIRONMENT, None
    elif place not in said.values or said.values[place] != leaf.value:
        # Nothing else goes over the file.
        source, line = Source.COMMAND, None
    return Held(
        key=dotted(place),
        value=_shown(place, value),
        source=source,
        line=line,
        variable=variable,
        default=leaf.default,
    )


def _from_environment(place: Place, value: object, environment: Mapping[str, str]) -> tuple[object, str | None]:
    """What holds at a place, and the variable that it is from, where one goes over the file."""
    match place:
        case ("store", "url"):
            variable = STORE_VARIABLE  # `settings` has it already
        case (*_, "sections", "time", str(name)) if name in _TIME_VARIABLES:
            variable = _TIME_VARIABLES[name]
            told = TimeOptions.from_environment(environment)
            value = (
                getattr(told, "awareness" if name == "enabled" else name)
                if environment.get(variable)
                else value
            )
        case (*_, "sections", "limits") if isinstance(value, dict):
            variable = LIMIT_VARIABLE
            tokens = environment.get(variable, "")
            value = {**value, "total_tokens": int(tokens)} if tokens.strip().isdecimal() else value
        case _:
            return value, None
    return value, variable if environment.get(variable, "").strip() else None


def _shown(place: Place, value: object) -> object:
    """A value without what is secret in it."""
    if place[-1] in ("keys", "admin_keys") and isinstance(value, list):
        return [f"{hashed[:8]}…" for hashed in value]
    return without_password(value) if isinstance(value, str) and "://" in value else value


def _leaves(settings: Any, place: Place = ()) -> Iterator[_Leaf]:
    """Every setting of a model that is no model itself; `cost` has a form of its own."""
    from pydantic import BaseModel

    for name, known in type(settings).model_fields.items():
        if not place and name == "cost":
            continue
        value, here = getattr(settings, name), (*place, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, here)
        elif isinstance(value, dict) and any(isinstance(one, BaseModel) for one in value.values()):
            for key, one in value.items():
                yield from _leaves(one, (*here, key))
        elif isinstance(value, list) and any(isinstance(one, BaseModel) for one in value):
            for number, one in enumerate(value):
                yield from _leaves(one, (*here, number))
        else:
            yield _Leaf(here, value, None if known.is_required() else known.get_default())


def _plain_leaves(said: object, place: Place) -> Iterator[tuple[Place, object]]:
    if isinstance(said, dict):
        for key, value in said.items():
            yield from _plain_leaves(value, (*place, str(key)))
    elif isinstance(said, list):
        for number, value in enumerate(said):
            yield from _plain_leaves(value, (*place, number))
    elif said is not None:
        yield place, said


def without_password(store: str) -> str:
    """A URL of a store as it can be shown."""
    scheme, found, rest = store.partition("://")
    account, at, place = rest.rpartition("@")
    shown = f"{scheme}{found}{account.partition(':')[0]}{at}{place}" if at else store
    return _SECRET.sub(r"\1…", shown)

"""What holds in the end: every setting with its value, and where that is from. Never a key."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from foveate.config.documents import Document
from foveate.config.overriding import STORE_VARIABLE
from foveate.config.places import Place, dotted

if TYPE_CHECKING:
    from foveate.config.settings import Settings


# libpq takes it among a URL's parameters too.
_PASSWORD = re.compile(r"([?&]password=)[^&]*")


class Source(StrEnum):
    """Where a value is from."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A setting that holds: from a `line` of the file, or a `variable`, where it is from one."""

    key: str
    value: object
    source: Source
    line: int | None = None
    variable: str | None = None


def held(
    settings: "Settings", document: Document | None, environment: Mapping[str, str], keys: Mapping[str, str]
) -> list[Held]:
    """Every setting that holds, and of which upstreams there is a key.

    `keys` are the variables that these are in, by the upstreams' names. `settings` are those that hold in the
    end, `document` is what the file says.
    """
    found = [_held(place, value, document, environment) for place, value in _leaves(settings)]
    found += [
        Held(
            key=f"cost.{dotted(place)}", value=value, source=Source.FILE, line=_line(document, ("cost", *place))
        )
        for place, value in _plain_leaves(settings.cost, ())
    ]
    found += [
        Held(key=f"upstreams.{name}.key", value="set", source=Source.ENVIRONMENT, variable=variable)
        for name, variable in keys.items()
        if environment.get(variable)
    ]
    return found


def _held(place: Place, value: object, document: Document | None, environment: Mapping[str, str]) -> Held:
    key = dotted(place)
    if place == ("store", "url"):
        value = without_password(value) if isinstance(value, str) else value
        if environment.get(STORE_VARIABLE):
            return Held(key=key, value=value, source=Source.ENVIRONMENT, variable=STORE_VARIABLE)
    if place[-1] == "keys" and isinstance(value, list):
        value = [f"{hashed[:8]}…" for hashed in value]
    line = _line(document, place)
    return Held(key=key, value=value, source=Source.DEFAULT if line is None else Source.FILE, line=line)


def _leaves(settings: Any, place: Place = ()) -> Iterator[tuple[Place, object]]:
    """Every setting of a model that is no model itself; `cost` has a form of its own."""
    from pydantic import BaseModel

    for name in type(settings).model_fields:
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
            yield here, value


def _plain_leaves(said: object, place: Place) -> Iterator[tuple[Place, object]]:
    if isinstance(said, dict):
        for key, value in said.items():
            yield from _plain_leaves(value, (*place, str(key)))
    elif isinstance(said, list):
        for number, value in enumerate(said):
            yield from _plain_leaves(value, (*place, number))
    elif said is not None:
        yield place, said


def _line(document: Document | None, place: Place) -> int | None:
    """The line of the file that says what stands at a place; None where it does not."""
    if document is None:
        return None
    said: Any = document.data
    for step in place:
        is_there = step in said if isinstance(said, dict) else isinstance(said, list) and int(step) < len(said)
        if not is_there:
            return None
        said = said[step]
    return document.find(document.text, place)


def without_password(store: str) -> str:
    """A URL of a store as it can be shown."""
    scheme, found, rest = store.partition("://")
    account, at, place = rest.rpartition("@")
    shown = f"{scheme}{found}{account.partition(':')[0]}{at}{place}" if at else store
    return _PASSWORD.sub(r"\1…", shown)

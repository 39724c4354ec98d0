"""Whether JSON has the shape that a provider's table gives it: its fields, what each is, its range, its values.

A table (`*_shapes.toml`) holds shapes by name. A shape says for each field what it may be:

- `string`, `integer`, `number`, `boolean`, `object`, `list`, `any`; `base64` is a string of that;
- `number 0..2`, `integer 1..`: within a range; `[string] 1..128`: a list of such, of that length;
- `= low high`: one of these words; `@image`: what has the shape `image`;
- two of these with ` / ` between them: either; and `!` at the end: it has to be there, and not as null.

`"..."` names a shape whose fields come in addition, `"*"` says that there may be others. Shapes in a shape are
told apart by the field `tag` (`type` where it does not say), or else it is the `default`; names with a blank
between them share a shape, and `@block: text image` allows no others than these.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from foveate.values import Format

_FOLDER = Path(__file__).parent
_KIND = re.compile(r"(?P<name>\w+)(?: (?P<least>-?\d+)\.\.(?P<most>\d*))?")
_LIST = re.compile(r"\[(?P<inner>.*)\](?: (?P<least>\d+)\.\.(?P<most>\d*))?")
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+(?:=+\s*)?")
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "base64": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "list": (list,),
}


@dataclass(frozen=True, slots=True)
class Tag:
    """A step of a path that only says which of several shapes it is."""

    name: str


Place = tuple[str | int | Tag, ...]


class Wrong(StrEnum):
    """What can be wrong with a value."""

    MISSING = "missing"
    UNKNOWN = "unknown"
    TYPE = "type"
    VALUE = "value"
    TAG = "tag"
    LOW = "low"
    HIGH = "high"
    SHORT = "short"
    LONG = "long"
    BASE64 = "base64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One thing that a value may be; `name` is its JSON type, `item` what a list is a list of."""

    name: str
    least: int | None = None
    most: int | None = None
    values: tuple[str, ...] = ()
    shape: str = ""
    tags: tuple[str, ...] = ()
    item: "Kind | None" = None

    def fits(self, found: object) -> bool:
        """Whether a value is of the right JSON type; true and false are no numbers."""
        if self.name == "any":
            return True
        return isinstance(found, _TYPES[self.name]) and (self.name == "boolean" or not isinstance(found, bool))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong, where: what was `found`, and the kinds or words of which it should have been one."""

    path: Place
    wrong: Wrong
    found: Any = None
    kinds: tuple[Kind, ...] = ()
    words: tuple[str, ...] = ()
    tag: str = ""

    @property
    def kind(self) -> Kind:
        """The kind that it was nearest to."""
        return self.kinds[-1]


@dataclass(frozen=True, slots=True)
class _Field:
    kinds: tuple[Kind, ...]
    is_required: bool


@dataclass(frozen=True, slots=True)
class _Shape:
    fields: Mapping[str, _Field]
    is_open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Shapes that a field tells apart; a shape alone is a family without a tag."""

    tag: str
    default: str | None
    shapes: Mapping[str, _Shape]


class Shapes:
    """The shapes of one format."""

    def __init__(self, table: Mapping[str, Mapping[str, Any]]) -> None:
        self._families = {name: _family(rows, table) for name, rows in table.items()}

    def faults(self, name: str, found: Mapping[str, Any]) -> Iterator[Fault]:
        """What is wrong with an object that should have the shape of that name, the first thing first."""
        return self._object(found, Kind(name="object", shape=name), ())

    def _object(self, found: Mapping[str, Any], kind: Kind, path: Place) -> Iterator[Fault]:
        family = self._families[kind.shape]
        said = ""
        if family.tag:
            said = found.get(family.tag, family.default)
            known = kind.tags or tuple(family.shapes)
            if said is None:
                yield Fault(path=(*path, family.tag), wrong=Wrong.MISSING)
                return
            if said not in known:
                yield Fault(path=path, wrong=Wrong.TAG, found=said, words=known, tag=family.tag)
                return
            path = (*path, Tag(said)) if family.tag == "type" else path
        shape = family.shapes[said]
        for name, field in shape.fields.items():
            value = found.get(name)
            if field.is_required and name not in found:
                yield Fault(path=(*path, name), wrong=Wrong.MISSING)
            elif value is not None or field.is_required:
                yield from self._value(value, field.kinds, (*path, name))
        for name in found:
            if name not in shape.fields and name != family.tag and not shape.is_open:
                yield Fault(path=(*path, name), wrong=Wrong.UNKNOWN)

    def _value(self, found: Any, kinds: tuple[Kind, ...], path: Place) -> Iterator[Fault]:
        kind = next((kind for kind in kinds if kind.fits(found)), None)
        if kind is None:
            yield Fault(path=path, wrong=Wrong.TYPE, found=found, kinds=kinds)
            return
        wrong = _out_of_bounds(found, kind)
        if wrong is not None:
            yield Fault(path=path, wrong=wrong, found=found, kinds=(kind,), words=kind.values)
        if kind.item is not None:
            for number, item in enumerate(found):
                yield from self._value(item, (kind.item,), (*path, number))
        if kind.shape:
            yield from self._object(found, kind, path)


@cache
def shapes_of(spoken: Format) -> Shapes:
    """The shapes of a format that the sandbox speaks."""
    name = {
        Format.ANTHROPIC: "anthropic",
        Format.CHAT: "chat",
        Format.RESPONSES: "responses",
        Format.GEMINI: "gemini",
    }[spoken]
    return Shapes(tomllib.loads((_FOLDER / f"{name}_shapes.toml").read_text(encoding="utf-8")))


def is_base64(text: str) -> bool:
    """Return whether a text is Base64."""
    return _BASE64.fullmatch(text) is not None


def _out_of_bounds(found: Any, kind: Kind) -> Wrong | None:
    match kind.name:
        case "string" if kind.values and found not in kind.values:
            return Wrong.VALUE
        case "base64" if not is_base64(found):
            return Wrong.BASE64
        case "integer" | "number":
            if kind.least is not None and not found >= kind.least:
                return Wrong.LOW
            return Wrong.HIGH if kind.most is not None and not found <= kind.most else None
        case "list":
            if kind.least is not None and len(found) < kind.least:
                return Wrong.SHORT
            return Wrong.LONG if kind.most is not None and len(found) > kind.most else None
        case _:
            return None


def _family(rows: Mapping[str, Any], table: Mapping[str, Mapping[str, Any]]) -> _Family:
    members = {name: row for name, row in rows.items() if isinstance(row, dict)}
    if not members:
        return _Family(tag="", default=None, shapes={"": _shape(rows, table)})
    return _Family(
        tag=rows.get("tag", "type"),
        default=rows.get("default"),
        shapes={tag: _shape(row, table) for names, row in members.items() for tag in names.split()},
    )


def _shape(row: Mapping[str, str], table: Mapping[str, Mapping[str, Any]]) -> _Shape:
    more = row.get("...")
    whole = {**(table[more] if more else {}), **row}
    fields = {name: _field(said) for name, said in whole.items() if name not in ("...", "*")}
    return _Shape(fields, is_open="*" in whole)


def _field(said: str) -> _Field:
    kinds = tuple(_kind(part) for part in said.removesuffix("!").split(" / "))
    return _Field(kinds, is_required=said.endswith("!"))


def _kind(said: str) -> Kind:
    if said.startswith("= "):
        return Kind(name="string", values=tuple(said[2:].split()))
    if said.startswith("@"):
        shape, _, tags = said[1:].partition(": ")
        return Kind(name="object", shape=shape, tags=tuple(tags.split()))
    found = _LIST.fullmatch(said) or _KIND.fullmatch(said)
    if found is None:
        raise ValueError(f"no kind of value: {said}")
    parts = found.groupdict()
    least, most = (int(parts[bound]) if parts[bound] else None for bound in ("least", "most"))
    item = _kind(parts["inner"]) if "inner" in parts else None
    return Kind(name=parts.get("name", "list"), least=least, most=most, item=item)

"""JSON into plain data, and where in it something stands."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

from foveate.config.places import DEEPEST, Place, dotted, short
from foveate.errors import BadSetting

# A text, a bracket, or anything else that stands for itself. A text without an end takes the rest.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)|[][{},:]|[^][{},:"\s]+')
_NESTED = frozenset({dict, list})


class _KeyTwice(Exception):
    """An object that has a key twice."""


def read(text: str, source: str, *, exact: bool = False) -> object:
    """What `text` says; `exact`: numbers with a point are decimals, to the last digit.

    Raises:
        BadSetting: not JSON, or a key twice, with the line.
    """
    try:
        data = json.loads(text, object_pairs_hook=_mapping, parse_float=Decimal if exact else None)
    except json.JSONDecodeError as error:
        raise BadSetting(source, f"not JSON: {error.msg} (column {error.colno})", line=error.lineno) from None
    except ValueError:  # more digits than Python reads
        raise BadSetting(source, "a number in it has thousands of digits") from None
    except InvalidOperation:
        raise BadSetting(source, "a number in it is larger or smaller than any that can be read") from None
    except RecursionError:
        raise _too_deep(text, source) from None
    except _KeyTwice:
        raise _twice(text, source) from None
    if _is_too_deep(data):
        raise _too_deep(text, source)
    return data


def line(text: str, place: Place) -> int | None:
    """The line on which `place` stands in a text that can be read, or else what is around it."""
    found = [at for passed, at in _places(text) if passed == place[: len(passed)]]
    return _line(text, found[-1]) if found else None


def lines(text: str) -> dict[Place, int]:
    """The line on which each thing stands in a text that can be read."""
    found: dict[Place, int] = {}
    line, before = 1, 0
    for place, at in _places(text):
        line, before = line + text.count("\n", before, at), at
        found[place] = line
    return found


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _mapping(pairs: list[tuple[str, object]]) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise _KeyTwice
    return mapping


def _is_too_deep(data: Any) -> bool:
    level: list[Any] = [data]
    for _ in range(DEEPEST + 1):
        inner = (outer.values() if type(outer) is dict else outer for outer in level if type(outer) in _NESTED)
        level = [value for values in inner for value in values if type(value) in _NESTED]
    return bool(level)


def _too_deep(text: str, source: str) -> BadSetting:
    at = next((at for place, at in _places(text) if len(place) > DEEPEST), 0)
    return BadSetting(source, f"is nested more than {DEEPEST} deep", line=_line(text, at))


def _twice(text: str, source: str) -> BadSetting:
    place, at = next(_repeated(text))
    reason = f"the key {place[-1]!r} stands here a second time"
    return BadSetting(source, short(reason), line=_line(text, at), key=dotted(place))


def _repeated(text: str) -> Iterator[tuple[Place, int]]:
    seen: set[Place] = set()
    for place, at in _places(text):
        if place in seen:
            yield place, at
        seen.add(place)


def _places(text: str) -> Iterator[tuple[Place, int]]:
    """The whole, every key and every item of a JSON text, with the offset at which it stands.

    Only for errors: what reads the text in C does not say where it is.
    """
    here: list[str | int | None] = []  # None: an object whose next key is to come
    for token in _TOKEN.finditer(text):
        match token[0]:
            case "]" | "}":
                here.pop()
            case ",":
                here[-1] = here[-1] + 1 if isinstance(here[-1], int) else None
            case ":":
                pass
            case mark:
                if here and here[-1] is None:
                    here[-1] = json.loads(mark)
                    yield _so_far(here), token.start()
                    continue
                if not here or isinstance(here[-1], int):
                    yield _so_far(here), token.start()
                if mark in "[{":
                    here.append(0 if mark == "[" else None)


def _so_far(here: list[str | int | None]) -> Place:
    return tuple(step for step in here if step is not None)

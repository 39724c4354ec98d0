"""JSON into plain data, and where in it something stands."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

from foveate.config.key_path import MAX_DEPTH, KeyPath, format_key_path, shorten
from foveate.errors import BadSetting

# A text, a bracket, or anything else that stands for itself. A text without an end takes the rest.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)|[][{},:]|[^][{},:"\s]+')
_NESTED = frozenset({dict, list})


class _DuplicateKey(Exception):
    """An object that has a key twice."""


def parse(text: str, source: str, *, exact: bool = False) -> object:
    """What `text` says; `exact`: numbers with a point are decimals, to the last digit.

    Raises:
        BadSetting: not JSON, or a key twice, with the line.
    """
    try:
        data = json.loads(text, object_pairs_hook=_build_mapping, parse_float=Decimal if exact else None)
    except json.JSONDecodeError as error:
        raise BadSetting(source, f"not JSON: {error.msg} (column {error.colno})", line=error.lineno) from None
    except ValueError:  # more digits than Python reads
        raise BadSetting(source, "a number in it has thousands of digits") from None
    except InvalidOperation:
        raise BadSetting(source, "a number in it is larger or smaller than any that can be read") from None
    except RecursionError:
        raise _nesting_error(text, source) from None
    except _DuplicateKey:
        raise _duplicate_key_error(text, source) from None
    if _is_too_deep(data):
        raise _nesting_error(text, source)
    return data


def find_line(text: str, key_path: KeyPath) -> int | None:
    """The line on which `place` stands in a text that can be read, or else what is around it."""
    found = [at for passed, at in _iter_key_paths(text) if passed == key_path[: len(passed)]]
    return _line_at(text, found[-1]) if found else None


def find_lines(text: str) -> dict[KeyPath, int]:
    """The line on which each thing stands in a text that can be read."""
    found: dict[KeyPath, int] = {}
    line, before = 1, 0
    for key_path, at in _iter_key_paths(text):
        line, before = line + text.count("\n", before, at), at
        found[key_path] = line
    return found


def _line_at(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _build_mapping(pairs: list[tuple[str, object]]) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise _DuplicateKey
    return mapping


def _is_too_deep(data: Any) -> bool:
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH + 1):
        inner = (outer.values() if type(outer) is dict else outer for outer in level if type(outer) in _NESTED)
        level = [value for values in inner for value in values if type(value) in _NESTED]
    return bool(level)


def _nesting_error(text: str, source: str) -> BadSetting:
    at = next((at for key_path, at in _iter_key_paths(text) if len(key_path) > MAX_DEPTH), 0)
    return BadSetting(source, f"is nested more than {MAX_DEPTH} deep", line=_line_at(text, at))


def _duplicate_key_error(text: str, source: str) -> BadSetting:
    key_path, at = next(_find_duplicates(text))
    reason = f"the key {key_path[-1]!r} stands here a second time"
    return BadSetting(source, shorten(reason), line=_line_at(text, at), key=format_key_path(key_path))


def _find_duplicates(text: str) -> Iterator[tuple[KeyPath, int]]:
    seen: set[KeyPath] = set()
    for key_path, at in _iter_key_paths(text):
        if key_path in seen:
            yield key_path, at
        seen.add(key_path)


def _iter_key_paths(text: str) -> Iterator[tuple[KeyPath, int]]:
    """The whole, every key and every item of a JSON text, with the offset at which it stands.

    Only for errors: what reads the text in C does not say where it is.
    """
    steps: list[str | int | None] = []  # None: an object whose next key is to come
    for token in _TOKEN.finditer(text):
        match token[0]:
            case "]" | "}":
                steps.pop()
            case ",":
                steps[-1] = steps[-1] + 1 if isinstance(steps[-1], int) else None
            case ":":
                pass
            case text_token:
                if steps and steps[-1] is None:
                    steps[-1] = json.loads(text_token)
                    yield _to_key_path(steps), token.start()
                    continue
                if not steps or isinstance(steps[-1], int):
                    yield _to_key_path(steps), token.start()
                if text_token in "[{":
                    steps.append(0 if text_token == "[" else None)


def _to_key_path(steps: list[str | int | None]) -> KeyPath:
    return tuple(step for step in steps if step is not None)

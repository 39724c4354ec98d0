"""YAML and JSON files as plain data, with the line of each value for error messages."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from foveate.config.files import decode_text, display_path, read_bytes
from foveate.config.key_path import MAX_DEPTH, KeyPath, find_line, format_key_path, shorten_text
from foveate.errors import BadSetting, UnreadableInput

# A string, punctuation, or another literal. An unterminated string extends to the end.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)|[][{},:]|[^][{},:"\s]+')
_NESTED = frozenset({dict, list})


class _DuplicateMember(Exception): ...


def _read_json(text: str, source: str, *, exact: bool = False) -> object:
    """Parse `text`. With `exact`, numbers with a decimal point become decimals.

    Raises:
        BadSetting: not valid JSON, or a duplicate key; names the line.
    """
    try:
        data = json.loads(text, object_pairs_hook=_build_mapping, parse_float=Decimal if exact else None)
    except json.JSONDecodeError as error:
        raise BadSetting(
            source, f"invalid JSON: {error.msg} (column {error.colno})", line=error.lineno
        ) from None
    except ValueError:  # more digits than Python converts
        raise BadSetting(source, "contains a number with thousands of digits") from None
    except InvalidOperation:
        raise BadSetting(source, "contains a number that is out of range") from None
    except RecursionError:
        raise _nesting_error(text, source) from None
    except _DuplicateMember:
        raise _duplicate_key_error(text, source) from None
    if _is_too_deep(data):
        raise _nesting_error(text, source)
    return data


def _find_json_lines(text: str) -> dict[KeyPath, int]:
    """Return the line of each value in valid JSON."""
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
        raise _DuplicateMember
    return mapping


def _is_too_deep(data: Any) -> bool:
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH + 1):
        inner = (outer.values() if type(outer) is dict else outer for outer in level if type(outer) in _NESTED)
        level = [value for values in inner for value in values if type(value) in _NESTED]
    return bool(level)


def _nesting_error(text: str, source: str) -> BadSetting:
    at = next((at for key_path, at in _iter_key_paths(text) if len(key_path) > MAX_DEPTH), 0)
    return BadSetting(source, f"is nested more than {MAX_DEPTH} levels deep", line=_line_at(text, at))


def _duplicate_key_error(text: str, source: str) -> BadSetting:
    seen: set[KeyPath] = set()
    for key_path, at in _iter_key_paths(text):
        if key_path in seen:
            reason = shorten_text(f"duplicate key {key_path[-1]!r}")
            return BadSetting(source, reason, line=_line_at(text, at), key=format_key_path(key_path))
        seen.add(key_path)
    raise AssertionError("no key is repeated")


def _iter_key_paths(text: str) -> Iterator[tuple[KeyPath, int]]:
    """Yield the key path and offset of the whole text, of every key and of every list item.

    Only used for errors: the C parser does not report positions.
    """
    steps: list[str | int | None] = []  # None: an object before its next key
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


MAX_SETTINGS_BYTES = 1_000_000
_JSON_START = re.compile(r"\s*[\[{]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDocument:
    """A parsed file as plain data: null, booleans, numbers, strings, lists and mappings."""

    source: str
    data: object
    text: str = field(repr=False)
    find_lines: Callable[[str], dict[KeyPath, int]] = field(repr=False)

    def lines(self) -> dict[KeyPath, int]:
        """Return the line of each value. They are only found now, because few callers need them."""
        return self.find_lines(self.text)

    def error(self, reason: str, key_path: KeyPath = ()) -> BadSetting:
        line = find_line(self.lines(), key_path)
        return BadSetting(self.source, shorten_text(reason), line=line, key=format_key_path(key_path))


def read_document(path: Path, *, limit_bytes: int = MAX_SETTINGS_BYTES, exact: bool = False) -> ConfigDocument:
    """Read a file: JSON if its name ends in `.json`, otherwise YAML.

    With `exact`, numbers with a decimal point become decimals, as money needs.

    Raises:
        UnreadableInput: the file does not exist, is a folder, exceeds the limit, is not UTF-8, or is empty.
        BadSetting: not valid YAML or JSON, a duplicate key, a tag, a number like 010, or excessive aliases.
    """
    return parse_document(read_bytes(path, limit_bytes=limit_bytes), display_path(path), exact=exact)


def parse_document(data: bytes, source: str, *, exact: bool = False) -> ConfigDocument:
    """Parse `data`. `source` is its name in errors; its suffix tells JSON from YAML.

    Without such a suffix, data that starts like JSON is parsed as JSON first, which is faster.

    Raises:
        UnreadableInput: not UTF-8, or empty.
        BadSetting: not valid YAML or JSON, a duplicate key, a tag, a number like 010, or excessive aliases.
    """
    text = decode_text(data, source)
    if not text or text.isspace():
        raise UnreadableInput(source, "is empty")
    ending = source.lower()
    if ending.endswith(".json"):
        return _parse_json(text, source, exact)
    if ending.endswith((".yaml", ".yml")) or not _JSON_START.match(text):
        return _parse_yaml(text, source, exact)
    try:
        return _parse_json(text, source, exact)
    except BadSetting as json_error:
        return _parse_yaml_or_raise(json_error, text, source, exact)


def _parse_json(text: str, source: str, exact: bool) -> ConfigDocument:

    data = _read_json(text, source, exact=exact)
    return ConfigDocument(source=source, data=data, text=text, find_lines=_find_json_lines)


def _parse_yaml_or_raise(json_error: BadSetting, text: str, source: str, exact: bool) -> ConfigDocument:
    """Parse YAML, which may start with a bracket too, or raise the error of the JSON parser."""
    try:
        return _parse_yaml(text, source, exact)
    except BadSetting:
        raise json_error from None


def _parse_yaml(text: str, source: str, exact: bool) -> ConfigDocument:
    from foveate.config import yaml_parser

    data = yaml_parser.parse(text, source, exact=exact)
    if data is None:
        raise UnreadableInput(source, "is empty")
    return ConfigDocument(source=source, data=data, text=text, find_lines=yaml_parser.find_lines)

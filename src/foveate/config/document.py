"""YAML and JSON files as plain data, with the line of each value for error messages."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from foveate.config.files import decode_text, display_path, read_bytes
from foveate.config.key_path import KeyPath, find_line, format_key_path, shorten_text
from foveate.errors import BadSetting, UnreadableInput

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
    from foveate.config import json_parser

    data = json_parser.parse(text, source, exact=exact)
    return ConfigDocument(source=source, data=data, text=text, find_lines=json_parser.find_lines)


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

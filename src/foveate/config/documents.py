"""Documents: YAML and JSON files as plain data, and where each value stands, so that errors can say it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from foveate.config.files import read_bytes, shown, text_in
from foveate.config.places import Place, dotted, short
from foveate.errors import BadSetting, UnreadableInput

SETTINGS_LIMIT_BYTES = 1_000_000
_LIKE_JSON = re.compile(r"\s*[\[{]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a file says, as plain data: null, true and false, numbers, texts, lists, mappings."""

    source: str
    data: object
    text: str = field(repr=False)
    find: Callable[[str, Place], int | None] = field(repr=False)
    find_all: Callable[[str], dict[Place, int]] = field(repr=False)

    def lines(self) -> dict[Place, int]:
        """The line of each thing in it, found in one pass."""
        return self.find_all(self.text)

    def problem(self, reason: str, place: Place = ()) -> BadSetting:
        """The error that `reason` is at `place`: with its line, which is looked up only now."""
        return BadSetting(self.source, short(reason), line=self.find(self.text, place), key=dotted(place))


def read_document(path: Path, *, limit_bytes: int = SETTINGS_LIMIT_BYTES, exact: bool = False) -> Document:
    """The document in a file: JSON if its name ends in `.json`, else YAML.

    `exact`: numbers with a point are decimals as they are written, such as money.

    Raises:
        UnreadableInput: no such file, a folder, larger than the limit, not UTF-8, or empty.
        BadSetting: neither YAML nor JSON, a key twice, a tag, a number like 010, or aliases out of proportion.
    """
    return document_from(read_bytes(path, limit_bytes=limit_bytes), shown(path), exact=exact)


def document_from(data: bytes, source: str, *, exact: bool = False) -> Document:
    """The document in `data`; `source` is what errors call it, and says by its ending if it is JSON or YAML.

    Where it does not, and the data begins as JSON does, it is read as JSON first, which is faster.

    Raises:
        UnreadableInput: not UTF-8, or empty.
        BadSetting: neither YAML nor JSON, a key twice, a tag, a number like 010, or aliases out of proportion.
    """
    text = text_in(data, source)
    if not text or text.isspace():
        raise UnreadableInput(source, "is empty")
    ending = source.lower()
    if ending.endswith(".json"):
        return _json(text, source, exact)
    if ending.endswith((".yaml", ".yml")) or not _LIKE_JSON.match(text):
        return _yaml(text, source, exact)
    try:
        return _json(text, source, exact)
    except BadSetting as not_json:
        return _yaml_or(not_json, text, source, exact)


def _json(text: str, source: str, exact: bool) -> Document:
    from foveate.config import as_json

    data = as_json.read(text, source, exact=exact)
    return Document(source=source, data=data, text=text, find=as_json.line, find_all=as_json.lines)


def _yaml_or(not_json: BadSetting, text: str, source: str, exact: bool) -> Document:
    """The same as YAML, which may begin with a bracket too."""
    try:
        return _yaml(text, source, exact)
    except BadSetting:
        raise not_json from None


def _yaml(text: str, source: str, exact: bool) -> Document:
    from foveate.config import as_yaml

    data = as_yaml.read(text, source, exact=exact)
    if data is None:
        raise UnreadableInput(source, "is empty")
    return Document(source=source, data=data, text=text, find=as_yaml.line, find_all=as_yaml.lines)

"""Sections in files: a YAML or JSON list, or a folder with one file for each section."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foveate.budget.budget import check_mapping, check_section_name
from foveate.budget.sections import Item, Section
from foveate.config.document import ConfigDocument, parse_document, read_document
from foveate.config.files import StrPath, decode_text, display_path, read_bytes
from foveate.config.key_path import KeyPath
from foveate.errors import BadOption, BadSetting, UnreadableInput

# More than any window, but small enough that endless input such as /dev/zero does not fill the memory.
MAX_SECTIONS_BYTES = 1_000_000_000

_SECTION_KEYS = (
    "name",
    "text",
    "items",
    "priority",
    "max_tokens",
    "share",
    "keep",
    "stability",
    "enabled",
)
_ITEM_KEYS = ("text", "score")

_NUMBER_PREFIX = re.compile(r"^\d+[-_. ]+(?=.)")
_DIGITS = re.compile(r"(\d+)")


def load_sections(path: StrPath) -> tuple[Section, ...]:
    """Load the sections in a file or folder, in order.

    A file has a list of mappings with the fields of a section; an item is a string, `{text, score}` or `[text,
    score]`. In a folder each file is a section, in natural order (2 before 10), named without its number:
    `10-system_prompt.md` is `system_prompt`. Subfolders, hidden files and backup files (`~`) are ignored.

    Raises:
        UnreadableInput: the file does not exist, exceeds 1 GB, is not text, is not UTF-8, or is empty.
        BadSetting: not a list, an unknown key, a wrong type, or a duplicate name; names file, line and key.
    """
    path = Path(path)
    if _is_folder(path):
        return tuple(_read_folder(path))
    return _sections_from_document(read_document(path, limit_bytes=MAX_SECTIONS_BYTES))


def parse_sections(data: bytes, source: str) -> tuple[Section, ...]:
    """Parse the sections in a YAML or JSON list; errors call it `source`.

    Raises:
        UnreadableInput: not UTF-8, or empty.
        BadSetting: not a list, an unknown key, a wrong type, or a duplicate name; names line and key.
    """
    return _sections_from_document(parse_document(data, source))


def _sections_from_document(document: ConfigDocument) -> tuple[Section, ...]:
    if not isinstance(document.data, list):
        kind = "a mapping" if isinstance(document.data, dict) else "a single value"
        raise document.error(f"sections must be a list (- name: …), not {kind}")
    numbers: dict[str, int] = {}
    sections = []
    for number, entry in enumerate(document.data, start=1):
        try:
            section = _parse_section(entry)
        except BadOption as error:
            raise document.error(f"section {number}: {error}", (number - 1, *error.path)) from None
        first = numbers.setdefault(section.name, number)
        if first != number:
            reason = f"section {number}: section {first} has the same name {section.name!r}"
            raise document.error(reason, (number - 1, "name"))
        sections.append(section)
    return tuple(sections)


def _parse_section(entry: object) -> Section:
    fields = dict(check_mapping(entry, _SECTION_KEYS, "a section", ()))
    name = check_section_name(_require_text(fields.pop("name", None), "name", ("name",)), ("name",))
    if "text" in fields:
        _require_text(fields["text"], "text", ("text",))
    if "items" in fields:
        fields["items"] = _parse_items(fields["items"])
    if not isinstance(fields.get("enabled", True), bool):
        raise BadOption(f"{name}.enabled must be true or false, not {fields['enabled']!r}", path=("enabled",))
    try:
        return Section(name, **fields)
    except BadOption as error:
        # The path starts with the section's name, which is not a key here.
        raise BadOption(str(error), path=error.path[1:]) from None


def _parse_items(value: Any) -> list[Item]:
    if not isinstance(value, list):
        raise BadOption("items must be a list; use text for a single text", path=("items",))
    return [_parse_item(item, index) for index, item in enumerate(value)]


def _parse_item(value: object, index: int) -> Item:
    if isinstance(value, str):
        return Item(value)
    path: KeyPath = ("items", index)
    label, text = f"item {index + 1}", value
    score: Any = None
    match value:
        case [text, score]:
            pass
        case dict():
            fields = check_mapping(value, _ITEM_KEYS, label, path)
            label, text, score = f"the text of {label}", fields.get("text"), fields.get("score")
    try:
        return Item(_require_text(text, label, path), score)
    except BadOption as error:
        raise BadOption(str(error), path=error.path or path) from None


def _require_text(value: object, label: str, path: KeyPath) -> str:
    match value:
        case str():
            return value
        case None:
            raise BadOption(f'{label} is missing; write "" for an empty text', path=path)
        case bool():
            spelling = "true" if value else "false"
            hint = "put it in quotes (YAML reads yes and no as true and false)"
            reason = f"{label} is {spelling}, not a string: {hint}"
            raise BadOption(reason, path=path)
        case int() | float():
            raise BadOption(f"{label} is a number, not a string: put it in quotes", path=path)
        case _:
            raise BadOption(f"{label} must be a string, not {value!r}", path=path)


def _read_folder(folder: Path) -> Iterator[Section]:
    files: dict[str, Path] = {}
    for path in _list_files(folder):
        name = _NUMBER_PREFIX.sub("", path.stem)
        first = files.setdefault(name, path)
        if first is not path:
            raise BadSetting(display_path(path), f"has the same section name {name!r} as {display_path(first)}")
        data = read_bytes(path, limit_bytes=MAX_SECTIONS_BYTES)
        text = decode_text(data, display_path(path)).replace("\r\n", "\n")
        try:
            yield Section(name, text.removesuffix("\n"))  # a trailing newline does not start another line
        except BadOption as error:
            raise BadSetting(display_path(path), str(error)) from None
    if not files:
        raise UnreadableInput(display_path(folder), "contains no section files")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # reading it reports the reason
        return False


def _list_files(folder: Path) -> list[Path]:
    try:
        found = [path for path in folder.iterdir() if not _is_ignored(path.name) and not path.is_dir()]
        special = next((path for path in found if path.exists() and not path.is_file()), None)
    except OSError as error:
        raise UnreadableInput(display_path(folder), error.strerror or "cannot be read") from None
    if special is not None:  # reading a pipe would block
        raise UnreadableInput(display_path(special), "is not a file")
    return sorted(found, key=_natural_sort_key)


def _is_ignored(name: str) -> bool:
    return name.startswith(".") or name.endswith("~")


def _natural_sort_key(path: Path) -> tuple[list[str | int], str]:
    parts = _DIGITS.split(path.name.casefold())
    return [int(part) if index % 2 else part for index, part in enumerate(parts)], path.name

"""Sections in files: a YAML or JSON list of them, or a folder with a file for each."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foveate.budget.data import checked_mapping, checked_name
from foveate.budget.sections import Item, Section
from foveate.config.documents import Document, document_from, read_document
from foveate.config.files import StrPath, read_bytes, shown, text_in
from foveate.config.places import Place
from foveate.errors import BadOption, BadSetting, UnreadableInput

# No window takes so much; but what has no end, such as /dev/zero, is told before the memory is full.
SECTIONS_LIMIT_BYTES = 1_000_000_000

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

_NUMBER_IN_FRONT = re.compile(r"^\d+[-_. ]+(?=.)")
_DIGITS = re.compile(r"(\d+)")


def load_sections(path: StrPath) -> tuple[Section, ...]:
    """The sections in a file or a folder, in order.

    A file holds a list of mappings with a section's fields; an item is a text, `{text, score}` or
    `[text, score]`. In a folder each file is a section, in natural order (2 before 10) and named without the
    number in front: `10-system_prompt.md` is `system_prompt`. Left out are sub-folders, hidden files, and what
    an editor kept of a file before it was changed, whose name ends in `~`.

    Raises:
        UnreadableInput: not there, a file larger than 1 GB, no text, not UTF-8, or empty.
        BadSetting: not a list, an unknown key, a wrong type, a name twice; names file, line and key.
    """
    path = Path(path)
    if _is_folder(path):
        return tuple(_sections_in_folder(path))
    return _sections_in(read_document(path, limit_bytes=SECTIONS_LIMIT_BYTES))


def sections_from(data: bytes, source: str) -> tuple[Section, ...]:
    """The sections in a YAML or JSON list; errors call it `source`.

    Raises:
        UnreadableInput: not UTF-8, or empty.
        BadSetting: not a list, an unknown key, a wrong type, a name twice; names line and key.
    """
    return _sections_in(document_from(data, source))


def _sections_in(document: Document) -> tuple[Section, ...]:
    if not isinstance(document.data, list):
        kind = "a mapping" if isinstance(document.data, dict) else "a single value"
        raise document.problem(f"sections are a list (- name: …), not {kind}")
    numbers: dict[str, int] = {}
    sections = []
    for number, entry in enumerate(document.data, start=1):
        try:
            section = _section(entry)
        except BadOption as error:
            raise document.problem(f"section {number}: {error}", (number - 1, *error.path)) from None
        first = numbers.setdefault(section.name, number)
        if first != number:
            reason = f"section {number}: is named {section.name!r}, as section {first} is"
            raise document.problem(reason, (number - 1, "name"))
        sections.append(section)
    return tuple(sections)


def _section(entry: object) -> Section:
    given = dict(checked_mapping(entry, _SECTION_KEYS, "a section", ()))
    name = checked_name(_text(given.pop("name", None), "name", ("name",)), ("name",))
    if "text" in given:
        _text(given["text"], "text", ("text",))
    if "items" in given:
        given["items"] = _items(given["items"])
    if not isinstance(given.get("enabled", True), bool):
        raise BadOption(f"{name}.enabled is true or false, not {given['enabled']!r}", path=("enabled",))
    try:
        return Section(name, **given)
    except BadOption as error:
        # Its path begins with the section's name, which is not a key here.
        raise BadOption(str(error), path=error.path[1:]) from None


def _items(value: Any) -> list[Item]:
    if not isinstance(value, list):
        raise BadOption("items is a list; a single text goes into text", path=("items",))
    return [_item(item, index) for index, item in enumerate(value)]


def _item(value: object, index: int) -> Item:
    if isinstance(value, str):
        return Item(value)
    path: Place = ("items", index)
    what, text = f"item {index + 1}", value
    score: Any = None
    match value:
        case [text, score]:
            pass
        case dict():
            given = checked_mapping(value, _ITEM_KEYS, what, path)
            what, text, score = f"the text of {what}", given.get("text"), given.get("score")
    try:
        return Item(_text(text, what, path), score)
    except BadOption as error:
        raise BadOption(str(error), path=error.path or path) from None


def _text(value: object, what: str, path: Place) -> str:
    match value:
        case str():
            return value
        case None:
            raise BadOption(f'{what} is missing; an empty text is written ""', path=path)
        case bool():
            said = "true" if value else "false"
            reason = f"{what} is {said}, not a text: put it in quotes (yes, no, on and off mean true and false)"
            raise BadOption(reason, path=path)
        case int() | float():
            raise BadOption(f"{what} is a number, not a text: put it in quotes", path=path)
        case _:
            raise BadOption(f"{what} is a text, not {value!r}", path=path)


def _sections_in_folder(folder: Path) -> Iterator[Section]:
    files: dict[str, Path] = {}
    for path in _files(folder):
        name = _NUMBER_IN_FRONT.sub("", path.stem)
        first = files.setdefault(name, path)
        if first is not path:
            raise BadSetting(shown(path), f"gives a section {name!r}, as {shown(first)} does")
        data = read_bytes(path, limit_bytes=SECTIONS_LIMIT_BYTES)
        text = text_in(data, shown(path)).replace("\r\n", "\n")
        try:
            yield Section(name, text.removesuffix("\n"))  # which ends the last line, and begins none
        except BadOption as error:
            raise BadSetting(shown(path), str(error)) from None
    if not files:
        raise UnreadableInput(shown(folder), "holds no files that could be sections")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # whoever reads it will say why
        return False


def _files(folder: Path) -> list[Path]:
    try:
        found = [path for path in folder.iterdir() if not _is_left_out(path.name) and not path.is_dir()]
        odd = next((path for path in found if path.exists() and not path.is_file()), None)
    except OSError as error:
        raise UnreadableInput(shown(folder), error.strerror or "cannot be read") from None
    if odd is not None:  # a pipe would be waited for
        raise UnreadableInput(shown(odd), "is not a file")
    return sorted(found, key=_natural)


def _is_left_out(name: str) -> bool:
    return name.startswith(".") or name.endswith("~")


def _natural(path: Path) -> tuple[list[str | int], str]:
    parts = _DIGITS.split(path.name.casefold())
    return [int(part) if index % 2 else part for index, part in enumerate(parts)], path.name

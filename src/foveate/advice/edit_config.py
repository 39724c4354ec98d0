"""Writes settings into a configuration file with a backup, and keeps its comments, order and style."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from foveate.advice.candidate_settings import SettingPath, SettingValue, format_value, to_yaml
from foveate.config.document import MAX_SETTINGS_BYTES, parse_document
from foveate.config.files import display_path, open_replacement, read_bytes, replace_file
from foveate.config.load import Configuration, build_from_bytes, has_content
from foveate.errors import BadSetting, UnwritableFile

_INDENT = 2
_LINE_END = re.compile(r"\r?\n")


def edit_config(data: bytes, source: str, changes: Mapping[SettingPath, SettingValue]) -> bytes:
    """The configuration with these changes, checked by the loader. An empty `data` is a new file.

    Raises:
        UnreadableInput: the configuration is not UTF-8, or empty.
        BadSetting: the configuration is invalid, or written in a way that cannot be edited.
    """
    if not data or not has_content(data):
        edited = _append_fragment(data.decode("utf-8"), changes)
        expected: object = _nest(changes, {})
    else:
        expected = _nest(changes, _as_mapping(parse_document(data, source).data))
        edited = _edit_text(data.decode("utf-8"), source, changes)
    new_data = edited.encode("utf-8")
    build_from_bytes(new_data, source, _keep)
    if parse_document(new_data, source).data != expected:  # an alias, for example
        raise _cannot_edit(source, changes)
    return new_data


def _keep(configuration: Configuration) -> Configuration:
    return configuration


def _cannot_edit(source: str, changes: Mapping[SettingPath, SettingValue]) -> BadSetting:
    keys = ", ".join(".".join(path) for path in changes)
    return BadSetting(source, f"is written in a way that cannot be edited: set {keys} by hand")


def _as_mapping(data: object) -> dict[str, Any]:
    return dict(data) if isinstance(data, dict) else {}


def _nest(changes: Mapping[SettingPath, SettingValue], data: dict[str, Any]) -> dict[str, Any]:
    for path, value in changes.items():
        section = data
        for key in path[:-1]:
            section[key] = _as_mapping(section.get(key))
            section = section[key]
        section[path[-1]] = value
    return data


def _append_fragment(text: str, changes: Mapping[SettingPath, SettingValue]) -> str:
    separator = "\n" if text.strip() else ""
    return f"{text.rstrip()}\n{separator}{to_yaml(changes)}" if text.strip() else to_yaml(changes)


def _edit_text(text: str, source: str, changes: Mapping[SettingPath, SettingValue]) -> str:
    for path, value in changes.items():
        # The file was parsed before, so the text is neither deep nor malicious. Marks need the Python loader.
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode):
            raise _cannot_edit(source, changes)
        text = _set_value(text, root, path, value).apply(text)
    return text


@dataclass(frozen=True, slots=True)
class _Replacement:
    start: int
    end: int
    new: str

    def apply(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]


def _set_value(text: str, root: yaml.MappingNode, path: SettingPath, value: SettingValue) -> _Replacement:
    mapping = root
    for depth, key in enumerate(path):
        found = next((pair for pair in mapping.value if pair[0].value == key), None)
        if found is None:
            return _insert(text, mapping, path[depth:], value)
        key_node, value_node = found
        if depth == len(path) - 1:
            start, end = value_node.start_mark.index, value_node.end_mark.index
            blank = " " if start == key_node.end_mark.index + 1 == end else ""  # `key:` without a value
            return _Replacement(start, end, blank + _format_scalar(value, mapping))
        if not isinstance(value_node, yaml.MappingNode) or not value_node.value:
            return _fill(text, mapping, (key_node, value_node), path[depth + 1 :], value)
        mapping = value_node
    raise AssertionError(path)  # the last key always returns


def _insert(text: str, mapping: yaml.MappingNode, keys: SettingPath, value: SettingValue) -> _Replacement:
    """Add a key to a mapping: at its front if it is written in braces, otherwise after its last line."""
    if mapping.flow_style:
        start = mapping.start_mark.index + 1
        separator = ", " if mapping.value else ""
        return _Replacement(start, start, _format_flow(keys, value) + separator)
    end = _end_of_line(text, _last_leaf_end(mapping.value[-1][1]))
    indent = mapping.value[0][0].start_mark.column
    return _Replacement(end, end, _line_break(text) + _format_block(text, keys, value, indent))


def _fill(
    text: str,
    parent: yaml.MappingNode,
    pair: tuple[yaml.Node, yaml.Node],
    keys: SettingPath,
    value: SettingValue,
) -> _Replacement:
    """Give a key that has no value yet, or an empty mapping, its first setting."""
    key_node, value_node = pair
    start, end = value_node.start_mark.index, value_node.end_mark.index
    if parent.flow_style or isinstance(value_node, yaml.MappingNode):
        blank = "" if start > key_node.end_mark.index + 1 else " "
        return _Replacement(start, end, f"{blank}{{{_format_flow(keys, value)}}}")
    indent = key_node.start_mark.column + _INDENT
    block = _line_break(text) + _format_block(text, keys, value, indent)
    if start == end:
        line_end = _end_of_line(text, key_node.end_mark.index)
        return _Replacement(line_end, line_end, block)
    return _Replacement(start, end, block)


def _last_leaf_end(node: yaml.Node) -> int:
    """The index at which the text of a node ends. A block mapping would include comments after it."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    end: int = node.end_mark.index
    return end - 1 if not node.end_mark.column and end > node.start_mark.index else end


def _end_of_line(text: str, index: int) -> int:
    found = _LINE_END.search(text, index)
    return found.start() if found is not None else len(text)


def _line_break(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _format_block(text: str, keys: SettingPath, value: SettingValue, indent: int) -> str:
    lines = [f"{' ' * (indent + _INDENT * depth)}{key}:" for depth, key in enumerate(keys)]
    return _line_break(text).join(lines) + f" {format_value(value)}"


def _format_flow(keys: SettingPath, value: SettingValue) -> str:
    """Settings in braces, as JSON, which YAML includes."""
    data: object = value
    for key in reversed(keys[1:]):
        data = {key: data}
    return f"{json.dumps(keys[0])}: {json.dumps(data)}"


def _format_scalar(value: SettingValue, mapping: yaml.MappingNode) -> str:
    return json.dumps(value) if mapping.flow_style else format_value(value)


def write_config(file: Path, before: bytes, after: bytes) -> Path | None:
    """Replace the content of a file atomically, and return the backup of its previous content, if it had any.

    Raises:
        UnwritableFile: it has changed since `before` was read, or cannot be written; it is unchanged.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, after)
        return None
    if read_bytes(file, limit_bytes=MAX_SETTINGS_BYTES) != before:
        raise UnwritableFile(display_path(file), "has changed meanwhile; nothing was changed: try again")
    backup = _backup_path(file)
    with open_replacement(backup, mode=file.stat().st_mode & 0o777) as copy:
        copy.write(before)
    replace_file(file, after)
    return backup


def _backup_path(file: Path) -> Path:
    """A name that does not exist yet: two runs within a second need two backups."""
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    names = (f"{file.name}.bak-{time}{suffix}" for suffix in ("", *(f"-{number}" for number in range(1, 1000))))
    return next(path for name in names if not os.path.lexists(path := file.with_name(name)))

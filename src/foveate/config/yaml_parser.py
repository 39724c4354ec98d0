"""Parses YAML into plain data: null, booleans, numbers, strings, lists, and mappings with string keys.

Values are built from the parser's events and not by PyYAML's constructors: those accept duplicate keys, let a
few lines of aliases expand to gigabytes, and lose the positions of values. `yaml.compose` keeps positions, but
crashes the process at 50,000 brackets, rejects repeated anchors, and reports syntax errors without a key path.
"""

import re
from decimal import Decimal, InvalidOperation
from typing import Any

import yaml
from yaml.reader import Reader, ReaderError

from foveate.config.key_path import MAX_DEPTH, KeyPath, format_key_path, shorten_text
from foveate.errors import BadSetting

# Limit for what aliases add, or the length of the file if that is larger.
MAX_ALIASED_CHARS = 1_000_000
# Longer scalars are strings: converting so many digits takes long.
_MAX_NUMBER_CHARS = 1000
# Numbers of YAML 1.1 that nobody intends: 010 is 8, 1:30 is 90, and there are 0x1F and 0b1.
_OTHER_BASE = re.compile(r"[-+]?0[^.]+\Z|.*:")

# The C loader is ten times as fast, but PyYAML may be built without it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_TAG_PREFIX = "tag:yaml.org,2002:"
_TEXT, _LIST, _MAPPING = _TAG_PREFIX + "str", _TAG_PREFIX + "seq", _TAG_PREFIX + "map"
_INTEGER, _FLOAT = _TAG_PREFIX + "int", _TAG_PREFIX + "float"
# Other unquoted scalars are strings, such as dates.
_PLAIN_TAGS = frozenset({_TAG_PREFIX + "null", _TAG_PREFIX + "bool", _INTEGER, _FLOAT})
_VALUE_NAMES: dict[object, str] = {True: "true", False: "false", None: "null"}


def parse(text: str, source: str, *, exact: bool = False) -> object:
    """Parse `text`; None if it has only comments. With `exact`, numbers with a decimal point become decimals.

    Raises:
        BadSetting: not valid YAML, a duplicate key, a tag, a number in another base than ten, or excessive
            aliases; names the line.
    """
    return _YamlParser(text, source, exact=exact).parse()


def find_lines(text: str) -> dict[KeyPath, int]:
    """Return the line of each value in valid YAML, except those within an alias."""
    found: dict[KeyPath, int] = {}
    _YamlParser(text, "", lines=found).parse()
    return found


class _YamlParser:
    def __init__(
        self, text: str, source: str, *, exact: bool = False, lines: dict[KeyPath, int] | None = None
    ) -> None:
        self._lines = lines
        self._exact = exact
        self._text = text
        self._source = source
        self._path: list[str | int] = []
        self._anchors: dict[str, tuple[object, int]] = {}
        self._size = 0
        self._aliased = 0
        self._loader: Any = None

    def parse(self) -> object:
        self._next_event()
        if isinstance(self._next_event(), yaml.StreamEndEvent):
            return None
        event = self._next_event()
        self._record_line(event)
        value = self._parse_value(event)
        self._next_event()
        next_event = self._next_event()
        if not isinstance(next_event, yaml.StreamEndEvent):
            raise self._error("a second YAML document starts here; only one is allowed", next_event)
        return value

    def _next_event(self) -> Any:
        try:
            if self._loader is None:
                self._loader = _Loader(self._text)
            return self._loader.get_event()
        except yaml.MarkedYAMLError as error:
            raise self._syntax_error(error) from None
        except ReaderError:
            found = Reader.NON_PRINTABLE.search(self._text)
            line = None if found is None else self._text.count("\n", 0, found.start()) + 1
            reason = "contains a control character; write it in double quotes as an escape such as \\x1b"
            raise BadSetting(self._source, reason, line=line, key=format_key_path(tuple(self._path))) from None

    def _parse_value(self, event: Any) -> object:
        before = self._size
        self._size += 1
        match event:
            case yaml.ScalarEvent():
                value = self._parse_scalar(event)
            case yaml.SequenceStartEvent():
                value = self._parse_list(event)
            case yaml.MappingStartEvent():
                value = self._parse_mapping(event)
            case _:
                return self._resolve_alias(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = value, self._size - before
        return value

    def _parse_scalar(self, event: Any) -> object:
        text: str = event.value
        self._size += len(text)
        tag = self._scalar_tag(event)
        if tag == _TEXT:
            return text
        if _OTHER_BASE.match(text):
            reason = f"YAML does not read {text} as a decimal number"
            raise self._error(f"{reason}: write it in plain digits, or in quotes if it is a string", event)
        if tag == _FLOAT and self._exact:
            try:
                return _parse_decimal(text)
            except InvalidOperation:
                raise self._error("this number is out of range", event) from None
        return self._construct_scalar(tag, text)

    def _construct_scalar(self, tag: str, text: str) -> object:
        return self._loader.yaml_constructors[tag](self._loader, yaml.ScalarNode(tag, text))

    def _scalar_tag(self, event: Any) -> str:
        tag = _TEXT
        if not event.style and len(event.value) <= _MAX_NUMBER_CHARS:
            resolved = self._loader.resolve(yaml.ScalarNode, event.value, (True, False))
            tag = resolved if resolved in _PLAIN_TAGS else _TEXT
        if event.tag not in (None, "!", _TEXT, tag):
            raise self._tag_error(event)
        return _TEXT if event.tag in ("!", _TEXT) else tag

    def _parse_list(self, event: Any) -> list[object]:
        self._check_collection(event, _LIST)
        items: list[object] = []
        while not isinstance(event := self._next_event(), yaml.SequenceEndEvent):
            self._path.append(len(items))
            self._record_line(event)
            items.append(self._parse_value(event))
            self._path.pop()
        return items

    def _parse_mapping(self, event: Any) -> dict[str, object]:
        self._check_collection(event, _MAPPING)
        mapping: dict[str, object] = {}
        while not isinstance(event := self._next_event(), yaml.MappingEndEvent):
            key = self._parse_key(event)
            self._path.append(key)
            if key in mapping:
                raise self._error(f"duplicate key {key!r}", event)
            self._record_line(event)
            mapping[key] = self._parse_value(self._next_event())
            self._path.pop()
        return mapping

    def _parse_key(self, event: Any) -> str:
        if isinstance(event, yaml.ScalarEvent) and (tag := self._scalar_tag(event)) != _TEXT:
            self._path.append(event.value)
            is_number = tag in (_INTEGER, _FLOAT)
            read_as = "a number" if is_number else _VALUE_NAMES[self._construct_scalar(tag, event.value)]
            raise self._error(f"the key {event.value!r} is read as {read_as}: put it in quotes", event)
        # Collections are not parsed as keys: they could be nested without limit.
        key = None if isinstance(event, yaml.CollectionStartEvent) else self._parse_value(event)
        if isinstance(event, yaml.ScalarEvent) and not event.style and event.value == "<<":
            raise self._error("<< is not supported: write the keys out", event)
        if isinstance(key, str):
            return key
        raise self._error("a key must be a string, not a list or a mapping", event)

    def _resolve_alias(self, event: Any) -> object:
        if event.anchor not in self._anchors:
            raise self._error(f"the alias *{event.anchor} refers to no complete value before it", event)
        value, size = self._anchors[event.anchor]
        self._size += size
        self._aliased += size
        if self._aliased > max(MAX_ALIASED_CHARS, len(self._text)):
            raise self._error(
                f"with *{event.anchor} the aliases expand to too much data: write them out", event
            )
        return value

    def _check_collection(self, event: Any, expected_tag: str) -> None:
        if event.tag not in (None, "!", expected_tag):
            raise self._tag_error(event)
        if len(self._path) >= MAX_DEPTH:
            raise self._error(f"is nested more than {MAX_DEPTH} levels deep", event)

    def _record_line(self, event: Any) -> None:
        if self._lines is not None:
            self._lines[tuple(self._path)] = event.start_mark.line + 1

    def _error(self, reason: str, event: Any) -> BadSetting:
        return BadSetting(
            self._source,
            shorten_text(reason),
            line=event.start_mark.line + 1,
            key=format_key_path(tuple(self._path)),
        )

    def _tag_error(self, event: Any) -> BadSetting:
        tag = event.tag.replace(_TAG_PREFIX, "!!")
        return self._error(f"the tag {tag} is not supported: remove it", event)

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> BadSetting:
        position = error.problem_mark or error.context_mark
        line = None if position is None else position.line + 1
        reason = f"invalid YAML: {error.problem}"
        if error.context is not None and error.context_mark is not None:
            reason += f" {error.context} that starts on line {error.context_mark.line + 1}"
        if position is not None and _is_indented_by_a_tab(self._text, position.index):
            reason = "invalid YAML: this line is indented with a tab; use spaces"
        return BadSetting(self._source, reason, line=line, key=format_key_path(tuple(self._path)))


def _parse_decimal(text: str) -> Decimal:
    """YAML writes infinity and NaN with a leading dot."""
    return Decimal(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))


def _is_indented_by_a_tab(text: str, at: int) -> bool:
    start = text.rfind("\n", 0, at) + 1
    return "\t" in text[start : at + 1] and not text[start:at].strip()

"""YAML into plain data: null, true and false, numbers, texts, lists, and mappings whose keys are texts.

What the parser finds is put together here and not by PyYAML's constructors: those take the second of two equal
keys, let a few lines of aliases stand for gigabytes, and forget where anything stood.
"""

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.reader import Reader, ReaderError

from foveate.config.places import DEEPEST, Place, dotted, short
from foveate.errors import BadSetting

# Aliases may make a file as long again as it is, and a short one this long.
ALIASED_CHARS = 1_000_000
# What is longer is a text: no number of tokens has so many digits, and reading them takes its time.
_LONGEST_NUMBER_CHARS = 1000
# Numbers as YAML 1.1 has them and nobody means them: 010 is 8, 1:30 is 90, and there are 0x1F and 0b1.
_OTHER_BASE = re.compile(r"[-+]?0[^.]+\Z|.*:")

# Compiled, it is ten times as fast; where PyYAML came without it, the same in Python.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_STANDARD = "tag:yaml.org,2002:"
_TEXT, _LIST, _MAPPING = _STANDARD + "str", _STANDARD + "seq", _STANDARD + "map"
_INTEGER, _FLOAT = _STANDARD + "int", _STANDARD + "float"
_READ = SafeConstructor()
_READERS: dict[str, Callable[[yaml.ScalarNode], object]] = {
    _STANDARD + "null": _READ.construct_yaml_null,
    _STANDARD + "bool": _READ.construct_yaml_bool,
    _INTEGER: _READ.construct_yaml_int,
    _FLOAT: _READ.construct_yaml_float,
}
_READ_AS: dict[object, str] = {True: "true", False: "false", None: "null"}
# By first character, as PyYAML keeps them. Without those for dates: a day in a log is a text.
_PATTERNS = {
    first: [(tag, pattern) for tag, pattern in known if tag in _READERS]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read(text: str, source: str, *, exact: bool = False) -> object:
    """What `text` says; None where there are only comments.

    `exact`: numbers with a point are decimals, to the last digit.

    Raises:
        BadSetting: not YAML, a key twice, a tag, a number in another base than ten, or aliases out of
            proportion, with the line.
    """
    return _Reading(text, source, exact=exact).document()


def line(text: str, place: Place) -> int | None:
    """The line on which `place` stands in a text that can be read, or else what is around it."""
    reading = _Reading(text, "", wanted=place)
    reading.document()
    return reading.line


def lines(text: str) -> dict[Place, int]:
    """The line on which each thing stands in a text that can be read; of what an alias stands for, none."""
    found: dict[Place, int] = {}
    _Reading(text, "", found=found).document()
    return found


class _Reading:
    """One pass over a text."""

    def __init__(
        self,
        text: str,
        source: str,
        wanted: Place = (),
        *,
        exact: bool = False,
        found: dict[Place, int] | None = None,
    ) -> None:
        self.line: int | None = None
        self._found = found
        self._exact = exact
        self._text = text
        self._source = source
        self._wanted = wanted
        self._place: list[str | int] = []
        self._anchors: dict[str, tuple[object, int]] = {}
        self._size = 0
        self._aliased = 0
        self._loader: Any = None

    def document(self) -> object:
        self._next()
        if isinstance(self._next(), yaml.StreamEndEvent):
            return None
        event = self._next()
        self._pass(event)
        value = self._value(event)
        self._next()
        following = self._next()
        if not isinstance(following, yaml.StreamEndEvent):
            raise self._bad("a second document begins here; a file holds one", following)
        return value

    def _next(self) -> Any:
        try:
            if self._loader is None:
                self._loader = _Loader(self._text)
            return self._loader.get_event()
        except yaml.MarkedYAMLError as error:
            raise self._not_yaml(error) from None
        except ReaderError:
            found = Reader.NON_PRINTABLE.search(self._text)
            line = None if found is None else self._text.count("\n", 0, found.start()) + 1
            reason = "holds a control character; in double quotes it can be written as an escape such as \\x1b"
            raise BadSetting(self._source, reason, line=line, key=dotted(tuple(self._place))) from None

    def _value(self, event: Any) -> object:
        before = self._size
        self._size += 1
        match event:
            case yaml.ScalarEvent():
                value = self._scalar(event)
            case yaml.SequenceStartEvent():
                value = self._list(event)
            case yaml.MappingStartEvent():
                value = self._mapping(event)
            case _:
                return self._alias(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = value, self._size - before
        return value

    def _scalar(self, event: Any) -> object:
        text: str = event.value
        self._size += len(text)
        tag = self._tag(event)
        if tag == _TEXT:
            return text
        if _OTHER_BASE.match(text):
            reason = f"YAML takes {text} for a number in another base than ten"
            raise self._bad(f"{reason}: write it in plain digits, or put it in quotes if it is a text", event)
        if tag == _FLOAT and self._exact:
            try:
                return _decimal(text)
            except InvalidOperation:
                raise self._bad("a number that is larger or smaller than any that can be read", event) from None
        return _read_as(tag, text)

    def _tag(self, event: Any) -> str:
        """What a scalar is."""
        tag = _TEXT if event.style else _tag_of(event.value)
        if event.tag not in (None, "!", _TEXT, tag):
            raise self._tagged(event)
        return _TEXT if event.tag in ("!", _TEXT) else tag

    def _list(self, event: Any) -> list[object]:
        self._enter(event, _LIST)
        items: list[object] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            self._place.append(len(items))
            self._pass(event)
            items.append(self._value(event))
            self._place.pop()
        return items

    def _mapping(self, event: Any) -> dict[str, object]:
        self._enter(event, _MAPPING)
        mapping: dict[str, object] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._key(event)
            self._place.append(key)
            if key in mapping:
                raise self._bad(f"the key {key!r} stands here a second time", event)
            self._pass(event)
            mapping[key] = self._value(self._next())
            self._place.pop()
        return mapping

    def _key(self, event: Any) -> str:
        if isinstance(event, yaml.ScalarEvent) and (tag := self._tag(event)) != _TEXT:
            self._place.append(event.value)
            read_as = "a number" if tag in (_INTEGER, _FLOAT) else _READ_AS[_read_as(tag, event.value)]
            raise self._bad(f"the key {event.value!r} is read as {read_as}: put it in quotes", event)
        # Not read first: keys may be nested in keys.
        key = None if isinstance(event, yaml.CollectionStartEvent) else self._value(event)
        if isinstance(event, yaml.ScalarEvent) and not event.style and event.value == "<<":
            raise self._bad("<< is not supported: write the keys out", event)
        if isinstance(key, str):
            return key
        raise self._bad("a key is a text, not a list or a mapping", event)

    def _alias(self, event: Any) -> object:
        if event.anchor not in self._anchors:
            raise self._bad(f"*{event.anchor} stands for nothing that is complete before it", event)
        value, size = self._anchors[event.anchor]
        self._size += size
        self._aliased += size
        if self._aliased > max(ALIASED_CHARS, len(self._text)):
            raise self._bad(f"with *{event.anchor} the aliases stand for too much: write it out", event)
        return value

    def _enter(self, event: Any, own: str) -> None:
        if event.tag not in (None, "!", own):
            raise self._tagged(event)
        if len(self._place) >= DEEPEST:
            raise self._bad(f"is nested more than {DEEPEST} deep", event)

    def _pass(self, event: Any) -> None:
        """Remember the line, if this is on the way to what is looked for."""
        if self._found is not None:
            self._found[tuple(self._place)] = event.start_mark.line + 1
        depth = len(self._place)
        if depth <= len(self._wanted) and tuple(self._place) == self._wanted[:depth]:
            self.line = event.start_mark.line + 1

    def _bad(self, reason: str, event: Any) -> BadSetting:
        return BadSetting(
            self._source, short(reason), line=event.start_mark.line + 1, key=dotted(tuple(self._place))
        )

    def _tagged(self, event: Any) -> BadSetting:
        tag = event.tag.replace(_STANDARD, "!!")
        return self._bad(f"the tag {tag} is not supported: leave it out", event)

    def _not_yaml(self, error: yaml.MarkedYAMLError) -> BadSetting:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        reason = f"not YAML: {error.problem}"
        if error.context is not None and error.context_mark is not None:
            reason += f" {error.context} that begins on line {error.context_mark.line + 1}"
        if mark is not None and _is_indented_by_a_tab(self._text, mark.index):
            reason = "not YAML: a tab indents this line; use spaces"
        return BadSetting(self._source, reason, line=line, key=dotted(tuple(self._place)))


def _tag_of(text: str) -> str:
    """What a text without quotes is."""
    if len(text) > _LONGEST_NUMBER_CHARS:
        return _TEXT
    return next((tag for tag, pattern in _PATTERNS.get(text[:1], ()) if pattern.match(text)), _TEXT)


def _read_as(tag: str, text: str) -> object:
    return _READERS[tag](yaml.ScalarNode(tag, text))


def _decimal(text: str) -> Decimal:
    """A number as it is written, where YAML writes infinity and no number with a point in front."""
    return Decimal(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))


def _is_indented_by_a_tab(text: str, at: int) -> bool:
    start = text.rfind("\n", 0, at) + 1
    return "\t" in text[start : at + 1] and not text[start:at].strip()

"""Front matter: what a Markdown file says of itself at its top.

It is in YAML between `---`, in TOML between `+++`, or in JSON between braces.

What stands there is for privacy too. So where it cannot be read, or is read as something else than was meant
(`tags: #private` is a comment to YAML), a privacy tag that it mentions is taken for one.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from typing import Any, NamedTuple

import yaml

from foveate.memory.doubts import among, meant_in_heading, mentioned, mentions
from foveate.memory.gate import Gate
from foveate.memory.outline import NO_PROPERTIES, Stamp, StampKind
from foveate.memory.stamps import read_stamp

# What is longer is a text that begins with a line. So far, though, it may still say that it is private.
_LONGEST_CHARS = 65_536
_DOUBTFUL_CHARS = 1 << 20
_DEEPEST = 50

_OPENED = re.compile(r"(---|\+\+\+)[ \t]*\r?\n")
# What was meant as front matter, but has something before it, or a line that is too long or not quite one.
_ODDLY_OPENED = re.compile(
    r"(?:[\s\ufeff]|<!--(?:(?!-->).)*+-->|%%(?:(?!%%).)*+%%)*+(-{3,}+|\+{3,}+)[^\S\n]*+\n\s*+", re.DOTALL
)
_ODDLY_CLOSED = re.compile(r"^[^\S\n]*+(?:-{3,}+|\+{3,}+|\.\.\.)[^\S\n]*$", re.MULTILINE)
_JSON = re.compile(r"\{\s*[\"}]")
_CLOSED = {
    "---": re.compile(r"^(?:---|\.\.\.)[ \t]*\r?$", re.MULTILINE),
    "+++": re.compile(r"^\+\+\+[ \t]*\r?$", re.MULTILINE),
}
_KEY = re.compile(r"[\w@-][\w @-]{0,60}[ \t]*[:=]")
_HEADING = re.compile(r"^#{1,6}[ \t]", re.MULTILINE)
# Signs that a value in YAML cannot begin with unless it is in quotes, though a tag can.
_BARE_VALUE = re.compile(
    r"^([ \t]*(?:-[ \t]+(?:[\w-]+:[ \t]+)?|[\w-]+:[ \t]+))([@#%][^\s'\"][^'\"\n]*)$", re.MULTILINE
)
_BARE_ITEM = re.compile(r"(?<=[\[,])([ \t]*)([@#%][^\s,\[\]'\"]+)")
_TAG_KEYS = frozenset({"TAGS", "TAG", "KEYWORDS", "FILETAGS"})
# A file may be called so without being so.
_NAMES = frozenset({"TITLE", "NAME", "ALIAS", "ALIASES"})
# Where a privacy tag may stand among others, though these are no tags otherwise.
_LIKE_TAG_KEYS = frozenset({"CATEGORY", "CATEGORIES", "LABEL", "LABELS", "TOPIC", "TOPICS", "GROUPS"})
# Without and with commas; what has a sign before it is a tag of its own anyhow.
_BETWEEN_TAGS = re.compile(r"\s+"), re.compile(r"[,;]\s*|(?<!\s)\s++(?:[,;]\s*|(?=[#@]))")
_NO = frozenset({"false", "no", "off", "0", "n", "f"})
_PLANNED = {kind.upper(): kind for kind in StampKind}

Value = Any
"""Texts, and lists and mappings of texts."""


class Front(NamedTuple):
    """What a file says of itself; `end` is where it ends, and `content` where the text begins."""

    end: int
    content: int
    title: str = ""
    properties: Mapping[str, str] = NO_PROPERTIES
    tags: tuple[str, ...] = ()
    stamps: tuple[Stamp, ...] = ()
    problems: tuple[str, ...] = ()


class _Broken(Exception):
    """Neither YAML nor TOML; its text says why."""


def read_front(text: str, gate: Gate) -> Front:
    """The front matter of a text, if it has any; a byte order mark before it is passed over."""
    start = 1 if text[:1] == "\ufeff" else 0
    nothing = Front(start, start)
    opened = _OPENED.match(text, start)
    if not opened:
        return _in_json(text, nothing, gate) if _JSON.match(text, start) else _odd(text, nothing, gate)
    limit = min(len(text), opened.end() + _DOUBTFUL_CHARS)
    closed = _CLOSED[opened[1]].search(text, opened.end(), limit)
    if not closed or closed.start() > opened.end() + _LONGEST_CHARS:
        return _unclosed(text[opened.end() : closed.start() if closed else limit], nothing, gate)
    said = text[opened.end() : closed.start()]
    end = text.find("\n", closed.end()) + 1 or len(text)
    try:
        pairs = _toml(said) if opened[1] == "+++" else _yaml(said)
    except _Broken as broken:
        # With headings in it, it is rather a text between two lines.
        bounds = nothing if _HEADING.search(said) else Front(end, start)
        tag = mentioned(said, gate)
        return bounds._replace(tags=(tag,) if tag else (), problems=(f"the front matter is broken: {broken}",))
    if pairs is None:
        tag = mentioned(said, gate)
        return nothing._replace(tags=(tag,) if tag else ())
    return _read(pairs, said, Front(end, end), gate)


def _odd(text: str, nothing: Front, gate: Gate) -> Front:
    """A text with no front matter; or with what is meant as such, of which only a privacy tag counts."""
    opened = _ODDLY_OPENED.match(text, 0, _DOUBTFUL_CHARS)
    if not opened or not _KEY.match(text, opened.end()):
        return nothing
    limit = opened.end() + _LONGEST_CHARS
    closed = _ODDLY_CLOSED.search(text, opened.end(), limit)
    if not closed:
        return _unclosed(text[opened.end() : limit], nothing, gate)
    fence = opened[1][:3]
    meant = read_front(f"{fence}\n{text[opened.end() : closed.start()]}{fence}\n", gate)
    return nothing._replace(tags=tuple(filter(gate.is_private, meant.tags)))


def _in_json(text: str, nothing: Front, gate: Gate) -> Front:
    """Front matter in JSON, with nothing behind it on its last line; or a text that begins with a brace."""
    start = nothing.end
    try:
        pairs, end = _json(text[start : start + _LONGEST_CHARS])
    except _Broken as broken:
        said = text[start : start + _DOUBTFUL_CHARS]
        heading = _HEADING.search(said)
        tag = mentioned(said[: heading.start()] if heading else said, gate)
        return nothing._replace(tags=(tag,) if tag else (), problems=(f"the front matter is broken: {broken}",))
    after = text.find("\n", start + end) + 1 or len(text)
    if text[start + end : after].strip():
        tag = mentioned(text[start : start + end], gate)
        return nothing._replace(tags=(tag,) if tag else ())
    return _read(pairs, text[start : start + end], Front(after, after), gate)


def _unclosed(said: str, nothing: Front, gate: Gate) -> Front:
    """A text that begins with a line; or front matter whose end was forgotten, if there is a key."""
    if not _KEY.match(said):
        return nothing
    heading = _HEADING.search(said)
    tag = mentioned(said[: heading.start()] if heading else said, gate)
    return nothing._replace(tags=(tag,) if tag else (), problems=("the front matter has no end",))


def _read(pairs: Sequence[tuple[str, Value]], said: str, bounds: Front, gate: Gate) -> Front:
    properties: dict[str, str] = {}
    tags: list[str] = []
    stamps, problems = [], []
    for name, value in pairs:
        key = name.strip().upper()
        properties.setdefault(key, _text(value))
        if key in _TAG_KEYS:
            tags += _tags(value)
        elif key in _PLANNED and _text(value).strip():
            stamp, problem = read_stamp(_PLANNED[key], _text(value).strip("<>[] "))
            stamps += [stamp] if stamp else []
            problems += [problem] if problem else []
        elif (key == "PRIVATE" or gate.is_private(name)) and _text(value).strip().casefold() not in _NO:
            tags.append(name.strip())
    if mentions(said, gate) and not any(map(gate.is_private, tags)):
        tag = _meant(pairs, tags, said, gate)
        tags += [tag] if tag else []
    return bounds._replace(
        title=" ".join(properties.get("TITLE", "").split()),
        properties=properties,
        tags=tuple(dict.fromkeys(tags)),
        stamps=tuple(stamps),
        problems=tuple(problems),
    )


def _meant(pairs: Sequence[tuple[str, Value]], tags: Sequence[str], said: str, gate: Gate) -> str:
    """A privacy tag that is a part of a tag, or all of another value, or is marked as one; or nothing."""
    if found := among(tags, gate):
        return found
    for name, value in pairs:
        key = name.strip().upper()
        if key in _LIKE_TAG_KEYS and (found := among(_tags(value), gate)):
            return found
        if key not in _NAMES and (found := next(filter(gate.is_private, _leaves(value)), "")):
            return found.strip().strip(":#")
    lines = (line for line in said.splitlines() if "#" in line or ":" in line)
    return next((tag for line in lines if (tag := _marked(line, gate))), "")


def _marked(line: str, gate: Gate) -> str:
    """A privacy tag that is marked as one in the value of a line, or in a comment."""
    key = _KEY.match(line.strip())
    return meant_in_heading(line.strip()[key.end() :] if key else line, gate)


def _tags(value: Value) -> list[str]:
    """Tags from a list, or from a text that has them one after the other; with commas, they may have blanks."""
    if isinstance(value, str):
        has_commas = "," in value or ";" in value
        said: Iterable[str] = _BETWEEN_TAGS[has_commas].split(value)
    else:
        said = _leaves(value)
    return [tag for each in said for tag in [each.strip().strip("#:").strip()] if tag]


def _leaves(value: Value) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _leaves(item)
        case dict():
            for key, item in value.items():
                yield key
                yield from _leaves(item)


def _text(value: Value) -> str:
    match value:
        case str():
            return value
        case list():
            return ", ".join(map(_text, value))
        case _:
            return json.dumps(value, ensure_ascii=False)


def _yaml(said: str) -> list[tuple[str, Value]] | None:
    """The pairs of a mapping, all of them texts, since `2026-02-31` and `no` are; None where it is none."""
    said = _BARE_VALUE.sub(_quoted, said)
    try:
        return _composed(said)
    except _Broken:
        bare = _BARE_ITEM.sub(_quoted, said)
        if bare == said:
            raise
    return _composed(bare)


def _quoted(found: re.Match[str]) -> str:
    return f"{found[1]}'{found[2].rstrip()}'"


def _composed(said: str) -> list[tuple[str, Value]] | None:
    """The same, from a text in which everything is quoted that must be."""
    if not said.strip():
        return []
    # By the events: PyYAML's own constructors go as deep as they are led, and let aliases stand for gigabytes.
    found: list[tuple[str, Value]] | None = None
    open_: list[list[Value]] = [[]]
    try:
        for event in yaml.parse(said, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)):
            match event:
                case yaml.ScalarEvent():
                    open_[-1].append(event.value)
                case yaml.CollectionStartEvent():
                    if len(open_) > _DEEPEST:
                        raise _Broken(f"it is nested more than {_DEEPEST} deep")
                    open_.append([])
                case yaml.SequenceEndEvent():
                    items = open_.pop()
                    open_[-1].append(items)
                case yaml.MappingEndEvent():
                    items = open_.pop()
                    pairs = [(_text(key), value) for key, value in zip(items[::2], items[1::2], strict=True)]
                    open_[-1].append(dict(pairs))
                    found = pairs if len(open_) == 1 else found
                case yaml.AliasEvent():
                    raise _Broken(f"it has an alias, *{event.anchor}")
    except yaml.MarkedYAMLError as error:
        line = f" in its line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise _Broken(f"{error.problem}{line}") from None
    except (yaml.YAMLError, UnicodeError):
        raise _Broken("it has characters that YAML does not allow") from None
    return found


def _toml(said: str) -> list[tuple[str, Value]]:
    try:
        return [(key, _plain(value)) for key, value in tomllib.loads(said.replace("\r\n", "\n")).items()]
    except tomllib.TOMLDecodeError as error:
        raise _Broken(str(error)) from None
    except RecursionError:
        raise _Broken("it is nested too deep") from None


def _json(said: str) -> tuple[list[tuple[str, Value]], int]:
    """The pairs of the object that a text begins with, and where that ends."""
    decoder = json.JSONDecoder(object_pairs_hook=_once_each, parse_int=str, parse_float=str)
    try:
        value, end = decoder.raw_decode(said)
        return [(key, _plain(item)) for key, item in value.items()], end
    except ValueError as error:
        raise _Broken(str(error)) from None
    except RecursionError:
        raise _Broken("it is nested too deep") from None


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Broken("it has a key twice")
    return found


def _plain(value: object, depth: int = 0) -> Value:
    """A value of TOML or JSON with nothing but texts in it."""
    if depth > _DEEPEST:
        raise _Broken(f"it is nested more than {_DEEPEST} deep")
    match value:
        case list():
            return [_plain(item, depth + 1) for item in value]
        case dict():
            return {key: _plain(item, depth + 1) for key, item in value.items()}
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case datetime():
            return value.isoformat(" ")
        case date() | time():
            return value.isoformat()
        case _:
            return str(value)

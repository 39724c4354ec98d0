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

from foveate.memory.parsing.org_syntax import parse_planning_date
from foveate.memory.parsing.outline import NO_PROPERTIES, PlanningDate, PlanningKind
from foveate.memory.parsing.privacy_tags import (
    find_tag_in_heading,
    find_tag_in_list,
    find_tag_in_text,
    mentions_privacy_tag,
)
from foveate.memory.privacy import Gate

# What is longer is a text that begins with a line. So far, though, it may still say that it is private.
_MAX_FRONT_MATTER_CHARS = 65_536
_MAX_SEARCHED_CHARS = 1 << 20
_MAX_NESTING = 50

_OPENING = re.compile(r"(---|\+\+\+)[ \t]*\r?\n")
# What was meant as front matter, but has something before it, or a line that is too long or not quite one.
_MALFORMED_OPENING = re.compile(
    r"(?:[\s\ufeff]|<!--(?:(?!-->).)*+-->|%%(?:(?!%%).)*+%%)*+(-{3,}+|\+{3,}+)[^\S\n]*+\n\s*+", re.DOTALL
)
_MALFORMED_CLOSING = re.compile(r"^[^\S\n]*+(?:-{3,}+|\+{3,}+|\.\.\.)[^\S\n]*$", re.MULTILINE)
_JSON = re.compile(r"\{\s*[\"}]")
_CLOSINGS = {
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
_NAME_KEYS = frozenset({"TITLE", "NAME", "ALIAS", "ALIASES"})
# Where a privacy tag may stand among others, though these are no tags otherwise.
_LIKE_TAG_KEYS = frozenset({"CATEGORY", "CATEGORIES", "LABEL", "LABELS", "TOPIC", "TOPICS", "GROUPS"})
# Without and with commas; what has a sign before it is a tag of its own anyhow.
_BETWEEN_TAGS = re.compile(r"\s+"), re.compile(r"[,;]\s*|(?<!\s)\s++(?:[,;]\s*|(?=[#@]))")
_FALSE_VALUES = frozenset({"false", "no", "off", "0", "n", "f"})
_PLANNING_KEYS = {kind.upper(): kind for kind in PlanningKind}

Value = Any
"""Texts, and lists and mappings of texts."""


class FrontMatter(NamedTuple):
    """What a file says of itself; `end` is where it ends, and `content` where the text begins."""

    end: int
    content: int
    title: str = ""
    properties: Mapping[str, str] = NO_PROPERTIES
    tags: tuple[str, ...] = ()
    planning_dates: tuple[PlanningDate, ...] = ()
    problems: tuple[str, ...] = ()


class _InvalidFrontMatter(Exception):
    """Neither YAML nor TOML; its text says why."""


def parse_front_matter(text: str, gate: Gate) -> FrontMatter:
    """The front matter of a text, if it has any; a byte order mark before it is passed over."""
    start = 1 if text[:1] == "\ufeff" else 0
    empty = FrontMatter(start, start)
    opened = _OPENING.match(text, start)
    if not opened:
        return (
            _parse_json_block(text, empty, gate)
            if _JSON.match(text, start)
            else _parse_malformed(text, empty, gate)
        )
    limit = min(len(text), opened.end() + _MAX_SEARCHED_CHARS)
    closed = _CLOSINGS[opened[1]].search(text, opened.end(), limit)
    if not closed or closed.start() > opened.end() + _MAX_FRONT_MATTER_CHARS:
        return _parse_unclosed(text[opened.end() : closed.start() if closed else limit], empty, gate)
    source = text[opened.end() : closed.start()]
    end = text.find("\n", closed.end()) + 1 or len(text)
    try:
        pairs = _parse_toml(source) if opened[1] == "+++" else _parse_yaml(source)
    except _InvalidFrontMatter as broken:
        # With headings in it, it is rather a text between two lines.
        bounds = empty if _HEADING.search(source) else FrontMatter(end, start)
        tag = find_tag_in_text(source, gate)
        return bounds._replace(tags=(tag,) if tag else (), problems=(f"the front matter is broken: {broken}",))
    if pairs is None:
        tag = find_tag_in_text(source, gate)
        return empty._replace(tags=(tag,) if tag else ())
    return _interpret_pairs(pairs, source, FrontMatter(end, end), gate)


def _parse_malformed(text: str, empty: FrontMatter, gate: Gate) -> FrontMatter:
    """A text with no front matter; or with what is meant as such, of which only a privacy tag counts."""
    opened = _MALFORMED_OPENING.match(text, 0, _MAX_SEARCHED_CHARS)
    if not opened or not _KEY.match(text, opened.end()):
        return empty
    limit = opened.end() + _MAX_FRONT_MATTER_CHARS
    closed = _MALFORMED_CLOSING.search(text, opened.end(), limit)
    if not closed:
        return _parse_unclosed(text[opened.end() : limit], empty, gate)
    fence = opened[1][:3]
    meant = parse_front_matter(f"{fence}\n{text[opened.end() : closed.start()]}{fence}\n", gate)
    return empty._replace(tags=tuple(filter(gate.is_private, meant.tags)))


def _parse_json_block(text: str, empty: FrontMatter, gate: Gate) -> FrontMatter:
    """Front matter in JSON, with nothing behind it on its last line; or a text that begins with a brace."""
    start = empty.end
    try:
        pairs, end = _parse_json(text[start : start + _MAX_FRONT_MATTER_CHARS])
    except _InvalidFrontMatter as broken:
        source = text[start : start + _MAX_SEARCHED_CHARS]
        heading = _HEADING.search(source)
        tag = find_tag_in_text(source[: heading.start()] if heading else source, gate)
        return empty._replace(tags=(tag,) if tag else (), problems=(f"the front matter is broken: {broken}",))
    after = text.find("\n", start + end) + 1 or len(text)
    if text[start + end : after].strip():
        tag = find_tag_in_text(text[start : start + end], gate)
        return empty._replace(tags=(tag,) if tag else ())
    return _interpret_pairs(pairs, text[start : start + end], FrontMatter(after, after), gate)


def _parse_unclosed(source: str, empty: FrontMatter, gate: Gate) -> FrontMatter:
    """A text that begins with a line; or front matter whose end was forgotten, if there is a key."""
    if not _KEY.match(source):
        return empty
    heading = _HEADING.search(source)
    tag = find_tag_in_text(source[: heading.start()] if heading else source, gate)
    return empty._replace(tags=(tag,) if tag else (), problems=("the front matter has no end",))


def _interpret_pairs(
    pairs: Sequence[tuple[str, Value]], source: str, bounds: FrontMatter, gate: Gate
) -> FrontMatter:
    properties: dict[str, str] = {}
    tags: list[str] = []
    stamps, problems = [], []
    for name, value in pairs:
        key = name.strip().upper()
        properties.setdefault(key, _to_text(value))
        if key in _TAG_KEYS:
            tags += _parse_tags(value)
        elif key in _PLANNING_KEYS and _to_text(value).strip():
            stamp, problem = parse_planning_date(_PLANNING_KEYS[key], _to_text(value).strip("<>[] "))
            stamps += [stamp] if stamp else []
            problems += [problem] if problem else []
        elif (key == "PRIVATE" or gate.is_private(name)) and _to_text(
            value
        ).strip().casefold() not in _FALSE_VALUES:
            tags.append(name.strip())
    if mentions_privacy_tag(source, gate) and not any(map(gate.is_private, tags)):
        tag = _find_suspected_tag(pairs, tags, source, gate)
        tags += [tag] if tag else []
    return bounds._replace(
        title=" ".join(properties.get("TITLE", "").split()),
        properties=properties,
        tags=tuple(dict.fromkeys(tags)),
        planning_dates=tuple(stamps),
        problems=tuple(problems),
    )


def _find_suspected_tag(
    pairs: Sequence[tuple[str, Value]], tags: Sequence[str], source: str, gate: Gate
) -> str:
    """A privacy tag that is a part of a tag, or all of another value, or is marked as one; or nothing."""
    if found := find_tag_in_list(tags, gate):
        return found
    for name, value in pairs:
        key = name.strip().upper()
        if key in _LIKE_TAG_KEYS and (found := find_tag_in_list(_parse_tags(value), gate)):
            return found
        if key not in _NAME_KEYS and (found := next(filter(gate.is_private, _leaf_texts(value)), "")):
            return found.strip().strip(":#")
    lines = (line for line in source.splitlines() if "#" in line or ":" in line)
    return next((tag for line in lines if (tag := _find_marked_tag(line, gate))), "")


def _find_marked_tag(line: str, gate: Gate) -> str:
    """A privacy tag that is marked as one in the value of a line, or in a comment."""
    key = _KEY.match(line.strip())
    return find_tag_in_heading(line.strip()[key.end() :] if key else line, gate)


def _parse_tags(value: Value) -> list[str]:
    """Tags from a list, or from a text that has them one after the other; with commas, they may have blanks."""
    if isinstance(value, str):
        has_commas = "," in value or ";" in value
        parts: Iterable[str] = _BETWEEN_TAGS[has_commas].split(value)
    else:
        parts = _leaf_texts(value)
    return [tag for each in parts for tag in [each.strip().strip("#:").strip()] if tag]


def _leaf_texts(value: Value) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _leaf_texts(item)
        case dict():
            for key, item in value.items():
                yield key
                yield from _leaf_texts(item)


def _to_text(value: Value) -> str:
    match value:
        case str():
            return value
        case list():
            return ", ".join(map(_to_text, value))
        case _:
            return json.dumps(value, ensure_ascii=False)


def _parse_yaml(source: str) -> list[tuple[str, Value]] | None:
    """The pairs of a mapping, all of them texts, since `2026-02-31` and `no` are; None where it is none."""
    source = _BARE_VALUE.sub(_quote_value, source)
    try:
        return _parse_quoted_yaml(source)
    except _InvalidFrontMatter:
        bare = _BARE_ITEM.sub(_quote_value, source)
        if bare == source:
            raise
    return _parse_quoted_yaml(bare)


def _quote_value(found: re.Match[str]) -> str:
    return f"{found[1]}'{found[2].rstrip()}'"


def _parse_quoted_yaml(source: str) -> list[tuple[str, Value]] | None:
    """The same, from a text in which everything is quoted that must be."""
    if not source.strip():
        return []
    # By the events: PyYAML's own constructors go as deep as they are led, and let aliases stand for gigabytes.
    found: list[tuple[str, Value]] | None = None
    open_: list[list[Value]] = [[]]
    try:
        for event in yaml.parse(source, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)):
            match event:
                case yaml.ScalarEvent():
                    open_[-1].append(event.value)
                case yaml.CollectionStartEvent():
                    if len(open_) > _MAX_NESTING:
                        raise _InvalidFrontMatter(f"it is nested more than {_MAX_NESTING} deep")
                    open_.append([])
                case yaml.SequenceEndEvent():
                    items = open_.pop()
                    open_[-1].append(items)
                case yaml.MappingEndEvent():
                    items = open_.pop()
                    pairs = [(_to_text(key), value) for key, value in zip(items[::2], items[1::2], strict=True)]
                    open_[-1].append(dict(pairs))
                    found = pairs if len(open_) == 1 else found
                case yaml.AliasEvent():
                    raise _InvalidFrontMatter(f"it has an alias, *{event.anchor}")
    except yaml.MarkedYAMLError as error:
        line = f" in its line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise _InvalidFrontMatter(f"{error.problem}{line}") from None
    except (yaml.YAMLError, UnicodeError):
        raise _InvalidFrontMatter("it has characters that YAML does not allow") from None
    return found


def _parse_toml(source: str) -> list[tuple[str, Value]]:
    try:
        return [(key, _to_texts(value)) for key, value in tomllib.loads(source.replace("\r\n", "\n")).items()]
    except tomllib.TOMLDecodeError as error:
        raise _InvalidFrontMatter(str(error)) from None
    except RecursionError:
        raise _InvalidFrontMatter("it is nested too deep") from None


def _parse_json(source: str) -> tuple[list[tuple[str, Value]], int]:
    """The pairs of the object that a text begins with, and where that ends."""
    decoder = json.JSONDecoder(object_pairs_hook=_reject_duplicate_keys, parse_int=str, parse_float=str)
    try:
        value, end = decoder.raw_decode(source)
        return [(key, _to_texts(item)) for key, item in value.items()], end
    except ValueError as error:
        raise _InvalidFrontMatter(str(error)) from None
    except RecursionError:
        raise _InvalidFrontMatter("it is nested too deep") from None


def _reject_duplicate_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _InvalidFrontMatter("it has a key twice")
    return found


def _to_texts(value: object, depth: int = 0) -> Value:
    """A value of TOML or JSON with nothing but texts in it."""
    if depth > _MAX_NESTING:
        raise _InvalidFrontMatter(f"it is nested more than {_MAX_NESTING} deep")
    match value:
        case list():
            return [_to_texts(item, depth + 1) for item in value]
        case dict():
            return {key: _to_texts(item, depth + 1) for key, item in value.items()}
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

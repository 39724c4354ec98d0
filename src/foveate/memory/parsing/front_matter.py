"""Parse the front matter of a Markdown file: YAML between `---`, TOML between `+++`, or JSON.

Front matter can have tags. If it cannot be parsed, or is parsed as something else than was meant (`tags: #a` is
a comment in YAML), any word in it may be one.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from typing import Any, NamedTuple

import yaml

from foveate.memory.parsing.outline import NO_PROPERTIES, PlanningDate, PlanningKind, parse_planning_date
from foveate.memory.parsing.tag_tokens import TagText, tags_in_heading, tags_in_list

# A longer block is text after a horizontal line. Up to the second limit it is still searched for tags.
_MAX_FRONT_MATTER_CHARS = 65_536
_MAX_SEARCHED_CHARS = 1 << 20
_MAX_NESTING = 50

_OPENING = re.compile(r"(---|\+\+\+)[ \t]*\r?\n")
# Meant as front matter, but with something before it, or with a longer or malformed fence.
_MALFORMED_OPENING = re.compile(
    r"(?>(?:[\s\ufeff]++|<!--.*?-->|%%.*?%%)*)(-{3,}+|\+{3,}+)[^\S\n]*+\n\s*+", re.DOTALL
)
_MALFORMED_CLOSING = re.compile(r"^[^\S\n]*+(?:-{3,}+|\+{3,}+|\.\.\.)[^\S\n]*$", re.MULTILINE)
_JSON = re.compile(r"\{\s*[\"}]")
_CLOSINGS = {
    "---": re.compile(r"^(?:---|\.\.\.)[ \t]*\r?$", re.MULTILINE),
    "+++": re.compile(r"^\+\+\+[ \t]*\r?$", re.MULTILINE),
}
_KEY = re.compile(r"[\w@-][\w @-]{0,60}[ \t]*[:=]")
_HEADING = re.compile(r"^#{1,6}[ \t]", re.MULTILINE)
# Characters that a YAML value cannot start with unless it is quoted, but a tag can.
_BARE_VALUE = re.compile(
    r"^([ \t]*(?:-[ \t]+(?:[\w-]+:[ \t]+)?|[\w-]+:[ \t]+))([@#%][^\s'\"][^'\"\n]*)$", re.MULTILINE
)
_BARE_ITEM = re.compile(r"(?<=[\[,])([ \t]*)([@#%][^\s,\[\]'\"]+)")
_TAG_KEYS = frozenset({"TAGS", "TAG", "KEYWORDS", "FILETAGS"})
# A file may have the name of a tag without having the tag.
_NAME_KEYS = frozenset({"TITLE", "NAME", "ALIAS", "ALIASES"})
# Keys whose values are not tags, but may contain one.
_LIKE_TAG_KEYS = frozenset({"CATEGORY", "CATEGORIES", "LABEL", "LABELS", "TOPIC", "TOPICS", "GROUPS"})
# Without and with commas; a word with a sign is a separate tag in any case.
_BETWEEN_TAGS = re.compile(r"\s+"), re.compile(r"[,;]\s*|(?<!\s)\s++(?:[,;]\s*|(?=[#@]))")
# `private: true` gives the file this tag.
_FLAG_KEYS = frozenset({"PRIVATE"})
_FALSE_VALUES = frozenset({"false", "no", "off", "0", "n", "f"})
_PLANNING_KEYS = {kind.upper(): kind for kind in PlanningKind}

Value = Any
"""Strings, and lists and mappings of strings."""


class FrontMatter(NamedTuple):
    """Front matter; `end` is its end, and `content` the start of the text."""

    end: int
    content: int
    title: str = ""
    properties: Mapping[str, str] = NO_PROPERTIES
    tags: tuple[str, ...] = ()
    planning_dates: tuple[PlanningDate, ...] = ()
    problems: tuple[str, ...] = ()
    pairs: Sequence[tuple[str, Value]] = ()
    source: str = ""
    """The text of the pairs, with their comments."""
    unparsed: str = ""
    """Text that was meant as front matter, or may have been, but is not used as such."""


class _InvalidFrontMatter(Exception):
    pass


def parse_front_matter(text: str) -> FrontMatter:
    """Parse the front matter of a text, after an optional byte order mark."""
    start = 1 if text[:1] == "\ufeff" else 0
    empty = FrontMatter(start, start)
    opened = _OPENING.match(text, start)
    if not opened:
        return _parse_json_block(text, empty) if _JSON.match(text, start) else _parse_malformed(text, empty)
    limit = min(len(text), opened.end() + _MAX_SEARCHED_CHARS)
    closed = _CLOSINGS[opened[1]].search(text, opened.end(), limit)
    if not closed or closed.start() > opened.end() + _MAX_FRONT_MATTER_CHARS:
        return _parse_unclosed(text[opened.end() : closed.start() if closed else limit], empty)
    source = text[opened.end() : closed.start()]
    end = text.find("\n", closed.end()) + 1 or len(text)
    try:
        pairs = _parse_toml(source) if opened[1] == "+++" else _parse_yaml(source)
    except _InvalidFrontMatter as broken:
        # With headings inside, it is text between two horizontal lines.
        bounds = empty if _HEADING.search(source) else FrontMatter(end, start)
        return bounds._replace(unparsed=source, problems=(f"the front matter is broken: {broken}",))
    if pairs is None:
        return empty._replace(unparsed=source)
    return _interpret_pairs(pairs, source, FrontMatter(end, end))


def _parse_malformed(text: str, empty: FrontMatter) -> FrontMatter:
    """Keep the tags of something that was meant as front matter, if there is any."""
    opened = _MALFORMED_OPENING.match(text, 0, _MAX_SEARCHED_CHARS)
    if not opened or not _KEY.match(text, opened.end()):
        return empty
    limit = opened.end() + _MAX_FRONT_MATTER_CHARS
    closed = _MALFORMED_CLOSING.search(text, opened.end(), limit)
    if not closed:
        return _parse_unclosed(text[opened.end() : limit], empty)
    fence = opened[1][:3]
    meant = parse_front_matter(f"{fence}\n{text[opened.end() : closed.start()]}{fence}\n")
    return empty._replace(pairs=meant.pairs, source=meant.source, unparsed=meant.unparsed)


def _parse_json_block(text: str, empty: FrontMatter) -> FrontMatter:
    """Parse front matter in JSON with nothing after it on its last line."""
    start = empty.end
    try:
        pairs, end = _parse_json(text[start : start + _MAX_FRONT_MATTER_CHARS])
    except _InvalidFrontMatter as broken:
        source = _before_heading(text[start : start + _MAX_SEARCHED_CHARS])
        return empty._replace(unparsed=source, problems=(f"the front matter is broken: {broken}",))
    after = text.find("\n", start + end) + 1 or len(text)
    if text[start + end : after].strip():
        return empty._replace(unparsed=text[start : start + end])
    return _interpret_pairs(pairs, text[start : start + end], FrontMatter(after, after))


def _parse_unclosed(source: str, empty: FrontMatter) -> FrontMatter:
    """Handle front matter without an end, if it starts with a key."""
    if not _KEY.match(source):
        return empty
    return empty._replace(unparsed=_before_heading(source), problems=("the front matter has no end",))


def _before_heading(source: str) -> str:
    heading = _HEADING.search(source)
    return source[: heading.start()] if heading else source


def _interpret_pairs(pairs: Sequence[tuple[str, Value]], source: str, bounds: FrontMatter) -> FrontMatter:
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
        elif key in _FLAG_KEYS and not _is_false(value):
            tags.append(name.strip())
    return bounds._replace(
        title=" ".join(properties.get("TITLE", "").split()),
        properties=properties,
        tags=tuple(dict.fromkeys(tags)),
        planning_dates=tuple(stamps),
        problems=tuple(problems),
        pairs=pairs,
        source=source,
    )


def tags_in_front_matter(front_matter: FrontMatter) -> Iterator[TagText]:
    """Texts that may be meant as tags of the file: as part of a tag, as a key or a whole value, or marked."""
    yield TagText(front_matter.unparsed)
    for name, value in front_matter.pairs:
        key = name.strip().upper()
        if key in _TAG_KEYS or key in _LIKE_TAG_KEYS:
            yield from tags_in_list(_parse_tags(value))
        if key not in _TAG_KEYS and key not in _PLANNING_KEYS and not _is_false(value):
            yield TagText(name, is_whole=True)
        if key not in _NAME_KEYS:
            yield from (TagText(text, is_whole=True) for text in _leaf_texts(value))
    for line in front_matter.source.splitlines():
        if "#" in line or ":" in line:
            text = line.strip()
            key_match = _KEY.match(text)
            yield from tags_in_heading(text[key_match.end() :] if key_match else line)


def _is_false(value: Value) -> bool:
    return _to_text(value).strip().casefold() in _FALSE_VALUES


def _parse_tags(value: Value) -> list[str]:
    """Tags from a list, or from a text separated by spaces or commas."""
    if isinstance(value, str):
        has_commas = "," in value or ";" in value
        parts: Iterable[str] = _BETWEEN_TAGS[has_commas].split(value)
    else:
        parts = _leaf_texts(value)
    return [tag for part in parts for tag in [part.strip().strip("#:").strip()] if tag]


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
    """The pairs of a mapping, with all values as strings (`2026-02-31`, `no`); None if it is not a mapping."""
    source = _BARE_VALUE.sub(_quote_value, source)
    try:
        return _parse_quoted_yaml(source)
    except _InvalidFrontMatter:
        bare = _BARE_ITEM.sub(_quote_value, source)
        if bare == source:
            raise
    return _parse_quoted_yaml(bare)


def _quote_value(match: re.Match[str]) -> str:
    return f"{match[1]}'{match[2].rstrip()}'"


def _parse_quoted_yaml(source: str) -> list[tuple[str, Value]] | None:
    if not source.strip():
        return []
    # Uses events: PyYAML's constructors allow any nesting, and aliases that expand to gigabytes.
    top_level_pairs: list[tuple[str, Value]] | None = None
    open_collections: list[list[Value]] = [[]]
    try:
        for event in yaml.parse(source, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)):
            match event:
                case yaml.ScalarEvent():
                    open_collections[-1].append(event.value)
                case yaml.CollectionStartEvent():
                    if len(open_collections) > _MAX_NESTING:
                        raise _InvalidFrontMatter(f"it is nested more than {_MAX_NESTING} deep")
                    open_collections.append([])
                case yaml.SequenceEndEvent():
                    items = open_collections.pop()
                    open_collections[-1].append(items)
                case yaml.MappingEndEvent():
                    items = open_collections.pop()
                    pairs = [(_to_text(key), value) for key, value in zip(items[::2], items[1::2], strict=True)]
                    open_collections[-1].append(dict(pairs))
                    top_level_pairs = pairs if len(open_collections) == 1 else top_level_pairs
                case yaml.AliasEvent():
                    raise _InvalidFrontMatter(f"it contains an alias, *{event.anchor}")
    except yaml.MarkedYAMLError as error:
        line = f" in its line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise _InvalidFrontMatter(f"{error.problem}{line}") from None
    except (yaml.YAMLError, UnicodeError):
        raise _InvalidFrontMatter("it contains characters that YAML does not allow") from None
    return top_level_pairs


def _parse_toml(source: str) -> list[tuple[str, Value]]:
    try:
        return [(key, _to_texts(value)) for key, value in tomllib.loads(source.replace("\r\n", "\n")).items()]
    except tomllib.TOMLDecodeError as error:
        raise _InvalidFrontMatter(str(error)) from None
    except RecursionError:
        raise _InvalidFrontMatter("it is nested too deep") from None


def _parse_json(source: str) -> tuple[list[tuple[str, Value]], int]:
    decoder = json.JSONDecoder(object_pairs_hook=_reject_duplicate_keys, parse_int=str, parse_float=str)
    try:
        value, end = decoder.raw_decode(source)
        return [(key, _to_texts(item)) for key, item in value.items()], end
    except ValueError as error:
        raise _InvalidFrontMatter(str(error)) from None
    except RecursionError:
        raise _InvalidFrontMatter("it is nested too deep") from None


def _reject_duplicate_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise _InvalidFrontMatter("it contains a key twice")
    return mapping


def _to_texts(value: object, depth: int = 0) -> Value:
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

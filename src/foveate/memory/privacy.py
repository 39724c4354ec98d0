"""Privacy: removes private notes before anything else sees them.

Private text is removed, not marked, so that no reader can forget to skip it. The parsers know nothing about
privacy: they find everything that may be meant as a tag, and what it applies to. This module alone decides what
is private. In doubt, it removes more.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import msgspec

from foveate.errors import BadOption
from foveate.memory.parsing.outline import Outline, OutlineEntry, TagScope, TagToken
from foveate.memory.parsing.tag_tokens import WORD_SEPARATORS, normalize_text

DEFAULT_PRIVACY_TAGS = frozenset({"private", "@personal"})
"""The privacy tags unless the configuration names others."""


class PublicOutline(Outline, frozen=True):
    """An outline without private text. Only `Gate` creates one."""


class _PrivateTags(NamedTuple):
    """The privacy tags of a file that do not apply to the whole file, in order."""

    headings: Sequence[tuple[int, int]] = ()
    """Position, and level of the line if it may be meant as a heading; 0 if it applies to the heading above."""
    blocks: Sequence[int] = ()
    """Positions of tags in paragraphs, list items and table rows."""


class _PublicPart(NamedTuple):
    """An entry without its private end, and the private ranges in the rest of its content."""

    entry: OutlineEntry
    end: int
    cuts: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Gate:
    """Removes notes that have one of these tags, directly or by inheritance."""

    tags: frozenset[str] = DEFAULT_PRIVACY_TAGS

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", frozenset(map(normalize_tag, self.tags)))

    @classmethod
    def with_tags(cls, tags: Iterable[str], *, base: Iterable[str] = DEFAULT_PRIVACY_TAGS) -> Self:
        """A gate with the tags of the configuration and additional ones.

        Raises:
            BadOption: `tags` is a string instead of a list, or contains an invalid tag.
        """
        return cls(
            frozenset(normalize_tag(tag) for tag_group in (base, tags) for tag in _split_tags(tag_group))
        )

    def is_private(self, tag: str) -> bool:
        """Return whether a tag is one of these, in any case, with or without colons, or below one of them."""
        normalized = normalize_tag(tag)
        return normalized in self.tags or (
            "/" in normalized and any(normalized.startswith(f"{privacy_tag}/") for privacy_tag in self.tags)
        )

    def redact(self, outline: Outline) -> PublicOutline:
        """The public part of an outline, with a text that contains nothing else.

        A private entry is removed with everything below it. If anything is removed, so are all problems, which
        may quote it. If redaction fails for any reason, the whole file is private.
        """
        try:
            tags = self._find_private_tags(outline)
            if tags is None:
                return PublicOutline("", [])
            if not any(tags) and not any(map(self._has_private_tag, outline.entries)):
                return PublicOutline(outline.text, outline.entries, outline.problems)
            return self._remove_private(outline, tags)
        except Exception:  # noqa: BLE001 - text that could not be checked must not be shown
            return PublicOutline("", [])

    def _find_private_tags(self, outline: Outline) -> _PrivateTags | None:
        """The privacy tags in the text; None if the whole file is private."""
        if not outline.tokens or not self.mentions(outline.text):
            return _PrivateTags()
        headings: list[tuple[int, int]] = []
        blocks: list[int] = []
        for token in filter(self._is_private_token, outline.tokens.find(self.mentions)):
            match token.scope:
                case TagScope.HEADING:
                    headings.append((token.position, token.level))
                case TagScope.BLOCK:
                    blocks.append(token.position)
                case _:
                    return None
        return _PrivateTags(sorted(headings), sorted(blocks))

    def _is_private_token(self, token: TagToken) -> bool:
        if self.is_private(token.text):
            return True
        if token.is_whole or not self.mentions(token.text):
            return False
        if any(map(self.is_private, WORD_SEPARATORS.split(token.text))):
            return True
        normalized = normalize_text(token.text)
        # A tag of several words, or with a dot.
        return any(tag in normalized for tag in self.tags if WORD_SEPARATORS.search(tag))

    def mentions(self, text: str) -> bool:
        """Return whether a privacy tag occurs anywhere, even inside a word. If not, nothing is private."""
        normalized = normalize_text(text)
        return any(tag in normalized for tag in self.tags)

    def _has_private_tag(self, entry: OutlineEntry) -> bool:
        return any(map(self.is_private, entry.tags))

    def _remove_private(self, outline: Outline, tags: _PrivateTags) -> PublicOutline:
        entries = outline.entries
        if outline.title_entries and any(level == 1 for _, level in tags.headings):
            entries = [*outline.title_entries, *entries[1:]]  # the title has a private sibling
        parts: list[_PublicPart] = []
        hidden_level: int | None = None
        first = 0
        for entry in entries:
            after = bisect_left(tags.headings, (entry.end,), first)
            tags_in_entry, first = tags.headings[first:after], after
            if hidden_level is None or entry.level <= hidden_level:
                is_private = self._has_private_tag(entry) or _are_for_heading(tags_in_entry, entry)
                hidden_level = entry.level if is_private else None
                if not is_private:
                    end = tags_in_entry[0][0] if tags_in_entry else entry.end
                    parts.append(_PublicPart(entry, end, _find_cuts(outline, tags.blocks, entry, end)))
            for _, level in tags_in_entry:
                if level and (hidden_level is None or level < hidden_level):
                    hidden_level = level
        if first < len(tags.headings):
            raise ValueError("a tag is outside of every entry")
        return _join_parts(outline.text, parts)


def _are_for_heading(tags: Sequence[tuple[int, int]], entry: OutlineEntry) -> bool:
    """Return whether the tags in an entry apply to its heading, not to a line that may be meant as another."""
    if not tags:
        return False
    position, level = tags[0]
    return not level or position < entry.content


def _find_cuts(outline: Outline, blocks: Sequence[int], entry: OutlineEntry, end: int) -> list[tuple[int, int]]:
    cuts: list[tuple[int, int]] = []
    start = entry.content
    for position in blocks[bisect_left(blocks, entry.start) : bisect_left(blocks, end)]:
        if position < entry.content or not outline.tokens:
            raise ValueError("a block is outside of the content")
        if position >= start:
            begin, start = outline.tokens.find_block(position, start, end)
            cuts.append((begin, start))
    return cuts


def _join_parts(text: str, parts: Iterable[_PublicPart]) -> PublicOutline:
    pieces: list[str] = []
    moved: list[OutlineEntry] = []
    position = 0
    for entry, end, cuts in parts:
        starts = [entry.start, *(cut_end for _, cut_end in cuts)]
        ends = [*(cut_start for cut_start, _ in cuts), end]
        pieces += [text[piece_start:piece_end] for piece_start, piece_end in zip(starts, ends, strict=True)]
        shift = position - entry.start
        position += sum(ends) - sum(starts)
        start, body, content = entry.start + shift, entry.body + shift, entry.content + shift
        moved.append(msgspec.structs.replace(entry, start=start, body=body, content=content, end=position))
    return PublicOutline("".join(pieces), moved)


def _split_tags(tags: Iterable[str]) -> Iterator[str]:
    """Split tags written as in Org, `:one:two:`."""
    if isinstance(tags, str):
        raise BadOption(f"privacy tags must be a list, even for one tag: [{tags!r}]", path=("private",))
    for tag in tags:
        parts = [part for part in str(tag).split(":") if normalize_tag(part)]
        if not parts:
            raise BadOption(f"a privacy tag must be one word, not {tag!r}", path=("private",))
        yield from parts


def normalize_tag(tag: str) -> str:
    """Normalize a tag: without colons, in any case."""
    return normalize_text(tag).strip().strip(":#").strip()

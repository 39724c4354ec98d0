"""Privacy: removes private notes before anything else sees them.

Private text is removed, not marked, so that no reader can forget to skip it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self
from unicodedata import category

import msgspec

from foveate.errors import BadOption
from foveate.memory.parsing.outline import Outline, OutlineEntry
from foveate.tokens.unicode_normalization import normalize_unicode

DEFAULT_PRIVACY_TAGS = frozenset({"private", "@personal"})
"""The privacy tags unless the configuration names others."""


class PublicOutline(Outline, frozen=True):
    """An outline without private text. Only `Gate` creates one."""


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

        A private entry is removed with everything below it, and with its problems.
        """
        hidden_level: int | None = None
        public_entries: list[OutlineEntry] = []
        for entry in outline.entries:
            if hidden_level is not None and entry.level > hidden_level:
                continue
            hidden_level = entry.level if any(map(self.is_private, entry.tags)) else None
            if hidden_level is None:
                public_entries.append(entry)
        if len(public_entries) == len(outline.entries) and not outline.private_ranges:
            return PublicOutline(outline.text, outline.entries, outline.problems)
        return _join_public(outline, public_entries)


def _join_public(outline: Outline, entries: Iterable[OutlineEntry]) -> PublicOutline:
    """Join the entries without private ranges of their content, and adjust their positions."""
    pieces: list[str] = []
    moved, position = [], 0
    for entry in entries:
        first = bisect_left(outline.private_ranges, (entry.content,))
        cuts = outline.private_ranges[first : bisect_left(outline.private_ranges, (entry.end,))]
        ends = [entry.start, *(end for _, end in cuts)]
        starts = [*(start for start, _ in cuts), entry.end]
        pieces += [outline.text[start:end] for start, end in zip(ends, starts, strict=True)]
        shift = position - entry.start
        position += sum(starts) - sum(ends)
        start, body, content = entry.start + shift, entry.body + shift, entry.content + shift
        moved.append(msgspec.structs.replace(entry, start=start, body=body, content=content, end=position))
    return PublicOutline("".join(pieces), moved, ())


def _split_tags(tags: Iterable[str]) -> Iterator[str]:
    """Split tags written as in Org, `:one:two:`."""
    if isinstance(tags, str):
        raise BadOption(f"privacy tags must be a list, even for one tag: [{tags!r}]", path=("private",))
    for tag in tags:
        parts = [part for part in str(tag).split(":") if normalize_tag(part)]
        if not parts:
            raise BadOption(f"a privacy tag must be one word, not {tag!r}", path=("private",))
        yield from parts


def normalize_text(text: str) -> str:
    """Normalize a text for comparisons of tags: case, and characters that look the same."""
    if text.isascii():
        return text.lower()
    # A letter can be composed of two characters or have another width, and looks the same.
    text = normalize_unicode(text, "NFKC")
    # Soft hyphens and zero-width characters are invisible.
    unseen = [letter for letter in set(text) if category(letter) == "Cf"]
    seen = text.translate(dict.fromkeys(map(ord, unseen))) if unseen else text
    return normalize_unicode(seen.casefold(), "NFKC")


def normalize_tag(tag: str) -> str:
    """Normalize a tag: without colons, in any case."""
    return normalize_text(tag).strip().strip(":#").strip()

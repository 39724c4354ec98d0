"""Privacy: what of a memory may be seen at all.

Everything that is read goes through here before anybody else can look at it. What is private is not marked and
left to every reader to skip: it is gone, its text too, so that no reader can forget to.
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
"""What is private unless the configuration says otherwise."""


class PublicOutline(Outline, frozen=True):
    """An outline that has come through the gate. Nothing else makes one."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Lets through what has none of these tags, neither itself nor by what it stands in."""

    tags: frozenset[str] = DEFAULT_PRIVACY_TAGS

    def __post_init__(self) -> None:
        """However its tags are written, they are compared as `is_private` does."""
        object.__setattr__(self, "tags", frozenset(map(normalize_tag, self.tags)))

    @classmethod
    def with_tags(cls, tags: Iterable[str], *, base: Iterable[str] = DEFAULT_PRIVACY_TAGS) -> Self:
        """A gate for the tags of the configuration and those of a call, which only ever add to them.

        Raises:
            BadOption: a single text, which would be taken letter by letter, or a tag that is none.
        """
        return cls(frozenset(normalize_tag(tag) for given in (base, tags) for tag in _split_tags(given)))

    def is_private(self, tag: str) -> bool:
        """Whether a tag is one of these, with or without colons, in any case, or below one (`private/x`)."""
        normalized = normalize_tag(tag)
        return normalized in self.tags or (
            "/" in normalized and any(normalized.startswith(f"{each}/") for each in self.tags)
        )

    def redact(self, outline: Outline) -> PublicOutline:
        """What may be seen of `outline`, with a text that holds nothing else.

        A private entry takes everything below it along; what is wrong with it is not told either.
        """
        hidden_level: int | None = None
        kept: list[OutlineEntry] = []
        for entry in outline.entries:
            if hidden_level is not None and entry.level > hidden_level:
                continue
            hidden_level = entry.level if any(map(self.is_private, entry.tags)) else None
            if hidden_level is None:
                kept.append(entry)
        if len(kept) == len(outline.entries) and not outline.private_ranges:
            return PublicOutline(outline.text, outline.entries, outline.problems)
        return _join_public(outline, kept)


def _join_public(outline: Outline, entries: Iterable[OutlineEntry]) -> PublicOutline:
    """The entries without what is private in their content, with their places in a text of nothing else."""
    pieces: list[str] = []
    moved, at = [], 0
    for entry in entries:
        first = bisect_left(outline.private_ranges, (entry.content,))
        cuts = outline.private_ranges[first : bisect_left(outline.private_ranges, (entry.end,))]
        ends = [entry.start, *(end for _, end in cuts)]
        starts = [*(start for start, _ in cuts), entry.end]
        pieces += [outline.text[start:end] for start, end in zip(ends, starts, strict=True)]
        by = at - entry.start
        at += sum(starts) - sum(ends)
        start, body, content = entry.start + by, entry.body + by, entry.content + by
        moved.append(msgspec.structs.replace(entry, start=start, body=body, content=content, end=at))
    return PublicOutline("".join(pieces), moved, ())


def _split_tags(tags: Iterable[str]) -> Iterator[str]:
    """The tags one by one, also of those that are written as Org does: `:one:two:`."""
    if isinstance(tags, str):
        raise BadOption(f"privacy tags are a list, also where there is only one: [{tags!r}]", path=("private",))
    for tag in tags:
        parts = [part for part in str(tag).split(":") if normalize_tag(part)]
        if not parts:
            raise BadOption(f"a privacy tag is a word, not {tag!r}", path=("private",))
        yield from parts


def normalize_text(text: str) -> str:
    """A text as tags are compared: whatever its case, and all that looks the same is."""
    if text.isascii():
        return text.lower()
    # A letter can be written as two characters, or in another width; to a reader it is the same.
    text = normalize_unicode(text, "NFKC")
    # Nobody sees a soft hyphen or a blank without width.
    unseen = [letter for letter in set(text) if category(letter) == "Cf"]
    seen = text.translate(dict.fromkeys(map(ord, unseen))) if unseen else text
    return normalize_unicode(seen.casefold(), "NFKC")


def normalize_tag(tag: str) -> str:
    """A tag as tags are compared: with or without colons, whatever its case."""
    return normalize_text(tag).strip().strip(":#").strip()

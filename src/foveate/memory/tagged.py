"""Paragraphs and items of lists with a privacy tag in them, which note apps take for a tag of just these."""

import re
from collections.abc import Iterator

from foveate.memory.doubts import blank_code_and_links, find_at_tag, find_tag_in_word, mentions_privacy_tag
from foveate.memory.fences import CodeRanges
from foveate.memory.gate import Gate, normalize_text

_LINE_WITH_SIGN = re.compile(r"^[^\n#＃@＠:：]*+[#＃@＠:：].*$", re.MULTILINE)
_SIGNED_WORD = re.compile(r"[:#：＃]([^\s:#：＃]+)")
_LIST_ITEM = re.compile(r"[ \t>]*(?:[-+*]|\d{1,9}[.)])[ \t]+(?=\S)")
_TASK_STATE = re.compile(
    r"(?:\[[ xX/-]\]|TODO|DONE|LATER|NOW|DOING|NEXT|WAIT|WAITING|HOLD|STARTED|IN-PROGRESS|CANCELL?ED)(?!\S)"
)
_INDENT = re.compile(r"[ \t>]*")
# Settings, drawers, rows of a table: lines that are no part of a paragraph.
_STANDALONE_LINE = re.compile(r"[ \t>]*(?:\||#\+|:\S+:(?!\S))")
# Tags of HTML, and the signs around a comment in Obsidian.
_MARKUP = re.compile(r"<[^<>\n]*>|%%")
_OPENING_CHARS = "(*_~[{\"'"


def find_private_blocks(
    text: str, start: int, end: int, code: CodeRanges, gate: Gate
) -> Iterator[tuple[int, int]]:
    """Where the blocks between these places begin and end that have a privacy tag in them.

    In running text `#private` and `@personal` count. At the end of an item of a list, and anywhere in a task,
    `:private:` does as well, also at the end of a table's cell. With an item goes what stands below it; of a
    table it is the row.
    """
    if start >= end or not mentions_privacy_tag(text[start:end], gate):
        return
    for line in _LINE_WITH_SIGN.finditer(text, start, end):
        if line.start() < start or not mentions_privacy_tag(line[0], gate) or line.start() in code:
            continue
        if _is_private_line(blank_code_and_links(line[0]), gate):
            begin = _block_start(text, line.start(), start, code)
            start = _block_end(text, begin, line.end(), end, code)
            yield begin, start


def _is_private_line(line: str, gate: Gate) -> bool:
    line = _MARKUP.sub(" ", line)
    if line.lstrip(" \t>").startswith("|"):
        return any(_has_tag(cell, gate, is_ending=True, is_task=False) for cell in line.split("|"))
    item = _LIST_ITEM.match(line)
    is_task = bool(item and _TASK_STATE.match(line, item.end()))
    return _has_tag(line, gate, is_ending=bool(item), is_task=is_task)


def _has_tag(text: str, gate: Gate, *, is_ending: bool, is_task: bool) -> bool:
    """Whether there is a privacy tag in a line or cell; `is_ending`: at its end, colons make one as well."""
    # From the end on, until there is a word that is no tag.
    for word in reversed(text.split()):
        bare = normalize_text(word).lstrip(_OPENING_CHARS)
        has_sign = bare[:1] in ("#", "@")
        has_colon = bare[:1] == ":" or (bare[-1:] == ":" and bare.count(":") > 1)
        counts = has_sign or (has_colon and (is_ending or is_task))
        if counts and (
            find_at_tag(word, gate)
            or any(find_tag_in_word(each[1], gate) for each in _SIGNED_WORD.finditer(word))
        ):
            return True
        is_ending = is_ending and (has_sign or has_colon)
    return False


def _block_start(text: str, at: int, floor: int, code: CodeRanges) -> int:
    """Where the block of the line begins that begins here."""
    while at > floor and not _LIST_ITEM.match(text, at) and not _STANDALONE_LINE.match(text, at):
        above = text.rfind("\n", floor, at - 1) + 1 or floor
        if _is_blank(text[above:at]) or above in code or _STANDALONE_LINE.match(text, above):
            break
        at = above
    return at


def _block_end(text: str, begin: int, at: int, last: int, code: CodeRanges) -> int:
    """Where the block ends that begins there and goes on at least to here."""
    at = _next_line_start(text, at, last)
    if _STANDALONE_LINE.match(text, begin):
        return at
    item, indent, end, has_gap = _LIST_ITEM.match(text, begin), _indent_width(text, begin), at, False
    while at < last:
        after = _next_line_start(text, at, last)
        if _is_blank(text[at:after]):
            has_gap = True
        elif has_gap if not item else not _belongs_to_item(text, at, indent, has_gap):
            break
        else:
            closed = code.end_of(at)
            after = _next_line_start(text, closed, last) if closed is not None else after
            end, has_gap = after, False
        at = after
    return end


def _belongs_to_item(text: str, at: int, indent: int, has_gap: bool) -> bool:
    """Whether a line belongs to an item above it: it is further in, or goes on with its text."""
    return _indent_width(text, at) > indent or not (has_gap or _LIST_ITEM.match(text, at))


def _indent_width(text: str, at: int) -> int:
    found = _INDENT.match(text, at)
    return len(found[0].expandtabs(4)) if found else 0


def _is_blank(line: str) -> bool:
    return not line.strip(" \t\r\n>")


def _next_line_start(text: str, at: int, last: int) -> int:
    """Where the line behind this one begins."""
    end = text.find("\n", at, last)
    return last if end < 0 else end + 1

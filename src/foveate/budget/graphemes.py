r"""Positions where a text can be cut without splitting what a reader sees as one character.

These are between extended grapheme clusters: a family of emoji, a letter with its accents, a Devanagari
conjunct, a flag and CR LF stay whole, and so do two surrogates that form one character in UTF-16. The rules are
those of Unicode Standard Annex 29 for Unicode 18.0 (revision 49, 2026). `regex` knows the properties of
characters: of Unicode 18.0 since release 2026.9.29, of 16.0 in the oldest supported release.

`\X` nearly follows these rules. But since release 2026.11.7 it splits conjuncts, and it takes quadratic time
for rows of flags. So the rules are written out here.

The cost of a search does not depend on the length of the text, only on the distance searched: one cluster, or
back to the start of a row of flags.
"""

import regex

# CR LF (GB3) is missing here, since pairs of ASCII characters are handled without the pattern.
_CLUSTER_START = r"""
    (?<!  # A cluster starts at each character that none of these rules joins to the previous one.
        [^\p{GCB=Control}\p{GCB=CR}\p{GCB=LF}] (?=[\p{GCB=Extend}\p{GCB=ZWJ}\p{GCB=SpacingMark}])  # GB9, GB9a
        | \p{GCB=Prepend} (?=[^\p{GCB=Control}\p{GCB=CR}\p{GCB=LF}])                               # GB9b
        | \p{GCB=L} (?=[\p{GCB=L}\p{GCB=V}\p{GCB=LV}\p{GCB=LVT}])                                  # GB6
        | [\p{GCB=LV}\p{GCB=V}] (?=[\p{GCB=V}\p{GCB=T}])                                           # GB7
        | [\p{GCB=LVT}\p{GCB=T}] (?=\p{GCB=T})                                                     # GB8
        | \p{InCB=Linker} \p{InCB=Extend}*+ (?=\p{InCB=Consonant})                                 # GB9c
        | \p{ExtPict} \p{GCB=Extend}*+ \p{GCB=ZWJ} (?=\p{ExtPict})                                 # GB11
        # GB12, GB13: an odd number before it. Counting only in pairs would take quadratic time.
        | (?<!\p{RI}) (?:\p{RI}{2})*+ (?:\p{RI}{1024})*+ \p{RI} (?=\p{RI})
        | [\uD800-\uDBFF] (?=[\uDC00-\uDFFF])
    ) .
"""
_FLAGS = regex.VERSION1 | regex.VERBOSE | regex.DOTALL
_NEXT_START = regex.compile(_CLUSTER_START, _FLAGS)
_LAST_START = regex.compile(_CLUSTER_START, _FLAGS | regex.REVERSE)

# Real clusters are shorter. Searching a longer one can take long, and is done without the GIL; for others,
# releasing the GIL would cost more than the search.
_QUICK_SEARCH_CHARS = 256


def boundary_at_or_before(text: str, position: int) -> int:
    """Return the last boundary up to `position`. Both ends of `text` are boundaries."""
    if not 0 < position < len(text):
        return max(0, min(position, len(text)))
    pair = text[position - 1 : position + 1]
    if pair.isascii():
        return position - 1 if pair == "\r\n" else position
    match = _LAST_START.search(text, max(1, position - _QUICK_SEARCH_CHARS), position + 1)
    if match is None:
        match = _LAST_START.search(text, 1, position + 1, concurrent=True)
    return 0 if match is None else match.start()


def boundary_at_or_after(text: str, position: int) -> int:
    """Return the first boundary from `position` on. Both ends of `text` are boundaries."""
    if not 0 < position < len(text):
        return max(0, min(position, len(text)))
    pair = text[position - 1 : position + 1]
    if pair.isascii():
        return position + 1 if pair == "\r\n" else position
    match = _NEXT_START.search(text, position, position + _QUICK_SEARCH_CHARS)
    if match is None:
        match = _NEXT_START.search(text, position, concurrent=True)
    return len(text) if match is None else match.start()


def previous_boundary(text: str, position: int) -> int:
    """Return the boundary before `position`, which is one itself, or 0."""
    return boundary_at_or_before(text, position - 1)


def next_boundary(text: str, position: int) -> int:
    """Return the boundary after `position`, which is one itself, or the end of `text`."""
    return boundary_at_or_after(text, position + 1)

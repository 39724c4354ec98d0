"""Notes that follow the documented privacy tags (`docs/reference/memory-syntax.md`, "Private notes").

A note has three headings. A tag in one of the documented positions hides the file, one heading or one block.
Each word is unique, so it is known which of them may be shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

# In a template, `{w}` is a new word and `{t}` the tag.
FILE, HEADING, BLOCK = "file", "heading", "block"

ORG_FILE = (
    "#+FILETAGS: :{t}:\n", "#+FILETAGS: {w} {t}\n", "#+filetags: :{w}:{t}:\n", "#+KEYWORDS: {w}, {t}\n",
    "#+PROPERTY: filetags :{t}:\n", "#+ROAM_TAGS: {t}\n", "#+HUGO_TAGS: {t}\n", "#+TAGS: :{w}:{t}:\n",
    "#+TITLE: {w} :{t}:\n",
)  # fmt: skip
MARKDOWN_FILE = (
    "---\ntags: [{w}, '{t}']\n---\n", "---\ntitle: {w}\ntags:\n  - '{t}'\n---\n", "---\nprivate: true\n---\n",
    "---\ntags: '#{t}'\n---\n", "+++\ntags = ['{w}', '{t}']\n+++\n", "#{t} {w}\n\n", "<h1>{w} :{t}:</h1>\n\n",
    "<details><summary>#{t}</summary>\n{w}\n</details>\n\n", "tags:: {t}\n\n", "<!-- tags: {t} -->\n\n",
    "%% #{t} %%\n\n",
)  # fmt: skip
ORG_HEADING = (
    "{h} {w} :{t}:\n", "{h} TODO [#A] {w} :{w}:{t}:\n", "{h} {w} :{t}\n", "{h} {w}:{t}:\n",
    "{h} {w} @personal\n",
    "{h} {w}\nSCHEDULED: <2026-11-20 Fri> :{t}:\n", "{h} {w}\nDEADLINE: <2026-11-20 Fri 10:00> :{w}:{t}:\n",
    "{h} {w}\n:PROPERTIES:\n:TAGS: :{w}:{t}:\n:END:\n",
    "{h} {w}\n:PROPERTIES:\n:ARCHIVE_ITAGS: {w} {t}\n:END:\n",
    "{h} {w}\n:PROPERTIES:\n:PRIVATE: t\n:END:\n", "{h} {w}\n:PROPERTIES:\n:VISIBILITY: private\n:END:\n",
    "{h} {w}\n:{t}:\n", "{h} {w}\n# :{t}:\n", "{h} {w}\n@personal\n", "{h} {w}\n#{t}\n",
)  # fmt: skip
MARKDOWN_HEADING = (
    "{h} {w} :{t}:\n", "{h} {w} #{t}\n", "{h} {w} #{t} {w}\n", "{h} {w} :{t}\n", "{h} {w} @personal\n",
    "{h} {w}\n#{t}\n", "{h} {w}\n\n#{w} #{t}\n\n", "{h} {w}\nTags: {w}, {t}\n\n", "{h} {w}\n:{t}:\n",
    "{h} {w}\n%%#{t}%%\n", "{h} {w}\n@personal\n", "{h} {w} {{.private}}\n",
)  # fmt: skip
BOTH_BLOCKS = (
    "{w} #{t} {w}\n{w}\n", "{w} {w} @personal\n", "({w} #{t})\n", "- {w} #{t}\n  {w}\n  - {w}\n",
    "- {w} :{t}:\n",
    "- [ ] {w} :{t}: {w}\n", "- TODO {w} :{t}: {w}\n", "- LATER {w} #{t} {w}\n  - {w}\n", "| {w} | #{t} |\n",
    "| {w} | :{t}: |\n", "| {w} :{t}: | {w} |\n", "1. {w} #{t} {w}\n   {w}\n",
)  # fmt: skip
MARKDOWN_BLOCKS = (*BOTH_BLOCKS, "%%#{t}%% {w}\n", "{w} %%#{t}%%\n", "> {w} #{t} {w}\n", "<b>#{t}</b> {w}\n")

PROSE = (
    "The private {w} and its @persons\n", "{w} has a :{t}: in a sentence\n", "{w} links [[private]]\n",
    "{w} is **private**\n", "{w} links to https://x.example/page#private and [[#private]]\n",
    "{w} is privately #privateer\n", "- {w} private: {w}\n", "| private | {w} |\n",
    "{w} to me@personal.example\n",
)  # fmt: skip
MARKDOWN_PROSE = (
    *PROSE,
    "{w} in code `#private`\n",
    "```\n#private {w}\n- {w} #private\n```\n",
    "[{w}](#private)\n",
)
ORG_PROSE = (
    *PROSE,
    "{w} in code =#private= or ~:private:~\n",
    "#+begin_src css\n#private {{ {w} }}\n#+end_src\n",
)
ORG_PROSE_HEADS = ("", "#+TAGS: work(w) private(p)\n", "#+TITLE: On private {w}\n", "#+EXCLUDE_TAGS: private\n")
MARKDOWN_PROSE_HEADS = (
    "",
    "---\ntags: [private equity]\n---\n",
    "---\ntitle: private {w}\n---\n",
    "private:: false\n\n",
)

_PLAIN = ("{w} {w}\n", "{w}\n{w}\n", "- {w}\n  - {w}\n", "| {w} | {w} |\n")


@dataclass(frozen=True)
class Language:
    """Templates of one kind of notes: by what they hide, and those that hide nothing."""

    suffix: str
    star: str
    tagged: Mapping[str, Sequence[str]]
    prose: Sequence[str]
    prose_heads: Sequence[str]


ORG = Language(
    ".org", "*", {FILE: ORG_FILE, HEADING: ORG_HEADING, BLOCK: BOTH_BLOCKS}, ORG_PROSE, ORG_PROSE_HEADS
)
MARKDOWN = Language(
    ".md",
    "#",
    {FILE: MARKDOWN_FILE, HEADING: MARKDOWN_HEADING, BLOCK: MARKDOWN_BLOCKS},
    MARKDOWN_PROSE,
    MARKDOWN_PROSE_HEADS,
)


@dataclass(frozen=True)
class Note:
    """A note, its hidden words, and the words of other headings, which may be shown."""

    suffix: str
    text: str
    hidden: frozenset[str]
    shown: frozenset[str]


class _Words:
    def __init__(self) -> None:
        self.all: list[str] = []

    def fill(self, template: str, tag: str, heading: str = "") -> tuple[str, set[str]]:
        """Return a template with new words in it, and these words."""
        started = len(self.all)
        parts = template.replace("{{", "\0").replace("}}", "\1").split("{w}")
        text = parts[0]
        for part in parts[1:]:
            self.all.append(f"word{len(self.all):03}x")
            text += self.all[-1] + part
        text = text.replace("{t}", tag).replace("{h}", heading).replace("\0", "{").replace("\1", "}")
        return text, set(self.all[started:])


_INVISIBLE = ("\u00ad", "\u200b")


@st.composite
def spellings(draw: st.DrawFn) -> str:
    """Privacy tags in any spelling: case, wide letters, invisible characters, or as part of a tag."""
    tag = draw(st.sampled_from(("private", "Private", "PRIVATE", "private/bank", "ｐｒｉｖａｔｅ")))
    at = draw(st.none() | st.integers(1, 6))
    return tag if at is None else tag[:at] + draw(st.sampled_from(_INVISIBLE)) + tag[at:]


def _blocks(draw: st.DrawFn, words: _Words, templates: Sequence[str], tag: str) -> tuple[str, set[str]]:
    text, found = "", set[str]()
    for template in draw(st.lists(st.sampled_from(templates), max_size=2)):
        block, new = words.fill(template, tag)
        text, found = f"{text}\n{block}\n", found | new
    return text, found


@st.composite
def tagged_notes(draw: st.DrawFn) -> Note:
    """A note with one privacy tag in a documented position."""
    language = draw(st.sampled_from((ORG, MARKDOWN)))
    scope = draw(st.sampled_from((FILE, HEADING, BLOCK)))
    template = draw(st.sampled_from(language.tagged[scope]))
    tag, words = draw(spellings()), _Words()
    text, head = words.fill(template, tag) if scope == FILE else ("", set[str]())
    hidden, result = set(head), set[str]()
    tagged_at = draw(st.integers(0, 2))
    for number in range(3):
        is_tagged = number == tagged_at and scope != FILE
        heading = template if is_tagged and scope == HEADING else "{h} {w}\n"
        line, own = words.fill(heading, tag, language.star)
        body, inside = _blocks(draw, words, _PLAIN, tag)
        text += line + body
        if is_tagged and scope == BLOCK:
            block, inner = words.fill(template, tag)
            after, _ = _blocks(draw, words, _PLAIN, tag)
            # Not in the first paragraph, where it would tag the heading.
            first, _ = words.fill("\n{w}\n", tag)
            text += f"{first}\n{block}\n{after}"
            hidden |= inner
        else:
            below, under = words.fill("{h}{h} {w}\n{w}\n", tag, language.star)
            text += below
            (hidden if scope == FILE or is_tagged else result).update(own | inside | under)
    end = draw(st.sampled_from(("\n", "\r\n", "\r")))
    return Note(language.suffix, text.replace("\n", end), frozenset(hidden), frozenset(result))


@st.composite
def prose_notes(draw: st.DrawFn) -> Note:
    """Notes that only mention private things."""
    language, words = draw(st.sampled_from((ORG, MARKDOWN))), _Words()
    text, _ = words.fill(draw(st.sampled_from(language.prose_heads)), "private")
    for _ in range(3):
        line, _ = words.fill("{h} {w}\n\n{w}\n", "private", language.star)
        body, _ = _blocks(draw, words, language.prose, "private")
        text += line + body
    return Note(language.suffix, text, frozenset(), frozenset(words.all))

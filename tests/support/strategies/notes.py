"""Random notes: texts that are hard to parse, and note trees with known private parts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

# No word is a suffix of another, so that with a number appended none is found inside another.
_STEMS = (
    "anchor", "basket", "copper", "dolphin", "ember", "falcon", "garden", "harvest", "island", "jacket",
    "kettle", "lantern", "marble", "needle", "orchid", "pepper", "quarry", "river", "saddle", "timber",
    "umbrella", "violet", "walnut", "yonder", "zephyr",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NoteFile:
    """A file of notes, with its path relative to the folder."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteFolder:
    """Files, and their visible and private words; no word occurs twice, or inside another."""

    files: tuple[NoteFile, ...]
    public: frozenset[str]
    private: frozenset[str]
    """Also titles, tags, ids and values of properties."""
    ids: tuple[str, ...]
    """What was given as `ID`, of public and private entries; each is one of the words."""

    def leaked_words(self, text: str) -> set[str]:
        """Return the private words that are in `text`."""
        return {word for word in self.private if word in text}


class _Words:
    """Generates unused words, and records whether they are visible."""

    def __init__(self) -> None:
        self.public: set[str] = set()
        self.private: set[str] = set()
        self.ids: list[str] = []
        self.is_private = False

    def __call__(self) -> str:
        number = len(self.public) + len(self.private)
        word = f"{_STEMS[number % len(_STEMS)]}{number:04}"
        (self.private if self.is_private else self.public).add(word)
        return word

    def some(self, count: int) -> str:
        return " ".join(self() for _ in range(count))

    def id(self) -> str:
        self.ids.append(self())
        return self.ids[-1]


_Line = Callable[[_Words], str]

_ORG_BODIES: tuple[_Line, ...] = (
    lambda word: word.some(6),
    lambda word: f"{word.some(3)}\n\n{word.some(2)}, [[https://{word()}.example][{word()}]].",
    lambda word: f"- {word()} :: {word()}\n  - [ ] {word()}",
    lambda word: f"#+begin_src sh\necho {word()}\n,* {word()}\n# {word()}\n#+end_src",
    lambda word: f"#+begin_quote\n{word.some(4)}\n#+end_quote",
    lambda word: f"| {word()} | {word()} |",
    lambda word: f":NOTE:\n{word()}\n:END:",
    lambda word: f"CLOCK: [2026-01-02 Fri 10:00]--[2026-01-02 Fri 11:00] =>  1:00\n{word()}",
)
_MARKDOWN_BODIES: tuple[_Line, ...] = (
    lambda word: word.some(6),
    lambda word: f"{word.some(3)}\n\n{word.some(2)}, [{word()}](https://{word()}.example).",
    lambda word: f"- {word()}\n  - [ ] {word()}\n1. {word()}",
    lambda word: f"```sh\necho {word()}\n# {word()}\n```",
    lambda word: f"> {word.some(4)}\n> # {word()}",
    lambda word: f"| {word()} | {word()} |\n| --- | --- |",
    lambda word: f"<div>\n{word()}\n</div>",
    lambda word: f"    # {word()}",
)
_PRIVATE_HEADINGS = (":private:", ":PRIVATE:", ":{}:Private:", ":@personal:{}:", ":{}:@Personal:{}:")


@dataclass(frozen=True, slots=True)
class _NoteSyntax:
    """Syntax of one kind of file."""

    suffixes: tuple[str, ...]
    star: str
    deepest: int
    bodies: tuple[_Line, ...]
    private_headings: tuple[str, ...]
    heads: tuple[str, ...]
    private_heads: tuple[str, ...]
    planning: tuple[str, ...]


_ORG = _NoteSyntax(
    suffixes=(".org", ".org", ".org_archive"),
    star="*",
    deepest=8,
    bodies=_ORG_BODIES,
    private_headings=_PRIVATE_HEADINGS,
    heads=(
        "",
        "#+TITLE: {}\n#+FILETAGS: :{}:\n\n",
        ":PROPERTIES:\n:ID: {id}\n:END:\n#+title: {}\n",
        "{}\n",
    ),
    private_heads=(
        "#+TITLE: {}\n#+FILETAGS: :private:\n{}\n",
        "#+filetags: {} Private\n",
        "{}\n#+FILETAGS: :{}:@personal:\n",
    ),
    planning=(
        "",
        "",
        "SCHEDULED: <2026-11-20 Fri 17:00 +1w> DEADLINE: <2026-11-30 Mon>\n",
        ":PROPERTIES:\n:ID: {id}\n:KEY: {}\n:END:\n",
        "CLOSED: [2026-01-02 Fri 09:30]\n:PROPERTIES:\n:OWNER: {}\n:END:\n:LOGBOOK:\n- {}\n:END:\n",
    ),
)
_MARKDOWN = _NoteSyntax(
    suffixes=(".md", ".md", ".markdown"),
    star="#",
    deepest=6,
    bodies=_MARKDOWN_BODIES,
    private_headings=(*_PRIVATE_HEADINGS, "#private", "#{} #Private", "\n\n#private", "\n#{} #@personal"),
    heads=(
        "",
        "---\ntitle: {}\ntags: [{}, {}]\nid: {id}\n---\n\n",
        "---\ntags: {}\n---\n{}\n",
        "+++\ntitle = '{}'\n+++\n",
        "{}\n\n",
    ),
    private_heads=(
        "---\ntitle: {}\ntags: [{}, private]\n---\n{}\n",
        "---\ntags: '#Private'\n---\n",
        "---\nprivate: true\nabout: {}\n---\n",
        "---\ntags:\n  - {}\n  - '@personal'\n---\n",
        "+++\ntags = ['private']\n+++\n{}\n",
        "#private #{}\n\n{}\n",
    ),
    planning=("", "", "DEADLINE: 2026-11-20 17:00\n", "SCHEDULED: <2026-11-20 Fri>\n"),
)


def _fill_template(template: str, word: _Words) -> str:
    """Return the template with a new word for each {} and a new id for {id}."""
    pieces = template.replace("{id}", "{}\0").split("{}")
    text = pieces[0]
    for piece in pieces[1:]:
        text += word.id() + piece[1:] if piece.startswith("\0") else word() + piece
    return text


@st.composite
def _files(draw: st.DrawFn, word: _Words, number: int) -> NoteFile:
    kind = draw(st.sampled_from((_ORG, _MARKDOWN)))
    all_private = draw(st.sampled_from((False, False, False, True)))
    word.is_private = all_private
    text = _fill_template(draw(st.sampled_from(kind.private_heads if all_private else kind.heads)), word)
    hidden_level: int | None = None
    for level in draw(st.lists(st.integers(1, kind.deepest), max_size=9)):
        if hidden_level is not None and level <= hidden_level:
            hidden_level = None
        is_tagged = draw(st.sampled_from((False, False, True)))
        if is_tagged and hidden_level is None:
            hidden_level = level
        word.is_private = all_private or hidden_level is not None
        tag_templates = kind.private_headings if is_tagged else ("", "", ":{}:", ":{}:{}:")
        state = draw(st.sampled_from(("", "", "TODO ", "DONE ", "TODO [#A] ")))
        tags_text = _fill_template(draw(st.sampled_from(tag_templates)), word)
        planning = _fill_template(draw(st.sampled_from(kind.planning)), word)
        # A blank line follows a line of tags; otherwise it and the planning would be a paragraph.
        text += f"{kind.star * level} {state}{word.some(2)} {tags_text}\n{planning}"
        for body in draw(st.lists(st.sampled_from(kind.bodies), max_size=3)):
            text += f"{body(word)}\n\n"
    return NoteFile(f"note-{number}{draw(st.sampled_from(kind.suffixes))}", text)


@st.composite
def note_folders(draw: st.DrawFn, max_files: int = 4) -> NoteFolder:
    """Up to this many files with nested headings, tags and planning; some files and branches are private."""
    word = _Words()
    files = tuple(draw(_files(word, number)) for number in range(draw(st.integers(1, max_files))))
    return NoteFolder(
        files=files, public=frozenset(word.public), private=frozenset(word.private), ids=tuple(word.ids)
    )


_LINE_ENDS = ("\n", "\n", "\n", "\n\n", "\r\n", "\r", "", "\u2028", "\x0c", "\x85", "\n \n")
_ODD_LINES = (
    "", " ", "\t", "text", "text :private:", "\ufeff", "\0", "\ud800", "é", "---", "===", "```", "~~~",
    "> quote", "    code", "- item", "<div>", "<!--", "-->", "* Star", "# Hash", "DEADLINE: <2026-02-31 Tue>",
    ":END:", "#private", ":a::private:", "text #private", "- item #private", "  - below", "| row | #private |",
)  # fmt: skip
_ORG_LINES = (
    "* One", "** Two :a:b:", "*** TODO [#A] Three :private:", "* DONE Four [1/3]", "*", "**bold**", "* ",
    "*\tTab", "* Glued:private:", "* Unclosed :private", "* :a::private:",
    "* [[https://x.example][Link]] [[file:a.org]]", "#+TITLE: Title", "#+title:", "#+FILETAGS: :a:b:",
    "#+filetags: a @personal", "#+TODO: NEXT WAIT | GONE", "#+SEQ_TODO: A B C", "* NEXT Five",
    "#+begin_src org", "#+end_src", "#+BEGIN_EXAMPLE", "#+END_EXAMPLE", "#+begin_comment", "#+end_comment",
    ",* escaped", ":PROPERTIES:", ":ID: some-id", ":Effort: lots", ":KEY+: more", ":LOGBOOK:",
    "SCHEDULED: <2026-11-20 Fri 9:00 ++1w/2w -2d> DEADLINE: <2026-11-30 Mon>",
    "CLOSED: [2026-01-02 Fri 24:00]", "DEADLINE: <%%(diary-float t 4 2)>", "# comment", "  * indented",
)  # fmt: skip
_MARKDOWN_LINES = (
    "# One", "## Two :a:b:", "### TODO [#A] Three #private", "# DONE Four {#some-id}", "#",
    "#### [x] Five ####", "  # Indented", "#hashtag #other", "Setext :private:", "=====", "--",
    "# Glued:private:", "# Unclosed :private", "# [Link](https://x.example) and `[no](link)`", "---", "...",
    "+++", "title: Title", "tags: [a, private]", "tags: #a", "- @personal", "private: true",
    "deadline: 2026-11-20", "key: [1, {a: b}]", "bad: [", "```python", "   ```", "<pre>", "</pre>",
    "<b>bold</b>", "<x-y>", "> # Quoted", "- # Listed", "10. ten", "[ref]: /url 'title",
    "DEADLINE: 2026-11-20 17:00", "**Deadline:** <2026-11-20 Fri>", "# Heading {.private}", "\\# escaped",
)  # fmt: skip


def _mix_lines(lines: Sequence[str]) -> st.SearchStrategy[str]:
    line = st.one_of(
        st.sampled_from(lines), st.sampled_from(lines), st.sampled_from(_ODD_LINES), st.text(max_size=8)
    )
    return st.lists(st.tuples(line, st.sampled_from(_LINE_ENDS)), max_size=24).map(
        lambda pairs: "".join(line + end for line, end in pairs)
    )


org_texts = _mix_lines(_ORG_LINES)
"""Org as nobody writes it: what means something in the wrong places, every kind of line end."""
markdown_texts = st.one_of(
    _mix_lines(_MARKDOWN_LINES), _mix_lines(_MARKDOWN_LINES).map(lambda text: f"---\n{text}")
)
"""Markdown of the same kind, half of it with something like front matter."""
note_texts = st.one_of(org_texts, markdown_texts, st.text())


def each_line(text: str) -> Iterator[str]:
    """Return the lines with their ends, where only LF, CR LF and CR end a line."""
    start = 0
    while start < len(text):
        ends = [at for at in (text.find("\n", start), text.find("\r", start)) if at >= 0]
        end = min(ends, default=len(text) - 1) + 1
        if text[end - 1 : end + 1] == "\r\n":
            end += 1
        yield text[start:end]
        start = end

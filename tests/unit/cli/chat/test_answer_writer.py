"""Answers at a terminal: Markdown block by block, wrapped words, dimmed thinking, no control characters."""

import asyncio
import re
from io import StringIO

import pyte
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from foveate.chat.responses import FragmentKind, ResponseFragment
from foveate.cli.chat.answer_writer import AnswerWriter
from foveate.cli.shared.console import Display
from tests.support.harness.example_limits import limit_examples

ANSWER = """\
# Title

Some **bold** text and a paragraph that is longer than the terminal is wide, 日本語の長い文章がここにあります。
Second line.

- one
- two with [a link](https://example.org) and <https://auto.example>
  1. nested

```python
def double(x):
    return x + x
```

| a | b |
|---|--:|
| 1 | 2 |
| a long cell | 3 |

> a quote with <b>HTML</b>

[1]: https://reference.example

Last.
"""
RENDERED = """\
Title

Some bold text and a paragraph that is
longer than the terminal is wide,
日本語の長い文章がここにあります。
Second line.

 • one
 • two with a link (https://example.org)
   and https://auto.example
    1 nested

  def double(x):
      return x + x

 a            b
 ──────────────
 1            2
 a long cell  3

▌ a quote with <b>HTML</b>

[1]: https://reference.example

Last."""
_SEQUENCES = re.compile(r"\x1b\[(?:[\d;]*m|\d+A\r|K|J)")


class Clock:
    """Time that passes with every look at it."""

    def __init__(self, step_seconds: float) -> None:
        self._now = 0.0
        self._step = step_seconds

    def __call__(self) -> float:
        self._now += self._step
        return self._now


class Terminal(StringIO):
    """A terminal that keeps what scrolls off its screen."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self._screen = pyte.HistoryScreen(columns, rows, history=5000)
        self._stream = pyte.Stream(self._screen)
        self._columns = columns

    def write(self, text: str) -> int:
        self._stream.feed(text.replace("\n", "\r\n"))
        return super().write(text)

    @property
    def text(self) -> str:
        scrolled = [
            "".join(line[column].data for column in range(self._columns)) for line in self._screen.history.top
        ]
        return "\n".join(line.rstrip() for line in (*scrolled, *self._screen.display)).rstrip()


def stream_answer(
    text: str, *, columns: int = 42, rows: int = 60, chunk: int = 3, step_seconds: float = 0.03
) -> Terminal:
    terminal = Terminal(columns, rows)
    display = Display(columns=columns, colours=True)
    writer = AnswerWriter(
        terminal, lambda: display, renders_markdown=True, rows=lambda: rows, clock=Clock(step_seconds)
    )
    for start in range(0, len(text), chunk):
        writer(ResponseFragment(FragmentKind.TEXT, text[start : start + chunk]))
    writer.end()
    return terminal


@pytest.mark.parametrize("rows", [60, 8])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_markdown_is_rendered_and_wrapped_between_words(rows: int, chunk: int) -> None:
    assert stream_answer(ANSWER, rows=rows, chunk=chunk).text == RENDERED


def test_code_is_highlighted_and_text_styled() -> None:
    written = stream_answer(ANSWER).getvalue()

    assert "\x1b[1mbold\x1b[0m" in written
    assert re.search(r"\x1b\[[\d;]+mdef\x1b\[0m", written)


def test_a_finished_block_is_not_written_again() -> None:
    paragraphs = [f"This is paragraph number {number}, and it has some more words." for number in range(50)]
    terminal = stream_answer("\n\n".join(paragraphs), columns=80, rows=24, chunk=5)
    written = terminal.getvalue()

    assert terminal.text == "\n\n".join(paragraphs)
    assert written.count("paragraph number 7,") <= 15  # while it grows
    assert "\x1b[2J" not in written
    assert max(map(int, re.findall(r"\x1b\[(\d+)A", written))) <= 3


@pytest.mark.parametrize(
    "text",
    [
        "```python\n" + "".join(f"value_{number} = {number}\n" for number in range(300)) + "```\n\nDone.",
        "".join(f"{number}. item\n" for number in range(1, 120)),
        "| number |\n|---|\n" + "".join(f"| row{number} |\n" for number in range(60)),
        " ".join(f"word{number}" for number in range(400)),
    ],
    ids=["code", "list", "table", "paragraph"],
)
def test_a_block_longer_than_the_screen_is_shown_once(text: str) -> None:
    shown = stream_answer(text, columns=40, rows=10).text.split()

    words = re.findall(r"value_\d+|item|row\d+|word\d+", text)
    assert [word for word in shown if word in set(words)] == words


def test_a_paragraph_is_not_finished_by_an_incomplete_line() -> None:
    assert stream_answer("a\n#b\n\nx\nc|d\n-|-e\n", chunk=1).text == "a\n#b\n\nx\nc|d\n-|-e"


@given(text=st.text(st.sampled_from("ab日👩\u200d #*-_`>|1.\n[]()!\\&;<~\t\r\x1b\x07\u202e"), max_size=60))
@example(text="&#x1b;[31m &#27;[2J &#x202e; &#7;")
@example(text="[a](<javascript:\x1b]8;;>) <\x1b[A:b>")
@example(text="> " * 40 + "deep")
@example(text="- " * 40 + "deep")
@settings(max_examples=limit_examples(40), deadline=None)
def test_no_control_characters_of_an_answer_reach_the_terminal(text: str) -> None:
    for renders_markdown in (True, False):
        stream = StringIO()
        display = Display(columns=30, colours=True)
        writer = AnswerWriter(stream, lambda: display, renders_markdown=renders_markdown, clock=Clock(0.03))  # noqa: B023
        for char in text:
            writer(ResponseFragment(FragmentKind.TEXT, char))
        writer(ResponseFragment(FragmentKind.THINKING, text))
        writer(ResponseFragment(FragmentKind.TOOL_CALL, text))
        writer.end()
        rest = _SEQUENCES.sub("", stream.getvalue()).replace("\n", "")

        assert all(char.isprintable() or char == "\u200d" for char in rest), repr(rest)


@given(text=st.text(st.sampled_from("ab #*-_`>|1.\n"), max_size=60), chunk=st.integers(1, 9))
@example(text="11\n>\n1\n", chunk=1)
@settings(max_examples=limit_examples(30), deadline=None)
def test_the_result_does_not_depend_on_how_the_answer_is_divided(text: str, chunk: int) -> None:
    assert stream_answer(text, chunk=chunk).text == stream_answer(text, chunk=1000).text


def test_text_is_shown_if_no_more_arrives() -> None:
    async def run() -> str:
        stream = StringIO()
        display = Display(columns=80, colours=True)
        writer = AnswerWriter(stream, lambda: display, renders_markdown=True)
        async with writer.keep_refreshed():
            for word in ("First ", "second"):
                writer(ResponseFragment(FragmentKind.TEXT, word))
            await asyncio.sleep(0.3)
            return stream.getvalue()

    assert "First second" in asyncio.run(run())


def test_thinking_is_dimmed_and_tool_calls_are_named() -> None:
    fragments = [
        ResponseFragment(FragmentKind.THINKING, "Hm."),
        ResponseFragment(FragmentKind.TEXT, "Hel"),
        ResponseFragment(FragmentKind.TEXT, "lo *you*"),
        ResponseFragment(FragmentKind.TOOL_CALL, "look\x1b_up"),
    ]
    dimmed, plain = StringIO(), StringIO()
    started: list[int] = []
    for stream, colours in ((dimmed, True), (plain, False)):
        display = Display(colours=colours)
        writer = AnswerWriter(stream, lambda: display, on_start=lambda: started.append(1))  # noqa: B023
        for fragment in fragments:
            writer(fragment)
        writer.end()

    assert dimmed.getvalue() == "\x1b[2mHm.\x1b[0m\nHello *you*\n[calls look\\x1b_up]\n"
    assert plain.getvalue() == "(thinking) Hm.\nHello *you*\n[calls look\\x1b_up]\n"
    assert started == [1, 1]


def test_a_line_break_may_be_split_between_chunks() -> None:
    stream = StringIO()
    writer = AnswerWriter(stream, Display)
    for text in ("one\r", "\ntwo\r", "three\r"):
        writer(ResponseFragment(FragmentKind.TEXT, text))
    writer.end()

    assert stream.getvalue() == "one\ntwo\\rthree\n"

"""Text for terminals: control characters escaped, lines broken between words."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from foveate.cli.chat.answer_writer import WordWrapper, escape_for_terminal, wrap_styled, wrap_text


def test_escape_sequences_are_not_obeyed_and_emoji_stay_joined() -> None:
    assert escape_for_terminal("a\tb\n\x1b[31m\u202e 👩\u200d👧\r") == "a    b\n\\x1b[31m\\u202e 👩\u200d👧\\r"


def test_lines_are_broken_between_words_and_wide_characters() -> None:
    assert wrap_text("one two three\n    four five", 9) == ["one two", "three", "    four", "five"]
    assert wrap_text("日本語 and 日本語。", 8) == ["日本語", "and 日本", "語。"]
    assert wrap_text("see https://a-long.example/path now", 10) == ["see", "https://a-long.example/path", "now"]
    assert wrap_text("family 👩\u200d👧 here", 8) == ["family", "👩\u200d👧 here"]


@given(
    text=st.text(st.sampled_from("abc 日本\n"), max_size=80),
    columns=st.integers(4, 20),
    chunk=st.integers(1, 9),
)
def test_wrapping_keeps_all_characters_and_does_not_depend_on_chunks(
    text: str, columns: int, chunk: int
) -> None:
    whole, pieces = WordWrapper(columns), WordWrapper(columns)
    expected = whole.feed(text) + whole.flush()
    parts = [pieces.feed(text[start : start + chunk]) for start in range(0, len(text), chunk)]

    assert "".join(parts) + pieces.flush() == expected
    assert expected.split() == text.split() or "".join(expected.split()) == "".join(text.split())
    for line in expected.splitlines():
        # The terminal breaks a word that is longer than a line, and the text continues after it.
        assert cell_len(line) <= columns or cell_len(line.split()[0]) > columns


def test_a_styled_line_is_broken_between_words() -> None:
    assert wrap_styled("  short", 20) == ["  short"]
    assert wrap_styled("  one two three", 9) == ["  one", "  two", "  three"]
    assert wrap_styled("\x1b[2mone two\x1b[0m", 4) == ["\x1b[2mone\x1b[0m", "\x1b[2mtwo\x1b[0m"]

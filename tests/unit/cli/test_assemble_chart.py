"""The chart of a prompt fits the display and shows every section."""

import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from foveate.budget.prompt import Action, Cut, Prompt, SectionReport
from foveate.budget.sections import Priority, Stability
from foveate.cli.assemble import draw_prompt
from foveate.cli.shared.console import Display
from foveate.model import TokenCount

BLOCKS = "█", "░"
# Two numbers of six digits, a gap, and the beginning of a name.
MIN_COLUMNS = 26

characters = st.one_of(
    st.sampled_from("abz_- é日本語한❤📚👍🏽🇩🇪\ufe0f\u0301"),
    st.characters(exclude_categories=("C", "Z")),
)
names = st.text(characters, min_size=1, max_size=60).filter(str.strip)


def make_report(
    name: str,
    before: int,
    after: int | None = None,
    action: Action = Action.KEPT,
    cap_tokens: int | None = None,
    priority: Priority = Priority.MEDIUM,
    upper: int | None = None,
) -> SectionReport:
    return SectionReport(
        name=name,
        priority=priority,
        stability=Stability.TURN,
        before=before,
        after=before if after is None else after,
        upper=upper or (before if after is None else after),
        cap_tokens=cap_tokens,
        action=action,
        text="",
    )


def make_prompt(
    *sections: SectionReport, cuts: tuple[Cut, ...] = (), count: TokenCount | None = None
) -> Prompt:
    tokens = sum(section.after for section in sections)
    return Prompt(
        text="",
        count=count or TokenCount(tokens, True, tokens),
        limit_tokens=max(tokens, 1),
        sections=sections,
        cuts=cuts,
    )


def draw_rows(prompt: Prompt, columns: int = 80) -> list[str]:
    """The row of each section."""
    lines = draw_prompt(prompt, model="gpt-4o", display=Display(columns=columns), explain=False).splitlines()
    return lines[len(lines) - len(prompt.sections) :]


def count_cells(row: str) -> tuple[int, int]:
    """Numbers of filled and of light cells in a row's bar."""
    return row.count(BLOCKS[0]), row.count(BLOCKS[1])


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    sections, cuts = [], []
    for name in draw(st.lists(names, max_size=8)):
        before = draw(st.integers(0, 99_999))
        after = draw(st.integers(0, before))
        action = draw(st.sampled_from(Action))
        sections.append(make_report(name, before, after, action, priority=draw(st.sampled_from(Priority))))
        reason = draw(st.text(characters, max_size=80))
        cuts.append(Cut(section=name, rung="own: drop 日本", before=before, after=after, reason=reason))
    exact = draw(st.booleans())
    return make_prompt(*sections, cuts=tuple(cuts), count=TokenCount(123_456, exact, 234_567))


@pytest.mark.slow
@given(prompt=prompts(), columns=st.integers(MIN_COLUMNS, 200), colours=st.booleans())
def test_no_line_is_wider_than_the_display(prompt: Prompt, columns: int, colours: bool) -> None:
    display = Display(columns=columns, colours=colours)
    lines = draw_prompt(prompt, model="gpt-4o 模型 " + "m" * 50, display=display, explain=True).splitlines()

    for line in lines:
        without_colours = line
        for code in ("1", "2", "31", "32", "33", "0"):
            without_colours = without_colours.replace(f"\x1b[{code}m", "")
        assert cell_len(without_colours) <= columns
        assert "\x1b" not in without_colours


@given(sizes=st.lists(st.tuples(st.integers(0, 99_999), st.integers(0, 99_999)), max_size=8))
def test_a_bar_shows_every_nonempty_part(sizes: list[tuple[int, int]]) -> None:
    result = make_prompt(*(make_report(f"s{i}", max(size), min(size)) for i, size in enumerate(sizes)))

    for section, row in zip(result.sections, draw_rows(result, columns=120), strict=True):
        filled, light = count_cells(row)
        assert (filled + light > 0) == (section.before > 0)
        assert filled > 0 or section.after == 0
        assert light == 0 or section.after < section.before
        assert light > 0 or section.after == section.before or filled == 1


def test_bars_show_the_original_size_filled_up_to_the_kept_size() -> None:
    result = make_prompt(
        make_report("a", 400),
        make_report("b", 200, 100, Action.TRUNCATED),
        make_report("c", 100, 0, Action.DROPPED),
    )

    assert [count_cells(row) for row in draw_rows(result, columns=200)] == [(40, 0), (10, 10), (0, 10)]


def test_numbers_are_aligned() -> None:
    first, second = draw_rows(make_prompt(make_report("a", 12_345), make_report("longer", 7)))

    assert first.endswith("12,345 of 12,345")
    assert second.endswith("     7 of      7")
    assert len(first) == len(second)


@pytest.mark.parametrize(
    ("tokens", "cap_tokens", "note"),
    [
        (760, 800, "near cap"),
        (759, 800, ""),
        (19, 20, "near cap"),
        (18, 20, ""),
        (95, 100, "near cap"),
        (94, 100, ""),
        (760, None, ""),
        (0, 0, ""),
    ],
)
def test_a_section_is_near_its_cap_from_95_percent_on(tokens: int, cap_tokens: int | None, note: str) -> None:
    (row,) = draw_rows(make_prompt(make_report("a", tokens, cap_tokens=cap_tokens)))

    assert row.endswith(f"{tokens} of {tokens}" + (f"  {note}" if note else ""))


def test_a_number_of_hundreds_of_digits_can_be_drawn() -> None:
    """Regression: an OverflowError, since no float is that large."""
    huge = replace(make_prompt(make_report("a", 760, cap_tokens=10**400)), limit_tokens=10**400)

    assert "tokens (0%), gpt-4o, exact" in draw_prompt(
        huge, model="gpt-4o", display=Display(columns=2000), explain=False
    )
    assert draw_rows(huge)[0].endswith("760 of 760")


def test_sections_cut_to_their_cap_are_distinguished_from_sections_cut_by_the_ladder() -> None:
    def make_cut(section: str, rung: str) -> Cut:
        return Cut(section=section, rung=rung, before=9, after=5, reason="")

    sections = [make_report(name, 9, 5, Action.TRUNCATED) for name in ("a", "b", "c")]
    dropped = make_report("d", 9, 0, Action.DROPPED)
    cuts = (
        make_cut("a", "cap"),
        make_cut("b", "cap"),
        make_cut("b", "own: drop"),
        make_cut("c", "own: drop"),
        make_cut("d", "cap"),
    )

    assert [row.split()[-1] for row in draw_rows(make_prompt(*sections, dropped, cuts=cuts))] == [
        "capped",
        "truncated",
        "truncated",
        "dropped",
    ]


def test_an_estimate_shows_its_upper_bound() -> None:
    result = make_prompt(make_report("a", 10), count=TokenCount(8, False, 10))
    heading, row = draw_prompt(result, model="some-model", display=Display(), explain=False).splitlines()

    assert heading == "~8 of 10 tokens (80%), some-model, estimated, upper bound 10 (100%)"
    assert row.endswith("~10 of ~10")


def test_an_estimate_is_near_its_cap_by_its_upper_bound() -> None:
    """The cap applies to the upper bound of an estimate, not to its probable tokens."""
    estimates = (
        make_report("a", 600, cap_tokens=800, upper=760),
        make_report("b", 600, cap_tokens=800, upper=759),
    )
    result = make_prompt(*estimates, count=TokenCount(1200, False, 1519))

    assert [row.partition("~600 of ~600")[2] for row in draw_rows(result)] == ["  near cap", ""]


def test_a_cut_below_the_cap_of_an_estimate_is_explained() -> None:
    cut = Cut(section="a", rung="cap", before=900, after=600, reason="its cap is 800 tokens")
    estimated = make_prompt(
        make_report("a", 900, 600, Action.TRUNCATED), cuts=(cut,), count=TokenCount(600, False, 790)
    )
    exact = make_prompt(make_report("a", 900, 600, Action.TRUNCATED), cuts=(cut,))
    lines = [
        draw_prompt(prompt, model="m", display=Display(), explain=True).splitlines()[3:]
        for prompt in (estimated, exact)
    ]

    assert " ".join(" ".join(lines[0]).split()) == (
        "a ~900 → ~600 cap: its cap is 800 tokens; applied to the upper bound of the estimate"
    )
    assert lines[1] == ["a  900 → 600  cap: its cap is 800 tokens"]


def test_zero_tokens_are_exact_in_an_estimate() -> None:
    result = make_prompt(make_report("a", 9, 0, Action.DROPPED), count=TokenCount(0, False, 1))

    assert draw_rows(result)[0].endswith("  0 of ~9  dropped")


def test_names_are_shortened_between_characters_and_bars_stay_aligned() -> None:
    long = "日本語" * 6
    result = make_prompt(make_report(long, 10), make_report("ascii", 10), make_report("e\u0301" * 50, 10))
    rows = draw_rows(result)
    bars = [cell_len(row[: row.index(BLOCKS[0])]) for row in rows]

    assert len(set(bars)) == 1
    assert rows[0].startswith("日本語日本語日…日本語日本語 ")
    assert unicodedata.normalize("NFC", rows[2]).startswith("é" * 14 + "…" + "é" * 13 + " ")


def test_a_narrow_display_drops_the_bar_before_the_numbers() -> None:
    result = make_prompt(make_report("a_rather_long_name", 99_999, 1_000, Action.TRUNCATED))

    assert draw_rows(result, columns=40) == ["a_rath…_name  1,000 of 99,999  truncated"]
    assert draw_rows(result, columns=26) == ["a_ra…name  1,000 of 99,999"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_bars_use_ascii_if_the_encoding_has_no_block_characters(encoding: str) -> None:
    result = make_prompt(
        make_report("naïve 📚" + "x" * 30, 10, 5, Action.TRUNCATED),
        cuts=(Cut(section="naïve 📚", rung="cap", before=10, after=5, reason="why"),),
    )
    picture = draw_prompt(result, model="gpt-4o", display=Display(encoding=encoding), explain=True)

    assert picture.encode(encoding)
    assert "###" in picture
    assert "..." in picture
    assert "10 -> 5  cap: why" in picture
    assert "\\U0001f4da" in picture


def test_nothing_is_shortened_or_left_out_in_a_pipe() -> None:
    result = make_prompt(
        make_report("a" * 60, 10, 5, Action.TRUNCATED),
        cuts=(Cut(section="a" * 60, rung="cap", before=10, after=5, reason="why " * 40),),
    )
    display = Display(columns=40, is_terminal=False)
    _, row, _, cut = draw_prompt(result, model="gpt-4o", display=display, explain=True).splitlines()

    assert row == f"{'a' * 60}  medium  {'█' * 20}{'░' * 20}  5 of 10  capped"
    assert cut == f"{'a' * 60}  10 → 5  cap: {'why ' * 40}".rstrip()


def test_explain_says_that_nothing_was_cut() -> None:
    assert draw_prompt(make_prompt(), model="gpt-4o", display=Display(), explain=True) == (
        "0 of 1 tokens (0%), gpt-4o, exact\n\nno cuts"
    )

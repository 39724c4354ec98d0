"""Cuts by priority and by the rungs of a ladder."""

from collections.abc import Mapping
from itertools import product

import pytest

import foveate
from foveate.budget import Budget, Section, SectionRule
from foveate.errors import BudgetExceeded
from foveate.model import TokenCount
from tests.support.strategies.sections import Odd

WORDS = "one two three four five six seven eight nine ten "
LOGS = "\n".join(f"12:{minute:02d} something happened" for minute in range(60))


def actions(prompt: foveate.Prompt) -> dict[str, str]:
    return {section.name: section.action.value for section in prompt.sections}


def test_of_equal_priorities_the_later_is_cut_first() -> None:
    sections = [Section(name, WORDS * 10) for name in "abc"]
    whole = foveate.count("\n\n".join([WORDS * 10] * 3)).tokens

    prompt = foveate.assemble(sections, Budget(total_tokens=whole - 30))

    assert actions(prompt) == {"a": "kept", "b": "kept", "c": "truncated"}


def test_priorities_decide_in_any_order_of_sections() -> None:
    names: list[foveate.PriorityName] = ["low", "required", "medium", "high"]
    sections = [Section(name, WORDS * 10, priority=name) for name in names]
    section_tokens = foveate.count(WORDS * 10).tokens

    prompt = foveate.assemble(sections, Budget(total_tokens=round(2.5 * section_tokens)))

    assert actions(prompt) == {"low": "dropped", "required": "kept", "medium": "truncated", "high": "kept"}
    assert [cut.section for cut in prompt.cuts] == ["low", "medium"]


def test_dropping_removes_whole_sections_lowest_priority_first() -> None:
    sections = [Section(name, WORDS * 10, priority=name) for name in ("high", "medium", "low")]
    section_tokens = foveate.count(WORDS * 10).tokens

    prompt = foveate.assemble(sections, Budget(round(2.5 * section_tokens), 0, "drop_low_priority"))

    assert actions(prompt) == {"high": "kept", "medium": "kept", "low": "dropped"}
    assert prompt.cuts[0].rung == "drop_low_priority"


def test_the_progressive_ladder_trims_logs_then_mandates_then_the_context() -> None:
    sections = [
        Section("system", "You help.", priority="required"),
        Section("mandates", "\n".join(["Be brief."] * 20)),
        Section("context", items=[f"note {number}" for number in range(40)]),
        Section("logs", LOGS),
    ]
    last_five = "\n".join([*LOGS.splitlines()[-5:], "[...older entries truncated]"])
    prompts = [
        foveate.assemble(sections, Budget(total_tokens=n, ladder="progressive")) for n in (500, 280, 220, 100)
    ]

    assert [actions(prompt)["logs"] for prompt in prompts] == ["truncated"] * 4
    assert all(prompt.text.endswith(last_five) for prompt in prompts)
    assert [actions(prompt)["mandates"] for prompt in prompts] == ["kept", "kept", "dropped", "dropped"]
    assert [actions(prompt)["context"] for prompt in prompts] == ["kept", "kept", "kept", "replaced"]
    assert "[Context trimmed: 40 items]" in prompts[-1].text
    with pytest.raises(BudgetExceeded, match="after all rungs of the ladder progressive, the prompt takes"):
        foveate.assemble(sections, Budget(total_tokens=20, ladder="progressive"))


def test_the_newest_log_lines_are_kept_for_items_too() -> None:
    logs = Section("logs", items=LOGS.splitlines())

    prompt = foveate.assemble([logs], Budget(total_tokens=70, ladder="progressive"))

    assert prompt.text.splitlines() == [*LOGS.splitlines()[-5:], "[...older entries truncated]"]


def test_a_rung_stops_as_soon_as_the_prompt_fits() -> None:
    sections = [Section("a_log", LOGS), Section("b_log", LOGS)]

    prompt = foveate.assemble(sections, Budget(total_tokens=450, ladder="progressive"))

    assert actions(prompt) == {"a_log": "kept", "b_log": "truncated"}


@pytest.mark.parametrize("rung", [{"last_lines": 2, "of": "log*"}, {"replace": "log*", "with": "[log]"}])
def test_a_rung_counts_the_prompt_a_few_times_for_any_number_of_sections(
    rung: Mapping[str, object],
) -> None:
    class CharacterCounter:
        chars = 0

        def text(self, text: str) -> TokenCount:
            self.chars += len(text)
            return TokenCount(len(text), True, len(text))

    logs = [Section(f"log_{number}", f"{WORDS}\n" * 4) for number in range(300)]
    total_chars = sum(len(log.text) for log in logs)
    counter = CharacterCounter()

    prompt = foveate.assemble(logs, Budget(total_chars * 2 // 3, ladder=[rung]), counter)

    assert 100 < len(prompt.cuts) < 300
    assert counter.chars < 20 * total_chars


@pytest.mark.slow
def test_a_restored_piece_is_within_its_cap_even_if_counts_do_not_add_up() -> None:
    rules = Section("rules", "some rules\n" * 3, priority="required")
    for cap, limit_tokens in product(range(24, 34), range(40, 60)):
        log = Section("log", "one line of it " * 40, max_tokens=cap)

        prompt = foveate.assemble([rules, log], Budget(limit_tokens), Odd())

        assert prompt.sections[1].upper <= cap


def test_an_empty_context_is_replaced_by_nothing() -> None:
    sections = [Section("context", ""), Section("logs", LOGS)]

    prompt = foveate.assemble(sections, Budget(total_tokens=70, ladder="progressive"))

    assert "Context trimmed" not in prompt.text


@pytest.mark.parametrize(
    "rung", [{"last_lines": 1, "of": "*"}, {"drop": "*"}, {"replace": "*", "with": "-"}, {"truncate": "*"}]
)
def test_named_rungs_never_cut_a_required_section(rung: Mapping[str, object]) -> None:
    required = [Section(name, LOGS, priority="required") for name in ("logs", "mandates", "context")]
    sections = [*required, Section("other", LOGS)]
    needed = foveate.assemble(required, Budget(total_tokens=10_000)).tokens

    prompt = foveate.assemble(sections, Budget(needed + 1, 0, [rung, {"drop": "lowest"}]))

    assert [section.text for section in prompt.sections[:3]] == [LOGS] * 3
    assert prompt.cuts
    with pytest.raises(BudgetExceeded, match="after all rungs of the ladder") as caught:
        foveate.assemble([*sections, Section("more", "x\n" * 200)], Budget(needed + 60, 0, [{"drop": "other"}]))
    assert [size.after for size in caught.value.sections][:3] == [359] * 3


def test_a_cut_that_would_make_a_section_longer_is_not_made() -> None:
    logs = "\n".join("abcdef")
    sections = [Section("logs", logs), Section("context", "x"), Section("mandates", WORDS * 10)]

    prompt = foveate.assemble(sections, Budget(total_tokens=30, ladder="progressive"))

    assert prompt.text == f"{logs}\n\nx"


def test_a_custom_ladder_is_applied_rung_by_rung() -> None:
    rungs: list[Mapping[str, object]] = [
        {"drop": ["scratch_*"]},
        {"last_lines": 2, "of": "LOGS"},
        {"replace": "notes", "with": "({items} notes)"},
        {"truncate": "lowest"},
    ]
    sections = [
        Section("task", WORDS * 4, priority="high"),
        Section("notes", "a\n\nb\nc\n" * 10),
        Section("logs", LOGS),
        Section("scratch_pad", WORDS * 10),
    ]

    prompt = foveate.assemble(sections, Budget(total_tokens=40, ladder=rungs))

    assert [cut.rung for cut in prompt.cuts] == [
        "own: drop scratch_*",
        "own: last 2 lines of LOGS",
        "own: replace notes",
        "own: truncate lowest",
        "own: truncate lowest",
        "own: truncate lowest",
    ]
    assert [cut.section for cut in prompt.cuts[3:]] == ["logs", "notes", "task"]
    assert prompt.tokens <= 40


def test_a_ladder_is_accepted_as_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXT_MAX_TOKENS", "60")
    sections = [Section("logs", LOGS), Section("task", "Go on.", priority="required")]

    by_name = foveate.assemble(sections, "progressive")
    by_rungs = foveate.assemble(sections, [{"drop": "logs"}])

    assert by_name.limit_tokens == by_rungs.limit_tokens == 60
    assert by_name.text.endswith("Go on.")
    assert by_rungs.text == "Go on."


def test_rules_and_rungs_without_a_section_are_reported() -> None:
    rules = {"Task": SectionRule(max_tokens=5), "logs": SectionRule(max_tokens=30)}
    rungs: list[Mapping[str, object]] = [{"drop": ["scratch", "LOG*"]}, {"truncate": "lowest"}]
    sections = [Section("task", WORDS), Section("logs", LOGS)]

    prompt = foveate.assemble(sections, Budget(500, sections=rules, ladder=rungs))

    assert prompt.unmatched == ("Task", "scratch")
    assert foveate.assemble(sections, Budget(500, ladder="progressive")).unmatched == ()


def test_a_section_replaced_by_an_empty_line_leaves_no_blank_lines() -> None:
    rungs: list[Mapping[str, object]] = [{"replace": "a", "with": ""}]
    sections = [Section("x", "hello"), Section("a", WORDS * 30), Section("y", "bye")]

    prompt = foveate.assemble(sections, Budget(20, 0, rungs))

    assert prompt.text == "hello\n\nbye"
    assert actions(prompt)["a"] == "dropped"
    blank = [Section("context", " \n" * 300), Section("y", "bye")]
    assert foveate.assemble(blank, Budget(20, 0, "progressive")).text == "bye"

import json
from dataclasses import replace

import pytest

from foveate.compaction.inspection import CompactionContents, trace_carried
from foveate.compaction.summarize.extractive import CarriedLine
from foveate.compaction.summarize.summarizer import EXTRACTIVE_MODEL
from foveate.model import Format
from tests.support.stores.records import COMPACTION

MESSAGES = [
    ("user", "Please fix the login.\nNever push\nto main. The port is 8081."),
    ("assistant", "I decided to use a cookie."),
    ("user", "The port is 8090 now."),
]


def make_contents(summary: str, carried: tuple[str, ...] = (), *, model: str = "gpt-4o") -> CompactionContents:
    return CompactionContents(
        compaction=replace(COMPACTION, summary=summary, carried=carried, model=model),
        messages=[json.dumps({"role": role, "content": text}).encode() for role, text in MESSAGES],
        api_format=Format.CHAT,
    )


def test_lines_of_a_summary_by_rules_have_the_message_that_they_quote() -> None:
    summary = (
        "Goal\n- asked first: Please fix the login.\nConstraints\n- Never push to main.\nState\n"
        "- assistant: I decided to use …\n- Said nowhere.\nFiles read: a.py b.py\nNames: login.py"
    )

    assert trace_carried(make_contents(summary, model=EXTRACTIVE_MODEL)) == [
        CarriedLine("Goal", "asked first: Please fix the login.", 1, "user"),
        CarriedLine("Constraints", "Never push to main.", 1, "user"),
        CarriedLine("State", "assistant: I decided to use …", 2, "assistant"),
        CarriedLine("State", "Said nowhere.", None),
        CarriedLine("Files read", "a.py b.py", None, items=("a.py", "b.py")),
        CarriedLine("Names", "login.py", None, items=("login.py",)),
    ]


def test_facts_after_a_models_summary_are_grouped_by_their_kind() -> None:
    note = "and 3 more that may be needed, for which there is no room here"
    facts = ("web", "Never push to main.", "src/login.py", note)

    assert trace_carried(make_contents("They fixed it.", facts)) == [
        CarriedLine("Constraints", "Never push to main.", 1, "user"),
        CarriedLine("Also named", f"src/login.py web {note}", None, items=("src/login.py", "web", note)),
    ]


@pytest.mark.parametrize("api_format", [None, Format.ANTHROPIC])
def test_messages_that_cannot_be_parsed_are_searched_as_received(api_format: Format | None) -> None:
    contents = replace(
        make_contents("", ("Never open port 22.",)),
        api_format=api_format,
        messages=[b'"Never open port 22." {'],
    )

    assert trace_carried(contents) == [CarriedLine("Constraints", "Never open port 22.", 1)]


def test_a_line_without_a_heading_is_carried() -> None:
    (line,) = trace_carried(make_contents("- The port is 8090 now.", model=EXTRACTIVE_MODEL))

    assert line == CarriedLine("Carried", "The port is 8090 now.", 3, "user")


def test_an_updated_sentence_has_the_message_that_it_comes_from() -> None:
    summary = "- Dinner for 12 guests is at 18:30.\n- Lunch for 12 people is at noon."
    contents = replace(
        make_contents(summary, model=EXTRACTIVE_MODEL),
        messages=[
            json.dumps({"role": "user", "content": text}).encode()
            for text in ("Hello there.", "Dinner for 12 guests is at 19:00.", "Dinner starts at 18:30 now.")
        ],
    )

    assert [line.message for line in trace_carried(contents)] == [2, None]

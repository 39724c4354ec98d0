"""Properties of what a summary by rules carries: whole sentences of people, still true, and as many as fit."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import foveate
from foveate import BadOption, MalformedRequest
from foveate.compaction.summarize.extractive import summarize_by_rules
from foveate.model import Message, Text
from tests.support.harness.example_limits import limit_examples
from tests.support.strategies.fact_conversations import (
    conversations,
    model_message,
    result_message,
    tool_call,
    user_message,
)

_SUBJECTS = ("port", "fee", "door code", "meeting room", "parcel", "ferry")
_FILLER = ("Sounds good to me, thanks.", "Let me think about it.", "It rained again.")


def summarize(messages: list[Message], limit_characters: int) -> str:
    return summarize_by_rules(messages, limit_tokens=limit_characters, count=len).text


def said(text: str) -> str:
    return " ".join(text.split())


@st.composite
def statements(draw: st.DrawFn) -> list[Message]:
    """People's statements, small talk, and tool results that look like both."""
    messages = []
    for _ in range(draw(st.integers(1, 14))):
        subject, value = draw(st.sampled_from(_SUBJECTS)), draw(st.integers(100, 999))
        text = draw(
            st.sampled_from(
                (
                    f"The {subject} is {value}.",
                    f"The {subject} is {value} now.",
                    f"RULE: never share the {subject} {value}.",
                    f"We still have to check the {subject} of site {value}.",
                    *_FILLER,
                )
            )
        )
        said_by = {"user": user_message(text), "model": model_message(text), "tool": result_message(text)}
        messages.append(said_by[draw(st.sampled_from(("user", "model", "tool")))])
    return messages


@given(statements(), st.integers(0, 600))
def test_every_line_is_a_sentence_of_a_person_or_of_the_assistant(
    messages: list[Message], limit_characters: int
) -> None:
    people = {part.text for message in messages for part in message.parts if isinstance(part, Text)}
    text = summarize(messages, limit_characters)

    assert len(text) <= limit_characters
    for line in text.splitlines():
        if line.startswith("- "):
            assert re.sub(r"^- (?:asked first: |asked last: |assistant: )?", "", line) in people


@given(conversations, st.integers(0, 900))
@settings(max_examples=limit_examples(60))
def test_statements_occur_in_a_message_that_is_not_a_tool_result(
    messages: list[Message], limit_characters: int
) -> None:
    people = "\n".join(
        said(part.text)
        for message in messages
        for part in message.parts
        if isinstance(part, Text) and message.role in ("user", "assistant")
    )
    lines = [line for line in summarize(messages, limit_characters).splitlines() if line.startswith("- ")]
    from_people = [line for line in lines if " answered: " not in line and "asked " not in line]

    for line in from_people:
        text = re.sub(r"^- (?:assistant: )?", "", line).removesuffix(" …")
        # A sentence that was updated has a value of the update. A comma joins clauses that were apart.
        assert (
            text in people
            or text in ("ship it",)
            or set(text.replace(",", "").split())
            <= {
                *people.replace(",", "").split(),
                "…",
            }
        ), line


# Its last name fits exactly.
_EXACT_FIT = [user_message("It rained again."), model_message("The door code is 268 now.")]


@given(statements(), st.integers(40, 900))
@example(_EXACT_FIT, 42)
def test_a_summary_that_comes_back_stays_as_it_is(messages: list[Message], limit_characters: int) -> None:
    first = summarize(messages, limit_characters)
    again = summarize([Message(role="system", parts=(Text(first),))], limit_characters)

    assert sorted(map(_sort_words, again.splitlines())) == sorted(map(_sort_words, first.splitlines()))


def _sort_words(line: str) -> str:
    """The order of names is not kept."""
    return " ".join(sorted(line.split())) if line.startswith("Names: ") else line


@given(statements(), st.integers(100, 999), st.integers(100, 999))
def test_an_exact_replacement_always_removes_the_earlier_value(
    messages: list[Message], old: int, new: int
) -> None:
    first, last = f"The rent is {old} euros.", f"The rent is {new} euros."
    text = summarize([user_message(first), *messages, user_message(last)], 10_000)

    assert last in text
    assert first == last or first not in text


@given(statements())
def test_no_statement_of_a_person_that_fits_is_left_out(messages: list[Message]) -> None:
    everything = summarize(messages, 100_000)
    room = len(everything) // 2
    half = summarize(messages, room)
    left_out = set(everything.splitlines()) - set(half.splitlines())

    for line in left_out:
        if line.startswith(("- The", "- RULE", "- We")) and "asked" not in half:
            assert len(half) + 1 + len(line) > room


def test_headings_take_at_most_a_fiftieth() -> None:
    messages = [
        user_message(f"Never paint wall {number} red. The fee of wall {number} is {number} euros.")
        for number in range(99)
    ]
    headings = ("Goal", "Constraints", "Facts", "Open tasks", "State", "Decisions", "Errors", "Also said")

    for limit_characters in (100, 400, 1_000, 4_000):
        text = summarize(messages, limit_characters)
        assert sum(len(line) + 1 for line in text.splitlines() if line in headings) <= limit_characters / 50
        assert len(text) > limit_characters * 0.7


def test_labelled_statements_come_before_others() -> None:
    messages = [user_message(f"The fee of stall {number} is {number * 3} euros.") for number in range(30)]
    messages.insert(7, user_message("HOUSE RULE: the gate closes at nine in the evening on all days."))

    assert "HOUSE RULE" in summarize(messages, 80)


def test_a_goal_does_not_repeat_what_is_no_longer_true() -> None:
    messages = [
        user_message("Please set up the server. The port is 8081."),
        model_message("Yes."),
        user_message("The port is 8090 now."),
    ]

    text = summarize(messages, 1_000)

    assert "- asked first: Please set up the server.\n" in text
    assert "8081" not in text


def test_stop_words_and_generic_identifiers_are_not_names() -> None:
    result = "time() log() user() THE TEXT AND load_all value() self FOR"
    text = summarize([model_message(tool_call("Bash", command="make")), result_message(result)], 1_000)

    assert text == "Names: load_all"


def test_messages_of_any_format_are_summarized() -> None:
    rule = "Never deploy on a Friday."
    for message in (
        {"role": "user", "content": rule},
        {"role": "user", "content": [{"type": "text", "text": rule}]},
        {"role": "user", "parts": [{"text": rule}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": rule}]},
        user_message(rule),
    ):
        assert foveate.summarize([message], limit_tokens=50) == f"- {rule}"


def test_invalid_input_is_rejected() -> None:
    with pytest.raises(BadOption, match="must be a list of messages, not str"):
        foveate.summarize("hello", limit_tokens=10)  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(BadOption, match="limit_tokens"):
        foveate.summarize([], limit_tokens=-1)
    with pytest.raises(BadOption, match="all dicts or all Message values"):
        foveate.summarize([user_message("a"), {"role": "user", "content": "b"}], limit_tokens=10)
    with pytest.raises(MalformedRequest):
        foveate.summarize([3], limit_tokens=10)  # pyrefly: ignore[bad-argument-type]


def test_nothing_gives_an_empty_summary() -> None:
    assert foveate.summarize([], limit_tokens=100) == ""
    assert foveate.summarize([{"role": "user", "content": "Never fly."}], limit_tokens=0) == ""


@pytest.mark.slow
def test_a_message_of_a_megabyte_is_summarized_in_seconds() -> None:
    text = "\n".join(
        f"The fee of stall {number} is {number * 3} euros, and it never changes." for number in range(17_000)
    )

    assert foveate.summarize([{"role": "user", "content": text}], limit_tokens=500)


def test_what_the_tail_changes_is_left_out() -> None:
    head = [user_message("The port is 8081. Never fly.")]
    summary = summarize_by_rules(
        head, limit_tokens=1_000, count=len, tail=[user_message("The port is 8090. Never fly.")]
    )

    assert summary.text == "- Never fly."


def test_numbers_of_tables_and_acronyms_are_not_names() -> None:
    table = "| id | price |\n| 1 | 300 |\nThe API answers JSON over HTTP. See src/orders/export.py."
    call = tool_call("Read", file_path="src/orders/readme.md")
    messages = [user_message("Have a look at it."), model_message(call), result_message(table)]

    names = summarize(messages, 600).partition("Names: ")[2].split()

    assert "src/orders/export.py" in names
    assert {"300", "API", "JSON", "HTTP"}.isdisjoint(names)


def test_half_a_bold_marker_is_not_carried() -> None:
    assert "- Deadline: Friday at 17:30." in summarize([user_message("**Deadline**: Friday at 17:30.")], 400)


PASTED_PAGE = "\n".join(
    [
        "What is gateway.md about?",
        "",
        "# Gateway",
        "",
        *(f"The gateway never retries request number {number} of a session." for number in range(20)),
        "Never store the key of a client.",
        "| the same, always 1 hour | 0.179 |",
    ]
)


def test_a_pasted_text_is_not_the_users_rule_and_replaces_nothing() -> None:
    messages = [
        user_message("The gateway retries request number 3 of a session. Never push to main."),
        user_message(PASTED_PAGE),
    ]

    carried = summarize_by_rules(messages, limit_tokens=20_000, count=len).carried

    sections = {line.text: (line.section, line.message) for line in carried}
    assert sections["asked first: What is gateway.md about?"] == ("Goal", 2)
    assert sections["Never push to main."] == ("Constraints", 1)
    assert sections["The gateway retries request number 3 of a session."][1] == 1
    assert sections["The gateway never retries request number 3 of a session."] == ("From pasted text", 2)
    assert not any("always 1 hour" in text for text in sections)


def test_what_people_wrote_comes_before_pasted_text() -> None:
    own = user_message("Please review it. Never push to main.")
    messages = [user_message(PASTED_PAGE), own]

    summary = summarize_by_rules(messages, limit_tokens=150, count=len).text

    assert "- Never push to main." in summary


def test_lines_of_pasted_text_stay_such_in_the_next_summary() -> None:
    messages = [user_message(PASTED_PAGE)]
    summary = summarize_by_rules(messages, limit_tokens=20_000, count=len).text

    again = summarize_by_rules([user_message(summary)], limit_tokens=20_000, count=len)

    assert {line.section for line in again.carried if "retries" in line.text} == {"From pasted text"}


def test_an_update_of_a_marked_statement_comes_first_as_well() -> None:
    messages = [
        user_message("HARD CONSTRAINT: The budget of the fair is 800 euros in total."),
        user_message("The caterer Fennel charges 64 euros a head and brings 12 tables for the guests."),
        user_message("Quick update: the budget of the fair is 500 euros now."),
        user_message("The hall in Marsh Lane opens at 17:30 for 96 guests at 12 tables."),
        model_message("The hall in Marsh Lane opens at 17:30 for 96 guests at 12 tables."),
    ]

    assert "500 euros" in summarize(messages, 100)

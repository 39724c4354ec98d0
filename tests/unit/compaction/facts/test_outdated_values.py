"""Values that are no longer true are cut out of all statements."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.compaction.facts.extract import read_conversation
from tests.support.free_conversations import DEV, MORE_DEV, TEST, FreeConversation
from tests.support.harness.example_limits import limit_examples
from tests.support.strategies.fact_conversations import model_message, user_message


def current_texts(*turns: str) -> list[str]:
    """The current statements of turns of the user and the assistant, who take turns."""
    messages = [(model_message if number % 2 else user_message)(text) for number, text in enumerate(turns)]
    conversation = read_conversation(messages)
    return [
        statement.text
        for number, statement in enumerate(conversation.statements)
        if conversation.is_current(number)
    ]


@pytest.mark.parametrize(
    ("old", "new", "current"),
    [
        (
            "Lena Roth keeps the keys.",
            "The keys are kept by Omar Haddad now, not Lena Roth.",
            "The keys are kept by Omar Haddad now.",
        ),
        ("Call the bank on Tuesday.", "Call the bank on Thursday, not Tuesday.", "Call the bank on Thursday."),
        (
            "We stay at the Ibis in Porto.",
            "Scrap the Ibis, we stay at the Grand Plaza.",
            "we stay at the Grand Plaza.",
        ),
    ],
)
def test_a_statement_is_carried_without_what_it_rejects(old: str, new: str, current: str) -> None:
    assert current_texts(old, "Noted.", new) == [current]


def test_what_nobody_said_before_is_a_wish() -> None:
    assert current_texts("Write the examples in Rust, not Zig.") == ["Write the examples in Rust, not Zig."]


def test_what_the_assistant_repeated_is_cut_out() -> None:
    texts = current_texts(
        "The piano tuner comes on 3 May. The dog sitter is Noor.",
        "So the dog sitter is Noor, the piano man is here on 3 May.",
        "The piano tuner comes on 9 May, not 3 May.",
    )

    assert texts == [
        "The dog sitter is Noor.",
        "the dog sitter is Noor",
        "The piano tuner comes on 9 May.",
    ]


def test_a_value_that_is_too_late_is_outdated() -> None:
    texts = current_texts(
        "Parents get the class photos on 12 March.",
        "Class photos go out on 12 March.",
        "The fair is on the 9th, so 12 March is too late. Send the class photos on 4 March.",
    )

    assert not any("12 March" in text for text in texts)
    assert any("4 March" in text for text in texts)


def test_a_value_that_is_true_again_stays() -> None:
    texts = current_texts(
        "The tuner comes at 14:20.",
        "Noted.",
        "The tuner now comes at 16:45.",
        "Noted.",
        "After all the tuner comes at 14:20.",
    )

    assert texts == ["After all the tuner comes at 14:20."]


def test_the_same_number_of_something_else_stays() -> None:
    texts = current_texts(
        "Order 40 chairs for the hall.",
        "Noted.",
        "We need 55 chairs, not 40.",
        "Noted.",
        "The oven is at 40 degrees.",
    )

    assert "The oven is at 40 degrees." in texts
    assert not any("40 chairs" in text for text in texts)


def test_a_question_after_a_labelled_line_does_not_hide_it() -> None:
    texts = current_texts("Ferry: the Old Mill line, I booked it. It costs 96 now. Is that fine?")

    assert any("Old Mill" in text for text in texts)


def test_a_date_replaces_another_with_its_weekday() -> None:
    texts = current_texts(
        "The choir sings on Thursday 2 May in the barn.", "Noted.", "The choir sings on 6 May now."
    )

    assert not any("Thursday" in text or "2 May" in text for text in texts)


@pytest.mark.parametrize(
    ("old", "new", "current"),
    [
        (
            "Dev sits in economy with 38C. He wants an aisle.",
            "So Dev's seat changes from 38C to 30D, still aisle, more legroom too.",
            ["He wants an aisle.", "So Dev's seat changes to 30D, still aisle, more legroom too."],
        ),
        (
            "I have 21C, he's at the window next to me.",
            "They reseated me. I'm no longer in 21C, I'm in 19F.",
            ["They reseated me.", "he's at the window next to me.", "I'm in 19F."],
        ),
        (
            "The hall key is with Desmond, 07700 900 112.",
            "It's not 07700 900 112 any more. New: 07700 900 376.",
            ["New: 07700 900 376.", "The hall key is with Desmond"],
        ),
        (
            "Our budget is 4,200 euros without the flights.",
            "My mother adds to it, so we're at 5,100 euros instead of 4,200.",
            ["My mother adds to it, so we're at 5,100 euros."],
        ),
        (
            "We get the keys on 29 August.",
            "So it isn't the 29th of August. Everybody agreed on 12 September.",
            ["Everybody agreed on 12 September."],
        ),
    ],
)
def test_what_a_statement_says_is_no_longer_true_is_cut(old: str, new: str, current: list[str]) -> None:
    assert sorted(current_texts(old, "Noted.", new)) == sorted(current)


@pytest.mark.parametrize(
    "text",
    [
        "The market is open from 9:00 to 17:00.",
        "Keep it no longer than 10 days.",
        "Sow beans from 3 May to 9 May.",
    ],
)
def test_a_range_or_a_limit_rejects_nothing(text: str) -> None:
    assert current_texts(text) == [text]


_CONVERSATIONS = [
    conversation
    for conversation in (*DEV, *MORE_DEV, *TEST)
    if not any("renamed" in text for text in conversation.said)
]


@given(st.lists(st.sampled_from(_CONVERSATIONS), min_size=3, max_size=6))
@settings(max_examples=limit_examples(60))
def test_a_statement_never_says_what_nobody_said(conversations: list[FreeConversation]) -> None:
    """What is left of a sentence consists of its own words; no value of another one is written into it."""
    texts = [text for conversation in conversations for text in conversation.said]
    conversation = read_conversation([user_message(text) for text in texts])

    for statement in conversation.statements:
        said = texts[statement.message_index].lower()
        assert [word for word in statement.text.lower().split() if word.strip("….,;:") not in said] == []

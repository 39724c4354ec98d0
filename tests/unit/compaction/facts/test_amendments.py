import pytest
from hypothesis import given

from foveate.compaction.facts.statements import find_statements
from foveate.compaction.facts.updates import find_updates, no_similarity
from foveate.model import Message
from tests.support.strategies.fact_conversations import conversations, user_message


def current_texts(*texts: str) -> list[str]:
    """What is still true, judged without word vectors, in order of what was said."""
    updates = find_updates(find_statements([user_message(text) for text in texts]), no_similarity)
    current = [
        statement for number, statement in enumerate(updates.statements) if number not in updates.replaced
    ]
    return [
        statement.text for statement in sorted(current, key=lambda found: (found.message_index, found.start))
    ]


def test_a_value_alone_stays_as_it_was_said() -> None:
    assert current_texts("Dinner is at 19:00 in room E7.", "Make it 18:30.") == [
        "Dinner is at … in room E7.",
        "Make it 18:30.",
    ]


@pytest.mark.parametrize(
    ("old", "new", "amended"),
    [
        (
            "The ferry leaves at 07:30 from gate E7.",
            "The ferry got pushed to 09:15.",
            "The ferry leaves at … from gate E7.",
        ),
        (
            "Dad takes 20 mg of lisinopril at 08:00 and 500 mg of metformin at 19:00.",
            "The lisinopril is now 10 mg a day.",
            "Dad takes … of lisinopril at 08:00 and 500 mg of metformin at 19:00.",
        ),
        (
            "The room in the Alpenrose costs $90 and is ours from 3 March to 7 March.",
            "The room is now ours until 9 March.",
            "The room in the Alpenrose costs $90 and is ours from 3 March to ….",
        ),
        (
            "The soup simmers for 45 minutes at 90 degrees.",
            "The soup now simmers for 2 hours.",
            "The soup simmers for … at 90 degrees.",
        ),
        ("Dinner is at 6 pm for 8 people.", "Dinner starts at 18:30 now.", "Dinner is at … for 8 people."),
        (
            "The room costs 90 euros from 3 March.",
            "The room now costs $85 with the card.",
            "The room costs … from 3 March.",
        ),
        (
            "The gravel is delivered on 11 April and costs 240 euros.",
            "The gravel people called, they can't come before 19 April.",
            "The gravel is delivered on … and costs 240 euros.",
        ),
    ],
)
def test_values_that_an_update_does_not_change_stay(old: str, new: str, amended: str) -> None:
    assert current_texts(old, new) == [amended, new]


def test_a_statement_whose_values_have_all_changed_is_dropped() -> None:
    assert current_texts(
        "The ferry leaves at 07:30 from gate E7 and costs 30 euros.",
        "The ferry leaves at 09:15 now.",
        "The ferry now costs 35 euros.",
        "The ferry leaves from gate E9 now.",
    ) == [
        "The ferry leaves at 09:15 now.",
        "The ferry now costs 35 euros.",
        "The ferry leaves from gate E9 now.",
    ]


@pytest.mark.parametrize(
    ("new", "name"),
    [
        ("We renamed inv_archive to invoices_history.", "invoices_history"),
        ("The table inv_archive was renamed to invoices_history.", "invoices_history"),
        ("inv_archive is now called `invoices_history`.", "invoices_history"),
        ("inv_archive heißt jetzt Rechnungen.", "Rechnungen"),
    ],
)
def test_statements_use_the_new_name_of_what_was_renamed(new: str, name: str) -> None:
    old = "Invoices live in inv_archive, and inv_archive_2019 stays."

    assert current_texts(old, new) == [f"Invoices live in {name}, and inv_archive_2019 stays.", new]


@pytest.mark.parametrize("new", ["Our host in Poros is called Despina.", "Rename the file to notes.txt."])
def test_what_only_has_a_name_is_not_renamed(new: str) -> None:
    assert current_texts("The ferry to Poros is full.", new) == ["The ferry to Poros is full.", new]


def test_a_renaming_that_is_repeated_is_kept_once() -> None:
    texts = ("We renamed inv_archive to invoices_history.", "inv_archive is now called invoices_history.")

    assert current_texts("Use inv_archive.", *texts, texts[0]) == ["Use invoices_history.", texts[1], texts[0]]


def test_lines_of_one_summary_do_not_rename_each_other() -> None:
    summary = "- Keep the dump of inv_archive.\n- We renamed inv_archive to invoices_history."

    assert current_texts(summary) == [
        "Keep the dump of inv_archive.",
        "We renamed inv_archive to invoices_history.",
    ]


@given(conversations)
def test_a_conversation_without_updates_is_not_amended(messages: list[Message]) -> None:
    statements = find_statements(messages)
    updates = find_updates(statements, no_similarity)

    assert list(updates.statements[: updates.count]) == statements
    assert updates.replaced or updates.count == len(updates.statements)


def test_a_value_of_another_unit_leaves_a_gap_and_is_not_written_in_its_place() -> None:
    texts = current_texts("There are 43 stage cues, Kit is fifteen and a genius.", "Kit has 51 cues now.")

    assert not any("Kit is 51" in text for text in texts)


def test_an_ordinal_is_not_replaced_by_a_number() -> None:
    texts = current_texts("The call for papers is open until the 15th.", "The call has 140 papers now.")

    assert not any("until the 140" in text for text in texts)

import pytest
from hypothesis import given

from foveate.compaction.facts.amendments import complete_ellipses
from foveate.compaction.facts.statements import find_statements
from foveate.compaction.facts.updates import find_updates, no_similarity
from foveate.model import Message
from tests.support.strategies.fact_conversations import conversations, user_message


def current_texts(*texts: str) -> list[str]:
    """What is still true, judged without word vectors, in order of what was said."""
    statements = complete_ellipses(find_statements([user_message(text) for text in texts]))
    updates = find_updates(statements, no_similarity)
    current = [
        statement for number, statement in enumerate(updates.statements) if number not in updates.replaced
    ]
    return [
        statement.text for statement in sorted(current, key=lambda found: (found.message_index, found.start))
    ]


@pytest.mark.parametrize(
    ("texts", "completed"),
    [
        (("Dinner is at 19:00.", "Make it 18:30."), "Dinner is at 18:30."),
        (("Dinner is at 6 pm.", "Wait, make it 7."), "Dinner is at 7 pm."),
        (("The courier comes on Monday.", "Sorry, Tuesday."), "The courier comes on Tuesday."),
        (("It is at 9:30.", "We are 8 for dinner.", "Two more come, that makes 10."), "We are 10 for dinner."),
        (
            ("It listens on port 9200.", "Keep 3 copies.", "Port 9200 is taken, use 9310."),
            "It listens on port 9310.",
        ),
        (
            (
                "We have a room from 3 March to 7 March.",
                "I work that week, so we come from 10 March to 14 March.",
            ),
            "We have a room from 10 March to 14 March.",
        ),
    ],
)
def test_a_value_alone_is_completed_by_what_it_changes(texts: tuple[str, ...], completed: str) -> None:
    current = current_texts(*texts)

    assert completed in current
    assert len(current) == len(texts) - 1


@pytest.mark.parametrize(
    "texts",
    [
        ("Dinner is at 19:00.", "That makes 300 euros."),  # another type
        ("The shelf is 80 cm wide.", "Make it 3 kg."),  # another unit
        ("The lift opens at 9:00.", "At 17:00."),  # perhaps an answer
        ("We still need to port over a_file.ts.", "Only one file is left, main_file.ts, read it in full."),
    ],
)
def test_a_value_that_may_belong_to_something_else_stays_as_it_was_said(texts: tuple[str, ...]) -> None:
    statements = complete_ellipses(find_statements([user_message(text) for text in texts]))

    assert [statement.text for statement in statements] == list(texts)


@pytest.mark.parametrize(
    ("texts", "current"),
    [
        (
            ("Emil gets 8 euros a week.", "Klara gets 11 euros a week.", "Emil turned ten, he gets 10 euros."),
            ["Klara gets 11 euros a week.", "Emil gets 10 euros a week."],
        ),
        (
            (
                "Set the hall to 21 degrees and the bedroom to 17 degrees.",
                "The bedroom is cold, 18 degrees there.",
            ),
            ["Set the hall to 21 degrees and the bedroom to 18 degrees."],
        ),
        (
            ("Run it in eu-west-1 with 3 replicas and a timeout of 30 s.", "Actually make it 5 replicas."),
            ["Run it in eu-west-1 with 5 replicas and a timeout of 30 s."],
        ),
        (
            ("The bedroom window is 120 cm wide.", "The bedroom door is new: 80 cm."),
            ["The bedroom window is 120 cm wide.", "The bedroom door is new: 80 cm."],
        ),
    ],
)
def test_a_value_alone_belongs_to_what_the_other_clauses_name(
    texts: tuple[str, ...], current: list[str]
) -> None:
    assert current_texts(*texts) == current


@pytest.mark.parametrize(
    ("old", "new", "amended"),
    [
        (
            "The ferry leaves at 07:30 from gate E7.",
            "The ferry got pushed to 09:15.",
            "The ferry leaves at 09:15 from gate E7.",
        ),
        (
            "Dad takes 20 mg of lisinopril at 08:00 and 500 mg of metformin at 19:00.",
            "The lisinopril is now 10 mg a day.",
            "Dad takes 10 mg of lisinopril at 08:00 and 500 mg of metformin at 19:00.",
        ),
        (
            "The room in the Alpenrose costs $90 and is ours from 3 March to 7 March.",
            "The room is now ours until 9 March.",
            "The room in the Alpenrose costs $90 and is ours from 3 March to 9 March.",
        ),
        (
            "The soup simmers for 45 minutes at 90 degrees.",
            "The soup now simmers for 2 hours.",
            "The soup simmers for 2 hours at 90 degrees.",
        ),
        ("Dinner is at 6 pm for 8 people.", "Dinner starts at 18:30 now.", "Dinner is at 18:30 for 8 people."),
        (
            "The room costs 90 euros from 3 March.",
            "The room now costs $85 with the card.",
            "The room costs $85 from 3 March.",
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


def test_an_amended_statement_is_updated_again() -> None:
    assert current_texts(
        "The ferry leaves at 07:30 from gate E7 and costs 30 euros.",
        "The ferry leaves at 09:15 now.",
        "The ferry now costs 35 euros.",
        "The ferry leaves from gate E9 now.",
    ) == [
        "The ferry leaves at 09:15 from gate E9 and costs 35 euros.",
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
    statements = complete_ellipses(find_statements(messages))
    updates = find_updates(statements, no_similarity)

    assert list(updates.statements[: updates.count]) == statements
    assert updates.replaced or updates.count == len(updates.statements)


def test_a_value_of_another_unit_leaves_a_gap_and_is_not_written_in_its_place() -> None:
    texts = current_texts("There are 43 stage cues, Kit is fifteen and a genius.", "Kit has 51 cues now.")

    assert not any("Kit is 51" in text for text in texts)


def test_an_ordinal_is_not_replaced_by_a_number() -> None:
    texts = current_texts("The call for papers is open until the 15th.", "The call has 140 papers now.")

    assert not any("until the 140" in text for text in texts)

import pytest

from foveate.compaction.facts.statements import (
    Statement,
    StatementKind,
    find_statements,
    is_request,
    is_summary,
)
from foveate.model import Message, Text
from tests.support.strategies.fact_conversations import model_message, result_message, user_message


def statements_of(*texts: str) -> list[Statement]:
    return find_statements([user_message(text) for text in texts])


def texts_of(*texts: str) -> list[str]:
    return [statement.text for statement in statements_of(*texts)]


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        ("Never deploy on a Friday.", StatementKind.CONSTRAINT),
        ("I like short answers.", StatementKind.PREFERENCE),
        ("We still have to book the ferry.", StatementKind.TASK),
        ("The staging port is 8081.", StatementKind.FACT),
        ("Priya Raman waters the beds.", StatementKind.FACT),
        ("Der Wagen kommt am 3. Mai.", StatementKind.FACT),
        ("We chose the small boat over the large boat.", StatementKind.DECISION),
        ("That sounds lovely, thanks.", StatementKind.OTHER),
    ],
)
def test_a_sentence_has_a_kind(sentence: str, kind: StatementKind) -> None:
    (statement,) = statements_of(sentence)

    assert (statement.text, statement.kind) == (sentence, kind)


@pytest.mark.parametrize(
    ("line", "label"),
    [
        ("SAFETY RULE: Never feed the fox.", "SAFETY RULE"),
        ("Visa note: Ana needs a stamp.", "Visa note"),
        ("- **House style:** write the country in English.", "House style"),
        ("Correction: the port is 80.", ""),
        ("The plan has changed: we fly on Monday.", ""),
        ("see: the port is 80.", ""),
    ],
)
def test_a_label_is_a_few_words_before_a_colon_and_not_a_clause(line: str, label: str) -> None:
    assert statements_of(line)[0].label == label


def test_a_statement_after_a_labelled_one_stands_alone() -> None:
    assert texts_of("TODO: ask the landlord about parking. The staging port is 8081. Call him first.") == [
        "TODO: ask the landlord about parking.",
        "The staging port is 8081.",
        "Call him first.",
    ]


def test_a_label_covers_the_rest_of_its_line() -> None:
    assert texts_of("BUDGET: The cap is $500. Never exceed it.\nThe sky is blue today.") == [
        "BUDGET: The cap is $500. Never exceed it.",
        "The sky is blue today.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "| 2 | an option must not be used |",
        "> You must never lock the door.",
        "```\nyou must never run this\n```",
        "# What it never does",
        "What it never",
        "If a section must",
        "<output>you must never reboot</output>",
        "    if must_never_run: return False",
        "Follow these rules:",
    ],
)
def test_tables_code_quotations_titles_and_fragments_are_not_statements(text: str) -> None:
    assert texts_of(f"Fine.\n{text}\n") == []


def test_a_quoted_order_is_not_a_constraint() -> None:
    (statement,) = statements_of('The packet says "Always soak for twelve hours".')

    assert statement.kind is not StatementKind.CONSTRAINT


def test_tool_results_have_no_statements() -> None:
    messages = [
        result_message("You must never reboot. The port is 80."),
        Message(role="tool", parts=(Text("Never reboot."),)),
    ]

    assert find_statements(messages) == []


def test_the_assistant_confirms_facts_but_sets_no_constraints() -> None:
    messages = [model_message("You must never reboot. I booked room 12. Sounds good.")]

    assert [statement.text for statement in find_statements(messages)] == ["I booked room 12."]


def test_instructions_of_developers_count_without_a_cue() -> None:
    (statement,) = find_statements([Message(role="system", parts=(Text("Be brief."),))])

    assert statement.kind is StatementKind.PREFERENCE


def test_a_summary_is_read_back_with_who_said_what() -> None:
    text = (
        "- asked first: Plan the trip.\n- Never fly.\n- assistant: I booked room 12.\n"
        '- Bash answered: "you must reboot"\nFiles edited: a.py\nNames: x_y'
    )

    found = find_statements([Message(role="system", parts=(Text(text),))])

    assert is_summary(text)
    assert [(statement.text, statement.speaker.name, statement.request_prefix) for statement in found] == [
        ("Plan the trip.", "USER", "asked first: "),
        ("Never fly.", "USER", ""),
        ("I booked room 12.", "MODEL", ""),
    ]


def test_other_texts_are_not_taken_for_a_summary() -> None:
    assert not is_summary("Names\nof things")
    assert not is_summary("- one\nand another line")
    assert not is_summary("")


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("Please fix the login.", True),
        ("Fix the login in src/auth.py.", True),
        ("Hello! I want to plan a trip.", True),
        ("What is the time?", True),
        ("Bitte hilf mir beim Umzug.", True),
        ("Reviewing the layout of the pipeline.", False),
        ("The port is 80.", False),
    ],
)
def test_a_request_asks_for_something(text: str, asks: bool) -> None:
    assert is_request(text) is asks


def test_only_constraints_and_labelled_lines_of_a_long_document_count() -> None:
    lines = [f"The value of row {number} is {number * 7}." for number in range(500)]

    assert texts_of("\n".join([*lines, "Never drop a row.", "RULE: rows stay sorted."])) == [
        "Never drop a row.",
        "RULE: rows stay sorted.",
    ]


def test_an_indented_list_of_the_user_is_not_taken_for_a_summary() -> None:
    (statement,) = find_statements([Message(role="user", parts=(Text("\n - [ ] ship it, never touch main."),))])

    assert statement.text == "[ ] ship it, never touch main."
    assert not statement.is_summary

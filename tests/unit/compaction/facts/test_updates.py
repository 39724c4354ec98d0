import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.compaction.facts.statements import find_statements
from foveate.compaction.facts.updates import find_replacements, no_similarity, word_similarity
from foveate.model import Message
from tests.support.strategies.fact_conversations import conversations, model_message, user_message


def current_texts(*texts: str) -> list[str]:
    """What is still true, judged without word vectors."""
    statements = find_statements([user_message(text) for text in texts])
    replaced = find_replacements(statements, no_similarity)
    return [statement.text for number, statement in enumerate(statements) if number not in replaced]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("The port is 8081.", "The port is 8082."),
        ("The deadline is 2027-03-01.", "Update: the deadline moved to March 9."),
        ("Lena Roth keeps the keys.", "The keys are kept by Omar Haddad now, not Lena Roth."),
        ("We refer to the effort as PINE-12.", "The effort was renamed to OAK-77."),
        ("Bake it at 180 degrees.", "Actually, bake it at 200 degrees."),
        ("The meeting is on Monday.", "The meeting is on Tuesday instead."),
        ("Rent is $800 a month.", "From now on the rent is nine hundred dollars."),
        ("Work happens on feature/old-1.", "We switched to feature/new-2; next come the checks."),
        ("RULE: Never share the door code K-11.", "The door code rotated: never share K-22."),
        ("GOAL: We are in phase 1 of 4.", "GOAL: We are in phase 2 of 4."),
        ("RULE: Never share the door code K-11.", "RULE: The door code K-22 must never be shared."),
        ("RULE: Only Lena Roth may sign.", "RULE: Only Omar Haddad may sign."),
        ("I want terse answers.", "I would rather get warm answers."),
        ("Buy a tent with two rooms.", "We do not need the tent any more."),
        ("Reserve the boat for Sunday morning.", "Forget the boat, it rains."),
        ("Das Treffen ist am 3. Mai.", "Das Treffen ist doch erst am 9. Mai."),
        ("La cena es a las 20:30.", "La cena ahora es a las 21:15."),
        ("Le code est AB-12.", "Désormais le code est CD-34."),
        ("Der Wagen kommt am 14. Juli.", "Der Wagen kommt am 27. Mai."),
        ("Backups are kept for 93 days.", "Legal says backups are kept for 30 days."),
        (
            "The hotel in Lisbon is booked for 12 June.",
            "Actually the hotel is from 14 June, because Ana works.",
        ),
        ("Budget: 2,400 euros in total.", "The budget went up to 2,900 euros."),
        ("The loan has a rate of 3.4%.", "The rate is not 3.4% any more but 3.9%."),
        ("TODO: Buy tickets for the museum on Tuesday.", "Forget the museum and the boat tour."),
        ("Book the fireworks for 23:00.", "We cancelled the fireworks because of the drought."),
    ],
)
def test_a_later_statement_about_the_same_thing_wins(old: str, new: str) -> None:
    assert current_texts(old, new) == [new]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The staging port is 8081.", "The production port is 8443."),
        ("The train to Porto leaves at 10:20.", "The train to Braga leaves at 11:40."),
        ("The billing address is 12 Quay Street.", "The delivery address is 15 Quay Street."),
        ("Anna's room is number 12.", "Ben's room is number 14."),
        ("Anna lives in Rome.", "Ben lives in Oslo."),
        ("Anna Lind is a vegetarian.", "Ben Ross is a vegetarian."),
        ("Run unit tests with pytest.", "Run integration tests with tox."),
        ("Never touch table 3.", "Never touch table 4."),
        ("Read chapter 3.", "Read chapter 4."),
        ("RULE: Never delete ticket AB-12.", "RULE: Never delete ticket AB-15."),
        ("FACT: The region is eu-north-1.", "FACT: The backup region is us-west-2."),
        ("Never open port 22.", "The port is 8090 now."),
        ("The fee of stall 7 is 30 euros.", "The fee of stall 8 is 35 euros."),
        ("The hotel room costs 120 euros.", "Breakfast in the hotel room costs 15 euros."),
        ("The region is eu-north-1.", "The backup region is us-west-2."),
        ("The tomatoes go into bed 3.", "The peppers now go into bed 5."),
        ("The north fence is 12 metres long.", "The south fence is 19 metres long."),
        ("Lunch is at 12:30.", "The budget is 300 euros."),
        ("The hotel in Lisbon costs 120 euros a night.", "The hotel in Porto is now 95 euros."),
        ("Ana's passport number is X1234567.", "Ben's number is now Y7654321."),
        ("The office is at 8 Mill Road.", "The warehouse moved to 22 Canal Street."),
        ("The raised bed gets 12 litres a day.", "The herb bed actually gets 5 litres a day."),
        ("The budget for food is 300 euros.", "The budget for travel went up to 450 euros."),
        ("Buy museum tickets for Tuesday.", "Don't forget the museum tickets."),
        ("The unused index takes 3 GB.", "We still need to drop the unused index."),
        ("Rear tyres need 2.8 bar.", "With the trailer the rear tyres need 3.1 bar."),
        ("The honey is sold to Feinkost Adler.", "Adler is in Bremen, the wax is sold to Kerzen Roth."),
        ("Paula brings the projector.", "Paula is here, so Igor brings the cake."),
        ("Server alpha has 8 GB.", "Server beta was upgraded to 16 GB."),
        ("Oskar Winther plays the king.", "Oskar called, Bela Szabo plays the queen."),
    ],
)
def test_similar_statements_about_different_things_both_stay(one: str, other: str) -> None:
    assert current_texts(one, other) == [one, other]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Paula brings the projector.", "Paula is ill, so Igor brings the projector."),
        ("The honey is sold to Feinkost Adler.", "Feinkost Adler closed, the honey goes to Markthalle Ost."),
        ("Files are uploaded to cast.example.net.", "We left cast.example.net, files go to audio.example.org."),
    ],
)
def test_a_clause_about_the_old_value_announces_its_replacement(old: str, new: str) -> None:
    assert current_texts(old, new) == [new]


def test_a_sentence_about_the_old_value_announces_the_next() -> None:
    current = current_texts("Bring the van to Autohaus Petri.", "Petri is full. Garage Nowak takes the van.")

    assert current == ["Petri is full.", "Garage Nowak takes the van."]


def test_of_several_updates_the_last_wins() -> None:
    assert current_texts("The cap is $5.", "The cap is $6.", "The cap is $7 now.") == ["The cap is $7 now."]


def test_a_repeated_statement_is_kept_once() -> None:
    assert current_texts("The port is 80.", "Fine weather is expected.", "the port is 80") == [
        "Fine weather is expected.",
        "the port is 80",
    ]


def test_the_assistant_does_not_change_what_people_said() -> None:
    messages = [user_message("The port is 8081."), model_message("The port is 9090 now.")]

    assert find_replacements(find_statements(messages), no_similarity) == {}


def test_word_vectors_recognize_other_words_for_the_same_thing() -> None:
    pytest.importorskip("wordllama")
    statements = find_statements(
        [user_message("Our flight leaves on March 3."), user_message("Change of plan: we fly on March 9.")]
    )

    assert find_replacements(statements, no_similarity) == {}
    assert find_replacements(statements, word_similarity()) == {0: 1}


@given(conversations)
def test_only_earlier_statements_are_replaced(messages: list[Message]) -> None:
    statements = find_statements(messages)

    assert all(old < new < len(statements) for old, new in find_replacements(statements, no_similarity).items())


@given(st.sampled_from(("port", "code", "fee")), st.integers(100, 999), st.integers(100, 999), conversations)
def test_an_exact_replacement_always_removes_the_earlier(
    subject: str, old: int, new: int, between: list[Message]
) -> None:
    first, last = f"The {subject} is {old}.", f"The {subject} is {new}."
    messages = [user_message(first), *between, user_message(last)]
    statements = find_statements(messages)
    replaced = find_replacements(statements, no_similarity)

    assert 0 in replaced
    assert len(statements) - 1 not in replaced

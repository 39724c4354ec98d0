import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.compaction.facts.statements import find_statements
from foveate.compaction.facts.updates import find_updates, no_similarity
from foveate.model import Message
from tests.support.strategies.fact_conversations import conversations, model_message, user_message


def current_texts(*texts: str) -> list[str]:
    """What is still true, judged without word vectors."""
    statements = find_statements([user_message(text) for text in texts])
    updates = find_updates(statements, no_similarity)
    return [text.text for number, text in enumerate(updates.statements) if number not in updates.replaced]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("The port is 8081.", "The port is 8082."),
        ("The deadline is 2027-03-01.", "Update: the deadline moved to March 9."),
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
        ("The timeout is 30.", "The timeout is 45."),
        ("The search runs with 3 replicas.", "Tests were slow, so the search runs with 5 replicas."),
        ("Retries are limited to 4.", "Ops asked for fewer attempts: retries are limited to 2."),
        ("The centrifuge runs at 4,000 rpm.", "Dr. Okafor wants the centrifuge at 3,500 rpm."),
        ("Incubate the plates for 24 hours.", "After the pilot we incubate the plates for 90 minutes."),
        ("Sample S-118 is stored in freezer B.", "Freezer B broke down, S-118 went to freezer D."),
        ("The hedge should be 120 cm high.", "Trim the hedge to 100 cm."),
        ("Compost goes on bed 2.", "Compost goes on bed 5, not on bed 2."),
        ("Assign the login bug to Priya.", "Give the login bug to Marcus, Priya is swamped."),
        ("Mia is the project lead.", "Ravi replaced Mia as project lead."),
        ("Grandma lives at 5 Mill Lane.", "Grandma moved into 17 Park Row last month."),
        ("The ticket priority is high.", "The ticket priority is low."),
        ("The cake should be chocolate.", "The cake should be vanilla."),
        ("Hotel: Casa Verde.", "Hotel: Villa Aurora."),
        ("The tomatoes get watered every 2 days.", "Water the tomatoes every 3 days."),
        ("Plant the roses along the south fence.", "The roses go along the east wall instead."),
        ("Invite her to the review.", "Don't invite her to the review."),
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
        ("Step 0 of the rollout drains the queue.", "Step 1 of the rollout drains the pool."),
        ("The port of replica 1 is 7001.", "The port of replica 2 is 7002."),
        ("Table 3 is reserved.", "Table 4 is reserved."),
        ("Server A runs on port 8080.", "Server B runs on port 9090."),
        ("Ticket OPS-12 is assigned to Mia.", "Ticket OPS-13 is assigned to Ravi."),
        ("The flight to Lisbon leaves at 7:40.", "The flight back from Lisbon leaves at 19:20."),
        ("The carrot cake bakes for 55 minutes.", "Use 200 g of sugar for the carrot cake."),
        ("In Bergen we have a room, number 12.", "In Oslo we have a room, number 14."),
        ("We fetch the keys at 16:00.", "We return the keys at 10:00."),
        ("The pond is 80 cm deep.", "The pond holds 900 liters."),
        ("The daily backup runs at 02:00.", "The weekly backup runs at 04:00."),
        ("Call the landlord on Monday.", "Call the bank on Thursday, not Tuesday."),
        ("The hotel costs 120 euros a night.", "The hotel's parking costs 18 euros."),
        ("The build takes 12 minutes.", "The build with coverage takes 19 minutes."),
        ("The gate opens at 8:00.", "The gate closes at 20:00."),
        ("Check-in starts at 15:00.", "Check-out ends at 11:00."),
        ("The server has 64 GB of memory.", "The server has 2 TB of disk."),
        ("Ana arrives on Friday.", "Ben arrives on Saturday."),
        ("The report is due on 3 May.", "The slides for the report are due on 5 May."),
        ("The API listens on port 8080.", "The metrics of the API listen on port 9090."),
        ("Tickets cost 12 euros for adults.", "Tickets cost 7 euros for children."),
        ("Flight LH123 leaves at 7:10.", "Flight LH456 leaves at 9:35."),
        ("The deposit for the flat is 2,000 euros.", "The rent for the flat is 900 euros."),
        ("Water the roses every 3 days.", "Water the cactus every 14 days."),
        ("The meeting with Carla is on 4 June.", "The meeting with Dario is on 9 June."),
        ("The cache expires after 60 seconds.", "The session expires after 30 minutes."),
        ("The primary replica runs in eu-west-1.", "The secondary replica runs in us-east-2."),
        ("The dosage for adults is 20 mg.", "The dosage for children is 5 mg."),
        ("The first dose is on 3 March.", "The second dose is on 24 March."),
        ("Move the sofa to room 4.", "Move the desk to room 7."),
        ("Set the fridge to 5 degrees.", "Set the freezer to -18 degrees."),
        ("Set the timeout to 30 seconds.", "Set the retry delay to 5 seconds."),
        ("Send the invoice to ana@x.example.", "Send the receipt to ben@x.example."),
        ("Version 2.1 ships on 3 May.", "Version 2.2 ships on 9 June."),
        ("Lunch is at 12:30.", "Lunch for the kids is at 11:45."),
        ("The train from Porto arrives at 9:12.", "The train from Braga arrives at 10:40."),
        ("The red bike costs 300 euros.", "The blue bike costs 350 euros."),
        ("Mia's shift starts at 6:00.", "Tom's shift starts at 14:00."),
        ("The test suite has 420 tests.", "The test suite runs in 90 seconds."),
        ("Table users has 12 columns.", "Table orders has 9 columns."),
        ("Sow the peas on 2 April.", "Harvest the peas on 20 June."),
        ("The workshop starts at 9:00.", "The workshop ends at 17:00."),
        ("Pay the plumber 200 euros.", "Pay the electrician 350 euros."),
        ("My flight lands at 18:20.", "Your flight lands at 19:05."),
        ("The north wall is 4 metres long, 2 metres high.", "The south wall is 5 metres long."),
        ("I weigh 70 kg.", "I am 180 cm tall."),
        ("The parser handles 5 formats.", "The writer handles 3 formats."),
        ("The budget for ads is 400 euros.", "The budget for print is 250 euros."),
        ("The budget is 400 euros.", "We spent 120 euros of the budget."),
        ("The exam is on 9 March.", "Registration for the exam closes on 20 February."),
        ("The wedding is on 21 June.", "Invitations for the wedding go out on 2 April."),
        ("Dinner at Rosa's is on 4 July.", "Dinner at Marco's is on 11 July."),
        ("The backup of the mail server runs at 2:00.", "The backup of the web server runs at 3:00."),
        ("The job failed at 3:15.", "The job starts at 2:00."),
        ("Tests run on Python 3.11.", "Docs build on Python 3.12."),
        ("It is 20 degrees in Rome.", "It is 12 degrees in Oslo."),
        ("Use branch main for releases.", "Use branch dev for experiments."),
        ("The invoice from May is 300 euros.", "The invoice from June is 280 euros."),
        ("Chapter 3 has 40 pages.", "Chapter 4 has 35 pages."),
        ("Our tram leaves at 8:04.", "Our bus leaves at 8:20."),
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


def test_a_sentence_about_the_old_value_announces_the_next_and_is_not_carried() -> None:
    current = current_texts("Bring the van to Autohaus Petri.", "Petri is full. Garage Nowak takes the van.")

    assert current == ["Garage Nowak takes the van."]


@pytest.mark.parametrize(
    ("texts", "current"),
    [
        (
            ("My locker is number 77.", "Jo's locker is number 78.", "I have number 85 now."),
            ["Jo's locker is number 78.", "I have number 85 now."],
        ),
        (
            (
                "The CI build uses 8 jobs.",
                "The nightly build uses 9 jobs.",
                "CI is slow, bump it up to 12 jobs.",
            ),
            ["The nightly build uses 9 jobs.", "CI is slow, bump it up to 12 jobs."],
        ),
    ],
)
def test_of_several_statements_that_fit_the_best_is_replaced(
    texts: tuple[str, ...], current: list[str]
) -> None:
    assert current_texts(*texts) == current


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("The job starts at 02:15.", "The job collides with the backup, start it at 01:05."),
        ("The gravel comes on 11 April.", "The gravel people called, they can't come before 19 April."),
    ],
)
def test_a_clause_that_refers_back_gives_the_value_of_what_another_names(old: str, new: str) -> None:
    assert current_texts(old, new) == [new]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("The projector is reserved for 14:00.", "The projector clashes. We can have it from 15:30."),
        ("Our parking permit is P-331.", "The parking permit ran out. The one for this year is P-410."),
    ],
)
def test_a_sentence_before_names_what_the_value_belongs_to(old: str, new: str) -> None:
    assert old not in current_texts(old, new)


def test_what_was_named_before_is_called_off() -> None:
    assert current_texts("TODO: return the library books.", "The library books are back, strike that one.") == [
        "The library books are back"
    ]


def test_of_several_updates_the_last_wins() -> None:
    assert current_texts("The cap is $5.", "The cap is $6.", "The cap is $7 now.") == ["The cap is $7 now."]


def test_a_repeated_statement_is_kept_once() -> None:
    assert current_texts("The port is 80.", "Fine weather is expected.", "the port is 80") == [
        "Fine weather is expected.",
        "the port is 80",
    ]


def test_the_assistant_does_not_change_what_people_said() -> None:
    messages = [user_message("The port is 8081."), model_message("The port is 9090 now.")]

    assert find_updates(find_statements(messages), no_similarity).replaced == {}


@given(conversations)
def test_only_earlier_statements_are_replaced(messages: list[Message]) -> None:
    updates = find_updates(find_statements(messages), no_similarity)
    messages_of = [statement.message_index for statement in updates.statements]

    for old, new in updates.replaced.items():
        assert old < new < updates.count or (old >= updates.count and messages_of[old] <= messages_of[new])


@given(st.sampled_from(("port", "code", "fee")), st.integers(100, 999), st.integers(100, 999), conversations)
def test_an_exact_replacement_always_removes_the_earlier(
    subject: str, old: int, new: int, between: list[Message]
) -> None:
    first, last = f"The {subject} is {old}.", f"The {subject} is {new}."
    messages = [user_message(first), *between, user_message(last)]
    statements = find_statements(messages)
    replaced = find_updates(statements, no_similarity).replaced

    assert 0 in replaced
    assert len(statements) - 1 not in replaced

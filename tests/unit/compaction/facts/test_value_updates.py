import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.compaction.facts.statements import find_statements
from foveate.compaction.facts.updates import find_updates, no_similarity
from foveate.model import Message
from tests.support.strategies.fact_conversations import model_message, user_message


def read(*turns: str) -> list[Message]:
    """Messages of the user, and of the assistant for texts that start with "A: "."""
    return [
        model_message(turn.removeprefix("A: ")) if turn.startswith("A: ") else user_message(turn)
        for turn in turns
    ]


def current_text(*turns: str) -> str:
    updates = find_updates(find_statements(read(*turns)), no_similarity)
    return "\n".join(
        statement.text for number, statement in enumerate(updates.statements) if number not in updates.replaced
    )


@pytest.mark.parametrize(
    ("turns", "current"),
    [
        (
            (
                "Rex weighs 11 kg and gets 90 g of food a day.",
                "At the vet Rex weighed 12 kg, so 75 g from now on.",
            ),
            "At the vet Rex weighed 12 kg, so 75 g from now on.",
        ),
        (
            (
                "Ferry tickets come to £212 for the van.",
                "A: The crossing is £212, noted.",
                "They knocked something off, it's £187 now.",
                "A: So the crossing is £187.",
            ),
            "Ferry tickets come to … for the van.",
        ),
        (
            ("We have six rowing days.", "So seven days then.", "A: Seven rowing days, noted."),
            "So seven days then.\nSeven rowing days, noted.",
        ),
        (
            ("The choir sings on Thursday 2 May in the barn.", "The choir sings on Sunday 5 May now."),
            "The choir sings on Sunday 5 May now.",
        ),
        (
            ("The gate opens at noon.", "The gate opens at 1pm now."),
            "The gate opens at 1pm now.",
        ),
        (
            ("Kitchen: 9,000 for cabinets, 1,500 for the worktop.", "The worktop is 2,350 now."),
            "The worktop is 2,350 now.\nKitchen: 9,000 for cabinets",
        ),
        (
            ("the left shelf is 80 cm, the top shelf is 60 cm", "only 75 cm fit on the left"),
            "only 75 cm fit on the left\nthe left shelf is …, the top shelf is 60 cm",
        ),
        (
            ("dentist on wednesday at 14:30 with Ana", "the dentist called, thursday at 3 now"),
            "the dentist called, thursday at 3 now\ndentist on … at … with Ana",
        ),
        (("Tax is due on june 7 in Rome.", "Tax is due on the 8th, I was wrong."), "Tax is due on the 8th"),
        (
            (
                "The first reader is Lina, the second reader Dr. Stahl.",
                "Dr. Stahl is away. Dr. Vance will read it.",
                "A: Dr. Vance is the second reader.",
            ),
            "Dr. Vance will read it.\nThe first reader is Lina, the second reader Dr. ….",
        ),
        (
            ("we leave at 6:40 on SK4411", "they put us on SK4419 now, 9:15"),
            "they put us on SK4419 now, 9:15",
        ),
        (("they want 30% up front", "they settled for 20%"), "they settled for 20%"),
        (
            (
                "The key deposit is £60 and the porter's Mr. Quist.",
                "I had it wrong: the deposit's £75, hurray.",
            ),
            "I had it wrong: the deposit's £75, hurray.\nThe key deposit is … and the porter's Mr. Quist.",
        ),
        (
            ("Late fines are 30 cents a day.", "Now the fine is 15 cents a day."),
            "Now the fine is 15 cents a day.",
        ),
        (("We'd planned the party for 2 May.", "We're having the party on 9 May now."), "9 May"),
        # The sentence before announces the change.
        (
            ("We meet at 8:15.", "Some asked for a later start. The group meets at 8:45."),
            "The group meets at 8:45.",
        ),
        # "We" does not tell what a date is of, so it is that of the only other one.
        (("I arrive on 4 June.", "I can't get off work, so we're landing on 11 June now."), "11 June now"),
        (
            (
                "The plumber comes on Thursday.",
                "I am away on Tuesdays.",
                "The plumber can't, he's coming on Friday instead.",
            ),
            "I am away on Tuesdays.\nThe plumber can't, he's coming on Friday instead.",
        ),
        # The sentence before names what an old value belongs to.
        (
            (
                "Ida ordered tulip bulbs. She plants them on 4 May.",
                "Ida is ill. The tulip bulbs go in on 9 May now.",
            ),
            "The tulip bulbs go in on 9 May now.",
        ),
        (
            (
                "The truck comes from a firm called Fastlane.",
                "The firm let us down, we went with Orr Brothers for the truck.",
            ),
            "we went with Orr Brothers for the truck.",
        ),
        (
            ("The set is called books-rs and has 3 nodes.", "The set was renamed to media-rs today."),
            "media-rs",
        ),
        (
            ("The log goes to a bucket called app-logs-old.", "Logs go to app-logs-new."),
            "Logs go to app-logs-new.",
        ),
        # The only value of its kind.
        (
            (
                "The file's called shelf.db.",
                "Lea tests it on Monday, Kim on 4 May, Udo at 16:00, Ida at 17:00 and Ben at 18:00.",
                "Zoe has 3 cats, 4 dogs, 5 birds, 6 fish, 7 hens, 8 cows and 9 pigs.",
                "It's called lending.db these days.",
            ),
            "It's called lending.db these days.",
        ),
    ],
)
def test_a_new_value_replaces_only_its_old_one(turns: tuple[str, ...], current: str) -> None:
    assert current in current_text(*turns)


def test_the_assistant_may_say_what_a_new_value_belongs_to() -> None:
    turns = (
        "The left bed is 2.4 m and the other bed 1.8 m.",
        "measured again, there is room for 2.1 m",
        "A: Then the left bed becomes 2.1 m.",
    )

    assert "The left bed is … and the other bed 1.8 m." in current_text(*turns)
    assert "The left bed is 2.4 m" in current_text(*turns[:2])


def test_what_the_assistant_repeated_of_a_replaced_value_is_not_carried() -> None:
    said = current_text(
        "The van costs 89 euros.", "A: Noted, 89 euros for the van.", "The van costs 95 euros now."
    )

    assert "89" not in said


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The van costs 300 a month.", "The holiday costs 150 a month."),
        ("For the orders service: pool size 20.", "The reporting service has its own pool, size 8."),
        ("Breakfast on weekdays starts at 6:30.", "Breakfast on Sundays starts at 7:30."),
        ("The pH of the front bed is 5.9.", "The pH of the back bed is 7.4."),
        ("The draft is due on Monday.", "The final version is now due on Friday."),
        ("Ana is a vegetarian.", "Ben is a vegetarian now."),
        ("The hotel in Porto costs 95 euros.", "The production port is now 8443."),
        ("Set the timeout to 30 seconds.", "Set the retry delay to 5 seconds."),
        ("Never open port 22.", "The port is 8090 now."),
        ("Look at step 1 now.", "Now look at step 2."),
        ("The backup key is in safe 4.", "Backups have to be kept for 400 days."),
        ("Home ground's Mill Meadow.", "We've got Canon Orr for the home matches."),
        ("Breakfast is at 07:30.", "Dinner moved to 19:00."),
        ("We pay £90 for the cake.", "It's now £2,000 in all."),
        ("The reader uses the node called jay-c.", "The reader uses finch_ro."),
        ("The shed is empty.", "The barn is full now."),
        ("The shed has a leak.", "The shed is locked now."),
    ],
)
def test_values_of_different_things_both_stay(one: str, other: str) -> None:
    said = current_text(one, other)

    assert one in said
    assert other in said


@pytest.mark.parametrize(
    ("turns", "gone"),
    [
        (("The stop is the bus garage.", "The stop has moved to the old mill."), "garage"),
        (("The hedge along the road is privet.", "It died. The hedge is yew now."), "privet"),
        (("Call the roofer on 17 June.", "Strike the roofer from the list, it is dry."), "17 June"),
        (
            (
                "I ordered a marquee, ten metres, for May.",
                "I've called it off, no marquee this year.",
            ),
            "metres",
        ),
    ],
)
def test_what_is_described_anew_or_called_off_is_gone(turns: tuple[str, ...], gone: str) -> None:
    assert gone in current_text(turns[0])
    assert gone not in current_text(*turns)


def test_what_people_say_at_once_is_all_true() -> None:
    said = current_text("Captain for Saturdays: Vera Lund. Captain for Sundays: Otto Brandt.")

    assert "Vera Lund" in said
    assert "Otto Brandt" in said


def test_other_words_for_the_same_are_no_contrast() -> None:
    statements = find_statements(read("The course begins at 16:00.", "The course starts at 10:30 instead."))

    assert find_updates(statements, lambda words, others: [[1.0] * len(others)] * len(words)).replaced == {0: 1}
    assert find_updates(statements, no_similarity).replaced == {}


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        (
            "We ride to Bern on 3 March.",
            "The strike was announced. We ride out on 5 March by coach.",
            "3 March",
        ),
        (
            "Next is Marta at 12 Mill Lane, with the dog.",
            "So Marta found a flat! She lives at 8 Dock Road.",
            "Mill Lane",
        ),
        ("The course begins on 3 May.", "The lift is out, the course can't begin until 9 May.", "3 May"),
    ],
)
def test_a_value_after_the_reason_replaces_the_one_with_a_common_word(old: str, new: str, value: str) -> None:
    assert value in current_text(old)
    assert value not in current_text(old, new)


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("The fair is on 4 July.", "Our guard was transferred. Mrs Bell is the guard since Monday.", "4 July"),
        ("Joseph was born in 1871.", "The Bible settles it. Mary was born in 1874.", "1871"),
        ("The van is paid on 3 March.", "One more thing. The dog is washed on 5 March.", "3 March"),
        (
            "The hall opens on 3 March. The bar opens on 4 March.",
            "The roof is dry. Doors open on 9 March.",
            "4 March",
        ),
    ],
)
def test_a_value_of_something_else_stays_after_a_reason(old: str, new: str, value: str) -> None:
    assert value in current_text(old, new)


def test_other_parts_of_a_changed_statement_stay() -> None:
    said = current_text("Hive one is calm, marked blue, 7 frames of brood.", "Hive one: 8 frames of brood now.")

    assert "marked blue" in said
    assert "7 frames" not in said


def test_calling_off_one_task_keeps_the_others_of_a_list() -> None:
    said = current_text("To do: fix the bike, return the books, call the insurer.", "Forget the insurer.")

    assert "fix the bike, return the books" in said
    assert "call the insurer" not in said


def test_a_request_to_change_a_value_may_be_a_question() -> None:
    assert "3 pm" not in current_text("The haircut is at 3 pm.", "Can you move the haircut to 5 pm?")


@given(st.lists(st.text(alphabet="ab 12:.,%ACE€", max_size=40), max_size=8))
def test_any_texts_have_updates(texts: list[str]) -> None:
    updates = find_updates(find_statements([user_message(text) for text in texts]), no_similarity)

    assert all(old < len(updates.statements) for old in updates.replaced)

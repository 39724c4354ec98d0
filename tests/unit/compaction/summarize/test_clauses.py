"""In little room, a summary carries the clauses that say most, not whole sentences."""

import foveate
from foveate.compaction.summarize.clauses import find_asking_clause, split_clauses

Turn = dict[str, str]

WEDDING = [
    {"role": "user", "content": "Can you keep track of the wedding? It's all a bit much, to be honest."},
    {"role": "assistant", "content": "Gladly! What is fixed so far?"},
    {
        "role": "user",
        "content": "So my colleague talked about hers for two years, and we finally found a place: "
        "the reception is at the Old Mill for 96 guests, which makes my mother very happy.",
    },
    {"role": "assistant", "content": "Noted: reception at the Old Mill for 96 guests."},
    {
        "role": "user",
        "content": "And we went there by bus, by the way, and no lilies anywhere please, she faints.",
    },
    {"role": "assistant", "content": "No lilies, understood."},
    {
        "role": "user",
        "content": "The caterer is called Fennel, they charge 64 euros a head and they were very friendly.",
    },
    {"role": "assistant", "content": "Fennel at 64 euros a head."},
]


def summarize(messages: list[Turn], limit_tokens: int) -> str:
    return foveate.summarize(messages, limit_tokens=limit_tokens)


def test_in_little_room_the_clauses_with_facts_are_carried() -> None:
    summary = summarize(WEDDING, 38)

    assert all(fact in summary for fact in ("96 guests", "lilies", "64 euros"))
    assert not any(talk in summary for talk in ("colleague", "by bus", "very friendly"))


def test_with_room_sentences_stay_whole() -> None:
    summary = summarize(WEDDING, 400)

    assert "- And we went there by bus, by the way, and no lilies anywhere please, she faints." in summary


def test_what_the_assistant_repeats_comes_before_what_is_told_by_the_way() -> None:
    messages = [
        {
            "role": "user",
            "content": "My uncle once paid 300 euros for a tent. The tent for us costs 120 euros.",
        },
        {"role": "assistant", "content": "The tent costs 120 euros, noted."},
    ]

    summary = summarize(messages, 14)

    assert "120 euros" in summary
    assert "300 euros" not in summary


def test_a_value_that_both_sides_give_is_carried_once() -> None:
    messages = [
        {"role": "user", "content": "The flight lands at 14:10. The hotel is in Graça, room 512."},
        {"role": "assistant", "content": "Landing at 14:10. Hotel in Graça, room 512."},
    ]

    assert summarize(messages, 30).count("512") == 1


def test_words_that_only_connect_clauses_are_left_out() -> None:
    messages = [
        {"role": "user", "content": f"Oh and also, the fee of stall {number} is {number * 3} euros, I think."}
        for number in range(20, 40)
    ]

    assert "- the fee of stall" in summarize(messages, 60)


def test_names_that_only_a_tool_result_has_are_not_carried() -> None:
    messages = [
        {"role": "user", "content": "How large is the table orders_main?"},
        {"role": "assistant", "content": "Let me look."},
        {"role": "tool", "content": "orders_main 187 GB\nHINT: raise max_wal_size to 8GB"},
        {"role": "assistant", "content": "It has 187 GB."},
    ]

    summary = summarize(messages, 100)

    assert "max_wal_size" not in summary
    assert "8GB" not in summary


def test_the_clause_that_asks_has_words_of_its_own() -> None:
    assert find_asking_clause("Hi, please plan a trip to Porto") == "please plan a trip to Porto"
    assert find_asking_clause("Yes please, go ahead, and we will have tea") == ""


def test_of_a_reply_what_it_repeats_comes_before_what_it_proposes() -> None:
    messages = [
        {
            "role": "user",
            "content": "Well, if you ask me, the choir meets at St Anne's on Tuesdays from now on.",
        },
        {
            "role": "assistant",
            "content": "Choir at St Anne's on Tuesdays. I'd bring 30 chairs and 12 lamps along.",
        },
    ]

    summary = summarize(messages, 18)

    assert "St Anne's on Tuesdays" in summary
    assert "chairs" not in summary


def test_a_label_that_only_names_a_topic_does_not_come_first() -> None:
    topic = (
        "Sheep: the farmer told us a very long story about how all of them once ran away to the next valley."
    )
    messages = [
        {"role": "user", "content": topic},
        {"role": "assistant", "content": "A good story!"},
        {"role": "user", "content": "The shoot is on 16 October at Wether Fell."},
        {"role": "assistant", "content": "Noted: 16 October at Wether Fell."},
    ]

    assert "16 October" in summarize(messages, 20)
    assert topic in summarize(
        [{"role": "user", "content": topic.replace("Sheep:", "RULE:")}, *messages[1:]], 40
    ).replace("RULE:", "Sheep:")


def test_values_come_before_comments_if_the_assistant_repeats_nothing() -> None:
    turns = [
        ("The shed is opened with 4182. It was raining all week, I loved watching it.", "Rain helps."),
        ("Fertiliser costs 19 euros. They talked for an hour about their tomatoes.", "Everybody likes those."),
        ("The well is 12 metres deep. Perhaps the neighbours would help us dig.", "Ask them soon."),
    ]
    messages = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]

    summary = summarize(messages, 36)

    assert all(fact in summary for fact in ("The shed is opened with 4182", "19 euros", "12 metres"))
    assert not any(talk in summary for talk in ("tomatoes", "neighbours"))


def split(text: str) -> list[str]:
    return [text[clause.start : clause.end].strip() for clause in split_clauses(text)]


def test_a_part_that_does_not_stand_alone_depends_on_the_one_that_does() -> None:
    text = "The rent is £42, due to the treasurer, by the end of March, and we pay it in cash."

    assert split(text) == [
        "The rent is £42,",
        "due to the treasurer,",
        "by the end of March,",
        "and we pay it in cash.",
    ]
    assert [clause.head for clause in split_clauses(text)] == [None, 0, 0, None]


def test_what_comes_before_the_first_verb_belongs_to_it() -> None:
    assert split("On Monday, after lunch, we meet, with cake.") == [
        "On Monday, after lunch, we meet,",
        "with cake.",
    ]


def test_a_noun_with_a_verb_stands_alone() -> None:
    text = "Ana's passport is X1, and Ben travels on a Chilean one, F30917765."

    assert [clause.head for clause in split_clauses(text)] == [None, None, 1]


def test_a_condition_is_not_cut_off() -> None:
    assert split("We take the boat, if possible, from pier 4.") == [
        "We take the boat, if possible,",
        "from pier 4.",
    ]


def test_of_a_sentence_the_parts_with_values_are_carried() -> None:
    text = (
        "The boat is the Albatros, a pretty one with blue and white stripes all along its sides, "
        "licence plate KLT-4092."
    )
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "Noted."}]

    summary = summarize(messages, 20)

    assert "Albatros" in summary
    assert "KLT-4092" in summary
    assert "stripes" not in summary

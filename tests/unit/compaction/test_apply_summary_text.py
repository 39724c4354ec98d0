from dataclasses import replace

from foveate.compaction.apply import carried_facts_text, summary_text
from foveate.compaction.summarize.verify import MissingFacts
from foveate.tokens import counter_for
from tests.support.strategies.tool_conversations import COMPACTION

RULE = "Never push to main."
DENSE_RULE = "必须使用中文。"


def test_names_share_a_line_and_sentences_have_their_own() -> None:
    missing = MissingFacts(
        important=(RULE,),
        listed=(RULE, DENSE_RULE, "/srv/app.py", "Ana Lopez", "load_all", "15 ms"),
        unlisted=3,
    )

    assert summary_text(replace(COMPACTION, carried=missing.carried_facts)).splitlines()[-7:] == [
        "Also named there:",
        "- /srv/app.py load_all",
        f"- {RULE}",
        f"- {DENSE_RULE}",
        "- Ana Lopez",
        "- 15 ms",
        "- and 3 more that may be needed, for which there is no room here",
    ]


def test_a_name_inside_a_longer_one_in_the_summary_stays_on_the_list() -> None:
    """Regression: a summary with /etc/hosts.bak removed /etc/hosts."""
    compaction = replace(
        COMPACTION, summary="It is about /etc/hosts.bak and 8080.", carried=("/etc/hosts", "8080")
    )

    assert summary_text(compaction).endswith("Also named there:\n- /etc/hosts")


def test_a_sentence_of_two_lines_is_recognized() -> None:
    compaction = replace(COMPACTION, summary="Never push\nto main.", carried=(RULE,))

    assert summary_text(compaction).endswith(compaction.summary)


def test_a_list_of_names_has_at_most_the_counted_tokens() -> None:
    """Regression: separate lines took two more tokens each, and a compaction exceeded its limit."""
    names = [f"some_name_{number}" for number in range(200)]

    def tokens(text: str) -> int:
        return counter_for("gpt-4o").text(text).tokens

    assert tokens(carried_facts_text(names)) <= sum(tokens(f" {name}") for name in names) + 10


def test_without_carried_facts_there_is_no_list() -> None:
    assert carried_facts_text(()) == ""


def test_a_fact_of_several_lines_is_listed_on_one() -> None:
    assert carried_facts_text(("write docs\n\nGoal\n- obey",)).splitlines()[1:] == ["- write docs Goal - obey"]

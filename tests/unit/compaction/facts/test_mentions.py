import sys

import pytest
from hypothesis import given

from foveate.compaction.facts.extract import Fact, extract_facts, rank_facts
from foveate.compaction.facts.mentions import MentionIndex, contains_whole
from foveate.compaction.facts.rules import FactKind
from foveate.compaction.summarize.extractive import select_missing_facts
from foveate.compaction.summarize.verify import find_missing_facts
from foveate.model import Message
from tests.support.strategies.fact_conversations import conversations, user_message


def make_fact(text: str, kind: FactKind) -> Fact:
    return Fact(
        kind=kind,
        text=text,
        first_index=0,
        last_index=0,
        last_non_tool_index=0,
        occurrences=1,
        messages_by_speaker=(1, 0, 0, 0, 0),
    )


def is_mentioned(text: str, fact_text: str, kind: FactKind = FactKind.CONSTRAINT) -> bool:
    return MentionIndex(text).mentions(make_fact(fact_text, kind))


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        ("it uses /etc/hosts.bak", "/etc/hosts", FactKind.PATH),
        ("in lib/src/app.py.orig", "src/app.py", FactKind.PATH),
        ("in lib/src/app.py", "src/app.py", FactKind.PATH),
        ("in /etc/hosts.d/a.conf", "/etc/hosts", FactKind.PATH),
        ("runs 1.2.3.4 now", "1.2.3", FactKind.VERSION),
        ("at 8080.5 it is", "8080", FactKind.NUMBER),
        ("there were 1,234,567 of them", "1,234", FactKind.NUMBER),
        ("took 115 ms", "15 ms", FactKind.NUMBER),
        ("see https://x.org/a?b=cd", "https://x.org/a?b=c", FactKind.URL),
        ("see https://x.org/a?b=c", "https://x.org/a", FactKind.URL),
        ("preload_all and load_all_files", "load_all", FactKind.IDENTIFIER),
        ("ask Ana Lopezo", "Ana Lopez", FactKind.NAME),
        ("no luck here-after", "no luck here", FactKind.QUOTED),
    ],
)
def test_a_longer_name_does_not_mention_its_parts(text: str, name: str, kind: FactKind) -> None:
    """Regression: /etc/hosts.bak counted as /etc/hosts."""
    assert not is_mentioned(text, name, kind)


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        ("It uses /etc/hosts. Then it stops.", "/etc/hosts", FactKind.PATH),
        ("It is `src/app.py`, see there:", "src/app.py", FactKind.PATH),
        ("at src/app.py:12: in f", "src/app.py", FactKind.PATH),
        ("in /work/lib/src/app.py", "src/app.py", FactKind.PATH),
        ("in /work/lib/src/app.py", "/work/lib/", FactKind.PATH),
        ("in lib/src/app.py", "app.py", FactKind.PATH),
        ("in src/load_all.py", "load_all", FactKind.IDENTIFIER),
        ("it runs 1.2.3.", "1.2.3", FactKind.VERSION),
        ("on localhost:8080", "8080", FactKind.NUMBER),
        ("8080 requests", "8080", FactKind.NUMBER),
        ("(15 ms)", "15 ms", FactKind.NUMBER),
        ("calls self.sent_bytes[0]", "sent_bytes", FactKind.IDENTIFIER),
        ("it calls run", "run", FactKind.IDENTIFIER),
        ("<https://x.org/a?b=c>.", "https://x.org/a?b=c", FactKind.URL),
        ("by Ana\nLopez's team", "Ana Lopez", FactKind.NAME),
        ("使用src/app.py。", "src/app.py", FactKind.PATH),
        ("it said “no luck here”!", "no luck here", FactKind.QUOTED),
    ],
)
def test_a_name_is_mentioned_whatever_punctuation_surrounds_it(text: str, name: str, kind: FactKind) -> None:
    assert is_mentioned(text, name, kind)


@pytest.mark.parametrize(
    ("text", "constraint"),
    [
        ("The user said to never touch prod. We push the build to main.", "Never push to main."),
        ("- push to main, and never mind the rest", "Never push to main."),
        (
            "We delete the old logs; they do not mind the backups in /srv/backup.",
            "Do not delete the backups in /srv/backup.",
        ),
        ("You must not keep Python 3.11 working.", "You must keep Python 3.11 working."),
        ("It is not so that you must keep Python 3.11.", "You must keep Python 3.11."),
        ("Never push anything big to prod.", "Never push anything big to main."),
        ("Never touch the table number 7.", "Never touch the table number 8."),
        ("Never edit /etc/hosts.bak", "Never edit /etc/hosts"),
        ("Never say what others said of it who push when they like to main.", "Never push to main."),
        ("不必须使用中文。", "必须使用中文。"),
        ("この文を変更していい。", "この文を変更してはいけない。"),
        ("이 파일을 수정하세요.", "이 파일을 수정하지 마세요."),
        ("Do not ship it.", "ship it"),
        ("We ship on Friday.", "ship it"),
    ],
)
def test_a_negated_scattered_or_different_constraint_is_not_mentioned(text: str, constraint: str) -> None:
    """Regression: words were searched in any order on the whole line."""
    assert not is_mentioned(text, constraint)


@pytest.mark.parametrize(
    ("text", "constraint"),
    [
        ("The user wants us to never push to main, and more.", "Never push to main."),
        ("- never push to MAIN", "Please don’t push to main!"),
        (
            "What they want of us: do not delete the backups\nin /srv/backup.",
            "Do not delete the backups in /srv/backup.",
        ),
        ("We did not finish the docs, and only use tabs.", "Only use tabs."),
        ("用户说必须使用中文。", "必须使用中文。"),
        ("必ず、変更してはいけない", "変更してはいけない。"),
        ("이 파일을 수정하지 마세요", "이 파일을 수정하지 마세요."),
        ("Write docs. Then ship it to Ana.", "Write docs. Ship it to Ana."),
        ("ship it soon", "ship it"),
        ("N’utilise pas Redis", "N'utilise pas Redis."),
    ],
)
def test_a_constraint_is_mentioned_without_its_function_words(text: str, constraint: str) -> None:
    assert is_mentioned(text, constraint)


def test_added_texts_are_mentioned_and_kept_apart() -> None:
    index = MentionIndex("never push")
    index.add("to main")

    assert not index.mentions(make_fact("never push to main", FactKind.CONSTRAINT))
    assert not index.mentions(make_fact("push to", FactKind.QUOTED))
    index.add("Never push to main.")
    assert index.mentions(make_fact("never push to main", FactKind.CONSTRAINT))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("/etc/hosts", "in /etc/hosts.bak", False),
        ("/etc/hosts", "in /etc/hosts.", True),
        ("src/app.py", "in lib/src/app.py", False),
        ("8080", "8080.5 and 18080", False),
        ("8080", "8080.5 and 8080", True),
    ],
)
def test_contains_whole_ignores_parts_of_longer_names(name: str, text: str, expected: bool) -> None:
    assert contains_whole(name, text) is expected


@given(conversations)
def test_every_fact_mentions_itself(messages: list[Message]) -> None:
    for fact in extract_facts(messages):
        assert MentionIndex(fact.text).mentions(fact), fact


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "You must never remove module number_{n} from customer {n}.",
        "You must never remove the module from the customer number {n}",
        "see some_id_{n}x",
        'it said "so it went with {n} again"',
        "never never never",
    ],
)
def test_mentions_take_linear_time(line: str) -> None:
    """Regression: every constraint was compared with every line, and every name searched in the whole text."""
    single, double = (
        _count_calls([user_message("\n".join(line.format(n=n) for n in range(size)))]) for size in (300, 600)
    )

    assert double <= 2.3 * single + 3000


def _count_calls(messages: list[Message]) -> int:
    ranked = rank_facts(extract_facts(messages), 1)
    mentioned = "\n".join(ranked_fact.fact.text for ranked_fact in ranked[::2])
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    previous_profile = sys.getprofile()
    sys.setprofile(count)
    try:
        select_missing_facts(mentioned, ranked, limit_tokens=10**6, count=len)
        find_missing_facts(mentioned, ranked, limit_tokens=10**6, count=len, max_tokens=10**7)
    finally:
        sys.setprofile(previous_profile)
    return steps

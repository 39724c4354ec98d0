"""Which facts matter."""

import pytest
from hypothesis import given, settings

from foveate.fold.facts import Fact, FactKind, facts_of
from foveate.fold.ranking import chance, features, rank, weights
from foveate.values import Message
from tests.support.examples import limit_examples
from tests.unit.fold.chatter import call, conversations, model, result, user


def fact(text: str = "load_all", kind: FactKind = FactKind.IDENTIFIER, **known: object) -> Fact:
    values = {"first": 0, "last": 0, "last_spoken": 0, "times": 1, "messages": (0, 1, 0, 0, 0)} | known
    return Fact(kind=kind, text=text, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("likelier", "than"),
    [
        (fact(last=50), fact(last=10)),
        (fact(times=9), fact()),
        (fact(), fact(last_spoken=-1, messages=(0, 0, 0, 0, 1))),
        (fact(messages=(0, 1, 3, 0, 0)), fact(messages=(0, 1, 0, 0, 0))),
        (fact("a/b.py", FactKind.PATH), fact("123.45", FactKind.NUMBER)),
    ],
    ids=["over a longer time", "oftener", "said and not only shown", "in calls", "a path and not a number"],
)
def test_a_fact_comes_back_more_likely_if_it_was(likelier: Fact, than: Fact) -> None:
    assert chance(likelier, 60, weights()) > chance(than, 60, weights())


def test_other_weights_can_be_tried() -> None:
    facts = (fact("load_all"), fact("a/b.py", FactKind.PATH))

    assert [one.fact.text for one in rank(facts, 1, {"is_path": 9.0})] == ["a/b.py", "load_all"]
    assert [one.fact.text for one in rank(facts, 1, {"is_path": -9.0})] == ["load_all", "a/b.py"]


def test_constraints_and_open_tasks_come_before_all_names() -> None:
    messages = [
        user("Never touch main."),
        model(call("Edit", path="src/a.py"), call("TodoWrite", todos=[{"content": "ship it now"}])),
        result("src/a.py edited"),
        model("src/a.py is done, src/a.py works"),
    ]

    ranked = [one.fact.text for one in rank(facts_of(messages), len(messages))]

    assert ranked[:3] == ["Never touch main.", "ship it now", "src/a.py"]


def test_every_feature_is_weighed_and_every_weight_is_a_feature_s() -> None:
    known = {name for kind in FactKind for name in features(fact(kind=kind), 1)}
    sentences = {
        f"is_{kind}" for kind in (FactKind.CONSTRAINT, FactKind.TASK, FactKind.DECISION, FactKind.ERROR)
    }

    assert set(weights()) == known - sentences


@given(conversations)
@settings(max_examples=limit_examples(40))
def test_a_chance_is_a_chance_and_the_order_is_always_the_same(messages: list[Message]) -> None:
    facts = facts_of(messages)
    ranked = rank(facts, len(messages))

    assert all(0 < one.chance < 1 for one in ranked)
    assert rank(facts[::-1], len(messages)) == ranked
    assert sorted(one.fact.text for one in ranked) == sorted(one.text for one in facts)

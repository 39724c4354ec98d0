from typing import Any

import pytest
from hypothesis import given, settings

from foveate.compaction.facts.extract import (
    Fact,
    default_weights,
    extract_facts,
    features,
    mention_probability,
    rank_facts,
)
from foveate.compaction.facts.rules import FactKind
from foveate.model import Message
from tests.support.harness.example_limits import limit_examples
from tests.support.strategies.fact_conversations import (
    conversations,
    model_message,
    result_message,
    tool_call,
    user_message,
)


def make_fact(text: str = "load_all", kind: FactKind = FactKind.IDENTIFIER, **overrides: Any) -> Fact:
    values: dict[str, Any] = {
        "first_index": 0,
        "last_index": 0,
        "last_non_tool_index": 0,
        "occurrences": 1,
        "messages_by_speaker": (0, 1, 0, 0, 0),
    } | overrides
    return Fact(kind=kind, text=text, **values)


@pytest.mark.parametrize(
    ("more_probable", "less_probable"),
    [
        (make_fact(last_index=50), make_fact(last_index=10)),
        (make_fact(occurrences=9), make_fact()),
        (make_fact(), make_fact(last_non_tool_index=-1, messages_by_speaker=(0, 0, 0, 0, 1))),
        (make_fact(messages_by_speaker=(0, 1, 3, 0, 0)), make_fact(messages_by_speaker=(0, 1, 0, 0, 0))),
        (make_fact("a/b.py", FactKind.PATH), make_fact("123.45", FactKind.NUMBER)),
    ],
    ids=[
        "over a longer time",
        "more often",
        "written by the model, not only returned by a tool",
        "in tool calls",
        "a path, not a number",
    ],
)
def test_features_that_raise_the_probability(more_probable: Fact, less_probable: Fact) -> None:
    assert mention_probability(more_probable, 60, default_weights()) > mention_probability(
        less_probable, 60, default_weights()
    )


def test_the_default_weights_can_be_replaced() -> None:
    facts = (make_fact("load_all"), make_fact("a/b.py", FactKind.PATH))

    assert [ranked_fact.fact.text for ranked_fact in rank_facts(facts, 1, {"is_path": 9.0})] == [
        "a/b.py",
        "load_all",
    ]
    assert [ranked_fact.fact.text for ranked_fact in rank_facts(facts, 1, {"is_path": -9.0})] == [
        "load_all",
        "a/b.py",
    ]


def test_constraints_and_open_tasks_come_before_all_names() -> None:
    messages = [
        user_message("Never touch main."),
        model_message(
            tool_call("Edit", path="src/a.py"), tool_call("TodoWrite", todos=[{"content": "ship it now"}])
        ),
        result_message("src/a.py edited"),
        model_message("src/a.py is done, src/a.py works"),
    ]

    ranked = [ranked_fact.fact.text for ranked_fact in rank_facts(extract_facts(messages), len(messages))]

    assert ranked[:3] == ["Never touch main.", "ship it now", "src/a.py"]


def test_every_feature_has_a_weight_and_vice_versa() -> None:
    feature_names = {name for kind in FactKind for name in features(make_fact(kind=kind), 1)}
    sentence_features = {
        f"is_{kind}" for kind in (FactKind.CONSTRAINT, FactKind.TASK, FactKind.DECISION, FactKind.ERROR)
    }

    assert set(default_weights()) == feature_names - sentence_features


@given(conversations)
@settings(max_examples=limit_examples(40))
def test_probabilities_are_valid_and_the_order_is_deterministic(messages: list[Message]) -> None:
    facts = extract_facts(messages)
    ranked = rank_facts(facts, len(messages))

    assert all(0 < ranked_fact.probability < 1 for ranked_fact in ranked)
    assert rank_facts(facts[::-1], len(messages)) == ranked
    assert sorted(ranked_fact.fact.text for ranked_fact in ranked) == sorted(fact.text for fact in facts)

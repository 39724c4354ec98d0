"""Summaries of short conversations in free words carry what is true now, and only that."""

from itertools import zip_longest

import pytest

import foveate
from tests.support.free_conversations import DEV, MORE_DEV, TEST, FreeConversation

# A name without an article or a cue says too little for the rules: "Paula is ill, so Igor …", "Server beta …".
KNOWN_FAILURES = frozenset(("projector", "servers"))


def summarize(texts: list[str], limit_tokens: int = 400) -> str:
    return foveate.summarize([{"role": "user", "content": text} for text in texts], limit_tokens=limit_tokens)


def to_parameter(conversation: FreeConversation) -> object:
    is_known = conversation.name in KNOWN_FAILURES
    marks = pytest.mark.xfail(is_known, reason="not recognized by the rules", strict=True)
    return pytest.param(conversation, id=conversation.name, marks=marks)


@pytest.mark.parametrize("conversation", [*map(to_parameter, (*DEV, *MORE_DEV, *TEST))])
def test_a_summary_carries_what_is_still_true(conversation: FreeConversation) -> None:
    summary = summarize(list(conversation.said))

    assert [phrase for phrase in conversation.carried if phrase not in summary] == []
    assert [phrase for phrase in conversation.gone if phrase in summary] == []


def test_statements_of_many_subjects_are_not_confused() -> None:
    rounds = zip_longest(*(conversation.said for conversation in DEV))
    summary = summarize([text for texts in rounds for text in texts if text], limit_tokens=3_000)

    assert [phrase for conversation in DEV for phrase in conversation.carried if phrase not in summary] == []
    assert [phrase for conversation in DEV for phrase in conversation.gone if phrase in summary] == []

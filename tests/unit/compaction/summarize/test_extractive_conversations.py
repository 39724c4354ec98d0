"""Summaries of short conversations in free words carry what is true now, and only that."""

from collections.abc import Sequence
from itertools import zip_longest

import pytest

import foveate
from tests.support import blind_conversations, dialogues, everyday_conversations
from tests.support.dialogues import Dialogue
from tests.support.free_conversations import DEV, MORE_DEV, TEST, FreeConversation
from tests.support.unseen_conversations import HELD_OUT, TUNED


def summarize(texts: list[str], limit_tokens: int = 400) -> str:
    return foveate.summarize([{"role": "user", "content": text} for text in texts], limit_tokens=limit_tokens)


@pytest.mark.parametrize("conversation", [*DEV, *MORE_DEV, *TEST], ids=lambda conversation: conversation.name)
def test_a_summary_carries_what_is_still_true(conversation: FreeConversation) -> None:
    summary = summarize(list(conversation.said))

    assert [phrase for phrase in conversation.carried if phrase not in summary] == []
    assert [phrase for phrase in conversation.gone if phrase in summary] == []


@pytest.mark.parametrize(
    ("domains", "max_stale", "max_lost"),
    [
        (TUNED, 0, 0),
        (HELD_OUT, 2, 0),
        (blind_conversations.TUNED, 3, 0),
        (blind_conversations.BLIND, 6, 0),
        (everyday_conversations.TUNED, 1, 0),
        (everyday_conversations.BLIND, 12, 1),
    ],
    ids=["tuned", "held out", "more tuned", "blind", "everyday", "everyday blind"],
)
def test_free_words_update_statements_and_all_others_stay(
    domains: Sequence[Sequence[FreeConversation]], max_stale: int, max_lost: int
) -> None:
    summaries = [
        (conversation, summarize(list(conversation.said))) for domain in domains for conversation in domain
    ]

    lost = [phrase for talk, summary in summaries for phrase in talk.carried if phrase not in summary]
    stale = [phrase for talk, summary in summaries for phrase in talk.gone if phrase in summary]
    assert len(lost) <= max_lost
    assert len(stale) <= max_stale


@pytest.mark.parametrize(
    ("half", "max_stale", "max_lost"),
    [(dialogues.TUNED, 16, 0), (dialogues.BLIND, 16, 5)],
    ids=["tuned", "blind"],
)
def test_dialogues_update_single_values_and_all_others_stay(
    half: Sequence[Dialogue], max_stale: int, max_lost: int
) -> None:
    summaries = [
        (dialogue, foveate.summarize(dialogue.messages(), limit_tokens=400).lower()) for dialogue in half
    ]

    lost = sum(phrase.lower() not in text for dialogue, text in summaries for phrase in dialogue.current)
    stale = sum(phrase.lower() in text for dialogue, text in summaries for phrase in dialogue.replaced)
    split = [
        pair
        for dialogue, text in summaries
        for pair in dialogue.pairs
        if not all(phrase.lower() in text for phrase in pair)
    ]
    assert lost <= max_lost
    assert stale <= max_stale
    assert len(split) <= max_lost


def test_statements_of_many_subjects_are_not_confused() -> None:
    rounds = zip_longest(*(conversation.said for conversation in DEV))
    summary = summarize([text for texts in rounds for text in texts if text], limit_tokens=3_000)

    assert [phrase for conversation in DEV for phrase in conversation.carried if phrase not in summary] == []
    assert [phrase for conversation in DEV for phrase in conversation.gone if phrase in summary] == []

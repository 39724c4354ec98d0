"""What is sent after a fold is taken by its provider, and all of the tail is there as it came."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from foveate import wire
from foveate.cache.rules import rules_for
from foveate.fold.journal import Fold, Outcome
from foveate.fold.replacing import (
    GO_ON,
    UNDERSTOOD,
    fold_of,
    folded_edits,
    named,
    stand_in,
    summary_text,
)
from foveate.fold.thoughts import NO_THOUGHT, betas_of
from foveate.sandbox import accept
from foveate.session.chain import chain_of
from foveate.values import Document, Format, Image, Opaque, Request, Source, Text
from foveate.wire.body import compact, value
from tests.claude_bodies import claude_bodies
from tests.support.examples import limit_examples
from tests.unit.fold.talks import FOLD, Body, claude_loops, cuts_of, fold_at, requests

limited = settings(max_examples=limit_examples(80))


def edited(request: Request, *folds: Fold) -> Request:
    edits = folded_edits(request, chain_of(request), folds)
    return wire.read(wire.write(request, edits), request.format)


def roles(request: Request) -> list[str]:
    return [wire.message(request.format, raw).role for raw in request.messages]


def contents(request: Request) -> list[Any]:
    return [value(raw).get("content") for raw in request.messages]


def chat(*messages: Body) -> Request:
    return wire.read({"model": "gpt-4.1", "messages": list(messages)}, Format.CHAT)


def said(role: str, words: str) -> Body:
    return {"role": role, "content": words}


def step(given: str) -> list[Body]:
    calls = [{"id": given, "type": "function", "function": {"name": "read", "arguments": "{}"}}]
    return [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": given, "content": "done"},
    ]


def test_the_head_becomes_a_pair_after_which_the_tail_follows_as_it_came() -> None:
    request = chat(said("system", "S"), said("user", "a"), said("assistant", "b"), said("user", "c"))
    sent = edited(request, fold_at(request, 3))
    assert roles(sent) == ["system", "user", "assistant", "user"]
    assert contents(sent)[1:3] == [summary_text(fold_at(request, 3)), UNDERSTOOD]
    assert sent.messages[-1] == request.messages[-1]


def test_a_tail_that_begins_with_the_model_has_its_question_before_it_as_it_came() -> None:
    request = chat(said("user", "old"), said("assistant", "b"), said("user", "Q"), *step("a"), *step("b"))
    sent = edited(request, fold_at(request, 5))
    assert roles(sent) == ["user", "assistant", "user", "assistant", "tool"]
    assert sent.messages[2:] == (request.messages[2], *request.messages[5:])


def test_a_question_that_opens_the_conversation_comes_after_the_summary() -> None:
    request = chat(said("user", "Q"), *step("a"), *step("b"))
    sent = edited(request, fold_at(request, 3))
    assert roles(sent) == ["user", "assistant", "user", "assistant", "tool"]
    assert contents(sent)[2] == "Q"


def test_a_conversation_without_any_question_gets_a_summary_by_the_user_alone() -> None:
    request = chat(*step("a"), *step("b"))
    assert roles(edited(request, fold_at(request, 2))) == ["user", "assistant", "tool"]


def test_the_fold_that_reaches_farthest_is_taken_and_the_later_of_two_that_reach_as_far() -> None:
    request = chat(*(said(role, f"{n}") for n in range(4) for role in ("user", "assistant")))
    near, far = fold_at(request, 2, id="near"), fold_at(request, 4, id="far")
    newer = replace(far, id="newer", compacted_at=2.0)
    assert fold_of(chain_of(request), [near, far]) == far
    assert fold_of(chain_of(request), [newer, far, near]) == newer


def test_a_fold_that_was_undone_or_went_wrong_gives_back_the_request_as_it_came() -> None:
    request = chat(said("user", "a"), said("assistant", "b"), said("user", "c"))
    fold = fold_at(request, 2)
    assert edited(request, fold).body != request.body
    for other in (replace(fold, undone_at=2.0), replace(fold, outcome=Outcome.FAILED)):
        assert edited(request, other).body == request.body


def test_a_client_that_edited_its_past_is_left_alone() -> None:
    request = chat(said("user", "a"), said("assistant", "b"), said("user", "c"))
    other = chat(said("user", "A"), said("assistant", "b"), said("user", "c"))
    assert edited(other, fold_at(request, 2)).body == other.body


def test_a_client_that_goes_back_to_the_folded_head_is_left_alone() -> None:
    request = chat(said("user", "a"), said("assistant", "b"), said("user", "c"), said("assistant", "d"))
    shorter = chat(said("user", "a"), said("assistant", "b"))
    assert edited(shorter, fold_at(request, 2)).body == shorter.body


def test_a_fork_that_answers_a_call_of_the_folded_head_is_left_alone() -> None:
    asked, answer = step("a")
    request = chat(said("user", "x"), said("assistant", "y"), said("user", "q"), asked, said("user", "stop"))
    fork = chat(said("user", "x"), said("assistant", "y"), said("user", "q"), asked, answer)
    assert edited(fork, fold_at(request, 4)).body == fork.body


def test_another_system_prompt_in_front_does_not_hide_a_fold() -> None:
    request = chat(said("user", "a"), said("assistant", "b"), said("user", "c"))
    other = chat(said("system", "noon"), said("user", "a"), said("assistant", "b"), said("user", "c"))
    assert roles(edited(other, fold_at(request, 2))) == ["system", "user", "assistant", "user"]


def test_what_was_carried_is_named_unless_the_summary_names_it() -> None:
    fold = replace(FOLD, messages=1200, carried=("a parser", "/srv/app.py"))
    told = summary_text(fold)
    assert "1,200 messages" in told
    assert told.endswith("Also named there:\n- /srv/app.py")
    assert summary_text(replace(fold, carried=())).endswith(fold.summary)


def test_the_edits_say_why_and_how_much_they_save_once() -> None:
    request = chat(said("user", "Q"), *step("a"), said("system", "noon"), *step("b"), *step("c"))
    edits = folded_edits(request, chain_of(request), [fold_at(request, 6)])
    assert sum(edit.saved_tokens for edit in edits) == 800
    assert all("folded" in edit.reason for edit in edits)


@pytest.mark.parametrize("after_user", [True, False])
@pytest.mark.parametrize("before_model", [True, False])
def test_speakers_alternate_around_what_stands_for_others(after_user: bool, before_model: bool) -> None:
    made = stand_in("x", Format.CHAT, after_user=after_user, before_model=before_model)
    opening = ["user" if after_user else "assistant", *(one.role for one in made[0])]
    closing = [*(one.role for one in made[1]), "assistant" if before_model else "user"]
    assert all(one != other for one, other in pairwise([*opening, *closing]))
    assert (opening[-1], closing[0]) == ("user", "assistant")  # what stands between is taken there


def test_the_model_of_gemini_is_called_so() -> None:
    made, _ = stand_in("x", Format.GEMINI, after_user=True, before_model=True)
    assert [one.role for one in made] == ["model", "user"]
    assert made[1].parts == (Text(GO_ON),)


def test_pictures_and_documents_are_named_by_what_is_known_of_them() -> None:
    assert named(Image(source=Source.INLINE, width=640, height=480)) == "[image: 640x480 pixels]"
    assert named(Image(source=Source.URL)) == "[image: url]"
    pdf = Document(source=Source.INLINE, media_type="application/pdf", text="plan.pdf", pages=12)
    assert named(pdf) == "[document: plan.pdf, application/pdf, 12 pages]"
    assert named(Document(source=Source.FILE, media_type="")) == "[document: file]"
    assert named(Opaque("video", b"{}")) == "[video]"
    assert named(Text("words")) is None


def tail_without_thoughts(raws: Sequence[bytes]) -> list[Any]:
    left = []
    for found in map(value, raws):
        if isinstance(found.get("content"), list) and found.get("role") == "assistant":
            kept = [b for b in found["content"] if b["type"] not in ("thinking", "redacted_thinking")]
            found = {**found, "content": kept or NO_THOUGHT}
        left.append(found)
    return left


@pytest.mark.slow
@limited
@given(st.one_of(requests(), claude_bodies(most_calls=4)), st.data())
def test_whatever_is_folded_the_provider_takes_what_is_sent(body: Body, data: st.DataObject) -> None:
    request = wire.read(compact(body))
    assert accept(request) is None
    assume(cuts_of(request))
    cut = data.draw(st.sampled_from(cuts_of(request)))
    fold = fold_at(request, cut)
    sent = edited(request, fold)
    assert accept(sent, betas=betas_of(folded_edits(request, chain_of(request), [fold]))) is None
    tail = request.messages[cut:]
    if sent.messages[-len(tail) :] != tail:
        assert rules_for(body["model"]).binds_thinking
        left = [value(raw) for raw in sent.messages[-len(tail) :]]
        assert left == tail_without_thoughts(tail)


@pytest.mark.slow
@limited
@given(claude_loops(), st.data())
def test_a_later_fold_stands_for_the_earlier_one_too(body: Body, data: st.DataObject) -> None:
    request = wire.read(compact(body))
    assume(len(cuts_of(request)) > 1)
    near, far = sorted(
        data.draw(st.lists(st.sampled_from(cuts_of(request)), min_size=2, max_size=2, unique=True))
    )
    later = fold_at(request, far, summary="Both.")
    assert edited(request, fold_at(request, near), later).body == edited(request, later).body


@pytest.mark.slow
@limited
@given(requests(), st.data())
def test_a_fold_is_the_same_in_each_later_request(body: Body, data: st.DataObject) -> None:
    request = wire.read(compact(body))
    assume(cuts_of(request) and not rules_for(body["model"]).binds_thinking)
    fold = fold_at(request, data.draw(st.sampled_from(cuts_of(request))))
    field = "input" if "input" in body else "messages"
    longer = wire.read(
        compact({**body, field: [*body[field], said("assistant", "Yes."), said("user", "Then?")]})
    )
    sent, again = edited(request, fold), edited(longer, fold)
    assert again.messages[: len(sent.messages)] == sent.messages

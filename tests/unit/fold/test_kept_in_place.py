"""What stays of a folded head stays where its provider takes it: system messages, the question of a turn."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from foveate import wire
from foveate.fold.boundary import History
from foveate.fold.replacing import SO_FAR, UNDERSTOOD, folded_edits, summary_text
from foveate.fold.thoughts import betas_of
from foveate.sandbox import accept
from foveate.session.chain import chain_of
from foveate.values import Format, Request
from foveate.wire.body import compact, value
from tests.support.examples import limit_examples
from tests.unit.fold.talks import Body, cuts_of, fold_at, requests

TOOLS = [{"name": "read", "input_schema": {"type": "object"}}]


def said(role: str, words: str) -> Body:
    return {"role": role, "content": words}


def step(given: str) -> list[Body]:
    call = {"type": "tool_use", "id": given, "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": given, "content": "done"}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def claude(*messages: Body) -> Request:
    request = wire.read(
        {"model": "claude-opus-4-8", "max_tokens": 64, "tools": TOOLS, "messages": list(messages)},
        Format.ANTHROPIC,
    )
    assert accept(request) is None
    return request


def folded(request: Request, cut: int) -> Request:
    edits = folded_edits(request, chain_of(request), [fold_at(request, cut)])
    return wire.read(wire.write(request, edits), request.format)


def told(request: Request) -> list[str]:
    """Who speaks, with the words of what is no call and no result."""
    found: list[dict[str, Any]] = [value(raw) for raw in request.messages]
    return [
        f"{one['role']}: {one['content']}" if isinstance(one["content"], str) else one["role"] for one in found
    ]


def test_system_messages_of_the_head_stand_between_the_summary_and_the_reply() -> None:
    request = claude(
        said("user", "old"),
        said("system", "noon"),
        said("assistant", "b"),
        said("user", "c"),
        said("system", "one"),
        said("assistant", "d"),
        said("user", "e"),
    )
    sent = folded(request, 6)
    assert told(sent) == [
        f"user: {summary_text(fold_at(request, 6))}",
        "system: noon",
        "system: one",
        f"assistant: {UNDERSTOOD}",
        "user: e",
    ]
    assert accept(sent) is None


def test_system_messages_after_the_question_under_way_stay_behind_it() -> None:
    """Recent Claude Code sends one after the first question."""
    request = claude(
        said("user", "old"),
        said("system", "noon"),
        *step("a"),
        said("assistant", "b"),
        said("user", "Q"),
        said("system", "one"),
        *step("b"),
        said("system", "two"),
        *step("c"),
    )
    sent = folded(request, 10)
    assert told(sent)[1:] == [
        "system: noon",
        f"assistant: {UNDERSTOOD}",
        "user: Q",
        "system: one",
        "system: two",
        "assistant",
        "user",
    ]
    assert accept(sent) is None


@pytest.mark.parametrize("system", [[], [said("system", "one")]])
def test_a_fork_between_two_steps_keeps_the_question_that_the_summary_does_not_tell(system: list[Body]) -> None:
    """The defect: a user who interrupted between two steps lost the question, and every constraint in it."""
    under_way = [said("user", "Port it. Never touch db-prod-7."), *system, *step("a"), *step("b")]
    fold = fold_at(claude(*under_way, *step("c")), len(under_way))
    fork = claude(*under_way, said("user", "Stop. How far are you?"))
    sent = wire.read(wire.write(fork, folded_edits(fork, chain_of(fork), [fold])), fork.format)
    assert told(sent) == [
        f"user: {summary_text(fold)}",
        f"assistant: {UNDERSTOOD}",
        "user: Port it. Never touch db-prod-7.",
        *(f"system: {one['content']}" for one in system),
        f"assistant: {SO_FAR}",
        "user: Stop. How far are you?",
    ]
    assert accept(sent) is None


@pytest.mark.slow
@settings(max_examples=limit_examples(80))
@given(requests(), st.data())
def test_whoever_speaks_next_nothing_is_replaced_that_the_summary_does_not_tell(
    body: Body, data: st.DataObject
) -> None:
    request = wire.read(compact(body))
    assume(cuts_of(request))
    cut = data.draw(st.sampled_from(cuts_of(request)))
    history = History([wire.message(request.format, raw) for raw in request.messages])
    field = "input" if "input" in body else "messages"
    fork = wire.read(compact({**body, field: [*body[field][:cut], said("user", "Stop.")]}), request.format)
    assume(accept(fork) is None)
    edits = folded_edits(fork, chain_of(fork), [fold_at(request, cut)])
    sent = wire.read(wire.write(fork, edits), fork.format)
    assert accept(sent, betas=betas_of(edits)) is None
    untold = Counter(
        raw for place, raw in enumerate(request.messages[:cut]) if place not in history.folded(cut)
    )
    assert untold <= Counter(sent.messages)

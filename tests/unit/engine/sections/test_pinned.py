"""Pinned sections: texts that thinking blocks depend on stay where they are, or the thinking is dropped."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foveate.compaction.thinking import required_betas
from foveate.engine.options import AgentOptions, SectionOptions
from foveate.model import Format
from tests.support.scenarios.injected_sections import (
    HEADING,
    SectionInjection,
    garden_sections,
    only_sections,
    sent_body,
)

MODEL = "claude-opus-5-5"
FIRST: dict[str, Any] = {"role": "user", "content": "When does bed 7 get water?"}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "", "signature": "c2ln"},
        {"type": "tool_use", "id": "t1", "name": "look", "input": {}},
    ],
}
RESULT: dict[str, Any] = {
    "role": "user",
    "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "dry"}],
}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "On day 7."}
AGAIN: dict[str, Any] = {"role": "user", "content": "And bed 9?"}


@pytest.fixture
def sections(tmp_path: Path) -> SectionOptions:
    garden = garden_sections(tmp_path)
    return only_sections(garden, workspace=garden.workspace, memory=garden.memory)


def send(
    injecting: SectionInjection,
    sections: SectionOptions | None,
    *messages: Any,
    model: str = MODEL,
    **more: Any,
) -> dict[str, Any]:
    body = {"model": model, "max_tokens": 50, "messages": list(messages), **more}
    return sent_body(injecting.apply(body, Format.ANTHROPIC, AgentOptions(sections=sections)))


def pinned_messages(body: dict[str, Any]) -> list[int]:
    """The messages after which something is pinned."""
    return [at for at, message in enumerate(body["messages"]) if HEADING in str(message)]


def test_a_pinned_text_is_at_the_same_place_in_every_later_request(sections: SectionOptions) -> None:
    injecting = SectionInjection()

    first = send(injecting, sections, FIRST)
    then = send(injecting, sections, FIRST, CALL, RESULT)
    later = send(injecting, sections, FIRST, CALL, RESULT, ANSWER, AGAIN)

    assert (pinned_messages(first), pinned_messages(then), pinned_messages(later)) == ([0], [0], [0, 4])
    assert then["messages"][0] == later["messages"][0] == first["messages"][0]
    assert then["system"] == later["system"] == first["system"]
    assert later["messages"][1:4] == [CALL, RESULT, ANSWER]
    assert "bed 9" in str(later["messages"][4]).lower()


def test_a_repeated_request_has_the_same_bytes(sections: SectionOptions) -> None:
    injecting = SectionInjection()
    send(injecting, sections, FIRST)

    once, twice = (send(injecting, sections, FIRST, CALL, RESULT, ANSWER, AGAIN) for _ in range(2))

    assert once == twice


def test_a_fork_keeps_pinned_texts_from_before_it(sections: SectionOptions) -> None:
    injecting = SectionInjection()
    first = send(injecting, sections, FIRST)
    send(injecting, sections, FIRST, CALL, RESULT, ANSWER, AGAIN)

    fork = send(injecting, sections, FIRST, CALL, RESULT, ANSWER, {"role": "user", "content": "And bed 3?"})

    assert fork["messages"][0] == first["messages"][0]
    assert fork["messages"][1] == CALL


def test_sections_are_injected_once_per_turn_for_older_thinking_models(sections: SectionOptions) -> None:
    injecting = SectionInjection()
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}

    first = send(injecting, sections, FIRST, model="claude-opus-4-1", **thinking)
    then = send(injecting, sections, FIRST, CALL, RESULT, model="claude-opus-4-1", **thinking)
    without = send(injecting, sections, FIRST, CALL, RESULT, model="claude-opus-4-1")

    assert then["messages"] == [first["messages"][0], CALL, RESULT]
    assert pinned_messages(without) == [2]


def thinking_blocks(body: dict[str, Any]) -> int:
    return str(body["messages"]).count("'thinking':")


def test_thinking_after_unknown_sections_is_dropped_and_later_thinking_is_kept(
    sections: SectionOptions,
) -> None:
    send(SectionInjection(), sections, FIRST)
    another = SectionInjection()

    cold = send(another, sections, FIRST, CALL, RESULT, ANSWER, AGAIN)
    call = {**CALL, "content": [CALL["content"][0], {**CALL["content"][1], "id": "t2"}]}
    result = {"role": "user", "content": [{**RESULT["content"][0], "tool_use_id": "t2"}]}
    warm = send(another, sections, FIRST, CALL, RESULT, ANSWER, AGAIN, call, result)

    assert thinking_blocks(cold) == 0
    assert warm["messages"][5] == call
    assert warm["messages"][:5] == cold["messages"]


def test_a_changed_system_prompt_drops_earlier_thinking(tmp_path: Path, sections: SectionOptions) -> None:
    unkept = replace(sections, workspace_cache=replace(sections.workspace_cache, enabled=False))
    injecting = SectionInjection()
    send(injecting, unkept, FIRST)
    same = send(injecting, unkept, FIRST, CALL, RESULT, ANSWER, AGAIN)

    (tmp_path / "workspace" / "USER.md").write_text("# Bob\n\nHas tulips.\n")
    changed = send(injecting, unkept, FIRST, CALL, RESULT, ANSWER, AGAIN, ANSWER, FIRST)

    assert thinking_blocks(same) == 1
    assert thinking_blocks(changed) == 0
    assert "Has tulips." in str(changed["system"])


def test_turning_sections_off_drops_the_thinking_after_them(sections: SectionOptions) -> None:
    injecting = SectionInjection()
    send(injecting, sections, FIRST)

    off = send(injecting, None, FIRST, CALL, RESULT, ANSWER, AGAIN)

    assert pinned_messages(off) == []
    assert thinking_blocks(off) == 0


@pytest.mark.parametrize("nothing", [None, SectionOptions()])
def test_a_conversation_without_sections_keeps_its_thinking(
    sections: SectionOptions, nothing: SectionOptions | None
) -> None:
    injecting = SectionInjection()
    send(injecting, sections, AGAIN)  # another conversation of the same agent

    body = send(injecting, nothing, FIRST, CALL, RESULT, ANSWER, AGAIN)

    assert body["messages"] == [FIRST, CALL, RESULT, ANSWER, AGAIN]


def test_the_provider_is_asked_to_drop_thinking_during_a_turn(sections: SectionOptions) -> None:
    send(SectionInjection(), sections, FIRST)
    another = SectionInjection()
    body = {
        "model": MODEL,
        "max_tokens": 2000,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "messages": [FIRST, CALL, RESULT],
    }

    context = another.apply(body, Format.ANTHROPIC, AgentOptions(sections=sections))

    sent = sent_body(context)
    assert sent["thinking"]["block_binding"] == {"prefix_mismatch_behavior": "drop_block"}
    assert sent["messages"][1] == CALL
    assert required_betas([applied.edit for applied in context.all_edits()])


def test_without_room_to_repeat_them_pinned_texts_and_their_thinking_are_dropped(
    sections: SectionOptions,
) -> None:
    injecting = SectionInjection()
    send(injecting, sections, FIRST)
    body = {"model": MODEL, "max_tokens": 50, "messages": [FIRST, CALL, RESULT, ANSWER, AGAIN]}

    context = injecting.apply(body, Format.ANTHROPIC, AgentOptions(sections=sections, window_tokens=230))

    assert thinking_blocks(sent_body(context)) == 0
    assert pinned_messages(sent_body(context)) == []
    assert "You are Ana" in str(sent_body(context)["system"])

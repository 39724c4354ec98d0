"""Pinned sections: texts that thinking blocks depend on stay where they are, or the thinking is dropped."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foveate.compaction.thinking import required_betas
from foveate.engine.options import AgentOptions, SectionOptions
from foveate.engine.sections.sources import REFRESH_SECONDS, SectionSources
from foveate.model import Format
from tests.support.scenarios.injected_sections import (
    HEADING,
    SectionInjection,
    garden_sections,
    only_sections,
    sent_body,
)

MODEL = "claude-opus-5-5"
QUESTION: dict[str, Any] = {"role": "user", "content": "When does bed 7 get water?"}
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
NEXT_QUESTION: dict[str, Any] = {"role": "user", "content": "And bed 9?"}


@pytest.fixture
def sections(tmp_path: Path) -> SectionOptions:
    garden = garden_sections(tmp_path)
    return only_sections(garden, workspace=garden.workspace, memory=garden.memory)


def send(
    injection: SectionInjection,
    sections: SectionOptions | None,
    *messages: Any,
    model: str = MODEL,
    **fields: Any,
) -> dict[str, Any]:
    body = {"model": model, "max_tokens": 50, "messages": list(messages), **fields}
    return sent_body(injection.apply(body, Format.ANTHROPIC, AgentOptions(sections=sections)))


def pinned_messages(body: dict[str, Any]) -> list[int]:
    """Indexes of the messages with pinned sections."""
    return [at for at, message in enumerate(body["messages"]) if HEADING in str(message)]


def test_a_pinned_text_is_at_the_same_place_in_every_later_request(sections: SectionOptions) -> None:
    injection = SectionInjection()

    first = send(injection, sections, QUESTION)
    second = send(injection, sections, QUESTION, CALL, RESULT)
    third = send(injection, sections, QUESTION, CALL, RESULT, ANSWER, NEXT_QUESTION)

    assert (pinned_messages(first), pinned_messages(second), pinned_messages(third)) == ([0], [0], [0, 4])
    assert second["messages"][0] == third["messages"][0] == first["messages"][0]
    assert second["system"] == third["system"] == first["system"]
    assert third["messages"][1:4] == [CALL, RESULT, ANSWER]
    assert "bed 9" in str(third["messages"][4]).lower()


def make_private(sections: SectionOptions, folder: Path) -> SectionOptions:
    notes = folder / "notes" / "garden.org"
    notes.write_text(notes.read_text().replace("* Bed 7\n", "* Bed 7 :private:\n"))
    return sections


def make_tag_private(sections: SectionOptions, _folder: Path) -> SectionOptions:
    return replace(sections, privacy_tags=sections.privacy_tags | {"bed"})


def remove_memory(sections: SectionOptions, _folder: Path) -> SectionOptions:
    return replace(sections, memory=None)


@pytest.mark.parametrize("change", [make_private, make_tag_private, remove_memory])
@pytest.mark.parametrize("is_new_turn", [False, True])
def test_a_pinned_note_is_not_repeated_once_it_is_private(
    tmp_path: Path, change: Callable[[SectionOptions, Path], SectionOptions], is_new_turn: bool
) -> None:
    garden = garden_sections(tmp_path)
    notes = tmp_path / "notes" / "garden.org"
    notes.write_text(f"#+FILETAGS: :garden:\n{notes.read_text()}* Shed :bed:\nThe key is below bed 7.\n")
    sections = only_sections(garden, memory=garden.memory)
    clock = [0.0]
    injection = SectionInjection(sources=SectionSources(clock=lambda: clock[0]))
    first = send(injection, sections, QUESTION)

    sections = change(sections, tmp_path)
    clock[0] += REFRESH_SECONDS
    later = [CALL, RESULT, ANSWER, NEXT_QUESTION] if is_new_turn else [CALL, RESULT]
    second = send(injection, sections, QUESTION, *later)
    third = send(injection, sections, QUESTION, *later, ANSWER, {"role": "user", "content": "Thanks."})

    private = "The key is below bed 7." if change is make_tag_private else "Bed 7 gets water on day 7."
    assert private in str(first)
    assert private not in str(second)
    assert private not in str(third)
    assert count_thinking_blocks(second) == count_thinking_blocks(third) == 0


def test_a_pinned_note_is_repeated_if_another_note_changes(tmp_path: Path) -> None:
    garden = garden_sections(tmp_path)
    sections = only_sections(garden, memory=garden.memory)
    clock = [0.0]
    injection = SectionInjection(sources=SectionSources(clock=lambda: clock[0]))
    first = send(injection, sections, QUESTION)

    notes = tmp_path / "notes" / "garden.org"
    notes.write_text(f"{notes.read_text()}* Bed 20\nBed 20 is new.\n")
    clock[0] += REFRESH_SECONDS
    second = send(injection, sections, QUESTION, CALL, RESULT)

    assert "* Diary :private:" in notes.read_text()
    assert second["messages"] == [first["messages"][0], CALL, RESULT]


def test_a_repeated_request_has_the_same_bytes(sections: SectionOptions) -> None:
    injection = SectionInjection()
    send(injection, sections, QUESTION)

    first, second = (send(injection, sections, QUESTION, CALL, RESULT, ANSWER, NEXT_QUESTION) for _ in range(2))

    assert first == second


def test_a_fork_keeps_pinned_texts_from_before_it(sections: SectionOptions) -> None:
    injection = SectionInjection()
    first = send(injection, sections, QUESTION)
    send(injection, sections, QUESTION, CALL, RESULT, ANSWER, NEXT_QUESTION)

    fork = send(injection, sections, QUESTION, CALL, RESULT, ANSWER, {"role": "user", "content": "And bed 3?"})

    assert fork["messages"][0] == first["messages"][0]
    assert fork["messages"][1] == CALL


def test_sections_are_injected_once_per_turn_for_older_thinking_models(sections: SectionOptions) -> None:
    injection = SectionInjection()
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}

    first = send(injection, sections, QUESTION, model="claude-opus-4-1", **thinking)
    second = send(injection, sections, QUESTION, CALL, RESULT, model="claude-opus-4-1", **thinking)
    without_thinking = send(injection, sections, QUESTION, CALL, RESULT, model="claude-opus-4-1")

    assert second["messages"] == [first["messages"][0], CALL, RESULT]
    assert pinned_messages(without_thinking) == [2]


def count_thinking_blocks(body: dict[str, Any]) -> int:
    return str(body["messages"]).count("'thinking':")


def test_thinking_after_unknown_sections_is_dropped_and_later_thinking_is_kept(
    sections: SectionOptions,
) -> None:
    send(SectionInjection(), sections, QUESTION)
    other_process = SectionInjection()

    first_request = send(other_process, sections, QUESTION, CALL, RESULT, ANSWER, NEXT_QUESTION)
    call = {**CALL, "content": [CALL["content"][0], {**CALL["content"][1], "id": "t2"}]}
    result = {"role": "user", "content": [{**RESULT["content"][0], "tool_use_id": "t2"}]}
    second_request = send(other_process, sections, QUESTION, CALL, RESULT, ANSWER, NEXT_QUESTION, call, result)

    assert count_thinking_blocks(first_request) == 0
    assert second_request["messages"][5] == call
    assert second_request["messages"][:5] == first_request["messages"]


def test_a_changed_system_prompt_drops_earlier_thinking(tmp_path: Path, sections: SectionOptions) -> None:
    uncached = replace(sections, workspace_cache=replace(sections.workspace_cache, enabled=False))
    injection = SectionInjection()
    send(injection, uncached, QUESTION)
    unchanged = send(injection, uncached, QUESTION, CALL, RESULT, ANSWER, NEXT_QUESTION)

    (tmp_path / "workspace" / "USER.md").write_text("# Bob\n\nHas tulips.\n")
    changed = send(injection, uncached, QUESTION, CALL, RESULT, ANSWER, NEXT_QUESTION, ANSWER, QUESTION)

    assert count_thinking_blocks(unchanged) == 1
    assert count_thinking_blocks(changed) == 0
    assert "Has tulips." in str(changed["system"])


def test_turning_sections_off_drops_the_thinking_after_them(sections: SectionOptions) -> None:
    injection = SectionInjection()
    send(injection, sections, QUESTION)

    body = send(injection, None, QUESTION, CALL, RESULT, ANSWER, NEXT_QUESTION)

    assert pinned_messages(body) == []
    assert count_thinking_blocks(body) == 0


@pytest.mark.parametrize("no_sections", [None, SectionOptions()])
def test_a_conversation_without_sections_keeps_its_thinking(
    sections: SectionOptions, no_sections: SectionOptions | None
) -> None:
    injection = SectionInjection()
    send(injection, sections, NEXT_QUESTION)  # another conversation of the same agent

    body = send(injection, no_sections, QUESTION, CALL, RESULT, ANSWER, NEXT_QUESTION)

    assert body["messages"] == [QUESTION, CALL, RESULT, ANSWER, NEXT_QUESTION]


def test_the_provider_is_asked_to_drop_thinking_during_a_turn(sections: SectionOptions) -> None:
    send(SectionInjection(), sections, QUESTION)
    other_process = SectionInjection()
    body = {
        "model": MODEL,
        "max_tokens": 2000,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "messages": [QUESTION, CALL, RESULT],
    }

    context = other_process.apply(body, Format.ANTHROPIC, AgentOptions(sections=sections))

    request = sent_body(context)
    assert request["thinking"]["block_binding"] == {"prefix_mismatch_behavior": "drop_block"}
    assert request["messages"][1] == CALL
    assert required_betas([applied.edit for applied in context.all_edits()])


def test_without_room_to_repeat_them_pinned_texts_and_their_thinking_are_dropped(
    sections: SectionOptions,
) -> None:
    injection = SectionInjection()
    send(injection, sections, QUESTION)
    body = {"model": MODEL, "max_tokens": 50, "messages": [QUESTION, CALL, RESULT, ANSWER, NEXT_QUESTION]}

    context = injection.apply(body, Format.ANTHROPIC, AgentOptions(sections=sections, window_tokens=230))

    assert count_thinking_blocks(sent_body(context)) == 0
    assert pinned_messages(sent_body(context)) == []
    assert "You are Ana" in str(sent_body(context)["system"])

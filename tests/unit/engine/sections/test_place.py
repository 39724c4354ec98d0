"""Places of injected sections in each format."""

from pathlib import Path
from typing import Any

import pytest

from foveate.engine.options import AgentOptions, SectionInputs, SectionOptions
from foveate.model import Area, Format, InsertParts, Place
from tests.support.scenarios.injected_sections import (
    HEADING,
    SectionInjection,
    garden_sections,
    only_sections,
    sent_body,
)

SLACK = SectionInputs(channel="slack", sender="U1")
HELLO: dict[str, Any] = {"role": "user", "content": "When does bed 7 get water?"}
CHAT_RESULT: list[dict[str, Any]] = [
    HELLO,
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "dry"},
]


@pytest.fixture
def sections(tmp_path: Path) -> SectionOptions:
    return garden_sections(tmp_path)


def test_anthropic_has_stable_sections_after_the_system_prompt_and_others_after_the_user(
    sections: SectionOptions,
) -> None:
    body = {"model": "claude-sonnet-4-5", "max_tokens": 100, "system": "Be kind.", "messages": [HELLO]}

    context = SectionInjection().apply(body, Format.ANTHROPIC, AgentOptions(sections=sections), inputs=SLACK)

    request = sent_body(context)
    assert [block["text"] for block in request["system"]] == [
        "Be kind.",
        "You are Ana, who keeps the garden.",
        "# Bob\n\nHas roses.",
        "Skill water: waters a bed",
        "Peer: Bob: likes roses",
        "Be short.",
        "Answer in German.",
    ]
    first, projects, memory, budget, channel, sender, time = (
        b["text"] for b in request["messages"][0]["content"]
    )
    assert first == HELLO["content"]
    assert projects == f"{HEADING}\n\nNo active projects found."
    assert memory.startswith("## Memory\n\n")
    assert "Bed 7 gets water on day 7." in memory
    assert budget.startswith("## Context Budget\nUsing ")
    assert (channel, sender) == ("Channel: slack", "Sender: U1")
    assert time.startswith("Time: 2027-01-15T08:00+00:00\n")
    assert "Deadline in 20 min: Prune" in time


def test_turn_sections_follow_tool_results(sections: SectionOptions) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "dry"}
    messages = [HELLO, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]

    context = SectionInjection().apply(
        {"model": "claude-sonnet-4-5", "messages": messages}, Format.ANTHROPIC, AgentOptions(sections=sections)
    )

    sent_messages = sent_body(context)["messages"]
    assert sent_messages[:2] == messages[:2]
    assert sent_messages[2]["content"][0] == result
    assert (
        "Bed 7 gets water on day 7." in sent_messages[2]["content"][2]["text"]
    )  # the user's last text is the query
    assert set(context.cache.transient_places) == {
        Place(Area.MESSAGES, 2, block) for block in range(1, len(sent_messages[2]["content"]))
    }


def test_a_chat_keeps_plain_strings(sections: SectionOptions) -> None:
    body = {"model": "gpt-4.1", "messages": [{"role": "system", "content": "Be kind."}, HELLO]}

    sent_messages = sent_body(SectionInjection().apply(body, Format.CHAT, AgentOptions(sections=sections)))[
        "messages"
    ]

    assert [message["role"] for message in sent_messages] == ["system", "user"]
    assert sent_messages[0]["content"].startswith("Be kind.\n\nYou are Ana, who keeps the garden.\n\n# Bob")
    assert sent_messages[1]["content"].startswith(
        f"{HELLO['content']}\n\n{HEADING}\n\nNo active projects found.\n\n## Memory"
    )


def test_a_chat_without_a_system_prompt_gets_one(
    sections: SectionOptions,
) -> None:
    context = SectionInjection().apply(
        {"model": "gpt-4.1", "messages": [HELLO]}, Format.CHAT, AgentOptions(sections=sections)
    )

    assert [message["role"] for message in sent_body(context)["messages"]] == ["system", "user"]
    assert context.cache.transient_places == (Place(Area.MESSAGES, 1, 0),)


def test_a_chat_that_ends_with_a_tool_result_gets_a_new_message(sections: SectionOptions) -> None:
    context = SectionInjection().apply(
        {"model": "gpt-4.1", "messages": CHAT_RESULT}, Format.CHAT, AgentOptions(sections=sections)
    )

    sent_messages = sent_body(context)["messages"]
    assert sent_messages[1:4] == CHAT_RESULT
    assert [message["role"] for message in sent_messages[4:]] == ["user"]
    assert sent_messages[4]["content"].startswith(HEADING)
    assert "\n\nTime: " in sent_messages[4]["content"]
    assert context.cache.transient_places == (Place(Area.MESSAGES, 4, 0),)


def test_a_chat_gets_blocks_if_its_provider_supports_breakpoints(sections: SectionOptions) -> None:
    context = SectionInjection().apply(
        {"model": "gpt-5.6", "messages": [{"role": "system", "content": "Be kind."}, HELLO]},
        Format.CHAT,
        AgentOptions(sections=sections),
    )

    sent_messages = sent_body(context)["messages"]
    assert sent_messages[0]["content"][0] == {"type": "text", "text": "Be kind."}
    assert sent_messages[1]["content"][0] == {"type": "text", "text": HELLO["content"]}
    assert context.cache.transient_places[0] == Place(Area.MESSAGES, 1, 1)


def test_responses_get_instructions_and_a_longer_input(sections: SectionOptions) -> None:
    context = SectionInjection().apply(
        {"model": "gpt-4.1", "instructions": "Be kind.", "input": "Hello"},
        Format.RESPONSES,
        AgentOptions(sections=sections),
    )

    request = sent_body(context)
    assert request["instructions"].startswith("Be kind.\n\nYou are Ana")
    assert request["input"].startswith(f"Hello\n\n{HEADING}")


def test_responses_that_end_with_a_tool_output_get_a_new_item(sections: SectionOptions) -> None:
    items = [
        HELLO,
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "dry"},
    ]

    sent_items = sent_body(
        SectionInjection().apply(
            {"model": "gpt-4.1", "input": items}, Format.RESPONSES, AgentOptions(sections=sections)
        )
    )["input"]

    assert sent_items[:3] == items
    assert (len(sent_items), sent_items[3]["role"]) == (4, "user")


def test_a_prefilled_response_stays_last(sections: SectionOptions) -> None:
    prefill = {"role": "assistant", "content": "On day"}

    context = SectionInjection().apply(
        {"model": "claude-sonnet-4-5", "messages": [HELLO, prefill]},
        Format.ANTHROPIC,
        AgentOptions(sections=sections),
    )

    sent_messages = sent_body(context)["messages"]
    assert sent_messages[1] == prefill
    assert HEADING in sent_messages[0]["content"][1]["text"]
    assert Place(Area.MESSAGES, 1, 0) in context.cache.transient_places


@pytest.mark.parametrize("kind", ["heartbeat", "delegation"])
def test_heartbeats_and_delegations_have_all_sections_but_the_memory(
    sections: SectionOptions, kind: str
) -> None:
    context = SectionInjection().apply(
        {"model": "claude-sonnet-4-5", "messages": [HELLO]},
        Format.ANTHROPIC,
        AgentOptions(sections=sections),
        kind=kind,
    )

    request_text = context.request.body.decode()
    assert "## Memory" not in request_text
    assert "You are Ana" in request_text
    assert "Time: " in request_text


def test_an_unknown_kind_is_reported_and_treated_as_a_users_request(sections: SectionOptions) -> None:
    injection = SectionInjection()

    context = injection.apply(
        {"model": "claude-sonnet-4-5", "messages": [HELLO]},
        Format.ANTHROPIC,
        AgentOptions(sections=sections),
        kind="hartbeat",
    )

    assert "## Memory" in context.request.body.decode()
    assert [problem.step for problem in injection.problems] == ["sections/kind"]


def test_the_focus_is_shown_completely_and_an_unknown_one_is_reported(tmp_path: Path) -> None:
    sections = garden_sections(tmp_path, memory_limit_tokens=60)
    options = AgentOptions(sections=only_sections(sections, memory=sections.memory))
    injection = SectionInjection()
    body = {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": "And?"}]}

    with_known_focus = injection.apply(body, Format.ANTHROPIC, options, inputs=SectionInputs(focus="Bed 13"))
    with_unknown_focus = injection.apply(body, Format.ANTHROPIC, options, inputs=SectionInputs(focus="Bed 99"))

    assert "Bed 13 gets water on day 13." in with_known_focus.request.body.decode()
    assert "## Memory" in with_unknown_focus.request.body.decode()
    assert "Bed 99" in injection.problems[0].reason


def test_nothing_outside_the_scope_is_shown(sections: SectionOptions) -> None:
    context = SectionInjection().apply(
        {"model": "claude-sonnet-4-5", "messages": [HELLO]},
        Format.ANTHROPIC,
        AgentOptions(sections=only_sections(sections, memory=sections.memory)),
        inputs=SectionInputs(scope="Bed 3"),
    )

    request_text = context.request.body.decode()
    assert "Bed 3 gets water" in request_text
    assert "Bed 7 gets water" not in request_text


def test_every_section_is_an_edit_with_its_name_and_tokens(sections: SectionOptions) -> None:
    context = SectionInjection().apply(
        {"model": "claude-sonnet-4-5", "messages": [HELLO]},
        Format.ANTHROPIC,
        AgentOptions(sections=sections),
        inputs=SLACK,
    )

    edits = [applied.edit for applied in context.applied_edits]
    names = [edit.reason.split(",")[0] for edit in edits]
    assert names == [
        "section workspace/IDENTITY.md",
        "section workspace/USER.md",
        "section skills",
        "section peers",
        "section channel_prompt",
        "section language",
        "section awareness",
        "section context",
        "section budget",
        "section channel",
        "section sender",
        "section time",
    ]
    assert all(isinstance(edit, InsertParts) and edit.saved_tokens < 0 for edit in edits)
    assert {applied.step for applied in context.applied_edits} == {"sections"}


def test_a_request_of_an_agent_without_sections_is_unchanged() -> None:
    context = SectionInjection().apply(
        {"model": "claude-sonnet-4-5", "messages": [HELLO]}, Format.ANTHROPIC, AgentOptions()
    )

    assert context.request is context.original
    assert context.applied_edits == []


def test_a_provider_that_does_not_support_blocks_is_logged_once(
    sections: SectionOptions, caplog: pytest.LogCaptureFixture
) -> None:
    """Defect: the function that made the warning was never called."""
    injection = SectionInjection()
    chat = {"model": "gemini-2.5-pro", "messages": [HELLO]}
    for _ in range(2):
        injection.apply(chat, Format.CHAT, AgentOptions(sections=sections), provider="google")
    assert [line for line in caplog.messages if "does not accept content blocks" in line] == [
        "google does not accept content blocks: "
        "Foveate sends its sections as one text, without cache breakpoints"
    ]
    caplog.clear()
    SectionInjection().apply(
        {"model": "claude-sonnet-4-5", "messages": [HELLO]}, Format.ANTHROPIC, AgentOptions(sections=sections)
    )
    assert not caplog.messages

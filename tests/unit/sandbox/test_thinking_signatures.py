"""Signatures of thinking blocks, which some models bind to their prefix."""

import base64
import copy
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.formats.json_text.parse import to_json
from foveate.model import Format
from foveate.sandbox import thinking_signatures
from foveate.sandbox.http import SandboxRequest
from foveate.sandbox.sandbox import Sandbox
from tests.support.scenarios.valid_requests import (
    BINDING,
    BREAKPOINT,
    CLAUDE,
    LONG_BREAKPOINT,
    Json,
    accepts,
    assistant,
    call,
    claude,
    rejection,
    result,
    text,
    tool,
    user,
    validate,
)
from tests.support.servers.sandbox import ManualClock

BINDING_MODELS = ("claude-fable-5-1", "claude-opus-5-5", "claude-sonnet-5-5")
TOOLS = [tool()]
SYSTEM = [text("Be brief."), text("Be kind.")]


def make_thinking(request_body: Json, thinking_text: str = "Hm.") -> Json:
    """Return the thinking block of a response."""
    signature = thinking_signatures.sign_thinking(
        request_body["model"], thinking_signatures.hash_prefix(request_body).digest(), thinking_text
    )
    return {"type": "thinking", "thinking": thinking_text, "signature": signature}


def make_history(model: str = BINDING) -> Json:
    """Return a request of four turns with thinking in each assistant turn."""
    body = claude(user("Look at it."), model=model, tools=TOOLS, system=SYSTEM)
    body["messages"].append(assistant(make_thinking(body), call("a")))
    body["messages"].append(user(result("a")))
    body["messages"].append(assistant(make_thinking(body, "Aha."), "It is there."))
    body["messages"].append(user("Thanks."))
    return copy.deepcopy(body)


@pytest.mark.parametrize("model", [*BINDING_MODELS, CLAUDE])
def test_an_unchanged_history_is_accepted(model: str) -> None:
    assert accepts(Format.ANTHROPIC, make_history(model))


EDITS: dict[str, Callable[[Json], object]] = {
    "the system prompt": lambda body: body["system"][0].update(text="Be very brief."),
    "an added system block": lambda body: body["system"].append(text("It is noon.")),
    "a tool's description": lambda body: body["tools"][0].update(description="Looks around."),
    "an added tool": lambda body: body["tools"].insert(0, tool("listen")),
    "the first message": lambda body: body["messages"][0]["content"][0].update(text="Look away."),
    "an inserted message": lambda body: body["messages"].insert(0, user("Once.")),
    "a tool's result": lambda body: body["messages"][2]["content"][0].update(content="[...truncated]"),
    "a tool call's input": lambda body: body["messages"][1]["content"][1].update(input={"deep": True}),
    "the first thinking block removed": lambda body: body["messages"][1]["content"].pop(0),
    "the first turns compacted": lambda body: body.update(messages=[user("Summary."), *body["messages"][3:]]),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
@pytest.mark.parametrize("model", BINDING_MODELS)
def test_an_edit_before_a_bound_thinking_block_is_detected(model: str, edit: Callable[[Json], object]) -> None:
    body = make_history(model)
    edit(body)
    error = rejection(Format.ANTHROPIC, body)

    assert "prefix_mismatch" in error.message
    assert error.message.startswith("messages.")


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_models_without_binding_accept_an_edited_history(edit: Callable[[Json], object]) -> None:
    body = make_history(CLAUDE)
    edit(body)

    assert accepts(Format.ANTHROPIC, body)


def test_thinking_blocks_after_an_edit_are_dropped_on_request() -> None:
    body = make_history()
    body["messages"][0]["content"][0]["text"] = "Look away."
    binding = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    drop_request = body | {"thinking": {"type": "adaptive"} | binding}

    assert accepts(Format.ANTHROPIC, drop_request, betas=["thinking-binding-controls-2026-08-01"])
    message = "thinking.adaptive.block_binding: Extra inputs are not permitted"
    assert rejection(Format.ANTHROPIC, drop_request, betas=["another-2026-01-01"]).message == message


def test_a_history_without_thinking_blocks_may_be_edited() -> None:
    body = make_history()
    for message in body["messages"]:
        message["content"] = [block for block in message["content"] if block["type"] != "thinking"]
    body["messages"][0]["content"][0]["text"] = "Look away."

    assert accepts(Format.ANTHROPIC, body)


def test_moved_breakpoints_are_not_an_edit() -> None:
    body = make_history()
    body["system"][1]["cache_control"] = LONG_BREAKPOINT
    body["messages"][2]["content"][0]["cache_control"] = BREAKPOINT

    assert accepts(Format.ANTHROPIC, body)


def test_a_string_and_its_text_block_are_the_same_history() -> None:
    body = make_history()
    body["messages"][0]["content"] = "Look at it."

    assert accepts(Format.ANTHROPIC, body)


def test_null_fields_are_not_an_edit() -> None:
    body = make_history()
    body["messages"][3]["content"][1]["citations"] = None

    assert accepts(Format.ANTHROPIC, body)


def test_a_thinking_block_of_another_model_is_silently_ignored() -> None:
    body = make_history("claude-opus-5-5") | {"model": "claude-fable-5-1"}
    body["messages"][0]["content"][0]["text"] = "Look away."

    assert accepts(Format.ANTHROPIC, body)


@pytest.mark.parametrize("model", [CLAUDE, BINDING])
@pytest.mark.parametrize("signature", ["", "forged", "AAAA", base64.b64encode(b"x" * 80).decode(), "ü"])
def test_a_forged_signature_is_rejected_by_every_model(model: str, signature: str) -> None:
    body = make_history(model)
    body["messages"][1]["content"][0]["signature"] = signature

    assert (
        rejection(Format.ANTHROPIC, body).message
        == "messages.1.content.0: Invalid `signature` in `thinking` block"
    )


def test_a_signature_cannot_be_made_to_fit_an_edited_history() -> None:
    """The prefix digest in the signature is readable, but only the sandbox can sign it."""
    body = make_history()
    body["messages"][0]["content"][0]["text"] = "Look away."
    block = body["messages"][1]["content"][0]
    signature = bytearray(base64.b64decode(block["signature"]))
    prefix = body | {"messages": body["messages"][:1]}
    signature[16:32] = thinking_signatures.hash_prefix(prefix).digest()
    block["signature"] = base64.b64encode(signature).decode()

    assert "Invalid `signature`" in rejection(Format.ANTHROPIC, body).message


def test_a_changed_thinking_block_is_rejected() -> None:
    body = make_history(CLAUDE)
    body["messages"][3]["content"][0]["thinking"] = "Oho."

    assert rejection(Format.ANTHROPIC, body).message.startswith("messages.3.content.0: Invalid `signature`")


@given(
    turns=st.lists(st.text(st.characters(categories=["L"]), min_size=1), min_size=2, max_size=6),
    data=st.data(),
)
def test_every_edit_of_any_earlier_message_is_detected(turns: list[str], data: st.DataObject) -> None:
    body = claude(*(user(turn) for turn in turns), model=BINDING)
    body["messages"].append(assistant(make_thinking(body), "Done."))
    body["messages"].append(user("And now?"))
    assert validate(Format.ANTHROPIC, body) is None
    edited_index = data.draw(st.integers(0, len(turns) - 1))
    body["messages"][edited_index]["content"][0]["text"] += data.draw(
        st.text(st.characters(categories=["L"]), min_size=1)
    )

    error = validate(Format.ANTHROPIC, body)
    assert error is not None
    assert "prefix_mismatch" in error.message


def test_the_beta_is_read_from_the_header_of_a_request() -> None:
    body = claude(model=BINDING, thinking={"type": "adaptive", "block_binding": {}}, max_tokens=2_000)
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    sandbox = Sandbox(clock=ManualClock(), seed=b"x")

    def status(betas: dict[str, str]) -> int:
        request = SandboxRequest(
            method="POST", path="/v1/messages", headers=headers | betas, body=to_json(body)
        )
        return sandbox.reply(request).status

    assert status({}) == 400
    assert status({"anthropic-beta": "one-2026-01-01, thinking-binding-controls-2026-08-01"}) == 200

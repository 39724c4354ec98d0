"""Message threads: stored conversations, when they expire, and five errors."""

from typing import Any

import msgspec
import pytest

from foveate.sandbox.http import SandboxReply, SandboxRequest
from foveate.sandbox.message_threads import BETA, TTL_SECONDS
from foveate.sandbox.sandbox import Sandbox
from foveate.sandbox.script import Script, ScriptStep
from tests.support.servers.sandbox import KEY, ManualClock

Json = dict[str, Any]
TOOL = {"name": "look", "input_schema": {"type": "object"}}
CREATE: Json = {
    "model": "claude-opus-4-5",
    "max_tokens": 100,
    "system": "Be brief.",
    "tools": [TOOL],
    "messages": [{"role": "user", "content": "Hello"}],
    "thread": {"type": "create"},
}
NEW = [{"role": "user", "content": "Go on"}]


def sandbox(*steps: ScriptStep, clock: ManualClock | None = None) -> Sandbox:
    return Sandbox(clock=clock or ManualClock(), seed=b"of a test", script=Script(steps=steps))


def make_request(
    body: Json, *, path: str = "/v1/messages", betas: str = BETA, key: str = KEY
) -> SandboxRequest:
    headers = {"x-api-key": key, "anthropic-version": "2023-06-01", "anthropic-beta": betas}
    return SandboxRequest(method="POST", path=path, headers=headers, body=msgspec.json.encode(body))


def continue_thread(message_id: str, **changed: Any) -> Json:
    thread = {"type": "continue", "previous_message_id": message_id}
    body = CREATE | {"messages": NEW, "thread": thread} | changed
    return {name: text for name, text in body.items() if name not in ("system", "tools") or name in changed}


def message_of_reply(reply: SandboxReply) -> Json:
    text: Json = msgspec.json.decode(b"".join(reply.chunks))
    assert reply.status == 200, text
    return text


def error_of_reply(reply: SandboxReply) -> tuple[int, str, str | None]:
    error = msgspec.json.decode(b"".join(reply.chunks))["error"]
    return reply.status, error["type"], error.get("details", {}).get("error_code")


def test_a_continued_thread_is_charged_like_the_whole_conversation() -> None:
    threaded, whole = sandbox(), sandbox()
    first = message_of_reply(threaded.reply(make_request(CREATE)))
    second = message_of_reply(threaded.reply(make_request(continue_thread(first["id"]))))

    text = {"role": "assistant", "content": first["content"]}
    body = CREATE | {"messages": [*CREATE["messages"], text, *NEW], "thread": None}
    message_of_reply(whole.reply(make_request(CREATE | {"thread": None})))
    assert second["usage"] == message_of_reply(whole.reply(make_request(body)))["usage"]
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


def test_breakpoints_of_earlier_turns_do_not_add_up() -> None:
    instance = sandbox()
    with_breakpoint = [{"type": "text", "text": "Go on", "cache_control": {"type": "ephemeral"}}]
    last = message_of_reply(instance.reply(make_request(CREATE)))
    for _ in range(6):
        message = {"role": "user", "content": with_breakpoint}
        last = message_of_reply(instance.reply(make_request(continue_thread(last["id"], messages=[message]))))


def test_a_thread_is_not_found_after_five_minutes_without_a_request() -> None:
    clock = ManualClock()
    instance = sandbox(clock=clock)
    first = message_of_reply(instance.reply(make_request(CREATE)))
    clock.now += TTL_SECONDS
    second = message_of_reply(instance.reply(make_request(continue_thread(first["id"]))))
    clock.now += TTL_SECONDS + 1

    assert error_of_reply(instance.reply(make_request(continue_thread(second["id"])))) == (
        404,
        "not_found_error",
        "thread_not_found",
    )


def test_a_thread_of_another_key_is_not_found() -> None:
    instance = sandbox()
    first = message_of_reply(instance.reply(make_request(CREATE)))

    assert (
        error_of_reply(instance.reply(make_request(continue_thread(first["id"]), key="sk-other")))[2]
        == "thread_not_found"
    )


def test_a_response_is_continued_only_once() -> None:
    instance = sandbox()
    first = message_of_reply(instance.reply(make_request(CREATE)))
    message_of_reply(instance.reply(make_request(continue_thread(first["id"]))))

    found = error_of_reply(instance.reply(make_request(continue_thread(first["id"]))))
    assert found == (400, "invalid_request_error", "thread_already_continued")


def test_a_response_being_continued_is_rejected_until_that_request_fails() -> None:
    instance = sandbox()
    first = message_of_reply(instance.reply(make_request(CREATE)))
    body = make_request(continue_thread(first["id"]))
    sending = instance.respond(body, instance.accept(body))

    assert error_of_reply(instance.reply(body)) == (
        400,
        "invalid_request_error",
        "thread_continue_in_flight",
    )
    assert sending.on_end is not None
    sending.on_end()  # the client disconnected before the last byte
    message_of_reply(instance.reply(body))


@pytest.mark.parametrize("fault", [ScriptStep(disconnect_after=4), ScriptStep(fail_after=4)])
def test_an_interrupted_stream_cannot_be_continued_but_its_predecessor_can(fault: ScriptStep) -> None:
    instance = sandbox(ScriptStep(text="first"), fault)
    first = message_of_reply(instance.reply(make_request(CREATE)))
    interrupted = instance.reply(make_request(continue_thread(first["id"], stream=True)))
    start = msgspec.json.decode(interrupted.chunks[0].split(b"data: ")[1])

    assert (
        error_of_reply(instance.reply(make_request(continue_thread(start["message"]["id"]))))[2]
        == "thread_not_found"
    )
    message_of_reply(instance.reply(make_request(continue_thread(first["id"]))))


@pytest.mark.parametrize("name", ["system", "tools"])
def test_what_a_thread_was_created_with_cannot_change(name: str) -> None:
    instance = sandbox()
    first = message_of_reply(instance.reply(make_request(CREATE)))
    changed = {"system": "Be long.", "tools": [TOOL | {"description": "looks"}]}[name]

    found = error_of_reply(instance.reply(make_request(continue_thread(first["id"], **{name: changed}))))
    assert found == (400, "invalid_request_error", "thread_fingerprint_mismatch")
    assert (
        error_of_reply(instance.reply(make_request(continue_thread(first["id"], **{name: CREATE[name]}))))[0]
        == 400
    )


@pytest.mark.parametrize(
    ("field", "text"),
    [("cache_control", {"type": "ephemeral"}), ("context_management", {"edits": []}), ("fallbacks", "default")],
)
def test_fields_that_threads_do_not_support_are_named(field: str, text: object) -> None:
    reply = sandbox().reply(make_request(CREATE | {field: text}))

    error = msgspec.json.decode(b"".join(reply.chunks))["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": [field]}


@pytest.mark.parametrize(
    "thread",
    ["create", [], {}, {"type": "go"}, {"type": "continue"}, {"type": "continue", "previous_message_id": 7}],
)
def test_a_thread_other_than_create_or_continue_is_rejected(thread: object) -> None:
    assert error_of_reply(sandbox().reply(make_request(CREATE | {"thread": thread})))[:2] == (
        400,
        "invalid_request_error",
    )


def test_threads_need_their_beta_and_are_not_counted() -> None:
    assert error_of_reply(sandbox().reply(make_request(CREATE, betas="")))[0] == 400
    counted = {name: text for name, text in CREATE.items() if name != "max_tokens"}
    assert error_of_reply(sandbox().reply(make_request(counted, path="/v1/messages/count_tokens")))[0] == 400

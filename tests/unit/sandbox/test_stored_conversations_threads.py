"""Message threads: stored conversations, their expiry, and five errors."""

from typing import Any

import msgspec
import pytest

from foveate.sandbox.http import SandboxReply, SandboxRequest
from foveate.sandbox.sandbox import Sandbox
from foveate.sandbox.script import Script, ScriptStep
from foveate.sandbox.stored_conversations import MESSAGE_THREADS_BETA, THREAD_TTL_SECONDS
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
NEXT_MESSAGES = [{"role": "user", "content": "Go on"}]


def make_sandbox(*steps: ScriptStep, clock: ManualClock | None = None) -> Sandbox:
    return Sandbox(clock=clock or ManualClock(), seed=b"of a test", script=Script(steps=steps))


def make_request(
    body: Json, *, path: str = "/v1/messages", betas: str = MESSAGE_THREADS_BETA, key: str = KEY
) -> SandboxRequest:
    headers = {"x-api-key": key, "anthropic-version": "2023-06-01", "anthropic-beta": betas}
    return SandboxRequest(method="POST", path=path, headers=headers, body=msgspec.json.encode(body))


def continue_thread(message_id: str, **changes: Any) -> Json:
    thread = {"type": "continue", "previous_message_id": message_id}
    body = CREATE | {"messages": NEXT_MESSAGES, "thread": thread} | changes
    return {name: value for name, value in body.items() if name not in ("system", "tools") or name in changes}


def parse_message(reply: SandboxReply) -> Json:
    text: Json = msgspec.json.decode(b"".join(reply.chunks))
    assert reply.status == 200, text
    return text


def parse_error(reply: SandboxReply) -> tuple[int, str, str | None]:
    error = msgspec.json.decode(b"".join(reply.chunks))["error"]
    return reply.status, error["type"], error.get("details", {}).get("error_code")


def test_a_continued_thread_is_charged_like_the_whole_conversation() -> None:
    thread_sandbox, plain_sandbox = make_sandbox(), make_sandbox()
    first = parse_message(thread_sandbox.reply(make_request(CREATE)))
    second = parse_message(thread_sandbox.reply(make_request(continue_thread(first["id"]))))

    assistant_message = {"role": "assistant", "content": first["content"]}
    body = CREATE | {"messages": [*CREATE["messages"], assistant_message, *NEXT_MESSAGES], "thread": None}
    parse_message(plain_sandbox.reply(make_request(CREATE | {"thread": None})))
    assert second["usage"] == parse_message(plain_sandbox.reply(make_request(body)))["usage"]
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


def test_breakpoints_of_earlier_turns_do_not_add_up() -> None:
    sandbox = make_sandbox()
    with_breakpoint = [{"type": "text", "text": "Go on", "cache_control": {"type": "ephemeral"}}]
    previous = parse_message(sandbox.reply(make_request(CREATE)))
    for _ in range(6):
        message = {"role": "user", "content": with_breakpoint}
        previous = parse_message(
            sandbox.reply(make_request(continue_thread(previous["id"], messages=[message])))
        )


def test_a_thread_is_not_found_after_five_minutes_without_a_request() -> None:
    clock = ManualClock()
    sandbox = make_sandbox(clock=clock)
    first = parse_message(sandbox.reply(make_request(CREATE)))
    clock.now += THREAD_TTL_SECONDS
    second = parse_message(sandbox.reply(make_request(continue_thread(first["id"]))))
    clock.now += THREAD_TTL_SECONDS + 1

    assert parse_error(sandbox.reply(make_request(continue_thread(second["id"])))) == (
        404,
        "not_found_error",
        "thread_not_found",
    )


def test_a_thread_of_another_key_is_not_found() -> None:
    sandbox = make_sandbox()
    first = parse_message(sandbox.reply(make_request(CREATE)))

    assert (
        parse_error(sandbox.reply(make_request(continue_thread(first["id"]), key="sk-other")))[2]
        == "thread_not_found"
    )


def test_a_response_is_continued_only_once() -> None:
    sandbox = make_sandbox()
    first = parse_message(sandbox.reply(make_request(CREATE)))
    parse_message(sandbox.reply(make_request(continue_thread(first["id"]))))

    error = parse_error(sandbox.reply(make_request(continue_thread(first["id"]))))
    assert error == (400, "invalid_request_error", "thread_already_continued")


def test_a_response_being_continued_is_rejected_until_that_request_fails() -> None:
    sandbox = make_sandbox()
    first = parse_message(sandbox.reply(make_request(CREATE)))
    body = make_request(continue_thread(first["id"]))
    pending_reply = sandbox.respond(body, sandbox.accept(body))

    assert parse_error(sandbox.reply(body)) == (
        400,
        "invalid_request_error",
        "thread_continue_in_flight",
    )
    assert pending_reply.on_end is not None
    pending_reply.on_end()  # the client disconnected before the last byte
    parse_message(sandbox.reply(body))


@pytest.mark.parametrize("fault", [ScriptStep(disconnect_after=4), ScriptStep(fail_after=4)])
def test_an_interrupted_stream_cannot_be_continued_but_its_predecessor_can(fault: ScriptStep) -> None:
    sandbox = make_sandbox(ScriptStep(text="first"), fault)
    first = parse_message(sandbox.reply(make_request(CREATE)))
    interrupted = sandbox.reply(make_request(continue_thread(first["id"], stream=True)))
    start = msgspec.json.decode(interrupted.chunks[0].split(b"data: ")[1])

    assert (
        parse_error(sandbox.reply(make_request(continue_thread(start["message"]["id"]))))[2]
        == "thread_not_found"
    )
    parse_message(sandbox.reply(make_request(continue_thread(first["id"]))))


@pytest.mark.parametrize("name", ["system", "tools"])
def test_system_prompt_and_tools_of_a_thread_cannot_change(name: str) -> None:
    sandbox = make_sandbox()
    first = parse_message(sandbox.reply(make_request(CREATE)))
    value = {"system": "Be long.", "tools": [TOOL | {"description": "looks"}]}[name]

    error = parse_error(sandbox.reply(make_request(continue_thread(first["id"], **{name: value}))))
    assert error == (400, "invalid_request_error", "thread_fingerprint_mismatch")
    assert (
        parse_error(sandbox.reply(make_request(continue_thread(first["id"], **{name: CREATE[name]}))))[0] == 400
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [("cache_control", {"type": "ephemeral"}), ("context_management", {"edits": []}), ("fallbacks", "default")],
)
def test_fields_that_threads_do_not_support_are_named(field: str, value: object) -> None:
    reply = make_sandbox().reply(make_request(CREATE | {field: value}))

    error = msgspec.json.decode(b"".join(reply.chunks))["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": [field]}


@pytest.mark.parametrize(
    "thread",
    ["create", [], {}, {"type": "go"}, {"type": "continue"}, {"type": "continue", "previous_message_id": 7}],
)
def test_a_thread_other_than_create_or_continue_is_rejected(thread: object) -> None:
    assert parse_error(make_sandbox().reply(make_request(CREATE | {"thread": thread})))[:2] == (
        400,
        "invalid_request_error",
    )


def test_threads_require_their_beta_and_cannot_be_counted() -> None:
    assert parse_error(make_sandbox().reply(make_request(CREATE, betas="")))[0] == 400
    count_body = {name: value for name, value in CREATE.items() if name != "max_tokens"}
    assert (
        parse_error(make_sandbox().reply(make_request(count_body, path="/v1/messages/count_tokens")))[0] == 400
    )

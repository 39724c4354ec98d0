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


def ask(body: Json, *, path: str = "/v1/messages", betas: str = BETA, key: str = KEY) -> SandboxRequest:
    headers = {"x-api-key": key, "anthropic-version": "2023-06-01", "anthropic-beta": betas}
    return SandboxRequest(method="POST", path=path, headers=headers, body=msgspec.json.encode(body))


def continuing(message_id: str, **changed: Any) -> Json:
    thread = {"type": "continue", "previous_message_id": message_id}
    body = CREATE | {"messages": NEW, "thread": thread} | changed
    return {name: said for name, said in body.items() if name not in ("system", "tools") or name in changed}


def answered(reply: SandboxReply) -> Json:
    said: Json = msgspec.json.decode(b"".join(reply.chunks))
    assert reply.status == 200, said
    return said


def refused(reply: SandboxReply) -> tuple[int, str, str | None]:
    error = msgspec.json.decode(b"".join(reply.chunks))["error"]
    return reply.status, error["type"], error.get("details", {}).get("error_code")


def test_a_continued_thread_is_charged_like_the_whole_conversation() -> None:
    threaded, whole = sandbox(), sandbox()
    first = answered(threaded.reply(ask(CREATE)))
    second = answered(threaded.reply(ask(continuing(first["id"]))))

    said = {"role": "assistant", "content": first["content"]}
    body = CREATE | {"messages": [*CREATE["messages"], said, *NEW], "thread": None}
    answered(whole.reply(ask(CREATE | {"thread": None})))
    assert second["usage"] == answered(whole.reply(ask(body)))["usage"]
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


def test_breakpoints_of_earlier_turns_do_not_add_up() -> None:
    one = sandbox()
    marked = [{"type": "text", "text": "Go on", "cache_control": {"type": "ephemeral"}}]
    last = answered(one.reply(ask(CREATE)))
    for _ in range(6):
        message = {"role": "user", "content": marked}
        last = answered(one.reply(ask(continuing(last["id"], messages=[message]))))


def test_a_thread_is_not_found_after_five_minutes_without_a_request() -> None:
    clock = ManualClock()
    one = sandbox(clock=clock)
    first = answered(one.reply(ask(CREATE)))
    clock.now += TTL_SECONDS
    second = answered(one.reply(ask(continuing(first["id"]))))
    clock.now += TTL_SECONDS + 1

    assert refused(one.reply(ask(continuing(second["id"])))) == (404, "not_found_error", "thread_not_found")


def test_a_thread_of_another_key_is_not_found() -> None:
    one = sandbox()
    first = answered(one.reply(ask(CREATE)))

    assert refused(one.reply(ask(continuing(first["id"]), key="sk-other")))[2] == "thread_not_found"


def test_a_response_is_continued_only_once() -> None:
    one = sandbox()
    first = answered(one.reply(ask(CREATE)))
    answered(one.reply(ask(continuing(first["id"]))))

    found = refused(one.reply(ask(continuing(first["id"]))))
    assert found == (400, "invalid_request_error", "thread_already_continued")


def test_a_response_being_continued_is_rejected_until_that_request_fails() -> None:
    one = sandbox()
    first = answered(one.reply(ask(CREATE)))
    body = ask(continuing(first["id"]))
    sending = one.respond(body, one.accept(body))

    assert refused(one.reply(body)) == (400, "invalid_request_error", "thread_continue_in_flight")
    assert sending.on_end is not None
    sending.on_end()  # the client disconnected before the last byte
    answered(one.reply(body))


@pytest.mark.parametrize("fault", [ScriptStep(disconnect_after=4), ScriptStep(fail_after=4)])
def test_an_interrupted_stream_cannot_be_continued_but_its_predecessor_can(fault: ScriptStep) -> None:
    one = sandbox(ScriptStep(text="first"), fault)
    first = answered(one.reply(ask(CREATE)))
    broken = one.reply(ask(continuing(first["id"], stream=True)))
    start = msgspec.json.decode(broken.chunks[0].split(b"data: ")[1])

    assert refused(one.reply(ask(continuing(start["message"]["id"]))))[2] == "thread_not_found"
    answered(one.reply(ask(continuing(first["id"]))))


@pytest.mark.parametrize("name", ["system", "tools"])
def test_what_a_thread_was_created_with_cannot_change(name: str) -> None:
    one = sandbox()
    first = answered(one.reply(ask(CREATE)))
    changed = {"system": "Be long.", "tools": [TOOL | {"description": "looks"}]}[name]

    found = refused(one.reply(ask(continuing(first["id"], **{name: changed}))))
    assert found == (400, "invalid_request_error", "thread_fingerprint_mismatch")
    assert refused(one.reply(ask(continuing(first["id"], **{name: CREATE[name]}))))[0] == 400


@pytest.mark.parametrize(
    ("field", "said"),
    [("cache_control", {"type": "ephemeral"}), ("context_management", {"edits": []}), ("fallbacks", "default")],
)
def test_fields_that_threads_do_not_support_are_named(field: str, said: object) -> None:
    reply = sandbox().reply(ask(CREATE | {field: said}))

    error = msgspec.json.decode(b"".join(reply.chunks))["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": [field]}


@pytest.mark.parametrize(
    "thread",
    ["create", [], {}, {"type": "go"}, {"type": "continue"}, {"type": "continue", "previous_message_id": 7}],
)
def test_a_thread_other_than_create_or_continue_is_rejected(thread: object) -> None:
    assert refused(sandbox().reply(ask(CREATE | {"thread": thread})))[:2] == (400, "invalid_request_error")


def test_threads_need_their_beta_and_are_not_counted() -> None:
    assert refused(sandbox().reply(ask(CREATE, betas="")))[0] == 400
    counted = {name: said for name, said in CREATE.items() if name != "max_tokens"}
    assert refused(sandbox().reply(ask(counted, path="/v1/messages/count_tokens")))[0] == 400

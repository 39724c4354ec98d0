"""Limits: no request blocks the others or fills the memory."""

import asyncio
import json
import time
from collections.abc import MutableMapping
from typing import Any

import pytest

from foveate.errors import CannotListen
from foveate.formats.json_text.parse import to_json
from foveate.sandbox.http import SandboxRequest
from foveate.sandbox.response import build_example
from foveate.sandbox.sandbox import Sandbox, hash_api_key
from foveate.sandbox.server import SandboxApp, open_listening_socket
from foveate.sandbox.stored_conversations import StoredResponses
from tests.support.scenarios.valid_requests import BINDING, Json, claude, response, user
from tests.support.servers.sandbox import ManualClock

OWNER, OTHER = hash_api_key("a key"), hash_api_key("another")
OPENAI = {"authorization": "Bearer a key"}
SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "POST",
    "path": "/v1/messages",
    "headers": [(b"x-api-key", b"k"), (b"anthropic-version", b"2023-06-01")],
}


def nested_arrays(depth: int) -> Json:
    schema: Json = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "minItems": 100, "items": schema}
    return schema


NAMES = [str(number) for number in range(10)]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 20_000_000},
        nested_arrays(8),
        {"type": "object", "properties": {name: {"$ref": "#"} for name in NAMES}, "required": NAMES},
        {"type": "array", "minItems": 100, "items": {"allOf": [{}] * 100_000}},
        {"type": "object", "required": [str(number) for number in range(100_000)]},
        {"type": "array", "minItems": 100, "items": {"const": "x" * 100_000}},
    ],
    ids=[
        "a long string",
        "lists in lists",
        "recursive references",
        "many subschemas",
        "many names",
        "a long constant",
    ],
)
def test_an_example_value_is_short_whatever_its_schema_requires(schema: Json) -> None:
    started_at = time.thread_time()
    value = build_example(schema)

    assert len(to_json(value)) < 64 * 1024
    assert time.thread_time() - started_at < 5


async def post(app: SandboxApp, body: Json) -> int:
    pending = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    messages: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        if not pending:
            await asyncio.Event().wait()
        return pending.pop()

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    await app(SCOPE, receive, send)
    return int(messages[0]["status"])


async def test_a_short_request_does_not_wait_for_a_long_one() -> None:
    app = SandboxApp(Sandbox(clock=ManualClock(), seed=b"x"))
    long_request = asyncio.create_task(
        post(app, claude(user("some words of a tale " * 200_000), model=BINDING))
    )
    await asyncio.sleep(0)  # so that the long one has started

    assert await post(app, claude(model=BINDING)) == 200
    assert not long_request.done()
    assert await long_request in (200, 400)


def test_stored_responses_are_limited_in_bytes() -> None:
    stored = StoredResponses(limit_bytes=1_000)
    for number in range(10):
        stored.store(OWNER, f"resp_{number}", [{"id": f"msg_{number}", "text": "x" * 300}])

    remaining = [number for number in range(10) if stored.find(OWNER, f"resp_{number}") is not None]
    assert remaining == [8, 9] or remaining == [7, 8, 9]
    assert stored.find_item(OWNER, "msg_9") == {"id": "msg_9", "text": "x" * 300}
    assert stored.find_item(OWNER, "msg_0") is None
    assert stored.find(OTHER, "resp_9") is None
    assert stored.find_item(OTHER, "msg_9") is None


def test_an_item_is_stored_as_long_as_any_response_that_contains_it() -> None:
    stored = StoredResponses(limit_bytes=1_000)
    item = {"id": "msg", "text": "x" * 300}
    for number in range(4):
        stored.store(OWNER, f"resp_{number}", [item])

    assert stored.find(OWNER, "resp_0") is None
    assert stored.find_item(OWNER, "msg") == item


def test_a_stored_item_can_be_referenced() -> None:
    sandbox = Sandbox(clock=ManualClock(), seed=b"x")

    def send(body: Json, headers: dict[str, str] = OPENAI) -> tuple[int, Json]:
        request = SandboxRequest(
            method="POST", path="/v1/responses", headers=headers, body=json.dumps(body).encode()
        )
        reply = sandbox.reply(request)
        return reply.status, json.loads(reply.chunks[0])

    _, first = send(response())
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    next_body = response({"role": "user", "content": "Hello"}, reference, {"role": "user", "content": "And?"})

    status, second = send(next_body)
    assert status == 200
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"] + 10
    status, error_body = send(next_body, {"authorization": "Bearer another"})
    assert status == 404
    assert error_body["error"]["message"] == f"Item with id '{reference['id']}' not found."


def test_a_port_in_use_is_reported() -> None:
    with open_listening_socket("127.0.0.1", 0) as listener, pytest.raises(CannotListen) as raised:
        open_listening_socket("127.0.0.1", listener.getsockname()[1])

    assert raised.value.reason == "Address already in use"

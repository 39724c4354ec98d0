"""The ASGI app: bodies of any length, disconnecting clients, and sockets."""

import asyncio
import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from foveate.errors import CannotListen
from foveate.sandbox.http import MAX_BODY_BYTES, SandboxRequest
from foveate.sandbox.sandbox import Sandbox
from foveate.sandbox.script import Script, ScriptStep
from foveate.sandbox.server import SandboxApp, open_listening_socket, socket_url
from tests.support.scenarios.valid_requests import claude, user
from tests.support.servers.sandbox import ManualClock

SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "POST",
    "path": "/v1/messages",
    "headers": [(b"X-Api-Key", b"k"), (b"anthropic-version", b"2023-06-01")],
}


class Client:
    """An ASGI client that sends a body in chunks, records the response, and may disconnect."""

    def __init__(self, *chunks: bytes, disconnects: bool = False) -> None:
        self._pending = [
            {"type": "http.request", "body": chunk, "more_body": number < len(chunks)}
            for number, chunk in enumerate(chunks, 1)
        ]
        self._disconnects = disconnects
        self.messages: list[Mapping[str, Any]] = []

    async def receive(self) -> Any:
        if self._pending:
            return self._pending.pop(0)
        if not self._disconnects:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Mapping[str, Any]) -> None:
        self.messages.append(message)

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.messages[1:])


def make_app(
    *steps: ScriptStep,
    requests: list[SandboxRequest] | None = None,
    disconnected: list[SandboxRequest] | None = None,
) -> SandboxApp:
    sandbox = Sandbox(clock=ManualClock(), seed=b"x", script=Script(steps=steps))
    return SandboxApp(
        sandbox,
        on_request=None if requests is None else requests.append,
        on_disconnect=None if disconnected is None else disconnected.append,
    )


async def send_request(
    sandbox_app: SandboxApp, chunks: Sequence[bytes], *, disconnects: bool = False
) -> Client:
    client = Client(*chunks, disconnects=disconnects)
    await sandbox_app(SCOPE, client.receive, client.send)
    return client


async def test_a_body_may_arrive_in_chunks() -> None:
    body = json.dumps(claude()).encode()
    requests: list[SandboxRequest] = []
    client = await send_request(make_app(requests=requests), [body[:10], body[10:]])

    assert client.status == 200
    assert client.messages[-1] == {"type": "http.response.body", "body": b""}
    assert requests[0].body == body
    assert requests[0].headers["x-api-key"] == "k"


async def test_a_long_body_is_counted_in_a_thread() -> None:
    body = json.dumps(claude(user("word " * 20_000))).encode()
    client = await send_request(make_app(), [body])

    assert client.status == 200
    assert json.loads(client.body)["usage"]["input_tokens"] > 10_000


async def test_a_body_that_is_too_long_is_not_kept_in_memory() -> None:
    requests: list[SandboxRequest] = []
    client = await send_request(make_app(requests=requests), [b" " * (MAX_BODY_BYTES // 4)] * 6)

    assert client.status == 413
    assert len(requests[0].body) <= MAX_BODY_BYTES * 5 // 4


async def test_a_client_that_disconnects_during_its_request_gets_no_response() -> None:
    client = Client(disconnects=True)
    await make_app()(SCOPE, client.receive, client.send)

    assert client.messages == []


@pytest.mark.parametrize("step", [ScriptStep(delay_seconds=60), ScriptStep(pace_seconds=60)])
async def test_a_client_that_disconnects_while_waiting_is_noticed(step: ScriptStep) -> None:
    disconnected: list[SandboxRequest] = []
    body = json.dumps(claude(stream=True)).encode()
    async with asyncio.timeout(10):
        await send_request(make_app(step, disconnected=disconnected), [body], disconnects=True)

    assert len(disconnected) == 1


async def test_an_interrupted_response_is_not_terminated() -> None:
    body = json.dumps(claude(stream=True)).encode()
    client = await send_request(make_app(ScriptStep(disconnect_after=2)), [body])

    assert [message.get("more_body") for message in client.messages] == [None, True, True]


async def test_scopes_other_than_http_are_ignored() -> None:
    client = Client()
    await make_app()({"type": "websocket"}, client.receive, client.send)

    assert client.messages == []


def test_the_url_of_a_listening_socket_can_be_connected_to() -> None:
    for host, url_prefix in (("0.0.0.0", "http://127.0.0.1:"), ("127.0.0.1", "http://127.0.0.1:")):
        with open_listening_socket(host, 0) as listener:
            assert socket_url(listener) == f"{url_prefix}{listener.getsockname()[1]}"
            socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=5).close()


@pytest.mark.parametrize("host", ["192.0.2.1", "a" * 70, "not a host", "256.1.1.1"])
def test_an_unavailable_address_is_reported_with_the_reason(host: str) -> None:
    with pytest.raises(CannotListen, match="cannot listen on") as raised:
        open_listening_socket(host, 0)

    assert raised.value.host == host
    assert raised.value.reason
    assert "Unknown error" not in raised.value.reason, "name resolution has its own error numbers"
    assert "while attempting" not in raised.value.reason

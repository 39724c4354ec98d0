"""A provider that is slow, disconnects or sends garbage: clients get an error, and calls are charged once."""

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import anthropic
import openai
import pytest

from foveate.config.settings import ServerSettings, TimeoutSettings
from foveate.cost.caps import Cap, CapScope
from tests.support.clients.raw_http import RawResponse, chat_request, claude_request, send_raw
from tests.support.oracles.system_state import (
    LedgerState,
    files_containing,
    open_sockets,
    wait_until,
    wait_until_settled,
)
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.scripted_upstream import (
    STREAM_HEAD,
    Behaviour,
    ScriptedUpstream,
    UpstreamConnection,
    claude_events,
    claude_response,
    http_chunk,
    http_response,
    respond_once,
    running_upstream,
)

SECRET = "sk-nobody-may-read-this-4711"
IDLE_SECONDS = 0.6
TOTAL_SECONDS = 1.5
TIMEOUTS = TimeoutSettings(connect_seconds=0.4, idle_seconds=IDLE_SECONDS, total_seconds=TOTAL_SECONDS)
CAPS = [
    Cap(scope=CapScope.TOTAL, dollars=Decimal(1000))
]  # the reservation of a call shows that it has not ended
GOOD_ONCE = respond_once(http_response(claude_response("Hello")))
EVENTS = claude_events("Grüße", " aus ", "München", "!")


@dataclass
class GatewaySetup:
    """A gateway in front of a scripted provider, and its ledger."""

    gateway: RunningGateway
    upstream: ScriptedUpstream
    file: Path

    def send(self, request: bytes, behave: Behaviour) -> RawResponse:
        """Send a request on a new connection while the provider shows this behaviour."""
        assert self.upstream.wait_until_idle()
        self.upstream.behave = behave
        return send_raw(self.gateway.url, request)

    def wait_for_calls(self, calls: int) -> LedgerState:
        return wait_until_settled(self.file, calls)


@pytest.fixture(scope="module")
def shared_setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaySetup]:
    folder = tmp_path_factory.mktemp("gateway")
    with (
        running_upstream(GOOD_ONCE) as upstream,
        running_gateway(upstream.url, folder, server=ServerSettings(timeouts=TIMEOUTS), caps=CAPS) as gateway,
    ):
        yield GatewaySetup(gateway, upstream, folder / "gateway.sqlite")
    assert gateway.failed_steps == []


@pytest.fixture
def setup(shared_setup: GatewaySetup, caplog: pytest.LogCaptureFixture) -> Iterator[GatewaySetup]:
    """Share one setup between tests, and check after each that it still serves and leaked no key."""
    sockets = open_sockets()
    yield shared_setup
    response = shared_setup.send(claude_request(SECRET), respond_once(http_response(claude_response("Well"))))
    assert (response.status, b"Well" in response.body, response.is_complete) == (200, True, True)
    assert wait_until(open_sockets, lambda now: now <= sockets) <= sockets
    assert SECRET not in caplog.text
    assert files_containing(shared_setup.file.parent, SECRET) == []


def respond_never(connection: UpstreamConnection) -> None:
    """Read a request and send nothing."""
    connection.read_request()
    connection.is_closed_by_peer(within_seconds=30)


@pytest.mark.parametrize("is_claude", [True, False])
def test_a_provider_that_does_not_answer_gives_a_timeout_in_its_own_format(
    setup: GatewaySetup, is_claude: bool
) -> None:
    before = len(setup.wait_for_calls(0).calls)
    started = time.monotonic()
    response = setup.send(claude_request(SECRET) if is_claude else chat_request(SECRET), respond_never)

    assert IDLE_SECONDS <= time.monotonic() - started < 20
    assert response.status == 504
    error = json.loads(response.body)["error"]
    assert error["type"] == ("timeout_error" if is_claude else "server_error")
    assert "did not respond in time" in error["message"]
    assert "x-should-retry" not in response.headers
    assert response.headers["x-foveate-request-id"].startswith("req_")
    ledger = setup.wait_for_calls(before + 1)
    assert len(ledger.calls) == before + 1  # the provider may have processed the request
    assert (ledger.calls[-1].is_partial, ledger.calls[-1].is_unknown) == (True, True)


def test_a_connection_timeout_costs_nothing(
    tmp_path: Path,
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        connections = []
        for _ in range(8):  # the queue of unaccepted connections is full after a few
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex(listener.getsockname())
            connections.append(connection)
        time.sleep(0.1)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with running_gateway(url, tmp_path, server=ServerSettings(timeouts=TIMEOUTS)) as gateway:
            responses = [
                send_raw(gateway.url, request) for request in (claude_request(SECRET), chat_request(SECRET))
            ]
            ledger = wait_until_settled(tmp_path / "gateway.sqlite", 0)
        for connection in connections:
            connection.close()

    assert [response.status for response in responses] == [504, 504]
    assert (list(ledger.calls), ledger.reservations) == ([], 0)


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_stream_that_takes_too_long_is_cut_and_recorded_as_incomplete(
    setup: GatewaySetup, is_idle: bool
) -> None:
    before = len(setup.wait_for_calls(0).calls)
    pieces = [
        STREAM_HEAD + http_chunk(EVENTS[0]),
        *map(http_chunk, EVENTS[1:3]),
        *[http_chunk(b": still there\n\n")] * 50,
    ]
    response = setup.send(
        claude_request(SECRET, stream=True), respond_once(*pieces, pause_seconds=30 if is_idle else 0.2)
    )

    assert response.status == 200
    assert not response.is_complete
    assert response.body.startswith(EVENTS[0])
    ledger = setup.wait_for_calls(before + 1)
    assert (len(ledger.calls), ledger.calls[-1].is_partial) == (before + 1, True)


STREAM_BODY = b"".join(map(http_chunk, EVENTS))
IN_A_CHARACTER = STREAM_BODY.index("ü".encode()) + 1
IN_A_HEADER = STREAM_BODY.index(http_chunk(EVENTS[3])) + 1


@pytest.mark.parametrize("cut", [len(STREAM_BODY), len(STREAM_BODY) // 2, IN_A_CHARACTER, IN_A_HEADER])
@pytest.mark.parametrize("resets", [False, True])
def test_a_truncated_stream_is_forwarded_to_the_last_byte_and_recorded_as_incomplete(
    setup: GatewaySetup, cut: int, resets: bool
) -> None:
    def behave(connection: UpstreamConnection) -> None:
        connection.read_request()
        connection.send(STREAM_HEAD + STREAM_BODY[:cut])
        if resets:
            time.sleep(0.05)  # a reset discards data that was not read yet
            connection.reset()

    before = len(setup.wait_for_calls(0).calls)
    response = setup.send(claude_request(SECRET, stream=True), behave)

    assert (response.status, response.is_complete) == (200, False)
    assert b"".join(EVENTS).startswith(response.body)
    assert len(response.body) >= sum(map(len, EVENTS)) * cut // len(STREAM_BODY) - 200
    ledger = setup.wait_for_calls(before + 1)
    # The usage is complete with the last event.
    assert (len(ledger.calls), ledger.calls[-1].is_partial) == (before + 1, cut < len(STREAM_BODY))


def test_a_client_can_detect_a_truncated_stream(setup: GatewaySetup) -> None:
    setup.upstream.behave = respond_once(STREAM_HEAD, *map(http_chunk, EVENTS[:4]))
    with (
        anthropic.Anthropic(base_url=setup.gateway.url, api_key=SECRET, max_retries=0) as client,
        pytest.raises(Exception, match="peer closed connection"),
        client.messages.stream(
            model="claude-opus-4-5", max_tokens=50, messages=[{"role": "user", "content": "Hello"}]
        ) as stream,
    ):
        stream.until_done()


ERROR_PAGE = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
OVERLOADED_ERROR = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
UNCHANGED_RESPONSES = {
    "429": (http_response(b'{"error":{}}', "429 Too Many Requests", retry_after="17"), 429, b'{"error":{}}'),
    "529": (http_response(OVERLOADED_ERROR, "529 Overloaded"), 529, OVERLOADED_ERROR),
    "500": (http_response(b"", "500 Internal Server Error"), 500, b""),
    "400 of HTML": (http_response(ERROR_PAGE, "400 Bad Request", content_type="text/html"), 400, ERROR_PAGE),
    "502 of HTML": (http_response(ERROR_PAGE, "502 Bad Gateway", content_type="text/html"), 502, ERROR_PAGE),
    "200 of HTML": (http_response(ERROR_PAGE, content_type="text/html"), 200, ERROR_PAGE),
    "truncated JSON": (http_response(b'{"usage": {"input_tokens": '), 200, b'{"usage": {"input_tokens": '),
    "JSON of another kind": (http_response(b"[[1], null]"), 200, b"[[1], null]"),
    "an empty body": (http_response(b""), 200, b""),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "no length": (b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nall of it", 200, b"all of it"),
    "old": (b"HTTP/1.0 200 OK\r\n\r\nall of it", 200, b"all of it"),
    "continue first": (b"HTTP/1.1 100 Continue\r\n\r\n" + http_response(b"{}"), 200, b"{}"),
    "a redirect": (http_response(b"", "307 Temporary Redirect", location="http://127.0.0.1:1/"), 307, b""),
    "invalid events": (
        http_response(b"\x00\xff\nno: event\n\n", content_type="text/event-stream"),
        200,
        b"\x00\xff\nno: event\n\n",
    ),
    "longer than announced": (http_response(b"{}!!!", content_length="2"), 200, b"{}"),
}


@pytest.mark.parametrize("name", UNCHANGED_RESPONSES)
@pytest.mark.parametrize("is_claude", [True, False])
def test_every_provider_response_is_forwarded_unchanged(
    setup: GatewaySetup, name: str, is_claude: bool
) -> None:
    response_bytes, status, body = UNCHANGED_RESPONSES[name]
    before = setup.wait_for_calls(0)
    response = setup.send(
        claude_request(SECRET) if is_claude else chat_request(SECRET, stream=True), respond_once(response_bytes)
    )

    assert (response.status, response.body, response.is_complete) == (status, body, True)
    assert response.headers["x-foveate-request-id"]
    assert response.headers.get("retry-after") == ("17" if status == 429 else None)
    is_charged = 200 <= status < 300
    ledger = setup.wait_for_calls(len(before.calls) + is_charged)
    assert len(ledger.calls) == len(before.calls) + is_charged
    assert ledger.complete_calls == before.complete_calls  # none of these responses reports usage


@pytest.mark.parametrize(
    "usage", [b"{}", b'{"input_tokens": -1e999, "output_tokens": "many"}', b'{"input_tokens": 0}']
)
def test_unreadable_usage_is_recorded_as_unknown_and_not_free(setup: GatewaySetup, usage: bytes) -> None:
    """Regression: a response with unreadable usage was charged as free."""
    before = len(setup.wait_for_calls(0).calls)
    body = b'{"content": [], "usage": %b}' % usage
    response = setup.send(claude_request(SECRET), respond_once(http_response(body)))

    assert (response.status, response.body) == (200, body)
    ledger = setup.wait_for_calls(before + 1)
    assert (len(ledger.calls), ledger.calls[-1].is_unknown) == (before + 1, True)


TRUNCATED_RESPONSES = {
    "shorter than announced": http_response(b"{}", content_length="20"),
    "an invalid chunk size": STREAM_HEAD + b"zz\r\n{}\r\n0\r\n\r\n",
}
INVALID_HTTP = {
    "nothing": b"",
    "an incomplete head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "another protocol": b"SSH-2.0-OpenSSH_9.9\r\n",
    "noise": bytes(range(256)) * 4,
    "an endless head": b"HTTP/1.1 200 OK\r\nx-long: " + b"x" * 400_000 + b"\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "an invalid length": http_response(b"{}", content_length="two"),
}


@pytest.mark.parametrize("name", INVALID_HTTP)
@pytest.mark.parametrize("is_claude", [True, False])
def test_invalid_http_from_a_provider_is_an_error_in_its_own_format(
    setup: GatewaySetup, name: str, is_claude: bool
) -> None:
    before = len(setup.wait_for_calls(0).calls)
    response = setup.send(
        claude_request(SECRET) if is_claude else chat_request(SECRET), respond_once(INVALID_HTTP[name])
    )

    assert (response.status, response.is_complete) == (502, True)
    error = json.loads(response.body)["error"]
    assert error["type"] == ("api_error" if is_claude else "server_error")
    assert "x-should-retry" not in response.headers
    # A provider that sends any data has received the request, and may charge for it.
    is_charged = name != "nothing"
    ledger = setup.wait_for_calls(before + is_charged)
    assert len(ledger.calls) == before + is_charged
    assert not is_charged or ledger.calls[-1].is_unknown


@pytest.mark.parametrize("name", TRUNCATED_RESPONSES)
def test_a_truncated_response_is_truncated_for_the_client_too(setup: GatewaySetup, name: str) -> None:
    before = len(setup.wait_for_calls(0).calls)
    response = setup.send(claude_request(SECRET), respond_once(TRUNCATED_RESPONSES[name]))

    assert (response.status, response.is_complete) in ((200, False), (502, True))
    ledger = setup.wait_for_calls(before + 1)
    assert (len(ledger.calls), ledger.calls[-1].is_partial) == (before + 1, True)


def test_a_long_header_is_forwarded(setup: GatewaySetup) -> None:
    header_value = "x" * 100_000
    response = setup.send(
        claude_request(SECRET), respond_once(http_response(claude_response("Hello"), x_long=header_value))
    )

    assert (response.status, response.headers["x-long"]) == (200, header_value)


def test_a_closed_pooled_connection_is_not_used_and_no_request_is_sent_twice(setup: GatewaySetup) -> None:
    setup.upstream.behave = GOOD_ONCE
    requests_before = len(setup.upstream.requests)
    with anthropic.Anthropic(base_url=setup.gateway.url, api_key=SECRET, max_retries=0) as client:
        for number in range(5):
            client.messages.create(
                model="claude-opus-4-5",
                max_tokens=50,
                messages=[{"role": "user", "content": f"Hello {number}"}],
            )
            time.sleep(0.05)  # by now the provider has closed the pooled connection

    assert len(setup.upstream.requests) == requests_before + 5


def test_a_pooled_connection_that_closes_during_a_request_is_an_error_that_a_client_retry_fixes(
    setup: GatewaySetup,
) -> None:
    def behave(connection: UpstreamConnection) -> None:
        connection.read_request()
        connection.send(http_response(claude_response("Hello")))
        connection.read_request()
        connection.reset()

    setup.upstream.behave = behave
    before = len(setup.wait_for_calls(0).calls)
    requests_before = len(setup.upstream.requests)
    with openai.OpenAI(base_url=setup.gateway.openai_url, api_key=SECRET, max_retries=1) as client:
        for _ in range(3):
            client.chat.completions.with_raw_response.create(
                model="gpt-4.1", messages=[{"role": "user", "content": "Hello"}], max_tokens=10
            )

    assert send_raw(setup.gateway.url, claude_request(SECRET)).status == 502  # on the last pooled connection
    assert len(setup.upstream.requests) == requests_before + 6  # each request but the first is retried once
    assert len(setup.wait_for_calls(before + 3).calls) == before + 3

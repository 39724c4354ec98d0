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
WAITS = TimeoutSettings(connect_seconds=0.4, idle_seconds=IDLE_SECONDS, total_seconds=TOTAL_SECONDS)
CAPS = [
    Cap(scope=CapScope.TOTAL, dollars=Decimal(1000))
]  # what is reserved for a call tells that it is not over
GOOD_ONCE = respond_once(http_response(claude_response("Hello")))
EVENTS = claude_events("Grüße", " aus ", "München", "!")


@dataclass
class GatewaySetup:
    """A gateway in front of a scripted provider, and its ledger."""

    gateway: RunningGateway
    upstream: ScriptedUpstream
    file: Path

    def sent(self, request: bytes, behave: Behaviour) -> RawResponse:
        """Send a request on a new connection and return the response, with the provider behaving as given."""
        assert self.upstream.wait_until_idle()
        self.upstream.behave = behave
        return send_raw(self.gateway.url, request)

    def books(self, calls: int) -> LedgerState:
        return wait_until_settled(self.file, calls)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaySetup]:
    folder = tmp_path_factory.mktemp("gateway")
    with (
        running_upstream(GOOD_ONCE) as upstream,
        running_gateway(upstream.url, folder, server=ServerSettings(timeouts=WAITS), caps=CAPS) as gateway,
    ):
        yield GatewaySetup(gateway, upstream, folder / "gateway.sqlite")
    assert gateway.failed_steps == []


@pytest.fixture
def setup(both: GatewaySetup, caplog: pytest.LogCaptureFixture) -> Iterator[GatewaySetup]:
    """Share one setup between tests, and check after each that it still serves and leaked no key."""
    sockets = open_sockets()
    yield both
    found = both.sent(claude_request(SECRET), respond_once(http_response(claude_response("Well"))))
    assert (found.status, b"Well" in found.body, found.is_complete) == (200, True, True)
    assert wait_until(open_sockets, lambda now: now <= sockets) <= sockets
    assert SECRET not in caplog.text
    assert files_containing(both.file.parent, SECRET) == []


def silent(talk: UpstreamConnection) -> None:
    """Read a request and send nothing."""
    talk.read_request()
    talk.is_closed_by_peer(within_seconds=30)


@pytest.mark.parametrize("is_claude", [True, False])
def test_a_provider_that_does_not_answer_gives_a_timeout_in_its_own_format(
    setup: GatewaySetup, is_claude: bool
) -> None:
    before = len(setup.books(0).calls)
    started = time.monotonic()
    found = setup.sent(claude_request(SECRET) if is_claude else chat_request(SECRET), silent)

    assert IDLE_SECONDS <= time.monotonic() - started < 20
    assert found.status == 504
    error = json.loads(found.body)["error"]
    assert error["type"] == ("timeout_error" if is_claude else "server_error")
    assert "did not answer in time" in error["message"]
    assert "x-should-retry" not in found.headers
    assert found.headers["x-foveate-request-id"].startswith("req_")
    booked = setup.books(before + 1)
    assert len(booked.calls) == before + 1  # nobody knows what the provider has done meanwhile
    assert (booked.calls[-1].is_partial, booked.calls[-1].is_unknown) == (True, True)


def test_a_connection_timeout_costs_nothing(
    tmp_path: Path,
) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = []
        for _ in range(8):  # the queue of connections that nobody takes is full after some
            other = socket.socket()
            other.setblocking(False)
            other.connect_ex(full.getsockname())
            waiting.append(other)
        time.sleep(0.1)
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        with running_gateway(url, tmp_path, server=ServerSettings(timeouts=WAITS)) as gateway:
            found = [
                send_raw(gateway.url, request) for request in (claude_request(SECRET), chat_request(SECRET))
            ]
            booked = wait_until_settled(tmp_path / "gateway.sqlite", 0)
        for other in waiting:
            other.close()

    assert [answer.status for answer in found] == [504, 504]
    assert (list(booked.calls), booked.reservations) == ([], 0)


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_stream_that_takes_too_long_is_cut_and_recorded_as_incomplete(
    setup: GatewaySetup, is_idle: bool
) -> None:
    before = len(setup.books(0).calls)
    drops = [
        STREAM_HEAD + http_chunk(EVENTS[0]),
        *map(http_chunk, EVENTS[1:3]),
        *[http_chunk(b": still there\n\n")] * 50,
    ]
    found = setup.sent(
        claude_request(SECRET, stream=True), respond_once(*drops, pause_seconds=30 if is_idle else 0.2)
    )

    assert found.status == 200
    assert not found.is_complete
    assert found.body.startswith(EVENTS[0])
    booked = setup.books(before + 1)
    assert (len(booked.calls), booked.calls[-1].is_partial) == (before + 1, True)


WHOLE = b"".join(map(http_chunk, EVENTS))
IN_A_CHARACTER = WHOLE.index("ü".encode()) + 1
IN_A_HEADER = WHOLE.index(http_chunk(EVENTS[3])) + 1


@pytest.mark.parametrize("cut", [len(WHOLE), len(WHOLE) // 2, IN_A_CHARACTER, IN_A_HEADER])
@pytest.mark.parametrize("resets", [False, True])
def test_a_truncated_stream_is_forwarded_to_the_last_byte_and_recorded_as_incomplete(
    setup: GatewaySetup, cut: int, resets: bool
) -> None:
    def behave(talk: UpstreamConnection) -> None:
        talk.read_request()
        talk.send(STREAM_HEAD + WHOLE[:cut])
        if resets:
            time.sleep(0.05)  # a reset throws away what was not read yet
            talk.reset()

    before = len(setup.books(0).calls)
    found = setup.sent(claude_request(SECRET, stream=True), behave)

    assert (found.status, found.is_complete) == (200, False)
    assert b"".join(EVENTS).startswith(found.body)
    assert len(found.body) >= sum(map(len, EVENTS)) * cut // len(WHOLE) - 200
    booked = setup.books(before + 1)
    # Its bill is whole with its last event, whatever comes after that.
    assert (len(booked.calls), booked.calls[-1].is_partial) == (before + 1, cut < len(WHOLE))


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


HTML = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
CLAUDE_BUSY = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
UNCHANGED_RESPONSES = {
    "429": (http_response(b'{"error":{}}', "429 Too Many Requests", retry_after="17"), 429, b'{"error":{}}'),
    "529": (http_response(CLAUDE_BUSY, "529 Overloaded"), 529, CLAUDE_BUSY),
    "500": (http_response(b"", "500 Internal Server Error"), 500, b""),
    "400 of HTML": (http_response(HTML, "400 Bad Request", content_type="text/html"), 400, HTML),
    "502 of HTML": (http_response(HTML, "502 Bad Gateway", content_type="text/html"), 502, HTML),
    "200 of HTML": (http_response(HTML, content_type="text/html"), 200, HTML),
    "no JSON": (http_response(b'{"usage": {"input_tokens": '), 200, b'{"usage": {"input_tokens": '),
    "JSON of another kind": (http_response(b"[[1], null]"), 200, b"[[1], null]"),
    "no body": (http_response(b""), 200, b""),
    "no body at all": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "no length": (b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nall of it", 200, b"all of it"),
    "old": (b"HTTP/1.0 200 OK\r\n\r\nall of it", 200, b"all of it"),
    "continue first": (b"HTTP/1.1 100 Continue\r\n\r\n" + http_response(b"{}"), 200, b"{}"),
    "a redirect": (http_response(b"", "307 Temporary Redirect", location="http://127.0.0.1:1/"), 307, b""),
    "events that are none": (
        http_response(b"\x00\xff\nno: event\n\n", content_type="text/event-stream"),
        200,
        b"\x00\xff\nno: event\n\n",
    ),
    "more than announced": (http_response(b"{}!!!", content_length="2"), 200, b"{}"),
}


@pytest.mark.parametrize("name", UNCHANGED_RESPONSES)
@pytest.mark.parametrize("is_claude", [True, False])
def test_every_provider_response_is_forwarded_unchanged(
    setup: GatewaySetup, name: str, is_claude: bool
) -> None:
    response_bytes, status, body = UNCHANGED_RESPONSES[name]
    before = setup.books(0)
    found = setup.sent(
        claude_request(SECRET) if is_claude else chat_request(SECRET, stream=True), respond_once(response_bytes)
    )

    assert (found.status, found.body, found.is_complete) == (status, body, True)
    assert found.headers["x-foveate-request-id"]
    assert found.headers.get("retry-after") == ("17" if status == 429 else None)
    may_be_billed = 200 <= status < 300
    booked = setup.books(len(before.calls) + may_be_billed)
    assert len(booked.calls) == len(before.calls) + may_be_billed
    assert booked.complete_calls == before.complete_calls  # none of these is an answer with its bill


@pytest.mark.parametrize(
    "usage", [b"{}", b'{"input_tokens": -1e999, "output_tokens": "many"}', b'{"input_tokens": 0}']
)
def test_unreadable_usage_is_recorded_as_unknown_and_not_free(setup: GatewaySetup, usage: bytes) -> None:
    """Regression: a response with unreadable usage was charged as free."""
    before = len(setup.books(0).calls)
    body = b'{"content": [], "usage": %b}' % usage
    found = setup.sent(claude_request(SECRET), respond_once(http_response(body)))

    assert (found.status, found.body) == (200, body)
    booked = setup.books(before + 1)
    assert (len(booked.calls), booked.calls[-1].is_unknown) == (before + 1, True)


BROKEN = {
    "less than announced": http_response(b"{}", content_length="20"),
    "a chunk of no size": STREAM_HEAD + b"zz\r\n{}\r\n0\r\n\r\n",
}
NO_HTTP = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "another protocol": b"SSH-2.0-OpenSSH_9.9\r\n",
    "noise": bytes(range(256)) * 4,
    "a head that does not end": b"HTTP/1.1 200 OK\r\nx-long: " + b"x" * 400_000 + b"\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "a length that is none": http_response(b"{}", content_length="two"),
}


@pytest.mark.parametrize("name", NO_HTTP)
@pytest.mark.parametrize("is_claude", [True, False])
def test_invalid_http_from_a_provider_is_an_error_in_its_own_format(
    setup: GatewaySetup, name: str, is_claude: bool
) -> None:
    before = len(setup.books(0).calls)
    found = setup.sent(
        claude_request(SECRET) if is_claude else chat_request(SECRET), respond_once(NO_HTTP[name])
    )

    assert (found.status, found.is_complete) == (502, True)
    error = json.loads(found.body)["error"]
    assert error["type"] == ("api_error" if is_claude else "server_error")
    assert "x-should-retry" not in found.headers
    # A provider that answers at all has had the request, and may charge for it.
    charged = name != "nothing"
    booked = setup.books(before + charged)
    assert len(booked.calls) == before + charged
    assert not charged or booked.calls[-1].is_unknown


@pytest.mark.parametrize("name", BROKEN)
def test_a_truncated_response_is_truncated_for_the_client_too(setup: GatewaySetup, name: str) -> None:
    before = len(setup.books(0).calls)
    found = setup.sent(claude_request(SECRET), respond_once(BROKEN[name]))

    assert (found.status, found.is_complete) in ((200, False), (502, True))
    booked = setup.books(before + 1)
    assert (len(booked.calls), booked.calls[-1].is_partial) == (before + 1, True)


def test_a_long_header_is_forwarded(setup: GatewaySetup) -> None:
    long = "x" * 100_000
    found = setup.sent(
        claude_request(SECRET), respond_once(http_response(claude_response("Hello"), x_long=long))
    )

    assert (found.status, found.headers["x-long"]) == (200, long)


def test_a_closed_pooled_connection_is_not_used_and_no_request_is_sent_twice(setup: GatewaySetup) -> None:
    setup.upstream.behave = GOOD_ONCE
    heard = len(setup.upstream.requests)
    with anthropic.Anthropic(base_url=setup.gateway.url, api_key=SECRET, max_retries=0) as client:
        for number in range(5):
            client.messages.create(
                model="claude-opus-4-5",
                max_tokens=50,
                messages=[{"role": "user", "content": f"Hello {number}"}],
            )
            time.sleep(0.05)  # by now the provider has closed what is kept

    assert len(setup.upstream.requests) == heard + 5


def test_a_pooled_connection_that_closes_during_a_request_is_an_error_that_a_client_retry_fixes(
    setup: GatewaySetup,
) -> None:
    def behave(talk: UpstreamConnection) -> None:
        talk.read_request()
        talk.send(http_response(claude_response("Hello")))
        talk.read_request()
        talk.reset()

    setup.upstream.behave = behave
    before = len(setup.books(0).calls)
    heard = len(setup.upstream.requests)
    with openai.OpenAI(base_url=setup.gateway.openai_url, api_key=SECRET, max_retries=1) as client:
        for _ in range(3):
            client.chat.completions.with_raw_response.create(
                model="gpt-4.1", messages=[{"role": "user", "content": "Hello"}], max_tokens=10
            )

    assert send_raw(setup.gateway.url, claude_request(SECRET)).status == 502  # and the last one, which was kept
    assert len(setup.upstream.requests) == heard + 6  # each but the first found its connection closed, once
    assert len(setup.books(before + 3).calls) == before + 3

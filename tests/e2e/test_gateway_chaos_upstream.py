"""A provider that is slow, breaks off or talks nonsense: the client is told, and calls are booked once."""

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
class Between:
    """A gateway before a scripted provider, and its books."""

    gateway: RunningGateway
    upstream: ScriptedUpstream
    file: Path

    def sent(self, request: bytes, behave: Behaviour) -> RawResponse:
        """What a client gets where the provider behaves so. It keeps no connection, so this one is new."""
        assert self.upstream.wait_until_idle()
        self.upstream.behave = behave
        return send_raw(self.gateway.url, request)

    def books(self, calls: int) -> LedgerState:
        return wait_until_settled(self.file, calls)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Between]:
    folder = tmp_path_factory.mktemp("gateway")
    with (
        running_upstream(GOOD_ONCE) as upstream,
        running_gateway(upstream.url, folder, server=ServerSettings(timeouts=WAITS), caps=CAPS) as gateway,
    ):
        yield Between(gateway, upstream, folder / "gateway.sqlite")
    assert gateway.failed_steps == []


@pytest.fixture
def between(both: Between, caplog: pytest.LogCaptureFixture) -> Iterator[Between]:
    """The same for all tests; after each of them it serves as before, and has told nobody a key."""
    sockets = open_sockets()
    yield both
    found = both.sent(claude_request(SECRET), respond_once(http_response(claude_response("Well"))))
    assert (found.status, b"Well" in found.body, found.is_complete) == (200, True, True)
    assert wait_until(open_sockets, lambda now: now <= sockets) <= sockets
    assert SECRET not in caplog.text
    assert files_containing(both.file.parent, SECRET) == []


def silent(talk: UpstreamConnection) -> None:
    """Takes a request, and says nothing."""
    talk.read_request()
    talk.is_closed_by_peer(within_seconds=30)


@pytest.mark.parametrize("is_claude", [True, False])
def test_a_provider_that_does_not_answer_is_a_time_out_in_its_own_format(
    between: Between, is_claude: bool
) -> None:
    before = len(between.books(0).calls)
    started = time.monotonic()
    found = between.sent(claude_request(SECRET) if is_claude else chat_request(SECRET), silent)

    assert IDLE_SECONDS <= time.monotonic() - started < 20
    assert found.status == 504
    error = json.loads(found.body)["error"]
    assert error["type"] == ("timeout_error" if is_claude else "server_error")
    assert "did not answer in time" in error["message"]
    assert "x-should-retry" not in found.headers
    assert found.headers["x-foveate-request-id"].startswith("req_")
    booked = between.books(before + 1)
    assert len(booked.calls) == before + 1  # nobody knows what the provider has done meanwhile
    assert (booked.calls[-1].is_partial, booked.calls[-1].is_unknown) == (True, True)


def test_a_provider_that_cannot_be_connected_to_is_a_time_out_that_costs_nothing(
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
def test_a_stream_that_takes_too_long_is_cut_and_not_taken_for_a_whole_one(
    between: Between, is_idle: bool
) -> None:
    before = len(between.books(0).calls)
    drops = [
        STREAM_HEAD + http_chunk(EVENTS[0]),
        *map(http_chunk, EVENTS[1:3]),
        *[http_chunk(b": still there\n\n")] * 50,
    ]
    found = between.sent(
        claude_request(SECRET, stream=True), respond_once(*drops, pause_seconds=30 if is_idle else 0.2)
    )

    assert found.status == 200
    assert not found.is_complete
    assert found.body.startswith(EVENTS[0])
    booked = between.books(before + 1)
    assert (len(booked.calls), booked.calls[-1].is_partial) == (before + 1, True)


WHOLE = b"".join(map(http_chunk, EVENTS))
IN_A_CHARACTER = WHOLE.index("ü".encode()) + 1
IN_A_HEADER = WHOLE.index(http_chunk(EVENTS[3])) + 1


@pytest.mark.parametrize("cut", [len(WHOLE), len(WHOLE) // 2, IN_A_CHARACTER, IN_A_HEADER])
@pytest.mark.parametrize("resets", [False, True])
def test_a_stream_that_is_cut_passes_to_the_last_byte_and_is_not_taken_for_a_whole_one(
    between: Between, cut: int, resets: bool
) -> None:
    def behave(talk: UpstreamConnection) -> None:
        talk.read_request()
        talk.send(STREAM_HEAD + WHOLE[:cut])
        if resets:
            time.sleep(0.05)  # a reset throws away what was not read yet
            talk.reset()

    before = len(between.books(0).calls)
    found = between.sent(claude_request(SECRET, stream=True), behave)

    assert (found.status, found.is_complete) == (200, False)
    assert b"".join(EVENTS).startswith(found.body)
    assert len(found.body) >= sum(map(len, EVENTS)) * cut // len(WHOLE) - 200
    booked = between.books(before + 1)
    # Its bill is whole with its last event, whatever comes after that.
    assert (len(booked.calls), booked.calls[-1].is_partial) == (before + 1, cut < len(WHOLE))


def test_a_client_sees_that_a_stream_is_cut(between: Between) -> None:
    between.upstream.behave = respond_once(STREAM_HEAD, *map(http_chunk, EVENTS[:4]))
    with (
        anthropic.Anthropic(base_url=between.gateway.url, api_key=SECRET, max_retries=0) as client,
        pytest.raises(Exception, match="peer closed connection"),
        client.messages.stream(
            model="claude-opus-4-5", max_tokens=50, messages=[{"role": "user", "content": "Hello"}]
        ) as stream,
    ):
        stream.until_done()


HTML = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
CLAUDE_BUSY = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
AS_THEY_CAME = {
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


@pytest.mark.parametrize("name", AS_THEY_CAME)
@pytest.mark.parametrize("is_claude", [True, False])
def test_whatever_a_provider_says_comes_back_as_it_is(between: Between, name: str, is_claude: bool) -> None:
    said, status, body = AS_THEY_CAME[name]
    before = between.books(0)
    found = between.sent(
        claude_request(SECRET) if is_claude else chat_request(SECRET, stream=True), respond_once(said)
    )

    assert (found.status, found.body, found.is_complete) == (status, body, True)
    assert found.headers["x-foveate-request-id"]
    assert found.headers.get("retry-after") == ("17" if status == 429 else None)
    may_be_billed = 200 <= status < 300
    booked = between.books(len(before.calls) + may_be_billed)
    assert len(booked.calls) == len(before.calls) + may_be_billed
    assert booked.complete_calls == before.complete_calls  # none of these is an answer with its bill


@pytest.mark.parametrize(
    "bill", [b"{}", b'{"input_tokens": -1e999, "output_tokens": "many"}', b'{"input_tokens": 0}']
)
def test_a_bill_that_says_nothing_is_unknown_and_not_free(between: Between, bill: bytes) -> None:
    """Defect: an answer whose numbers could not be read was booked as one of no dollars."""
    before = len(between.books(0).calls)
    body = b'{"content": [], "usage": %b}' % bill
    found = between.sent(claude_request(SECRET), respond_once(http_response(body)))

    assert (found.status, found.body) == (200, body)
    booked = between.books(before + 1)
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
def test_what_is_no_http_is_told_as_the_provider_would_tell_it(
    between: Between, name: str, is_claude: bool
) -> None:
    before = len(between.books(0).calls)
    found = between.sent(
        claude_request(SECRET) if is_claude else chat_request(SECRET), respond_once(NO_HTTP[name])
    )

    assert (found.status, found.is_complete) == (502, True)
    error = json.loads(found.body)["error"]
    assert error["type"] == ("api_error" if is_claude else "server_error")
    assert "x-should-retry" not in found.headers
    # A provider that answers at all has had the request, and may charge for it.
    charged = name != "nothing"
    booked = between.books(before + charged)
    assert len(booked.calls) == before + charged
    assert not charged or booked.calls[-1].is_unknown


@pytest.mark.parametrize("name", BROKEN)
def test_an_answer_that_breaks_off_is_cut_for_the_client_too(between: Between, name: str) -> None:
    before = len(between.books(0).calls)
    found = between.sent(claude_request(SECRET), respond_once(BROKEN[name]))

    assert (found.status, found.is_complete) in ((200, False), (502, True))
    booked = between.books(before + 1)
    assert (len(booked.calls), booked.calls[-1].is_partial) == (before + 1, True)


def test_a_long_header_comes_through(between: Between) -> None:
    long = "x" * 100_000
    found = between.sent(
        claude_request(SECRET), respond_once(http_response(claude_response("Hello"), x_long=long))
    )

    assert (found.status, found.headers["x-long"]) == (200, long)


def test_a_kept_connection_that_was_closed_is_not_asked_and_nothing_is_asked_twice(between: Between) -> None:
    between.upstream.behave = GOOD_ONCE
    heard = len(between.upstream.requests)
    with anthropic.Anthropic(base_url=between.gateway.url, api_key=SECRET, max_retries=0) as client:
        for number in range(5):
            client.messages.create(
                model="claude-opus-4-5",
                max_tokens=50,
                messages=[{"role": "user", "content": f"Hello {number}"}],
            )
            time.sleep(0.05)  # by now the provider has closed what is kept

    assert len(between.upstream.requests) == heard + 5


def test_a_kept_connection_that_closes_as_it_is_asked_is_an_error_that_the_clients_own_retry_mends(
    between: Between,
) -> None:
    def behave(talk: UpstreamConnection) -> None:
        talk.read_request()
        talk.send(http_response(claude_response("Hello")))
        talk.read_request()
        talk.reset()

    between.upstream.behave = behave
    before = len(between.books(0).calls)
    heard = len(between.upstream.requests)
    with openai.OpenAI(base_url=between.gateway.openai_url, api_key=SECRET, max_retries=1) as client:
        for _ in range(3):
            client.chat.completions.with_raw_response.create(
                model="gpt-4.1", messages=[{"role": "user", "content": "Hello"}], max_tokens=10
            )

    assert (
        send_raw(between.gateway.url, claude_request(SECRET)).status == 502
    )  # and the last one, which was kept
    assert len(between.upstream.requests) == heard + 6  # each but the first found its connection closed, once
    assert len(between.books(before + 3).calls) == before + 3

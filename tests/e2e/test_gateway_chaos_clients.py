"""Clients that disconnect, stall or read slowly: the upstream call ends, is charged, and disturbs nobody."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from threading import Thread

import anthropic
import openai
import pytest

from foveate.cost.caps import Cap, CapScope
from foveate.gateway.request_body import BodyLimits
from tests.support.clients.raw_http import (
    chat_request,
    claude_request,
    connect,
    count_received_bytes,
    parse_response,
    receive_all,
    send_raw,
)
from tests.support.oracles.system_state import (
    LedgerState,
    files_containing,
    open_sockets,
    resident_bytes,
    wait_until,
    wait_until_settled,
)
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.scripted_upstream import (
    LAST_CHUNK,
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

SECRET = "sk-nobody-may-read-this-4714"
BODY_WAIT_SECONDS = 0.5
CAPS = [Cap(scope=CapScope.TOTAL, dollars=Decimal(1000))]  # so that each call has a reservation
EVENTS = claude_events(*["word "] * 20)
RESPOND = respond_once(http_response(claude_response("Well")))


@dataclass
class GatewaySetup:
    """A gateway in front of a scripted provider, and its ledger."""

    gateway: RunningGateway
    upstream: ScriptedUpstream
    file: Path

    def set_behaviour(self, behave: Behaviour) -> None:
        assert self.upstream.wait_until_idle()
        self.upstream.behave = behave
        self.upstream.lost_clients = 0
        self.upstream.requests.clear()

    def wait_for_request(self) -> bool:
        """Wait until the provider gets a request, and tell whether it did."""
        return wait_until(lambda: bool(self.upstream.requests), bool)

    def wait_for_calls(self, calls: int) -> LedgerState:
        return wait_until_settled(self.file, calls)


@pytest.fixture(scope="module")
def shared_setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaySetup]:
    folder = tmp_path_factory.mktemp("gateway")
    with (
        running_upstream(RESPOND) as upstream,
        running_gateway(
            upstream.url, folder, caps=CAPS, body=BodyLimits(idle_seconds=BODY_WAIT_SECONDS)
        ) as gateway,
    ):
        assert send_raw(gateway.url, claude_request(SECRET)).status == 200
        yield GatewaySetup(gateway, upstream, folder / "gateway.sqlite")
    assert gateway.failed_steps == []


@pytest.fixture
def setup(shared_setup: GatewaySetup, caplog: pytest.LogCaptureFixture) -> Iterator[GatewaySetup]:
    """Share one setup between tests, and check after each that it still serves and leaks nothing."""
    sockets = open_sockets()
    yield shared_setup
    shared_setup.set_behaviour(RESPOND)
    assert send_raw(shared_setup.gateway.url, claude_request(SECRET)).status == 200
    assert wait_until(open_sockets, lambda now: now <= sockets) <= sockets
    assert shared_setup.wait_for_calls(0).reservations == 0
    assert SECRET not in caplog.text
    assert files_containing(shared_setup.file.parent, SECRET) == []


def respond_never(connection: UpstreamConnection) -> None:
    """Read a request and send nothing until the client disconnects."""
    connection.read_request()
    if connection.is_closed_by_peer(within_seconds=30):
        connection.read_request()


def respond_slowly(connection: UpstreamConnection) -> None:
    """Stream one word at a time, slowly."""
    connection.read_request()
    connection.send(STREAM_HEAD, *map(http_chunk, EVENTS), LAST_CHUNK, pause_seconds=0.3)


def test_a_request_that_its_client_never_completes_is_not_sent_upstream(setup: GatewaySetup) -> None:
    before = len(setup.wait_for_calls(0).calls)
    setup.set_behaviour(RESPOND)
    for size in (1, 60, len(claude_request(SECRET)) - 1):
        with connect(setup.gateway.url) as connection:
            connection.sendall(claude_request(SECRET)[:size])
            time.sleep(0.05)

    assert setup.upstream.requests == []
    assert len(setup.wait_for_calls(before).calls) == before


@pytest.mark.parametrize("is_claude", [True, False])
@pytest.mark.parametrize("missing", [10, "all of the body"])
def test_a_client_that_stalls_in_its_request_gets_an_error_and_blocks_nobody(
    setup: GatewaySetup, is_claude: bool, missing: int | str
) -> None:
    setup.set_behaviour(RESPOND)
    request = claude_request(SECRET) if is_claude else chat_request(SECRET)
    partial_request = (
        request[:-missing] if isinstance(missing, int) else request.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    )
    with connect(setup.gateway.url) as connection:
        connection.sendall(partial_request)
        assert send_raw(setup.gateway.url, claude_request(SECRET)).status == 200
        response = parse_response(receive_all(connection))

    assert response.status == 408
    assert "no more of the request body arrived" in json.loads(response.body)["error"]["message"]
    assert len(setup.upstream.requests) == 1


@pytest.mark.parametrize("streams", [False, True])
def test_the_upstream_call_is_cancelled_if_the_client_disconnects_while_waiting(
    setup: GatewaySetup, streams: bool
) -> None:
    before = len(setup.wait_for_calls(0).calls)
    setup.set_behaviour(respond_never)
    with connect(setup.gateway.url) as connection:
        connection.sendall(claude_request(SECRET, stream=streams))
        assert setup.wait_for_request()

    assert setup.upstream.wait_for_lost_client()
    ledger = setup.wait_for_calls(before + 1)
    assert (len(ledger.calls), ledger.reservations) == (before + 1, 0)
    assert (ledger.calls[-1].is_partial, ledger.calls[-1].is_unknown) == (True, True)


def test_the_upstream_call_is_cancelled_if_the_client_disconnects_during_a_stream(setup: GatewaySetup) -> None:
    before = len(setup.wait_for_calls(0).calls)
    setup.set_behaviour(respond_slowly)
    with anthropic.Anthropic(base_url=setup.gateway.url, api_key=SECRET, max_retries=0) as client:
        stream = client.messages.create(
            model="claude-opus-4-5", max_tokens=50, messages=[{"role": "user", "content": "Hello"}], stream=True
        )
        next(iter(stream))
        stream.close()

    assert setup.upstream.wait_for_lost_client()
    ledger = setup.wait_for_calls(before + 1)
    assert (len(ledger.calls), ledger.calls[-1].is_partial) == (before + 1, True)


def test_the_upstream_call_is_cancelled_if_the_client_times_out(setup: GatewaySetup) -> None:
    before = len(setup.wait_for_calls(0).calls)
    setup.set_behaviour(respond_never)
    with openai.OpenAI(base_url=setup.gateway.openai_url, api_key=SECRET, max_retries=0, timeout=0.3) as client:
        while not setup.upstream.requests:  # on a busy machine the client may time out before it sends
            with pytest.raises(openai.APITimeoutError):
                client.chat.completions.create(
                    model="gpt-4.1", messages=[{"role": "user", "content": "Hello"}], max_tokens=9
                )

    assert setup.upstream.wait_for_lost_client()
    request_count = len(setup.upstream.requests)
    assert len(setup.wait_for_calls(before + request_count).calls) == before + request_count


def test_a_client_that_disconnects_after_the_response_is_charged_in_full(setup: GatewaySetup) -> None:
    before = setup.wait_for_calls(0)
    for _ in range(10):
        setup.set_behaviour(RESPOND)
        with connect(setup.gateway.url) as connection:
            connection.sendall(claude_request(SECRET))
            assert connection.recv(20).startswith(b"HTTP/1.1 200")
    ledger = setup.wait_for_calls(len(before.calls) + 10)

    assert len(ledger.calls) == len(before.calls) + 10
    assert ledger.complete_calls >= before.complete_calls + 9  # a client may disconnect before the last piece


def test_clients_that_disconnect_at_any_moment_are_each_charged_once(setup: GatewaySetup) -> None:
    before = len(setup.wait_for_calls(0).calls)
    setup.set_behaviour(respond_once(STREAM_HEAD, *map(http_chunk, EVENTS), LAST_CHUNK, pause_seconds=0.004))
    sockets = open_sockets()

    def leave(seconds: float) -> None:
        with connect(setup.gateway.url) as connection:
            connection.sendall(claude_request(SECRET, stream=True))
            time.sleep(seconds)

    threads = [Thread(target=leave, args=(number / 400,)) for number in range(48)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # This request is the last to arrive, so all others end when their connections are closed.
    assert send_raw(setup.gateway.url, b"no HTTP\r\n\r\n").status == 400
    assert wait_until(open_sockets, lambda now: now <= sockets) <= sockets
    ledger = setup.wait_for_calls(before + len(setup.upstream.requests))

    assert ledger.reservations == 0
    # A call is free if its client left before it was sent, and charged if the provider may have received it.
    assert len(ledger.calls) - before >= len(setup.upstream.requests)
    assert len(ledger.calls) - before <= 48
    assert len({call.id for call in ledger.calls}) == len(ledger.calls)


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_a_response_of_a_hundred_megabytes_is_streamed_without_buffering(
    setup: GatewaySetup, kind: str
) -> None:
    size = 100 * 1024 * 1024
    piece = b"data: " + b"x" * (1024 * 1024 - 8) + b"\n\n"
    head = http_response(b"", content_type=kind, content_length=str(size))

    def behave(connection: UpstreamConnection) -> None:
        connection.read_request()
        connection.send(head, *[piece] * 100)

    setup.set_behaviour(behave)
    sizes: list[int] = []
    growth: list[int] = []
    # The first response allocates memory that the others reuse. Earlier tests may also allocate memory, but
    # only once: a response that is buffered takes memory in every round.
    while len(growth) < 3 and (not growth or growth[-1] >= 50 * 1024 * 1024):
        memory = []
        for _ in range(3):
            sizes.append(count_received_bytes(setup.gateway.url, claude_request(SECRET, stream=True)))
            memory.append(resident_bytes())
        growth.append(memory[-1] - memory[0])

    assert all(size < received_size < size + 1_000 for received_size in sizes)
    assert min(growth) < 50 * 1024 * 1024, growth


def test_a_client_that_does_not_read_slows_the_upstream_down_instead_of_filling_memory(
    setup: GatewaySetup,
) -> None:
    size = 80 * 1024 * 1024
    piece = b": " + b"x" * (1024 * 1024 - 4) + b"\n\n"

    def behave(connection: UpstreamConnection) -> None:
        connection.read_request()
        connection.send(
            http_response(b"", content_type="text/event-stream", content_length=str(size)), *[piece] * 80
        )

    setup.set_behaviour(behave)
    memory = resident_bytes()
    with connect(setup.gateway.url) as connection:
        connection.sendall(claude_request(SECRET, stream=True))
        assert connection.recv(12) == b"HTTP/1.1 200"
        time.sleep(0.5)
        growth_bytes = resident_bytes() - memory
        length = 0
        while data := connection.recv(1024 * 1024):
            length += len(data)

    assert growth_bytes < 30 * 1024 * 1024
    assert length > size

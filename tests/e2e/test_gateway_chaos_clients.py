"""Clients that leave, stall and dawdle: their provider is told, the call is settled, and no other notices."""

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
from foveate.gateway.body.reader import BodyLimits
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
CAPS = [Cap(scope=CapScope.TOTAL, dollars=Decimal(1000))]  # so that something is reserved for each call
EVENTS = claude_events(*["word "] * 20)
WELL = respond_once(http_response(claude_response("Well")))


@dataclass
class Between:
    """A gateway before a scripted provider, and its books."""

    gateway: RunningGateway
    upstream: ScriptedUpstream
    file: Path

    def behaves(self, behave: Behaviour) -> None:
        assert self.upstream.wait_until_idle()
        self.upstream.behave = behave
        self.upstream.lost_clients = 0
        self.upstream.requests.clear()

    def heard_one(self) -> bool:
        """Whether the provider gets a request, waited for."""
        return wait_until(lambda: bool(self.upstream.requests), bool)

    def books(self, calls: int) -> LedgerState:
        return wait_until_settled(self.file, calls)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Between]:
    folder = tmp_path_factory.mktemp("gateway")
    with (
        running_upstream(WELL) as upstream,
        running_gateway(
            upstream.url, folder, caps=CAPS, body=BodyLimits(idle_seconds=BODY_WAIT_SECONDS)
        ) as gateway,
    ):
        assert send_raw(gateway.url, claude_request(SECRET)).status == 200
        yield Between(gateway, upstream, folder / "gateway.sqlite")
    assert gateway.failed_steps == []


@pytest.fixture
def between(both: Between, caplog: pytest.LogCaptureFixture) -> Iterator[Between]:
    """The same for all tests; after each of them it serves as before, with nothing left over."""
    sockets = open_sockets()
    yield both
    both.behaves(WELL)
    assert send_raw(both.gateway.url, claude_request(SECRET)).status == 200
    assert wait_until(open_sockets, lambda now: now <= sockets) <= sockets
    assert both.books(0).reservations == 0
    assert SECRET not in caplog.text
    assert files_containing(both.file.parent, SECRET) == []


def waits(talk: UpstreamConnection) -> None:
    """Takes a request and says nothing until its client has gone."""
    talk.read_request()
    if talk.is_closed_by_peer(within_seconds=30):
        talk.read_request()


def drips(talk: UpstreamConnection) -> None:
    """Streams one word after the other, slowly."""
    talk.read_request()
    talk.send(STREAM_HEAD, *map(http_chunk, EVENTS), LAST_CHUNK, pause_seconds=0.3)


def test_a_client_that_leaves_before_all_of_its_request_is_there_asked_nothing(between: Between) -> None:
    before = len(between.books(0).calls)
    between.behaves(WELL)
    for size in (1, 60, len(claude_request(SECRET)) - 1):
        with connect(between.gateway.url) as connection:
            connection.sendall(claude_request(SECRET)[:size])
            time.sleep(0.05)

    assert between.upstream.requests == []
    assert len(between.books(before).calls) == before


@pytest.mark.parametrize("is_claude", [True, False])
@pytest.mark.parametrize("missing", [10, "all of the body"])
def test_a_client_that_stalls_in_its_request_is_told_and_holds_nobody_up(
    between: Between, is_claude: bool, missing: int | str
) -> None:
    between.behaves(WELL)
    whole = claude_request(SECRET) if is_claude else chat_request(SECRET)
    cut = whole[:-missing] if isinstance(missing, int) else whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    with connect(between.gateway.url) as stalled:
        stalled.sendall(cut)
        assert send_raw(between.gateway.url, claude_request(SECRET)).status == 200
        found = parse_response(receive_all(stalled))

    assert found.status == 408
    assert "no more of the request came" in json.loads(found.body)["error"]["message"]
    assert len(between.upstream.requests) == 1


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_leaves_while_it_waits_has_its_provider_left_too(between: Between, streams: bool) -> None:
    before = len(between.books(0).calls)
    between.behaves(waits)
    with connect(between.gateway.url) as connection:
        connection.sendall(claude_request(SECRET, stream=streams))
        assert between.heard_one()

    assert between.upstream.wait_for_lost_client()
    booked = between.books(before + 1)
    assert (len(booked.calls), booked.reservations) == (before + 1, 0)
    assert (booked.calls[-1].is_partial, booked.calls[-1].is_unknown) == (True, True)


def test_a_client_that_leaves_in_the_middle_of_a_stream_has_its_provider_left_too(between: Between) -> None:
    before = len(between.books(0).calls)
    between.behaves(drips)
    with anthropic.Anthropic(base_url=between.gateway.url, api_key=SECRET, max_retries=0) as client:
        stream = client.messages.create(
            model="claude-opus-4-5", max_tokens=50, messages=[{"role": "user", "content": "Hello"}], stream=True
        )
        next(iter(stream))
        stream.close()

    assert between.upstream.wait_for_lost_client()
    booked = between.books(before + 1)
    assert (len(booked.calls), booked.calls[-1].is_partial) == (before + 1, True)


def test_a_client_whose_own_time_is_out_has_its_provider_left_too(between: Between) -> None:
    before = len(between.books(0).calls)
    between.behaves(waits)
    with openai.OpenAI(
        base_url=between.gateway.openai_url, api_key=SECRET, max_retries=0, timeout=0.3
    ) as client:
        while not between.upstream.requests:  # on a busy machine its time may be out before it is sent
            with pytest.raises(openai.APITimeoutError):
                client.chat.completions.create(
                    model="gpt-4.1", messages=[{"role": "user", "content": "Hello"}], max_tokens=9
                )

    assert between.upstream.wait_for_lost_client()
    asked = len(between.upstream.requests)
    assert len(between.books(before + asked).calls) == before + asked


def test_a_client_that_leaves_with_its_answer_has_it_booked_whole(between: Between) -> None:
    before = between.books(0)
    for _ in range(10):
        between.behaves(WELL)
        with connect(between.gateway.url) as connection:
            connection.sendall(claude_request(SECRET))
            assert connection.recv(20).startswith(b"HTTP/1.1 200")
    booked = between.books(len(before.calls) + 10)

    assert len(booked.calls) == len(before.calls) + 10
    assert booked.complete_calls >= before.complete_calls + 9  # one may be left between its two last pieces


def test_clients_that_leave_at_any_moment_are_settled_once_each(between: Between) -> None:
    before = len(between.books(0).calls)
    between.behaves(respond_once(STREAM_HEAD, *map(http_chunk, EVENTS), LAST_CHUNK, pause_seconds=0.004))
    sockets = open_sockets()

    def leave(seconds: float) -> None:
        with connect(between.gateway.url) as connection:
            connection.sendall(claude_request(SECRET, stream=True))
            time.sleep(seconds)

    threads = [Thread(target=leave, args=(number / 400,)) for number in range(48)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Who is refused now came after all of them; so they are over as soon as their connections are.
    assert send_raw(between.gateway.url, b"no HTTP\r\n\r\n").status == 400
    assert wait_until(open_sockets, lambda now: now <= sockets) <= sockets
    booked = between.books(before + len(between.upstream.requests))

    assert booked.reservations == 0
    # A call that its client left before it was sent is free; whatever a provider may have heard is booked.
    assert len(booked.calls) - before >= len(between.upstream.requests)
    assert len(booked.calls) - before <= 48
    assert len({call.id for call in booked.calls}) == len(booked.calls)


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_an_answer_of_a_hundred_megabytes_passes_without_being_kept(between: Between, kind: str) -> None:
    size = 100 * 1024 * 1024
    piece = b"data: " + b"x" * (1024 * 1024 - 8) + b"\n\n"
    head = http_response(b"", content_type=kind, content_length=str(size))

    def behave(talk: UpstreamConnection) -> None:
        talk.read_request()
        talk.send(head, *[piece] * 100)

    between.behaves(behave)
    sizes: list[int] = []
    growth: list[int] = []
    # The first answer takes what the others use again. What earlier tests left running may also take memory,
    # but only once: an answer that is kept takes it in every round.
    while len(growth) < 3 and (not growth or growth[-1] >= 50 * 1024 * 1024):
        memory = []
        for _ in range(3):
            sizes.append(count_received_bytes(between.gateway.url, claude_request(SECRET, stream=True)))
            memory.append(resident_bytes())
        growth.append(memory[-1] - memory[0])

    assert all(size < found < size + 1_000 for found in sizes)
    assert min(growth) < 50 * 1024 * 1024, growth


def test_a_client_that_does_not_read_holds_its_provider_back_and_not_all_of_the_answer(
    between: Between,
) -> None:
    size = 80 * 1024 * 1024
    piece = b": " + b"x" * (1024 * 1024 - 4) + b"\n\n"

    def behave(talk: UpstreamConnection) -> None:
        talk.read_request()
        talk.send(http_response(b"", content_type="text/event-stream", content_length=str(size)), *[piece] * 80)

    between.behaves(behave)
    memory = resident_bytes()
    with connect(between.gateway.url) as connection:
        connection.sendall(claude_request(SECRET, stream=True))
        assert connection.recv(12) == b"HTTP/1.1 200"
        time.sleep(0.5)
        grown = resident_bytes() - memory
        length = 0
        while found := connection.recv(1024 * 1024):
            length += len(found)

    assert grown < 30 * 1024 * 1024
    assert length > size

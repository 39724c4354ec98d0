"""Gateways in their own processes: many concurrent streams, changing settings, and kill -9."""

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from typing import Any

import anthropic
import psycopg
import pytest

from foveate.cost.ledger import GroupBy
from foveate.sandbox.script import ScriptStep
from tests.support.clients.raw_http import claude_request, parse_response, send_raw
from tests.support.oracles.system_state import (
    files_containing,
    open_sockets,
    read_sums,
    resident_bytes,
    wait_until,
    wait_until_settled,
)
from tests.support.servers.gateway_process import GatewayProcess, gateway_process, write_config
from tests.support.servers.sandbox import RunningSandbox, running_sandbox, step_headers
from tests.support.servers.scripted_upstream import (
    LAST_CHUNK,
    STREAM_HEAD,
    claude_events,
    http_chunk,
    respond_once,
    running_upstream,
)
from tests.support.stores.postgres import PostgresServer

pytestmark = pytest.mark.process

SECRET = "sk-nobody-may-read-this-4716"
MODEL = "claude-opus-4-5"
STREAMS = 200
FIRST = 50
EVENTS = claude_events(*["word "] * 10)
CAPPED = "cost: {caps: [{scope: total, dollars: 1000}]}\n"
FILE = "foveate.sqlite"
# What is reserved for a call is freed so long after its process is gone.
LEASE_SECONDS = 120


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    with running_sandbox() as running:
        yield running


def turn(url: str, messages: list[Any], step: ScriptStep | None = None) -> str:
    """Build the next request of a conversation."""
    with anthropic.Anthropic(base_url=url, api_key=SECRET, max_retries=0, timeout=20) as client:
        reply = client.messages.create(
            model=MODEL,
            max_tokens=60,
            messages=messages,
            extra_headers=step_headers(step) if step is not None else {},
        )
    assert reply.content[0].type == "text"
    return reply.content[0].text


def api_format(url: str, messages: list[Any], text: str) -> None:
    """Send one more turn of a conversation."""
    messages.append({"role": "user", "content": text})
    messages.append({"role": "assistant", "content": turn(url, messages)})


def stop_and_read_log(served: GatewayProcess, *, is_killed: bool = False) -> str:
    """Stop a gateway and return its log."""
    if not is_killed:
        served.process.terminate()
    return served.wait_for_exit()[1]


async def streamed(url: str, number: int) -> bytes:
    host, _, port = url.removeprefix("http://").partition(":")
    reading, writing = await asyncio.open_connection(host, int(port))
    writing.write(claude_request(SECRET, stream=True, text=f"Hello {number}"))
    found = await reading.read()
    writing.close()
    await writing.wait_closed()
    return found


def test_two_hundred_concurrent_streams_are_complete_and_charged(tmp_path: Path) -> None:
    config = tmp_path / "foveate.yaml"
    pieces = [STREAM_HEAD, *map(http_chunk, EVENTS), LAST_CHUNK]
    with running_upstream(respond_once(*pieces, pause_seconds=0.03)) as upstream:
        write_config(config, upstream.url, f"server: {{log_level: warning}}\n{CAPPED}")
        with gateway_process(tmp_path, "--config", str(config), forked=False) as served:

            async def all_at_once(count: int) -> list[bytes]:
                return await asyncio.gather(*(streamed(served.url, number) for number in range(count)))

            asyncio.run(all_at_once(FIRST))  # it learns what it needs
            wait_until_settled(tmp_path / FILE, FIRST)
            pid = served.process.pid
            sockets, memory = open_sockets(pid), resident_bytes(pid)
            answers = [parse_response(found) for found in asyncio.run(all_at_once(STREAMS))]
            booked = wait_until_settled(tmp_path / FILE, FIRST + STREAMS, within_seconds=20)
            left = wait_until(lambda: open_sockets(pid), lambda now: now <= sockets)
            grown = resident_bytes(pid) - memory
            log = stop_and_read_log(served)

    assert [one.status for one in answers] == [200] * STREAMS
    assert all(one.is_complete and one.body == b"".join(EVENTS) for one in answers)
    assert (len(booked.calls), booked.complete_calls, booked.reservations) == (
        FIRST + STREAMS,
        FIRST + STREAMS,
        0,
    )
    assert left <= sockets
    assert grown < 30 * 1024 * 1024
    assert "Traceback" not in log
    assert SECRET not in log
    assert files_containing(tmp_path, SECRET) == []


def test_invalid_new_settings_do_not_disturb_running_requests(sandbox: RunningSandbox, tmp_path: Path) -> None:
    config = tmp_path / "foveate.yaml"
    write_config(config, sandbox.url)
    good = config.read_bytes()
    statuses: list[int] = []
    is_over = Event()
    with gateway_process(tmp_path, "--config", str(config), forked=False) as served:

        def ask_on() -> None:
            while not is_over.is_set():
                statuses.append(send_raw(served.url, claude_request(SECRET)).status)

        askers = [Thread(target=ask_on) for _ in range(4)]
        for asker in askers:
            asker.start()
        for bad in (b"", b"upstreams: [", b"server: {prot: 1}\n", b"\xff\xfe\0", good[: len(good) // 2], None):
            if bad is None:
                config.unlink()
            else:
                config.write_bytes(bad)
            time.sleep(0.1)
            write_config(config, sandbox.url)
            time.sleep(0.05)
        is_over.set()
        for asker in askers:
            asker.join()
        write_config(config, sandbox.url, "cost: {caps: [{scope: call, dollars: 0.0000001}]}\n")
        time.sleep(0.05)  # the file is not looked at more often than every few milliseconds
        refused = send_raw(served.url, claude_request(SECRET)).status
        booked = wait_until_settled(tmp_path / FILE, statuses.count(200))
        log = stop_and_read_log(served)

    assert Counter(statuses).keys() == {200}
    assert refused == 402
    assert (len(booked.calls), booked.reservations) == (len(statuses), 0)
    assert "the configuration stays as it was" in log
    assert SECRET not in log


def test_a_killed_gateway_has_lost_nothing_after_a_restart(sandbox: RunningSandbox, tmp_path: Path) -> None:
    config = tmp_path / "foveate.yaml"
    write_config(config, sandbox.url, CAPPED)
    messages: list[Any] = []
    file = tmp_path / FILE
    with (
        gateway_process(tmp_path, "--config", str(config), forked=False) as served,
        ThreadPoolExecutor(4) as clients,
    ):
        for number in range(4):
            api_format(served.url, messages, f"One {number}")
        wait_until_settled(file, 4)
        heard_before = len(sandbox.requests)
        under_way = [
            clients.submit(
                turn, served.url, [{"role": "user", "content": f"{n}"}], ScriptStep(delay_seconds=20)
            )
            for n in range(3)
        ]
        wait_until(lambda: len(sandbox.requests), lambda heard: heard >= heard_before + 3)
        served.process.kill()
        logs = stop_and_read_log(served, is_killed=True)
        assert all(isinstance(one.exception(), anthropic.APIConnectionError) for one in under_way)
    with closing(sqlite3.connect(file)) as connection:
        left = [row[0] for row in connection.execute("SELECT expires_at FROM reservations_v1")]
        connection.execute("UPDATE reservations_v1 SET expires_at = 1")  # as if that time had passed
        connection.commit()
    with gateway_process(tmp_path, "--config", str(config), forked=False) as served:
        for number in range(4):
            api_format(served.url, messages, f"Two {number}")
        booked = wait_until_settled(file, 11)
        logs += stop_and_read_log(served)

    assert len(left) == 3  # of those that were under way, about which nobody knows
    assert max(left) < time.time() + LEASE_SECONDS
    assert (len(booked.calls), booked.reservations) == (11, 0)
    assert len({call.id for call in booked.calls}) == 11
    by_session = [
        (one.calls, one.possibly_charged_calls) for one in read_sums(f"sqlite:///{file}", GroupBy.SESSION)
    ]
    assert by_session == [(8, 0), (1, 1), (1, 1), (1, 1)]  # all that was answered is one session
    assert SECRET not in logs
    assert files_containing(tmp_path, SECRET) == []
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_sessions_continue_through_the_other_gateway_if_one_is_killed(
    sandbox: RunningSandbox, postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.new_database()
    config = tmp_path / "foveate.yaml"
    write_config(config, sandbox.url, f"store: {{url: '{url}'}}\n{CAPPED}")
    sessions: list[list[Any]] = [[] for _ in range(3)]
    with (
        gateway_process(tmp_path, "--config", str(config), forked=False) as one,
        gateway_process(tmp_path, "--config", str(config), forked=False) as other,
        ThreadPoolExecutor(8) as clients,
    ):
        for number in range(4):
            where = (one, other)[number % 2]
            list(
                clients.map(lambda m, w=where, n=number: api_format(w.url, m, f"Turn {n} of {id(m)}"), sessions)
            )
        before = wait_until(lambda: _booked(url), lambda found: len(found) >= 12)
        heard_before = len(sandbox.requests)
        lost = [
            clients.submit(
                turn, one.url, [*messages, {"role": "user", "content": "And?"}], ScriptStep(delay_seconds=20)
            )
            for messages in sessions
        ]
        wait_until(lambda: len(sandbox.requests), lambda heard: heard >= heard_before + 3)
        others: list[Any] = []
        going_on = clients.submit(api_format, other.url, others, "Meanwhile")
        one.process.kill()
        going_on.result()
        assert all(isinstance(call.exception(), anthropic.APIConnectionError) for call in lost)
        for messages in (*sessions, others):
            api_format(other.url, messages, "And?")
        api_format(other.url, sessions[0], "Last")
        after = wait_until(lambda: _booked(url), lambda found: len(found) >= 18)
        left = _reserved(url)
        logs = stop_and_read_log(one, is_killed=True) + stop_and_read_log(other)
        dump = postgres.dump(url)

    assert (len(before), len(after), set(after.values())) == (12, 18, {1})
    assert len(left) == 3  # of those that were under way, about which nobody knows
    assert max(left) < time.time() + LEASE_SECONDS
    assert sorted(found.calls for found in read_sums(url, GroupBy.SESSION)) == [2, 5, 5, 6]
    assert "Traceback" not in logs
    assert SECRET not in logs + dump
    assert files_containing(tmp_path, SECRET) == []


def _booked(url: str) -> Counter[str]:
    with psycopg.connect(url) as connection:
        return Counter(row[0] for row in connection.execute("SELECT call_id FROM ledger_v1"))


def _reserved(url: str) -> list[float]:
    """When all that is reserved runs out."""
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT expires_at FROM reservations_v1")]

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
WARM_UP_STREAMS = 50
EVENTS = claude_events(*["word "] * 10)
CAP_CONFIG = "cost: {caps: [{scope: total, dollars: 1000}]}\n"
STORE_FILE = "foveate.sqlite"
# A reservation expires this long after its process has ended.
LEASE_SECONDS = 120


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    with running_sandbox() as server:
        yield server


def send_request(url: str, messages: list[Any], step: ScriptStep | None = None) -> str:
    """Send a conversation and return the text of the response."""
    with anthropic.Anthropic(base_url=url, api_key=SECRET, max_retries=0, timeout=20) as client:
        reply = client.messages.create(
            model=MODEL,
            max_tokens=60,
            messages=messages,
            extra_headers=step_headers(step) if step is not None else {},
        )
    assert reply.content[0].type == "text"
    return reply.content[0].text


def send_turn(url: str, messages: list[Any], text: str) -> None:
    """Send one more turn and append it and its response to the messages."""
    messages.append({"role": "user", "content": text})
    messages.append({"role": "assistant", "content": send_request(url, messages)})


def stop_and_read_log(gateway: GatewayProcess, *, is_killed: bool = False) -> str:
    """Stop a gateway and return its log."""
    if not is_killed:
        gateway.process.terminate()
    return gateway.wait_for_exit()[1]


async def read_stream(url: str, number: int) -> bytes:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(claude_request(SECRET, stream=True, text=f"Hello {number}"))
    data = await reader.read()
    writer.close()
    await writer.wait_closed()
    return data


def test_two_hundred_concurrent_streams_are_complete_and_charged(tmp_path: Path) -> None:
    config = tmp_path / "foveate.yaml"
    pieces = [STREAM_HEAD, *map(http_chunk, EVENTS), LAST_CHUNK]
    with running_upstream(respond_once(*pieces, pause_seconds=0.03)) as upstream:
        write_config(config, upstream.url, f"server: {{log_level: warning}}\n{CAP_CONFIG}")
        with gateway_process(tmp_path, "--config", str(config)) as gateway:

            async def read_streams(count: int) -> list[bytes]:
                return await asyncio.gather(*(read_stream(gateway.url, number) for number in range(count)))

            asyncio.run(read_streams(WARM_UP_STREAMS))  # it loads what it needs
            wait_until_settled(tmp_path / STORE_FILE, WARM_UP_STREAMS)
            pid = gateway.pid
            sockets, memory = open_sockets(pid), resident_bytes(pid)
            responses = [parse_response(data) for data in asyncio.run(read_streams(STREAMS))]
            ledger = wait_until_settled(tmp_path / STORE_FILE, WARM_UP_STREAMS + STREAMS, within_seconds=20)
            open_at_end = wait_until(lambda: open_sockets(pid), lambda now: now <= sockets)
            growth_bytes = resident_bytes(pid) - memory
            log = stop_and_read_log(gateway)

    assert [response.status for response in responses] == [200] * STREAMS
    assert all(response.is_complete and response.body == b"".join(EVENTS) for response in responses)
    assert (len(ledger.calls), ledger.complete_calls, ledger.reservations) == (
        WARM_UP_STREAMS + STREAMS,
        WARM_UP_STREAMS + STREAMS,
        0,
    )
    assert open_at_end <= sockets
    assert growth_bytes < 30 * 1024 * 1024
    assert "Traceback" not in log
    assert SECRET not in log
    assert files_containing(tmp_path, SECRET) == []


def test_invalid_new_settings_do_not_disturb_running_requests(sandbox: RunningSandbox, tmp_path: Path) -> None:
    config = tmp_path / "foveate.yaml"
    write_config(config, sandbox.url)
    valid_config = config.read_bytes()
    statuses: list[int] = []
    is_over = Event()
    with gateway_process(tmp_path, "--config", str(config)) as gateway:

        def send_requests() -> None:
            while not is_over.is_set():
                statuses.append(send_raw(gateway.url, claude_request(SECRET)).status)

        threads = [Thread(target=send_requests) for _ in range(4)]
        for thread in threads:
            thread.start()
        for invalid_config in (
            b"",
            b"upstreams: [",
            b"server: {prot: 1}\n",
            b"\xff\xfe\0",
            valid_config[: len(valid_config) // 2],
            None,
        ):
            if invalid_config is None:
                config.unlink()
            else:
                config.write_bytes(invalid_config)
            time.sleep(0.1)
            write_config(config, sandbox.url)
            time.sleep(0.05)
        is_over.set()
        for thread in threads:
            thread.join()
        write_config(config, sandbox.url, "cost: {caps: [{scope: call, dollars: 0.0000001}]}\n")
        time.sleep(0.05)  # the gateway checks the file every few milliseconds at most
        status_over_cap = send_raw(gateway.url, claude_request(SECRET)).status
        ledger = wait_until_settled(tmp_path / STORE_FILE, statuses.count(200))
        log = stop_and_read_log(gateway)

    assert Counter(statuses).keys() == {200}
    assert status_over_cap == 402
    assert (len(ledger.calls), ledger.reservations) == (len(statuses), 0)
    assert "the new configuration is invalid, keeping the previous one" in log
    assert SECRET not in log


def test_a_killed_gateway_has_lost_nothing_after_a_restart(sandbox: RunningSandbox, tmp_path: Path) -> None:
    config = tmp_path / "foveate.yaml"
    write_config(config, sandbox.url, CAP_CONFIG)
    messages: list[Any] = []
    file = tmp_path / STORE_FILE
    with (
        gateway_process(tmp_path, "--config", str(config)) as gateway,
        ThreadPoolExecutor(4) as clients,
    ):
        for number in range(4):
            send_turn(gateway.url, messages, f"One {number}")
        wait_until_settled(file, 4)
        requests_before = len(sandbox.requests)
        in_flight = [
            clients.submit(
                send_request, gateway.url, [{"role": "user", "content": f"{n}"}], ScriptStep(delay_seconds=20)
            )
            for n in range(3)
        ]
        wait_until(lambda: len(sandbox.requests), lambda request_count: request_count >= requests_before + 3)
        gateway.kill()
        logs = stop_and_read_log(gateway, is_killed=True)
        assert all(isinstance(future.exception(), anthropic.APIConnectionError) for future in in_flight)
    with closing(sqlite3.connect(file)) as connection:
        expiries = [row[0] for row in connection.execute("SELECT expires_at FROM reservations_v1")]
        connection.execute("UPDATE reservations_v1 SET expires_at = 1")  # as if the leases had expired
        connection.commit()
    with gateway_process(tmp_path, "--config", str(config)) as gateway:
        for number in range(4):
            send_turn(gateway.url, messages, f"Two {number}")
        ledger = wait_until_settled(file, 11)
        logs += stop_and_read_log(gateway)

    assert len(expiries) == 3  # of the calls in flight, whose outcome is unknown
    assert max(expiries) < time.time() + LEASE_SECONDS
    assert (len(ledger.calls), ledger.reservations) == (11, 0)
    assert len({call.id for call in ledger.calls}) == 11
    by_session = [
        (total.calls, total.possibly_charged_calls) for total in read_sums(f"sqlite:///{file}", GroupBy.SESSION)
    ]
    assert by_session == [(8, 0), (1, 1), (1, 1), (1, 1)]  # all answered calls are one session
    assert SECRET not in logs
    assert files_containing(tmp_path, SECRET) == []
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_sessions_continue_through_the_other_gateway_if_one_is_killed(
    sandbox: RunningSandbox, postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.new_database()
    config = tmp_path / "foveate.yaml"
    write_config(config, sandbox.url, f"store: {{url: '{url}'}}\n{CAP_CONFIG}")
    sessions: list[list[Any]] = [[] for _ in range(3)]
    with (
        gateway_process(tmp_path, "--config", str(config)) as first,
        gateway_process(tmp_path, "--config", str(config)) as second,
        ThreadPoolExecutor(8) as clients,
    ):
        for number in range(4):
            gateway = (first, second)[number % 2]
            list(
                clients.map(
                    lambda session, target=gateway, n=number: send_turn(
                        target.url, session, f"Turn {n} of {id(session)}"
                    ),
                    sessions,
                )
            )
            # The other gateway finds them in the store only.
            wait_until(lambda: _count_answers(url), lambda count, n=number: count >= len(sessions) * (n + 1))
        before = wait_until(lambda: _count_calls(url), lambda calls: len(calls) >= 12)
        requests_before = len(sandbox.requests)
        interrupted = [
            clients.submit(
                send_request,
                first.url,
                [*messages, {"role": "user", "content": "And?"}],
                ScriptStep(delay_seconds=20),
            )
            for messages in sessions
        ]
        wait_until(lambda: len(sandbox.requests), lambda request_count: request_count >= requests_before + 3)
        new_session: list[Any] = []
        new_turn = clients.submit(send_turn, second.url, new_session, "Meanwhile")
        first.kill()
        new_turn.result()
        assert all(isinstance(call.exception(), anthropic.APIConnectionError) for call in interrupted)
        for messages in (*sessions, new_session):
            send_turn(second.url, messages, "And?")
        send_turn(second.url, sessions[0], "Last")
        after = wait_until(lambda: _count_calls(url), lambda calls: len(calls) >= 18)
        expiries = _reservation_expiries(url)
        logs = stop_and_read_log(first, is_killed=True) + stop_and_read_log(second)
        dump = postgres.dump(url)

    assert (len(before), len(after), set(after.values())) == (12, 18, {1})
    assert len(expiries) == 3  # of the calls in flight, whose outcome is unknown
    assert max(expiries) < time.time() + LEASE_SECONDS
    assert sorted(total.calls for total in read_sums(url, GroupBy.SESSION)) == [2, 5, 5, 6]
    assert "Traceback" not in logs
    assert SECRET not in logs + dump
    assert files_containing(tmp_path, SECRET) == []


def _count_calls(url: str) -> Counter[str]:
    with psycopg.connect(url) as connection:
        return Counter(row[0] for row in connection.execute("SELECT call_id FROM ledger_v1"))


def _count_answers(url: str) -> int:
    """Count the stored answers; one may have several digests."""
    with psycopg.connect(url) as connection:
        ((count,),) = connection.execute("SELECT count(DISTINCT (session_id, tip)) FROM answers_v1").fetchall()
        return int(count)


def _reservation_expiries(url: str) -> list[float]:
    """Return when each reservation expires."""
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT expires_at FROM reservations_v1")]

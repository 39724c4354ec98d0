"""A store that stalls or is unavailable: requests without caps are answered, and charged later."""

import json
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest

from foveate.cost.caps import Cap, CapScope
from tests.support.clients.raw_http import ANTHROPIC, RawResponse, build_post, claude_request, send_raw
from tests.support.oracles.system_state import files_containing, wait_until, wait_until_settled
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.scripted_upstream import (
    ScriptedUpstream,
    claude_response,
    http_response,
    respond_always,
    running_upstream,
)
from tests.support.stores.postgres import PostgresServer

SECRET = "sk-nobody-may-read-this-4715"
CAPS = [Cap(scope=CapScope.TOTAL, dollars=Decimal(1000))]
# Longer than the gateway waits for a lock, even if another request waits before it.
MAX_WAIT_SECONDS = 20


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with running_upstream(respond_always(http_response(claude_response("Well")))) as server:
        yield server


@contextmanager
def locked_files(*files: Path) -> Iterator[None]:
    """Lock these files against other writers."""
    with ExitStack() as stack:
        for file in files:
            connection = sqlite3.connect(file, isolation_level=None)
            stack.callback(connection.close)
            connection.execute("BEGIN EXCLUSIVE")
        yield


def send_message(gateway: RunningGateway, text: str) -> RawResponse:
    return send_raw(gateway.url, claude_request(SECRET, text=text), timeout_seconds=60)


def test_a_locked_file_loses_no_response_or_charge_and_lets_nothing_past_a_cap(
    upstream: ScriptedUpstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders = [tmp_path / "free", tmp_path / "capped"]
    for folder in folders:
        folder.mkdir()
    files = [folder / "gateway.sqlite" for folder in folders]
    with (
        running_gateway(upstream.url, folders[0]) as free,
        running_gateway(upstream.url, folders[1], caps=CAPS) as capped,
        ThreadPoolExecutor(20) as clients,
    ):
        for gateway in (free, capped):
            assert send_message(gateway, "before").status == 200
        with locked_files(*files):
            uncapped_calls = [clients.submit(send_message, free, f"during {number}") for number in range(4)]
            capped_calls = [clients.submit(send_message, capped, f"during {number}") for number in range(4)]
            assert wait(uncapped_calls, timeout=4.5).not_done == set()  # only caps wait for the store
            assert wait(capped_calls, timeout=MAX_WAIT_SECONDS, return_when=FIRST_COMPLETED).done
        responses = [call.result() for call in capped_calls]
        after = [send_message(gateway, "after").status for gateway in (free, capped)]
        capped_ledger = wait_until_settled(files[1], 2 + sum(response.status == 200 for response in responses))
    ledger = wait_until_settled(files[0], 6)

    assert after == [200, 200]
    assert [call.result().status for call in uncapped_calls] == [200] * 4
    assert (len(ledger.calls), ledger.complete_calls, ledger.reservations) == (6, 6, 0)
    rejected = [response for response in responses if response.status != 200]
    assert rejected  # the cap could not be checked
    for response in rejected:
        assert (response.status, response.headers["x-should-retry"]) == (402, "false")
        assert "cannot be checked" in json.loads(response.body)["error"]["message"]
    assert (len(capped_ledger.calls), capped_ledger.reservations) == (6 - len(rejected), 0)
    assert SECRET not in caplog.text
    assert files_containing(tmp_path, SECRET) == []


@pytest.mark.parametrize("headers", [{}, {"x_foveate_session": "nightly"}], ids=["matched", "named"])
def test_a_request_does_not_wait_until_earlier_turns_are_stored(
    upstream: ScriptedUpstream, tmp_path: Path, headers: dict[str, str]
) -> None:
    """Regression: with four workers on one file, the second request waited seconds for the writer."""
    file = tmp_path / "gateway.sqlite"

    def send_turn(gateway: RunningGateway, number: int) -> int:
        messages = [
            {"role": ("user", "assistant")[index % 2], "content": f"word {index}"}
            for index in range(2 * number + 1)
        ]
        body = json.dumps({"model": "claude-opus-4-5", "max_tokens": 100, "messages": messages}).encode()
        return send_raw(
            gateway.url, build_post("/v1/messages", body, **ANTHROPIC, x_api_key=SECRET, **headers)
        ).status

    with running_gateway(upstream.url, tmp_path) as gateway, ThreadPoolExecutor(1) as client:
        with locked_files(file):
            calls = [client.submit(send_turn, gateway, number) for number in range(5)]
            assert wait(calls, timeout=4.5).not_done == set()  # earlier than a writer times out
        assert [call.result() for call in calls] == [200] * 5
        assert send_turn(gateway, 5) == 200
        ledger = wait_until_settled(file, 6)
        turns = wait_until(lambda: turns_by_session(file), lambda turns: sum(turns.values()) == 11, 30)

    assert len(ledger.calls) == 6
    assert list(turns.values()) == [11]  # one session, and no turn is lost


def turns_by_session(file: Path) -> dict[str, int]:
    with closing(sqlite3.connect(file)) as connection:
        return dict(connection.execute("SELECT session_id, count(*) FROM turns_v1 GROUP BY session_id"))


def count_calls(url: str) -> Counter[str]:
    with psycopg.connect(url) as connection:
        return Counter(row[0] for row in connection.execute("SELECT call_id FROM ledger_v1"))


def count_reservations(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM reservations_v1").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("replacement", ["nothing", "another"])
def test_caps_reject_calls_after_the_store_file_is_deleted_or_replaced(
    upstream: ScriptedUpstream, tmp_path: Path, replacement: str
) -> None:
    file, moved_file = tmp_path / "gateway.sqlite", tmp_path / "aside.sqlite"
    with running_gateway(upstream.url, tmp_path, caps=CAPS) as gateway:
        assert send_message(gateway, "before").status == 200
        file.rename(moved_file)
        if replacement == "another":
            shutil.copy(moved_file, file)
        statuses = {send_message(gateway, f"during {number}").status for number in range(5)}
        moved_file.rename(file)
        after = send_message(gateway, "after").status

    assert statuses == {402}
    assert after == 200


@pytest.mark.process
def test_a_restart_of_the_database_server_loses_no_response_or_charge(
    upstream: ScriptedUpstream, own_server: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, capped_url = own_server.new_database(), own_server.new_database()
    with (
        running_gateway(upstream.url, tmp_path, store_url=url) as free,
        running_gateway(upstream.url, tmp_path, store_url=capped_url, caps=CAPS) as capped,
        ThreadPoolExecutor(20) as clients,
    ):
        for gateway in (free, capped):
            assert send_message(gateway, "before").status == 200
        own_server.crash()
        calls = [
            clients.submit(send_message, gateway, f"during {number}")
            for number in range(4)
            for gateway in (free, capped)
        ]
        time.sleep(1)
        own_server.start()
        responses = [call.result() for call in calls]
        after = [send_message(gateway, "after").status for gateway in (free, capped)]
        call_counts = wait_until(lambda: count_calls(url), lambda counts: len(counts) >= 6, 30)
        dump = own_server.dump(url) + own_server.dump(capped_url)

    assert after == [200, 200]
    assert [response.status for response in responses[::2]] == [200] * 4
    assert (len(call_counts), set(call_counts.values())) == (6, {1})
    admitted = sum(response.status == 200 for response in responses[1::2])
    assert {response.status for response in responses[1::2]} <= {200, 402}
    assert (len(count_calls(capped_url)), count_reservations(capped_url)) == (2 + admitted, 0)
    assert SECRET not in caplog.text
    assert SECRET not in dump

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
# Longer than the gateway waits for a lock, also behind another that waits for it.
LONGEST_SECONDS = 20


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with running_upstream(respond_always(http_response(claude_response("Well")))) as running:
        yield running


@contextmanager
def locked(*files: Path) -> Iterator[None]:
    """Lock these files against other writers."""
    with ExitStack() as held:
        for file in files:
            connection = sqlite3.connect(file, isolation_level=None)
            held.callback(connection.close)
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
        with locked(*files):
            went = [clients.submit(send_message, free, f"during {number}") for number in range(4)]
            held = [clients.submit(send_message, capped, f"during {number}") for number in range(4)]
            assert wait(went, timeout=4.5).not_done == set()  # nobody waits for the store but caps
            assert wait(held, timeout=LONGEST_SECONDS, return_when=FIRST_COMPLETED).done
        answers = [one.result() for one in held]
        after = [send_message(gateway, "after").status for gateway in (free, capped)]
        capped_books = wait_until_settled(files[1], 2 + sum(one.status == 200 for one in answers))
    books = wait_until_settled(files[0], 6)

    assert after == [200, 200]
    assert [one.result().status for one in went] == [200] * 4
    assert (len(books.calls), books.complete_calls, books.reservations) == (6, 6, 0)
    refused = [one for one in answers if one.status != 200]
    assert refused  # nobody could say whether the cap has room
    for one in refused:
        assert (one.status, one.headers["x-should-retry"]) == (402, "false")
        assert "cannot be checked" in json.loads(one.body)["error"]["message"]
    assert (len(capped_books.calls), capped_books.reservations) == (6 - len(refused), 0)
    assert SECRET not in caplog.text
    assert files_containing(tmp_path, SECRET) == []


@pytest.mark.parametrize("headers", [{}, {"x_foveate_session": "nightly"}], ids=["found", "named"])
def test_a_request_does_not_wait_until_earlier_turns_are_stored(
    upstream: ScriptedUpstream, tmp_path: Path, headers: dict[str, str]
) -> None:
    """Regression: with four workers on one file, the second request waited seconds for the writer."""
    file = tmp_path / "gateway.sqlite"

    def turn(gateway: RunningGateway, number: int) -> int:
        messages = [
            {"role": ("user", "assistant")[at % 2], "content": f"word {at}"} for at in range(2 * number + 1)
        ]
        body = json.dumps({"model": "claude-opus-4-5", "max_tokens": 100, "messages": messages}).encode()
        return send_raw(
            gateway.url, build_post("/v1/messages", body, **ANTHROPIC, x_api_key=SECRET, **headers)
        ).status

    with running_gateway(upstream.url, tmp_path) as gateway, ThreadPoolExecutor(1) as client:
        with locked(file):
            went = [client.submit(turn, gateway, number) for number in range(5)]
            assert wait(went, timeout=4.5).not_done == set()  # sooner than a writer gives up
        assert [one.result() for one in went] == [200] * 5
        assert turn(gateway, 5) == 200
        books = wait_until_settled(file, 6)
        found = wait_until(lambda: turns_by_session(file), lambda found: sum(found.values()) == 11, 30)

    assert len(books.calls) == 6
    assert list(found.values()) == [11]  # one session, and no turn is lost


def turns_by_session(file: Path) -> dict[str, int]:
    with closing(sqlite3.connect(file)) as connection:
        return dict(connection.execute("SELECT session_id, count(*) FROM turns_v1 GROUP BY session_id"))


def booked(url: str) -> Counter[str]:
    with psycopg.connect(url) as connection:
        return Counter(row[0] for row in connection.execute("SELECT call_id FROM ledger_v1"))


def reserved(url: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT count(*) FROM reservations_v1").fetchone()
    assert found is not None
    return int(found[0])


@pytest.mark.parametrize("instead", ["nothing", "another"])
def test_caps_reject_calls_after_the_store_file_is_deleted_or_replaced(
    upstream: ScriptedUpstream, tmp_path: Path, instead: str
) -> None:
    file, aside = tmp_path / "gateway.sqlite", tmp_path / "aside.sqlite"
    with running_gateway(upstream.url, tmp_path, caps=CAPS) as gateway:
        assert send_message(gateway, "before").status == 200
        file.rename(aside)
        if instead == "another":
            shutil.copy(aside, file)
        statuses = {send_message(gateway, f"during {number}").status for number in range(5)}
        aside.rename(file)
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
        went = [
            clients.submit(send_message, gateway, f"during {number}")
            for number in range(4)
            for gateway in (free, capped)
        ]
        time.sleep(1)
        own_server.start()
        answers = [one.result() for one in went]
        after = [send_message(gateway, "after").status for gateway in (free, capped)]
        ids = wait_until(lambda: booked(url), lambda found: len(found) >= 6, 30)
        dump = own_server.dump(url) + own_server.dump(capped_url)

    assert after == [200, 200]
    assert [one.status for one in answers[::2]] == [200] * 4
    assert (len(ids), set(ids.values())) == (6, {1})
    let_through = sum(one.status == 200 for one in answers[1::2])
    assert {one.status for one in answers[1::2]} <= {200, 402}
    assert (len(booked(capped_url)), reserved(capped_url)) == (2 + let_through, 0)
    assert SECRET not in caplog.text
    assert SECRET not in dump

"""A gateway that is killed while calls are under way: the next one records them as possibly charged, once."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
from contextlib import ExitStack, closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from foveate.cost.ledger import AccountBalance, Charge
from foveate.store import open_store
from tests.e2e.test_serve_spool import recorded_charges, until_it_ends_with
from tests.support.clients.raw_http import claude_request, connect
from tests.support.oracles.system_state import wait_until
from tests.support.processes.forked_commands import COMMAND
from tests.support.servers.gateway_process import GatewayProcess, gateway_process
from tests.support.servers.sandbox import KEY
from tests.support.servers.scripted_upstream import (
    STREAM_HEAD,
    UpstreamConnection,
    claude_events,
    claude_response,
    http_chunk,
    http_response,
    running_upstream,
)

pytestmark = pytest.mark.process

# The upstream closes each connection after its answer: none is used twice.
UPSTREAMS = """
upstreams:
  anthropic: {{base_url: '{url}', reuse: false}}
  openai: {{base_url: '{url}/v1', reuse: false}}
"""
EVENTS = claude_events("Hello")
STREAMS = 3
CAP = "cost: {caps: [{scope: total, dollars: 5}]}\n"


def stalling(talk: UpstreamConnection) -> None:
    """Streams begin and never end, other requests are answered whole, and one is refused."""
    request = talk.read_request()
    if b'"stream": true' in request:
        talk.send(STREAM_HEAD, *map(http_chunk, EVENTS[:3]))
        talk.send(b"", b"", pause_seconds=120)
    elif b"refuse me" in request:
        talk.send(
            http_response(b'{"type": "error", "error": {"type": "invalid_request_error"}}', "400 Bad Request")
        )
    else:
        talk.send(http_response(claude_response("Hello")))


def in_flight(served: GatewayProcess, stack: ExitStack, folder: Path) -> None:
    """Have some streams under way, one call answered and one refused."""
    for _ in range(STREAMS):
        connection = stack.enter_context(connect(served.url))
        connection.sendall(claude_request(KEY, stream=True))
        until_it_ends_with(connection, EVENTS[2][-20:])
    for text, end in (("Hello", claude_response("Hello")[-20:]), ("refuse me", b"invalid_request_error")):
        connection = stack.enter_context(connect(served.url))
        connection.sendall(claude_request(KEY, text=text))
        until_it_ends_with(connection, end)
    # What was reserved for the calls that are over is released a moment after their answers.
    wait_until(lambda: reservations(folder), lambda found: found in (0, STREAMS))


def reservations(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "foveate.sqlite")) as connection:
        found: int = connection.execute("SELECT count(*) FROM reservations_v1").fetchone()[0]
    return found


def total_standing(folder: Path) -> AccountBalance:
    async def read() -> AccountBalance:
        async with await open_store(f"sqlite:///{folder}/foveate.sqlite") as store:
            return (await store.ledger.get_balances(["total"], now=0.0))["total"]

    return asyncio.run(read())


def cost(folder: Path, *options: str) -> dict[str, Any]:
    url = f"sqlite:///{folder}/foveate.sqlite"
    done = subprocess.run(
        [*COMMAND, "cost", *options, "--store", url, "--json"], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check_recorded(folder: Path, found: list[Charge]) -> None:
    possible = [one for one in found if one.is_possibly_charged]
    (finished,) = [one for one in found if not one.is_possibly_charged]
    assert len(possible) == STREAMS
    assert finished.dollars is not None
    for one in possible:
        assert (one.dollars, one.is_partial, one.call.model) == (None, True, "claude-opus-4-5")
        assert one.charge == one.estimated_dollars
        assert one.charge is not None
        assert one.charge > 0
    charged = sum((one.charge or Decimal(0) for one in possible), finished.dollars)
    assert total_standing(folder) == AccountBalance(spent=charged, reserved=Decimal(0))
    total = cost(folder)["total"]
    assert (total["calls"], total["unknown_calls"]) == (STREAMS + 1, STREAMS)
    assert total["possibly_charged_calls"] == STREAMS
    assert Decimal(total["possibly_charged_dollars"]) == charged - finished.dollars


@pytest.mark.parametrize("caps", ["", CAP], ids=["without caps", "with a cap"])
def test_streams_in_flight_at_kill_9_are_recorded_once_as_possibly_charged(tmp_path: Path, caps: str) -> None:
    """Attack: they left no row in the ledger, and under a cap their reservations ran out."""
    config = tmp_path / "foveate.yaml"
    with running_upstream(stalling) as upstream:
        config.write_text(UPSTREAMS.format(url=upstream.url) + caps)
        with gateway_process(tmp_path, "--config", str(config), forked=False) as served, ExitStack() as stack:
            in_flight(served, stack, tmp_path)
            served.process.kill()
            served.process.wait()
        for _ in range(2):  # the second start finds nothing more to record
            with gateway_process(tmp_path, "--config", str(config), forked=False) as served:
                found = wait_until(lambda: recorded_charges(tmp_path), lambda found: len(found) > STREAMS)
                served.process.send_signal(signal.SIGTERM)
                assert served.wait_for_exit()[0] == 0
            check_recorded(tmp_path, found)
            assert not list(tmp_path.glob("spool/*/*"))


def test_streams_of_a_killed_worker_are_recorded_by_another(tmp_path: Path) -> None:
    config = tmp_path / "foveate.yaml"
    with running_upstream(stalling) as upstream:
        config.write_text(UPSTREAMS.format(url=upstream.url) + CAP + "server: {workers: 2}\n")
        with gateway_process(tmp_path, "--config", str(config), forked=False) as served, ExitStack() as stack:
            in_flight(served, stack, tmp_path)
            for pid in served.workers():
                os.kill(pid, signal.SIGKILL)
            found = wait_until(
                lambda: recorded_charges(tmp_path), lambda found: len(found) > STREAMS, within_seconds=60
            )
            check_recorded(tmp_path, found)

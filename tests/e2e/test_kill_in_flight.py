"""A gateway that is killed while calls are under way: the next one records them as possibly charged, once."""

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
from tests.support.clients.raw_http import claude_request, connect, read_until
from tests.support.oracles.system_state import wait_until
from tests.support.processes.forked_commands import COMMAND
from tests.support.servers.gateway_process import (
    TOTAL_CAP,
    UPSTREAMS_WITHOUT_REUSE,
    GatewayProcess,
    gateway_process,
)
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
from tests.support.stores.gateway_ledger import read_charges, read_total_balance

pytestmark = pytest.mark.process

EVENTS = claude_events("Hello")
STREAMS = 3


def respond_or_stall(connection: UpstreamConnection) -> None:
    """Never end a stream, reject one request, and answer all others completely."""
    request = connection.read_request()
    if b'"stream": true' in request:
        connection.send(STREAM_HEAD, *map(http_chunk, EVENTS[:3]))
        connection.send(b"", b"", pause_seconds=120)
    elif b"refuse me" in request:
        connection.send(
            http_response(b'{"type": "error", "error": {"type": "invalid_request_error"}}', "400 Bad Request")
        )
    else:
        connection.send(http_response(claude_response("Hello")))


def open_streams(gateway: GatewayProcess, stack: ExitStack, folder: Path) -> None:
    """Open some streams, after which one call is answered and one rejected."""
    for _ in range(STREAMS):
        connection = stack.enter_context(connect(gateway.url))
        connection.sendall(claude_request(KEY, stream=True))
        read_until(connection, EVENTS[2][-20:])
    for text, end in (("Hello", claude_response("Hello")[-20:]), ("refuse me", b"invalid_request_error")):
        connection = stack.enter_context(connect(gateway.url))
        connection.sendall(claude_request(KEY, text=text))
        read_until(connection, end)
    # Reservations of finished calls are released shortly after their responses.
    wait_until(lambda: count_reservations(folder), lambda count: count in (0, STREAMS))


def count_reservations(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "foveate.sqlite")) as connection:
        count: int = connection.execute("SELECT count(*) FROM reservations_v1").fetchone()[0]
    return count


def run_cost(folder: Path, *options: str) -> dict[str, Any]:
    url = f"sqlite:///{folder}/foveate.sqlite"
    process = subprocess.run(
        [*COMMAND, "cost", *options, "--store", url, "--json"], capture_output=True, text=True, check=True
    )
    report: dict[str, Any] = json.loads(process.stdout)
    return report


def check_recorded(folder: Path, charges: list[Charge]) -> None:
    possible_charges = [charge for charge in charges if charge.is_possibly_charged]
    (complete,) = [charge for charge in charges if not charge.is_possibly_charged]
    assert len(possible_charges) == STREAMS
    assert complete.dollars is not None
    for charge in possible_charges:
        assert (charge.dollars, charge.is_partial, charge.call.model) == (None, True, "claude-opus-4-5")
        assert charge.charge == charge.estimated_dollars
        assert charge.charge is not None
        assert charge.charge > 0
    dollars = sum((charge.charge or Decimal(0) for charge in possible_charges), complete.dollars)
    assert read_total_balance(folder) == AccountBalance(spent=dollars, reserved=Decimal(0))
    total = run_cost(folder)["total"]
    assert (total["calls"], total["unknown_calls"]) == (STREAMS + 1, STREAMS)
    assert total["possibly_charged_calls"] == STREAMS
    assert Decimal(total["possibly_charged_dollars"]) == dollars - complete.dollars


@pytest.mark.parametrize("caps", ["", TOTAL_CAP], ids=["without caps", "with a cap"])
def test_streams_in_flight_at_kill_9_are_recorded_once_as_possibly_charged(tmp_path: Path, caps: str) -> None:
    """Attack: they had no row in the ledger, and under a cap their reservations expired."""
    config = tmp_path / "foveate.yaml"
    with running_upstream(respond_or_stall) as upstream:
        config.write_text(UPSTREAMS_WITHOUT_REUSE.format(url=upstream.url) + caps)
        with gateway_process(tmp_path, "--config", str(config)) as gateway, ExitStack() as stack:
            open_streams(gateway, stack, tmp_path)
            gateway.kill()
        for _ in range(2):  # the second start finds nothing more to record
            with gateway_process(tmp_path, "--config", str(config)) as gateway:
                charges = wait_until(lambda: read_charges(tmp_path), lambda charges: len(charges) > STREAMS)
                gateway.process.send_signal(signal.SIGTERM)
                assert gateway.wait_for_exit()[0] == 0
            check_recorded(tmp_path, charges)
            assert not list(tmp_path.glob("spool/*/*"))


def test_streams_of_a_killed_worker_are_recorded_by_another(tmp_path: Path) -> None:
    config = tmp_path / "foveate.yaml"
    with running_upstream(respond_or_stall) as upstream:
        config.write_text(
            UPSTREAMS_WITHOUT_REUSE.format(url=upstream.url) + TOTAL_CAP + "server: {workers: 2}\n"
        )
        with gateway_process(tmp_path, "--config", str(config)) as gateway, ExitStack() as stack:
            open_streams(gateway, stack, tmp_path)
            for pid in gateway.workers():
                os.kill(pid, signal.SIGKILL)
            charges = wait_until(
                lambda: read_charges(tmp_path), lambda charges: len(charges) > STREAMS, within_seconds=60
            )
            check_recorded(tmp_path, charges)

"""A gateway that is killed at the worst moment: the next one records its charges."""

import time
from pathlib import Path
from threading import Thread

import anthropic
import pytest

from foveate.sandbox.script import ScriptStep
from tests.support.clients.raw_http import claude_request, connect, read_until
from tests.support.oracles.system_state import wait_until
from tests.support.processes.sqlite_lock import locked_by_another_process
from tests.support.servers.gateway_process import gateway_process, write_config
from tests.support.servers.sandbox import KEY, running_sandbox, step_headers
from tests.support.servers.scripted_upstream import (
    LAST_CHUNK,
    STREAM_HEAD,
    UpstreamConnection,
    claude_events,
    claude_response,
    http_chunk,
    http_response,
    running_upstream,
)
from tests.support.stores.gateway_ledger import read_charges

pytestmark = pytest.mark.process


def send_message(url: str, *, seconds: float = 0.0) -> None:
    """Send a request that the provider answers after this time."""
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=60) as client:
        client.messages.create(
            model="claude-opus-4-5",
            max_tokens=50,
            messages=[{"role": "user", "content": "Hello"}],
            extra_headers=step_headers(ScriptStep(delay_seconds=seconds)),
        )


def test_a_charge_survives_kill_9_of_its_gateway_while_the_store_is_locked(tmp_path: Path) -> None:
    config, outbox_folder = tmp_path / "foveate.yaml", tmp_path / "spool"
    with running_sandbox() as sandbox:
        write_config(config, sandbox.url)
        with gateway_process(tmp_path, "--config", str(config)) as gateway:
            send_message(gateway.url)
            # Locked only while the provider answers: earlier, the gateway would wait for its store.
            thread = Thread(target=send_message, args=(gateway.url,), kwargs={"seconds": 2.0})
            thread.start()
            while len(sandbox.requests) < 2:
                time.sleep(0.01)
            with locked_by_another_process(tmp_path / "foveate.sqlite"):
                thread.join(60)
                deadline = time.monotonic() + 60
                while not any(path.stat().st_size for path in outbox_folder.glob("*/*.bills")):
                    assert time.monotonic() < deadline, "the charge is not on the disk"
                    time.sleep(0.05)
                gateway.kill()
        assert len(read_charges(tmp_path)) == 1
        with gateway_process(tmp_path, "--config", str(config)):
            assert len(read_charges(tmp_path)) == 2
            assert not any(path.stat().st_size for path in outbox_folder.glob("*/*"))


EVENTS = claude_events("Hello")


def respond_and_close_late(connection: UpstreamConnection) -> None:
    """Send a plain response at once, and end a stream only long after its last event."""
    if b'"stream": true' not in connection.read_request():
        connection.send(http_response(claude_response("Hello")))
        return
    connection.send(STREAM_HEAD, *map(http_chunk, EVENTS))
    connection.send(b"", LAST_CHUNK, pause_seconds=30)


def test_charges_survive_kill_9_of_a_gateway_right_after_its_responses(tmp_path: Path) -> None:
    """Regression: charges were written to the outbox only after the clients had the last byte."""
    config = tmp_path / "foveate.yaml"
    with running_upstream(respond_and_close_late) as upstream:
        write_config(config, upstream.url)
        with (
            gateway_process(tmp_path, "--config", str(config)) as gateway,
            connect(gateway.url) as stream_connection,
            connect(gateway.url) as plain_connection,
        ):
            stream_connection.sendall(claude_request(KEY, stream=True))
            read_until(stream_connection, b"".join(EVENTS)[-20:])
            plain_connection.sendall(claude_request(KEY))
            read_until(plain_connection, claude_response("Hello")[-20:])
            gateway.kill()
        with gateway_process(tmp_path, "--config", str(config)):
            charges = wait_until(lambda: read_charges(tmp_path), lambda charges: len(charges) >= 2)
    assert len(charges) == 2
    assert all(charge.estimated_dollars for charge in charges)

"""A gateway that is killed at the worst moment: the next one records its charges."""

import asyncio
import socket
import time
from pathlib import Path
from threading import Thread

import anthropic
import pytest

from foveate.cost.ledger import Charge
from foveate.sandbox.script import ScriptStep
from foveate.store import open_store
from tests.e2e.test_store_faults_sqlite import locked_by_another_process
from tests.support.clients.raw_http import claude_request, connect
from tests.support.oracles.system_state import wait_until
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

pytestmark = pytest.mark.process


def ask(url: str, *, seconds: float = 0.0) -> None:
    """Send a request that the provider answers after this time."""
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=60) as client:
        client.messages.create(
            model="claude-opus-4-5",
            max_tokens=50,
            messages=[{"role": "user", "content": "Hello"}],
            extra_headers=step_headers(ScriptStep(delay_seconds=seconds)),
        )


def test_a_charge_survives_kill_9_of_its_gateway_while_the_store_is_locked(tmp_path: Path) -> None:
    config, spool = tmp_path / "foveate.yaml", tmp_path / "spool"
    with running_sandbox() as sandbox:
        write_config(config, sandbox.url)
        with gateway_process(tmp_path, "--config", str(config), forked=False) as served:
            ask(served.url)
            # Locked while the provider answers: until then a gateway waits for its store at each step.
            asking = Thread(target=ask, args=(served.url,), kwargs={"seconds": 2.0})
            asking.start()
            while len(sandbox.requests) < 2:
                time.sleep(0.01)
            with locked_by_another_process(tmp_path / "foveate.sqlite"):
                asking.join(60)
                deadline = time.monotonic() + 60
                while not any(path.stat().st_size for path in spool.glob("*/*.bills")):
                    assert time.monotonic() < deadline, "the bill is not on the disk"
                    time.sleep(0.05)
                served.process.kill()
                served.process.wait()
        assert len(recorded_charges(tmp_path)) == 1
        with gateway_process(tmp_path, "--config", str(config), forked=False):
            assert len(recorded_charges(tmp_path)) == 2
            assert not any(path.stat().st_size for path in spool.glob("*/*"))


STREAM = claude_events("Hello")


def slow_close(talk: UpstreamConnection) -> None:
    """A provider that sends a complete response at once, and closes a stream only long after its last event."""
    if b'"stream": true' not in talk.read_request():
        talk.send(http_response(claude_response("Hello")))
        return
    talk.send(STREAM_HEAD, *map(http_chunk, STREAM))
    talk.send(b"", LAST_CHUNK, pause_seconds=30)


def test_charges_survive_kill_9_of_a_gateway_right_after_its_responses(tmp_path: Path) -> None:
    """Regression: charges were spooled only after the clients had the last byte."""
    config = tmp_path / "foveate.yaml"
    with running_upstream(slow_close) as upstream:
        write_config(config, upstream.url)
        with (
            gateway_process(tmp_path, "--config", str(config), forked=False) as served,
            connect(served.url) as streaming,
            connect(served.url) as asking,
        ):
            streaming.sendall(claude_request(KEY, stream=True))
            until_it_ends_with(streaming, b"".join(STREAM)[-20:])
            asking.sendall(claude_request(KEY))
            until_it_ends_with(asking, claude_response("Hello")[-20:])
            served.process.kill()
            served.process.wait()
        with gateway_process(tmp_path, "--config", str(config), forked=False):
            found = wait_until(lambda: recorded_charges(tmp_path), lambda found: len(found) >= 2)
    assert len(found) == 2
    assert all(one.estimated_dollars for one in found)


def until_it_ends_with(connection: socket.socket, end: bytes) -> None:
    """Read until the response ends with these bytes."""
    heard = b""
    while end not in heard:
        piece = connection.recv(65_536)
        assert piece, heard
        heard += piece


def recorded_charges(folder: Path) -> list[Charge]:
    async def read() -> list[Charge]:
        async with await open_store(f"sqlite:///{folder}/foveate.sqlite") as store:
            return [one async for one in store.ledger.list_charges()]

    return asyncio.run(read())

"""Shutdown of a gateway: responses in flight are finished, and interrupted ones are charged."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import anthropic
import pytest

from foveate.sandbox.script import ScriptStep
from foveate.store import open_store
from tests.support.clients.raw_http import connect
from tests.support.oracles.system_state import wait_until
from tests.support.servers.gateway_process import gateway_process, wait_until_gone, write_config
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox, step_headers

pytestmark = pytest.mark.process

SLOW_STEP = ScriptStep(text="word " * 12, pace_seconds=0.1)
ENDLESS_STEP = ScriptStep(text="word " * 400, pace_seconds=0.1)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    with running_sandbox() as running:
        yield running


class StreamingClient:
    """A client in the middle of a stream."""

    def __init__(self, url: str, step: ScriptStep) -> None:
        self.text = ""
        self.error: Exception | None = None
        self._has_started = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url, step), daemon=True)
        self._thread.start()
        assert self._has_started.wait(30)

    def _read(self, url: str, step: ScriptStep) -> None:
        try:
            with (
                anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client,
                client.messages.stream(
                    model="claude-opus-4-5",
                    max_tokens=1000,
                    messages=[{"role": "user", "content": "Hello"}],
                    extra_headers=step_headers(step),
                ) as stream,
            ):
                for text in stream.text_stream:
                    self.text += text
                    self._has_started.set()
        except Exception as exception:  # noqa: BLE001 - the test checks it
            self.error = exception

    def finish(self) -> "StreamingClient":
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self


def rejects_connections(url: str) -> bool:
    try:
        connect(url).close()
    except ConnectionRefusedError:
        return True
    return False


def count_recorded_calls(folder: Path) -> int:
    async def read() -> int:
        async with await open_store(f"sqlite:///{folder}/foveate.sqlite") as store:
            return sum(total.calls for total in await store.ledger.sum_charges(()))

    return asyncio.run(read())


@pytest.mark.parametrize(
    ("workers", "signal_number", "code"), [("1", signal.SIGINT, 130), ("2", signal.SIGTERM, 0)]
)
def test_a_stream_in_flight_is_finished_and_charged(
    workers: str, signal_number: signal.Signals, code: int, sandbox: RunningSandbox, tmp_path: Path
) -> None:
    write_config(tmp_path / "foveate.yaml", sandbox.url)
    with gateway_process(tmp_path, "--workers", workers) as gateway:
        client = StreamingClient(gateway.url, SLOW_STEP)
        pids = gateway.workers()
        gateway.process.send_signal(signal_number)

        client.finish()
        ended = gateway.wait_for_exit()

    assert ended[0] == code
    assert "Traceback" not in ended[1]
    assert client.error is None
    assert client.text.split() == ["word"] * 12
    wait_until_gone(pids, within_seconds=20)
    assert count_recorded_calls(tmp_path) == 1


def test_a_second_signal_exits_at_once_and_interrupted_calls_are_charged(
    sandbox: RunningSandbox, tmp_path: Path
) -> None:
    write_config(tmp_path / "foveate.yaml", sandbox.url)
    with gateway_process(tmp_path, "--workers", "2") as gateway:
        client = StreamingClient(gateway.url, ENDLESS_STEP)
        gateway.process.send_signal(signal.SIGINT)
        assert wait_until(
            lambda: rejects_connections(gateway.url), bool, 30
        )  # all processes have received the first signal
        started = time.monotonic()
        gateway.process.send_signal(signal.SIGINT)
        code, errors = gateway.wait_for_exit()
        seconds = time.monotonic() - started

    assert code == 130
    assert seconds < 20  # far less than the grace period and the response would take
    assert "Traceback" not in errors
    assert client.finish().error is not None
    assert count_recorded_calls(tmp_path) == 1


def test_requests_in_flight_are_interrupted_after_the_grace_period(
    sandbox: RunningSandbox, tmp_path: Path
) -> None:
    write_config(tmp_path / "foveate.yaml", sandbox.url, "server: {grace_seconds: 1}\n")
    with gateway_process(tmp_path) as gateway:
        client = StreamingClient(gateway.url, ENDLESS_STEP)
        gateway.process.terminate()
        code, errors = gateway.wait_for_exit(within_seconds=15)

    assert code == 0
    assert "Traceback" not in errors
    assert client.finish().error is not None
    assert count_recorded_calls(tmp_path) == 1


def test_shutdown_does_not_wait_for_idle_connections(sandbox: RunningSandbox, tmp_path: Path) -> None:
    write_config(tmp_path / "foveate.yaml", sandbox.url)
    with (
        gateway_process(tmp_path) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY) as client,
    ):
        client.messages.count_tokens(model="claude-opus-4-5", messages=[{"role": "user", "content": "Hello"}])
        started = time.monotonic()
        gateway.process.terminate()
        code, _ = gateway.wait_for_exit()

    assert code == 0
    assert time.monotonic() - started < 20  # far less than the grace period

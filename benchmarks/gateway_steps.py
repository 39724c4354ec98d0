"""A gateway that reports the duration of each of its steps, as a separate process.

It is built as `foveate serve` does, with its own stopwatch. It prints its port. For each line of its standard
input it prints the durations of requests since the last line, by step: pairs of wall and CPU milliseconds. CPU
is that of the event loop since the previous step; for the first step, it is everything since the end of the
previous request, and for `settle`, the last, everything since the last step.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from foveate.engine.exchange import Exchange
from foveate.engine.observer import NullObserver
from foveate.gateway.build import open_gateway
from foveate.gateway.server.serve import load_live_config
from foveate.http.listening_sockets import open_listening_socket

READ_AND_WRITE, PROVIDER, SETTLE = "read and write", "provider and answer", "settle"


class Stopwatch(NullObserver):
    """Durations of each step of every request."""

    def __init__(self) -> None:
        self._durations: dict[str, list[tuple[float, float | None]]] = {}
        self._steps_seconds = 0.0
        self._cpu_seconds = 0.0

    def on_step(self, step: str, seconds: float) -> None:
        self._record(step, seconds, self._cpu())
        self._steps_seconds += seconds

    def on_finished(self, exchange: Exchange) -> None:
        """Record the steps since the last request. All belong to this one, as requests are sequential."""
        self._record(READ_AND_WRITE, exchange.sent_at - exchange.received_at - self._steps_seconds)
        self._record(PROVIDER, exchange.ended_at - exchange.sent_at)
        self._record(SETTLE, time.time() - exchange.ended_at, self._cpu())
        self._steps_seconds = 0.0

    def take_durations(self) -> dict[str, list[tuple[float, float | None]]]:
        """Return all durations and forget them."""
        durations, self._durations = self._durations, {}
        return durations

    def _cpu(self) -> float:
        before, self._cpu_seconds = self._cpu_seconds, time.thread_time()
        return self._cpu_seconds - before

    def _record(self, part: str, seconds: float, cpu_seconds: float | None = None) -> None:
        pair = (seconds * 1e3, None if cpu_seconds is None else cpu_seconds * 1e3)
        self._durations.setdefault(part, []).append(pair)


async def _serve(config: Path) -> None:
    import uvicorn

    stopwatch = Stopwatch()
    live_config = load_live_config(config, os.environ)
    with open_listening_socket("127.0.0.1", 0) as listener:
        async with open_gateway(
            lambda: live_config.current().value, environment=os.environ, observer=stopwatch
        ) as gateway:
            server = uvicorn.Server(
                uvicorn.Config(
                    gateway,
                    http="httptools",
                    lifespan="off",
                    ws="none",
                    log_config=None,
                    access_log=False,
                    server_header=False,
                    date_header=False,
                )
            )
            task = asyncio.ensure_future(server.serve(sockets=[listener]))
            print(listener.getsockname()[1], flush=True)
            while await asyncio.to_thread(sys.stdin.readline):
                print(json.dumps(stopwatch.take_durations()), flush=True)
            server.should_exit = True
            await task


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(Path(sys.argv[1])))

"""A gateway that tells how long each of its steps takes, as a process of its own, for the gateway's benchmark.

It is put together as `foveate serve` does, with a watch of its own. It prints its port; for each line of its
standard input it prints what requests took since the last one, by part of the way: pairs of milliseconds, by
the clock and of CPU. The latter is that of the event loop since the part before; for the first step that is all
since the end of the request before it, and for `settle`, the last, all since the last step.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from foveate.engine.exchange import Exchange
from foveate.engine.watch import Unwatched
from foveate.gateway.assembly import assembled
from foveate.gateway.serving import live_choices
from foveate.upstream.sockets import listening

READ_AND_WRITE, PROVIDER, SETTLE = "read and write", "provider and answer", "settle"


class Stopwatch(Unwatched):
    """What each part of the way took, of every request."""

    def __init__(self) -> None:
        self._took: dict[str, list[tuple[float, float | None]]] = {}
        self._steps_seconds = 0.0
        self._cpu_seconds = 0.0

    def took(self, step: str, seconds: float) -> None:
        """A step is done."""
        self._note(step, seconds, self._cpu())
        self._steps_seconds += seconds

    def ended(self, exchange: Exchange) -> None:
        """A request is done. One comes after the other, so all steps since the last one are its own."""
        self._note(READ_AND_WRITE, exchange.sent_at - exchange.came_at - self._steps_seconds)
        self._note(PROVIDER, exchange.ended_at - exchange.sent_at)
        self._note(SETTLE, time.time() - exchange.ended_at, self._cpu())
        self._steps_seconds = 0.0

    def told(self) -> dict[str, list[tuple[float, float | None]]]:
        """All of it, and none of it any more."""
        took, self._took = self._took, {}
        return took

    def _cpu(self) -> float:
        before, self._cpu_seconds = self._cpu_seconds, time.thread_time()
        return self._cpu_seconds - before

    def _note(self, part: str, seconds: float, cpu_seconds: float | None = None) -> None:
        pair = (seconds * 1e3, None if cpu_seconds is None else cpu_seconds * 1e3)
        self._took.setdefault(part, []).append(pair)


async def _serve(config: Path) -> None:
    import uvicorn

    watch = Stopwatch()
    choices = live_choices(config, os.environ)
    with listening("127.0.0.1", 0) as where:
        async with assembled(lambda: choices.now().made, environment=os.environ, watch=watch) as gateway:
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
            serving = asyncio.ensure_future(server.serve(sockets=[where]))
            print(where.getsockname()[1], flush=True)
            while await asyncio.to_thread(sys.stdin.readline):
                print(json.dumps(watch.told()), flush=True)
            server.should_exit = True
            await serving


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(Path(sys.argv[1])))

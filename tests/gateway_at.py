"""A gateway in a process of its own for which it is another time, always the same when it starts.

Run as a module it reads the time and the path of a configuration from its arguments, serves until its standard
input ends, and prints where.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from foveate.gateway import logs
from foveate.gateway.assembly import assembled
from foveate.gateway.observing import Observing
from foveate.gateway.serving import live_choices
from foveate.gateway.warming import warm_up
from foveate.sandbox.server import address, listening


@contextmanager
def gateway_at(now: float, config: Path) -> Iterator[str]:
    """Where such a gateway is, until the end of the block; its store is beside its configuration."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.gateway_at", str(now), config.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=config.parent,
        env={**os.environ, "FOVEATE_HOME": str(config.parent), "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url, "it has not started"
        yield url
    finally:
        process.stdin.close()
        process.wait(20)
        process.stdout.close()


async def _serve(now: float, config: Path) -> None:
    began = time.time()

    def clock() -> float:
        return now + time.time() - began

    live = live_choices(config, os.environ, clock=clock)
    logs.start(as_json=False, level="error")
    observing = Observing(live, version="0.1.0", log=logs.current(), clock=clock)
    with listening("127.0.0.1", 0) as where:
        async with assembled(
            observing.choices, environment=os.environ, clock=clock, observing=observing
        ) as gateway:
            await asyncio.to_thread(warm_up, live.now().made.cost.prices)
            server = uvicorn.Server(
                uvicorn.Config(
                    gateway,
                    http="foveate.gateway.http:PlainHttp",
                    lifespan="off",
                    log_config=None,
                    access_log=False,
                    ws="none",
                )
            )
            observing.ends_when(lambda: server.should_exit)

            async def until_input_ends() -> None:
                await asyncio.to_thread(sys.stdin.read)
                server.should_exit = True

            ending = asyncio.create_task(until_input_ends())
            sys.stdout.write(f"{address(where)}\n")
            sys.stdout.flush()
            await server.serve(sockets=[where])
            await ending


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]), Path(sys.argv[2])))

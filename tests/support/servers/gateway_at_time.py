"""A gateway in a process of its own whose clock starts at a given time.

As a module, it takes the time and the path of a configuration as arguments, prints its URL, and serves until
its standard input ends.
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

from foveate.gateway.build import open_gateway
from foveate.gateway.observability import access_log
from foveate.gateway.observability.instrumentation import Instrumentation
from foveate.gateway.server.serve import load_live_config, warm_up
from foveate.sandbox.server import open_listening_socket, socket_url


@contextmanager
def gateway_at_time(now: float, config: Path) -> Iterator[str]:
    """Run such a gateway until the end of the block; yields its URL. Its store is next to its configuration."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.servers.gateway_at_time", str(now), config.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=config.parent,
        env={**os.environ, "FOVEATE_HOME": str(config.parent), "PYTHONPATH": str(Path(__file__).parents[3])},
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
    started = time.time()

    def clock() -> float:
        return now + time.time() - started

    live = load_live_config(config, os.environ, clock=clock)
    access_log.start_writer(as_json=False, level="error")
    instrumentation = Instrumentation(live, version="0.1.0", log=access_log.current_writer(), clock=clock)
    with open_listening_socket("127.0.0.1", 0) as listener:
        async with open_gateway(
            instrumentation.current_config, environment=os.environ, clock=clock, instrumentation=instrumentation
        ) as gateway:
            await asyncio.to_thread(warm_up, live.current().value.cost.prices)
            server = uvicorn.Server(
                uvicorn.Config(
                    gateway,
                    http="foveate.gateway.server.protocol:HttpProtocol",
                    lifespan="off",
                    log_config=None,
                    access_log=False,
                    ws="none",
                )
            )
            instrumentation.set_shutdown_check(lambda: server.should_exit)

            async def until_input_ends() -> None:
                await asyncio.to_thread(sys.stdin.read)
                server.should_exit = True

            ending = asyncio.create_task(until_input_ends())
            sys.stdout.write(f"{socket_url(listener)}\n")
            sys.stdout.flush()
            await server.serve(sockets=[listener])
            await ending


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]), Path(sys.argv[2])))

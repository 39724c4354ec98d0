"""A sandbox in this process, on a loopback port, whose clock a test can move and whose requests it can see."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread

import msgspec

from foveate.cache.requests import BlockTokens, block_tokens_for
from foveate.sandbox.asks import Ask
from foveate.sandbox.doors import Provider
from foveate.sandbox.scripts import HEADER, Script, Step
from foveate.sandbox.server import App, address, listening, server
from foveate.sandbox.stand_in import Sandbox

KEY = "sk-of-a-test"


def doing(step: Step) -> dict[str, str]:
    """Headers that have one request answered by a step of its own."""
    return {HEADER: msgspec.json.encode(step).decode()}


@dataclass
class Clock:
    """A clock that only a test moves."""

    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class RunningSandbox:
    """Where a sandbox is, its clock, what it heard, and which requests' clients went away."""

    url: str
    clock: Clock
    heard: list[Ask] = field(default_factory=list)
    lost: list[Ask] = field(default_factory=list)

    @property
    def openai_url(self) -> str:
        """The address as OpenAI's clients want it."""
        return f"{self.url}/v1"

    def lost_one(self, *, within_seconds: float) -> Ask:
        """The first request whose client went away, waited for."""
        deadline = time.monotonic() + within_seconds
        while not self.lost:
            assert time.monotonic() < deadline, "no client has gone"
            time.sleep(0.01)
        return self.lost[0]


@contextmanager
def running_sandbox(
    *steps: Step,
    repeat: bool = False,
    providers: frozenset[Provider] = frozenset(Provider),
    tokens: Callable[[str], BlockTokens] = block_tokens_for,
) -> Iterator[RunningSandbox]:
    """A sandbox that answers by `steps` and counts by `tokens`, until the end of the block."""
    clock = Clock()
    script = Script(steps=steps, repeat=repeat)
    sandbox = Sandbox(clock=clock, seed=b"of a test", script=script, providers=providers, tokens=tokens)
    with listening("127.0.0.1", 0) as where:
        running = RunningSandbox(url=address(where), clock=clock)
        app = App(sandbox, providers=providers, heard=running.heard.append, lost=running.lost.append)
        served = server(app)
        thread = Thread(target=served.run, kwargs={"sockets": [where]}, daemon=True)
        thread.start()
        try:
            while not served.started and thread.is_alive():
                time.sleep(0.005)
            yield running
        finally:
            served.should_exit = True
            thread.join(10)

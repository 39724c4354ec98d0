"""A sandbox in this process, on a loopback port, with a clock that tests set and recorded requests."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import msgspec

from foveate.prompt_cache.prompt.blocks import BlockTokens
from foveate.prompt_cache.prompt.build import block_tokens_for
from foveate.sandbox.http import SandboxProvider, SandboxRequest
from foveate.sandbox.sandbox import Sandbox
from foveate.sandbox.script import STEP_HEADER, Script, ScriptStep
from foveate.sandbox.server import SandboxApp, build_server, open_listening_socket, socket_url

KEY = "sk-of-a-test"


def step_headers(step: ScriptStep) -> dict[str, str]:
    """Return headers that make the sandbox respond to one request with this step."""
    return {STEP_HEADER: msgspec.json.encode(step).decode()}


@dataclass
class ManualClock:
    """A clock that only tests move."""

    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class RunningSandbox:
    """URL of a sandbox, its clock, its requests, and those whose clients went away."""

    url: str
    clock: ManualClock
    requests: list[SandboxRequest] = field(default_factory=list)
    abandoned_requests: list[SandboxRequest] = field(default_factory=list)

    @property
    def openai_url(self) -> str:
        """Base URL for OpenAI clients."""
        return f"{self.url}/v1"

    def wait_for_abandoned_request(self, *, within_seconds: float) -> SandboxRequest:
        """Wait for a request whose client goes away."""
        deadline = time.monotonic() + within_seconds
        while not self.abandoned_requests:
            assert time.monotonic() < deadline, "no client has gone"
            time.sleep(0.01)
        return self.abandoned_requests[0]


@contextmanager
def running_sandbox(
    *steps: ScriptStep,
    repeat: bool = False,
    providers: frozenset[SandboxProvider] = frozenset(SandboxProvider),
    tokens: Callable[[str], BlockTokens] = block_tokens_for,
    certificate: Path | None = None,
    script: Script | None = None,
) -> Iterator[RunningSandbox]:
    """Run a sandbox that responds with `steps` or by `script`, and counts with `tokens`, until the end of the
    block.

    With a PEM file of a key and a `certificate`, it serves HTTPS.
    """
    clock = ManualClock()
    script = script or Script(steps=steps, repeat=repeat)
    sandbox = Sandbox(clock=clock, seed=b"of a test", script=script, providers=providers, tokens=tokens)
    with open_listening_socket("127.0.0.1", 0) as listener:
        running = RunningSandbox(url=socket_url(listener), clock=clock)
        app = SandboxApp(
            sandbox,
            providers=providers,
            on_request=running.requests.append,
            on_disconnect=running.abandoned_requests.append,
        )
        http_server = build_server(app)
        http_server.config.ssl_certfile = certificate
        thread = Thread(target=http_server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            while not http_server.started and thread.is_alive():
                time.sleep(0.005)
            yield running
        finally:
            http_server.should_exit = True
            thread.join(10)

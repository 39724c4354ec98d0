"""A gateway in a process of its own, in front of a sandbox, whose configuration tests rewrite."""

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

from foveate.cost.ledger import Charge
from foveate.store import open_store
from tests.support.servers.gateway_process import gateway_process
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox

CLAUDE, GPT = "claude-sonnet-4-6", "gpt-4.1"
T = TypeVar("T")


def wait_for(read: Callable[[], T | None], *, within_seconds: float = 20) -> T:
    """Call `read` until it returns something."""
    deadline = time.monotonic() + within_seconds
    while not (value := read()):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)
    return value


@dataclass
class LiveGateway:
    """A gateway in front of a sandbox whose configuration each test rewrites."""

    folder: Path
    url: str
    sandbox: RunningSandbox
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def configure(
        self, text: str = "", *, upstreams: str = "", openai: str = "/v1", anthropic: str = ""
    ) -> None:
        """Write the configuration; it applies from the next request on."""
        url = self.sandbox.url
        default_upstreams = (
            f"  anthropic: {{base_url: '{url}'{anthropic}}}\n  openai: {{base_url: '{url}{openai}'}}\n"
        )
        new_file = self.folder / "fresh.yaml"
        new_file.write_text(f"upstreams:\n{default_upstreams}{upstreams}{text}")
        new_file.replace(self.folder / "foveate.yaml")

    def new_words(self) -> str:
        """Return text that no other conversation starts with."""
        return f"Question {next(self.numbers)}: when does bed 7 get water?"

    def post(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        default_headers = {
            "x-api-key": KEY,
            "anthropic-version": "2023-06-01",
            "authorization": f"Bearer {KEY}",
        }
        request_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        all_headers = {name: value for name, value in {**default_headers, **request_headers}.items() if value}
        return httpx.post(f"{self.url}{path}", json=body, headers=all_headers, timeout=60)

    def send_chat(self, body: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
        """Send a chat to GPT, and return what arrives at the provider."""
        response = self.post(
            "/v1/chat/completions", {"model": GPT, "messages": self.messages(), **(body or {})}, **headers
        )
        assert response.status_code == 200, response.text
        return self.last_request()

    def new_agent(self) -> str:
        """Return the name of a new agent."""
        return f"agent-{next(self.numbers)}"

    def charges(self, agent: str, count: int = 1) -> Sequence[Charge]:
        """Wait for a number of charges of an agent."""

        async def read() -> list[Charge]:
            async with await open_store(f"sqlite:///{self.folder}/foveate.sqlite") as store:
                return [charge async for charge in store.ledger.list_charges() if charge.call.agent == agent]

        def read_enough() -> list[Charge] | None:
            charges = asyncio.run(read())
            return charges if len(charges) >= count else None

        return wait_for(read_enough)

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over all series with these labels."""
        total = 0.0
        for line in httpx.get(f"{self.url}/metrics", timeout=60).text.splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(
                f'{key}="{value}"' in series for key, value in labels.items()
            ):
                total += float(value)
        return total

    def send_message(self, body: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
        """Send a message to Claude, and return what arrives at the provider, but not a summary after it."""
        payload = {"model": CLAUDE, "max_tokens": 100, "messages": self.messages(), **(body or {})}
        response = self.post("/v1/messages", payload, **headers)
        assert response.status_code == 200, response.text
        bodies = (json.loads(request.body) for request in reversed(self.sandbox.requests))
        return next(body for body in bodies if body.get("max_tokens") == payload["max_tokens"])

    def messages(self, *more: str) -> list[dict[str, Any]]:
        """Build a conversation of user messages with answers in between."""
        texts = [self.new_words(), *more]
        roles = ("user", "assistant")
        return [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]

    def last_request(self) -> dict[str, Any]:
        """Return the last body that the provider received."""
        body: dict[str, Any] = json.loads(self.sandbox.requests[-1].body)
        return body


@contextmanager
def live_gateway(folder: Path, **environment: str) -> Iterator[LiveGateway]:
    """Run a gateway in front of a sandbox until the end of the block."""
    with running_sandbox() as sandbox:
        LiveGateway(folder, "", sandbox).configure()
        with gateway_process(folder, forked=True, **environment) as gateway:
            yield LiveGateway(folder, gateway.url, sandbox)


def find_breakpoints(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all values of `cache_control` in a body."""
    breakpoints = []
    stack: list[Any] = [body]
    while stack:
        match stack.pop():
            case dict() as value:
                breakpoints += [value["cache_control"]] if value.get("cache_control") else []
                stack += value.values()
            case list() as value:
                stack += value
    return breakpoints

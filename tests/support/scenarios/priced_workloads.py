"""Requests of agents with generated texts, and the input cost that a sandbox reports for them."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx

from tests.support.servers.sandbox import KEY, RunningSandbox

Body = dict[str, Any]
# A request, and the seconds until the next one.
Step = tuple[Body, float]
Workload = Callable[[], Iterator[Step]]

MODEL = "claude-sonnet-4-6"
PRICES = {"input_tokens": 1.0, "cache_read_input_tokens": 0.1, "5m": 1.25, "1h": 2.0}
DOLLARS_PER_TOKEN = 3e-6
EPHEMERAL = {"type": "ephemeral"}
HEADERS = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}


class Texts:
    """Different texts of about the requested number of tokens."""

    def __init__(self) -> None:
        self._random = random.Random(7)

    def __call__(self, tokens: int) -> str:
        return " ".join(self._random.choice(_WORDS) for _ in range(tokens))


_WORDS = [
    f"{a}{b}" for a in ("red", "blue", "green", "long", "short") for b in ("bird", "house", "stone", "rain")
]


def build_body(
    *messages: str, system: str = "", tools: Sequence[str] = (), content: Sequence[str] = ()
) -> Body:
    """Build a request whose messages come from the user and the assistant in turn; the last may have blocks."""
    roles = ("user", "assistant")
    conversation: list[Any] = [
        {"role": roles[index % 2], "content": text} for index, text in enumerate(messages)
    ]
    if content:
        conversation.append({"role": "user", "content": [{"type": "text", "text": text} for text in content]})
    return {
        "model": MODEL,
        "max_tokens": 8,
        "messages": conversation,
        **({"system": [{"type": "text", "text": system}]} if system else {}),
        **(
            {"tools": [tool_definition(f"tool_{index}", text) for index, text in enumerate(tools)]}
            if tools
            else {}
        ),
    }


def tool_definition(name: str, text: str) -> Body:
    return {"name": name, "description": text, "input_schema": {"type": "object", "properties": {}}}


def with_default_breakpoints(request: Body) -> Body:
    """Add a breakpoint to the system prompt and one to the last message."""
    messages, last = request["messages"][:-1], request["messages"][-1]
    content = last["content"]
    blocks: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    blocks[-1] = {**blocks[-1], "cache_control": EPHEMERAL}
    system = [{**block, "cache_control": EPHEMERAL} for block in request.get("system", [])]
    changed = {**request, "messages": [*messages, {**last, "content": blocks}]}
    return {**changed, "system": system} if system else changed


def measure_input_cost(
    url: str,
    sandbox: RunningSandbox,
    workload: Workload,
    change: Callable[[Body], Body] = lambda request: request,
) -> tuple[float, float]:
    """Return the input cost of a workload, in uncached tokens, and that of its five largest prompts."""
    cost, sizes = 0.0, []
    with httpx.Client(base_url=url, headers=HEADERS, timeout=60) as client:

        def send(request: Body) -> dict[str, Any]:
            response = client.post("/v1/messages", json=change(request))
            assert response.status_code == 200, response.text
            usage: dict[str, Any] = response.json()["usage"]
            return usage

        for request, seconds in workload():
            usage = send(request)
            written = usage["cache_creation"]
            tokens = {
                "input_tokens": usage["input_tokens"],
                "cache_read_input_tokens": usage["cache_read_input_tokens"],
                "5m": written["ephemeral_5m_input_tokens"],
                "1h": written["ephemeral_1h_input_tokens"],
            }
            cost += sum(PRICES[name] * count for name, count in tokens.items())
            sizes.append(sum(tokens.values()))
            sandbox.clock.now += seconds
    return cost, sum(sorted(sizes)[-5:])

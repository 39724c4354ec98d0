"""Traffic for the dashboard: agents with tools, compactions, cache misses, caps and notes."""

import asyncio
import json
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import anthropic
import openai

from foveate.sandbox.script import ScriptedCall, ScriptStep
from foveate.session.rollups import SessionTotals, Totals
from foveate.store import Store, open_store
from tests.support.processes.make_once import make_once
from tests.support.scenarios.session_names import named_session_id
from tests.support.servers.gateway_process import gateway_process, write_config
from tests.support.servers.sandbox import KEY, running_sandbox, step_headers

# The first request larger than three quarters of its window; a compaction follows it.
_COMPACTED_AFTER_TURN = 6
CLAUDE, GPT = "claude-opus-4-5", "gpt-4.1"
REVIEWER, SUPPORT, GARDENER, INTERN = "reviewer", "support", "gardener", "intern"
REVIEW = "fix-the-parser"
TURNS = 11
CROWD, CROWD_SESSIONS = "crowd", 55
TOOL: Any = {
    "name": "read_file",
    "description": "Reads a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
RULES = "You are a careful engineer. Read before you write, and run the tests after each change. " * 60
# Text that a browser would take for markup, or a template engine for its own.
HOSTILE = "<script>window.harmed=1</script><img src=x onerror='window.harmed=2'>\"'</script>{{7919*10000019}}"
NOTES = """\
* Beds
** Bed 1: tomatoes
Water every morning; the leaves stay dry.
** Bed 2: beans
Water on Mondays.
** TODO Prune the roses
Before the frost.
* Suppliers
** Seeds
Orders go to the cooperative.
* Diary :private:
Nobody reads this.
"""

T = TypeVar("T")


def configuration(folder: Path) -> str:
    """Return the configuration without upstreams: small windows, so that short sessions are compacted."""
    notes = folder / "notes"
    notes.mkdir(exist_ok=True)
    (notes / "garden.org").write_text(NOTES, encoding="utf-8")
    return f"""\
context_optimization:
  compaction: {{enabled: true, extractive: true, tail_keep_tokens: 800, min_turns_between: 1}}
agents:
  - {{id: {REVIEWER}, window_tokens: 9000}}
  - {{id: {json.dumps(HOSTILE)}, window_tokens: 9000}}
  - id: {GARDENER}
    sections: {{memory: {{paths: ["{notes}"], limit_tokens: 200}}, time: {{zone: Europe/Berlin}}}}
  - {{id: "{INTERN}", context_optimization: {{prompt_cache: false}}}}
cost:
  caps:
    - {{scope: day, dollars: 20}}
    - {{scope: agent, agent: {INTERN}, dollars: 0.01}}
"""


def session_id_by_name(agent: str, name: str) -> str:
    return named_session_id(agent, name, key=KEY)


def request_headers(agent: str, name: str = "", step: ScriptStep | None = None) -> Mapping[str, str]:
    fields = {"x-foveate-agent": quote(agent, safe=" ")}
    if name:
        fields["x-foveate-session"] = name
    return fields | (step_headers(step) if step is not None else {})


@contextmanager
def claude_client(url: str) -> Iterator[anthropic.Anthropic]:
    """Anthropic's client without retries."""
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


def send_request(url: str, agent: str, name: str = "", text: str = "What is next?") -> None:
    with claude_client(url) as client:
        client.messages.create(
            model=CLAUDE,
            max_tokens=100,
            messages=[{"role": "user", "content": text}],
            extra_headers=request_headers(agent, name),
        )


def send_review(
    url: str,
    folder: Path,
    *,
    agent: str = REVIEWER,
    name: str = REVIEW,
    turns: int = TURNS,
    extra_text: str = "",
) -> None:
    """Send a session with a tool that is long enough to be compacted, and whose system prompt changes once.

    `extra_text` is in every tool result and in the question. The store of the gateway is in `folder`.
    """

    async def is_compacted(store: Store) -> bool:
        return bool(await store.compactions.list_compactions(session_id=session_id_by_name(agent, name)))

    messages: list[Any] = [{"role": "user", "content": f"Find the slow parser and make it fast. {extra_text}"}]
    with claude_client(url) as client:
        for turn in range(turns):
            path = f"src/parser_{turn}.py"
            reply = client.messages.create(
                model=CLAUDE,
                max_tokens=1000,
                system=f"It is 10:0{int(turn > 5)}.{extra_text}\n{RULES}",
                tools=[TOOL],
                messages=messages,
                extra_headers=request_headers(
                    agent,
                    name,
                    ScriptStep(
                        text=f"I look into {path}.",
                        tools=(ScriptedCall(name="read_file", input={"path": path}),),
                    ),
                ),
            )
            if turn == _COMPACTED_AFTER_TURN:
                wait_until_stored(folder, is_compacted)
            (call,) = [block for block in reply.content if block.type == "tool_use"]
            file_text = f"{extra_text}\n" + "".join(
                f"def part_{turn}_{line}(text): ...\n" for line in range(64)
            )
            messages += [
                {
                    "role": "assistant",
                    "content": [block.model_dump(exclude_none=True) for block in reply.content],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": call.id, "content": file_text}],
                },
            ]


def send_support_chat(url: str, *, name: str = "", turns: int = 3) -> None:
    """Send a chat with OpenAI's client in which the provider fails once."""
    messages: list[Any] = [{"role": "system", "content": "Answer within a paragraph."}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        for turn in range(turns):
            messages.append({"role": "user", "content": f"Where is parcel {turn}?"})
            reply = client.chat.completions.create(
                model=GPT, messages=messages, extra_headers=request_headers(SUPPORT, name)
            )
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
        try:
            client.chat.completions.create(
                model=GPT,
                messages=messages,
                extra_headers=request_headers(SUPPORT, name, ScriptStep(overloaded=True)),
            )
        except openai.APIStatusError:
            return
    raise AssertionError("the last request did not fail")


def send_gardener_session(url: str) -> None:
    """Send requests into which notes are injected."""
    with claude_client(url) as client:
        for question in ("When do the beans get water?", "And the tomatoes?"):
            client.messages.create(
                model=CLAUDE,
                max_tokens=100,
                messages=[{"role": "user", "content": question}],
                extra_headers=request_headers(GARDENER, "beds"),
            )


def send_until_capped(url: str) -> None:
    """Send requests of an agent with a small cap until one is rejected."""
    for _ in range(20):
        try:
            send_request(url, INTERN, "first-day", text="Please explain everything. " * 40)
        except anthropic.APIStatusError:
            return
    raise AssertionError("no request was rejected")


def read_store(folder: Path, query: Callable[[Store], Awaitable[T]]) -> T:
    """Query a store in a thread of its own, since the thread of the browser has a running event loop."""

    async def read() -> T:
        async with await open_store(f"sqlite:///{folder}/foveate.sqlite") as store:
            return await query(store)

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lambda: asyncio.run(read())).result()


def wait_until_stored(folder: Path, is_stored: Callable[[Store], Awaitable[bool]]) -> None:
    """Wait until a store has something: traces and charges are written after responses."""
    deadline = time.monotonic() + 60
    while not read_store(folder, is_stored):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def wait_until_quiet(folder: Path) -> None:
    """Wait until nothing was added to a store for a second: compactions and their charges come last."""
    deadline, unchanged_since, last = time.monotonic() + 20, time.monotonic(), ""
    while time.monotonic() < unchanged_since + 1:
        assert time.monotonic() < deadline, "timed out"
        token = read_store(folder, lambda store: store.totals.get_change_token())
        if token != last:
            last, unchanged_since = token, time.monotonic()
        time.sleep(0.1)


@dataclass(frozen=True)
class DashboardGateway:
    """A gateway with traffic, and the folder of its store."""

    url: str
    folder: Path

    def totals(self) -> Totals:
        ((_, totals),) = read_store(self.folder, lambda store: store.totals.sum_totals())
        return totals

    def session(self, agent: str, name: str) -> SessionTotals:
        session = read_store(
            self.folder, lambda store: store.totals.get_session(session_id_by_name(agent, name))
        )
        assert session is not None
        return session


@contextmanager
def gateway_with_traffic(folder: Path) -> Iterator[DashboardGateway]:
    """Run a gateway after all this traffic and `CROWD_SESSIONS` more sessions, until the end of the block."""
    filled = make_once("dashboard", _send_traffic)
    shutil.copytree(filled, folder, dirs_exist_ok=True)
    with _gateway(folder) as gateway:
        yield gateway


def _send_traffic(folder: Path) -> None:
    """Fill the store in a folder, which takes ten seconds."""
    with _gateway(folder) as gateway:
        for turn in range(CROWD_SESSIONS):
            send_request(gateway.url, CROWD, f"session {turn}")
        send_review(gateway.url, folder, agent=HOSTILE, name=HOSTILE, extra_text=HOSTILE)
        send_support_chat(gateway.url, name="parcels")
        send_gardener_session(gateway.url)
        send_until_capped(gateway.url)
        send_review(gateway.url, folder)
        wait_until_stored(folder, _is_settled)
        wait_until_quiet(folder)


@contextmanager
def _gateway(folder: Path) -> Iterator[DashboardGateway]:
    with running_sandbox() as sandbox:
        write_config(folder / "foveate.yaml", sandbox.url, configuration(folder))
        with gateway_process(folder) as gateway:
            yield DashboardGateway(gateway.url, folder)


async def _is_settled(store: Store) -> bool:
    """Check that all background work is stored; traces and causes of cache misses come last."""
    session = await store.totals.get_session(session_id_by_name(REVIEWER, REVIEW))
    if session is None or session.totals.requests != TURNS:
        return False
    return (session.totals.cache_misses, session.totals.planned_rewrites) == (1, 1)

"""A week of agent traffic, made by real clients through a real gateway, for screenshots."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import openai

from foveate.gateway.server.serve import load_live_config
from foveate.sandbox.script import ScriptedCall, ScriptStep
from foveate.store import Store
from tests.support.scenarios.dashboard_traffic import request_headers, session_id_by_name, wait_until_stored
from tests.support.servers.gateway import running_gateway
from tests.support.servers.gateway_at_time import gateway_at_time
from tests.support.servers.gateway_process import write_config
from tests.support.servers.sandbox import KEY, ManualClock, running_sandbox

NOW = datetime(2026, 11, 16, 16, 40, tzinfo=UTC).timestamp()
DAYS = 7
# Three quarters of the reviewer's window, minus the output reserve.
_COMPACTED_ABOVE_TOKENS = 0.75 * (40_000 - 2_000)
_DAY = 86_400.0
_OPUS, _SONNET, _GPT = "claude-opus-4-5", "claude-sonnet-4-6", "gpt-4.1"
REVIEW = session_id_by_name("reviewer", "make-the-parser-fast")
# The sandbox would make up a meaningless summary.
_SUMMARY = """\
The task is to make the parser fast without changing what it accepts. Decided: keep the grammar, replace the
recursive descent by a table, and run the tests after each change. Read so far: src/parser_0.py up to
src/parser_9.py. The slow part is scan() in src/parser_3.py, which builds a list for each character. Next: write
the table into src/parser_4.py, then measure with bench/parse.py."""
_RULES = """\
You are a careful engineer who reviews a parser. Read before you write, run the tests after each change, and say
what you are not sure of. Never push to the main branch.
"""
_TOOLS: Any = [
    {
        "name": name,
        "description": f"{name.replace('_', ' ').capitalize()}; paths are relative to the repository. " * 20,
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    }
    for name in ("read_file", "write_file", "run_tests", "search")
]
_BEDS = (
    ("Tomatoes", "Water every morning at the root; the leaves stay dry. Pinch out the side shoots on Fridays."),
    ("Beans", "Water on Mondays and Thursdays. They climb on the north side."),
    ("Roses", "Prune before the frost, above the third bud. Black spot was seen in June."),
    ("Herbs", "Thyme and sage want little water, basil wants much of it."),
    ("Apples", "The ladder is in the shed. Thin the fruit in June, one a hand's breadth."),
)
_WORK = ("Soil", "Pests", "Harvest")
_NOTES = "* Beds\n" + "".join(
    f"** {bed}\n{note}\n" + "".join(f"*** {bed}: {work.lower()}\nSee the book of {year}.\n" for work in _WORK)
    for year, (bed, note) in enumerate(_BEDS, 2021)
)
_NOTES += "* Watering\nThe pump goes on at six, and off with the tank at a quarter.\n* Diary :private:\nNo.\n"
_CONFIGURATION = """\
context_optimization:
  compaction: {enabled: true, extractive: true, tail_keep_tokens: 6000, min_turns_between: 3}
agents:
  - {id: reviewer, window_tokens: 40000}
  - id: gardener
    sections:
      memory: {paths: [notes], limit_tokens: 300}
      time: {zone: Europe/Berlin}
      budget: true
  - {id: support, context_optimization: {compaction: false}}
cost:
  caps:
    - {scope: day, dollars: 20}
    - {scope: agent, agent: support, dollars: 5}
"""


@dataclass(frozen=True)
class WeekGateway:
    url: str


@contextmanager
def gateway_after_week(folder: Path) -> Iterator[WeekGateway]:
    """Run a gateway after that week, at time `NOW`, until the end of the block."""
    notes = folder / "notes"
    notes.mkdir()
    (notes / "garden.org").write_text(_NOTES, encoding="utf-8")
    config = folder / "foveate.yaml"
    with running_sandbox(ScriptStep(text=_SUMMARY), repeat=True) as sandbox:
        # This process has another working directory than the gateway that is shown.
        write_config(config, sandbox.url, _CONFIGURATION.replace("[notes]", f"['{notes}']"))
        config_now = (
            load_live_config(config, {"FOVEATE_STORE": f"sqlite:///{folder}/foveate.sqlite"}).current().value
        )
        started = time.perf_counter()

        def clock() -> float:
            """Return the time set by the test plus the elapsed time since then."""
            return sandbox.clock() + time.perf_counter() - started

        with running_gateway(sandbox.url, folder, clock=clock, config=config_now) as gateway:
            for day in range(DAYS):
                sandbox.clock.now = NOW - (DAYS - 1 - day) * _DAY - 6_000
                _send_day(gateway.url, sandbox.clock, day)
            sandbox.clock.now = NOW - 2_700
            wait_for_compaction = partial(wait_until_stored, folder, _is_compacted)
            _send_review(
                gateway.url,
                sandbox.clock,
                "make-the-parser-fast",
                turns=30,
                wait_for_compaction=wait_for_compaction,
            )
        sandbox.clock.now = NOW
        write_config(config, sandbox.url, _CONFIGURATION)
        with gateway_at_time(NOW, config) as url:
            _send_support_chat(url, sandbox.clock, "parcel-77", turns=2)
            _send_gardener_session(url, sandbox.clock, "beds", turns=2)
            yield WeekGateway(url)


def _send_day(url: str, clock: ManualClock, day: int) -> None:
    """Send one day of all agents; some days are busier."""
    for number in range(1 + day % 3):
        _send_review(url, clock, f"review-{day}-{number}", turns=5 + 2 * day % 5)
        _send_support_chat(url, clock, f"parcel-{day}-{number}", turns=3, fails=day == 3)
    _send_gardener_session(url, clock, f"beds-{day}", turns=2 + day % 2)


async def _is_compacted(store: Store) -> bool:
    return bool(await store.compactions.list_compactions(session_id=REVIEW))


def _send_review(
    url: str,
    clock: ManualClock,
    name: str,
    *,
    turns: int,
    wait_for_compaction: Callable[[], None] = lambda: None,
) -> None:
    """Send a session with tools; a long one has a changing system prompt and a pause.

    When a compaction is due, wait for it before continuing.
    """
    messages: list[Any] = [{"role": "user", "content": "Make the parser fast, and keep what it accepts."}]
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        for turn in range(turns):
            path = f"src/parser_{turn % 12}.py"
            reply = client.messages.create(
                model=_OPUS,
                max_tokens=2_000,
                system=f"{_RULES * 50}\nToday's branch: parser-{1 + int(turn > 8)}",
                tools=_TOOLS,
                messages=messages,
                extra_headers=request_headers("reviewer", name, _read_file_step(path)),
            )
            if _input_tokens(reply) > _COMPACTED_ABOVE_TOKENS:
                wait_for_compaction()
            (call,) = [block for block in reply.content if block.type == "tool_use"]
            found = f"# {path}\n" + "".join(
                f"def part_{turn}_{line}(text: str, at: int) -> Node | None: ...\n" for line in range(40)
            )
            messages += [
                {
                    "role": "assistant",
                    "content": [block.model_dump(exclude_none=True) for block in reply.content],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": call.id, "content": found}],
                },
            ]
            clock.now += 600 if turn == 20 else 45


def _input_tokens(reply: anthropic.types.Message) -> int:
    used = reply.usage
    cached = (used.cache_read_input_tokens or 0) + (used.cache_creation_input_tokens or 0)
    return used.input_tokens + cached


def _read_file_step(path: str) -> ScriptStep:
    return ScriptStep(
        text=f"The next suspect is {path}: I read it before I change anything. "
        "What I know by now: the scanner makes a list for each character, and the table would make none. " * 8,
        tools=(ScriptedCall(name="read_file", input={"path": path}),),
    )


def _send_support_chat(url: str, clock: ManualClock, name: str, *, turns: int, fails: bool = False) -> None:
    """Send a chat; with `fails`, the provider fails at its end."""
    messages: list[Any] = [{"role": "system", "content": "You answer customers within a paragraph. " * 150}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        for turn in range(turns):
            messages.append({"role": "user", "content": f"Where is parcel {turn}? It was due on Tuesday."})
            answer = ScriptStep(text="It left the depot this morning, and arrives before noon.")
            reply = client.chat.completions.create(
                model=_GPT, messages=messages, extra_headers=request_headers("support", name, answer)
            )
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
            clock.now += 30
        if fails:
            try:
                client.chat.completions.create(
                    model=_GPT,
                    messages=messages,
                    extra_headers=request_headers("support", name, ScriptStep(overloaded=True)),
                )
            except openai.APIStatusError:
                return
            raise AssertionError("it should have failed")


def _send_gardener_session(url: str, clock: ManualClock, name: str, *, turns: int) -> None:
    """Send requests into which notes are injected."""
    messages: list[Any] = []
    questions: Sequence[str] = ("When do the beans get water?", "And the tomatoes?", "What is due this week?")
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        for turn in range(turns):
            messages.append({"role": "user", "content": questions[turn % len(questions)]})
            reply = client.messages.create(
                model=_SONNET,
                max_tokens=300,
                system="You keep a garden. " * 40,
                messages=messages,
                extra_headers=request_headers(
                    "gardener", name, ScriptStep(text="On Monday morning, before the sun is high.")
                ),
            )
            content = [block.model_dump(exclude_none=True) for block in reply.content]
            messages.append({"role": "assistant", "content": content})
            clock.now += 60

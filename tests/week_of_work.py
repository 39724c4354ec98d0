"""A week of a small team's agents, made by real clients through a real gateway: what pictures of pages show."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anthropic
import openai

from foveate.gateway.serving import live_choices
from foveate.sandbox.scripts import Call, Step
from tests.gateway_at import gateway_at
from tests.gateways import running_gateway
from tests.sandboxes import KEY, Clock, running_sandbox
from tests.served import configure
from tests.work_to_see import NOTES, headers, named

NOW = datetime(2026, 11, 13, 16, 40, tzinfo=UTC).timestamp()
DAYS = 7
_DAY = 86_400.0
_OPUS, _SONNET, _GPT = "claude-opus-4-5", "claude-sonnet-4-6", "gpt-4.1"
REVIEW = named("reviewer", "make-the-parser-fast")
# Of the sandbox, whose own words would sum up nothing.
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
        "description": f"{name.replace('_', ' ').capitalize()}; paths are relative to the repository. " * 6,
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    }
    for name in ("read_file", "write_file", "run_tests", "search")
]
_CONFIGURATION = """\
context_optimization:
  compaction: {{enabled: true, extractive: true, tail_keep_tokens: 6000, min_turns_between: 3}}
agents:
  - {{id: reviewer, window_tokens: 40000}}
  - id: gardener
    sections:
      memory: {{paths: ["{notes}"], limit_tokens: 150}}
      time: {{zone: Europe/Berlin}}
      budget: true
  - {{id: support, context_optimization: {{compaction: false}}}}
cost:
  caps:
    - {{scope: day, dollars: 20}}
    - {{scope: agent, agent: support, dollars: 5}}
"""


@dataclass(frozen=True)
class Week:
    """Where the pages are that show it."""

    url: str


@contextmanager
def week_of_work(folder: Path) -> Iterator[Week]:
    """A gateway after that week, for which it is `NOW`, until the end of the block."""
    notes = folder / "notes"
    notes.mkdir()
    (notes / "garden.org").write_text(NOTES, encoding="utf-8")
    config = folder / "foveate.yaml"
    with running_sandbox(Step(text=_SUMMARY), repeat=True) as sandbox:
        store = f"store: {{url: 'sqlite:///{folder}/week.sqlite'}}\n"
        configure(config, sandbox.url, _CONFIGURATION.format(notes=notes) + store)
        choices = live_choices(config, {}).now().made
        with running_gateway(sandbox.url, folder, clock=sandbox.clock, configured=choices) as gateway:
            for day in range(DAYS):
                sandbox.clock.now = NOW - (DAYS - 1 - day) * _DAY - 6_000
                _worked(gateway.url, sandbox.clock, day)
            sandbox.clock.now = NOW - 2_700
            _reviewed(gateway.url, sandbox.clock, "make-the-parser-fast", turns=26)
        sandbox.clock.now = NOW
        with gateway_at(NOW, config) as url:
            _supported(url, sandbox.clock, "parcel-77", turns=2)
            _gardened(url, sandbox.clock, "beds", turns=2)
            yield Week(url)


def _worked(url: str, clock: Clock, day: int) -> None:
    """One day of all of them; some days are busier."""
    for number in range(1 + day % 3):
        _reviewed(url, clock, f"review-{day}-{number}", turns=5 + 2 * day % 5)
        _supported(url, clock, f"parcel-{day}-{number}", turns=3, fails=day == 3)
    _gardened(url, clock, f"beds-{day}", turns=2 + day % 2)


def _reviewed(url: str, clock: Clock, name: str, *, turns: int) -> None:
    """A session with tools; where it is long, its system prompt changes on the way, and there is a pause."""
    messages: list[Any] = [{"role": "user", "content": "Make the parser fast, and keep what it accepts."}]
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        for turn in range(turns):
            path = f"src/parser_{turn % 12}.py"
            reply = client.messages.create(
                model=_OPUS,
                max_tokens=2_000,
                system=f"{_RULES * 12}\nToday's branch: parser-{1 + int(turn > 8)}",
                tools=_TOOLS,
                messages=messages,
                extra_headers=headers("reviewer", name, _read(path)),
            )
            (call,) = [block for block in reply.content if block.type == "tool_use"]
            found = f"# {path}\n" + "".join(
                f"def part_{turn}_{line}(text: str, at: int) -> Node | None: ...\n" for line in range(70)
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


def _read(path: str) -> Step:
    return Step(
        text=f"The next suspect is {path}: I read it before I change anything.",
        tools=(Call(name="read_file", input={"path": path}),),
    )


def _supported(url: str, clock: Clock, name: str, *, turns: int, fails: bool = False) -> None:
    """A chat; on a bad day the provider fails at its end."""
    messages: list[Any] = [{"role": "system", "content": "You answer customers within a paragraph. " * 150}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        for turn in range(turns):
            messages.append({"role": "user", "content": f"Where is parcel {turn}? It was due on Tuesday."})
            answer = Step(text="It left the depot this morning, and arrives before noon.")
            reply = client.chat.completions.create(
                model=_GPT, messages=messages, extra_headers=headers("support", name, answer)
            )
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
            clock.now += 30
        if fails:
            try:
                client.chat.completions.create(
                    model=_GPT, messages=messages, extra_headers=headers("support", name, Step(overloaded=True))
                )
            except openai.APIStatusError:
                return
            raise AssertionError("it should have failed")


def _gardened(url: str, clock: Clock, name: str, *, turns: int) -> None:
    """Requests into which notes are put."""
    messages: list[Any] = []
    asked: Sequence[str] = ("When do the beans get water?", "And the tomatoes?", "What is due this week?")
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        for turn in range(turns):
            messages.append({"role": "user", "content": asked[turn % len(asked)]})
            reply = client.messages.create(
                model=_SONNET,
                max_tokens=300,
                system="You keep a garden. " * 40,
                messages=messages,
                extra_headers=headers(
                    "gardener", name, Step(text="On Monday morning, before the sun is high.")
                ),
            )
            said = [block.model_dump(exclude_none=True) for block in reply.content]
            messages.append({"role": "assistant", "content": said})
            clock.now += 60

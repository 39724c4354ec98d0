"""Sessions through two gateways whose settings change at random: none is stuck, and each answer is booked."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Protocol

import anthropic
import openai
import pytest

from foveate.compaction.overflow import OnOverflow
from foveate.compaction.plan import CompactionOptions
from foveate.compaction.store import CompactionOutcome
from foveate.cost.ledger import Category
from foveate.engine.options import AgentOptions, SectionOptions
from foveate.sandbox.script import ScriptStep
from foveate.store import Store, open_store
from tests.support.scenarios.injected_sections import garden_sections
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox

ROUNDS = 40
ANSWER_TOKENS = 1_500
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
FOLDING = AgentOptions(
    compaction=True,
    window_tokens=7_000,
    compaction_options=CompactionOptions(extractive=True, tail_keep_tokens=1_500, min_turns_between=3),
)
SUMMARY = (
    "The user looks for the slow parser. All files so far were read, with parse_ functions in each. Go on."
)
# How thinking is asked for, or not, while a turn is under way.
THINKS: list[dict[str, Any]] = [
    {"thinking": {"type": "adaptive"}},
    {"thinking": {"type": "adaptive"}},
    {"thinking": {"type": "disabled"}},
    {},
]


def listing(number: int) -> str:
    return "\n".join(f"def parse_{number}_{line}(text): return text" for line in range(16))


class Talk(Protocol):
    """A conversation that goes on with each answer."""

    def step(self, gateway: "Clients", number: int, random: Random) -> tuple[int, int]:
        """One more answer: its input and output tokens, as they are billed."""


@dataclass
class Claude:
    """Reads one file after the other, and thinks about it now and then."""

    messages: list[Any] = field(default_factory=lambda: [{"role": "user", "content": "Find the slow parser."}])

    def step(self, gateway: "Clients", number: int, random: Random) -> tuple[int, int]:
        asked: Any = {
            "model": "claude-opus-5-5",
            "max_tokens": ANSWER_TOKENS,
            "tools": [{"name": "read", "description": "Reads a file.", "input_schema": SCHEMA}],
            "messages": self.messages,
            **random.choice(THINKS),
        }
        says = random.choice([{"text": f"So far so good, {number}."}, {"tools": [{"name": "read"}]}])
        headers = {"x-sandbox-answer": json.dumps(says)}
        client = gateway.anthropic.messages
        if random.random() < 0.5:
            with client.stream(**asked, extra_headers=headers) as stream:
                reply: Any = stream.get_final_message()
        else:
            reply = client.create(**asked, extra_headers=headers)
        content = [block.model_dump(include=_KEPT, exclude_none=True) for block in reply.content]
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": listing(number)}
            for block in content
            if block["type"] == "tool_use"
        ]
        self.messages = [
            *self.messages,
            {"role": "assistant", "content": content},
            {"role": "user", "content": results or f"Go on. {listing(number)}"},
        ]
        bill = reply.usage
        cached = (bill.cache_read_input_tokens or 0) + (bill.cache_creation_input_tokens or 0)
        return bill.input_tokens + cached, bill.output_tokens


_KEPT = {"type", "text", "thinking", "signature", "id", "name", "input"}


@dataclass
class Gpt:
    """Talks about one file after the other."""

    messages: list[Any] = field(default_factory=lambda: [{"role": "user", "content": "Find the slow parser."}])

    def step(self, gateway: "Clients", number: int, random: Random) -> tuple[int, int]:
        del random
        reply = gateway.openai.chat.completions.create(
            model="gpt-4o", max_completion_tokens=ANSWER_TOKENS, messages=self.messages
        )
        said = {"role": "assistant", "content": reply.choices[0].message.content}
        self.messages = [*self.messages, said, {"role": "user", "content": f"Go on. {listing(number)}"}]
        assert reply.usage is not None
        return reply.usage.prompt_tokens, reply.usage.completion_tokens


@dataclass
class Clients:
    """The official clients of a gateway."""

    gateway: RunningGateway
    anthropic: anthropic.Anthropic
    openai: openai.OpenAI


@dataclass
class Site:
    """Two gateways on one store, whose settings are as they are now."""

    sandbox: RunningSandbox
    folder: Path
    options: AgentOptions = FOLDING
    running: list[tuple[ExitStack, Clients]] = field(default_factory=list)

    def start(self, place: int) -> None:
        stack = ExitStack()
        gateway = stack.enter_context(
            running_gateway(
                self.sandbox.url, self.folder, clock=self.sandbox.clock, options=lambda: self.options
            )
        )
        asks: Any = {"api_key": KEY, "max_retries": 0, "default_headers": {"connection": "close"}}
        claude = anthropic.Anthropic(base_url=gateway.url, **asks)
        gpt = openai.OpenAI(base_url=gateway.openai_url, **asks)
        for client in (claude, gpt):
            stack.callback(client.close)
        self.running.insert(place, (stack, Clients(gateway, claude, gpt)))

    def end(self, place: int) -> None:
        stack, clients = self.running.pop(place)
        stack.close()
        assert {problem.step for problem in clients.gateway.failed_steps} <= {"sections/room"}

    def change(self, random: Random, sections: SectionOptions) -> None:
        """Something is set, undone or begun anew."""
        match random.randrange(8):
            case 0 | 1:
                self.options = replace(self.options, compaction=not self.options.compaction)
            case 2 | 3 | 4:
                self.options = replace(self.options, window_tokens=random.choice([7_000, 9_000, None]))
            case 5:
                self.options = replace(self.options, sections=random.choice([sections, None]))
            case 6:
                at_store(self.folder, undone)
            case _:
                place = random.randrange(2)
                self.end(place)
                self.start(place)


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    with running_sandbox(ScriptStep(text=SUMMARY), repeat=True) as sandbox:
        found = Site(sandbox, folder)
        for place in range(2):
            found.start(place)
        yield found
        for _ in range(2):
            found.end(0)


def at_store(folder: Path, work: Any) -> Any:
    async def do() -> Any:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return await work(store)

    return asyncio.run(do())


async def undone(store: Store) -> None:
    for fold in await store.compactions.list_compactions(limit=5):
        if fold.outcome is CompactionOutcome.OK and fold.undone_at is None:
            await store.compactions.undo(fold.id, now=1.0)


async def booked(store: Store) -> list[tuple[int, int]]:
    entries = [entry async for entry in store.ledger.list_charges() if entry.call.category is Category.MAIN]
    return [(entry.usage.cache.input_tokens, entry.usage.output_tokens) for entry in entries]


def answered(talk: Talk, gateway: Clients, number: int, random: Random) -> tuple[int, int]:
    """One more answer; thoughts that no longer fit are refused once, and not again."""
    before = random.getstate()
    try:
        return talk.step(gateway, number, random)
    except anthropic.BadRequestError as refused:
        if "prefix_mismatch" not in str(refused):
            raise
    random.setstate(before)
    return talk.step(gateway, number, random)


@pytest.mark.parametrize("seed", [2, 7])
def test_no_session_is_stuck_whatever_is_changed_and_each_answer_is_booked_once(
    tmp_path: Path, seed: int
) -> None:
    random, bills = Random(seed), list[tuple[int, int]]()
    sections = garden_sections(tmp_path / "garden", memory_limit_tokens=150)
    talks: list[Talk] = [Claude(), Claude(), Gpt()]
    with site(tmp_path) as found:
        found.options = replace(FOLDING, on_overflow=OnOverflow.MAKE_ROOM)
        for number in range(ROUNDS):
            found.sandbox.clock.now += 20
            if random.random() < 0.4:
                found.change(random, sections)
            talk = random.choice(talks)
            _, gateway = random.choice(found.running)
            for step in range(random.randrange(1, 4)):
                bill = answered(talk, gateway, 10 * number + step, random)
                bills.append(bill)
                limit = found.options.window_tokens
                # A count is an estimate, and may be a little too low.
                assert limit is None or bill[0] <= 1.02 * (limit - ANSWER_TOKENS)

    assert Counter(at_store(tmp_path, booked)) == Counter(bills)

"""Sessions through two gateways whose settings change at random: none gets stuck, every response is charged."""

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
COMPACTION_OPTIONS = AgentOptions(
    compaction=True,
    window_tokens=7_000,
    compaction_options=CompactionOptions(extractive=True, tail_keep_tokens=1_500, min_turns_between=3),
)
SUMMARY = (
    "The user looks for the slow parser. All files so far were read, with parse_ functions in each. Go on."
)
# Thinking parameters that may change between the requests of a turn.
THINKING: list[dict[str, Any]] = [
    {"thinking": {"type": "adaptive"}},
    {"thinking": {"type": "adaptive"}},
    {"thinking": {"type": "disabled"}},
    {},
]


def listing(number: int) -> str:
    return "\n".join(f"def parse_{number}_{line}(text): return text" for line in range(16))


class Conversation(Protocol):
    """A conversation that continues with each response."""

    def step(self, gateway: "Clients", number: int, random: Random) -> tuple[int, int]:
        """Send one more turn; return the reported input and output tokens."""


@dataclass
class ClaudeConversation:
    """A conversation that reads one file after the other, with thinking at times."""

    messages: list[Any] = field(default_factory=lambda: [{"role": "user", "content": "Find the slow parser."}])

    def step(self, gateway: "Clients", number: int, random: Random) -> tuple[int, int]:
        request: Any = {
            "model": "claude-opus-5-5",
            "max_tokens": ANSWER_TOKENS,
            "tools": [{"name": "read", "description": "Reads a file.", "input_schema": SCHEMA}],
            "messages": self.messages,
            **random.choice(THINKING),
        }
        answer = random.choice([{"text": f"So far so good, {number}."}, {"tools": [{"name": "read"}]}])
        headers = {"x-sandbox-answer": json.dumps(answer)}
        client = gateway.anthropic.messages
        if random.random() < 0.5:
            with client.stream(**request, extra_headers=headers) as stream:
                reply: Any = stream.get_final_message()
        else:
            reply = client.create(**request, extra_headers=headers)
        content = [block.model_dump(include=_RESENT_FIELDS, exclude_none=True) for block in reply.content]
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
        usage = reply.usage
        cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
        return usage.input_tokens + cached, usage.output_tokens


_RESENT_FIELDS = {"type", "text", "thinking", "signature", "id", "name", "input"}


@dataclass
class GptConversation:
    """A conversation about one file after the other."""

    messages: list[Any] = field(default_factory=lambda: [{"role": "user", "content": "Find the slow parser."}])

    def step(self, gateway: "Clients", number: int, random: Random) -> tuple[int, int]:
        del random
        reply = gateway.openai.chat.completions.create(
            model="gpt-4o", max_completion_tokens=ANSWER_TOKENS, messages=self.messages
        )
        message = {"role": "assistant", "content": reply.choices[0].message.content}
        self.messages = [*self.messages, message, {"role": "user", "content": f"Go on. {listing(number)}"}]
        assert reply.usage is not None
        return reply.usage.prompt_tokens, reply.usage.completion_tokens


@dataclass
class Clients:
    """The official clients of a gateway."""

    gateway: RunningGateway
    anthropic: anthropic.Anthropic
    openai: openai.OpenAI


@dataclass
class GatewayPair:
    """Two gateways on one store, with their current settings."""

    sandbox: RunningSandbox
    folder: Path
    options: AgentOptions = COMPACTION_OPTIONS
    running_gateways: list[tuple[ExitStack, Clients]] = field(default_factory=list)

    def start(self, place: int) -> None:
        stack = ExitStack()
        gateway = stack.enter_context(
            running_gateway(
                self.sandbox.url, self.folder, clock=self.sandbox.clock, options=lambda: self.options
            )
        )
        request_options: Any = {"api_key": KEY, "max_retries": 0, "default_headers": {"connection": "close"}}
        anthropic_client = anthropic.Anthropic(base_url=gateway.url, **request_options)
        openai_client = openai.OpenAI(base_url=gateway.openai_url, **request_options)
        for client in (anthropic_client, openai_client):
            stack.callback(client.close)
        self.running_gateways.insert(place, (stack, Clients(gateway, anthropic_client, openai_client)))

    def end(self, place: int) -> None:
        stack, clients = self.running_gateways.pop(place)
        stack.close()
        assert {problem.step for problem in clients.gateway.failed_steps} <= {"sections/room"}

    def change(self, random: Random, sections: SectionOptions) -> None:
        """Change a setting, undo a compaction or restart a gateway, at random."""
        match random.randrange(8):
            case 0 | 1:
                self.options = replace(self.options, compaction=not self.options.compaction)
            case 2 | 3 | 4:
                self.options = replace(self.options, window_tokens=random.choice([7_000, 9_000, None]))
            case 5:
                self.options = replace(self.options, sections=random.choice([sections, None]))
            case 6:
                run_with_store(self.folder, undo_compactions)
            case _:
                place = random.randrange(2)
                self.end(place)
                self.start(place)


@contextmanager
def gateway_pair(folder: Path) -> Iterator[GatewayPair]:
    with running_sandbox(ScriptStep(text=SUMMARY), repeat=True) as sandbox:
        pair = GatewayPair(sandbox, folder)
        for place in range(2):
            pair.start(place)
        yield pair
        for _ in range(2):
            pair.end(0)


def run_with_store(folder: Path, callback: Any) -> Any:
    async def run() -> Any:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return await callback(store)

    return asyncio.run(run())


async def undo_compactions(store: Store) -> None:
    for compaction in await store.compactions.list_compactions(limit=5):
        if compaction.outcome is CompactionOutcome.OK and compaction.undone_at is None:
            await store.compactions.undo(compaction.id, now=1.0)


async def read_charges(store: Store) -> list[tuple[int, int]]:
    entries = [entry async for entry in store.ledger.list_charges() if entry.call.category is Category.MAIN]
    return [(entry.usage.cache.input_tokens, entry.usage.output_tokens) for entry in entries]


def send_turn(conversation: Conversation, gateway: Clients, number: int, random: Random) -> tuple[int, int]:
    """Send one more turn; thinking blocks that no longer match are rejected at most once."""
    before = random.getstate()
    try:
        return conversation.step(gateway, number, random)
    except anthropic.BadRequestError as error:
        if "prefix_mismatch" not in str(error):
            raise
    random.setstate(before)
    return conversation.step(gateway, number, random)


@pytest.mark.parametrize("seed", [2, 7])
def test_no_session_gets_stuck_when_settings_change_and_each_response_is_charged_once(
    tmp_path: Path, seed: int
) -> None:
    random, usages = Random(seed), list[tuple[int, int]]()
    sections = garden_sections(tmp_path / "garden", memory_limit_tokens=150)
    conversations: list[Conversation] = [ClaudeConversation(), ClaudeConversation(), GptConversation()]
    with gateway_pair(tmp_path) as pair:
        pair.options = replace(COMPACTION_OPTIONS, on_overflow=OnOverflow.MAKE_ROOM)
        for number in range(ROUNDS):
            pair.sandbox.clock.now += 20
            if random.random() < 0.4:
                pair.change(random, sections)
            conversation = random.choice(conversations)
            _, gateway = random.choice(pair.running_gateways)
            for step in range(random.randrange(1, 4)):
                usage = send_turn(conversation, gateway, 10 * number + step, random)
                usages.append(usage)
                limit = pair.options.window_tokens
                # A count is an estimate, and may be a little too low.
                assert limit is None or usage[0] <= 1.02 * (limit - ANSWER_TOKENS)

    assert Counter(run_with_store(tmp_path, read_charges)) == Counter(usages)

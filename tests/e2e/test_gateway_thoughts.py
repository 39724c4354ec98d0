"""Thoughts of a model that binds them, behind a fold and after its undo, through two gateways in turn."""

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anthropic
import pytest

from foveate import formats
from foveate.compaction.overflow import OnOverflow
from foveate.compaction.plan import CompactionOptions
from foveate.compaction.store import ApplicationChange, Compaction, CompactionOutcome
from foveate.config.settings import ServerSettings
from foveate.engine.options import AgentOptions
from foveate.session.hash_chain import compute_chain
from foveate.store import Store, open_store
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox

MODEL = "claude-opus-5-5"
TOOLS: Any = [{"name": "read", "description": "Reads a file.", "input_schema": {"type": "object"}}]
FOLDING = AgentOptions(
    compaction=True,
    window_tokens=9_000,
    compaction_options=CompactionOptions(extractive=True, tail_keep_tokens=1_500, min_turns_between=4),
)
ROOMY = replace(FOLDING, window_tokens=None)
ADAPTIVE: Any = {"type": "adaptive"}
ENABLED: Any = {"type": "enabled", "budget_tokens": 1024}
TIGHT = AgentOptions(compaction=False, on_overflow=OnOverflow.MAKE_ROOM, window_tokens=9_000)
LEFT_OUT = b"[left out: "
DROPS = b'"prefix_mismatch_behavior":"drop_block"'
BETA = "thinking-binding-controls-2026-08-01"
SUMMARY = b"were folded into this summary"


@dataclass
class Agent:
    """Reads one file after the other, thinks before each, and asks one gateway after the other."""

    sandbox: RunningSandbox
    thinking: Any
    clients: Iterator[anthropic.Anthropic] = field(default_factory=lambda: iter(()))
    messages: list[Any] = field(default_factory=lambda: [{"role": "user", "content": "Find the slow parser."}])

    def step(self) -> tuple[bool, list[str]]:
        """One more answer: whether the provider was sent a summary for it, and which thoughts."""
        number = len(self.messages)
        listing = "\n".join(f"def parse_{number}_{line}(text): return text" for line in range(12))
        # Now and then a turn comes to its end.
        says = {"text": "So far so good."} if number % 8 == 7 else {"tools": [{"name": "read"}]}
        self.sandbox.clock.now += 20
        reply = next(self.clients).messages.create(
            model=MODEL,
            max_tokens=1500,
            tools=TOOLS,
            thinking=self.thinking,
            messages=self.messages,
            extra_headers={"x-sandbox-answer": json.dumps({"thinking": f"thought {number}", **says})},
        )
        sent = next(ask.body for ask in reversed(self.sandbox.requests) if "x-sandbox-answer" in ask.headers)
        content = [block.model_dump(exclude_none=True) for block in reply.content]
        calls = [block["id"] for block in content if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": id_, "content": listing} for id_ in calls]
        self.messages += [
            {"role": "assistant", "content": content},
            {"role": "user", "content": results or f"Go on. {listing}"},
        ]
        return SUMMARY in sent, thoughts_in(json.loads(sent)["messages"])


def thoughts_in(messages: list[Any]) -> list[str]:
    said = [message["content"] for message in messages if isinstance(message["content"], list)]
    return [block["thinking"] for content in said for block in content if block["type"] == "thinking"]


@contextmanager
def agent_of(thinking: Any) -> Iterator[Agent]:
    with running_sandbox() as sandbox:
        yield Agent(sandbox, thinking)


@contextmanager
def two_gateways(agent: Agent, folder: Path, options: AgentOptions = FOLDING) -> Iterator[list[RunningGateway]]:
    """The agent asks both in turn, on one store."""
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                running_gateway(
                    agent.sandbox.url,
                    folder,
                    clock=agent.sandbox.clock,
                    options=options,
                    server=ServerSettings(workers=2),
                )
            )
            for _ in range(2)
        ]
        clients = [
            stack.enter_context(anthropic.Anthropic(base_url=one.url, api_key=KEY, max_retries=0))
            for one in running
        ]
        agent.clients = itertools.cycle(clients)
        yield running
        assert [problem for one in running for problem in one.failed_steps] == []


def at_store(folder: Path, work: Any) -> Any:
    async def do() -> Any:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return await work(store)

    return asyncio.run(do())


async def made(store: Store) -> list[Compaction]:
    return [one for one in await store.compactions.list_compactions() if one.outcome is CompactionOutcome.OK]


def folded_for(agent: Agent, steps: int) -> list[list[str]]:
    """The thoughts that were sent with the last fold: in the first request that had it, and each one since."""
    sent: list[list[str]] = []
    for _ in range(40):
        is_folded, thoughts = agent.step()
        sent = [*sent, thoughts] if is_folded else []
        if len(sent) == steps:
            return sent
    pytest.fail("it was never folded for so long")


@pytest.mark.parametrize("thinking", [ADAPTIVE, ENABLED], ids=["adaptive", "enabled"])
def test_what_is_thought_behind_a_summary_is_sent_back_by_either_gateway(tmp_path: Path, thinking: Any) -> None:
    """Was left out again with each request."""
    with agent_of(thinking) as agent, two_gateways(agent, tmp_path):
        sent = folded_for(agent, 8)

        for before, after in itertools.pairwise(sent[1:]):
            assert after[: len(before)] == before
        assert len(sent[-1]) > 3
        assert len(at_store(tmp_path, made)) == 1


def test_after_an_undo_only_what_was_thought_behind_the_summary_is_left_out(tmp_path: Path) -> None:
    """Was all left out that had been thought since the fold."""

    async def undo(store: Store) -> None:
        for fold in await made(store):
            assert await store.compactions.undo(fold.id, now=1.0)

    with agent_of(ADAPTIVE) as agent:
        with two_gateways(agent, tmp_path):
            folded_for(agent, 5)
            under = {f"thought {len(agent.messages) - 2 * back}" for back in range(1, 6)}
        at_store(tmp_path, undo)
        everything = thoughts_in(agent.messages)
        with two_gateways(agent, tmp_path, ROOMY):
            sent = [agent.step() for _ in range(4)]

    assert not any(is_folded for is_folded, _ in sent)
    kept = [thought for thought in everything if thought not in under]
    assert sent[0][1] == kept
    assert len(kept) > 5
    new = [f"thought {len(agent.messages) - 2 * back}" for back in (4, 3, 2)]
    assert sent[-1][1] == [*kept, *new]


def test_where_somebody_was_mistaken_about_a_fold_one_request_is_refused_and_not_the_next(
    tmp_path: Path,
) -> None:
    with agent_of(ADAPTIVE) as agent, two_gateways(agent, tmp_path):
        folded_for(agent, 3)
        chain = compute_chain(formats.parse_request({"model": MODEL, "messages": agent.messages}))

        async def mistake(store: Store) -> None:
            (fold,) = await made(store)
            early = fold.messages + 1
            use = ApplicationChange(
                compaction_id=fold.id, last_hash=chain.hashes[early - 1], messages=early, is_applied=True
            )
            await store.compactions.record_application_changes([use])

        at_store(tmp_path, mistake)
        with pytest.raises(anthropic.BadRequestError, match="prefix_mismatch"):
            agent.step()

        async def is_doubted(store: Store) -> bool:
            (fold,) = await made(store)
            return any(
                use.is_applied is None for use in await store.compactions.list_application_changes([fold.id])
            )

        deadline = time.monotonic() + 10
        while not at_store(tmp_path, is_doubted):  # behind the answer
            assert time.monotonic() < deadline, "nobody has doubted it"
            time.sleep(0.02)
        is_folded, thoughts = agent.step()
        assert (is_folded, thoughts) == (True, [])
        assert len(agent.step()[1]) == 1


def made_room_for(agent: Agent, folder: Path) -> None:
    """Have some of what the agent thinks stand after messages that were left out."""
    with two_gateways(agent, folder, TIGHT):
        while not agent.sandbox.requests or LEFT_OUT not in agent.sandbox.requests[-1].body:
            agent.step()
        for _ in range(3):
            agent.step()


@pytest.mark.parametrize("thinking", [ADAPTIVE, ENABLED], ids=["adaptive", "enabled"])
def test_what_was_thought_while_room_was_made_is_refused_once_where_there_is_room_again(
    tmp_path: Path, thinking: Any
) -> None:
    """Was refused for ever."""
    with agent_of(thinking) as agent:
        made_room_for(agent, tmp_path)
        with two_gateways(agent, tmp_path, replace(TIGHT, window_tokens=None)):
            for _ in range(2):  # each gateway has to find out
                with pytest.raises(anthropic.BadRequestError, match="prefix_mismatch"):
                    agent.step()
            for _ in range(4):
                agent.step()
                assert DROPS in agent.sandbox.requests[-1].body


def test_a_client_that_wants_its_thoughts_refused_has_them_refused(tmp_path: Path) -> None:
    strict = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}
    beta = {"anthropic-beta": BETA}
    with running_sandbox() as sandbox, running_gateway(sandbox.url, tmp_path) as gateway:
        client = anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0, default_headers=beta)
        agent = Agent(sandbox, strict, itertools.repeat(client))
        agent.step()
        agent.messages[0]["content"] = "Find another one."
        with client:
            for _ in range(3):
                with pytest.raises(anthropic.BadRequestError, match="prefix_mismatch"):
                    agent.step()


@pytest.mark.parametrize("said", [{}, {"thinking": {"type": "disabled"}}], ids=["unasked", "switched off"])
def test_thoughts_are_refused_once_however_little_is_said_of_thinking(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    """Was refused for ever: the provider was asked only by who asked for thinking."""
    with agent_of(ADAPTIVE) as agent:
        made_room_for(agent, tmp_path)
        asks: dict[str, Any] = {"model": MODEL, "tools": TOOLS, "messages": agent.messages, **said}
        with two_gateways(agent, tmp_path, replace(TIGHT, window_tokens=None)):
            client = next(agent.clients)
            with pytest.raises(anthropic.BadRequestError, match="prefix_mismatch"):
                client.messages.create(max_tokens=1500, **asks)
            assert client.messages.create(max_tokens=1500, **asks).content
            assert client.messages.count_tokens(**asks).input_tokens > 0
            sent = agent.sandbox.requests[-1].body

    assert bool(thoughts_in(json.loads(sent)["messages"])) is (DROPS in sent) is not bool(said)


def test_after_a_refusal_of_something_else_thoughts_behind_a_fold_are_trusted_still(tmp_path: Path) -> None:
    """Was all left out, for ever, that had been thought behind the fold."""
    with agent_of(ADAPTIVE) as agent:
        with two_gateways(agent, tmp_path):
            before = folded_for(agent, 4)[-1]
            with pytest.raises(anthropic.BadRequestError, match="top_k"):
                next(agent.clients).messages.create(
                    model=MODEL,
                    max_tokens=1500,
                    tools=TOOLS,
                    thinking=ADAPTIVE,
                    messages=agent.messages,
                    extra_body={"top_k": 5},
                )
        with two_gateways(agent, tmp_path):  # all is kept by then
            is_folded, thoughts = agent.step()

    assert is_folded
    assert len(before) > 1
    assert thoughts[: len(before)] == before


def test_whoever_else_is_sent_what_the_provider_is_to_leave_out_is_asked_for_that_beta(tmp_path: Path) -> None:
    """Was: a summary that reads the cache was refused, and asked for once more at its full price."""
    with agent_of(ENABLED) as agent:
        made_room_for(agent, tmp_path)
        before = len(agent.sandbox.requests)
        with two_gateways(agent, tmp_path, replace(FOLDING, window_tokens=25_000)):
            for _ in range(2):
                with pytest.raises(anthropic.BadRequestError, match="prefix_mismatch"):
                    agent.step()
            folded_for(agent, 1)
        dropping = [ask for ask in agent.sandbox.requests[before:] if DROPS in ask.body]

    assert [ask for ask in dropping if "x-sandbox-answer" not in ask.headers]  # who asks for a summary
    assert {ask.headers.get("anthropic-beta") for ask in dropping} == {BETA}

"""Signed thinking blocks after a compaction and after its undo, through two gateways in turn."""

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
COMPACTING = AgentOptions(
    compaction=True,
    window_tokens=9_000,
    compaction_options=CompactionOptions(extractive=True, tail_keep_tokens=1_500, min_turns_between=4),
)
ROOMY = replace(COMPACTING, window_tokens=None)
ADAPTIVE: Any = {"type": "adaptive"}
ENABLED: Any = {"type": "enabled", "budget_tokens": 1024}
TIGHT = AgentOptions(compaction=False, on_overflow=OnOverflow.MAKE_ROOM, window_tokens=9_000)
LEFT_OUT = b"[left out: "
DROPS = b'"prefix_mismatch_behavior":"drop_block"'
BETA = "thinking-binding-controls-2026-08-01"
SUMMARY = b"were folded into this summary"


@dataclass
class Agent:
    """An agent that reads files in turn, thinks before each, and alternates between gateways."""

    sandbox: RunningSandbox
    thinking: Any
    clients: Iterator[anthropic.Anthropic] = field(default_factory=lambda: iter(()))
    messages: list[Any] = field(default_factory=lambda: [{"role": "user", "content": "Find the slow parser."}])

    def step(self) -> tuple[bool, list[str]]:
        """Send one more turn; tell whether a summary was sent, and which thinking texts."""
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
        return SUMMARY in sent, thinking_in(json.loads(sent)["messages"])


def thinking_in(messages: list[Any]) -> list[str]:
    contents = [message["content"] for message in messages if isinstance(message["content"], list)]
    return [block["thinking"] for content in contents for block in content if block["type"] == "thinking"]


@contextmanager
def running_agent(thinking: Any) -> Iterator[Agent]:
    with running_sandbox() as sandbox:
        yield Agent(sandbox, thinking)


@contextmanager
def two_gateways(
    agent: Agent, folder: Path, options: AgentOptions = COMPACTING
) -> Iterator[list[RunningGateway]]:
    """Run two gateways on one store; the agent alternates between them."""
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


def run_with_store(folder: Path, callback: Any) -> Any:
    async def do() -> Any:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return await callback(store)

    return asyncio.run(do())


async def successful_compactions(store: Store) -> list[Compaction]:
    return [one for one in await store.compactions.list_compactions() if one.outcome is CompactionOutcome.OK]


def run_until_compacted_for(agent: Agent, steps: int) -> list[list[str]]:
    """Return the thinking texts sent in each request since the last compaction."""
    sent: list[list[str]] = []
    for _ in range(40):
        is_compacted, thinking_texts = agent.step()
        sent = [*sent, thinking_texts] if is_compacted else []
        if len(sent) == steps:
            return sent
    pytest.fail("it was never folded for so long")


@pytest.mark.parametrize("thinking", [ADAPTIVE, ENABLED], ids=["adaptive", "enabled"])
def test_thinking_blocks_after_a_summary_are_sent_back_by_both_gateways(tmp_path: Path, thinking: Any) -> None:
    """Regression: they were omitted from each request."""
    with running_agent(thinking) as agent, two_gateways(agent, tmp_path):
        sent = run_until_compacted_for(agent, 8)

        for before, after in itertools.pairwise(sent[1:]):
            assert after[: len(before)] == before
        assert len(sent[-1]) > 3
        assert len(run_with_store(tmp_path, successful_compactions)) == 1


def test_after_an_undo_only_thinking_blocks_after_the_summary_are_omitted(tmp_path: Path) -> None:
    """Regression: all thinking blocks since the compaction were omitted."""

    async def undo(store: Store) -> None:
        for compaction in await successful_compactions(store):
            assert await store.compactions.undo(compaction.id, now=1.0)

    with running_agent(ADAPTIVE) as agent:
        with two_gateways(agent, tmp_path):
            run_until_compacted_for(agent, 5)
            under = {f"thought {len(agent.messages) - 2 * back}" for back in range(1, 6)}
        run_with_store(tmp_path, undo)
        everything = thinking_in(agent.messages)
        with two_gateways(agent, tmp_path, ROOMY):
            sent = [agent.step() for _ in range(4)]

    assert not any(is_compacted for is_compacted, _ in sent)
    expected = [thinking_text for thinking_text in everything if thinking_text not in under]
    assert sent[0][1] == expected
    assert len(expected) > 5
    new = [f"thought {len(agent.messages) - 2 * back}" for back in (4, 3, 2)]
    assert sent[-1][1] == [*expected, *new]


def test_a_wrong_record_of_a_compaction_causes_only_one_rejected_request(
    tmp_path: Path,
) -> None:
    with running_agent(ADAPTIVE) as agent, two_gateways(agent, tmp_path):
        run_until_compacted_for(agent, 3)
        chain = compute_chain(formats.parse_request({"model": MODEL, "messages": agent.messages}))

        async def mistake(store: Store) -> None:
            (compaction,) = await successful_compactions(store)
            early = compaction.messages + 1
            use = ApplicationChange(
                compaction_id=compaction.id, last_hash=chain.hashes[early - 1], messages=early, is_applied=True
            )
            await store.compactions.record_application_changes([use])

        run_with_store(tmp_path, mistake)
        with pytest.raises(anthropic.BadRequestError, match="prefix_mismatch"):
            agent.step()

        async def is_doubted(store: Store) -> bool:
            (compaction,) = await successful_compactions(store)
            return any(
                use.is_applied is None
                for use in await store.compactions.list_application_changes([compaction.id])
            )

        deadline = time.monotonic() + 10
        while not run_with_store(tmp_path, is_doubted):  # behind the answer
            assert time.monotonic() < deadline, "nobody has doubted it"
            time.sleep(0.02)
        is_compacted, thinking_texts = agent.step()
        assert (is_compacted, thinking_texts) == (True, [])
        assert len(agent.step()[1]) == 1


def run_with_cut_history(agent: Agent, folder: Path) -> None:
    """Run the agent so that some thinking blocks follow messages that were cut."""
    with two_gateways(agent, folder, TIGHT):
        while not agent.sandbox.requests or LEFT_OUT not in agent.sandbox.requests[-1].body:
            agent.step()
        for _ in range(3):
            agent.step()


@pytest.mark.parametrize("thinking", [ADAPTIVE, ENABLED], ids=["adaptive", "enabled"])
def test_thinking_blocks_after_cut_history_are_rejected_only_once_when_it_fits_again(
    tmp_path: Path, thinking: Any
) -> None:
    """Regression: they were rejected forever."""
    with running_agent(thinking) as agent:
        run_with_cut_history(agent, tmp_path)
        with two_gateways(agent, tmp_path, replace(TIGHT, window_tokens=None)):
            for _ in range(2):  # each gateway has to find out
                with pytest.raises(anthropic.BadRequestError, match="prefix_mismatch"):
                    agent.step()
            for _ in range(4):
                agent.step()
                assert DROPS in agent.sandbox.requests[-1].body


def test_a_client_that_wants_thinking_blocks_rejected_gets_the_error(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("contents", [{}, {"thinking": {"type": "disabled"}}], ids=["unasked", "switched off"])
def test_thinking_blocks_are_rejected_only_once_whatever_the_thinking_parameter(
    tmp_path: Path, contents: dict[str, Any]
) -> None:
    """Regression: without a thinking parameter they were rejected forever."""
    with running_agent(ADAPTIVE) as agent:
        run_with_cut_history(agent, tmp_path)
        request_options: dict[str, Any] = {
            "model": MODEL,
            "tools": TOOLS,
            "messages": agent.messages,
            **contents,
        }
        with two_gateways(agent, tmp_path, replace(TIGHT, window_tokens=None)):
            client = next(agent.clients)
            with pytest.raises(anthropic.BadRequestError, match="prefix_mismatch"):
                client.messages.create(max_tokens=1500, **request_options)
            assert client.messages.create(max_tokens=1500, **request_options).content
            assert client.messages.count_tokens(**request_options).input_tokens > 0
            sent = agent.sandbox.requests[-1].body

    assert bool(thinking_in(json.loads(sent)["messages"])) is (DROPS in sent) is not bool(contents)


def test_thinking_blocks_after_a_compaction_stay_trusted_after_an_unrelated_error(tmp_path: Path) -> None:
    """Regression: all thinking blocks after the compaction were omitted forever."""
    with running_agent(ADAPTIVE) as agent:
        with two_gateways(agent, tmp_path):
            before = run_until_compacted_for(agent, 4)[-1]
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
            is_compacted, thinking_texts = agent.step()

    assert is_compacted
    assert len(before) > 1
    assert thinking_texts[: len(before)] == before


def test_every_request_with_thinking_blocks_to_drop_has_the_beta_header(tmp_path: Path) -> None:
    """Regression: a summary that reads the cache was rejected, and repeated at full price."""
    with running_agent(ENABLED) as agent:
        run_with_cut_history(agent, tmp_path)
        before = len(agent.sandbox.requests)
        with two_gateways(agent, tmp_path, replace(COMPACTING, window_tokens=25_000)):
            for _ in range(2):
                with pytest.raises(anthropic.BadRequestError, match="prefix_mismatch"):
                    agent.step()
            run_until_compacted_for(agent, 1)
        dropping = [ask for ask in agent.sandbox.requests[before:] if DROPS in ask.body]

    assert [ask for ask in dropping if "x-sandbox-answer" not in ask.headers]  # who asks for a summary
    assert {ask.headers.get("anthropic-beta") for ask in dropping} == {BETA}

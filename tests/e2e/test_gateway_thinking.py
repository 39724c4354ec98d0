"""Signed thinking blocks after a compaction and after its undo, through two gateways in turn."""

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
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
from foveate.gateway.server.broadcast import WorkerBroadcast
from foveate.session.hash_chain import compute_chain
from foveate.store import Store, open_store
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox

MODEL = "claude-opus-5-5"
TOOLS: Any = [{"name": "read", "description": "Reads a file.", "input_schema": {"type": "object"}}]
COMPACTION_OPTIONS = AgentOptions(
    compaction=True,
    window_tokens=9_000,
    compaction_options=CompactionOptions(extractive=True, tail_keep_tokens=1_500, min_turns_between=4),
)
NO_WINDOW_OPTIONS = replace(COMPACTION_OPTIONS, window_tokens=None)
ADAPTIVE: Any = {"type": "adaptive"}
ENABLED: Any = {"type": "enabled", "budget_tokens": 1024}
CUTTING_OPTIONS = AgentOptions(compaction=False, on_overflow=OnOverflow.MAKE_ROOM, window_tokens=9_000)
OMISSION_NOTE = b"[left out: "
DROP_BLOCK = b'"prefix_mismatch_behavior":"drop_block"'
BETA = "thinking-binding-controls-2026-08-01"
SUMMARY = b"this summary replaces the first"


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
        # Every fourth turn ends without a tool call.
        answer = {"text": "So far so good."} if number % 8 == 7 else {"tools": [{"name": "read"}]}
        self.sandbox.clock.now += 20
        reply = next(self.clients).messages.create(
            model=MODEL,
            max_tokens=1500,
            tools=TOOLS,
            thinking=self.thinking,
            messages=self.messages,
            extra_headers={"x-sandbox-answer": json.dumps({"thinking": f"thinking {number}", **answer})},
        )
        body = next(
            request.body for request in reversed(self.sandbox.requests) if "x-sandbox-answer" in request.headers
        )
        content = [block.model_dump(exclude_none=True) for block in reply.content]
        calls = [block["id"] for block in content if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call_id, "content": listing} for call_id in calls]
        self.messages += [
            {"role": "assistant", "content": content},
            {"role": "user", "content": results or f"Go on. {listing}"},
        ]
        return SUMMARY in body, read_thinking(json.loads(body)["messages"])


def read_thinking(messages: list[Any]) -> list[str]:
    contents = [message["content"] for message in messages if isinstance(message["content"], list)]
    return [block["thinking"] for content in contents for block in content if block["type"] == "thinking"]


@contextmanager
def running_agent(thinking: Any) -> Iterator[Agent]:
    with running_sandbox() as sandbox:
        yield Agent(sandbox, thinking)


@contextmanager
def two_gateways(
    agent: Agent, folder: Path, options: AgentOptions = COMPACTION_OPTIONS
) -> Iterator[list[RunningGateway]]:
    """Run two workers on one store; the agent alternates between them."""
    with ExitStack() as stack:
        broadcast = stack.enter_context(closing(WorkerBroadcast.create(2)))
        gateways = [
            stack.enter_context(
                running_gateway(
                    agent.sandbox.url,
                    folder,
                    clock=agent.sandbox.clock,
                    options=options,
                    server=ServerSettings(workers=2),
                    broadcast=WorkerBroadcast(broadcast.descriptor, worker),
                )
            )
            for worker in range(2)
        ]
        clients = [
            stack.enter_context(anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0))
            for gateway in gateways
        ]
        agent.clients = itertools.cycle(clients)
        yield gateways
        assert [problem for gateway in gateways for problem in gateway.failed_steps] == []


def run_with_store(folder: Path, callback: Any) -> Any:
    async def run() -> Any:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return await callback(store)

    return asyncio.run(run())


async def successful_compactions(store: Store) -> list[Compaction]:
    return [
        compaction
        for compaction in await store.compactions.list_compactions()
        if compaction.outcome is CompactionOutcome.OK
    ]


def run_until_compacted_for(agent: Agent, steps: int) -> list[list[str]]:
    """Return the thinking texts sent in each request since the last compaction."""
    texts_by_request: list[list[str]] = []
    for _ in range(40):
        is_compacted, thinking_texts = agent.step()
        texts_by_request = [*texts_by_request, thinking_texts] if is_compacted else []
        if len(texts_by_request) == steps:
            return texts_by_request
    pytest.fail("no compaction lasted long enough")


@pytest.mark.parametrize("thinking", [ADAPTIVE, ENABLED], ids=["adaptive", "enabled"])
def test_thinking_blocks_after_a_summary_are_sent_back_by_both_gateways(tmp_path: Path, thinking: Any) -> None:
    """Regression: they were omitted from each request."""
    with running_agent(thinking) as agent, two_gateways(agent, tmp_path):
        texts_by_request = run_until_compacted_for(agent, 8)

        for before, after in itertools.pairwise(texts_by_request[1:]):
            assert after[: len(before)] == before
        assert len(texts_by_request[-1]) > 3
        assert len(run_with_store(tmp_path, successful_compactions)) == 1


def test_after_an_undo_only_thinking_blocks_after_the_summary_are_omitted(tmp_path: Path) -> None:
    """Regression: all thinking blocks since the compaction were omitted."""

    async def undo(store: Store) -> None:
        for compaction in await successful_compactions(store):
            assert await store.compactions.undo(compaction.id, now=1.0)

    with running_agent(ADAPTIVE) as agent:
        with two_gateways(agent, tmp_path):
            run_until_compacted_for(agent, 5)
            texts_after_summary = {f"thinking {len(agent.messages) - 2 * offset}" for offset in range(1, 6)}
        run_with_store(tmp_path, undo)
        all_texts = read_thinking(agent.messages)
        with two_gateways(agent, tmp_path, NO_WINDOW_OPTIONS):
            steps = [agent.step() for _ in range(4)]

    assert not any(is_compacted for is_compacted, _ in steps)
    expected = [text for text in all_texts if text not in texts_after_summary]
    assert steps[0][1] == expected
    assert len(expected) > 5
    new_texts = [f"thinking {len(agent.messages) - 2 * offset}" for offset in (4, 3, 2)]
    assert steps[-1][1] == [*expected, *new_texts]


def test_a_wrong_record_of_a_compaction_causes_only_one_rejected_request(
    tmp_path: Path,
) -> None:
    with running_agent(ADAPTIVE) as agent, two_gateways(agent, tmp_path):
        run_until_compacted_for(agent, 3)
        chain = compute_chain(formats.parse_request({"model": MODEL, "messages": agent.messages}))

        async def record_wrong_application(store: Store) -> None:
            (compaction,) = await successful_compactions(store)
            wrong_count = compaction.messages + 1
            change = ApplicationChange(
                compaction_id=compaction.id,
                last_hash=chain.hashes[wrong_count - 1],
                messages=wrong_count,
                is_applied=True,
            )
            await store.compactions.record_application_changes([change])

        run_with_store(tmp_path, record_wrong_application)
        with pytest.raises(anthropic.BadRequestError, match="prefix_mismatch"):
            agent.step()

        async def is_application_unknown(store: Store) -> bool:
            (compaction,) = await successful_compactions(store)
            return any(
                change.is_applied is None
                for change in await store.compactions.list_application_changes([compaction.id])
            )

        deadline = time.monotonic() + 30
        while not run_with_store(tmp_path, is_application_unknown):  # after the response, in the background
            assert time.monotonic() < deadline, "the application is not marked as unknown"
            time.sleep(0.02)
        is_compacted, thinking_texts = agent.step()
        assert (is_compacted, thinking_texts) == (True, [])
        assert len(agent.step()[1]) == 1


def run_with_cut_history(agent: Agent, folder: Path) -> None:
    """Run the agent so that some thinking blocks follow messages that were cut."""
    with two_gateways(agent, folder, CUTTING_OPTIONS):
        while not agent.sandbox.requests or OMISSION_NOTE not in agent.sandbox.requests[-1].body:
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
        with two_gateways(agent, tmp_path, replace(CUTTING_OPTIONS, window_tokens=None)):
            for _ in range(2):  # each gateway learns it separately
                with pytest.raises(anthropic.BadRequestError, match="prefix_mismatch"):
                    agent.step()
            for _ in range(4):
                agent.step()
                assert DROP_BLOCK in agent.sandbox.requests[-1].body


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


@pytest.mark.parametrize("fields", [{}, {"thinking": {"type": "disabled"}}], ids=["not set", "disabled"])
def test_thinking_blocks_are_rejected_only_once_whatever_the_thinking_parameter(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    """Regression: without a thinking parameter they were rejected forever."""
    with running_agent(ADAPTIVE) as agent:
        run_with_cut_history(agent, tmp_path)
        request: dict[str, Any] = {
            "model": MODEL,
            "tools": TOOLS,
            "messages": agent.messages,
            **fields,
        }
        with two_gateways(agent, tmp_path, replace(CUTTING_OPTIONS, window_tokens=None)):
            client = next(agent.clients)
            with pytest.raises(anthropic.BadRequestError, match="prefix_mismatch"):
                client.messages.create(max_tokens=1500, **request)
            assert client.messages.create(max_tokens=1500, **request).content
            assert client.messages.count_tokens(**request).input_tokens > 0
            body = agent.sandbox.requests[-1].body

    assert bool(read_thinking(json.loads(body)["messages"])) is (DROP_BLOCK in body) is not bool(fields)


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
        with two_gateways(agent, tmp_path):  # everything is stored by then
            is_compacted, thinking_texts = agent.step()

    assert is_compacted
    assert len(before) > 1
    assert thinking_texts[: len(before)] == before


def test_every_request_with_thinking_blocks_to_drop_has_the_beta_header(tmp_path: Path) -> None:
    """Regression: a summary that reads the cache was rejected, and repeated at full price."""
    with running_agent(ENABLED) as agent:
        run_with_cut_history(agent, tmp_path)
        before = len(agent.sandbox.requests)
        with two_gateways(agent, tmp_path, replace(COMPACTION_OPTIONS, window_tokens=25_000)):
            for _ in range(2):
                with pytest.raises(anthropic.BadRequestError, match="prefix_mismatch"):
                    agent.step()
            run_until_compacted_for(agent, 1)
        requests_with_drops = [
            request for request in agent.sandbox.requests[before:] if DROP_BLOCK in request.body
        ]

    # Requests for summaries are among them.
    assert any("x-sandbox-answer" not in request.headers for request in requests_with_drops)
    assert {request.headers.get("anthropic-beta") for request in requests_with_drops} == {BETA}

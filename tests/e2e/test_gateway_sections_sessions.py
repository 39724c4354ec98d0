"""Long sessions with all sections: read from the cache, within the window, no thinking block rejected."""

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import anthropic
import pytest

from foveate.compaction.plan import CompactionOptions
from foveate.compaction.store import Compaction, CompactionOutcome
from foveate.context.workspace_cache import WorkspaceCacheOptions
from foveate.engine.options import AgentOptions, SectionOptions
from foveate.store import open_store
from tests.support.oracles.system_state import wait_until
from tests.support.processes.commands import spawn
from tests.support.scenarios.injected_sections import HEADING, garden_sections
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox

ADAPTIVE = {"type": "adaptive"}
ENABLED = {"type": "enabled", "budget_tokens": 1024}
TOOLS: Any = [
    {
        "name": name,
        "description": f"Does {name} with a file. " * 40,
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
    for name in ("read", "write", "search", "run")
]
SYSTEM = "You are a careful engineer. Never push to the main branch. " * 60
REQUESTS_PER_TURN = 10  # requests for each message of the user


@dataclass
class AgentSession:
    """An agent that reads files in turn, gets occasional user messages, and resends its whole history."""

    client: anthropic.Anthropic
    sandbox: RunningSandbox
    model: str
    thinking: dict[str, Any] | None = None
    messages: list[Any] = field(default_factory=lambda: [{"role": "user", "content": "When gets bed 7 water?"}])
    inputs: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    thinking_blocks: int = 0
    result_lines: int = 26

    def send_requests(self, count: int) -> None:
        for _ in range(count):
            self._send_request()

    def _send_request(self) -> None:
        number = len(self.inputs)
        request: dict[str, Any] = {"thinking": self.thinking} if self.thinking else {}
        reply = self.client.messages.create(
            model=self.model,
            max_tokens=3000,
            system=SYSTEM,
            tools=TOOLS,
            messages=self.messages,
            extra_headers={"x-foveate-channel": "slack", "x-foveate-sender": f"U{number % 3}"},
            **request,
        )
        usage = reply.usage
        read_tokens, written_tokens = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        self.inputs.append(usage.input_tokens + read_tokens + written_tokens)
        self.reads.append(read_tokens)
        self.sandbox.clock.now += 20
        new_blocks = [
            block.model_dump(exclude_none=True) for block in reply.content if block.type == "thinking"
        ]
        self.thinking_blocks += len(new_blocks)
        if number % REQUESTS_PER_TURN == REQUESTS_PER_TURN - 1:
            self.messages += [
                {
                    "role": "assistant",
                    "content": [*new_blocks, {"type": "text", "text": f"Part {number} is done."}],
                },
                {"role": "user", "content": f"Now look at bed {number % 20}."},
            ]
            return
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "read", "input": {"path": f"p{number}.py"}}
        listing = "\n".join(
            f"def parse_{number}_{line}(text): return text.split({line})" for line in range(self.result_lines)
        )
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": listing}
        self.messages += [
            {"role": "assistant", "content": [*new_blocks, {"type": "text", "text": "I look."}, call]},
            {"role": "user", "content": [result]},
        ]

    @property
    def hit_ratio(self) -> float:
        return sum(self.reads) / sum(self.inputs)

    @property
    def last_request(self) -> str:
        """Return the last request body that arrived."""
        return self.sandbox.requests[-1].body.decode()


@contextmanager
def running_session(
    sandbox: RunningSandbox, folder: Path, options: AgentOptions
) -> Iterator[tuple[anthropic.Anthropic, RunningGateway]]:
    with (
        running_gateway(sandbox.url, folder, clock=sandbox.clock, options=options) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        yield client, gateway


@pytest.fixture
def sections(tmp_path: Path) -> SectionOptions:
    cache_options = WorkspaceCacheOptions(watch_debounce_ms=10)
    return replace(garden_sections(tmp_path / "garden", memory_limit_tokens=200), workspace_cache=cache_options)


@pytest.mark.parametrize(
    ("model", "thinking"),
    [
        ("claude-sonnet-4-6", None),
        ("claude-opus-4-1", ENABLED),
        ("claude-opus-5-5", ADAPTIVE),
    ],
)
def test_thirty_requests_of_an_agent_with_tools_are_read_from_the_cache(
    tmp_path: Path, sections: SectionOptions, model: str, thinking: dict[str, Any] | None
) -> None:
    with (
        running_sandbox() as sandbox,
        running_session(sandbox, tmp_path, AgentOptions(sections=sections)) as (client, gateway),
    ):
        session = AgentSession(client, sandbox, model, thinking)
        session.send_requests(30)

    assert gateway.failed_steps == []
    assert session.hit_ratio > 0.9
    assert session.thinking_blocks == (30 if thinking else 0)
    assert session.last_request.count('"type":"thinking"') == (29 if thinking else 0)
    # A thinking block after a text stays: one for each turn of the user.
    assert session.last_request.count(HEADING) == (1 if model == "claude-sonnet-4-6" else 3)


def test_another_gateway_continues_a_session_with_thinking_blocks_after_unknown_content(
    tmp_path: Path, sections: SectionOptions
) -> None:
    options = AgentOptions(sections=sections)
    with running_sandbox() as sandbox:
        with running_session(sandbox, tmp_path, options) as (client, _):
            session = AgentSession(client, sandbox, "claude-opus-5-5", ADAPTIVE)
            session.send_requests(5)
        with running_session(sandbox, tmp_path, options) as (client, gateway):
            session.client = client
            session.send_requests(10)

    assert gateway.failed_steps == []
    assert session.reads[-1] > 0.9 * session.inputs[-1]
    # Earlier blocks are omitted, all later ones are present.
    assert session.last_request.count('"type":"thinking"') >= 9


def test_a_workspace_edit_is_sent_at_once_and_no_thinking_block_is_rejected(
    tmp_path: Path, sections: SectionOptions
) -> None:
    with (
        running_sandbox() as sandbox,
        running_session(sandbox, tmp_path, AgentOptions(sections=sections)) as (client, gateway),
    ):
        session = AgentSession(client, sandbox, "claude-opus-5-5", ADAPTIVE)
        session.send_requests(5)
        (tmp_path / "garden" / "workspace" / "USER.md").write_text("# Bob\n\nHas tulips.\n")
        # The change is sent as soon as it is detected.
        wait_until(lambda: session.send_requests(1), lambda _: "Has tulips." in session.last_request)
        edited_request = session.last_request
        session.send_requests(5)

    assert gateway.failed_steps == []
    assert "Has tulips." in edited_request
    assert "Has roses." not in edited_request
    assert session.reads[-1] > 0.9 * session.inputs[-1]
    assert session.last_request.count('"type":"thinking"') == 5


DECISION = r"MEMORY.md, \d+ added tokens \(at the end, because writing the history again would cost \$0\.0[1-9]"


def read_reasons(folder: Path, text: str) -> list[str]:
    """The reasons of edits with this text, of all requests."""

    async def read() -> list[str]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            traces = await store.traces.list_traces(limit=1_000)
            return [edit.reason for charged in traces for edit in charged.trace.edits if text in edit.reason]

    return asyncio.run(read())


def append_to_memory(folder: Path, line: str) -> None:
    with (folder / "garden" / "workspace" / "MEMORY.md").open("a") as file:
        file.write(f"{line}\n")


def test_a_line_added_to_a_file_is_sent_at_once_without_writing_the_history_again(
    tmp_path: Path, sections: SectionOptions
) -> None:
    with (
        running_sandbox() as sandbox,
        running_session(sandbox, tmp_path, AgentOptions(sections=sections)) as (client, gateway),
    ):
        append_to_memory(tmp_path, "Bob is allergic to lilies.")
        session = AgentSession(client, sandbox, "claude-sonnet-4-6")
        session.send_requests(20)
        append_to_memory(tmp_path, "The pump is broken.")
        wait_until(lambda: session.send_requests(1), lambda _: "The pump is broken." in session.last_request)
        added_at = len(session.reads) - 1
        added_request = json.loads(session.last_request)
        session.send_requests(5)
        reads, inputs = session.reads[added_at:], session.inputs[added_at:]
        sandbox.clock.now += 4_000  # the cache expires
        session.send_requests(1)
        moved_request = json.loads(session.last_request)

    assert gateway.failed_steps == []
    assert "lilies" in str(added_request["system"])
    assert "pump" not in str(added_request["system"])
    added_block = next(
        block["text"] for block in added_request["messages"][-1]["content"] if "pump" in block.get("text", "")
    )
    assert "Added to workspace/MEMORY.md:\nThe pump is broken." in added_block
    assert all(read > 0.85 * tokens for read, tokens in zip(reads, inputs, strict=True))
    assert "The pump is broken." in str(moved_request["system"])
    assert "pump" not in str(moved_request["messages"])
    assert read_moves(tmp_path) == []  # nothing was decided for money: the cache had expired
    # `foveate explain` shows why they are at the end.
    reasons = read_reasons(tmp_path, "added tokens")
    assert len(reasons) == len(reads)
    assert all(re.search(DECISION, reason) for reason in reasons)
    (moved,) = read_reasons(tmp_path, "moved before the history")
    assert re.search(
        r"MEMORY.md.* \(moved before the history, which is expected to save \$0\.000[1-9] in about \d+ more",
        moved,
    )


def read_moves(folder: Path) -> list[Compaction]:
    async def read() -> list[Compaction]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return list(await store.compactions.list_compactions())

    return asyncio.run(read())


def write_beds(count: int) -> str:
    return "".join(f"Bed {number} has roses, tulips and thyme.\n" for number in range(count))


@pytest.mark.process
def test_a_move_that_pays_is_recorded_with_what_it_was_expected_to_save_and_has_saved(
    tmp_path: Path, sections: SectionOptions
) -> None:
    url = f"sqlite:///{tmp_path}/gateway.sqlite"
    with (
        running_sandbox() as sandbox,
        running_session(sandbox, tmp_path, AgentOptions(sections=sections)) as (client, gateway),
    ):
        append_to_memory(tmp_path, "Bob is allergic to lilies.")
        session = AgentSession(client, sandbox, "claude-sonnet-4-6", result_lines=0)
        session.send_requests(80)  # a long session with a short history: its edits may risk a loss
        append_to_memory(tmp_path, f"{write_beds(200)}The pump is broken.")
        wait_until(
            lambda: client.messages.count_tokens(  # a count moves nothing
                model=session.model, system=SYSTEM, tools=TOOLS, messages=session.messages
            ),
            lambda count: count.input_tokens > session.inputs[-1] + 2_000,
        )
        sandbox.clock.now += 20
        session.send_requests(4)
        sandbox.clock.now += 4_000  # the cache expires
        session.send_requests(2)
        gateway.wait_for_compactions(len(session.inputs))
        moved_request = json.loads(session.last_request)
    (move,) = read_moves(tmp_path)

    assert gateway.failed_steps == []
    assert "The pump is broken." in str(moved_request["system"])
    assert move.outcome is CompactionOutcome.SECTIONS_MOVED
    assert re.fullmatch(r"[\d,]+ tokens were added to workspace/MEMORY.md", move.reason)
    decision = move.decision
    assert decision is not None
    assert decision.moment == "arrival"
    assert decision.gain_dollars > decision.cost_dollars > 0
    saved = 3 * decision.saved_per_request_dollars - decision.cost_dollars

    shown = json.loads(spawn("compactions", "show", move.id, "--store", url, "--json").out)
    assert shown["decision"] == asdict(decision)
    assert shown["realized"]["requests"] == 3
    assert float(shown["realized"]["dollars"]) == pytest.approx(saved)
    sentences = (
        f"it was expected to save ${decision.gain_dollars:.4f}",
        f"So far it has {'saved' if saved > 0 else 'lost'} ${abs(saved):.4f} in 3 requests, writing",
    )
    explained = json.loads(spawn("explain", move.session_id, "--store", url, "--json").out)
    (edit,) = explained["edits"]
    assert (edit["id"], edit["outcome"], edit["realized_requests"]) == (move.id, "sections_moved", 3)
    for text in (
        spawn("compactions", "show", move.id, "--store", url).out,
        spawn("explain", move.session_id, "--store", url).out,
    ):
        assert all(sentence in " ".join(text.split()) for sentence in sentences)
    undone = spawn("compactions", "undo", move.id, "--store", url)
    assert (undone.code, "cannot be undone" in undone.err) == (2, True)


def test_lines_added_during_a_session_are_pinned_and_no_thinking_is_dropped(
    tmp_path: Path, sections: SectionOptions
) -> None:
    with (
        running_sandbox() as sandbox,
        running_session(sandbox, tmp_path, AgentOptions(sections=sections)) as (client, gateway),
    ):
        append_to_memory(tmp_path, "Bob is allergic to lilies.")
        session = AgentSession(client, sandbox, "claude-opus-5-5", ADAPTIVE)
        session.send_requests(5)
        append_to_memory(tmp_path, "The pump is broken.")
        wait_until(lambda: session.send_requests(1), lambda _: "The pump is broken." in session.last_request)
        added_at = len(session.reads) - 1
        session.send_requests(5)
        append_to_memory(tmp_path, "The gate is open.")
        wait_until(lambda: session.send_requests(1), lambda _: "The gate is open." in session.last_request)
        session.send_requests(5)
        last_request = json.loads(session.last_request)
        (tmp_path / "garden" / "workspace" / "MEMORY.md").write_text("The pump works.\n")
        wait_until(lambda: session.send_requests(1), lambda _: "The pump works." in session.last_request)
        edited_request = session.last_request

    assert gateway.failed_steps == []
    assert "lilies" in str(last_request["system"])
    assert "pump" not in str(last_request["system"])
    messages = str(last_request["messages"])
    assert messages.count("Added to workspace/MEMORY.md:") == 2
    assert (messages.count("The pump is broken."), messages.count("The gate is open.")) == (1, 1)
    assert messages.count("'type': 'thinking'") == len(last_request["messages"]) // 2
    reads, inputs = session.reads[added_at:-1], session.inputs[added_at:-1]
    assert all(read > 0.85 * tokens for read, tokens in zip(reads, inputs, strict=True))
    # A changed line must go, and all thinking that depends on it.
    assert "broken" not in edited_request
    assert '"type":"thinking"' not in edited_request


def test_an_edit_of_a_cached_text_is_in_the_system_prompt_at_once(
    tmp_path: Path, sections: SectionOptions
) -> None:
    with (
        running_sandbox() as sandbox,
        running_session(sandbox, tmp_path, AgentOptions(sections=sections)) as (client, gateway),
    ):
        append_to_memory(tmp_path, "The gate's code is 1234.")
        session = AgentSession(client, sandbox, "claude-sonnet-4-6")
        session.send_requests(10)
        (tmp_path / "garden" / "workspace" / "MEMORY.md").write_text("# Gate :private:\nThe code is 1234.\n")
        wait_until(lambda: session.send_requests(1), lambda _: "1234" not in session.last_request)
        session.send_requests(2)

    assert gateway.failed_steps == []
    assert "1234" not in session.last_request


def test_compaction_works_with_sections_and_nothing_overflows(tmp_path: Path, sections: SectionOptions) -> None:
    window_tokens = 14_000
    options = AgentOptions(
        sections=sections,
        compaction=True,
        window_tokens=window_tokens,
        compaction_options=CompactionOptions(extractive=True),
    )
    with (
        running_sandbox() as sandbox,
        running_session(sandbox, tmp_path, options) as (client, gateway),
    ):
        session = AgentSession(client, sandbox, "claude-opus-5-5", ADAPTIVE)
        session.send_requests(25)

    # Before the compaction, the window may be too small for all sections.
    assert {problem.step for problem in gateway.failed_steps} <= {"sections/room"}
    assert max(session.inputs) <= window_tokens - 3000
    bodies = [request.body for request in sandbox.requests]
    assert any(b"You are Ana" in body and b"this summary replaces the first" in body for body in bodies)

"""A long Gemini session: compacted, with truncated results, and within its window."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from foveate.compaction.overflow import OnOverflow
from foveate.compaction.plan import CompactionOptions
from foveate.cost.ledger import ChargeTotal, GroupBy
from foveate.engine.options import AgentOptions
from foveate.sandbox.script import STEP_HEADER, ScriptStep
from foveate.store import open_store
from tests.support.servers.gateway import running_gateway
from tests.support.servers.sandbox import RunningSandbox, running_sandbox

ROUTE = "/v1beta/models/gemini-2.5-flash:generateContent"
WINDOW_TOKENS = 9_000
TOOLS = [{"functionDeclarations": [{"name": "read", "parametersJsonSchema": {"type": "object"}}]}]
SUMMARY = (
    "Goal: find the slow parser. Done so far: the files src/part_1.py and after it were read one by one with"
    " the tool read, and each has functions parse_N_LINE that split a text. Nothing was changed. Next: read on."
)


def read_files(url: str, sandbox: RunningSandbox, turns: int, *, listing_lines: int = 26) -> list[int]:
    """Run an agent that reads file after file; return the prompt tokens of each call."""
    contents: list[Any] = [{"role": "user", "parts": [{"text": "Find the slow parser."}]}]
    prompts = []
    with httpx.Client(base_url=url, timeout=30, headers={"x-goog-api-key": "AIzaOfATest"}) as client:
        for number in range(turns):
            sandbox.clock.now += 20
            step = {"text": f"I look into part {number}.", "tools": [{"name": "read", "input": {"path": "a"}}]}
            request_body = {"contents": contents, "tools": TOOLS, "generationConfig": {"maxOutputTokens": 500}}
            response = client.post(ROUTE, json=request_body, headers={STEP_HEADER: json.dumps(step)})
            assert response.status_code == 200, response.text
            payload = response.json()
            prompts.append(payload["usageMetadata"]["promptTokenCount"])
            listing = "\n".join(f"def parse_{number}_{line}(text): return 1" for line in range(listing_lines))
            contents += [
                payload["candidates"][0]["content"],
                {
                    "role": "user",
                    "parts": [{"functionResponse": {"name": "read", "response": {"output": listing}}}],
                },
            ]
    return prompts


def read_totals(folder: Path) -> dict[str, ChargeTotal]:
    async def read() -> dict[str, ChargeTotal]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return {total.group[0]: total for total in await store.ledger.sum_charges([GroupBy.CATEGORY])}

    return asyncio.run(read())


def test_a_long_session_is_compacted_with_googles_chat_endpoint(tmp_path: Path) -> None:
    options = AgentOptions(compaction=True, window_tokens=WINDOW_TOKENS)
    with (
        running_sandbox(ScriptStep(text=SUMMARY), repeat=True) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        prompts = read_files(gateway.url, sandbox, 40)

    assert gateway.failed_steps == []
    assert max(prompts) <= WINDOW_TOKENS - 500
    summaries = [request for request in sandbox.requests if request.path == "/v1beta/openai/chat/completions"]
    assert summaries
    assert {request.headers["authorization"] for request in summaries} == {"Bearer AIzaOfATest"}
    assert SUMMARY.encode()[:100] in sandbox.requests[-1].body
    totals = read_totals(tmp_path)
    assert totals["main"].calls == 40
    assert totals["compaction"].calls == len(summaries)
    assert totals["compaction"].unknown_calls == 0


def test_a_long_session_is_compacted_without_a_model(tmp_path: Path) -> None:
    options = AgentOptions(
        compaction=True, window_tokens=WINDOW_TOKENS, compaction_options=CompactionOptions(extractive=True)
    )
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        prompts = read_files(gateway.url, sandbox, 40)

    assert gateway.failed_steps == []
    assert max(prompts) <= WINDOW_TOKENS - 500
    assert b"summary" in sandbox.requests[-1].body


def test_without_compaction_tool_results_are_cleared(tmp_path: Path) -> None:
    options = AgentOptions(on_overflow=OnOverflow.MAKE_ROOM, window_tokens=WINDOW_TOKENS)
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        prompts = read_files(gateway.url, sandbox, 30)

    assert gateway.failed_steps == []
    assert max(prompts) <= WINDOW_TOKENS - 500
    assert b"left out" in sandbox.requests[-1].body


def test_a_long_result_is_truncated_and_stays_an_object(tmp_path: Path) -> None:
    options = AgentOptions(
        compaction=True, window_tokens=30_000, compaction_options=CompactionOptions(extractive=True)
    )
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        read_files(gateway.url, sandbox, 2, listing_lines=900)

    part = json.loads(sandbox.requests[-1].body)["contents"][2]["parts"][0]["functionResponse"]
    assert gateway.failed_steps == []
    assert isinstance(part["response"], dict)
    assert len(json.dumps(part["response"])) < 30_000

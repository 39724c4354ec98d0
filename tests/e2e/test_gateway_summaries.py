"""Summaries of long sessions through the gateway: in the client's API, read from its cache, failures listed."""

import asyncio
import json
import urllib.request
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from foveate.compaction.plan import CompactionOptions
from foveate.compaction.store import Compaction, CompactionOutcome
from foveate.compaction.summarize.summarizer import EXTRACTIVE_MODEL
from foveate.cost.caps import Cap, CapScope
from foveate.cost.ledger import ChargeTotal, GroupBy
from foveate.engine.options import AgentOptions
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.routing import Route, Upstream
from foveate.sandbox.script import ScriptStep
from foveate.store import open_store
from tests.support.scenarios.compaction_sessions import chat_body, claude_body, responses_body
from tests.support.servers.gateway import running_gateway
from tests.support.servers.sandbox import KEY, running_sandbox

SUMMARY = (
    "The user looks for the slow parser in src/parsers. Never push to the main branch. Next was to say which it"
    " was."
)


def post(url: str, body: dict[str, Any]) -> None:
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}", "x-foveate-session": "one"}
    if url.endswith("/messages"):
        headers = {**headers, "x-api-key": KEY, "anthropic-version": "2023-06-01"}
        del headers["authorization"]
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        response.read()


def wait_for_compactions(folder: Path, count: int) -> tuple[Sequence[Compaction], ChargeTotal | None]:
    """Wait for this number of compactions; return them and the cost of their summaries."""

    async def read() -> tuple[Sequence[Compaction], ChargeTotal | None]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            for _ in range(500):
                rows = await store.compactions.list_compactions()
                if len(rows) >= count:
                    break
                await asyncio.sleep(0.02)
            totals = await store.ledger.sum_charges([GroupBy.CATEGORY])
            return rows, next((total for total in totals if total.group == ("compaction",)), None)

    return asyncio.run(read())


def claude_with_system_messages(steps: int) -> dict[str, Any]:
    body = claude_body(steps, model="claude-opus-4-8")
    body["messages"].append({"role": "system", "content": "The user opened src/parsers/part_3.py."})
    return body


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (responses_body(60), "/v1/responses"),
        (responses_body(60, model="gpt-6-sol"), "/v1/responses"),
        (chat_body(60, model="gpt-5.2"), "/v1/chat/completions"),
        (claude_with_system_messages(38), "/v1/messages"),
    ],
    ids=["Responses", "Responses with breakpoints", "chat", "a system message at the end"],
)
def test_a_summary_is_requested_in_the_clients_api_and_reads_its_cache(
    tmp_path: Path, body: dict[str, Any], path: str
) -> None:
    options = AgentOptions(
        compaction=True, window_tokens=16_000, compaction_options=CompactionOptions(tail_keep_tokens=1_000)
    )
    with (
        running_sandbox(ScriptStep(text=SUMMARY), repeat=True) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        post(f"{gateway.url}{path}", body)
        (compaction, *_), cost = wait_for_compactions(tmp_path, 1)

    assert gateway.failed_steps == []
    assert compaction.outcome is CompactionOutcome.OK, compaction.reason
    assert (compaction.model, compaction.summary) == (body["model"], SUMMARY)
    assert {request.path.removesuffix("/count_tokens") for request in sandbox.requests} == {path}
    assert cost is not None
    assert cost.read > 9 * (cost.uncached + cost.written_5m + cost.written_1h)


def test_a_summary_from_an_upstream_without_reuse_opens_its_own_connection(tmp_path: Path) -> None:
    """Regression: only requests of clients respected `reuse: false`."""
    options = AgentOptions(
        compaction=True, window_tokens=16_000, compaction_options=CompactionOptions(tail_keep_tokens=1_000)
    )
    with running_sandbox(ScriptStep(text=SUMMARY), repeat=True) as sandbox:
        upstream = Upstream(
            name="anthropic",
            base_url=sandbox.url,
            family=ApiFamily.ANTHROPIC,
            provider="anthropic",
            reuse=False,
        )
        with running_gateway(
            sandbox.url, tmp_path, clock=sandbox.clock, options=options, upstreams=[upstream]
        ) as gateway:
            post(f"{gateway.url}/v1/messages", claude_body(38, model="claude-opus-4-8"))
            (compaction, *_), _ = wait_for_compactions(tmp_path, 1)

    assert compaction.outcome is CompactionOutcome.OK, compaction.reason
    assert {request.headers.get("connection") for request in sandbox.requests} == {"close"}


def without_reasoning(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in ("reasoning", "include")}


FORCED_TOOL = {"tool_choice": "required"}


@pytest.mark.parametrize(
    ("body", "path", "upstream_path"),
    [
        (
            chat_body(60),
            "/openai/deployments/gpt/chat/completions?api-version=1",
            "/openai/deployments/house/chat/completions",
        ),
        (chat_body(60) | FORCED_TOOL, "/openai/v1/chat/completions", "/openai/v1/chat/completions"),
        (without_reasoning(responses_body(60)), "/openai/v1/responses", "/openai/v1/responses"),
        (
            without_reasoning(responses_body(60)) | FORCED_TOOL,
            "/openai/responses?api-version=1",
            "/openai/responses",
        ),
    ],
    ids=["deployment", "v1 chat as data", "v1 Responses", "Responses as data"],
)
def test_a_summary_from_azure_is_requested_at_the_deployment_of_the_session(
    tmp_path: Path, body: dict[str, Any], path: str, upstream_path: str
) -> None:
    """Regression: summaries named the model, or the alias of a route, where only the deployment is known."""
    options = AgentOptions(
        compaction=True, window_tokens=16_000, compaction_options=CompactionOptions(tail_keep_tokens=1_000)
    )
    with running_sandbox(ScriptStep(text=SUMMARY), repeat=True) as sandbox:
        azure = Upstream(
            name="azure",
            base_url=sandbox.url,
            family=ApiFamily.AZURE,
            provider="azure",
            deployments={"house": "gpt-4.1"},
        )
        with running_gateway(
            sandbox.url,
            tmp_path,
            clock=sandbox.clock,
            options=options,
            upstreams=[azure],
            routes=[Route(models="gpt", upstream="azure", model="house")],
            caps=[Cap(scope=CapScope.TOTAL, dollars=Decimal(10))],
        ) as gateway:
            post(f"{gateway.url}{path}", body | {"model": "gpt"})
            (compaction, *_), cost = wait_for_compactions(tmp_path, 1)

    assert gateway.failed_steps == []
    assert (compaction.outcome, compaction.model) == (CompactionOutcome.OK, "gpt-4.1"), compaction.reason
    assert len(sandbox.requests) >= 2
    assert {(request.path, request.query) for request in sandbox.requests} == {
        (upstream_path, path.partition("?")[2])
    }
    if "/deployments/" not in path:
        assert {json.loads(request.body)["model"] for request in sandbox.requests} == {"house"}
    assert cost is not None
    assert cost.unknown_calls == 0


def test_a_summary_that_fails_is_listed_with_its_reason(tmp_path: Path) -> None:
    options = AgentOptions(
        compaction=True, window_tokens=16_000, compaction_options=CompactionOptions(tail_keep_tokens=1_000)
    )
    with (
        running_sandbox(
            ScriptStep(text="Hello"), ScriptStep(status=401, message="no such key"), repeat=True
        ) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        post(f"{gateway.url}/v1/responses", responses_body(60))
        (compaction, *_), _ = wait_for_compactions(tmp_path, 1)

    assert compaction.outcome is CompactionOutcome.FAILED
    assert "401" in compaction.reason
    assert compaction.model != EXTRACTIVE_MODEL

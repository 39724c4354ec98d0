"""Faults of the summarizing model: nothing is lost, and requests go out unchanged."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from foveate import formats
from foveate.compaction.apply import build_compaction_edits
from foveate.compaction.compact import CompactionResult, CompactionRunner
from foveate.compaction.plan import CompactionOptions
from foveate.compaction.store import CompactionOutcome
from foveate.compaction.summarize.llm import LlmSummarizer, SummarizerEndpoint
from foveate.compaction.summarize.summarizer import EXTRACTIVE_MODEL
from foveate.http import JsonClient
from foveate.model import CacheUsage, Format, Request
from foveate.sandbox import validate_request
from foveate.sandbox.script import ScriptedCall, ScriptStep
from foveate.store import Store, open_store
from foveate.tokens import counter_for
from tests.support.scenarios.compaction_sessions import (
    AGENT,
    MODEL,
    OPTIONS,
    RULE,
    apply_compactions,
    chat_body,
    claude_body,
    make_subject,
    require_fit,
    source_path,
)
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox

SUMMARY_STEP = ScriptStep(
    text=f"The user looks for the slow parser in src/parsers. {RULE} Next was to say which it was."
)
ERROR_PAGE = "<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head><body>cloudflare</body></html>"

FAULTS = {
    "hangs": (ScriptStep(delay_seconds=20), "no summary within"),
    "500": (ScriptStep(status=500), "responded with status 500"),
    "empty": (ScriptStep(text=""), "empty|no content"),
    "error page": (ScriptStep(text=ERROR_PAGE), "an HTML page"),
    "error in json": (ScriptStep(text='{"error": {"message": "Overloaded"}}'), "an error"),
    "error in prose": (
        ScriptStep(text="That one is busy with other requests at the moment."),
        "nothing in common",
    ),
    "refusal in Spanish": (ScriptStep(text="Lo siento, pero no puedo ayudar con esa solicitud."), "refus"),
    "refusal": (ScriptStep(text="I'm sorry, but I can't help with that."), "refus"),
    "too long": (ScriptStep(text="all that was said and done " * 4_000), "longer than|cut off"),
    "tool call": (ScriptStep(tools=(ScriptedCall(name="read_file"),)), "calls a tool|answered"),
    "truncated": (
        ScriptStep(text="A summary.", disconnect_after=1),
        "connection|payload|disconnected|answer",
    ),
    "overloaded": (ScriptStep(overloaded=True), "responded with status 529"),
}


@dataclass(frozen=True, slots=True)
class Setup:
    """A store, a sandbox as the model, and a compaction runner."""

    store: Store
    sandbox: RunningSandbox
    runner: CompactionRunner

    async def compacted_body(self, request: Request) -> bytes:
        """Return the request with its compactions applied."""
        chain = make_subject(request.body, api_format=request.format).chain
        compactions = await self.store.compactions.find_compactions(AGENT, chain.hashes)
        return formats.apply_edits(request, build_compaction_edits(request, chain, compactions))


def headers(api_format: Format) -> dict[str, str]:
    if api_format is Format.ANTHROPIC:
        return {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    return {"authorization": f"Bearer {KEY}"}


def endpoint(sandbox: RunningSandbox, api_format: Format) -> SummarizerEndpoint:
    route = "/v1/messages" if api_format is Format.ANTHROPIC else "/v1/chat/completions"
    return SummarizerEndpoint(url=f"{sandbox.url}{route}", api_format=api_format, headers=headers(api_format))


@asynccontextmanager
async def running_setup(
    url: str,
    *steps: ScriptStep,
    repeat: bool = False,
    api_format: Format = Format.ANTHROPIC,
    model: str = "",
    options: CompactionOptions = OPTIONS,
) -> AsyncIterator[Setup]:
    with running_sandbox(*steps, repeat=repeat) as sandbox:
        async with await open_store(url) as store, JsonClient(timeout_seconds=5) as client:
            summarizer = LlmSummarizer(
                client, endpoint(sandbox, api_format), model=model, delays_seconds=(0.01, 0.01, 0.01)
            )
            runner = CompactionRunner(
                store.compactions,
                summarizer,
                counter_for(MODEL),
                holder="this one",
                clock=sandbox.clock,
                options=options,
            )
            yield Setup(store, sandbox, runner)


async def send(sandbox: RunningSandbox, request: Request) -> CacheUsage:
    """Send a request and return the reported cache usage."""
    target = endpoint(sandbox, request.format)
    async with JsonClient(timeout_seconds=5) as client:
        reply = await client.post_json(target.url, request.body, target.headers)
    usage = formats.parse_usage(request.format, bytes(reply["usage"]))
    assert usage is not None
    return usage.cache


def require_result(result: CompactionResult | None) -> CompactionResult:
    assert result is not None
    return result


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_of_the_model_loses_nothing(database_url: str, fault: str) -> None:
    step, reason = FAULTS[fault]
    candidate = make_subject(claude_body(12))
    options = replace(OPTIONS, limit_seconds=2 if fault == "hangs" else 60)
    async with running_setup(database_url, step, repeat=True, options=options) as setup:
        result = require_result(await setup.runner.compact(candidate))

        compactions = await setup.store.compactions.list_compactions(session_id=candidate.session_id)
        sent_body = await setup.compacted_body(candidate.original)
        next_lease = await setup.store.compactions.acquire_lease("a session", "the next", ttl_seconds=9, now=0)

    assert result.outcome is CompactionOutcome.FAILED
    assert result.compaction is not None
    assert re.search(reason, result.reason), result.reason
    assert [(row.outcome, row.summary, row.tokens_before) for row in compactions] == [
        (CompactionOutcome.FAILED, "", result.compaction.tokens_before)
    ]
    assert sent_body == candidate.original.body
    assert next_lease is not None, "a failure must not block other attempts"


async def test_a_request_to_an_overloaded_model_is_retried(database_url: str) -> None:
    candidate = make_subject(claude_body(12))
    async with running_setup(
        database_url, ScriptStep(overloaded=True), ScriptStep(status=500), SUMMARY_STEP, repeat=True
    ) as setup:
        result = require_result(await setup.runner.compact(candidate))
        compacted_body = await setup.compacted_body(candidate.original)

    assert result.outcome is CompactionOutcome.OK
    assert result.compaction is not None
    assert "slow parser" in result.compaction.summary
    assert compacted_body != candidate.original.body
    assert validate_request(formats.parse_request(compacted_body)) is None
    assert RULE.encode() in compacted_body


async def test_a_compaction_by_the_agents_own_model_reads_the_cache(database_url: str) -> None:
    candidate = make_subject(claude_body(24))
    async with running_setup(database_url, ScriptStep(text="That one."), SUMMARY_STEP, SUMMARY_STEP) as setup:
        first = await send(setup.sandbox, candidate.sent_request)
        result = require_result(await setup.runner.compact(candidate))

    usage = result.usages[0]
    assert usage is not None
    assert first.written_5m > 1_000
    assert abs(usage.cache.read - first.written_5m) <= 1  # the sandbox rounds the parts of a count
    assert usage.cache.uncached + usage.cache.written_5m < 1_000, "only the instruction is new"
    assert result.outcome is CompactionOutcome.OK


async def test_a_chat_is_compacted_by_its_own_model(database_url: str) -> None:
    candidate = make_subject(chat_body(24), api_format=Format.CHAT)
    async with running_setup(database_url, SUMMARY_STEP, SUMMARY_STEP, api_format=Format.CHAT) as setup:
        result = require_result(await setup.runner.compact(candidate))
        compacted_body = await setup.compacted_body(candidate.original)

    assert result.outcome is CompactionOutcome.OK, result.reason
    assert len(setup.sandbox.requests) == len(result.usages)
    assert validate_request(formats.parse_request(compacted_body, Format.CHAT)) is None


async def test_another_model_is_shown_the_messages_as_data(database_url: str) -> None:
    candidate = make_subject(claude_body(12))
    async with running_setup(database_url, SUMMARY_STEP, SUMMARY_STEP, model="claude-haiku-5-5") as setup:
        result = require_result(await setup.runner.compact(candidate))
        sent_requests = [formats.parse_request(request.body) for request in setup.sandbox.requests]

    assert result.outcome is CompactionOutcome.OK, result.reason
    assert result.compaction is not None
    assert result.compaction.model == "claude-haiku-5-5"
    assert {request.model for request in sent_requests} == {"claude-haiku-5-5"}
    assert all(not request.tools for request in sent_requests)
    for step in range(6):
        assert source_path(step).encode() in sent_requests[0].body


async def test_a_later_compaction_includes_the_earlier_summary(database_url: str) -> None:
    body = claude_body(30)
    first_half = {**body, "messages": body["messages"][:25]}
    async with running_setup(
        database_url, SUMMARY_STEP, repeat=True, options=replace(OPTIONS, min_turns_between=1)
    ) as setup:
        first = require_result(await setup.runner.compact(make_subject(first_half)))
        assert first.compaction is not None
        chain = make_subject(body).chain
        compactions = await setup.store.compactions.find_compactions(AGENT, chain.hashes)
        candidate = make_subject(body, compactions)
        second = require_result(await setup.runner.compact(candidate))
        last_request = setup.sandbox.requests[-1].body
        compactions = await setup.store.compactions.find_compactions(AGENT, chain.hashes)

    assert first.outcome is second.outcome is CompactionOutcome.OK, second.reason
    assert second.compaction is not None
    assert second.compaction.messages > first.compaction.messages
    assert b"this summary replaces the first" in last_request
    compacted_request = apply_compactions(candidate.original, compactions)
    assert compacted_request.body.count(b"this summary replaces the first") == 1
    assert validate_request(compacted_request) is None


async def test_of_two_concurrent_compactions_one_wins(database_url: str) -> None:
    candidate = make_subject(claude_body(12))
    async with (
        running_setup(database_url, replace_step(SUMMARY_STEP, 0.5), repeat=True) as setup,
        second_runner(setup) as second,
    ):
        results = await asyncio.gather(setup.runner.compact(candidate), second.compact(candidate))
        compactions = await setup.store.compactions.list_compactions(session_id="a session")

    assert sorted(require_result(result).outcome for result in results) == [
        CompactionOutcome.LOCK_HELD,
        CompactionOutcome.OK,
    ]
    assert sorted(row.outcome for row in compactions) == [CompactionOutcome.LOCK_HELD, CompactionOutcome.OK]


async def test_a_late_process_does_not_repeat_a_compaction(database_url: str) -> None:
    candidate = make_subject(claude_body(12))
    async with running_setup(database_url, SUMMARY_STEP, repeat=True) as setup, second_runner(setup) as second:
        first = require_result(await setup.runner.compact(candidate))
        result = require_result(await second.compact(require_fit(candidate)))
        compactions = await setup.store.compactions.list_compactions(session_id="a session")

    assert result.outcome is CompactionOutcome.LOCK_HELD
    assert result.compaction == first.compaction
    assert [row.outcome for row in compactions] == [CompactionOutcome.OK]


async def test_nothing_is_stored_after_the_lease_is_lost(database_url: str) -> None:
    candidate = make_subject(claude_body(12))
    options = replace(OPTIONS, lock_ttl_seconds=0.6)
    async with running_setup(
        database_url, replace_step(SUMMARY_STEP, 2), repeat=True, options=options
    ) as setup:
        task = asyncio.create_task(setup.runner.compact(candidate))
        # A request to the model means that the lease is held; the sandbox runs in its own thread.
        while not setup.sandbox.requests and not task.done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        setup.sandbox.clock.now += 1_000
        lease = await setup.store.compactions.acquire_lease(
            "a session", "another", ttl_seconds=100, now=setup.sandbox.clock()
        )
        result = require_result(await task)
        compactions = await setup.store.compactions.list_compactions(session_id="a session")
        renewed_lease = (
            await setup.store.compactions.renew_lease(lease, ttl_seconds=100, now=0) if lease else None
        )

    assert lease is not None
    assert result.outcome is CompactionOutcome.LOCK_HELD
    assert result.compaction is None
    assert compactions == []
    assert renewed_lease is not None, "the late runner must not release another holder's lease"


async def test_a_request_that_would_not_fit_gets_an_extractive_summary(database_url: str) -> None:
    candidate = require_fit(make_subject(claude_body(12)))
    async with running_setup(database_url, ScriptStep(status=500), repeat=True) as setup:
        result = require_result(await setup.runner.compact(candidate))
        compacted_body = await setup.compacted_body(candidate.original)

    assert result.outcome is CompactionOutcome.OK
    assert result.compaction is not None
    assert result.compaction.model == EXTRACTIVE_MODEL
    assert "responded with status 500" in result.reason
    assert RULE in result.compaction.summary
    assert source_path(8) in result.compaction.summary
    assert validate_request(formats.parse_request(compacted_body)) is None


def replace_step(step: ScriptStep, delay_seconds: float) -> ScriptStep:
    return ScriptStep(text=step.text, delay_seconds=delay_seconds)


@asynccontextmanager
async def second_runner(setup: Setup) -> AsyncIterator[CompactionRunner]:
    """A second runner on the same store."""
    async with JsonClient(timeout_seconds=5) as client:
        summarizer = LlmSummarizer(client, endpoint(setup.sandbox, Format.ANTHROPIC))
        yield CompactionRunner(
            setup.store.compactions,
            summarizer,
            counter_for(MODEL),
            holder="another one",
            clock=setup.sandbox.clock,
            options=OPTIONS,
        )

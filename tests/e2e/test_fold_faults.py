"""Whatever the model that should write a summary does, nothing is lost and the request goes out as it came."""

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

GOOD = ScriptStep(
    text=f"The user looks for the slow parser in src/parsers. {RULE} Next was to say which it was."
)
HTML = "<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head><body>cloudflare</body></html>"

FAULTS = {
    "hangs": (ScriptStep(delay_seconds=20), "no summary within"),
    "500": (ScriptStep(status=500), "answered 500"),
    "empty": (ScriptStep(text=""), "empty|no content"),
    "error page": (ScriptStep(text=HTML), "a page"),
    "error in json": (ScriptStep(text='{"error": {"message": "Overloaded"}}'), "an error"),
    "error in words": (ScriptStep(text="That one is busy with other requests at the moment."), "tells nothing"),
    "refusal in Spanish": (ScriptStep(text="Lo siento, pero no puedo ayudar con esa solicitud."), "a refusal"),
    "refusal": (ScriptStep(text="I'm sorry, but I can't help with that."), "a refusal"),
    "too long": (ScriptStep(text="all that was said and done " * 4_000), "longer than|cut off"),
    "tool call": (ScriptStep(tools=(ScriptedCall(name="read_file"),)), "calls a tool|answered"),
    "cut in the middle": (
        ScriptStep(text="A summary.", disconnect_after=1),
        "connection|payload|disconnected|answer",
    ),
    "overloaded": (ScriptStep(overloaded=True), "answered 529"),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A store, a model to ask, and a folder that does."""

    store: Store
    sandbox: RunningSandbox
    folder: CompactionRunner

    async def in_force(self, request: Request) -> bytes:
        """The request as it goes out now."""
        chain = make_subject(request.body, api_format=request.format).chain
        folds = await self.store.compactions.find_compactions(AGENT, chain.hashes)
        return formats.apply_edits(request, build_compaction_edits(request, chain, folds))


def headers(api_format: Format) -> dict[str, str]:
    if api_format is Format.ANTHROPIC:
        return {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    return {"authorization": f"Bearer {KEY}"}


def endpoint(sandbox: RunningSandbox, api_format: Format) -> SummarizerEndpoint:
    route = "/v1/messages" if api_format is Format.ANTHROPIC else "/v1/chat/completions"
    return SummarizerEndpoint(url=f"{sandbox.url}{route}", api_format=api_format, headers=headers(api_format))


@asynccontextmanager
async def setting(
    url: str,
    *steps: ScriptStep,
    repeat: bool = False,
    api_format: Format = Format.ANTHROPIC,
    model: str = "",
    options: CompactionOptions = OPTIONS,
) -> AsyncIterator[Setting]:
    with running_sandbox(*steps, repeat=repeat) as sandbox:
        async with await open_store(url) as store, JsonClient(timeout_seconds=5) as client:
            summariser = LlmSummarizer(
                client, endpoint(sandbox, api_format), model=model, delays_seconds=(0.01, 0.01, 0.01)
            )
            folder = CompactionRunner(
                store.compactions,
                summariser,
                counter_for(MODEL),
                holder="this one",
                clock=sandbox.clock,
                options=options,
            )
            yield Setting(store, sandbox, folder)


async def send(sandbox: RunningSandbox, request: Request) -> CacheUsage:
    """What the provider bills for a request, once it took it."""
    where = endpoint(sandbox, request.format)
    async with JsonClient(timeout_seconds=5) as client:
        reply = await client.post_json(where.url, request.body, where.headers)
    usage = formats.parse_usage(request.format, bytes(reply["usage"]))
    assert usage is not None
    return usage.cache


def ended(folded: CompactionResult | None) -> CompactionResult:
    assert folded is not None
    return folded


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_of_the_model_loses_nothing(database_url: str, fault: str) -> None:
    step, reason = FAULTS[fault]
    subject = make_subject(claude_body(12))
    options = replace(OPTIONS, limit_seconds=2 if fault == "hangs" else 60)
    async with setting(database_url, step, repeat=True, options=options) as there:
        folded = ended(await there.folder.compact(subject))

        rows = await there.store.compactions.list_compactions(session_id=subject.session_id)
        going_out = await there.in_force(subject.original)
        next_one = await there.store.compactions.acquire_lease("a session", "the next", ttl_seconds=9, now=0)

    assert folded.outcome is CompactionOutcome.FAILED
    assert folded.compaction is not None
    assert re.search(reason, folded.reason), folded.reason
    assert [(row.outcome, row.summary, row.tokens_before) for row in rows] == [
        (CompactionOutcome.FAILED, "", folded.compaction.tokens_before)
    ]
    assert going_out == subject.original.body
    assert next_one is not None, "who failed must not keep others from trying"


async def test_an_overloaded_model_is_asked_again(database_url: str) -> None:
    subject = make_subject(claude_body(12))
    async with setting(
        database_url, ScriptStep(overloaded=True), ScriptStep(status=500), GOOD, repeat=True
    ) as there:
        folded = ended(await there.folder.compact(subject))
        sent = await there.in_force(subject.original)

    assert folded.outcome is CompactionOutcome.OK
    assert folded.compaction is not None
    assert "slow parser" in folded.compaction.summary
    assert sent != subject.original.body
    assert validate_request(formats.parse_request(sent)) is None
    assert RULE.encode() in sent


async def test_the_fold_of_the_agents_own_model_reads_the_cache(database_url: str) -> None:
    subject = make_subject(claude_body(24))
    async with setting(database_url, ScriptStep(text="That one."), GOOD, GOOD) as there:
        first = await send(there.sandbox, subject.sent_request)
        folded = ended(await there.folder.compact(subject))

    usage = folded.usages[0]
    assert usage is not None
    assert usage.cache.read == first.written_5m > 1_000
    assert usage.cache.uncached + usage.cache.written_5m < 1_000, "only the instruction is new"
    assert folded.outcome is CompactionOutcome.OK


async def test_a_chat_is_folded_by_its_own_model(database_url: str) -> None:
    subject = make_subject(chat_body(24), api_format=Format.CHAT)
    async with setting(database_url, GOOD, GOOD, api_format=Format.CHAT) as there:
        folded = ended(await there.folder.compact(subject))
        sent = await there.in_force(subject.original)

    assert folded.outcome is CompactionOutcome.OK, folded.reason
    assert len(there.sandbox.requests) == len(folded.usages)
    assert validate_request(formats.parse_request(sent, Format.CHAT)) is None


async def test_another_model_is_shown_the_history_as_data(database_url: str) -> None:
    subject = make_subject(claude_body(12))
    async with setting(database_url, GOOD, GOOD, model="claude-haiku-5-5") as there:
        folded = ended(await there.folder.compact(subject))
        asked = [formats.parse_request(ask.body) for ask in there.sandbox.requests]

    assert folded.outcome is CompactionOutcome.OK, folded.reason
    assert folded.compaction is not None
    assert folded.compaction.model == "claude-haiku-5-5"
    assert {request.model for request in asked} == {"claude-haiku-5-5"}
    assert all(not request.tools for request in asked)
    for step in range(6):
        assert source_path(step).encode() in asked[0].body


async def test_a_later_fold_takes_the_earlier_summary_in(database_url: str) -> None:
    body = claude_body(30)
    begun = {**body, "messages": body["messages"][:25]}
    async with setting(database_url, GOOD, repeat=True, options=replace(OPTIONS, min_turns_between=1)) as there:
        first = ended(await there.folder.compact(make_subject(begun)))
        assert first.compaction is not None
        chain = make_subject(body).chain
        folds = await there.store.compactions.find_compactions(AGENT, chain.hashes)
        later = make_subject(body, folds)
        second = ended(await there.folder.compact(later))
        heard = there.sandbox.requests[-1].body
        folds = await there.store.compactions.find_compactions(AGENT, chain.hashes)

    assert first.outcome is second.outcome is CompactionOutcome.OK, second.reason
    assert second.compaction is not None
    assert second.compaction.messages > first.compaction.messages
    assert b"were folded into this summary" in heard
    sent = apply_compactions(later.original, folds)
    assert sent.body.count(b"were folded into this summary") == 1
    assert validate_request(sent) is None


async def test_of_two_folders_at_once_one_wins(database_url: str) -> None:
    subject = make_subject(claude_body(12))
    async with setting(database_url, replace_step(GOOD, 0.5), repeat=True) as there, other(there) as second:
        results = await asyncio.gather(there.folder.compact(subject), second.compact(subject))
        rows = await there.store.compactions.list_compactions(session_id="a session")

    assert sorted(ended(result).outcome for result in results) == [
        CompactionOutcome.LOCK_HELD,
        CompactionOutcome.OK,
    ]
    assert sorted(row.outcome for row in rows) == [CompactionOutcome.LOCK_HELD, CompactionOutcome.OK]


async def test_who_comes_after_a_fold_was_made_makes_no_second_one(database_url: str) -> None:
    subject = make_subject(claude_body(12))
    async with setting(database_url, GOOD, repeat=True) as there, other(there) as second:
        first = ended(await there.folder.compact(subject))
        late = ended(await second.compact(require_fit(subject)))
        rows = await there.store.compactions.list_compactions(session_id="a session")

    assert late.outcome is CompactionOutcome.LOCK_HELD
    assert late.compaction == first.compaction
    assert [row.outcome for row in rows] == [CompactionOutcome.OK]


async def test_a_lease_that_is_lost_meanwhile_writes_nothing(database_url: str) -> None:
    subject = make_subject(claude_body(12))
    options = replace(OPTIONS, lock_ttl_seconds=0.6)
    async with setting(database_url, replace_step(GOOD, 2), repeat=True, options=options) as there:
        folding = asyncio.create_task(there.folder.compact(subject))
        # It has its lease by then; the sandbox hears in a thread of its own.
        while not there.sandbox.requests and not folding.done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        there.sandbox.clock.now += 1_000
        taken = await there.store.compactions.acquire_lease(
            "a session", "another", ttl_seconds=100, now=there.sandbox.clock()
        )
        folded = ended(await folding)
        rows = await there.store.compactions.list_compactions(session_id="a session")
        mine = await there.store.compactions.renew_lease(taken, ttl_seconds=100, now=0) if taken else None

    assert taken is not None
    assert folded.outcome is CompactionOutcome.LOCK_HELD
    assert folded.compaction is None
    assert rows == []
    assert mine is not None, "the late one must not release what is another's"


async def test_rules_fold_where_the_request_would_not_fit_otherwise(database_url: str) -> None:
    subject = require_fit(make_subject(claude_body(12)))
    async with setting(database_url, ScriptStep(status=500), repeat=True) as there:
        folded = ended(await there.folder.compact(subject))
        sent = await there.in_force(subject.original)

    assert folded.outcome is CompactionOutcome.OK
    assert folded.compaction is not None
    assert folded.compaction.model == EXTRACTIVE_MODEL
    assert "answered 500" in folded.reason
    assert RULE in folded.compaction.summary
    assert source_path(8) in folded.compaction.summary
    assert validate_request(formats.parse_request(sent)) is None


def replace_step(step: ScriptStep, delay_seconds: float) -> ScriptStep:
    return ScriptStep(text=step.text, delay_seconds=delay_seconds)


@asynccontextmanager
async def other(there: Setting) -> AsyncIterator[CompactionRunner]:
    """A second folder on the same store."""
    async with JsonClient(timeout_seconds=5) as client:
        summariser = LlmSummarizer(client, endpoint(there.sandbox, Format.ANTHROPIC))
        yield CompactionRunner(
            there.store.compactions,
            summariser,
            counter_for(MODEL),
            holder="another one",
            clock=there.sandbox.clock,
            options=OPTIONS,
        )

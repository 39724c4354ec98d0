"""Whatever the model that should write a summary does, nothing is lost and the request goes out as it came."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from foveate import wire
from foveate.fold.cuts import FoldOptions
from foveate.fold.folding import Folded, Folder
from foveate.fold.journal import Outcome
from foveate.fold.model import Endpoint, ModelSummariser
from foveate.fold.replacing import folded_edits
from foveate.fold.summariser import EXTRACTIVE
from foveate.sandbox import accept
from foveate.sandbox.scripts import Call, Step
from foveate.store import Store, open_store
from foveate.tokens import counter_for
from foveate.upstream import Client
from foveate.values import CacheUsage, Format, Request
from tests.sandboxes import KEY, RunningSandbox, running_sandbox
from tests.sessions_to_fold import (
    AGENT,
    MODEL,
    OPTIONS,
    RULE,
    chat_body,
    claude_body,
    must_fit,
    path,
    sent_after,
    subject_of,
)

GOOD = Step(text=f"The user looks for the slow parser in src/parsers. {RULE} Next was to say which it was.")
HTML = "<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head><body>cloudflare</body></html>"

FAULTS = {
    "hangs": (Step(delay_seconds=20), "no summary within"),
    "500": (Step(status=500), "answered 500"),
    "empty": (Step(text=""), "empty|no content"),
    "error page": (Step(text=HTML), "a page"),
    "error in json": (Step(text='{"error": {"message": "Overloaded"}}'), "an error"),
    "error in words": (Step(text="That one is busy with other requests at the moment."), "tells nothing"),
    "refusal in Spanish": (Step(text="Lo siento, pero no puedo ayudar con esa solicitud."), "a refusal"),
    "refusal": (Step(text="I'm sorry, but I can't help with that."), "a refusal"),
    "too long": (Step(text="all that was said and done " * 4_000), "longer than|cut off"),
    "tool call": (Step(tools=(Call(name="read_file"),)), "calls a tool|answered"),
    "cut in the middle": (
        Step(text="A summary.", disconnect_after=1),
        "connection|payload|disconnected|answer",
    ),
    "overloaded": (Step(overloaded=True), "answered 529"),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A store, a model to ask, and a folder that does."""

    store: Store
    sandbox: RunningSandbox
    folder: Folder

    async def in_force(self, request: Request) -> bytes:
        """The request as it goes out now."""
        chain = subject_of(request.body, spoken=request.format).chain
        folds = await self.store.journal.folds(AGENT, chain.hashes)
        return wire.write(request, folded_edits(request, chain, folds))


def headers(spoken: Format) -> dict[str, str]:
    if spoken is Format.ANTHROPIC:
        return {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    return {"authorization": f"Bearer {KEY}"}


def endpoint(sandbox: RunningSandbox, spoken: Format) -> Endpoint:
    route = "/v1/messages" if spoken is Format.ANTHROPIC else "/v1/chat/completions"
    return Endpoint(url=f"{sandbox.url}{route}", spoken=spoken, headers=headers(spoken))


@asynccontextmanager
async def setting(
    url: str,
    *steps: Step,
    repeat: bool = False,
    spoken: Format = Format.ANTHROPIC,
    model: str = "",
    options: FoldOptions = OPTIONS,
) -> AsyncIterator[Setting]:
    with running_sandbox(*steps, repeat=repeat) as sandbox:
        async with await open_store(url) as store, Client(timeout_seconds=5) as client:
            summariser = ModelSummariser(
                client, endpoint(sandbox, spoken), model=model, delays_seconds=(0.01, 0.01, 0.01)
            )
            folder = Folder(
                store.journal,
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
    async with Client(timeout_seconds=5) as client:
        reply = await client.post_json(where.url, request.body, where.headers)
    usage = wire.block_usage(request.format, bytes(reply["usage"]))
    assert usage is not None
    return usage.cache


def ended(folded: Folded | None) -> Folded:
    assert folded is not None
    return folded


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_of_the_model_loses_nothing(database_url: str, fault: str) -> None:
    step, reason = FAULTS[fault]
    subject = subject_of(claude_body(12))
    options = replace(OPTIONS, limit_seconds=2 if fault == "hangs" else 60)
    async with setting(database_url, step, repeat=True, options=options) as there:
        folded = ended(await there.folder.fold(subject))

        rows = await there.store.journal.listed(session_id=subject.session_id)
        going_out = await there.in_force(subject.request)
        next_one = await there.store.journal.lease("a session", "the next", ttl_seconds=9, now=0)

    assert folded.outcome is Outcome.FAILED
    assert folded.fold is not None
    assert re.search(reason, folded.reason), folded.reason
    assert [(row.outcome, row.summary, row.tokens_before) for row in rows] == [
        (Outcome.FAILED, "", folded.fold.tokens_before)
    ]
    assert going_out == subject.request.body
    assert next_one is not None, "who failed must not keep others from trying"


async def test_an_overloaded_model_is_asked_again(database_url: str) -> None:
    subject = subject_of(claude_body(12))
    async with setting(database_url, Step(overloaded=True), Step(status=500), GOOD, repeat=True) as there:
        folded = ended(await there.folder.fold(subject))
        sent = await there.in_force(subject.request)

    assert folded.outcome is Outcome.OK
    assert folded.fold is not None
    assert "slow parser" in folded.fold.summary
    assert sent != subject.request.body
    assert accept(wire.read(sent)) is None
    assert RULE.encode() in sent


async def test_the_fold_of_the_agents_own_model_reads_the_cache(database_url: str) -> None:
    subject = subject_of(claude_body(24))
    async with setting(database_url, Step(text="That one."), GOOD, GOOD) as there:
        first = await send(there.sandbox, subject.sent)
        folded = ended(await there.folder.fold(subject))

    usage = folded.usages[0]
    assert usage is not None
    assert usage.cache.read == first.written_5m > 1_000
    assert usage.cache.uncached + usage.cache.written_5m < 1_000, "only the instruction is new"
    assert folded.outcome is Outcome.OK


async def test_a_chat_is_folded_by_its_own_model(database_url: str) -> None:
    subject = subject_of(chat_body(24), spoken=Format.CHAT)
    async with setting(database_url, GOOD, GOOD, spoken=Format.CHAT) as there:
        folded = ended(await there.folder.fold(subject))
        sent = await there.in_force(subject.request)

    assert folded.outcome is Outcome.OK, folded.reason
    assert len(there.sandbox.heard) == len(folded.usages)
    assert accept(wire.read(sent, Format.CHAT)) is None


async def test_another_model_is_shown_the_history_as_data(database_url: str) -> None:
    subject = subject_of(claude_body(12))
    async with setting(database_url, GOOD, GOOD, model="claude-haiku-5-5") as there:
        folded = ended(await there.folder.fold(subject))
        asked = [wire.read(ask.body) for ask in there.sandbox.heard]

    assert folded.outcome is Outcome.OK, folded.reason
    assert folded.fold is not None
    assert folded.fold.model == "claude-haiku-5-5"
    assert {request.model for request in asked} == {"claude-haiku-5-5"}
    assert all(not request.tools for request in asked)
    for step in range(6):
        assert path(step).encode() in asked[0].body


async def test_a_later_fold_takes_the_earlier_summary_in(database_url: str) -> None:
    body = claude_body(30)
    begun = {**body, "messages": body["messages"][:25]}
    async with setting(database_url, GOOD, repeat=True, options=replace(OPTIONS, min_turns_between=1)) as there:
        first = ended(await there.folder.fold(subject_of(begun)))
        assert first.fold is not None
        chain = subject_of(body).chain
        folds = await there.store.journal.folds(AGENT, chain.hashes)
        later = subject_of(body, folds)
        second = ended(await there.folder.fold(later))
        heard = there.sandbox.heard[-1].body
        folds = await there.store.journal.folds(AGENT, chain.hashes)

    assert first.outcome is second.outcome is Outcome.OK, second.reason
    assert second.fold is not None
    assert second.fold.messages > first.fold.messages
    assert b"were folded into this summary" in heard
    sent = sent_after(later.request, folds)
    assert sent.body.count(b"were folded into this summary") == 1
    assert accept(sent) is None


async def test_of_two_folders_at_once_one_wins(database_url: str) -> None:
    subject = subject_of(claude_body(12))
    async with setting(database_url, replace_step(GOOD, 0.5), repeat=True) as there, other(there) as second:
        results = await asyncio.gather(there.folder.fold(subject), second.fold(subject))
        rows = await there.store.journal.listed(session_id="a session")

    assert sorted(ended(result).outcome for result in results) == [Outcome.LOCK_HELD, Outcome.OK]
    assert sorted(row.outcome for row in rows) == [Outcome.LOCK_HELD, Outcome.OK]


async def test_who_comes_after_a_fold_was_made_makes_no_second_one(database_url: str) -> None:
    subject = subject_of(claude_body(12))
    async with setting(database_url, GOOD, repeat=True) as there, other(there) as second:
        first = ended(await there.folder.fold(subject))
        late = ended(await second.fold(must_fit(subject)))
        rows = await there.store.journal.listed(session_id="a session")

    assert late.outcome is Outcome.LOCK_HELD
    assert late.fold == first.fold
    assert [row.outcome for row in rows] == [Outcome.OK]


async def test_a_lease_that_is_lost_meanwhile_writes_nothing(database_url: str) -> None:
    subject = subject_of(claude_body(12))
    options = replace(OPTIONS, lock_ttl_seconds=0.6)
    async with setting(database_url, replace_step(GOOD, 2), repeat=True, options=options) as there:
        folding = asyncio.create_task(there.folder.fold(subject))
        # It has its lease by then; the sandbox hears in a thread of its own.
        while not there.sandbox.heard and not folding.done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        there.sandbox.clock.now += 1_000
        taken = await there.store.journal.lease(
            "a session", "another", ttl_seconds=100, now=there.sandbox.clock()
        )
        folded = ended(await folding)
        rows = await there.store.journal.listed(session_id="a session")
        mine = await there.store.journal.renew(taken, ttl_seconds=100, now=0) if taken else None

    assert taken is not None
    assert folded.outcome is Outcome.LOCK_HELD
    assert folded.fold is None
    assert rows == []
    assert mine is not None, "the late one must not release what is another's"


async def test_rules_fold_where_the_request_would_not_fit_otherwise(database_url: str) -> None:
    subject = must_fit(subject_of(claude_body(12)))
    async with setting(database_url, Step(status=500), repeat=True) as there:
        folded = ended(await there.folder.fold(subject))
        sent = await there.in_force(subject.request)

    assert folded.outcome is Outcome.OK
    assert folded.fold is not None
    assert folded.fold.model == EXTRACTIVE
    assert "answered 500" in folded.reason
    assert RULE in folded.fold.summary
    assert path(8) in folded.fold.summary
    assert accept(wire.read(sent)) is None


def replace_step(step: Step, delay_seconds: float) -> Step:
    return Step(text=step.text, delay_seconds=delay_seconds)


@asynccontextmanager
async def other(there: Setting) -> AsyncIterator[Folder]:
    """A second folder on the same store."""
    async with Client(timeout_seconds=5) as client:
        summariser = ModelSummariser(client, endpoint(there.sandbox, Format.ANTHROPIC))
        yield Folder(
            there.store.journal,
            summariser,
            counter_for(MODEL),
            holder="another one",
            clock=there.sandbox.clock,
            options=OPTIONS,
        )

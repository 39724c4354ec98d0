"""Requests that do not fit the window: threads for long ones, and compactions that are worth their price."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest

from foveate import formats
from foveate.compaction.compact import CompactionResult
from foveate.compaction.overflow import OnOverflow
from foveate.compaction.plan import CompactionCandidate
from foveate.engine.counting.calibration import Calibrations
from foveate.engine.options import AgentOptions
from foveate.engine.request import IncomingRequest
from foveate.engine.request_context import RequestContext
from foveate.engine.session_state import SessionStates
from foveate.engine.steps.count import CountCorrector, CountTokens
from foveate.engine.steps.history import ApplyCompactions
from foveate.engine.steps.overflow import FitWindow
from foveate.engine.steps.session import FindSession
from foveate.errors import DoesNotFit, StoreUnavailable
from foveate.model import Format, TokenCount
from foveate.session.matching import SessionMatcher
from foveate.tokens import drop_caches
from tests.support.oracles.event_loop import turns_while
from tests.support.stores.memory_compaction_store import InMemoryCompactionStore
from tests.support.stores.memory_session_store import InMemorySessionStore
from tests.support.strategies.tool_conversations import make_compaction_at

RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "x y " * 900}


def make_long_context(times: int) -> RequestContext:
    """A long request that the upstream has counted, and that does not fit."""
    messages = [{"role": "user", "content": f"{number} is said here. " * times} for number in range(10)]
    body = json.dumps({"model": "claude-opus-4-5", "max_tokens": 9, "messages": messages}).encode()
    context = make_context(body, AgentOptions(window_tokens=100, compaction=False))
    context.count.total = TokenCount(1_000_000, exact=True, upper=1_000_000)
    return context


def find_session() -> FindSession:
    session_store = InMemorySessionStore()
    return FindSession(SessionMatcher(session_store), session_store, SessionStates())


def make_context(body: bytes, options: AgentOptions) -> RequestContext:
    request = formats.parse_request(body, Format.ANTHROPIC)
    incoming = IncomingRequest(
        id="r", agent="ana", api_format=Format.ANTHROPIC, provider="anthropic", upstream="a", body=body
    )
    return RequestContext(
        incoming=incoming, options=options, received_at=1.0, original=request, request=request
    )


async def skip_compaction(_context: RequestContext, _subject: CompactionCandidate) -> CompactionResult | None:
    return None


@pytest.mark.parametrize(("times", "is_in_thread"), [(2, False), (5_000, True)])
async def test_a_long_request_is_counted_and_fitted_in_a_thread(times: int, is_in_thread: bool) -> None:
    """Defect: counting a request that did not fit, or was edited, blocked all others."""
    count = CountTokens(InMemorySessionStore(), CountCorrector(Calibrations()))
    fit_window = FitWindow(ApplyCompactions(InMemoryCompactionStore()), count, skip_compaction)

    async def fit_and_reject() -> None:
        with pytest.raises(DoesNotFit):
            await fit_window.apply(context)

    drop_caches()
    context = make_long_context(times)
    assert (await turns_while(count.confirm(context)) > 0) == is_in_thread
    assert (await turns_while(fit_and_reject()) > 0) == is_in_thread
    drop_caches()
    assert (await turns_while(count.apply(make_long_context(times))) > 0) == is_in_thread


@pytest.mark.parametrize(
    ("last", "is_compacted"),
    [
        ({"role": "user", "content": "And then? " * 5}, True),
        ({"role": "user", "content": "Much is said here. " * 500}, False),
        (
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x y " * 900}]},
            True,
        ),
    ],
    ids=["short", "longer than the window", "a result"],
)
async def test_no_compaction_is_paid_for_if_the_request_would_still_not_fit(
    last: dict[str, object], is_compacted: bool
) -> None:
    compacted_sessions: list[str] = []

    async def compact_now(_context: RequestContext, subject: CompactionCandidate) -> CompactionResult | None:
        compacted_sessions.append(subject.session_id)
        return None

    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}
    messages = [{"role": "user", "content": "Many words. " * 300}, call, last]
    body = json.dumps({"model": "claude-opus-4-5", "max_tokens": 9, "messages": messages}).encode()
    count = CountTokens(InMemorySessionStore(), CountCorrector(Calibrations()))
    context = make_context(body, AgentOptions(window_tokens=600, compaction=True))
    await find_session().apply(context)
    await count.apply(context)

    with suppress(DoesNotFit):
        await FitWindow(ApplyCompactions(InMemoryCompactionStore()), count, compact_now).apply(context)
    assert bool(compacted_sessions) == is_compacted


class FlakyStore(InMemoryCompactionStore):
    """Responds until it is unavailable."""

    is_unavailable = False

    def _check_available(self, what: str) -> None:
        if self.is_unavailable:
            raise StoreUnavailable("the store", "it is gone")


def make_body(questions: int) -> bytes:
    roles = ["user", "assistant"] * questions
    messages = [{"role": role, "content": f"{at} is said here. " * 60} for at, role in enumerate(roles)]
    question = {"role": "user", "content": "And then?"}
    return json.dumps({"model": "claude-opus-4-5", "max_tokens": 9, "messages": [*messages, question]}).encode()


@pytest.mark.parametrize(
    ("is_compacted", "is_unavailable", "is_on", "steps"),
    [
        (True, False, True, {"fold"}),
        (False, False, True, {"room"}),
        (True, True, True, {"room"}),
        (True, False, False, {"room"}),
    ],
    ids=["compacted meanwhile", "not compacted", "store unavailable", "compaction turned off"],
)
async def test_compactions_of_other_processes_are_found_before_room_is_made(
    is_compacted: bool, is_unavailable: bool, is_on: bool, steps: set[str]
) -> None:
    """Defect: for a second the store was not read, so that history was dropped although its summary existed."""
    compaction_store, session_store = FlakyStore(), InMemorySessionStore()
    history, count = (
        ApplyCompactions(compaction_store),
        CountTokens(session_store, CountCorrector(Calibrations())),
    )
    options = AgentOptions(window_tokens=2_000, compaction=True)
    await apply_history(make_body(2), options, history)
    options = replace(options, compaction=is_on, on_overflow=OnOverflow.MAKE_ROOM)
    context = await apply_history(make_body(6), options, history)
    await count.apply(context)
    if is_compacted:
        await compaction_store.record(make_compaction_at(context.original, 9, agent="ana"), (), lease=None)
    compaction_store.is_unavailable = is_unavailable

    await FitWindow(history, count, skip_compaction).apply(context)

    assert {applied.step for applied in context.applied_edits} == steps
    assert context.count.total is not None
    assert context.count.total.tokens <= 2_000


async def apply_history(body: bytes, options: AgentOptions, history: ApplyCompactions) -> RequestContext:
    context = make_context(body, options)
    await find_session().apply(context)
    await history.apply(context)
    return context

"""Requests that do not fit the window: threads for long ones, and compactions that are worth their price."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest

from foveate import formats
from foveate.compaction.compact import CompactionResult
from foveate.compaction.overflow import OnOverflow
from foveate.compaction.plan import CompactionCandidate
from foveate.engine.context import RequestContext
from foveate.engine.counting.calibration import Calibrations
from foveate.engine.options import AgentOptions
from foveate.engine.request import RoutedRequest
from foveate.engine.session_state import SessionStates
from foveate.engine.steps.compactions import ApplyCompactions
from foveate.engine.steps.count import CountReader, CountTokens
from foveate.engine.steps.overflow import FitWindow
from foveate.engine.steps.session import FindSession
from foveate.errors import DoesNotFit, StoreUnavailable
from foveate.model import Format, TokenCount
from foveate.session.matching import SessionMatcher
from foveate.tokens import drop_caches
from tests.support.oracles.event_loop import turns_while
from tests.support.stores.memory_compaction_store import InMemoryCompactionStore
from tests.support.stores.memory_session_store import InMemory
from tests.support.strategies.tool_conversations import make_compaction_at

RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "x y " * 900}


def make_long_context(times: int) -> RequestContext:
    """A long request that the upstream has counted, and that does not fit."""
    messages = [{"role": "user", "content": f"{number} is said here. " * times} for number in range(10)]
    body = json.dumps({"model": "claude-opus-4-5", "max_tokens": 9, "messages": messages}).encode()
    context = make_context(body, AgentOptions(window_tokens=100, compaction=False))
    context.token_count = TokenCount(1_000_000, exact=True, upper=1_000_000)
    return context


def find_session() -> FindSession:
    session_store = InMemory()
    return FindSession(SessionMatcher(session_store), session_store, SessionStates())


def make_context(body: bytes, options: AgentOptions) -> RequestContext:
    request = formats.parse_request(body, Format.ANTHROPIC)
    incoming = RoutedRequest(
        id="r", agent="ana", api_format=Format.ANTHROPIC, provider="anthropic", upstream="a", body=body
    )
    return RequestContext(
        incoming=incoming, options=options, received_at=1.0, original=request, request=request
    )


async def skip_compaction(_context: RequestContext, _subject: CompactionCandidate) -> CompactionResult | None:
    return None


@pytest.mark.parametrize(("times", "is_beside"), [(2, False), (5_000, True)])
async def test_a_long_request_is_counted_and_fitted_in_a_thread(times: int, is_beside: bool) -> None:
    """Defect: counting a request that did not fit, or was edited, blocked all others."""
    count = CountTokens(InMemory(), CountReader(Calibrations()))
    room = FitWindow(ApplyCompactions(InMemoryCompactionStore()), count, skip_compaction)

    async def refused() -> None:
        with pytest.raises(DoesNotFit):
            await room.apply(sure)

    drop_caches()
    sure = make_long_context(times)
    assert (await turns_while(count.confirm(sure)) > 0) == is_beside
    assert (await turns_while(refused()) > 0) == is_beside
    drop_caches()
    assert (await turns_while(count.apply(make_long_context(times))) > 0) == is_beside


@pytest.mark.parametrize(
    ("last", "is_folded"),
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
async def test_no_compaction_is_paid_for_that_cannot_make_the_request_fit(
    last: dict[str, object], is_folded: bool
) -> None:
    compacted: list[str] = []

    async def fold_now(_context: RequestContext, subject: CompactionCandidate) -> CompactionResult | None:
        compacted.append(subject.session_id)
        return None

    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}
    messages = [{"role": "user", "content": "Many words. " * 300}, call, last]
    body = json.dumps({"model": "claude-opus-4-5", "max_tokens": 9, "messages": messages}).encode()
    count = CountTokens(InMemory(), CountReader(Calibrations()))
    context = make_context(body, AgentOptions(window_tokens=600, compaction=True))
    await find_session().apply(context)
    await count.apply(context)

    with suppress(DoesNotFit):
        await FitWindow(ApplyCompactions(InMemoryCompactionStore()), count, fold_now).apply(context)
    assert bool(compacted) == is_folded


class FlakyStore(InMemoryCompactionStore):
    """Responds until it is unavailable."""

    is_away = False

    def _check_available(self, operation: str) -> None:
        if self.is_away:
            raise StoreUnavailable("the store", "it is gone")


def make_body(questions: int) -> bytes:
    roles = ["user", "assistant"] * questions
    messages = [{"role": role, "content": f"{at} is said here. " * 60} for at, role in enumerate(roles)]
    question = {"role": "user", "content": "And then?"}
    return json.dumps({"model": "claude-opus-4-5", "max_tokens": 9, "messages": [*messages, question]}).encode()


@pytest.mark.parametrize(
    ("is_folded", "is_away", "is_on", "steps"),
    [
        (True, False, True, {"fold"}),
        (False, False, True, {"room"}),
        (True, True, True, {"room"}),
        (True, False, False, {"room"}),
    ],
    ids=["folded meanwhile", "not folded", "folded, but the store is away", "folded, but switched off since"],
)
async def test_compactions_of_other_processes_are_found_before_room_is_made(
    is_folded: bool, is_away: bool, is_on: bool, steps: set[str]
) -> None:
    """Defect: for a second nobody looked, so that history was dropped although its summary existed."""
    compaction_store, session_store = FlakyStore(), InMemory()
    history, count = ApplyCompactions(compaction_store), CountTokens(session_store, CountReader(Calibrations()))
    options = AgentOptions(window_tokens=2_000, compaction=True)
    await apply_history(make_body(2), options, history)
    options = replace(options, compaction=is_on, on_overflow=OnOverflow.MAKE_ROOM)
    context = await apply_history(make_body(6), options, history)
    await count.apply(context)
    if is_folded:
        await compaction_store.record(make_compaction_at(context.original, 9, agent="ana"), (), lease=None)
    compaction_store.is_away = is_away

    await FitWindow(history, count, skip_compaction).apply(context)

    assert {applied.step for applied in context.applied_edits} == steps
    assert context.token_count is not None
    assert context.token_count.tokens <= 2_000


async def apply_history(body: bytes, options: AgentOptions, history: ApplyCompactions) -> RequestContext:
    context = make_context(body, options)
    await find_session().apply(context)
    await history.apply(context)
    return context

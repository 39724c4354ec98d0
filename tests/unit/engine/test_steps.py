"""Steps that have much to read leave the event loop to others meanwhile."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest

from foveate import wire
from foveate.engine.calibrating import Calibrations
from foveate.engine.calls import Incoming
from foveate.engine.counting import Counts
from foveate.engine.options import AgentOptions
from foveate.engine.remembered import Remembered
from foveate.engine.steps.count import Count
from foveate.engine.steps.history import ReplaceHistory
from foveate.engine.steps.overflow import MakeRoom
from foveate.engine.steps.session import FindSession
from foveate.engine.work import Work
from foveate.errors import DoesNotFit, StoreUnavailable
from foveate.fold.cuts import Subject
from foveate.fold.folding import Folded
from foveate.fold.overflow import OnOverflow
from foveate.session.sessions import Sessions
from foveate.tokens import drop_caches
from foveate.values import Format, TokenCount
from tests.unit.engine.loops import turns_while
from tests.unit.fold.journals import InMemory as Folds
from tests.unit.fold.talks import fold_at
from tests.unit.session.in_memory import InMemory

RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "x y " * 900}


def work_of(times: int) -> Work:
    """A long request that the upstream has counted, and that does not fit."""
    messages = [{"role": "user", "content": f"{number} is said here. " * times} for number in range(10)]
    body = json.dumps({"model": "claude-opus-4-5", "max_tokens": 9, "messages": messages}).encode()
    work = worked_on(body, AgentOptions(window_tokens=100, compaction=False))
    work.count = TokenCount(1_000_000, exact=True, upper=1_000_000)
    return work


def find_session() -> FindSession:
    turns = InMemory()
    return FindSession(Sessions(turns), turns, Remembered())


def worked_on(body: bytes, options: AgentOptions) -> Work:
    request = wire.read(body, Format.ANTHROPIC)
    incoming = Incoming(
        id="r", agent="ana", spoken=Format.ANTHROPIC, provider="anthropic", upstream="a", body=body
    )
    return Work(incoming=incoming, options=options, now=1.0, came=request, request=request)


async def no_fold(_work: Work, _subject: Subject) -> Folded | None:
    return None


@pytest.mark.parametrize(("times", "is_beside"), [(2, False), (5_000, True)])
async def test_a_long_request_is_counted_and_made_to_fit_beside_the_event_loop(
    times: int, is_beside: bool
) -> None:
    """Defect: counting a request that did not fit, or was edited, held up all others meanwhile."""
    count = Count(InMemory(), Counts(Calibrations()))
    room = MakeRoom(ReplaceHistory(Folds()), count, no_fold)

    async def refused() -> None:
        with pytest.raises(DoesNotFit):
            await room.take(sure)

    drop_caches()
    sure = work_of(times)
    assert (await turns_while(count.surely(sure)) > 0) == is_beside
    assert (await turns_while(refused()) > 0) == is_beside
    drop_caches()
    assert (await turns_while(count.take(work_of(times))) > 0) == is_beside


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
async def test_nobody_pays_for_a_fold_that_cannot_make_room(last: dict[str, object], is_folded: bool) -> None:
    folded: list[str] = []

    async def fold_now(_work: Work, subject: Subject) -> Folded | None:
        folded.append(subject.session_id)
        return None

    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}
    messages = [{"role": "user", "content": "Many words. " * 300}, call, last]
    body = json.dumps({"model": "claude-opus-4-5", "max_tokens": 9, "messages": messages}).encode()
    count = Count(InMemory(), Counts(Calibrations()))
    work = worked_on(body, AgentOptions(window_tokens=600, compaction=True))
    await find_session().take(work)
    await count.take(work)

    with suppress(DoesNotFit):
        await MakeRoom(ReplaceHistory(Folds()), count, fold_now).take(work)
    assert bool(folded) == is_folded


class Away(Folds):
    """Answers until it is away."""

    is_away = False

    def _there(self, what: str) -> None:
        if self.is_away:
            raise StoreUnavailable("the store", "it is gone")


def talk_of(questions: int) -> bytes:
    roles = ["user", "assistant"] * questions
    messages = [{"role": role, "content": f"{at} is said here. " * 60} for at, role in enumerate(roles)]
    asked = {"role": "user", "content": "And then?"}
    return json.dumps({"model": "claude-opus-4-5", "max_tokens": 9, "messages": [*messages, asked]}).encode()


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
async def test_before_room_is_made_a_fold_of_another_process_is_looked_for(
    is_folded: bool, is_away: bool, is_on: bool, steps: set[str]
) -> None:
    """Was left out of the history for a second, in which nobody looked, though its summary was there."""
    journal, turns = Away(), InMemory()
    history, count = ReplaceHistory(journal), Count(turns, Counts(Calibrations()))
    options = AgentOptions(window_tokens=2_000, compaction=True)
    await history_of(talk_of(2), options, history)
    options = replace(options, compaction=is_on, on_overflow=OnOverflow.MAKE_ROOM)
    work = await history_of(talk_of(6), options, history)
    await count.take(work)
    if is_folded:
        await journal.record(fold_at(work.came, 9, agent="ana"), (), lease=None)
    journal.is_away = is_away

    await MakeRoom(history, count, no_fold).take(work)

    assert {done.step for done in work.done} == steps
    assert work.count is not None
    assert work.count.tokens <= 2_000


async def history_of(body: bytes, options: AgentOptions, history: ReplaceHistory) -> Work:
    work = worked_on(body, options)
    await find_session().take(work)
    await history.take(work)
    return work

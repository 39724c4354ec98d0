"""Steps that have much to read leave the event loop to others meanwhile."""

import json

import pytest

from foveate import wire
from foveate.engine.calibrating import Calibrations
from foveate.engine.calls import Incoming
from foveate.engine.counting import Counts
from foveate.engine.options import AgentOptions
from foveate.engine.steps import Count, MakeRoom, ReplaceHistory
from foveate.engine.work import Work
from foveate.errors import DoesNotFit
from foveate.fold.cuts import Subject
from foveate.fold.folding import Folded
from foveate.tokens import drop_caches
from foveate.values import Format, TokenCount
from tests.unit.engine.loops import turns_while
from tests.unit.fold.journals import InMemory as Folds
from tests.unit.session.in_memory import InMemory


def work_of(times: int) -> Work:
    """A long request that the upstream has counted, and that does not fit."""
    messages = [{"role": "user", "content": f"{number} is said here. " * times} for number in range(10)]
    body = json.dumps({"model": "claude-opus-4-5", "max_tokens": 9, "messages": messages}).encode()
    request = wire.read(body, Format.ANTHROPIC)
    incoming = Incoming(
        id="r", agent="ana", spoken=Format.ANTHROPIC, provider="anthropic", upstream="a", body=body
    )
    options = AgentOptions(window_tokens=100, compaction=False)
    work = Work(incoming=incoming, options=options, now=1.0, came=request, request=request)
    work.count = TokenCount(1_000_000, exact=True, upper=1_000_000)
    return work


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

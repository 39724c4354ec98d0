"""Loading the activity of agents at the start, and again while requests arrive."""

import asyncio
from collections.abc import Mapping
from typing import Any

from foveate.compaction.forecast import AgentActivity
from foveate.engine.session_state import SessionStates
from foveate.engine.spending.edit_planner import LoadActivity
from foveate.errors import StoreUnavailable
from tests.support.servers.sandbox import ManualClock

REQUEST: Any = None  # only that there was one matters


class ScriptedStore:
    def __init__(self, *results: Mapping[str, AgentActivity] | StoreUnavailable) -> None:
        self._results = list(results)
        self.ended_before: list[float] = []

    async def load(self, *, ended_before: float) -> Mapping[str, AgentActivity]:
        self.ended_before.append(ended_before)
        result = self._results.pop(0)
        if isinstance(result, StoreUnavailable):
            raise result
        return result


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_activity_is_loaded_at_the_start_and_every_few_minutes() -> None:
    clock, states = ManualClock(), SessionStates()
    store = ScriptedStore({"ana": AgentActivity(sessions=1)}, {"ana": AgentActivity(sessions=2)})
    load = LoadActivity(store, states, clock=clock)

    load.start()
    await settle()
    first = states.agent_activity("ana").sessions
    load(REQUEST)
    await settle()
    clock.now += 700
    load(REQUEST)
    await settle()
    await load.close()

    assert (first, states.agent_activity("ana").sessions) == (1, 2)
    assert store.ended_before == [clock.now - 700 - 3_600, clock.now - 3_600]


async def test_the_last_activity_stays_if_the_store_cannot_be_read() -> None:
    clock, states = ManualClock(), SessionStates()
    load = LoadActivity(
        ScriptedStore({"ana": AgentActivity(sessions=1)}, StoreUnavailable("store", "it is locked")),
        states,
        clock=clock,
    )

    load.start()
    await settle()
    load.start()
    await settle()
    await load.close()

    assert states.agent_activity("ana").sessions == 1

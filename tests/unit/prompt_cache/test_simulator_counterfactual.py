"""Provider caches without some of Foveate's changes."""

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cache_workloads import MODEL, RESPONSE_SECONDS, Builder, Workload
from foveate.model import CacheUsage, SimulatedState, Ttl
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, prefix_keys
from foveate.prompt_cache.rules import rules_for
from foveate.prompt_cache.simulator import (
    AgentStates,
    CacheEntries,
    RequestVersion,
    SimulatedCache,
    SimulatedStates,
)
from tests.support.harness.example_limits import limit_examples

RULES = rules_for(MODEL)
SHORT = Ttl.FIVE_MINUTES
State = SimulatedState


class Agent:
    """Sessions whose requests get breakpoints, sent one after another."""

    def __init__(self) -> None:
        self.states = AgentStates()
        self._provider_cache = SimulatedCache()  # shared by all sessions
        self._sessions: dict[int, dict[SimulatedState, SimulatedCache]] = {}

    def send(
        self,
        session: int,
        at: float,
        request: RequestVersion,
        others: Mapping[SimulatedState, RequestVersion] | None = None,
    ) -> SimulatedStates:
        caches = self._sessions.setdefault(session, {State.KEEP_ALIVE: SimulatedCache()})
        served = self._provider_cache.serve_with_breakpoints(
            request.prompt, request.breakpoints, RULES, at=at, response_at=at + RESPONSE_SECONDS
        )
        self._provider_cache = served.cache
        versions, version = {}, request
        for state in reversed(SimulatedState):
            version = versions[state] = (others or {}).get(state, version)
        result = self.states.serve(
            versions,
            caches,
            served,
            RULES,
            at=at,
            response_at=at + RESPONSE_SECONDS,
        )
        self._sessions[session] = {
            **result.caches,
            State.KEEP_ALIVE: _keep_session_entries(request.prompt, served.cache),
        }
        return result


def _keep_session_entries(prompt: CachedPrompt, cache: SimulatedCache) -> SimulatedCache:
    """Return the entries that a session knows of its provider's cache: the prefixes of its last request."""
    entries = {key: entry for key in prefix_keys(prompt) if (entry := cache.entries.find(key)) is not None}
    return SimulatedCache(CacheEntries(entries))


def list_prompts(workload: Workload) -> list[CachedPrompt]:
    return [call.request.prompt for call in workload]


def build_two_turns() -> list[CachedPrompt]:
    build = Builder()
    system, first = build.text(2048), build.text(2048)
    build.call(0, 1, system=[system], messages=[first])
    build.call(10, 1, system=[system], messages=[first, build.text(64), build.text(512)])
    return list_prompts(build.workload())


def test_states_that_are_the_same_are_not_stored() -> None:
    agent, (first, second) = Agent(), build_two_turns()
    agent.send(1, 0, RequestVersion(first, {1: SHORT}))

    result = agent.send(1, 10, RequestVersion(second, {1: SHORT, 3: SHORT}))

    assert result.caches == {}
    assert set(result.usage.values()) == {CacheUsage(read=4096, written_5m=576)}


def test_without_foveates_breakpoints_a_client_that_has_none_reads_nothing() -> None:
    agent, (first, second) = Agent(), build_two_turns()
    agent.send(1, 0, RequestVersion(first, {1: SHORT}), {State.CONTEXT: RequestVersion(first, {})})

    result = agent.send(1, 10, RequestVersion(second, {3: SHORT}), {State.CONTEXT: RequestVersion(second, {})})

    assert result.usage[State.BREAKPOINTS] == CacheUsage(read=4096, written_5m=576)
    assert result.usage[State.CONTEXT] == result.usage[State.CLIENT] == CacheUsage(uncached=4672)


def test_an_additional_breakpoint_saves_no_tokens_that_the_client_reads_anyway() -> None:
    agent, (first, second) = Agent(), build_two_turns()
    agent.send(
        1, 0, RequestVersion(first, {0: SHORT, 1: SHORT}), {State.CONTEXT: RequestVersion(first, {1: SHORT})}
    )

    result = agent.send(
        1, 10, RequestVersion(second, {0: SHORT, 3: SHORT}), {State.CONTEXT: RequestVersion(second, {3: SHORT})}
    )

    assert result.usage[State.CLIENT] == result.usage[State.KEEP_ALIVE] == CacheUsage(read=4096, written_5m=576)


def test_a_compacted_session_reads_in_each_state_what_that_state_wrote() -> None:
    build = Builder()
    old, summary, new = [build.text(4096), build.text(4096)], build.text(1024), build.text(512)
    build.call(0, 1, messages=old)
    build.call(10, 1, messages=[*old, new])
    build.call(10, 1, messages=[summary, new])
    build.call(20, 1, messages=[*old, new, build.text(64)])
    build.call(20, 1, messages=[summary, new, build.text(64)])
    first, long_second, second, long_third, third = list_prompts(build.workload())
    agent = Agent()
    agent.send(1, 0, RequestVersion(first, {1: SHORT}))
    second_result = agent.send(
        1, 10, RequestVersion(second, {1: SHORT}), {State.CLIENT: RequestVersion(long_second, {2: SHORT})}
    )
    third_result = agent.send(
        1, 20, RequestVersion(third, {2: SHORT}), {State.CLIENT: RequestVersion(long_third, {3: SHORT})}
    )

    assert second_result.usage[State.CLIENT] == CacheUsage(read=8192, written_5m=512)
    assert second_result.usage[State.COMPACTION] == CacheUsage(written_5m=1536)  # a planned rewrite
    assert third_result.usage[State.CLIENT].read == 8704
    assert third_result.usage[State.COMPACTION].read == 1536


def test_entries_that_only_foveate_wrote_cannot_be_read_without_it() -> None:
    build = Builder()
    system = build.text(4096)
    for seconds in (0, 10):
        build.call(seconds, seconds, system=[system], messages=[build.text(512)])
    first, second = list_prompts(build.workload())
    agent = Agent()
    agent.send(1, 0, RequestVersion(first, {0: SHORT}), {State.CONTEXT: RequestVersion(first, {})})

    result = agent.send(
        2, 10, RequestVersion(second, {0: SHORT, 1: SHORT}), {State.CONTEXT: RequestVersion(second, {1: SHORT})}
    )

    assert result.usage[State.KEEP_ALIVE].read == 4096
    assert result.usage[State.CLIENT].read == 0


def test_after_an_edited_message_the_prefix_before_it_is_read() -> None:
    build = Builder()
    system, first, answer = build.text(2048), build.text(2048), build.text(64)
    for number, added in enumerate(([], [answer, build.text(512)], [answer, build.text(512)])):
        build.call(number, 1, system=[system], messages=[first, *added])
    agent = Agent()
    results = []
    for number, (session, prompt) in enumerate(zip((1, 1, 2), list_prompts(build.workload()), strict=True)):
        last = {len(prompt.pieces) - 1: SHORT}
        version = RequestVersion(prompt, {0: SHORT, **last})
        changed = {State.CONTEXT: RequestVersion(prompt, last)}
        results.append(agent.send(session, 10.0 * number, version, changed))

    assert results[-1].usage[State.CLIENT] == CacheUsage(read=4096, written_5m=576)


@settings(max_examples=limit_examples(150))
@given(
    st.lists(
        st.tuples(
            st.integers(1, 4),  # the session
            st.integers(0, 4),  # the session whose history it takes, without the last message; 0 for its own
            st.sampled_from((1.0, 30.0, 290.0, 400.0)),  # seconds since the previous request
            st.sampled_from(((), (0,), (-1,), (0, -1))),  # breakpoints of the client
            st.sampled_from(((), (0,), (-1,), (0, 1, -1))),  # and of Foveate
        ),
        max_size=25,
    )
)
def test_the_client_is_always_simulated_as_if_foveate_did_not_exist(
    requests: list[tuple[int, int, float, tuple[int, ...], tuple[int, ...]]],
) -> None:
    """VALUE-2: all sessions of an agent share a provider's cache, in every state its own."""
    build = Builder()
    system, histories = build.text(2048), {number: [build.text(1024)] for number in range(1, 5)}
    agent, client_cache, now = Agent(), SimulatedCache(), 0.0
    for session, forked_session, seconds, client_indexes, gateway_indexes in requests:
        now += seconds
        if forked_session:
            histories[session] = [*histories[forked_session][:-1], build.text(512)]
        else:
            histories[session] += [build.text(64), build.text(512)]
        build.calls.clear()
        build.call(now, session, system=[system], messages=histories[session])
        (prompt,) = list_prompts(build.workload())
        last = len(prompt.pieces) - 1
        client_breakpoints = {index if index >= 0 else last: SHORT for index in client_indexes}
        breakpoints = {
            **client_breakpoints,
            **{index if index >= 0 else last: SHORT for index in gateway_indexes},
        }

        result = agent.send(
            session,
            now,
            RequestVersion(prompt, breakpoints),
            {State.CONTEXT: RequestVersion(prompt, client_breakpoints)},
        )
        served = client_cache.serve_with_breakpoints(
            prompt, client_breakpoints, RULES, at=now, response_at=now + RESPONSE_SECONDS
        )

        client_cache = served.cache
        assert result.usage[State.CLIENT] == served.usage

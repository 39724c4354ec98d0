"""Provider caches without some of Foveate's changes."""

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cache_workloads import MODEL, RESPONSE_SECONDS, Builder, Workload
from foveate.model import CacheUsage, SimulatedState, Ttl
from foveate.prompt_cache.counterfactual import AgentStates, RequestVersion, SimulatedStates
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, prefix_keys
from foveate.prompt_cache.rules import rules_for
from foveate.prompt_cache.simulator import CacheEntries, SimulatedCache
from tests.support.harness.example_limits import limit_examples

RULES = rules_for(MODEL)
SHORT = Ttl.FIVE_MINUTES
S = SimulatedState


class Agent:
    """Sessions whose requests get breakpoints, sent one after another."""

    def __init__(self) -> None:
        self.states = AgentStates()
        self._sent = SimulatedCache()  # the provider's cache, which all sessions share
        self._sessions: dict[int, dict[SimulatedState, SimulatedCache]] = {}

    def send(
        self,
        session: int,
        at: float,
        sent: RequestVersion,
        others: Mapping[SimulatedState, RequestVersion] | None = None,
    ) -> SimulatedStates:
        caches = self._sessions.setdefault(session, {S.KEEP_ALIVE: SimulatedCache()})
        served = self._sent.serve_with_breakpoints(
            sent.prompt, sent.breakpoints, RULES, at=at, response_at=at + RESPONSE_SECONDS
        )
        self._sent = served.cache
        versions, following = {}, sent
        for state in reversed(SimulatedState):
            following = versions[state] = (others or {}).get(state, following)
        found = self.states.serve(
            versions,
            caches,
            served,
            RULES,
            at=at,
            response_at=at + RESPONSE_SECONDS,
        )
        self._sessions[session] = {**found.caches, S.KEEP_ALIVE: _of(sent.prompt, served.cache)}
        return found


def _of(prompt: CachedPrompt, cache: SimulatedCache) -> SimulatedCache:
    """What a session knows of its provider's cache: the prefixes of its last request."""
    kept = {key: entry for key in prefix_keys(prompt) if (entry := cache.entries.find(key)) is not None}
    return SimulatedCache(CacheEntries(kept))


def prompts(workload: Workload) -> list[CachedPrompt]:
    return [call.request.prompt for call in workload]


def two_turns() -> list[CachedPrompt]:
    build = Builder()
    system, first = build.text(2048), build.text(2048)
    build.call(0, 1, system=[system], messages=[first])
    build.call(10, 1, system=[system], messages=[first, build.text(64), build.text(512)])
    return prompts(build.workload())


def test_states_that_are_the_same_are_not_stored() -> None:
    agent, (first, second) = Agent(), two_turns()
    agent.send(1, 0, RequestVersion(first, {1: SHORT}))

    found = agent.send(1, 10, RequestVersion(second, {1: SHORT, 3: SHORT}))

    assert found.caches == {}
    assert set(found.usage.values()) == {CacheUsage(read=4096, written_5m=576)}


def test_without_foveates_breakpoints_a_client_that_has_none_reads_nothing() -> None:
    agent, (first, second) = Agent(), two_turns()
    agent.send(1, 0, RequestVersion(first, {1: SHORT}), {S.CONTEXT: RequestVersion(first, {})})

    found = agent.send(1, 10, RequestVersion(second, {3: SHORT}), {S.CONTEXT: RequestVersion(second, {})})

    assert found.usage[S.BREAKPOINTS] == CacheUsage(read=4096, written_5m=576)
    assert found.usage[S.CONTEXT] == found.usage[S.CLIENT] == CacheUsage(uncached=4672)


def test_an_additional_breakpoint_saves_nothing_that_the_client_reads_itself() -> None:
    agent, (first, second) = Agent(), two_turns()
    agent.send(
        1, 0, RequestVersion(first, {0: SHORT, 1: SHORT}), {S.CONTEXT: RequestVersion(first, {1: SHORT})}
    )

    found = agent.send(
        1, 10, RequestVersion(second, {0: SHORT, 3: SHORT}), {S.CONTEXT: RequestVersion(second, {3: SHORT})}
    )

    assert found.usage[S.CLIENT] == found.usage[S.KEEP_ALIVE] == CacheUsage(read=4096, written_5m=576)


def test_a_compacted_session_reads_in_each_state_what_that_state_wrote() -> None:
    build = Builder()
    old, summary, new = [build.text(4096), build.text(4096)], build.text(1024), build.text(512)
    build.call(0, 1, messages=old)
    build.call(10, 1, messages=[*old, new])
    build.call(10, 1, messages=[summary, new])
    build.call(20, 1, messages=[*old, new, build.text(64)])
    build.call(20, 1, messages=[summary, new, build.text(64)])
    first, long_second, second, long_third, third = prompts(build.workload())
    agent = Agent()
    agent.send(1, 0, RequestVersion(first, {1: SHORT}))
    then = agent.send(
        1, 10, RequestVersion(second, {1: SHORT}), {S.CLIENT: RequestVersion(long_second, {2: SHORT})}
    )
    later = agent.send(
        1, 20, RequestVersion(third, {2: SHORT}), {S.CLIENT: RequestVersion(long_third, {3: SHORT})}
    )

    assert then.usage[S.CLIENT] == CacheUsage(read=8192, written_5m=512)
    assert then.usage[S.COMPACTION] == CacheUsage(written_5m=1536)  # a planned rewrite
    assert later.usage[S.CLIENT].read == 8704
    assert later.usage[S.COMPACTION].read == 1536


def test_entries_that_only_foveate_wrote_cannot_be_read_without_it() -> None:
    build = Builder()
    system = build.text(4096)
    for at in (0, 10):
        build.call(at, at, system=[system], messages=[build.text(512)])
    first, second = prompts(build.workload())
    agent = Agent()
    agent.send(1, 0, RequestVersion(first, {0: SHORT}), {S.CONTEXT: RequestVersion(first, {})})

    found = agent.send(
        2, 10, RequestVersion(second, {0: SHORT, 1: SHORT}), {S.CONTEXT: RequestVersion(second, {1: SHORT})}
    )

    assert found.usage[S.KEEP_ALIVE].read == 4096
    assert found.usage[S.CLIENT].read == 0


def test_after_an_edited_message_the_prefix_before_it_is_read() -> None:
    build = Builder()
    system, first, answer = build.text(2048), build.text(2048), build.text(64)
    for at, more in enumerate(([], [answer, build.text(512)], [answer, build.text(512)])):
        build.call(at, 1, system=[system], messages=[first, *more])
    agent = Agent()
    for at, (session, prompt) in enumerate(zip((1, 1, 2), prompts(build.workload()), strict=True)):
        last = {len(prompt.pieces) - 1: SHORT}
        sent = RequestVersion(prompt, {0: SHORT, **last})
        found = agent.send(session, 10.0 * at, sent, {S.CONTEXT: RequestVersion(prompt, last)})

    assert found.usage[S.CLIENT] == CacheUsage(read=4096, written_5m=576)


@settings(max_examples=limit_examples(150), deadline=None)
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
    agent, alone, at = Agent(), SimulatedCache(), 0.0
    for session, fork_of, seconds, own, ours in requests:
        at += seconds
        if fork_of:
            histories[session] = [*histories[fork_of][:-1], build.text(512)]
        else:
            histories[session] += [build.text(64), build.text(512)]
        build.calls.clear()
        build.call(at, session, system=[system], messages=histories[session])
        (prompt,) = prompts(build.workload())
        last = len(prompt.pieces) - 1
        client = {place if place >= 0 else last: SHORT for place in own}
        sent = {**client, **{place if place >= 0 else last: SHORT for place in ours}}

        found = agent.send(
            session, at, RequestVersion(prompt, sent), {S.CONTEXT: RequestVersion(prompt, client)}
        )
        served = alone.serve_with_breakpoints(prompt, client, RULES, at=at, response_at=at + RESPONSE_SECONDS)

        alone = served.cache
        assert found.usage[S.CLIENT] == served.usage

"""Generated workloads of one agent, and their input cost under each policy of placing breakpoints.

The requests of a workload share one provider cache, like those of one API key. A response starts two seconds
after its request, so concurrent requests cannot read what one of them writes.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from benchmarks.cache_optimum import bound
from benchmarks.cache_traces import BLOCK_TOKENS, TracedRequest
from foveate.model import Area, CacheBreakpoint, CacheUsage, Place, Ttl
from foveate.prompt_cache.placement.arrival_times import (
    NO_GAPS,
    GapHistogram,
    estimate_returns,
    forecast_next_request,
    short_ttl_share,
)
from foveate.prompt_cache.placement.breakpoints import PlacementOptions, apply_breakpoints, place_breakpoints
from foveate.prompt_cache.placement.prefix_log import ObservedRequest, PrefixLog
from foveate.prompt_cache.placement.prefix_reuse import AgentReuse
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, PromptPiece, compute_digest, prompt_layout
from foveate.prompt_cache.rules import CacheRules, rules_for
from foveate.prompt_cache.simulator import SimulatedCache

MODEL = "claude-sonnet-4-6"
RESPONSE_SECONDS = 2.0

_Segment = tuple[Area, int, Sequence[int]]  # the area, the message, and the ids of its token blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    session: int
    request: TracedRequest


Workload = tuple[Call, ...]


class Builder:
    """Builds prompts of unique text, unless text is passed on."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self._ids = count(1)
        self._sessions = count(1)
        self.calls: list[Call] = []

    def text(self, tokens: int) -> list[int]:
        """Return unique text of this many tokens."""
        return [next(self._ids) for _ in range(max(1, tokens // BLOCK_TOKENS))]

    def session(self) -> int:
        """Start a new session."""
        return next(self._sessions)

    def call(
        self,
        at: float,
        session: int,
        *,
        tools: Sequence[Sequence[int]] = (),
        system: Sequence[Sequence[int]] = (),
        messages: Sequence[Sequence[int]] = (),
    ) -> None:
        """Send a request; each text is a block, and each of `messages` is a message."""
        segments: list[_Segment] = [
            *((Area.TOOLS, number, ids) for number, ids in enumerate(tools)),
            *((Area.SYSTEM, number, ids) for number, ids in enumerate(system)),
            *((Area.MESSAGES, number, ids) for number, ids in enumerate(messages)),
        ]
        pieces = tuple([_piece(*segment) for segment in segments])
        prompt = CachedPrompt(model=MODEL, pieces=pieces)
        runs = [[each, each] for _, _, ids in segments for each in ids]
        self.calls.append(
            Call(session=session, request=TracedRequest(at=at, prompt=prompt, runs=runs, answer=pieces[-1]))
        )

    def workload(self) -> Workload:
        """Return the calls in order of time."""
        return tuple(sorted(self.calls, key=lambda call: call.request.at))


def _piece(area: Area, number: int, ids: Sequence[int]) -> PromptPiece:
    is_message = area is Area.MESSAGES
    return PromptPiece(
        digest=compute_digest(repr(list(ids)).encode()),
        tokens=len(ids) * BLOCK_TOKENS,
        kind="tool" if area is Area.TOOLS else "text",
        area=area,
        place=Place(area, number, 0 if is_message else None),
    )


def oneshot() -> Workload:
    """Single calls with distinct prompts."""
    build = Builder()
    for number in range(400):
        build.call(20.0 * number, build.session(), messages=[build.text(4096)])
    return build.workload()


def oneshot_shared_system() -> Workload:
    """Single calls with the same system prompt and distinct questions."""
    build = Builder()
    system = build.text(6144)
    for number in range(400):
        build.call(20.0 * number, build.session(), system=[system], messages=[build.text(2048)])
    return build.workload()


def rag() -> Workload:
    """Questions about documents of a library, five of forty at a time in any order."""
    build = Builder()
    system, library = build.text(1536), [build.text(1280) for _ in range(40)]
    for number in range(400):
        documents = build.random.sample(library, 5)
        build.call(15.0 * number, build.session(), system=[system], messages=[*documents, build.text(128)])
    return build.workload()


def classification() -> Workload:
    """The same examples as messages, and a distinct text to classify."""
    build = Builder()
    system, examples = build.text(256), [build.text(256) for _ in range(32)]
    for number in range(400):
        build.call(5.0 * number, build.session(), system=[system], messages=[*examples, build.text(384)])
    return build.workload()


def clock_in_system() -> Workload:
    """An agent whose system prompt begins with the time of each request."""
    build = Builder()
    tools, system = build.text(2048), build.text(4096)
    _loops(build, sessions=20, calls=15, tools=lambda _: [tools], system=lambda: [build.text(64), system])
    return build.workload()


def agent_loop() -> Workload:
    """An agent that calls tools, one session after the other."""
    build = Builder()
    tools, system = build.text(8192), build.text(4096)
    _loops(build, sessions=15, calls=20, tools=lambda _: [tools], system=lambda: [system])
    return build.workload()


def agent_loop_pauses() -> Workload:
    """Like `agent_loop`, with a pause of twenty minutes after every fifth call."""
    build = Builder()
    tools, system = build.text(8192), build.text(4096)
    _loops(build, sessions=15, calls=20, tools=lambda _: [tools], system=lambda: [system], pause_every=5)
    return build.workload()


def changing_tools() -> Workload:
    """An agent whose list of tools changes with every third call."""
    build = Builder()
    system = build.text(4096)
    tools = [build.text(1024) for _ in range(8)]

    def some(number: int) -> list[list[int]]:
        if number % 3 == 0:
            build.random.shuffle(tools)
        return tools[:6]

    _loops(build, sessions=15, calls=20, tools=some, system=lambda: [system])
    return build.workload()


def subagent_fanout() -> Workload:
    """Eight sub-agents that start together, each with its own task."""
    build = Builder()
    tools, system = build.text(8192), build.text(4096)
    for number in range(10):
        for _ in range(8):
            session, messages = build.session(), [build.text(2048)]
            at = 900.0 * number
            for _ in range(6):
                build.call(at, session, tools=[tools], system=[system], messages=messages)
                messages = [*messages, build.text(256), build.text(1024)]
                at += build.random.uniform(5, 40)
    return build.workload()


def _loops(
    build: Builder,
    *,
    sessions: int,
    calls: int,
    tools: Callable[[int], list[list[int]]],
    system: Callable[[], list[list[int]]],
    pause_every: int = 0,
) -> None:
    at = 0.0
    for _ in range(sessions):
        session, messages = build.session(), [build.text(1024)]
        for number in range(calls):
            build.call(at, session, tools=tools(number), system=system(), messages=messages)
            messages = [*messages, build.text(256), build.text(1280)]
            at += build.random.uniform(5, 40)
            if pause_every and number % pause_every == pause_every - 1:
                at += 1200
        at += 120


WORKLOADS: Mapping[str, Callable[[], Workload]] = {
    "oneshot": oneshot,
    "oneshot_shared_system": oneshot_shared_system,
    "rag": rag,
    "classification": classification,
    "clock_in_system": clock_in_system,
    "agent_loop": agent_loop,
    "agent_loop_pauses": agent_loop_pauses,
    "subagent_fanout": subagent_fanout,
    "changing_tools": changing_tools,
}


RULES = rules_for(MODEL)


def cost(usage: CacheUsage, rules: CacheRules) -> float:
    """Return the price of a request's input, in uncached tokens."""
    return (
        usage.uncached
        + usage.read * rules.read_price
        + usage.written_5m * rules.write_prices[Ttl.FIVE_MINUTES]
        + usage.written_1h * rules.write_prices[Ttl.ONE_HOUR]
    )


def client_breakpoints(prompt: CachedPrompt, ttl: Ttl) -> list[CacheBreakpoint]:
    """Place a breakpoint on the system prompt and one on the last message, always with the same TTL."""
    places = [piece.place for piece in prompt.pieces if piece.accepts_breakpoint and piece.place]
    system = [place for place in places if place.area is not Area.MESSAGES]
    chosen = dict.fromkeys([*system[-1:], *places[-1:]])
    return [CacheBreakpoint(place=place, ttl=ttl, reason="usual") for place in chosen]


def fixed_costs(workload: Workload, ttl: Ttl | None, rules: CacheRules = RULES) -> list[float]:
    """Return the cost of each call without breakpoints, or with the default ones."""
    cache, found = SimulatedCache(), []
    for call in workload:
        request = call.request
        prompt = (
            request.prompt
            if ttl is None
            else apply_breakpoints(request.prompt, client_breakpoints(request.prompt, ttl))
        )
        served = cache.serve(prompt, rules, at=request.at, response_at=request.at + RESPONSE_SECONDS)
        cache = served.cache
        found.append(cost(served.usage, rules))
    return found


class Gateway:
    """One agent's requests with the breakpoints that the gateway places. `log` is its agent history."""

    def __init__(self, reuse: AgentReuse | None = None, rules: CacheRules = RULES) -> None:
        self.log = PrefixLog(reuse or AgentReuse())
        self._rules = rules
        self._provider = SimulatedCache()
        self._sessions: dict[int, tuple[SimulatedCache, GapHistogram, float | None]] = {}
        self._rhythm = NO_GAPS
        self._under_way: list[_Sent] = []

    def cost(self, call: Call, client_ttl: Ttl | None = None) -> float:
        """Send a call, with the default breakpoints as the client's own if it sets some."""
        rules, now = self._rules, call.request.at
        self._finish(now)
        cache, rhythm, before = self._sessions.get(call.session, (SimulatedCache(), NO_GAPS, None))
        if before is not None:
            rhythm, self._rhythm = rhythm.with_gap(now - before), self._rhythm.with_gap(now - before)
        prompt = call.request.prompt
        if client_ttl is not None:
            prompt = apply_breakpoints(prompt, client_breakpoints(prompt, client_ttl))
        expected = forecast_next_request(rhythm, self._rhythm)
        sighting = self.log.observe(
            prompt, rules, cache, now=now, short_ttl_share=short_ttl_share(expected, rules)
        )
        weights = estimate_returns(expected, rules, sighting.reach)
        options = PlacementOptions(long_ttl=sighting.reach.allows_long)
        breakpoints = place_breakpoints(
            prompt, rules, sighting.cache, weights, now=now, options=options, max_pieces=sighting.reach.pieces
        )
        sent = apply_breakpoints(prompt, breakpoints)
        sighting = self.log.record_cost(sighting, prompt, prompt_layout(sent).breakpoints, rules, now=now)
        served = self._provider.serve(sent, rules, at=now, response_at=now + RESPONSE_SECONDS)
        self._provider = served.cache
        self._sessions[call.session] = cache, rhythm, now
        self._under_way.append(_Sent(call.session, sighting, sent, now))
        return cost(served.usage, rules)

    def _finish(self, now: float) -> None:
        """Record what the requests whose responses have started left in the provider's cache."""
        while self._under_way and self._under_way[0].at + RESPONSE_SECONDS <= now:
            done = self._under_way.pop(0)
            cache, rhythm, before = self._sessions[done.session]
            known = self.log.merge(cache, done.sighting.keys, now=done.at)
            served = known.serve(done.prompt, self._rules, at=done.at, response_at=done.at + RESPONSE_SECONDS)
            self.log.record_response(done.sighting, served.cache)
            self._sessions[done.session] = served.cache, rhythm, before


class _Sent(NamedTuple):
    session: int
    sighting: ObservedRequest
    prompt: CachedPrompt
    at: float


def gateway_costs(
    workload: Workload,
    reuse: AgentReuse | None = None,
    *,
    client_ttl: Ttl | None = None,
    rules: CacheRules = RULES,
) -> tuple[list[float], AgentReuse]:
    """Return the cost of each call with Foveate's placement, and what it has learnt about the agent."""
    gateway = Gateway(reuse, rules)
    return [gateway.cost(call, client_ttl) for call in workload], gateway.log.reuse


def costs(workload: Workload) -> dict[str, list[float]]:
    """Return the cost of each call under each policy; the optimum is one sum."""
    cold, learnt = gateway_costs(workload)
    return {
        "none": fixed_costs(workload, None),
        "usual_5m": fixed_costs(workload, Ttl.FIVE_MINUTES),
        "always_1h": fixed_costs(workload, Ttl.ONE_HOUR),
        "ours_cold": cold,
        "ours_warm": gateway_costs(workload, learnt)[0],
        "optimum": [bound(tuple(call.request for call in workload), RULES, pings=False)],
    }

"""The simulation of what each request leaves in the provider's cache, with and without what Foveate does."""

from collections import OrderedDict
from dataclasses import dataclass, field

from msgspec.structs import replace

from foveate.cache.counterfactual import AgentStates, Simulated, Version
from foveate.cache.layout import borne_by
from foveate.cache.prompts import CachedPrompt, landmarks_of
from foveate.cache.rules import Caching
from foveate.engine.exchange import Exchange
from foveate.engine.prefix_logs import PrefixLogs
from foveate.engine.remembered import Remembered
from foveate.engine.steps.cache import read_prompt
from foveate.engine.steps.names import SAVINGS
from foveate.engine.work import Work
from foveate.values import Request, SimulatedState

_MAX_AGENTS = 256
_SENT = SimulatedState.KEEP_ALIVE


class ReadStates:
    """Reads the request of every state as its provider's cache would see it."""

    name = SAVINGS

    async def take(self, work: Work) -> None:
        """Read those that are needed; most often all states have the same request."""
        work.needs_simulation = True  # until it is known that it does not: what fails is not compared
        if work.request is work.came and work.prompt is not None:
            work.simulated = dict.fromkeys(SimulatedState, work.prompt)
            return
        work.needs_simulation = _needs_simulation(work)
        if not work.needs_simulation:
            return
        prompts: list[tuple[Request, CachedPrompt]] = (
            [] if work.prompt is None else [(work.request, work.prompt)]
        )
        simulated: dict[SimulatedState, CachedPrompt] = {}
        for state in reversed(SimulatedState):
            request = work.version(state)
            known = next((prompt for each, prompt in prompts if each is request), None)
            if known is None:
                known = await read_prompt(request, work.rules, work.block_tokens)
                prompts.append((request, known))
            simulated[state] = known
        work.simulated = simulated


def _needs_simulation(work: Work) -> bool:
    """Whether anything that Foveate does may change what the request costs."""
    is_edited = work.version(SimulatedState.CONTEXT) is not work.came
    if work.prompt is not None or is_edited or work.state.states:
        return True
    if work.count is not None and work.count.upper < work.rules.minimum_tokens:
        return False  # too short to be cached
    return work.options.compaction and work.rules.caching is not Caching.NONE


@dataclass(frozen=True, slots=True)
class SimulateStates:
    """Simulates each request in all states, and remembers what it left in the provider's cache."""

    remembered: Remembered
    logs: PrefixLogs
    _agents: OrderedDict[str, AgentStates] = field(default_factory=OrderedDict)

    def __call__(self, exchange: Exchange) -> None:
        """Simulate a request that the provider has answered."""
        work = exchange.work
        if work is None or not work.simulated:
            return
        agent, session_id = work.incoming.agent, work.session_id
        log = self.logs.open(agent)
        if not 200 <= exchange.status < 300:
            if work.sighting is not None:
                log.failed(work.sighting)
            return
        # Other requests of the session may have been answered since this one came.
        state = self.remembered.session(agent, session_id)
        sent, rules = (
            Version(work.simulated[_SENT], borne_by(work.simulated[_SENT], work.marks)),
            work.kept_rules,
        )
        keys = work.sighting.keys if work.sighting is not None else ()
        states = self._states_of(agent)
        times = {"at": exchange.sent_at, "answers_at": exchange.begun_at}
        served = states.serve_sent(sent, state.cache, rules, **times)
        if work.sighting is not None:
            log.served(work.sighting, served.cache)
        versions = {
            each: Version(prompt, landmarks_of(prompt).marks) for each, prompt in work.simulated.items()
        }
        versions[SimulatedState.BREAKPOINTS] = versions[_SENT] = sent
        simulated = states.serve(
            versions,
            {**state.states, _SENT: state.cache},
            served,
            rules,
            keys=keys,
            **times,
        )
        state = state.served(served.cache, simulated.caches)
        if not state.would_not_fit and _outgrows_window(exchange, work, simulated):
            state = replace(state, would_not_fit=True)
        work.state = replace(work.state, would_not_fit=state.would_not_fit)
        self.remembered.put(agent, session_id, state)
        exchange.simulated = simulated.usage

    def _states_of(self, agent: str) -> AgentStates:
        found = self._agents.setdefault(agent, AgentStates())
        self._agents.move_to_end(agent)
        if len(self._agents) > _MAX_AGENTS:
            self._agents.popitem(last=False)
        return found


def _outgrows_window(exchange: Exchange, work: Work, simulated: Simulated) -> bool:
    """Whether the provider would have refused the client's own request."""
    window, usage = work.widest_tokens, exchange.usage
    client, sent = (simulated.usage[state].input_tokens for state in (SimulatedState.CLIENT, _SENT))
    if window is None or usage is None or client <= sent or not sent:
        return False
    return client / sent * usage.cache.input_tokens > window - work.output_reserve

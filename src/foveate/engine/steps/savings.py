"""The step that reads the prompts of all simulated states, and the hook that computes savings from them."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from foveate.caching import LruCache
from foveate.engine.exchange import Exchange
from foveate.engine.request_context import RequestContext
from foveate.engine.session_state import SessionStates
from foveate.engine.steps import SAVINGS
from foveate.engine.steps.cache import PrefixLogs, read_prompt
from foveate.model import Request, SimulatedState
from foveate.prompt_cache.placement.breakpoints import merge_breakpoints
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, prompt_layout
from foveate.prompt_cache.rules import CachingMode
from foveate.prompt_cache.simulator import AgentStates, RequestVersion, SimulatedStates

_MAX_AGENTS = 256
_SENT_STATE = SimulatedState.KEEP_ALIVE


class ReadSimulatedPrompts:
    name = SAVINGS

    async def apply(self, context: RequestContext) -> None:
        """Read the prompt of each simulated state; usually all share one request."""
        context.cache.needs_simulation = (
            True  # until proven otherwise: if the simulation fails, nothing is compared
        )
        if context.request is context.original and context.cache.prompt is not None:
            context.cache.simulated_prompts = dict.fromkeys(SimulatedState, context.cache.prompt)
            return
        context.cache.needs_simulation = _needs_simulation(context)
        if not context.cache.needs_simulation:
            return
        prompts: list[tuple[Request, CachedPrompt]] = (
            [] if context.cache.prompt is None else [(context.request, context.cache.prompt)]
        )
        simulated: dict[SimulatedState, CachedPrompt] = {}
        for state in reversed(SimulatedState):
            request = context.request_in_state(state)
            known_prompt = next((prompt for known_request, prompt in prompts if known_request is request), None)
            if known_prompt is None:
                known_prompt = await read_prompt(request, context.rules, context.block_tokens)
                prompts.append((request, known_prompt))
            simulated[state] = known_prompt
        context.cache.simulated_prompts = simulated


def _needs_simulation(context: RequestContext) -> bool:
    """Return whether Foveate may have changed the cost of the request."""
    is_edited = context.request_in_state(SimulatedState.CONTEXT) is not context.original
    if context.cache.prompt is not None or is_edited or context.session.state.simulated_caches:
        return True
    if context.count.total is not None and context.count.total.upper < context.rules.minimum_tokens:
        return False  # too short to be cached
    return context.options.edits_history and context.rules.caching is not CachingMode.NONE


@dataclass(frozen=True, slots=True)
class SimulateSavings:
    """Simulates each request in all states, and remembers what it left in the provider's cache."""

    session_states: SessionStates
    logs: PrefixLogs
    _agents: LruCache[AgentStates] = field(default_factory=lambda: LruCache(_MAX_AGENTS))

    def __call__(self, exchange: Exchange) -> None:
        context = exchange.context
        if context is None or not context.cache.simulated_prompts:
            return
        agent, session_id, account = context.incoming.agent, context.session_id, context.incoming.account
        log = self.logs.open(agent, account)
        if not 200 <= exchange.status < 300:
            if context.cache.observed_request is not None:
                log.record_failure(context.cache.observed_request)
            return
        # Other requests of the session may have been answered meanwhile.
        state = self.session_states.session(agent, session_id)
        sent_version = RequestVersion(
            context.cache.simulated_prompts[_SENT_STATE],
            merge_breakpoints(context.cache.simulated_prompts[_SENT_STATE], context.cache.breakpoints),
        )
        rules = context.conservative_rules
        keys = context.cache.observed_request.keys if context.cache.observed_request is not None else ()
        states = self._agents.put_if_absent((agent, account), AgentStates())
        times = {"at": exchange.sent_at, "response_at": exchange.response_started_at}
        actual = states.serve_actual(sent_version, state.cache, rules, **times)
        if context.cache.observed_request is not None:
            log.record_response(context.cache.observed_request, actual.cache)
        versions = {
            simulated_state: RequestVersion(prompt, prompt_layout(prompt).breakpoints)
            for simulated_state, prompt in context.cache.simulated_prompts.items()
        }
        versions[SimulatedState.BREAKPOINTS] = versions[_SENT_STATE] = sent_version
        simulated = states.serve(
            versions,
            {**state.simulated_caches, _SENT_STATE: state.cache},
            actual,
            rules,
            keys=keys,
            **times,
        )
        state = state.with_response(actual.cache, simulated.caches)
        if not state.would_exceed_window and _outgrows_window(exchange, context, simulated):
            state = replace(state, would_exceed_window=True)
        context.session.state = replace(context.session.state, would_exceed_window=state.would_exceed_window)
        self.session_states.put(agent, session_id, state)
        exchange.simulated_usage = simulated.usage


def _outgrows_window(exchange: Exchange, context: RequestContext, simulated: SimulatedStates) -> bool:
    """Return whether the provider would have rejected the client's own request."""
    window, usage = context.max_window_tokens, exchange.usage
    client_tokens, sent_tokens = (
        simulated.usage[state].input_tokens for state in (SimulatedState.CLIENT, _SENT_STATE)
    )
    if window is None or usage is None or client_tokens <= sent_tokens or not sent_tokens:
        return False
    return client_tokens / sent_tokens * usage.cache.input_tokens > window - context.output_reserve_tokens

"""The step that places cache breakpoints, or sets the cache key of the session.

Some providers route requests with the same cache key to the same machine. What later requests need is
remembered here: which prefixes each agent repeats, and who rejects breakpoints or parameters.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from blake3 import blake3
from msgspec import structs

from foveate.engine.background.debouncer import Debouncer
from foveate.engine.exchange import Exchange
from foveate.engine.request_context import RequestContext
from foveate.engine.session_state import SessionStates
from foveate.engine.steps import CACHE
from foveate.errors import StoreUnavailable
from foveate.formats.incremental.envelope import get_parameters
from foveate.model import Edit, Format, RemoveBreakpoint, Request, SetParameter, Ttl
from foveate.prompt_cache.placement.arrival_times import (
    estimate_returns,
    forecast_next_request,
    short_ttl_share,
)
from foveate.prompt_cache.placement.breakpoints import (
    disable_long_ttl,
    merge_breakpoints,
    place_breakpoints,
    placement_rules,
)
from foveate.prompt_cache.placement.prefix_log import PrefixLog
from foveate.prompt_cache.placement.prefix_reuse import UNKNOWN_AGENT, AgentReuse, ReuseStore
from foveate.prompt_cache.prompt.blocks import BlockTokens
from foveate.prompt_cache.prompt.build import build_cached_prompt, estimate_unread_bytes
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, prompt_layout
from foveate.prompt_cache.rejections import KnownRejections, remove_client_breakpoints
from foveate.prompt_cache.rules import CacheRules, CachingMode
from foveate.session.counting import run_in_thread_if_large

_LOG = logging.getLogger(__name__)

MAX_LOGS = 256
"""Maximum number of agents whose prefixes are remembered."""
MAX_AGENTS = 1024
"""Maximum number of agents whose reuse of prefixes is known."""
SAVE_SECONDS = 5.0

_KEY_BYTES = 16
_FORMATS_WITH_KEY = (Format.CHAT, Format.RESPONSES)
_REPLACED_REASON = "Foveate places all cache breakpoints"
# Reading more takes milliseconds, which would block the event loop.
_THREAD_BYTES = 64 * 1024


class PrefixLogs:
    """A log per agent and account, most recently used last. For one event loop.

    Each account has its own cache; how an agent reuses prefixes is learned from all of its requests.
    """

    def __init__(self, known: Mapping[str, AgentReuse] | None = None) -> None:
        self._logs: OrderedDict[tuple[str, str], PrefixLog] = OrderedDict()
        self._last_used: dict[str, PrefixLog] = {}  # by agent
        self._known_reuse = OrderedDict(known or {})
        self._changed: set[str] = set()

    def open(self, agent: str, account: str = "") -> PrefixLog:
        log, last_used = self._logs.get((agent, account)), self._last_used.get(agent)
        if log is None:
            log = self._logs[agent, account] = PrefixLog(self._known_reuse.get(agent, UNKNOWN_AGENT))
        if last_used is not None:
            log.reuse = last_used.reuse
        self._last_used[agent] = log
        self._logs.move_to_end((agent, account))
        if len(self._logs) > MAX_LOGS:
            (oldest, _), closed = self._logs.popitem(last=False)
            if self._last_used[oldest] is closed:
                del self._last_used[oldest]
                self._set_reuse(oldest, closed.reuse)
        self._changed.add(agent)
        if len(self._changed) > MAX_AGENTS:
            self._changed.pop()
        return log

    def adopt(self, others: Mapping[str, AgentReuse]) -> None:
        """Take over what other gateways have learned from more requests."""
        for agent, reuse in others.items():
            if reuse.requests > self._reuse(agent).requests:
                self._set_reuse(agent, reuse)
                if agent in self._last_used:
                    self._last_used[agent].reuse = reuse

    @property
    def has_changes(self) -> bool:
        return bool(self._changed)

    def take_changes(self) -> dict[str, AgentReuse]:
        changed, self._changed = self._changed, set()
        return {agent: self._reuse(agent) for agent in changed}

    def _reuse(self, agent: str) -> AgentReuse:
        log = self._last_used.get(agent)
        return self._known_reuse.get(agent, UNKNOWN_AGENT) if log is None else log.reuse

    def _set_reuse(self, agent: str, reuse: AgentReuse) -> None:
        self._known_reuse[agent] = reuse
        self._known_reuse.move_to_end(agent)
        if len(self._known_reuse) > MAX_AGENTS:
            self._known_reuse.popitem(last=False)


class SaveReuse:
    """Saves changes of the logs every few seconds, and loads those of other gateways."""

    def __init__(
        self,
        store: ReuseStore,
        logs: PrefixLogs,
        *,
        clock: Callable[[], float],
        interval_seconds: float = SAVE_SECONDS,
    ) -> None:
        self._store = store
        self._logs = logs
        self._clock = clock
        self._loaded_at = clock()
        self._debouncer = Debouncer(self._sync, interval_seconds)

    def __call__(self, exchange: Exchange) -> None:
        if self._logs.has_changes:
            self._debouncer.request()

    async def close(self) -> None:
        await self._debouncer.close()

    async def _sync(self) -> None:
        changes = self._logs.take_changes()
        if not changes:
            return
        now = self._clock()
        try:
            await self._store.save(changes, now=now)
            # Clocks of other gateways may be slightly behind.
            others = await self._store.load(since=self._loaded_at - 2 * SAVE_SECONDS, limit=MAX_AGENTS)
        except StoreUnavailable as error:  # the agents' next requests change it again
            _LOG.warning("prefix reuse of %d agents could not be saved: %s", len(changes), error)
            return
        self._loaded_at = now
        self._logs.adopt(others)


async def load_prefix_logs(store: ReuseStore) -> PrefixLogs:
    """Load saved logs; empty ones if the store cannot be read."""
    try:
        return PrefixLogs(await store.load(since=0.0, limit=MAX_AGENTS))
    except StoreUnavailable as error:
        _LOG.warning("prefix reuse could not be loaded, starting without it: %s", error)
        return PrefixLogs()


def derive_cache_key(session: str) -> str:
    """A session's key: the same for all its requests, and not reversible."""
    return blake3(b"cache key\0" + session.encode("utf-8", "replace")).hexdigest(_KEY_BYTES)


def set_cache_key(request: Request, rules: CacheRules, session: str) -> SetParameter | None:
    """The edit that sets a session's cache key, if provider and format accept one and the request has none."""
    if not rules.key_parameter or request.format not in _FORMATS_WITH_KEY:
        return None
    if rules.key_parameter in get_parameters(request):
        return None
    return SetParameter(
        path=(rules.key_parameter,),
        value=derive_cache_key(session),
        reason="the provider routes requests with the same key to the same cache",
    )


def cache_key_headers(rules: CacheRules, session: str) -> dict[str, str]:
    return {rules.key_header: derive_cache_key(session)} if rules.key_header else {}


class PlaceBreakpoints:
    """Places cache breakpoints where they pay, or sets the key that routes to a warm cache."""

    name = CACHE

    def __init__(self, session_states: SessionStates, rejections: "RejectionMemory", logs: PrefixLogs) -> None:
        self._session_states = session_states
        self._rejections = rejections
        self._logs = logs

    async def apply(self, context: RequestContext) -> None:
        rules = context.rules
        if not context.options.prompt_cache:
            return
        key = set_cache_key(context.request, rules, context.session_id)
        if key is not None and self._rejections.accepts_parameter(context, rules.key_parameter):
            context.cache.added_parameters += (key,)
        context.cache.added_headers |= cache_key_headers(rules, context.session_id)
        upstream, known_rejections = context.incoming.upstream, self._rejections.known
        if rules.rejects_breakpoints or not known_rejections.accepts_client_breakpoints(
            upstream, context.model, at=context.received_at
        ):
            await context.apply_edits(self.name, remove_client_breakpoints(context.request))
        if rules.caching not in (CachingMode.BREAKPOINTS, CachingMode.BOTH):
            return
        if context.request.continues_stored_conversation:
            return  # what precedes its messages is unknown
        if context.count.total is not None and context.count.total.upper < rules.minimum_tokens:
            return  # too short to be cached
        prompt = await read_prompt(context.request, rules, context.block_tokens)
        accepts_breakpoints = known_rejections.accepts_breakpoints(
            upstream, context.model, session=context.session_id, at=context.received_at
        )
        # If others serve the session too, the client knows better what is cached.
        replaces_client = (
            context.options.replace_breakpoints and context.session.state.has_served_all and accepts_breakpoints
        )
        if replaces_client and (removals := _replace_client_breakpoints(context.request, prompt)):
            await context.apply_edits(self.name, removals)
            prompt = await read_prompt(context.request, rules, context.block_tokens)
        context.cache.prompt = prompt
        if not accepts_breakpoints:
            return
        accepts_ttl = known_rejections.accepts_ttl(upstream, context.model, at=context.received_at)
        accepts_long_ttl = accepts_ttl and context.incoming.provider in context.options.long_ttl_providers
        expected = forecast_next_request(
            context.session.state.rhythm, self._session_states.agent_rhythm(context.incoming.agent)
        )
        options = context.options.placement
        if not accepts_long_ttl:
            options = disable_long_ttl(options, rules)
        conservative_rules = context.conservative_rules
        log = self._logs.open(context.incoming.agent, context.incoming.account)
        rules_for_placement = placement_rules(conservative_rules, options)
        observing_rules = (
            rules_for_placement if options.ttl is None else with_one_ttl(rules_for_placement, options.ttl)
        )
        observed = log.observe(
            prompt,
            observing_rules,
            context.session.state.cache,
            now=context.received_at,
            short_ttl_share=short_ttl_share(expected, observing_rules),
            long_ttl=options.long_ttl,
            transient=context.cache.transient_places,
        )
        breakpoints = place_breakpoints(
            prompt,
            rules_for_placement,
            observed.cache,
            estimate_returns(expected, rules, observed.reach),
            now=context.received_at,
            options=options if observed.reach.allows_long else replace(options, long_ttl=False),
            transient=context.cache.transient_places,
            max_pieces=observed.reach.pieces,
        )
        context.cache.observed_request = log.record_cost(
            observed,
            prompt,
            merge_breakpoints(prompt, breakpoints),
            conservative_rules,
            now=context.received_at,
        )
        context.cache.breakpoints = (
            breakpoints
            if accepts_ttl
            else tuple(structs.replace(cache_breakpoint, ttl=None) for cache_breakpoint in breakpoints)
        )


def _replace_client_breakpoints(request: Request, prompt: CachedPrompt) -> list[Edit]:
    """Edits that remove the client's breakpoints. Only Anthropic's API is known to accept `null` for one."""
    if request.format is not Format.ANTHROPIC:
        return []
    is_automatic = "cache_control" in get_parameters(request)
    places = [prompt.pieces[at].place for at in prompt_layout(prompt).breakpoints]
    if is_automatic and not prompt.duplicate_breakpoints:
        places.pop()  # the provider places this one itself
    edits: list[Edit] = [
        RemoveBreakpoint(place=place, reason=_REPLACED_REASON) for place in places if place is not None
    ]
    if is_automatic:
        edits.append(SetParameter(path=("cache_control",), value=None, reason=_REPLACED_REASON))
    return edits


def with_one_ttl(rules: CacheRules, ttl: Ttl) -> CacheRules:
    return (
        replace(rules, ttls=(ttl,), write_prices={ttl: rules.write_prices[ttl]}) if ttl in rules.ttls else rules
    )


async def read_prompt(request: Request, rules: CacheRules, tokens: BlockTokens) -> CachedPrompt:
    size_bytes = estimate_unread_bytes(request, rules, tokens)
    if size_bytes < _THREAD_BYTES:
        return build_cached_prompt(request, rules, tokens)
    return await run_in_thread_if_large(lambda: build_cached_prompt(request, rules, tokens), size_bytes)


class RejectionMemory:
    def __init__(self) -> None:
        self.known = KnownRejections()

    def accepts_parameter(self, context: RequestContext, name: str) -> bool:
        """True unless the upstream is known to reject an optional parameter."""
        return self.known.accepts_parameter(
            context.incoming.upstream, context.model, name, at=context.received_at
        )


@dataclass(frozen=True, slots=True)
class RecordRejections:
    """Remembers who rejects our breakpoints or parameters, once the same request was accepted without them."""

    rejections: RejectionMemory

    def __call__(self, exchange: Exchange) -> None:
        context = exchange.context
        if context is None or not 200 <= exchange.status < 300:
            return
        known, upstream, at = self.rejections.known, context.incoming.upstream, exchange.response_started_at
        for name in exchange.rejected_parameters:
            known = known.with_rejected_parameter(name, upstream, context.model, at=at)
        if exchange.breakpoint_rejection is not None:
            known = known.with_rejection(
                exchange.breakpoint_rejection, upstream, context.model, session=context.session_id, at=at
            )
        self.rejections.known = known

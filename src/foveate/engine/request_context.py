"""The state of one request in the pipeline, and the protocol of a step."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Protocol

import msgspec

from foveate import formats
from foveate.budget.model_limits import find_context_window, find_output_limit
from foveate.compaction.store import Compaction
from foveate.compaction.summarize.llm import SummarizerEndpoint
from foveate.compaction.thinking import required_betas
from foveate.cost.admission import AdmittedCall
from foveate.cost.ledger import Call
from foveate.engine.counting.offline_counters import block_tokens, conservative_minimum, offline_counter
from foveate.engine.options import AgentOptions
from foveate.engine.request import AppliedEdit, IncomingRequest, StepFailure
from foveate.engine.session_state import SessionState
from foveate.engine.spending.cost_ceiling import CostCeiling, max_breakpoint_ttl, read_cost_parameters
from foveate.engine.steps import CACHE, CAPS, PIPELINE, SECTIONS, THINKING, TOOLS
from foveate.formats.json_text.large_json import LARGE_BYTES
from foveate.model import (
    BreakpointStyle,
    CacheBreakpoint,
    Edit,
    Format,
    Place,
    Request,
    SetParameter,
    SimulatedState,
    TokenCount,
    Ttl,
)
from foveate.prompt_cache.placement.prefix_log import ObservedRequest
from foveate.prompt_cache.prompt.blocks import BlockTokens
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, prompt_layout
from foveate.prompt_cache.rules import BETA_HEADER, CacheRules, CachingMode, rules_for
from foveate.session.counting import run_in_thread_if_large
from foveate.session.hash_chain import HashChain
from foveate.session.matching import SessionMatch
from foveate.session.recent_sessions import InFlightRequest
from foveate.session.store import PendingWrite
from foveate.tokens import RequestCount, RequestCounter

# https://docs.anthropic.com/en/docs/build-with-claude/context-windows (November 2026)
_LONG_WINDOW_BETA, _LONG_WINDOW_TOKENS = "context-1m", 1_000_000


_SIMULATED_STATES = tuple(SimulatedState)
SIMULATED_STATE_BY_STEP = {
    SECTIONS: SimulatedState.CONTEXT,
    THINKING: SimulatedState.CONTEXT,
    TOOLS: SimulatedState.BREAKPOINTS,
    CACHE: SimulatedState.BREAKPOINTS,
}
"""The simulated state that each step's edits belong to; all other steps belong to compaction."""


class SessionFields(msgspec.Struct, eq=False):
    """Set by `steps.session`."""

    chain: HashChain | None = None
    match: SessionMatch | None = None
    state: SessionState = SessionState()
    in_flight: InFlightRequest | None = None


class CountFields(msgspec.Struct, eq=False):
    """Set by `steps.count`."""

    total: TokenCount | None = None
    """Calibrated, or counted by the upstream."""
    raw: RequestCount | None = None
    """The local count behind `total`, if there is one."""
    is_fallback: bool = False
    """The local count replaces that of a server that failed."""
    has_unexplained_input: bool = False
    """The provider adds input that cannot be counted."""
    includes_stored: bool = False
    """`total` includes messages that the provider stores."""
    reported_tokens: int | None = None
    """The provider's own number of input tokens; set after the response."""
    drift_percent: float | None = None
    """Excess of `reported_tokens` over `total`; negative if fewer were reported."""


class CacheFields(msgspec.Struct, eq=False):
    """Set by `steps.cache`, except where another step is named."""

    prompt: CachedPrompt | None = None
    observed_request: ObservedRequest | None = None
    breakpoints: tuple[CacheBreakpoint, ...] = ()
    added_parameters: tuple[Edit, ...] = ()
    added_headers: dict[str, str] = msgspec.field(default_factory=dict)
    transient_places: tuple[Place, ...] = ()
    """Places of blocks that the next request will not repeat; set by `steps.sections`."""
    needs_simulation: bool = False
    """Foveate may have changed the cost of the request; set by `steps.savings`."""
    simulated_prompts: dict[SimulatedState, CachedPrompt] = msgspec.field(default_factory=dict)
    """The prompts of all simulated states, if `needs_simulation`; set by `steps.savings`."""


class CostFields(msgspec.Struct, eq=False):
    """Set by `steps.caps`."""

    call: Call | None = None
    ceiling: CostCeiling | None = None
    ceiling_dollars: Decimal | None = None
    output_limit: SetParameter | None = None
    """A limit that fits under the caps, for a request without one; it is never sent without it."""
    reservation: AdmittedCall | None = None
    estimated_input_tokens: int | None = None


class RequestContext(msgspec.Struct, eq=False):
    """The state of one request in the pipeline. Most fields are grouped by the step that sets them."""

    incoming: IncomingRequest
    options: AgentOptions
    received_at: float
    original: Request
    """The body as received."""
    request: Request
    """The body as it would be sent."""
    uses_thread: bool = False
    """The provider keeps the message thread of the request."""

    # All steps
    applied_edits: list[AppliedEdit] = msgspec.field(default_factory=list)
    problems: list[StepFailure] = msgspec.field(default_factory=list)
    pending_writes: list[PendingWrite] = msgspec.field(default_factory=list)
    """Stored once the request is answered."""
    requests_before_state: dict[SimulatedState, Request] = msgspec.field(default_factory=dict)
    """The request before the first edit of each later simulated state."""

    # steps.history
    compactions: Sequence[Compaction] = ()
    compaction: Compaction | None = None
    truncated_result_count: int = 0

    # background.tracing, if traces are saved
    sent_history: formats.MessageHistory | None = None
    """The messages of the request as it is sent."""

    session: SessionFields = msgspec.field(default_factory=SessionFields)
    count: CountFields = msgspec.field(default_factory=CountFields)
    cache: CacheFields = msgspec.field(default_factory=CacheFields)
    cost: CostFields = msgspec.field(default_factory=CostFields)

    @property
    def model(self) -> str:
        return self.request.model

    @property
    def rules(self) -> CacheRules:
        return rules_for(self.request.model, self.incoming.provider)

    @property
    def counter(self) -> RequestCounter:
        """The local counter for the model, uncalibrated."""
        return offline_counter(self.options.counter, self.request.model)

    @property
    def block_tokens(self) -> BlockTokens:
        """The local counter for blocks, uncalibrated."""
        return block_tokens(self.options.counter, self.request.model)

    @property
    def tokens_per_raw_token(self) -> float:
        raw_tokens = self.count.raw.total.tokens if self.count.raw is not None else 0
        return self.count.total.tokens / raw_tokens if raw_tokens and self.count.total is not None else 1.0

    @property
    def conservative_rules(self) -> CacheRules:
        """`rules` with a minimum that is certain to be reached, whatever the error of the count."""
        raw_count, prompt = self.count.raw, self.cache.prompt
        block_tokens = (
            raw_count.total.tokens if raw_count is not None else prompt.tokens if prompt is not None else 0
        )
        return conservative_minimum(
            self.rules, self.request.model, self.incoming.provider, blocks=block_tokens, count=self.count.total
        )

    @property
    def session_id(self) -> str:
        """The id of the session; that of the request if the session is unknown."""
        return self.session.match.session.id if self.session.match is not None else self.incoming.id

    @property
    def window_tokens(self) -> int | None:
        if self.options.window_tokens is not None:
            return self.options.window_tokens
        window = find_context_window(self.request.model)
        return window.tokens if window is not None else None

    @property
    def max_window_tokens(self) -> int | None:
        """The largest input that the provider may accept; a smaller configured window does not apply there."""
        model_window = find_context_window(self.request.model)
        max_tokens = max(
            self.options.window_tokens or 0,
            model_window.tokens if model_window is not None else 0,
            _LONG_WINDOW_TOKENS if _LONG_WINDOW_BETA in self.incoming.betas else 0,
        )
        return max_tokens or None

    @property
    def is_read_only(self) -> bool:
        """Return whether the request must not change: it is signed, or the provider keeps its message thread.

        Edits of a request that creates or continues a thread would become part of the thread.
        """
        return self.incoming.is_signed or self.uses_thread

    @property
    def has_unknown_size(self) -> bool:
        """Return whether the provider stores earlier messages whose size is unknown."""
        return self.original.continues_stored_conversation and not self.count.includes_stored

    @property
    def unexplained(self) -> Sequence[str]:
        """Names of inputs that the provider adds and `token_count` does not include."""
        return (self.count.raw or self.request).unexplained

    @property
    def output_reserve_tokens(self) -> int:
        """Tokens of the window that are reserved for the response: as many as the request asks for.

        The model's maximum output bounds them. They are at most a quarter of a window that the provider does
        not enforce: a configured one that is smaller than the model's, one of an unknown model, or one that is
        no larger than the output alone.
        """
        requested_tokens, window = read_cost_parameters(self.original).output_tokens or 0, self.window_tokens
        max_output = find_output_limit(self.request.model)
        if max_output is not None:
            requested_tokens = min(requested_tokens, max_output.tokens)
        if window is None:
            return requested_tokens
        model_window = find_context_window(self.request.model)
        is_enforced = model_window is not None and requested_tokens < model_window.tokens <= window
        return requested_tokens if is_enforced else min(requested_tokens, window // 4)

    @property
    def max_ttl(self) -> Ttl | None:
        """The longest TTL of all breakpoints, the client's and ours; valid once all are placed."""
        ttls = [
            cache_breakpoint.ttl
            for cache_breakpoint in self.cache.breakpoints
            if cache_breakpoint.ttl is not None
        ]
        if self.cache.prompt is not None:
            ttls += prompt_layout(self.cache.prompt).breakpoints.values()
        elif (client_ttl := max_breakpoint_ttl(self.request)) is not None:
            ttls.append(client_ttl)
        return max(ttls, key=lambda ttl: ttl.seconds) if ttls else None

    @property
    def betas(self) -> str:
        """The header `anthropic-beta` as received, with the values that our edits need."""
        added_betas = required_betas([applied_edit.edit for applied_edit in self.all_edits()])
        return (
            ",".join(filter(None, (self.incoming.betas, *added_betas))) if added_betas else self.incoming.betas
        )

    @property
    def endpoint(self) -> SummarizerEndpoint | None:
        """Where a count or a summary of the request can be requested; built on demand."""
        endpoint, betas = self.incoming.endpoint, self.betas
        if endpoint is None or betas == self.incoming.betas:
            return endpoint
        return replace(endpoint, headers={**endpoint.headers, BETA_HEADER: betas})

    def request_in_state(self, state: SimulatedState) -> Request:
        """The request with the edits of this simulated state and of those before it."""
        if state is SimulatedState.CLIENT:
            return self.original
        later_states = _SIMULATED_STATES[_SIMULATED_STATES.index(state) + 1 :]
        return next(
            (
                self.requests_before_state[later_state]
                for later_state in later_states
                if later_state in self.requests_before_state
            ),
            self.request,
        )

    async def apply_edits(
        self, step: str, edits: Iterable[Edit], *, base_request: Request | None = None
    ) -> None:
        """Apply edits to the current request, or to `base_request`, which then replaces it; in a thread if it
        is large.
        """
        base = self.request if base_request is None else base_request
        edit_tuple = tuple(edits)
        await run_in_thread_if_large(
            lambda: self.apply_edits_now(step, edit_tuple, base_request=base),
            len(base.body),
            min_bytes=LARGE_BYTES,
        )

    def apply_edits_now(self, step: str, edits: tuple[Edit, ...], *, base_request: Request) -> None:
        if edits and (state := SIMULATED_STATE_BY_STEP.get(step)) is not None:
            self.requests_before_state.setdefault(state, base_request)
        served_model = self.incoming.served_model
        self.request = (
            formats.parse_request(
                formats.apply_edits(base_request, edits), base_request.format, model=served_model
            )
            if edits
            else base_request
        )
        self.applied_edits += [AppliedEdit(step, edit) for edit in edits]

    def all_edits(self) -> tuple[AppliedEdit, ...]:
        limits = () if self.cost.output_limit is None else (AppliedEdit(CAPS, self.cost.output_limit),)
        return (
            *self.applied_edits,
            *limits,
            *[AppliedEdit(CACHE, edit) for edit in (*self.cache.added_parameters, *self.cache.breakpoints)],
        )

    def write_body(self) -> bytes:
        limits = () if self.cost.output_limit is None else (self.cost.output_limit,)
        edits = (*limits, *self.cache.added_parameters, *self.cache.breakpoints)
        return formats.apply_edits(self.request, edits, breakpoint_style=self._breakpoint_style())

    def _breakpoint_style(self) -> BreakpointStyle | None:
        """The style of breakpoints in chat completions: OpenAI's for its own models, also on Azure."""
        if self.request.format is not Format.CHAT:
            return None
        is_openai = self.rules.provider == "openai" or (
            self.rules.provider == "azure" and self.rules.caching is CachingMode.BOTH
        )
        return BreakpointStyle.PROMPT_CACHE_BREAKPOINT if is_openai else None


class Step(Protocol):
    name: str

    async def apply(self, context: RequestContext) -> None: ...


def in_pipeline_order(*steps: Step) -> tuple[Step, ...]:
    return tuple(sorted(steps, key=lambda step: PIPELINE.index(step.name)))

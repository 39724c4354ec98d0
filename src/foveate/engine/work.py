"""A request while it goes through the steps."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal

import msgspec

from foveate import wire
from foveate.budget.answers import longest_answer_of
from foveate.budget.windows import window_of
from foveate.cache.beta_header import HEADER as BETAS
from foveate.cache.prefix_log import Sighting
from foveate.cache.prompts import CachedPrompt, landmarks_of
from foveate.cache.requests import BlockTokens
from foveate.cache.rules import Caching, Rules, rules_for
from foveate.cost.admission import Admitted
from foveate.cost.ledger import Call
from foveate.engine.bounds import AtMost, asked_of, longest_mark
from foveate.engine.calls import Done, Incoming, Problem
from foveate.engine.counters import block_tokens, offline_counter, surely_kept
from foveate.engine.options import AgentOptions
from foveate.engine.remembered import SessionState
from foveate.engine.steps.names import CACHE, COST, SECTIONS, THOUGHTS, TOOLS
from foveate.fold.journal import Fold
from foveate.fold.model import Endpoint
from foveate.fold.thoughts import betas_of
from foveate.session.chain import Chain
from foveate.session.counting import beside
from foveate.session.news import News
from foveate.session.recent_sessions import Flight
from foveate.session.sessions import Found
from foveate.tokens import RequestCount, RequestCounter
from foveate.values import (
    Edit,
    Format,
    Mark,
    MarkStyle,
    Place,
    Request,
    SetParameter,
    SimulatedState,
    TokenCount,
    Ttl,
)
from foveate.wire.large_json import LARGE_BYTES

# https://docs.anthropic.com/en/docs/build-with-claude/context-windows (November 2026)
_LONG_WINDOW_BETA, _LONG_WINDOW_TOKENS = "context-1m", 1_000_000


_STATES = tuple(SimulatedState)
STATE_OF_STEP = {
    SECTIONS: SimulatedState.CONTEXT,
    THOUGHTS: SimulatedState.CONTEXT,
    TOOLS: SimulatedState.BREAKPOINTS,
    CACHE: SimulatedState.BREAKPOINTS,
}
"""The states whose requests steps edit; all other steps edit that of compaction and trimming."""


class Work(msgspec.Struct, eq=False):
    """What is known of a request by now. `came` is what the client sent, `request` what would go out.

    `estimate` is the raw count that `count` was made of, where it was made here; `is_doubtful`, in the place of
    a server that should have counted; `is_unexplained`: the provider adds what nobody can count. At the end
    `billed_tokens` is what it was in truth, and `drift_percent` by how much more than `count`.
    `uses_thread`: the provider keeps its message thread. `counts_stored`: `count` includes what the
    provider stores.
    """

    incoming: Incoming
    options: AgentOptions
    now: float
    came: Request
    request: Request
    state: SessionState = SessionState()
    chain: Chain | None = None
    found: Found | None = None
    flight: Flight | None = None
    folds: Sequence[Fold] = ()
    fold: Fold | None = None
    count: TokenCount | None = None
    estimate: RequestCount | None = None
    is_doubtful: bool = False
    is_unexplained: bool = False
    uses_thread: bool = False
    counts_stored: bool = False
    billed_tokens: int | None = None
    drift_percent: float | None = None
    prompt: CachedPrompt | None = None
    sighting: Sighting | None = None
    # The request before the first edit of each later state, and the prompts of the states to be simulated,
    # if Foveate may have changed what the request costs.
    before: dict[SimulatedState, Request] = msgspec.field(default_factory=dict)
    needs_simulation: bool = False
    simulated: dict[SimulatedState, CachedPrompt] = msgspec.field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    passing: tuple[Place, ...] = ()
    parameters: tuple[Edit, ...] = ()
    # What the caps have room for, of a request without a limit of its own: it is never sent without this one.
    output_limit: SetParameter | None = None
    call: Call | None = None
    at_most: AtMost | None = None
    ceiling: Decimal | None = None
    admitted: Admitted | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    cut_results: int = 0
    trail: wire.Trail | None = None  # of what would go out, once that is decided
    # What is to be kept of the request once it is answered.
    news: list[News] = msgspec.field(default_factory=list)
    done: list[Done] = msgspec.field(default_factory=list)
    problems: list[Problem] = msgspec.field(default_factory=list)

    @property
    def model(self) -> str:
        """The model that answers, as its provider calls it."""
        return self.request.model

    @property
    def rules(self) -> Rules:
        """What the provider's cache does."""
        return rules_for(self.request.model, self.incoming.provider)

    @property
    def counter(self) -> RequestCounter:
        """What counts for the model here, raw."""
        return offline_counter(self.options.counter, self.request.model)

    @property
    def block_tokens(self) -> BlockTokens:
        """What counts the blocks of its requests, raw."""
        return block_tokens(self.options.counter, self.request.model)

    @property
    def rate(self) -> float:
        """How many tokens there are for each that is counted raw."""
        raw = self.estimate.total.tokens if self.estimate is not None else 0
        return self.count.tokens / raw if raw and self.count is not None else 1.0

    @property
    def kept_rules(self) -> Rules:
        """`rules` with the minimum that the blocks of `prompt` need to be surely kept, as they are counted."""
        counted, prompt = self.estimate, self.prompt
        blocks = counted.total.tokens if counted is not None else prompt.tokens if prompt is not None else 0
        return surely_kept(
            self.rules, self.request.model, self.incoming.provider, blocks=blocks, count=self.count
        )

    @property
    def session_id(self) -> str:
        """Of the session that the request belongs to; of its own where none could be found."""
        return self.found.session.id if self.found is not None else self.incoming.id

    @property
    def window_tokens(self) -> int | None:
        """The model's window, where it is known."""
        if self.options.window_tokens is not None:
            return self.options.window_tokens
        window = window_of(self.request.model)
        return window.tokens if window is not None else None

    @property
    def widest_tokens(self) -> int | None:
        """The most that its provider can read: a window that is set smaller does not hold there."""
        known = window_of(self.request.model)
        widest = max(
            self.options.window_tokens or 0,
            known.tokens if known is not None else 0,
            _LONG_WINDOW_TOKENS if _LONG_WINDOW_BETA in self.incoming.betas else 0,
        )
        return widest or None

    @property
    def is_unchanged(self) -> bool:
        """Whether the request must go out as it came: it is signed, or the provider keeps its conversation.

        Edits of a request that creates or continues a message thread would become part of the thread.
        """
        return self.incoming.is_unchanged or self.uses_thread

    @property
    def has_unknown_size(self) -> bool:
        """Whether the provider keeps earlier messages, and nobody knows how many tokens they have."""
        return self.came.continues_stored and not self.counts_stored

    @property
    def unexplained(self) -> Sequence[str]:
        """What the provider adds that `count` does not hold, by name."""
        return (self.estimate or self.request).unexplained

    @property
    def output_reserve(self) -> int:
        """Tokens of the window that are reserved for the response: as many as the request asks for.

        The model's longest output bounds them. Of a window that the provider does not hold the request to, they
        are at most a quarter: a configured one that is smaller than the model's, one of a model whose window is
        not known, or one that is no larger than the output alone.
        """
        asked, window = asked_of(self.came).output_tokens or 0, self.window_tokens
        longest = longest_answer_of(self.request.model)
        if longest is not None:
            asked = min(asked, longest.tokens)
        if window is None:
            return asked
        known = window_of(self.request.model)
        is_enforced = known is not None and asked < known.tokens <= window
        return asked if is_enforced else min(asked, window // 4)

    @property
    def longest_ttl(self) -> Ttl | None:
        """The longest time for which a mark asks, of the client's or ours; asked for once all are decided."""
        asked = [mark.ttl for mark in self.marks if mark.ttl is not None]
        if self.prompt is not None:
            asked += landmarks_of(self.prompt).marks.values()
        elif (own := longest_mark(self.request)) is not None:
            asked.append(own)
        return max(asked, key=lambda ttl: ttl.seconds) if asked else None

    @property
    def betas(self) -> str:
        """The header `anthropic-beta` for what would go out: as it came, and what our edits take."""
        ours = betas_of([done.edit for done in self.all_done()])
        return ",".join(filter(None, (self.incoming.betas, *ours))) if ours else self.incoming.betas

    @property
    def endpoint(self) -> Endpoint | None:
        """Where a count or a summary of what would go out can be asked for; made for those few that ask."""
        where, betas = self.incoming.endpoint, self.betas
        if where is None or betas == self.incoming.betas:
            return where
        return replace(where, headers={**where.headers, BETAS: betas})

    def version(self, state: SimulatedState) -> Request:
        """The request with the edits of this state and of those before it."""
        if state is SimulatedState.CLIENT:
            return self.came
        later = _STATES[_STATES.index(state) + 1 :]
        return next((self.before[each] for each in later if each in self.before), self.request)

    async def edit(self, step: str, edits: Iterable[Edit], *, of: Request | None = None) -> None:
        """Have edits made, of the request as it is by now, or of another one that then takes its place.

        A large request is written and read in a thread.
        """
        base = self.request if of is None else of
        made = tuple(edits)
        await beside(lambda: self.edit_now(step, made, of=base), len(base.body), least_bytes=LARGE_BYTES)

    def edit_now(self, step: str, edits: tuple[Edit, ...], *, of: Request) -> None:
        """The same at once."""
        if edits and (state := STATE_OF_STEP.get(step)) is not None:
            self.before.setdefault(state, of)
        served = self.incoming.served_model
        self.request = wire.read(wire.write(of, edits), of.format, model=served) if edits else of
        self.done += [Done(step, edit) for edit in edits]

    def all_done(self) -> tuple[Done, ...]:
        """Every edit, those too that are written last."""
        limits = () if self.output_limit is None else (Done(COST, self.output_limit),)
        return (*self.done, *limits, *[Done(CACHE, edit) for edit in (*self.parameters, *self.marks)])

    def written(self) -> bytes:
        """The body that goes out."""
        limits = () if self.output_limit is None else (self.output_limit,)
        edits = (*limits, *self.parameters, *self.marks)
        return wire.write(self.request, edits, marks=self._mark_style())

    def _mark_style(self) -> MarkStyle | None:
        """How breakpoints are written in chat completions: OpenAI's way for its own models, also on Azure."""
        if self.request.format is not Format.CHAT:
            return None
        is_openai = self.rules.provider == "openai" or (
            self.rules.provider == "azure" and self.rules.caching is Caching.BOTH
        )
        return MarkStyle.BREAKPOINT if is_openai else None

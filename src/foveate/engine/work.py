"""A request while it goes through the steps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property

from foveate import wire
from foveate.budget.windows import window_of
from foveate.cache.prompts import CachedPrompt
from foveate.cache.rules import Rules, rules_for
from foveate.cost.admission import Admitted
from foveate.cost.ledger import Call
from foveate.engine.bounds import AtMost, asked_of
from foveate.engine.calls import Done, Incoming, Problem
from foveate.engine.options import AgentOptions
from foveate.engine.remembered import SessionState
from foveate.fold.journal import Fold
from foveate.session.chain import Chain
from foveate.session.sessions import Found
from foveate.tokens import RequestCounter, counter_for
from foveate.values import Edit, Format, Mark, MarkStyle, Request, TokenCount


@dataclass
class Work:
    """What is known of a request by now. `came` is what the client sent, `request` what would go out."""

    incoming: Incoming
    options: AgentOptions
    now: float
    came: Request
    request: Request
    state: SessionState = field(default_factory=SessionState)
    chain: Chain | None = None
    found: Found | None = None
    folds: Sequence[Fold] = ()
    fold: Fold | None = None
    count: TokenCount | None = None
    prompt: CachedPrompt | None = None
    marks: tuple[Mark, ...] = ()
    parameters: tuple[Edit, ...] = ()
    call: Call | None = None
    at_most: AtMost | None = None
    ceiling: Decimal | None = None
    admitted: Admitted | None = None
    headers: dict[str, str] = field(default_factory=dict)
    betas: tuple[str, ...] = ()
    cut_results: int = 0
    done: list[Done] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

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
        """What counts for the model."""
        return counter_for(self.request.model)

    @property
    def session_id(self) -> str:
        """Of the session that the request belongs to; of its own where none could be found."""
        return self.found.session.id if self.found is not None else self.incoming.id

    @cached_property
    def window_tokens(self) -> int | None:
        """The model's window, where it is known."""
        if self.options.window_tokens is not None:
            return self.options.window_tokens
        window = window_of(self.request.model)
        return window.tokens if window is not None else None

    @cached_property
    def output_reserve(self) -> int:
        """How many tokens the answer may have, as the request asks for; 0 where it does not say."""
        return asked_of(self.came).output_tokens or 0

    def edit(self, step: str, edits: Iterable[Edit], *, of: Request | None = None) -> None:
        """Have edits made, of the request as it is by now, or of another one that then takes its place."""
        base = self.request if of is None else of
        made = tuple(edits)
        self.request = wire.read(wire.write(base, made), base.format) if made else base
        self.done += [Done(step, edit) for edit in made]

    def all_done(self) -> tuple[Done, ...]:
        """Every edit, those too that are written last."""
        return (*self.done, *(Done("cache", edit) for edit in (*self.parameters, *self.marks)))

    def written(self, *, with_marks: bool = True) -> bytes:
        """The body that goes out."""
        edits = (*self.parameters, *(self.marks if with_marks else ()))
        is_openai = self.request.format is Format.CHAT and self.rules.provider == "openai"
        return wire.write(self.request, edits, marks=MarkStyle.BREAKPOINT if is_openai else None)

"""What is done with an exchange at its end where its provider has refused something."""

from dataclasses import dataclass
from functools import partial

from foveate.engine.exchange import Exchange
from foveate.engine.remembered import Remembered
from foveate.engine.steps.cache import RefusalsHeld
from foveate.fold.journal import Journal
from foveate.fold.uses import doubted
from foveate.session.news import News


@dataclass(frozen=True, slots=True)
class DoubtThoughts:
    """Thoughts behind a summary that were refused are left out from then on, by other gateways too."""

    journal: Journal

    def __call__(self, exchange: Exchange) -> None:
        """Have them doubted."""
        work = exchange.work
        if work is not None and exchange.has_bad_thoughts and work.fold is not None and work.chain is not None:
            work.news.append(News(partial(doubted, work.chain, work.fold, self.journal)))


@dataclass(frozen=True, slots=True)
class RememberThoughts:
    """Sessions with thoughts that were refused, since they do not fit what stands before them any more.

    The client has had the refusal. From its next request on, the provider is asked to leave them out itself.
    """

    remembered: Remembered

    def __call__(self, exchange: Exchange) -> None:
        """Remember it."""
        work = exchange.work
        if work is None or not exchange.has_bad_thoughts:
            return
        state = self.remembered.session(work.incoming.agent, work.session_id)
        self.remembered.put(work.incoming.agent, work.session_id, state.refused_thoughts())


@dataclass(frozen=True, slots=True)
class RememberRefusal:
    """Who refuses our marks or parameters: known once the same request was taken without them."""

    refusals: RefusalsHeld

    def __call__(self, exchange: Exchange) -> None:
        """Remember it."""
        work = exchange.work
        if work is None or not 200 <= exchange.status < 300:
            return
        held, upstream, at = self.refusals.held, work.incoming.upstream, exchange.begun_at
        for name in exchange.refused_parameters:
            held = held.remembering_parameter(name, upstream, work.model, at=at)
        if exchange.refused is not None:
            held = held.remembering(exchange.refused, upstream, work.model, session=work.session_id, at=at)
        self.refusals.held = held

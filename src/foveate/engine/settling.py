"""What is done with an exchange at its end where its provider has refused something."""

from dataclasses import dataclass
from functools import partial

from foveate.engine.exchange import Exchange
from foveate.engine.remembered import SessionStates
from foveate.engine.steps.cache import RejectionMemory
from foveate.fold.journal import CompactionStore
from foveate.fold.uses import invalidate_history
from foveate.session.news import PendingWrite


@dataclass(frozen=True, slots=True)
class DistrustThinking:
    """Thoughts behind a summary that were refused are left out from then on, by other gateways too."""

    compaction_store: CompactionStore

    def __call__(self, exchange: Exchange) -> None:
        """Have them doubted."""
        context = exchange.context
        if (
            context is not None
            and exchange.has_invalid_thinking
            and context.compaction is not None
            and context.chain is not None
        ):
            context.pending_writes.append(
                PendingWrite(
                    partial(invalidate_history, context.chain, context.compaction, self.compaction_store)
                )
            )


@dataclass(frozen=True, slots=True)
class RecordInvalidThinking:
    """Sessions with thoughts that were refused, since they do not fit what stands before them any more.

    The client has had the refusal. From its next request on, the provider is asked to leave them out itself.
    """

    session_states: SessionStates

    def __call__(self, exchange: Exchange) -> None:
        """Remember it."""
        context = exchange.context
        if context is None or not exchange.has_invalid_thinking:
            return
        state = self.session_states.session(context.incoming.agent, context.session_id)
        self.session_states.put(context.incoming.agent, context.session_id, state.with_invalid_thinking())


@dataclass(frozen=True, slots=True)
class RecordRejections:
    """Who refuses our marks or parameters: known once the same request was taken without them."""

    rejections: RejectionMemory

    def __call__(self, exchange: Exchange) -> None:
        """Remember it."""
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

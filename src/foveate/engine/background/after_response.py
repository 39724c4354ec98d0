"""Hooks that run at the end of every call, before the next request of its session is read."""

from dataclasses import dataclass
from functools import partial

from foveate.compaction.applied_compactions import invalidate_history
from foveate.compaction.store import CompactionStore
from foveate.engine.counting.stored_conversations import StoredConversationSizes
from foveate.engine.exchange import Exchange
from foveate.engine.session_state import SessionStates
from foveate.engine.steps.cache import RejectionMemory
from foveate.session.answer_digests import make_answer_records
from foveate.session.store import AnswerUpdate, PendingWrite, SessionStore, make_pending_write


@dataclass(frozen=True, slots=True)
class RecordResponse:
    """Stores digests of each response, so that the next request of the session is recognised."""

    session_store: SessionStore
    stored_conversations: StoredConversationSizes

    def __call__(self, exchange: Exchange) -> None:
        context = exchange.context
        if context is None or context.session.match is None or context.session.in_flight is None:
            return
        session, api_format = context.session.match.session, exchange.incoming.api_format
        is_success = 200 <= exchange.status < 300
        rows = []
        if is_success:
            parts, scope = exchange.response_parts(), exchange.incoming.session_scope
            rows = make_answer_records(
                session, api_format, parts, exchange.ended_at, scope=scope, is_stored=context.uses_thread
            )
            if exchange.has_complete_usage and exchange.is_complete and exchange.usage is not None:
                self.stored_conversations.record(exchange.incoming, context.original, parts.id, exchange.usage)
        context.session.in_flight.finish(rows, is_answered=is_success)
        context.session.in_flight = None
        if rows:
            context.pending_writes.append(make_pending_write(AnswerUpdate(rows=rows), self.session_store))


@dataclass(frozen=True, slots=True)
class InvalidateCompactionThinking:
    """Once the provider rejects thinking after a summary, records that all gateways must drop it."""

    compaction_store: CompactionStore

    def __call__(self, exchange: Exchange) -> None:
        context = exchange.context
        if (
            context is not None
            and exchange.has_invalid_thinking
            and context.compaction is not None
            and context.session.chain is not None
        ):
            context.pending_writes.append(
                PendingWrite(
                    partial(
                        invalidate_history, context.session.chain, context.compaction, self.compaction_store
                    )
                )
            )


@dataclass(frozen=True, slots=True)
class RecordInvalidThinking:
    """Remembers sessions whose thinking blocks were rejected, since what precedes them has changed.

    The client has received the error. From its next request on, the provider is asked to drop the blocks.
    """

    session_states: SessionStates

    def __call__(self, exchange: Exchange) -> None:
        context = exchange.context
        if context is None or not exchange.has_invalid_thinking:
            return
        state = self.session_states.session(context.incoming.agent, context.session_id)
        self.session_states.put(context.incoming.agent, context.session_id, state.with_invalid_thinking())


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

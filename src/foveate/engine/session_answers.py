"""Remember how a session was answered, so that its next request is recognised."""

from dataclasses import dataclass

from foveate.engine.exchange import Exchange
from foveate.engine.stored_sizes import StoredConversationSizes
from foveate.session.answers import make_answer_records
from foveate.session.news import make_pending_write
from foveate.session.sessions import SessionMatcher
from foveate.session.turns import AnswerUpdate, SessionStore


@dataclass(frozen=True, slots=True)
class RecordResponse:
    """Notes digests of each answer, and that its session waits for none any more."""

    sessions: SessionMatcher
    session_store: SessionStore
    stored_conversations: StoredConversationSizes

    def __call__(self, exchange: Exchange) -> None:
        """Note it."""
        context = exchange.context
        if context is None or context.session_match is None or context.in_flight is None:
            return
        session, api_format = context.session_match.session, exchange.incoming.api_format
        is_success = 200 <= exchange.status < 300
        rows = []
        if is_success:
            parts, scope = exchange.response_parts(), exchange.incoming.session_scope
            rows = make_answer_records(
                session, api_format, parts, exchange.ended_at, scope=scope, is_stored=context.uses_thread
            )
            if exchange.has_complete_usage and exchange.is_complete and exchange.usage is not None:
                self.stored_conversations.record(exchange.incoming, context.original, parts.id, exchange.usage)
        self.sessions.end(session, context.in_flight, rows, is_answered=is_success)
        context.in_flight = None
        if rows:
            context.pending_writes.append(make_pending_write(AnswerUpdate(rows=rows), self.session_store))

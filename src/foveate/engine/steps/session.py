"""The step that finds the session of a request, and the hook that records its response for the next one."""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from foveate.engine.exchange import Exchange
from foveate.engine.request_context import RequestContext
from foveate.engine.session_state import SessionStates, is_compacted_by_client
from foveate.engine.steps import SESSION
from foveate.engine.steps.count import StoredConversationSizes
from foveate.errors import StoreUnavailable
from foveate.session.answer_digests import make_answer_records
from foveate.session.hash_chain import HashChain, compute_chain_in_thread
from foveate.session.matching import ObservedConversation, SessionMatch, SessionMatcher, observe_conversation
from foveate.session.store import (
    AnswerUpdate,
    Session,
    SessionStore,
    SessionUpdate,
    make_pending_write,
)
from foveate.session.titles import find_opening_words, find_working_folder


class FindSession:
    name = SESSION

    def __init__(
        self,
        sessions: SessionMatcher,
        session_store: SessionStore,
        session_states: SessionStates,
        *,
        may_store_text: Callable[[], bool] = lambda: False,
        store_early: Callable[[SessionUpdate], None] = lambda _: None,
    ) -> None:
        """`may_store_text`: the first words of conversations may be stored.

        `store_early` gets the session of each request, so that it can be stored before the response.
        """
        self._sessions = sessions
        self._may_store_text = may_store_text
        self._store_early = store_early
        self._session_store = session_store
        self._session_states = session_states

    async def apply(self, context: RequestContext) -> None:
        context.session.chain = chain = await compute_chain_in_thread(context.original)
        conversation = describe_conversation(context, chain)
        try:
            session_match = await self._sessions.find(conversation, now=context.received_at)
        except StoreUnavailable:
            if conversation.named_session_id is not None:  # its id does not need the store
                self._begin_turn(context, self._sessions.find_named(conversation, now=context.received_at))
            raise
        self._begin_turn(context, session_match)

    def _begin_turn(self, context: RequestContext, session_match: SessionMatch) -> None:
        agent = context.incoming.agent
        if session_match.is_new:
            session_match = replace(session_match, session=self._with_labels(context, session_match.session))
        context.session.match = session_match
        context.session.in_flight = self._sessions.begin(session_match, connection=context.incoming.connection)
        if session_match.is_changed:
            update = SessionUpdate(session=session_match.session, turns=session_match.turns)
            context.pending_writes.append(make_pending_write(update, self._session_store))
            self._store_early(update)
        chain = context.session.chain
        assert chain is not None
        previous = self._session_states.session(agent, context.session_id)
        context.session.state = replace(
            previous.with_request(context.received_at),
            messages=previous.messages if session_match.is_side_request else len(chain),
            last_hash=previous.last_hash
            if session_match.is_side_request
            else chain.hashes[-1]
            if chain
            else b"",
            has_served_all=previous.has_served_all
            and self._session_states.has_served_all(agent, session_match, chain, context.original),
        )
        if not session_match.is_side_request and is_compacted_by_client(
            previous.messages, len(chain), session_match.known_messages
        ):
            context.session.state = replace(
                context.session.state, progress=replace(previous.progress, compacts_itself=True)
            )
        if previous.last_request_at is not None:
            self._session_states.add_gap(agent, max(0.0, context.received_at - previous.last_request_at))
        self._session_states.put(agent, context.session_id, context.session.state)

    def _with_labels(self, context: RequestContext, session: Session) -> Session:
        head = context.session.chain.leading_system_messages if context.session.chain is not None else 0
        opening = find_opening_words(context.original.messages[head:]) if self._may_store_text() else None
        return replace(session, folder=find_working_folder(context.original, head), opening=opening)


def describe_conversation(context: RequestContext, chain: HashChain) -> ObservedConversation:
    incoming = context.incoming
    return observe_conversation(
        context.original,
        chain,
        agent=incoming.agent,
        caller=incoming.caller,
        scope=incoming.session_scope,
        connection=incoming.connection,
        header=incoming.session,
        headers=incoming.session_headers,
    )


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

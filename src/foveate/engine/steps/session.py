"""The step that finds the session of a request."""

from collections.abc import Callable

from msgspec.structs import replace

from foveate.engine.remembered import Remembered
from foveate.engine.steps.names import SESSION
from foveate.engine.work import Work
from foveate.errors import StoreUnavailable
from foveate.session.chain import Chain, chain_beside
from foveate.session.conversation import Conversation, conversation_of
from foveate.session.news import stored
from foveate.session.sessions import Found, Sessions
from foveate.session.titles import opening_words, working_folder
from foveate.session.turns import Move, Session, Turns


class FindSession:
    """Which session a request belongs to."""

    name = SESSION

    def __init__(
        self,
        sessions: Sessions,
        turns: Turns,
        remembered: Remembered,
        *,
        keeps_text: Callable[[], bool] = lambda: False,
    ) -> None:
        """`keeps_text`: first words of conversations may be stored."""
        self._sessions = sessions
        self._keeps_text = keeps_text
        self._turns = turns
        self._remembered = remembered

    async def take(self, work: Work) -> None:
        """Find it, and what is remembered of it."""
        work.chain = chain = await chain_beside(work.came)
        conversation = conversation_in(work, chain)
        try:
            found = await self._sessions.find(conversation, now=work.now)
        except StoreUnavailable:
            if conversation.named is not None:  # its id needs no store
                self._begin(work, self._sessions.named(conversation, now=work.now))
            raise
        self._begin(work, found)

    def _begin(self, work: Work, found: Found) -> None:
        agent = work.incoming.agent
        if found.is_new:
            found = replace(found, session=self._labelled(work, found.session))
        work.found = found
        work.flight = self._sessions.begin(found)
        if found.is_changed:
            work.news.append(stored(Move(session=found.session, turns=found.turns), self._turns))
        chain = work.chain
        assert chain is not None
        before = self._remembered.session(agent, work.session_id)
        work.state = replace(
            before.heard(work.now),
            messages=before.messages if found.is_aside else len(chain),
            tip=before.tip if found.is_aside else chain.hashes[-1] if chain else b"",
            is_whole=before.is_whole and self._remembered.has_seen_all(agent, found, chain, work.came),
        )
        if before.asked_at is not None:
            self._remembered.heard(agent, max(0.0, work.now - before.asked_at))
        self._remembered.put(agent, work.session_id, work.state)

    def _labelled(self, work: Work, session: Session) -> Session:
        head = work.chain.head if work.chain is not None else 0
        opening = opening_words(work.came.messages[head:]) if self._keeps_text() else None
        return replace(session, folder=working_folder(work.came, head), opening=opening)


def conversation_in(work: Work, chain: Chain) -> Conversation:
    """Describe the conversation of a request."""
    incoming = work.incoming
    return conversation_of(
        work.came,
        chain,
        agent=incoming.agent,
        caller=incoming.caller,
        scope=incoming.name_scope,
        header=incoming.session,
        headers=incoming.naming,
    )

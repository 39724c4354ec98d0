"""The sessions that a process has served last, by their ends and their answers."""

from collections.abc import Sequence
from weakref import WeakValueDictionary

from foveate.session.turns import AnswerRecord, Session
from foveate.tokens.memo import LruCache

_MAX_SESSIONS = 8 * 1024
_MAX_ANSWERS = 32 * 1024
# How many sessions are remembered of one answer or one last message.
_MAX_SESSIONS_PER_KEY = 8


class InFlightRequest:
    """A request of a session that is not answered yet. It ends with `over`, or when nobody holds it."""

    __slots__ = ("__weakref__",)


class RecentSessions:
    """The sessions that this process has served last. For one event loop."""

    def __init__(self) -> None:
        self._sessions: LruCache[Session] = LruCache(_MAX_SESSIONS)
        self._ends: LruCache[tuple[str, ...]] = LruCache(_MAX_SESSIONS)
        self._answers: LruCache[tuple[AnswerRecord, ...]] = LruCache(_MAX_ANSWERS)
        self._answered: LruCache[bytes] = LruCache(_MAX_SESSIONS)
        self._in_flight: WeakValueDictionary[str, InFlightRequest] = WeakValueDictionary()

    def get_session(self, session_id: str) -> Session | None:
        """Return a session as it was last."""
        return self._sessions.get(session_id)

    def newer_state(self, stored: Session) -> Session:
        """Return a session as it is remembered, or as it is stored if that is newer."""
        known = self._sessions.get(stored.id) or stored
        # If the clocks of two hosts differ, a later state may have the same time.
        return max(known, stored, key=lambda state: (state.seen_at, state.messages))

    def begin(self, session: Session) -> InFlightRequest:
        """Remember a session with its request that is being sent."""
        self._sessions.put(session.id, session)
        if session.caller:
            key = session.caller, session.tip
            others = [session_id for session_id in self._ends.get(key) or () if session_id != session.id]
            self._ends.put(key, (*others[1 - _MAX_SESSIONS_PER_KEY :], session.id))
        in_flight = InFlightRequest()
        self._in_flight[session.id] = in_flight
        return in_flight

    def end(
        self, session: Session, in_flight: InFlightRequest, rows: Sequence[AnswerRecord], *, is_answered: bool
    ) -> None:
        """Remember what came of a request."""
        if self._in_flight.get(session.id) is in_flight:
            del self._in_flight[session.id]
        if is_answered:
            self._answered.put(session.id, session.tip)
        for row in rows:
            others = [
                other for other in self._answers.get(row.digest) or () if other.session_id != row.session_id
            ]
            self._answers.put(row.digest, (*others[1 - _MAX_SESSIONS_PER_KEY :], row))

    def is_waiting(self, session: Session) -> bool:
        """Return whether a request of a session is being answered."""
        return session.id in self._in_flight

    def is_answered(self, session: Session) -> bool:
        """Return whether the last request of a session was answered here."""
        return self._answered.get(session.id) == session.tip

    def find_answers(self, digests: Sequence[bytes]) -> list[tuple[AnswerRecord, Session]]:
        """Return remembered answers with these digests, and their sessions."""
        rows = [row for digest in digests for row in self._answers.get(digest) or ()]
        found = [(row, self._sessions.get(row.session_id)) for row in rows]
        return [(row, session) for row, session in found if session is not None]

    def find_ending_at(self, caller: str, tip: bytes) -> list[Session]:
        """Return remembered sessions of a caller that end so."""
        found = [self._sessions.get(one) for one in self._ends.get((caller, tip)) or ()]
        return [one for one in found if one is not None and one.tip == tip]

"""The sessions that a process has served last, by their ends and their answers."""

from collections.abc import Sequence
from weakref import WeakValueDictionary

from foveate.session.turns import Answer, Session
from foveate.tokens.memo import Memo

_MAX_SESSIONS = 8 * 1024
_MAX_ANSWERS = 32 * 1024
# How many sessions are remembered of one answer or one last message.
_MAX_ALIKE = 8


class Flight:
    """A request of a session that is not answered yet. It ends with `over`, or when nobody holds it."""

    __slots__ = ("__weakref__",)


class RecentSessions:
    """The sessions that this process has served last. For one event loop."""

    def __init__(self) -> None:
        self._sessions: Memo[Session] = Memo(_MAX_SESSIONS)
        self._ends: Memo[tuple[str, ...]] = Memo(_MAX_SESSIONS)
        self._answers: Memo[tuple[Answer, ...]] = Memo(_MAX_ANSWERS)
        self._answered: Memo[bytes] = Memo(_MAX_SESSIONS)
        self._flights: WeakValueDictionary[str, Flight] = WeakValueDictionary()

    def session(self, session_id: str) -> Session | None:
        """Return a session as it was last."""
        return self._sessions.get(session_id)

    def latest(self, stored: Session) -> Session:
        """Return a session as it is remembered, or as it is stored if that is newer."""
        known = self._sessions.get(stored.id) or stored
        # If the clocks of two hosts differ, a later state may have the same time.
        return max(known, stored, key=lambda one: (one.seen_at, one.messages))

    def begin(self, session: Session) -> Flight:
        """Remember a session with its request that is being sent."""
        self._sessions.put(session.id, session)
        if session.caller:
            key = session.caller, session.tip
            others = [one for one in self._ends.get(key) or () if one != session.id]
            self._ends.put(key, (*others[1 - _MAX_ALIKE :], session.id))
        flight = Flight()
        self._flights[session.id] = flight
        return flight

    def end(self, session: Session, flight: Flight, rows: Sequence[Answer], *, is_answered: bool) -> None:
        """Remember what came of a request."""
        if self._flights.get(session.id) is flight:
            del self._flights[session.id]
        if is_answered:
            self._answered.put(session.id, session.tip)
        for row in rows:
            others = [one for one in self._answers.get(row.mark) or () if one.session_id != row.session_id]
            self._answers.put(row.mark, (*others[1 - _MAX_ALIKE :], row))

    def is_waiting(self, session: Session) -> bool:
        """Return whether a request of a session is being answered."""
        return session.id in self._flights

    def is_answered(self, session: Session) -> bool:
        """Return whether the last request of a session was answered here."""
        return self._answered.get(session.id) == session.tip

    def answers(self, marks: Sequence[bytes]) -> list[tuple[Answer, Session]]:
        """Return remembered answers with these digests, and their sessions."""
        rows = [row for mark in marks for row in self._answers.get(mark) or ()]
        found = [(row, self._sessions.get(row.session_id)) for row in rows]
        return [(row, session) for row, session in found if session is not None]

    def ending_at(self, caller: str, tip: bytes) -> list[Session]:
        """Return remembered sessions of a caller that end so."""
        found = [self._sessions.get(one) for one in self._ends.get((caller, tip)) or ()]
        return [one for one in found if one is not None and one.tip == tip]

"""The latest sessions in memory, by their last messages and answers.

The workers of a gateway tell each other of each request when it begins and when its answer is known. So a
worker recognizes a request at once that continues a turn of another one, which may not be stored yet.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

import msgspec

from foveate.caching import LruCache
from foveate.session.store import AnswerRecord, Session

_MAX_SESSIONS = 8 * 1024
_MAX_RECENT_ANSWERS = 32 * 1024
# Sessions remembered for one answer or one last message.
_MAX_SESSIONS_PER_KEY = 8
# By then a record that was missed is stored.
_INCOMPLETE_SECONDS = 60.0


class Sender(NamedTuple):
    """A worker until its process ends; its replacement has the next generation."""

    worker: int
    generation: int


class Broadcast(Protocol):
    """Sends records to the other workers of this gateway."""

    @property
    def gateway_id(self) -> str:
        """The same for all workers of a gateway."""

    @property
    def missed(self) -> int:
        """Number of times that records were lost, because this worker was too slow to receive them."""

    def publish(self, record: bytes) -> None: ...

    def receive(self) -> Iterable[tuple[Sender, bytes]]:
        """Return the records of others since the last call; the first one also returns earlier ones."""

    def is_running(self, sender: Sender) -> bool: ...


class _Begin(msgspec.Struct, frozen=True, array_like=True, tag=0):
    session: Session


class _End(msgspec.Struct, frozen=True, array_like=True, tag=1):
    session_id: str
    tip: bytes
    is_answered: bool
    at: float = 0.0
    digests: tuple[bytes, ...] = ()


_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[_Begin | _End] = msgspec.msgpack.Decoder(_Begin | _End)


class InFlightRequest:
    """A request without a response yet. It is abandoned if it is garbage-collected before its end."""

    __slots__ = ("__weakref__", "_recent", "session")

    def __init__(self, session: Session, recent: "RecentSessions") -> None:
        self.session = session
        self._recent: RecentSessions | None = recent

    def finish(self, rows: Sequence[AnswerRecord], *, is_answered: bool) -> None:
        """Only the first call counts."""
        recent, self._recent = self._recent, None
        if recent is not None:
            recent.end(self, rows, is_answered=is_answered)

    def abandon(self) -> None:
        self.finish((), is_answered=False)

    def __del__(self) -> None:
        if self._recent is not None:
            self._recent.abandoned.append(self.session)


class RecentSessions:
    """The latest sessions of this process and, with a `broadcast`, of all workers. For one event loop."""

    def __init__(self, broadcast: Broadcast | None = None) -> None:
        self._broadcast = broadcast
        self._sessions: LruCache[Session] = LruCache(_MAX_SESSIONS)
        self._session_ids_by_tip: LruCache[tuple[str, ...]] = LruCache(_MAX_SESSIONS)
        self._answers: LruCache[tuple[AnswerRecord, ...]] = LruCache(_MAX_RECENT_ANSWERS)
        self._answered_tips: LruCache[bytes] = LruCache(_MAX_SESSIONS)
        self._connections: LruCache[int] = LruCache(_MAX_SESSIONS)
        self._in_flight: WeakValueDictionary[str, InFlightRequest] = WeakValueDictionary()
        self._in_flight_elsewhere: LruCache[tuple[Sender, bytes]] = LruCache(_MAX_SESSIONS)
        # Any thread may collect garbage, but only that of the event loop may publish.
        self.abandoned: deque[Session] = deque(maxlen=_MAX_SESSIONS)
        self._missed = 0
        self._incomplete_until = 0.0
        self.is_complete = True
        """Whether this process knows all requests of the gateway that may not be stored yet."""

    def receive(self, now: float) -> None:
        if self._broadcast is None:
            return
        while self.abandoned:
            session = self.abandoned.popleft()
            self._publish(_End(session.id, session.tip, False))
        for sender, encoded in self._broadcast.receive():
            with suppress(msgspec.MsgspecError):  # from a worker of another version
                self._learn(sender, _DECODER.decode(encoded))
        if self._missed != self._broadcast.missed:
            self._missed, self._incomplete_until = self._broadcast.missed, now + _INCOMPLETE_SECONDS
        self._incomplete_until = min(self._incomplete_until, now + _INCOMPLETE_SECONDS)  # a clock may step back
        self.is_complete = now >= self._incomplete_until

    def _learn(self, sender: Sender, record: _Begin | _End) -> None:
        if isinstance(record, _Begin):
            if self.newer_state(record.session) == record.session:  # equal if it repeats its last request
                self._remember(record.session)
                self._in_flight_elsewhere.put(record.session.id, (sender, record.session.tip))
            return
        if self._in_flight_elsewhere.peek(record.session_id) == (sender, record.tip):
            self._in_flight_elsewhere.remove(record.session_id)
        id_, tip = record.session_id, record.tip
        rows = [AnswerRecord(digest=digest, session_id=id_, tip=tip, at=record.at) for digest in record.digests]
        self._remember_end(id_, tip, rows, is_answered=record.is_answered)

    def get_session(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def newer_state(self, other: Session) -> Session:
        known = self._sessions.get(other.id) or other
        # If the clocks of two hosts differ, a later state may have the same time.
        return max(known, other, key=lambda state: (state.seen_at, state.messages))

    def begin(self, session: Session, *, connection: int = 0) -> InFlightRequest:
        self._remember(session)
        self._connections.put(session.id, connection)
        if self._broadcast is not None:
            self._publish(_Begin(session))
        self._in_flight[session.id] = in_flight = InFlightRequest(session, self)
        return in_flight

    def end(self, in_flight: InFlightRequest, rows: Sequence[AnswerRecord], *, is_answered: bool) -> None:
        session = in_flight.session
        if self._in_flight.get(session.id) is in_flight:
            del self._in_flight[session.id]
        self._remember_end(session.id, session.tip, rows, is_answered=is_answered)
        if self._broadcast is not None:
            at, digests = rows[0].at if rows else 0.0, tuple(row.digest for row in rows)
            self._publish(_End(session.id, session.tip, is_answered, at, digests))

    def is_waiting(self, session: Session) -> bool:
        if session.id in self._in_flight:
            return True
        sender, tip = self._in_flight_elsewhere.peek(session.id) or (None, b"")
        return (
            sender is not None
            and tip == session.tip
            and self._broadcast is not None
            and self._broadcast.is_running(sender)
        )

    def is_answered(self, session: Session) -> bool:
        return self._answered_tips.get(session.id) == session.tip

    def is_last_connection(self, session: Session, connection: int) -> bool:
        """Return whether the last request of a session to this process came on this connection."""
        return connection != 0 and self._connections.get(session.id) == connection

    def find_answers(self, digests: Sequence[bytes]) -> list[tuple[AnswerRecord, Session]]:
        rows = [row for digest in digests for row in self._answers.get(digest) or ()]
        matches = [(row, self._sessions.get(row.session_id)) for row in rows]
        return [(row, session) for row, session in matches if session is not None]

    def find_ending_at(self, caller: str, tip: bytes) -> list[Session]:
        sessions = [
            self._sessions.get(session_id) for session_id in self._session_ids_by_tip.get((caller, tip)) or ()
        ]
        return [session for session in sessions if session is not None and session.tip == tip]

    def _remember(self, session: Session) -> None:
        self._sessions.put(session.id, session)
        if session.caller:
            key = session.caller, session.tip
            others = [
                session_id for session_id in self._session_ids_by_tip.get(key) or () if session_id != session.id
            ]
            self._session_ids_by_tip.put(key, (*others[1 - _MAX_SESSIONS_PER_KEY :], session.id))

    def _remember_end(
        self, session_id: str, tip: bytes, rows: Sequence[AnswerRecord], *, is_answered: bool
    ) -> None:
        session = self._sessions.peek(session_id)
        if is_answered and (session is None or session.tip == tip):
            self._answered_tips.put(session_id, tip)
        for row in rows:
            others = [other for other in self._answers.get(row.digest) or () if other.session_id != session_id]
            self._answers.put(row.digest, (*others[1 - _MAX_SESSIONS_PER_KEY :], row))

    def _publish(self, record: _Begin | _End) -> None:
        assert self._broadcast is not None
        with suppress(UnicodeEncodeError):  # a name with a lone surrogate
            self._broadcast.publish(_ENCODER.encode(record))

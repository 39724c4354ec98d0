"""What would be sent, without a trace: the same steps over stores that are only read.

A count of a request is no turn of its session. So nothing is kept of it, no fold is begun, no tool gets its
place in an order, and nothing that is too large is refused: its number is what is asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from foveate.cache.rhythm import Rhythm
from foveate.engine.asking import Asking
from foveate.engine.calls import Incoming, Problem
from foveate.engine.exchange import Exchange
from foveate.engine.remembered import Remembered, SessionState
from foveate.engine.steps.names import ROOM, SESSION
from foveate.engine.steps.overflow import MakeRoom
from foveate.engine.steps.session import conversation_in
from foveate.engine.watch import Unwatched, Watch
from foveate.engine.work import Work
from foveate.errors import DoesNotFit
from foveate.fold.cuts import Subject
from foveate.fold.folding import Folded
from foveate.fold.journal import Fold, Journal, Lease
from foveate.session.chain import chain_beside
from foveate.session.sessions import Sessions
from foveate.session.turns import Answer, Session, Stored, Turn, Turns
from foveate.values import NOTHING, TokenCount

if TYPE_CHECKING:
    from foveate.fold.journal import Use


@dataclass(frozen=True, slots=True)
class SeenTurns:
    """Turns that are looked at; what is to be kept is forgotten at once."""

    turns: Turns

    async def known(self, agent: str, hashes: Sequence[bytes]) -> Mapping[bytes, Turn]:
        """Those that are kept."""
        return await self.turns.known(agent, hashes)

    async def session(self, session_id: str) -> Session | None:
        """A session that is kept."""
        return await self.turns.session(session_id)

    async def answered(self, marks: Sequence[bytes]) -> Sequence[tuple[Answer, Session]]:
        """Answers that are stored."""
        return await self.turns.answered(marks)

    async def ending_at(self, agent: str, caller: str, tips: Sequence[bytes]) -> Sequence[tuple[Session, bool]]:
        """Sessions that are stored."""
        return await self.turns.ending_at(agent, caller, tips)

    async def keep(self, rows: Sequence[Stored]) -> None:
        """Nothing."""

    async def counts(self, agent: str, hashes: Sequence[bytes], counter: str) -> Mapping[bytes, bytes]:
        """What is kept of them."""
        return await self.turns.counts(agent, hashes, counter)

    async def keep_counts(self, agent: str, counts: Mapping[bytes, bytes], counter: str) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class SeenJournal:
    """Folds that are looked at: nobody may fold, and what is recorded is forgotten at once."""

    journal: Journal

    async def lease(self, session_id: str, holder: str, *, ttl_seconds: float, now: float) -> Lease | None:
        """None."""

    async def renew(self, lease: Lease, *, ttl_seconds: float, now: float) -> Lease | None:
        """None."""

    async def release(self, lease: Lease) -> None:
        """Nothing."""

    async def record(self, fold: Fold, turns: Sequence[bytes], *, lease: Lease | None) -> bool:
        """Nothing, as if it had gone well."""
        del fold, turns, lease
        return True

    async def has_folds(self, agent: str) -> bool:
        """Whether there are any."""
        return await self.journal.has_folds(agent)

    async def folds(self, agent: str, boundaries: Sequence[bytes]) -> Sequence[Fold]:
        """Those that are kept."""
        return await self.journal.folds(agent, boundaries)

    async def fold(self, fold_id: str) -> Fold | None:
        """One that is kept."""
        return await self.journal.fold(fold_id)

    async def folded(self, fold_id: str) -> Sequence[bytes]:
        """The turns that are kept of it."""
        return await self.journal.folded(fold_id)

    async def undo(self, fold_id: str, *, now: float) -> bool:
        """Nothing is undone."""
        del fold_id, now
        return False

    async def uses(self, fold_ids: Sequence[str]) -> "Sequence[Use]":
        """Those that are kept."""
        return await self.journal.uses(fold_ids)

    async def used(self, uses: "Sequence[Use]") -> None:
        """Nothing."""

    async def listed(
        self,
        *,
        agent: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        before: float | None = None,
    ) -> Sequence[Fold]:
        """Those that are kept."""
        return await self.journal.listed(agent=agent, session_id=session_id, limit=limit, before=before)


class SeenSessions(Remembered):
    """What is remembered of sessions, and stays as it is."""

    def __init__(self, remembered: Remembered) -> None:
        super().__init__()
        self._seen = remembered

    def session(self, agent: str, session_id: str) -> SessionState:
        """What is known of a session."""
        return self._seen.session(agent, session_id)

    def put(self, agent: str, session_id: str, state: SessionState) -> None:
        """Nothing."""

    def agent(self, agent: str) -> Rhythm:
        """The gaps of an agent."""
        return self._seen.agent(agent)

    def heard(self, agent: str, gap_seconds: float) -> None:
        """Nothing."""


class SeeSession:
    """Which session a request would belong to."""

    name = SESSION

    def __init__(self, sessions: Sessions, remembered: Remembered) -> None:
        self._sessions = sessions
        self._remembered = remembered

    async def take(self, work: Work) -> None:
        """Find it, and what is remembered of it."""
        work.chain = await chain_beside(work.came)
        conversation = conversation_in(work, work.chain)
        found = await self._sessions.find(conversation, now=work.now)
        if found.is_new and conversation.named is None:  # it gets an id when it begins
            found = replace(found, session=replace(found.session, id=""))
        work.found = found
        work.state = self._remembered.session(work.incoming.agent, work.session_id)


class RoomIfAny:
    """Makes room as a call would, and leaves what cannot be made to fit as it is."""

    name = ROOM

    def __init__(self, room: MakeRoom) -> None:
        self._room = room

    async def take(self, work: Work, beside_it: TokenCount = NOTHING) -> None:
        """Make it fit, if that is how it would be sent."""
        try:
            await self._room.take(work, beside_it)
        except DoesNotFit:
            return


async def no_fold(work: Work, subject: Subject) -> Folded | None:
    """None: for a count nothing is folded."""
    del work, subject
    return None


async def free(request_id: str, agent: str, reason: str) -> None:
    """Let a request through that cannot be read: a count costs nothing, whatever it says."""
    del request_id, agent, reason


class FailuresOnly(Unwatched):
    """Is told what fails, and of nothing else: a count is no call."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def failed(self, incoming: Incoming, problem: Problem) -> None:
        """A step failed."""
        self._watch.failed(incoming, problem)


@dataclass(frozen=True, slots=True)
class BookCount:
    """A count that the provider has made, in the ledger at no price."""

    asking: Asking

    def __call__(self, exchange: Exchange) -> None:
        """Book it."""
        work = exchange.work
        if work is not None and 200 <= exchange.status < 300:
            self.asking.book(work.incoming, work.session_id, work.model)

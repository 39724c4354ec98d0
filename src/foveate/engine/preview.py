"""What would be sent, without a trace: the same steps over stores that are only read.

A count of a request is no turn of its session. So nothing is kept of it, no fold is begun, no tool gets its
place in an order, and nothing that is too large is refused: its number is what is asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from foveate.compaction.compact import CompactionResult
from foveate.compaction.plan import CompactionCandidate
from foveate.compaction.store import Compaction, CompactionLease, CompactionStore
from foveate.engine.context import RequestContext
from foveate.engine.counting.remote import RemoteCounter
from foveate.engine.exchange import Exchange
from foveate.engine.observer import NullObserver, Observer
from foveate.engine.request import RoutedRequest, StepFailure
from foveate.engine.session_state import SessionState, SessionStates
from foveate.engine.steps.names import OVERFLOW, SESSION
from foveate.engine.steps.overflow import FitWindow
from foveate.engine.steps.session import describe_conversation
from foveate.errors import DoesNotFit
from foveate.model import ZERO_TOKENS, TokenCount
from foveate.prompt_cache.placement.arrivals import GapHistogram
from foveate.session.hash_chain import compute_chain_in_thread
from foveate.session.matching import SessionMatcher
from foveate.session.store import AnswerRecord, Session, SessionStore, SessionWrite, Turn

if TYPE_CHECKING:
    from foveate.compaction.store import ApplicationChange


@dataclass(frozen=True, slots=True)
class ReadOnlySessionStore:
    """Turns that are looked at; what is to be kept is forgotten at once."""

    session_store: SessionStore

    async def find_turns(self, agent: str, hashes: Sequence[bytes]) -> Mapping[bytes, Turn]:
        """Those that are kept."""
        return await self.session_store.find_turns(agent, hashes)

    async def get_session(self, session_id: str) -> Session | None:
        """A session that is kept."""
        return await self.session_store.get_session(session_id)

    async def find_answers(self, digests: Sequence[bytes]) -> Sequence[tuple[AnswerRecord, Session]]:
        """Answers that are stored."""
        return await self.session_store.find_answers(digests)

    async def find_sessions_ending_at(
        self, agent: str, caller: str, tips: Sequence[bytes]
    ) -> Sequence[tuple[Session, bool]]:
        """Sessions that are stored."""
        return await self.session_store.find_sessions_ending_at(agent, caller, tips)

    async def save(self, rows: Sequence[SessionWrite]) -> None:
        """Nothing."""

    async def get_counts(self, agent: str, hashes: Sequence[bytes], counter: str) -> Mapping[bytes, bytes]:
        """What is kept of them."""
        return await self.session_store.get_counts(agent, hashes, counter)

    async def save_counts(self, agent: str, counts: Mapping[bytes, bytes], counter: str) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class ReadOnlyCompactionStore:
    """Folds that are looked at: nobody may fold, and what is recorded is forgotten at once."""

    compaction_store: CompactionStore

    async def acquire_lease(
        self, session_id: str, holder: str, *, ttl_seconds: float, now: float
    ) -> CompactionLease | None:
        """None."""

    async def renew_lease(
        self, lease: CompactionLease, *, ttl_seconds: float, now: float
    ) -> CompactionLease | None:
        """None."""

    async def release_lease(self, lease: CompactionLease) -> None:
        """Nothing."""

    async def record(
        self, compaction: Compaction, messages: Sequence[bytes], *, lease: CompactionLease | None
    ) -> bool:
        """Nothing, as if it had gone well."""
        del compaction, messages, lease
        return True

    async def has_compactions(self, agent: str) -> bool:
        """Whether there are any."""
        return await self.compaction_store.has_compactions(agent)

    async def find_compactions(self, agent: str, boundaries: Sequence[bytes]) -> Sequence[Compaction]:
        """Those that are kept."""
        return await self.compaction_store.find_compactions(agent, boundaries)

    async def get_compaction(self, compaction_id: str) -> Compaction | None:
        """One that is kept."""
        return await self.compaction_store.get_compaction(compaction_id)

    async def load_messages(self, compaction_id: str) -> Sequence[bytes]:
        """The turns that are kept of it."""
        return await self.compaction_store.load_messages(compaction_id)

    async def undo(self, compaction_id: str, *, now: float) -> bool:
        """Nothing is undone."""
        del compaction_id, now
        return False

    async def list_application_changes(self, compaction_ids: Sequence[str]) -> "Sequence[ApplicationChange]":
        """Those that are kept."""
        return await self.compaction_store.list_application_changes(compaction_ids)

    async def record_application_changes(self, changes: "Sequence[ApplicationChange]") -> None:
        """Nothing."""

    async def list_compactions(
        self,
        *,
        agent: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        before: float | None = None,
    ) -> Sequence[Compaction]:
        """Those that are kept."""
        return await self.compaction_store.list_compactions(
            agent=agent, session_id=session_id, limit=limit, before=before
        )


class ReadOnlySessionStates(SessionStates):
    """What is remembered of sessions, and stays as it is."""

    def __init__(self, remembered: SessionStates) -> None:
        super().__init__()
        self._session_states = remembered

    def session(self, agent: str, session_id: str) -> SessionState:
        """What is known of a session."""
        return self._session_states.session(agent, session_id)

    def put(self, agent: str, session_id: str, state: SessionState) -> None:
        """Nothing."""

    def agent_rhythm(self, agent: str) -> GapHistogram:
        """The gaps of an agent."""
        return self._session_states.agent_rhythm(agent)

    def add_gap(self, agent: str, gap_seconds: float) -> None:
        """Nothing."""


class PreviewSession:
    """Which session a request would belong to."""

    name = SESSION

    def __init__(self, sessions: SessionMatcher, session_states: SessionStates) -> None:
        self._sessions = sessions
        self._session_states = session_states

    async def apply(self, context: RequestContext) -> None:
        """Find it, and what is remembered of it."""
        context.chain = await compute_chain_in_thread(context.original)
        conversation = describe_conversation(context, context.chain)
        session_match = await self._sessions.find(conversation, now=context.received_at)
        if session_match.is_new and conversation.named_session_id is None:  # it gets an id when it begins
            session_match = replace(session_match, session=replace(session_match.session, id=""))
        context.session_match = session_match
        context.session_state = self._session_states.session(context.incoming.agent, context.session_id)


class TryToFitWindow:
    """Makes room as a call would, and leaves what cannot be made to fit as it is."""

    name = OVERFLOW

    def __init__(self, fit_window: FitWindow) -> None:
        self._fit_window = fit_window

    async def apply(self, context: RequestContext, required_sections: TokenCount = ZERO_TOKENS) -> None:
        """Make it fit, if that is how it would be sent."""
        try:
            await self._fit_window.apply(context, required_sections)
        except DoesNotFit:
            return


async def skip_compaction(context: RequestContext, subject: CompactionCandidate) -> CompactionResult | None:
    """None: for a count nothing is folded."""
    del context, subject
    return None


async def admit_always(request_id: str, agent: str, reason: str) -> None:
    """Let a request through that cannot be read: a count costs nothing, whatever it says."""
    del request_id, agent, reason


class FailureObserver(NullObserver):
    """Is told what fails, and of nothing else: a count is no call."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def on_failure(self, incoming: RoutedRequest, problem: StepFailure) -> None:
        """A step failed."""
        self._observer.on_failure(incoming, problem)


@dataclass(frozen=True, slots=True)
class RecordCount:
    """A count that the provider has made, in the ledger at no price."""

    remote_counter: RemoteCounter

    def __call__(self, exchange: Exchange) -> None:
        """Book it."""
        context = exchange.context
        if context is not None and 200 <= exchange.status < 300:
            self.remote_counter.record_count(context.incoming, context.session_id, context.model)

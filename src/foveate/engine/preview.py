"""The pipeline without side effects, for counts of what would be sent.

Counting a request is not a turn of its session: nothing is stored, compacted or put in order, and a request
that is too large is counted, not rejected.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from foveate.compaction.compact import CompactionResult
from foveate.compaction.plan import CompactionCandidate
from foveate.compaction.store import Compaction, CompactionLease, CompactionStore
from foveate.engine.completion_queue import CompletionQueue
from foveate.engine.counting.remote_counter import RemoteCounter
from foveate.engine.engine import Engine
from foveate.engine.exchange import CallHooks, Exchange
from foveate.engine.observer import NO_OBSERVER, NullObserver, Observer
from foveate.engine.options import AgentOptions
from foveate.engine.request import IncomingRequest, StepFailure
from foveate.engine.request_context import RequestContext, in_pipeline_order
from foveate.engine.session_state import SessionState, SessionStates
from foveate.engine.steps import OVERFLOW, SESSION
from foveate.engine.steps.count import CountCorrector, CountTokens, StoredConversationSizes
from foveate.engine.steps.history import ApplyCompactions, DropInvalidThinking, LimitTurns
from foveate.engine.steps.overflow import FitWindow
from foveate.engine.steps.sections import InjectSections, InjectSectionsInWindow
from foveate.engine.steps.session import describe_conversation
from foveate.engine.steps.tools import OrderTools
from foveate.errors import DoesNotFit
from foveate.model import ZERO_TOKENS, TokenCount
from foveate.prompt_cache.placement.arrival_times import GapHistogram
from foveate.session.hash_chain import compute_chain_in_thread
from foveate.session.matching import SessionMatcher
from foveate.session.store import AnswerRecord, Session, SessionStore, SessionWrite, Turn

if TYPE_CHECKING:
    from foveate.compaction.store import ApplicationChange


def build_preview(
    sessions: SessionMatcher,
    session_store: SessionStore,
    compaction_store: CompactionStore,
    session_states: SessionStates,
    counts: CountCorrector,
    stored_conversations: StoredConversationSizes,
    *,
    options: Callable[[str], AgentOptions],
    clock: Callable[[], float],
    observer: Observer | None,
    remote_counter: RemoteCounter | None,
    inject: InjectSections | None,
) -> Engine:
    read_only_store = ReadOnlySessionStore(session_store)
    read_only_states = ReadOnlySessionStates(session_states)
    apply_compactions = ApplyCompactions(ReadOnlyCompactionStore(compaction_store))
    count = CountTokens(read_only_store, counts, stored_conversations)
    handle_overflow = TryToFitWindow(FitWindow(apply_compactions, count, skip_compaction))
    preview_session = PreviewSession(sessions, read_only_states)
    return Engine(
        steps=in_pipeline_order(
            preview_session,
            apply_compactions,
            LimitTurns(),
            count,
            handle_overflow,
            *(
                (InjectSectionsInWindow(inject, handle_overflow.apply, is_preview=True),)
                if inject is not None
                else ()
            ),
            DropInvalidThinking(),
            OrderTools(read_only_states),
        ),
        hooks=CallHooks(in_background=(RecordCount(remote_counter),) if remote_counter is not None else ()),
        completion_queue=CompletionQueue(session_store=read_only_store),
        options=options,
        clock=clock,
        observer=FailureObserver(observer or NO_OBSERVER),
        admit_uncounted=admit_always,
        read_only_steps=in_pipeline_order(preview_session, count),
    )


@dataclass(frozen=True, slots=True)
class ReadOnlySessionStore:
    session_store: SessionStore

    async def find_turns(self, agent: str, hashes: Sequence[bytes]) -> Mapping[bytes, Turn]:
        return await self.session_store.find_turns(agent, hashes)

    async def get_session(self, session_id: str) -> Session | None:
        return await self.session_store.get_session(session_id)

    async def find_answers(self, digests: Sequence[bytes]) -> Sequence[tuple[AnswerRecord, Session]]:
        return await self.session_store.find_answers(digests)

    async def find_sessions_ending_at(
        self, agent: str, caller: str, last_hashes: Sequence[bytes]
    ) -> Sequence[Session]:
        return await self.session_store.find_sessions_ending_at(agent, caller, last_hashes)

    async def save(self, rows: Sequence[SessionWrite]) -> None: ...

    async def get_counts(self, agent: str, hashes: Sequence[bytes], counter: str) -> Mapping[bytes, bytes]:
        return await self.session_store.get_counts(agent, hashes, counter)

    async def save_counts(self, agent: str, counts: Mapping[bytes, bytes], counter: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ReadOnlyCompactionStore:
    """Reads from a compaction store, grants no lease, and ignores writes."""

    compaction_store: CompactionStore

    async def acquire_lease(
        self, session_id: str, holder: str, *, ttl_seconds: float, now: float
    ) -> CompactionLease | None: ...

    async def renew_lease(
        self, lease: CompactionLease, *, ttl_seconds: float, now: float
    ) -> CompactionLease | None: ...

    async def release_lease(self, lease: CompactionLease) -> None: ...

    async def record(
        self, compaction: Compaction, messages: Sequence[bytes], *, lease: CompactionLease | None
    ) -> bool:
        del compaction, messages, lease
        return True

    async def has_compactions(self, agent: str) -> bool:
        return await self.compaction_store.has_compactions(agent)

    async def find_compactions(self, agent: str, boundaries: Sequence[bytes]) -> Sequence[Compaction]:
        return await self.compaction_store.find_compactions(agent, boundaries)

    async def get_compaction(self, compaction_id: str) -> Compaction | None:
        return await self.compaction_store.get_compaction(compaction_id)

    async def load_messages(self, compaction_id: str) -> Sequence[bytes]:
        return await self.compaction_store.load_messages(compaction_id)

    async def undo(self, compaction_id: str, *, now: float) -> bool:
        del compaction_id, now
        return False

    async def list_application_changes(self, compaction_ids: Sequence[str]) -> "Sequence[ApplicationChange]":
        return await self.compaction_store.list_application_changes(compaction_ids)

    async def record_application_changes(self, changes: "Sequence[ApplicationChange]") -> None: ...

    async def list_compactions(
        self,
        *,
        agent: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        before: float | None = None,
    ) -> Sequence[Compaction]:
        return await self.compaction_store.list_compactions(
            agent=agent, session_id=session_id, limit=limit, before=before
        )


class ReadOnlySessionStates(SessionStates):
    """Reads session states, and ignores changes."""

    def __init__(self, session_states: SessionStates) -> None:
        super().__init__()
        self._session_states = session_states

    def session(self, agent: str, session_id: str) -> SessionState:
        return self._session_states.session(agent, session_id)

    def put(self, agent: str, session_id: str, state: SessionState) -> None: ...

    def agent_rhythm(self, agent: str) -> GapHistogram:
        return self._session_states.agent_rhythm(agent)

    def add_gap(self, agent: str, gap_seconds: float) -> None: ...


class PreviewSession:
    name = SESSION

    def __init__(self, sessions: SessionMatcher, session_states: SessionStates) -> None:
        self._sessions = sessions
        self._session_states = session_states

    async def apply(self, context: RequestContext) -> None:
        context.session.chain = await compute_chain_in_thread(context.original)
        conversation = describe_conversation(context, context.session.chain)
        session_match = await self._sessions.find(conversation, now=context.received_at)
        if session_match.is_new and conversation.named_session_id is None:
            # The id is assigned with its first request.
            session_match = replace(session_match, session=replace(session_match.session, id=""))
        context.session.match = session_match
        context.session.state = self._session_states.session(context.incoming.agent, context.session_id)


class TryToFitWindow:
    """Reduces a request as a call would, and leaves it as it is if it cannot fit."""

    name = OVERFLOW

    def __init__(self, fit_window: FitWindow) -> None:
        self._fit_window = fit_window

    async def apply(self, context: RequestContext, required_sections: TokenCount = ZERO_TOKENS) -> None:
        try:
            await self._fit_window.apply(context, required_sections)
        except DoesNotFit:
            return


async def skip_compaction(context: RequestContext, candidate: CompactionCandidate) -> CompactionResult | None:
    """Return None: nothing is compacted for a count."""
    del context, candidate
    return None


async def admit_always(request_id: str, agent: str, reason: str) -> None:
    """Admit a request that cannot be parsed: a count is free."""
    del request_id, agent, reason


class FailureObserver(NullObserver):
    """Forwards failures only: a count is not a call."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def on_failure(self, incoming: IncomingRequest, problem: StepFailure) -> None:
        self._observer.on_failure(incoming, problem)


@dataclass(frozen=True, slots=True)
class RecordCount:
    remote_counter: RemoteCounter

    def __call__(self, exchange: Exchange) -> None:
        context = exchange.context
        if context is not None and 200 <= exchange.status < 300:
            self.remote_counter.record_count(context.incoming, context.session_id, context.model)

"""The composition of the engine: the steps of the pipeline, sorted by `PIPELINE`, and its hooks, in order."""

from collections.abc import Callable

from foveate.compaction.store import CompactionStore
from foveate.cost.admission import Admission
from foveate.engine.background.cache_misses import CacheMissDetector
from foveate.engine.background.compaction import SessionCompactor
from foveate.engine.background.keepalive import CancelKeepAlive, KeepAliveScheduler
from foveate.engine.background.rate_limits import SaveRateLimits
from foveate.engine.background.request_archive import RequestArchiver
from foveate.engine.background.tracing import KeepSentMessages, SaveTraces
from foveate.engine.completion_queue import CompletionQueue
from foveate.engine.counting.calibration import Calibrate, Calibrations, SaveCalibrations
from foveate.engine.counting.remote_counter import RemoteCounter
from foveate.engine.engine import Engine
from foveate.engine.exchange import CallHooks
from foveate.engine.observer import NO_OBSERVER, Observer
from foveate.engine.options import AgentOptions, SpendingOptions
from foveate.engine.preview import build_preview
from foveate.engine.request_context import in_pipeline_order
from foveate.engine.session_state import SessionStates
from foveate.engine.spending.charges import ChargeRecorder, CompareCosts
from foveate.engine.spending.edit_planner import LoadActivity, RecordProgress
from foveate.engine.spending.observed_admission import CapUncounted
from foveate.engine.steps.cache import (
    PlaceBreakpoints,
    PrefixLogs,
    RecordRejections,
    RejectionMemory,
    SaveReuse,
)
from foveate.engine.steps.caps import EnforceCaps
from foveate.engine.steps.count import CountCorrector, CountTokens, StoredConversationSizes
from foveate.engine.steps.history import (
    ApplyCompactions,
    DropInvalidThinking,
    EditHistory,
    InvalidateCompactionThinking,
    LimitTurns,
    RecordInvalidThinking,
)
from foveate.engine.steps.overflow import FitWindow
from foveate.engine.steps.savings import ReadSimulatedPrompts, SimulateSavings
from foveate.engine.steps.sections import InjectSections, InjectSectionsInWindow
from foveate.engine.steps.session import FindSession, RecordResponse
from foveate.engine.steps.tools import OrderTools
from foveate.engine.steps.usage import RequestUsage
from foveate.session.matching import SessionMatcher
from foveate.session.recent_sessions import Broadcast
from foveate.session.store import SessionStore


def build_engine(
    session_store: SessionStore,
    compaction_store: CompactionStore,
    *,
    options: Callable[[str], AgentOptions],
    clock: Callable[[], float],
    compactor: SessionCompactor,
    admission: Admission,
    spending: Callable[[], SpendingOptions],
    observer: Observer | None = None,
    beta_override: str | None = None,
    remote_counter: RemoteCounter | None = None,
    session_states: SessionStates | None = None,
    keep_alive: KeepAliveScheduler | None = None,
    inject: InjectSections | None = None,
    cache_misses: CacheMissDetector | None = None,
    request_archive: RequestArchiver | None = None,
    tracing: SaveTraces | None = None,
    calibrations: Calibrations | None = None,
    save_calibrations: SaveCalibrations | None = None,
    prefix_logs: PrefixLogs | None = None,
    save_reuse: SaveReuse | None = None,
    rate_limits: SaveRateLimits | None = None,
    load_activity: LoadActivity | None = None,
    has_other_processes: bool = False,
    broadcast: Broadcast | None = None,
    has_other_gateways: Callable[[], bool] = lambda: False,
    may_store_text: Callable[[], bool] = lambda: False,
) -> Engine:
    """`has_other_processes`: other processes use the same store. `broadcast` reaches the other workers of this
    gateway, and `has_other_gateways` returns whether other gateways use the store now. `may_store_text`: the
    first words of conversations may be stored.
    """
    session_states, rejections = session_states or SessionStates(), RejectionMemory()
    calibrations, logs = calibrations or Calibrations(), prefix_logs or PrefixLogs()
    stored_conversations = StoredConversationSizes()
    apply_compactions = ApplyCompactions(compaction_store)
    count = CountTokens(session_store, CountCorrector(calibrations, remote_counter), stored_conversations)
    charges = ChargeRecorder(admission, spending)
    completion_queue = CompletionQueue(charges, session_store, has_other_gateways=has_other_gateways)
    sessions = SessionMatcher(session_store, has_other_workers=has_other_processes, broadcast=broadcast)
    preview = build_preview(
        sessions,
        session_store,
        compaction_store,
        session_states,
        CountCorrector(calibrations),
        stored_conversations,
        options=options,
        clock=clock,
        observer=observer,
        remote_counter=remote_counter,
        inject=inject,
    )

    def on_compaction_stored(agent: str) -> None:
        for step in (apply_compactions, *preview.steps):
            if isinstance(step, ApplyCompactions):
                step.expect_compactions(agent)

    compactor.on_stored, compactor.keep_alive = on_compaction_stored, keep_alive
    find_session = FindSession(
        sessions,
        session_store,
        session_states,
        may_store_text=may_store_text,
        store_early=completion_queue.store_early,
    )
    keep_sent_messages = (KeepSentMessages(),) if tracing is not None else ()
    enforce_caps = EnforceCaps(admission, spending, completion_queue.drain_all_processes)
    handle_overflow = FitWindow(apply_compactions, count, compactor.compact_for_request)
    return Engine(
        steps=in_pipeline_order(
            find_session,
            apply_compactions,
            LimitTurns(),
            count,
            EditHistory(apply_compactions, count, compactor),
            handle_overflow,
            *((InjectSectionsInWindow(inject, handle_overflow.apply),) if inject is not None else ()),
            DropInvalidThinking(),
            OrderTools(session_states),
            PlaceBreakpoints(session_states, rejections, logs),
            ReadSimulatedPrompts(),
            *keep_sent_messages,
            RequestUsage(rejections),
            enforce_caps,
            *((CancelKeepAlive(keep_alive),) if keep_alive is not None else ()),
        ),
        hooks=CallHooks(
            before_last_byte=(charges.complete,),
            on_answer=(RecordResponse(session_store, stored_conversations),),
            after_response=(
                SimulateSavings(session_states, logs),
                CompareCosts(spending, session_states),
                RecordProgress(session_states),
                Calibrate(calibrations),
                *((keep_alive,) if keep_alive is not None else ()),
                RecordRejections(rejections),
                RecordInvalidThinking(session_states),
                InvalidateCompactionThinking(compaction_store),
            ),
            in_background=(
                *(
                    hook
                    for hook in (
                        cache_misses,
                        request_archive,
                        tracing,
                        save_calibrations,
                        save_reuse,
                        rate_limits,
                        load_activity,
                    )
                    if hook is not None
                ),
                compactor,
            ),
        ),
        completion_queue=completion_queue,
        options=options,
        clock=clock,
        observer=observer or NO_OBSERVER,
        admit_uncounted=CapUncounted(admission, spending, clock),
        beta_override=beta_override,
        preview=preview,
        charges=charges,
        compact_now=compactor.compact_now,
        recount=CountCorrector(calibrations, remote_counter).recount,
        read_only_steps=in_pipeline_order(find_session, count, *keep_sent_messages, enforce_caps),
        forget_conversation=stored_conversations.forget_conversation,
    )

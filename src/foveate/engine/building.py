"""The engine as it is built: which steps there are, and their order."""

from collections.abc import Callable

from foveate.cost.admission import Admission
from foveate.engine.asking import Asking
from foveate.engine.behind import Behind
from foveate.engine.calibrating import Calibrate, Calibrations
from foveate.engine.counting import Counts
from foveate.engine.engine import Engine
from foveate.engine.explaining import Breaks
from foveate.engine.folds import Folds
from foveate.engine.keeping import KeepRequests
from foveate.engine.lessons import KeepLessons
from foveate.engine.money import Book
from foveate.engine.options import AgentOptions, MoneyOptions
from foveate.engine.pinging import Pings
from foveate.engine.prefix_logs import PrefixLogs, SaveReuse
from foveate.engine.previewing import (
    BookCount,
    FailuresOnly,
    RoomIfAny,
    SeenJournal,
    SeenSessions,
    SeenTurns,
    SeeSession,
    free,
    no_fold,
)
from foveate.engine.rate_limits import KeepRateLimits
from foveate.engine.remembered import Remembered
from foveate.engine.session_answers import RememberAnswer
from foveate.engine.settling import DoubtThoughts, RememberRefusal, RememberThoughts
from foveate.engine.steps.cache import MarkCache, RefusalsHeld
from foveate.engine.steps.caps import HoldCaps
from foveate.engine.steps.count import Count
from foveate.engine.steps.history import LimitTurns, ReplaceHistory
from foveate.engine.steps.keepalive import HoldPings
from foveate.engine.steps.overflow import MakeRoom
from foveate.engine.steps.savings import ReadStates, SimulateStates
from foveate.engine.steps.sections import Inject, InjectInRoom
from foveate.engine.steps.session import FindSession
from foveate.engine.steps.thinking import SpareThoughts
from foveate.engine.steps.tools import OrderTools
from foveate.engine.steps.trail import SeeTrail
from foveate.engine.steps.usage import AskForUsage
from foveate.engine.stored_sizes import StoredSizes
from foveate.engine.tracing import KeepTraces
from foveate.engine.uncounted import HoldUncounted
from foveate.engine.watch import UNWATCHED, Watch
from foveate.fold.journal import Journal
from foveate.session.sessions import Sessions
from foveate.session.turns import Turns


def build_engine(
    turns: Turns,
    journal: Journal,
    *,
    options: Callable[[str], AgentOptions],
    clock: Callable[[], float],
    folds: Folds,
    admission: Admission,
    cost: Callable[[], MoneyOptions],
    watch: Watch | None = None,
    beta_override: str | None = None,
    asking: Asking | None = None,
    remembered: Remembered | None = None,
    pings: Pings | None = None,
    inject: Inject | None = None,
    breaks: Breaks | None = None,
    keeping: KeepRequests | None = None,
    tracing: KeepTraces | None = None,
    calibrations: Calibrations | None = None,
    lessons: KeepLessons | None = None,
    prefix_logs: PrefixLogs | None = None,
    save_reuse: SaveReuse | None = None,
    rate_limits: KeepRateLimits | None = None,
    has_others: bool = False,
    keeps_text: Callable[[], bool] = lambda: False,
) -> Engine:
    """An engine that keeps sessions in `turns`, folds in `journal`, and bills where `admission` does.

    `has_others`: other processes serve requests with the same store. `keeps_text`: first words of conversations
    may be stored.
    """
    remembered, refusals = remembered or Remembered(), RefusalsHeld()
    calibrations, logs = calibrations or Calibrations(), prefix_logs or PrefixLogs()
    sizes = StoredSizes()
    history, count = ReplaceHistory(journal), Count(turns, Counts(calibrations, asking), sizes)
    behind = Behind(admission, turns)
    book = Book(admission, cost, remembered)
    sessions = Sessions(turns, has_others=has_others)
    preview = _preview(
        sessions,
        turns,
        journal,
        remembered,
        Counts(calibrations),
        sizes,
        options=options,
        clock=clock,
        watch=watch,
        asking=asking,
        inject=inject,
    )

    def looks_anew(agent: str) -> None:
        for each in (history, *preview.steps):
            if isinstance(each, ReplaceHistory):
                each.looks_anew(agent)

    folds.kept = looks_anew
    find_session = FindSession(sessions, turns, remembered, keeps_text=keeps_text)
    see_trail = (SeeTrail(),) if tracing is not None else ()
    hold_caps = HoldCaps(admission, cost, behind.caught_up)
    room = MakeRoom(history, count, folds.now)
    return Engine(
        steps=(
            find_session,
            history,
            LimitTurns(),
            count,
            room,
            *((InjectInRoom(inject, room.take),) if inject is not None else ()),
            SpareThoughts(),
            OrderTools(remembered),
            MarkCache(remembered, refusals, logs),
            ReadStates(),
            *see_trail,
            AskForUsage(refusals),
            hold_caps,
            *((HoldPings(pings),) if pings is not None else ()),
        ),
        remember=(
            RememberAnswer(sessions, turns, sizes),
            SimulateStates(remembered, logs),
            book,
            Calibrate(calibrations),
            *((pings,) if pings is not None else ()),
            RememberRefusal(refusals),
            RememberThoughts(remembered),
            DoubtThoughts(journal),
        ),
        settle=(
            *(
                each
                for each in (breaks, keeping, tracing, lessons, save_reuse, rate_limits)
                if each is not None
            ),
            folds,
        ),
        behind=behind,
        options=options,
        clock=clock,
        watch=watch or UNWATCHED,
        uncounted=HoldUncounted(admission, cost, clock),
        beta_override=beta_override,
        preview=preview,
        note=book.note,
        announce=book.announce,
        fold_now=folds.now,
        recount=Counts(calibrations, asking).recount,
        observe=(find_session, count, *see_trail, hold_caps),
        forget_conversation=sizes.forget_conversation,
    )


def _preview(
    sessions: Sessions,
    turns: Turns,
    journal: Journal,
    remembered: Remembered,
    counts: Counts,
    sizes: StoredSizes,
    *,
    options: Callable[[str], AgentOptions],
    clock: Callable[[], float],
    watch: Watch | None,
    asking: Asking | None,
    inject: Inject | None,
) -> Engine:
    """The same steps up to the edits, over what is only looked at: for counts of what would be sent."""
    seen, states = SeenTurns(turns), SeenSessions(remembered)
    history, count = ReplaceHistory(SeenJournal(journal)), Count(seen, counts, sizes)
    room = RoomIfAny(MakeRoom(history, count, no_fold))
    see_session = SeeSession(sessions, states)
    return Engine(
        steps=(
            see_session,
            history,
            LimitTurns(),
            count,
            room,
            *((InjectInRoom(inject, room.take),) if inject is not None else ()),
            SpareThoughts(),
            OrderTools(states),
        ),
        settle=(BookCount(asking),) if asking is not None else (),
        behind=Behind(turns=seen),
        options=options,
        clock=clock,
        watch=FailuresOnly(watch or UNWATCHED),
        uncounted=free,
        observe=(see_session, count),
    )

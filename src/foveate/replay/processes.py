"""Sessions replayed side by side, in several processes where there are many bytes of them."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial

from foveate.config.price_file import price_file
from foveate.cost.price_book import PriceBook
from foveate.errors import FoveateError
from foveate.replay.outcomes import Replayed
from foveate.replay.reading import Session, read_session
from foveate.replay.recordings import Recording
from foveate.replay.replaying import ReplayOptions, replay

# Of less, a process is not done before another one has started.
_MUCH_BYTES = 4 * 1024 * 1024
_MOST_PROCESSES = 16
# Sessions that go to a process together: what less takes is soon no more than the way there and back.
_BATCH_BYTES = 256 * 1024
_MOST_IN_BATCH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What became of a session: what was replayed of it, or why it could not be read.

    `calls` names the calls of each recording. `repeated` is how many were left out, since an earlier session
    had them.
    """

    session: Session
    replayed: tuple[Replayed, ...] = ()
    calls: tuple[tuple[str, ...], ...] = ()
    repeated: int = 0
    error: str = ""


def replay_sessions(
    sessions: Sequence[Session],
    options: ReplayOptions,
    *,
    processes: int | None = None,
    told: Callable[[int], None] = lambda _bytes: None,
) -> Iterator[Done]:
    """Every session as it is replayed, in their order; a call that two of them have is counted in the first.

    `told` is told how many bytes are done.
    """
    sizes = [size_bytes(session) for session in sessions]
    wanted = _processes(sum(sizes)) if processes is None else processes
    seen: set[str] = set()
    with _starting(wanted) as start:
        under_way = _under_way(sessions, sizes, options, start)
        for session, size, result in zip(sessions, sizes, under_way, strict=True):
            done = result()
            known = frozenset(name for calls in done.calls for name in calls if name in seen)
            if known:  # here: in a process it would wait behind all others, and they go on meanwhile
                done = _replayed(session, options, known)
            seen.update(name for calls in done.calls for name in calls)
            told(size)
            yield done


def size_bytes(session: Session) -> int:
    """How many bytes its files have; none where they stand in a database."""
    return sum(path.stat().st_size for path in session.files if path.is_file())


def _processes(size_bytes: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MOST_PROCESSES) if size_bytes >= _MUCH_BYTES else 1


def batches(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """The numbers of sessions that go to a process at a time: the longest first, short ones together.

    A long one that came last would leave all other processes with nothing to do.
    """
    found: list[tuple[int, ...]] = []
    together: list[int] = []
    gathered = 0
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        together.append(number)
        gathered += sizes[number]
        if gathered >= _BATCH_BYTES or len(together) == _MOST_IN_BATCH:
            found.append(tuple(together))
            together, gathered = [], 0
    return [*found, tuple(together)] if together else found


_Result = Callable[[], tuple[Done, ...]]
_Start = Callable[[tuple[Session, ...], ReplayOptions], _Result]


def _under_way(
    sessions: Sequence[Session], sizes: Sequence[int], options: ReplayOptions, start: _Start | None
) -> list[Callable[[], Done]]:
    """What waits for each session, in their order."""
    if start is None:
        return [partial(_replayed, session, options, frozenset()) for session in sessions]
    waiting: dict[int, Callable[[], Done]] = {}
    for batch in batches(sizes):
        result = start(tuple(sessions[number] for number in batch), options)
        for place, number in enumerate(batch):
            waiting[number] = partial(_one_of, result, place)
    return [waiting[number] for number in range(len(sessions))]


def _one_of(result: _Result, place: int) -> Done:
    return result()[place]


@contextmanager
def _starting(processes: int) -> Iterator[_Start | None]:
    """What starts some sessions in a process, and gives what waits for them; None where there is but one."""
    if processes <= 1:
        yield None
        return
    # A fork has all modules loaded; it is not safe beside threads, nor on other systems.
    can_fork = sys.platform == "linux" and threading.active_count() == 1
    if can_fork:
        _book().warm()  # once, and not by every process for itself
    context = multiprocessing.get_context("fork" if can_fork else "spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with_interrupts)
    try:
        yield lambda batch, options: _waiting(
            pool.submit(_replayed_all, batch, options), partial(_replayed_all, batch, options)
        )
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _waiting(under_way: "Future[tuple[Done, ...]]", here: _Result) -> _Result:
    """What waits for sessions, and does them here, once, where the process that was to do it died."""

    @cache
    def result() -> tuple[Done, ...]:
        try:
            return under_way.result()
        except BrokenProcessPool:
            return here()

    return result


def _replayed_all(batch: tuple[Session, ...], options: ReplayOptions) -> tuple[Done, ...]:
    return tuple(_replayed(session, options, frozenset()) for session in batch)


def _end_with_interrupts() -> None:
    """End at once with Ctrl-C, and say nothing: the process that started this one waits for it, and tells."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@cache
def _book() -> PriceBook:
    return PriceBook(updates=price_file(os.environ).now)


def _replayed(session: Session, options: ReplayOptions, known: frozenset[str]) -> Done:
    """One session; calls that are `known` are left out."""
    try:
        recordings = read_session(session, model=options.model)
        return _counted(session, recordings, options, known)
    except FoveateError as error:
        return Done(session=session, error=str(error))
    except Exception as error:  # noqa: BLE001 - of hundreds of sessions, one that is like no other stops none
        return Done(session=session, error=f"cannot be replayed: {type(error).__name__}: {error}")


def _counted(
    session: Session, recordings: Sequence[Recording], options: ReplayOptions, known: frozenset[str]
) -> Done:
    left, repeated = [], 0
    for recording in recordings:
        calls = tuple(call for call in recording.calls if call.id not in known)
        repeated += len(recording.calls) - len(calls)
        left.append(recording if len(calls) == len(recording.calls) else replace(recording, calls=calls))
    return Done(
        session=session,
        replayed=tuple(replay(recording, _book(), options) for recording in left),
        calls=tuple(tuple(call.id for call in recording.calls) for recording in left),
        repeated=repeated,
    )

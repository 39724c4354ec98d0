"""Sessions replayed side by side, each in a process of its own where there are many bytes of them."""

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

from foveate.cost.price_book import PriceBook
from foveate.errors import FoveateError
from foveate.replay.outcomes import Replayed
from foveate.replay.reading import Session, read_session
from foveate.replay.recordings import Recording
from foveate.replay.replaying import ReplayOptions, replay

# Of less, a process is not done before another one has started.
_MUCH_BYTES = 4 * 1024 * 1024
_MOST_PROCESSES = 16


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
        under_way = [start(session, options, frozenset()) for session in sessions]
        for session, size, result in zip(sessions, sizes, under_way, strict=True):
            done = result()
            known = frozenset(name for calls in done.calls for name in calls if name in seen)
            if known:
                done = start(session, options, known)()
            seen.update(name for calls in done.calls for name in calls)
            told(size)
            yield done


def size_bytes(session: Session) -> int:
    """How many bytes its files have; none where they stand in a database."""
    return sum(path.stat().st_size for path in session.files if path.is_file())


def _processes(size_bytes: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MOST_PROCESSES) if size_bytes >= _MUCH_BYTES else 1


_Start = Callable[[Session, ReplayOptions, frozenset[str]], Callable[[], Done]]


@contextmanager
def _starting(processes: int) -> Iterator[_Start]:
    """What starts a session, and gives what waits for it."""
    if processes <= 1:
        yield partial(partial, _replayed)
        return
    # A fork has all modules loaded; it is not safe beside threads, nor on other systems.
    can_fork = sys.platform == "linux" and threading.active_count() == 1
    context = multiprocessing.get_context("fork" if can_fork else "spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with_interrupts)
    try:
        yield lambda session, options, known: _waiting(
            pool.submit(_replayed, session, options, known), partial(_replayed, session, options, known)
        )
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _waiting(under_way: "Future[Done]", here: Callable[[], Done]) -> Callable[[], Done]:
    """What waits for a session, and does it here where the process that was to do it died."""

    def result() -> Done:
        try:
            return under_way.result()
        except BrokenProcessPool:
            return here()

    return result


def _end_with_interrupts() -> None:
    """End at once with Ctrl-C, and say nothing: the process that started this one waits for it, and tells."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@cache
def _book() -> PriceBook:
    return PriceBook()


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

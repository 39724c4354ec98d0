"""Replays sessions in several processes if there is enough data."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Protocol, TypeVar

from foveate.config.updated_prices import default_price_file
from foveate.cost.pricing.price_book import PriceBook
from foveate.errors import FoveateError
from foveate.replay.outcomes import ReplayedSession
from foveate.replay.recording import Recording
from foveate.replay.recording_files import SessionFiles, read_session
from foveate.replay.run import ReplayOptions, replay_recording
from foveate.replay.worker_pool import choose_processes, make_batches, open_worker_pool

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionResult:
    """The result of replaying a session, or why it could not be read.

    `calls` are the ids of the calls of each recording. `repeated` is the number of calls that were left out
    because an earlier session contains them.
    """

    session: SessionFiles
    replayed: tuple[ReplayedSession, ...] = ()
    calls: tuple[tuple[str, ...], ...] = ()
    repeated: int = 0
    error: str = ""


def replay_sessions(
    sessions: Sequence[SessionFiles],
    options: ReplayOptions,
    *,
    processes: int | None = None,
    on_progress: Callable[[int], None] = lambda _bytes: None,
) -> Iterator[SessionResult]:
    """Replay every session, in order. A call that occurs in two sessions is counted in the first.

    `on_progress` receives the number of bytes done.
    """
    seen: set[str] = set()
    replay = partial(_replay_session, options=options, known=frozenset())
    results = map_sessions(sessions, replay, processes=processes, on_progress=on_progress)
    for session, session_result in zip(sessions, results, strict=True):
        known = frozenset(name for calls in session_result.calls for name in calls if name in seen)
        if known:  # done in this process, since it would have to wait for the others in the pool
            session_result = _replay_session(session, options, known)
        seen.update(name for calls in session_result.calls for name in calls)
        yield session_result


def map_sessions(
    sessions: Sequence[SessionFiles],
    work: Callable[[SessionFiles], ResultT],
    *,
    processes: int | None = None,
    on_progress: Callable[[int], None] = lambda _bytes: None,
) -> Iterator[ResultT]:
    """Yield the result of `work` for every session, in order; `work` must be picklable, and may not raise.

    `on_progress` receives the number of bytes done.
    """
    sizes = [session_size_bytes(session) for session in sessions]
    process_count = choose_processes(sum(sizes)) if processes is None else processes
    with _worker_pool(process_count) as submit:
        for size, result in zip(sizes, _start_batches(sessions, sizes, work, submit), strict=True):
            session_result = result()
            on_progress(size)
            yield session_result


def session_size_bytes(session: SessionFiles) -> int:
    """The total size of a session's files; 0 if it is in a database."""
    return sum(path.stat().st_size for path in session.files if path.is_file())


class _Submit(Protocol):
    """Starts a function in a process, and returns one that waits for its result."""

    def __call__(self, run: Callable[[], tuple[ResultT, ...]], /) -> Callable[[], tuple[ResultT, ...]]: ...


def _start_batches(
    sessions: Sequence[SessionFiles],
    sizes: Sequence[int],
    work: Callable[[SessionFiles], ResultT],
    submit: _Submit | None,
) -> list[Callable[[], ResultT]]:
    """Functions that wait for each session, in order."""
    if submit is None:
        return [partial(work, session) for session in sessions]
    waiting: dict[int, Callable[[], ResultT]] = {}
    for batch in make_batches(sizes):
        result = submit(partial(_run_batch, work, tuple(sessions[number] for number in batch)))
        for place, number in enumerate(batch):
            waiting[number] = partial(_result_at, result, place)
    return [waiting[number] for number in range(len(sessions))]


def _run_batch(work: Callable[[SessionFiles], ResultT], batch: tuple[SessionFiles, ...]) -> tuple[ResultT, ...]:
    return tuple(map(work, batch))


def _result_at(result: Callable[[], tuple[ResultT, ...]], index: int) -> ResultT:
    return result()[index]


@contextmanager
def _worker_pool(processes: int) -> Iterator[_Submit | None]:
    """A pool of processes; None for a single process."""
    if processes <= 1:
        yield None
        return
    pool = open_worker_pool(processes, preload=lambda: load_price_book().preload())

    def submit(run: Callable[[], tuple[ResultT, ...]], /) -> Callable[[], tuple[ResultT, ...]]:
        return _wait_or_run(pool.submit(run), run)

    try:
        yield submit
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _wait_or_run(
    future: "Future[tuple[ResultT, ...]]", run_locally: Callable[[], tuple[ResultT, ...]]
) -> Callable[[], tuple[ResultT, ...]]:
    """A function that waits for sessions, and runs them in this process if the worker died."""

    @cache
    def result() -> tuple[ResultT, ...]:
        try:
            return future.result()
        except BrokenProcessPool:
            return run_locally()

    return result


@cache
def load_price_book() -> PriceBook:
    return PriceBook(load_imported=default_price_file(os.environ).current_prices)


def _replay_session(session: SessionFiles, options: ReplayOptions, known: frozenset[str]) -> SessionResult:
    try:
        recordings = read_session(session, model=options.model)
        return _replay_recordings(session, recordings, options, known)
    except FoveateError as error:
        return SessionResult(session=session, error=str(error))
    except Exception as error:  # noqa: BLE001 - of hundreds of sessions, one that is like no other stops none
        return SessionResult(session=session, error=f"cannot be replayed: {type(error).__name__}: {error}")


def _replay_recordings(
    session: SessionFiles, recordings: Sequence[Recording], options: ReplayOptions, known: frozenset[str]
) -> SessionResult:
    remaining, repeated = [], 0
    for recording in recordings:
        calls = tuple(call for call in recording.calls if call.id not in known)
        repeated += len(recording.calls) - len(calls)
        remaining.append(recording if len(calls) == len(recording.calls) else replace(recording, calls=calls))
    return SessionResult(
        session=session,
        replayed=tuple(replay_recording(recording, load_price_book(), options) for recording in remaining),
        calls=tuple(tuple(call.id for call in recording.calls) for recording in remaining),
        repeated=repeated,
    )

"""Stalls of another thread, or of the event loop, during counting.

A heartbeat that should run every millisecond records its longest gap in a trial. The result is how much longer
that is than on an idle process, in the quietest trial of each, since other load can only lengthen it. A tight
Python loop is measured too, as the baseline of the interpreter's switch interval.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping

_BEAT_SECONDS = 0.001
_TRIALS = 7
_TRIAL_SECONDS = 0.25


def longest_stalls_ms(works: Mapping[str, Callable[[int], object]]) -> dict[str, float]:
    """Return the longest stall under each of `works`, which are called with a new number each time."""
    gaps: dict[str, list[float]] = {name: [] for name in ("idle", *works)}
    number = iter(range(10**9))
    for _ in range(_TRIALS):
        for name, work in {"idle": _idle, **works}.items():
            gaps[name].append(_longest_gap(work, number))
    return _subtract_idle(gaps)


def longest_loop_stalls_ms(
    works: Mapping[str, Callable[[int], Coroutine[object, object, object]]],
) -> dict[str, float]:
    """Like `longest_stalls_ms`, for tasks of the event loop."""
    gaps: dict[str, list[float]] = {name: [] for name in ("idle", *works)}
    number = iter(range(10**9))
    for _ in range(_TRIALS):
        for name, work in {"idle": _idle_on_loop, **works}.items():
            gaps[name].append(asyncio.run(_longest_loop_gap(work, number)))
    return _subtract_idle(gaps)


def python_loop(_: int) -> None:
    """Run only the interpreter, for a tenth of a second."""
    deadline = time.perf_counter() + 0.1
    while time.perf_counter() < deadline:
        pass


def _subtract_idle(gaps: Mapping[str, list[float]]) -> dict[str, float]:
    idle = min(gaps["idle"])
    return {
        name: max(0.0, round((min(found) - idle) * 1000, 2)) for name, found in gaps.items() if name != "idle"
    }


def _longest_gap(work: Callable[[int], object], number: Iterator[int]) -> float:
    beats: list[float] = []
    over = threading.Event()

    def beat() -> None:
        while not over.is_set():
            beats.append(time.perf_counter())
            time.sleep(_BEAT_SECONDS)

    thread = threading.Thread(target=beat)
    thread.start()
    ends = time.perf_counter() + _TRIAL_SECONDS
    while time.perf_counter() < ends:
        work(next(number))
    over.set()
    thread.join()
    return _longest(beats)


async def _longest_loop_gap(
    work: Callable[[int], Coroutine[object, object, object]], number: Iterator[int]
) -> float:
    beats: list[float] = []

    async def beat() -> None:
        while True:
            beats.append(time.perf_counter())
            await asyncio.sleep(_BEAT_SECONDS)

    task = asyncio.create_task(beat())
    ends = time.perf_counter() + _TRIAL_SECONDS
    while time.perf_counter() < ends:
        await work(next(number))
    task.cancel()
    return _longest(beats)


def _longest(beats: list[float]) -> float:
    return max((after - before for before, after in itertools.pairwise(beats)), default=0.0)


def _idle(_: int) -> None:
    time.sleep(0.05)


async def _idle_on_loop(_: int) -> None:
    await asyncio.sleep(0.05)

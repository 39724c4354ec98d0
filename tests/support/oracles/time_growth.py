"""Measure how the CPU time of a function grows with its input, by ratios."""

from collections.abc import Callable
from time import thread_time
from typing import TypeVar

Input = TypeVar("Input")

# Eight times the input takes eight times as long if time grows linearly, 64 times if it grows quadratically.
_GROWTH = 8
_MAX_RATIO = 20
# Less CPU time than the floor is not judged: the ratio can come from a text that is rejected at once if it is
# small, as one with a NUL in its first 8 KiB is binary. After an input that takes long enough, none is larger.
_FLOOR_SECONDS, _ENOUGH_SECONDS = 0.003, 0.005
# Small steps at first: exponential growth would never finish a large one.
_FIRST_SIZES = (16, 22, 28, 40, 64)


def superlinear_ratio(
    run: Callable[[Input], object],
    make: Callable[[int], Input],
    *,
    max_size: int,
    floor_seconds: float = _FLOOR_SECONDS,
) -> float | None:
    """Return the growth of time for eight times the input; None if it is linear.

    `make` builds an input of a size. Sizes grow up to `max_size`, or until one takes long enough to be judged.
    What takes less than `floor_seconds` of CPU time is not judged.
    """
    sizes = [max_size]
    while sizes[0] // _GROWTH > _FIRST_SIZES[-1]:
        sizes.insert(0, sizes[0] // _GROWTH)
    seconds: dict[int, float] = {}
    for size in (*_FIRST_SIZES, *sizes):
        seconds[size] = _seconds(run, make(size), repeats=1)
        if seconds[size] > _ENOUGH_SECONDS:
            break
    small = size // _GROWTH
    slow, fast = seconds[size], seconds.get(small, 0.0)
    # Other load can only make a run longer, so a run that looks too long is repeated.
    for repeats in (1, 2, 4):
        if slow < floor_seconds or slow <= fast * _MAX_RATIO:
            return None
        slow = min(slow, _seconds(run, make(size), repeats=repeats))
        fast = _seconds(run, make(small), repeats=2 * repeats)
    return None if slow <= fast * _MAX_RATIO else slow / fast


def _seconds(run: Callable[[Input], object], value: Input, *, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = thread_time()
        run(value)
        times.append(thread_time() - start)
    return min(times)

"""How the time of a function grows with the size of its input, told by ratios of CPU time."""

from collections.abc import Callable, Iterator
from time import thread_time
from typing import TypeVar

Input = TypeVar("Input")

# Eight times the input takes eight times as long if time grows linearly, 64 times if it grows quadratically.
_GROWTH = 8
_MAX_RATIO = 20
# Less CPU time than this is not judged; more than this is not waited for.
_FLOOR_SECONDS, _ENOUGH_SECONDS = 0.002, 0.05
# By small steps at first, since what grows exponentially would not come back from a large one.
_SIZES = (16, 20, 24, 28, 32, 48, 64, 128, 256, 512)


def superlinear_ratio(
    run: Callable[[Input], object], make: Callable[[int], Input], *, max_size: int
) -> float | None:
    """By how much time grows when the input gets eight times as large; None if no faster than linearly.

    `make` makes an input of a size. Sizes grow up to `max_size`, or until one takes long enough to be judged.
    """
    taken: dict[int, float] = {}
    for size in _sizes(max_size):
        taken[size] = _seconds(run, make(size), repeats=1)
        if taken[size] > _ENOUGH_SECONDS:
            break
    largest = max(taken)
    if taken[largest] < _FLOOR_SECONDS:
        return None
    # A busy machine makes a run look longer, never shorter: what looks too long is measured again.
    for repeats in (1, 3, 9):
        slow = min(taken[largest], _seconds(run, make(largest), repeats=repeats))
        fast = max(_seconds(run, make(largest // _GROWTH), repeats=2 * repeats), 1e-6)
        if slow / fast <= _MAX_RATIO:
            return None
    return slow / fast


def _sizes(max_size: int) -> Iterator[int]:
    yield from (size for size in _SIZES if size <= max_size)
    size = 2 * _SIZES[-1]
    while size <= max_size:
        yield size
        size *= 2


def _seconds(run: Callable[[Input], object], given: Input, *, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = thread_time()
        run(given)
        times.append(thread_time() - start)
    return min(times)

"""All texts that an object holds, to show that a text is not among them."""

import gc
from types import CodeType, FrameType, FunctionType, ModuleType

_ELSEWHERE = (type, ModuleType, FunctionType, CodeType, FrameType)


def held(*roots: object) -> set[str]:
    """Return every text reachable from `roots`, except through classes, functions and modules."""
    texts: set[str] = set()
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, _ELSEWHERE):
            continue
        seen.add(id(found))
        if isinstance(found, str):
            texts.add(found)
        waiting += gc.get_referents(found)
        if isinstance(found, dict):
            waiting += found  # the garbage collector does not report keys that are texts
    return texts

"""All texts that an object holds, to show that a text is not among them."""

import gc
from types import CodeType, FrameType, FunctionType, ModuleType

_NOT_FOLLOWED = (type, ModuleType, FunctionType, CodeType, FrameType)


def reachable_texts(*roots: object) -> set[str]:
    """Return every text reachable from `roots`, except through classes, functions and modules."""
    texts: set[str] = set()
    seen: set[int] = set()
    pending = list(roots)
    while pending:
        value = pending.pop()
        if id(value) in seen or isinstance(value, _NOT_FOLLOWED):
            continue
        seen.add(id(value))
        if isinstance(value, str):
            texts.add(value)
        pending += gc.get_referents(value)
        if isinstance(value, dict):
            pending += value  # the garbage collector does not report keys that are texts
    return texts

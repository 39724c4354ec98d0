"""The prefix and the context of prompts, kept as long as what they are made from stays the same."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from foveate.budget.sections import chosen
from foveate.errors import BadOption, FoveateError
from foveate.prompt.inputs import CallKind, ContextInputs, PrefixInputs
from foveate.prompt.kept import Kept
from foveate.prompt.rendering import Built, Missing, render_context, render_prefix
from foveate.tokens.caches import register

# Enough for a few dozen agents with a few focuses each; at 20 KB a context that is 5 MB.
DEFAULT_CAPACITY = 256

_WITHOUT_CONTEXT = frozenset({CallKind.HEARTBEAT, CallKind.DELEGATION})


class PromptParts:
    """Prefixes and contexts, `capacity` of each; the least recently used is forgotten first.

    Safe to share between threads. Two that ask for the same thing at once may both build it, and get the same
    from then on: neither waits for the other, so a build that hangs or fails holds up nobody else.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        """Check the capacity; with 0 nothing is kept.

        Raises:
            BadOption: it is below 0.
        """
        if capacity < 0:
            raise BadOption(f"capacity is a number, 0 or more, not {capacity!r}", path=("capacity",))
        self._prefixes: Kept[PrefixInputs, Built] = Kept(capacity)
        self._contexts: Kept[ContextInputs, Built] = Kept(capacity)
        register(self)

    def prefix(self, inputs: PrefixInputs) -> Built:
        """The prefix, rendered anew only for inputs that are not remembered."""
        found = self._prefixes.get(inputs)
        if found is not None:
            return found
        era = self._prefixes.era
        return _remembered(self._prefixes, inputs, render_prefix(inputs), era)

    def context(self, kind: str, inputs: ContextInputs, build: Callable[[ContextInputs], str | None]) -> Built:
        """The context section, its text made by `build` only for inputs that are not remembered.

        No section for a heartbeat or a delegation. Where `build` gives None, or raises a FoveateError or an
        OSError, the section is a placeholder, a warning says why, and the next call tries again.

        Raises:
            BadOption: there is no such kind of call, or what `build` gives is no text.
        """
        if chosen(CallKind, kind, ("kind",)) in _WITHOUT_CONTEXT:
            return Built(sections=(), warnings=(), fresh=False)
        found = self._contexts.get(inputs)
        if found is not None:
            return found
        era = self._contexts.era
        text = _asked(build, inputs)
        built = render_context(inputs, text)
        if isinstance(text, Missing):
            return built
        return _remembered(self._contexts, inputs, built, era)

    def drop(self) -> None:
        """Forget every prefix and context, also those that are being built now.

        Counters remember the texts that they have measured; `foveate.tokens.drop_caches` forgets those as well.
        """
        self._prefixes.drop()
        self._contexts.drop()


def _asked(build: Callable[[ContextInputs], str | None], inputs: ContextInputs) -> str | Missing:
    try:
        text = build(inputs)
    except FoveateError as error:
        return Missing("context", str(error) or error.code)
    except OSError as error:
        return Missing("context", str(error) or type(error).__name__)
    return Missing("context", "there is no memory to show") if text is None else text


Inputs = TypeVar("Inputs", PrefixInputs, ContextInputs)


def _remembered(kept: Kept[Inputs, Built], inputs: Inputs, built: Built, era: int) -> Built:
    """`built`, kept as what later calls are given, unless another thread was first."""
    later = replace(built, fresh=False)
    held = kept.keep(inputs, later, era)
    return built if held is later else held

"""The prefix and the context of prompts, kept as long as what they are made from stays the same."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from foveate.budget.sections import parse_choice
from foveate.errors import BadOption, FoveateError
from foveate.prompt.inputs import CallKind, ContextInputs, PrefixInputs
from foveate.prompt.kept import BuildCache
from foveate.prompt.rendering import MissingPart, RenderedSections, render_context, render_prefix
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
        self._prefixes: BuildCache[PrefixInputs, RenderedSections] = BuildCache(capacity)
        self._contexts: BuildCache[ContextInputs, RenderedSections] = BuildCache(capacity)
        register(self)

    def prefix(self, inputs: PrefixInputs) -> RenderedSections:
        """The prefix, rendered anew only for inputs that are not remembered."""
        cached = self._prefixes.get(inputs)
        if cached is not None:
            return cached
        generation = self._prefixes.generation
        return _store(self._prefixes, inputs, render_prefix(inputs), generation)

    def context(
        self, kind: str, inputs: ContextInputs, build: Callable[[ContextInputs], str | None]
    ) -> RenderedSections:
        """The context section, its text made by `build` only for inputs that are not remembered.

        No section for a heartbeat or a delegation. Where `build` gives None, or raises a FoveateError or an
        OSError, the section is a placeholder, a warning says why, and the next call tries again.

        Raises:
            BadOption: there is no such kind of call, or what `build` gives is no text.
        """
        if parse_choice(CallKind, kind, ("kind",)) in _WITHOUT_CONTEXT:
            return RenderedSections(sections=(), warnings=(), fresh=False)
        cached = self._contexts.get(inputs)
        if cached is not None:
            return cached
        generation = self._contexts.generation
        text = _build_text(build, inputs)
        built = render_context(inputs, text)
        if isinstance(text, MissingPart):
            return built
        return _store(self._contexts, inputs, built, generation)

    def clear(self) -> None:
        """Forget every prefix and context, also those that are being built now.

        Counters remember the texts that they have measured; `foveate.tokens.drop_caches` forgets those as well.
        """
        self._prefixes.clear()
        self._contexts.clear()


def _build_text(build: Callable[[ContextInputs], str | None], inputs: ContextInputs) -> str | MissingPart:
    try:
        text = build(inputs)
    except FoveateError as error:
        return MissingPart("context", str(error) or error.code)
    except OSError as error:
        return MissingPart("context", str(error) or type(error).__name__)
    return MissingPart("context", "there is no memory to show") if text is None else text


PartInputs = TypeVar("PartInputs", PrefixInputs, ContextInputs)


def _store(
    cache: BuildCache[PartInputs, RenderedSections],
    inputs: PartInputs,
    built: RenderedSections,
    generation: int,
) -> RenderedSections:
    """`built`, kept as what later calls are given, unless another thread was first."""
    cached = replace(built, fresh=False)
    current = cache.put_if_absent(inputs, cached, generation)
    return built if current is cached else current

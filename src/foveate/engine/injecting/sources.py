"""Where sections come from: files that are read beside the event loop, and kept until they change."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from foveate.budget.budgets import Budget
from foveate.budget.sections import Priority, Section, Stability
from foveate.config.budgets import AgentBudget, load_agent_budget
from foveate.engine.injecting.options import EmbeddingOptions, MemoryOptions, SectionOptions
from foveate.errors import BadOption, FoveateError
from foveate.memory.gate import Gate
from foveate.prompt.inputs import ContextInputs
from foveate.prompt.parts import PromptParts
from foveate.prompt.rendering import NO_PROJECTS, Built
from foveate.prompt.workspace import Bundle, Workspace, WorkspaceCounts, Workspaces

if TYPE_CHECKING:
    from foveate.memory.memory import Memory
    from foveate.memory.relevance import Index
    from foveate.memory.skills import Capabilities
    from foveate.tokens.gauge import TextCounter

_LOG = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often a memory and a folder of skills are looked at, while requests come: they are not watched."""

PATIENCE_SECONDS = 10.0
"""How long a request waits for what it is to be given; what comes later is there for the next one."""

OWN_BUDGET = "budget.yaml"
"""The file in its workspace in which an agent limits its sections itself."""

_HEADING = "## Memory\n\n"
_TOLD_PROBLEMS = 3
_FEW_TOKENS = 100
_MOST_KEPT = 256
_MOST_WATCHERS = 16  # each has a thread

_MemoryKey = tuple[tuple[str, ...], frozenset[str], EmbeddingOptions | None, bool]
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Sections, what tells them from those that were there before, and what is wrong with them."""

    sections: tuple[Section, ...] = ()
    version: str = ""
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A memory as far as it can be had."""

    memory: "Memory | None"
    at: float
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    source: Source
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _OwnLimits:
    found: AgentBudget
    at: float


class Sources:
    """The files of all agents. `clock` gives seconds and never goes back."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._workspaces: dict[tuple[frozenset[str], float, float], Workspaces] = {}
        self._bundles: dict[tuple[Workspace, frozenset[str]], tuple[Bundle, Source]] = {}
        self._skills: dict[tuple[str, frozenset[str]], _Looked] = {}
        self._logs: dict[tuple[tuple[str, ...], int, frozenset[str]], _Looked] = {}
        self._memories: dict[_MemoryKey, Looked] = {}
        self._budgets: dict[tuple[str, int], _OwnLimits] = {}
        self._under_way: dict[Hashable, tuple[asyncio.Future[Any], float]] = {}
        self._contexts = PromptParts()

    def close(self) -> None:
        """Watch no longer."""
        for workspaces in self._workspaces.values():
            workspaces.close()

    async def warm(self, options: Iterable[SectionOptions]) -> None:
        """Read beforehand what requests will need."""
        for one in options:
            with suppress(Exception):  # whoever needs it is told
                await self.workspace(one)
                if one.memory is not None:
                    await self.memory(one.memory, one.privacy_tags)

    def counts(self) -> Mapping[str, WorkspaceCounts]:
        """How often bundles were kept, read and dropped, by the folder of their workspace."""
        found: dict[str, WorkspaceCounts] = {}
        for workspaces in list(self._workspaces.values()):
            for root, counts in workspaces.counts().items():
                before = found.get(root, WorkspaceCounts())
                found[root] = WorkspaceCounts(
                    hits=before.hits + counts.hits,
                    misses=before.misses + counts.misses,
                    invalidations=before.invalidations + counts.invalidations,
                )
        return found

    async def workspace(self, options: SectionOptions, until: float | None = None) -> Source:
        """The files of a workspace, as they are now; those that cannot be had, as they were."""
        if options.workspace is None:
            return Source()
        tags, cache = options.privacy_tags, options.workspace_cache
        key = (tags, cache.watch_debounce_ms, cache.max_age_seconds)
        kept = self._workspaces.get(key)
        if kept is None:
            made = Workspaces(Gate(tags), replace(cache, enabled=True))
            kept = self._workspaces.setdefault(key, made)
            if (gone := _too_many(self._workspaces, _MOST_WATCHERS)) is not None:
                gone.close()
        workspace, is_on = options.workspace, cache.enabled
        bundle = kept.kept(workspace) if is_on else None
        if bundle is None:
            read = partial(asyncio.to_thread, kept.bundle, workspace, enabled=is_on)
            bundle = await self.once((kept, workspace), read, until)
        at = (workspace, options.privacy_tags)
        known = self._bundles.get(at)
        if known is not None and known[0] is bundle:
            return known[1]
        source = Source(
            sections=bundle.sections, version=bundle.version, troubles=tuple(map(str, bundle.warnings))
        )
        if source.troubles and (known is None or known[1].troubles != source.troubles):
            _LOG.warning("workspace %s: %s", workspace.root, "; ".join(source.troubles))
        self._bundles[at] = (bundle, source)
        _too_many(self._bundles)
        return source

    def last_workspace(self, options: SectionOptions) -> Source:
        """The files of a workspace as they were when they were last read; nothing where they never were."""
        if options.workspace is None:
            return Source()
        known = self._bundles.get((options.workspace, options.privacy_tags))
        return known[1] if known is not None else Source()

    def bundle(self, options: SectionOptions) -> Bundle | None:
        """The files of a workspace themselves, as they were when they were last read."""
        known = self._bundles.get((options.workspace, options.privacy_tags)) if options.workspace else None
        return known[0] if known is not None else None

    async def skills(self, options: SectionOptions, until: float | None = None) -> Source:
        """What an agent can do, a line for each skill; where the folder is gone, as it was."""
        if options.skills is None:
            return Source()
        key = (options.skills, options.privacy_tags)
        known = self._skills.get(key)
        if known is None or self._clock() - known.at >= LOOK_SECONDS:
            found = await self.once(key, partial(asyncio.to_thread, _capabilities, *key), until)
            known = _Looked(source=_skills_of(found, known), at=self._clock())
            self._skills[key] = known
            _too_many(self._skills)
        return known.source

    async def logs(self, options: SectionOptions, until: float | None = None) -> Source:
        """The newest lines of an agent's logs; of several files, each below its name."""
        if not options.logs:
            return Source()
        key = (options.logs, options.log_lines, options.privacy_tags)
        known = self._logs.get(key)
        if known is None or self._clock() - known.at >= LOOK_SECONDS:
            source = await self.once(("logs", *key), partial(asyncio.to_thread, _log_tails, *key), until)
            known = _Looked(source=source, at=self._clock())
            self._logs[key] = known
            _too_many(self._logs)
        return known.source

    async def own_limits(
        self, options: SectionOptions, until: float | None = None
    ) -> tuple[SectionOptions, tuple[str, ...]]:
        """The options with the limits that the agent has written itself, within those that are allowed.

        Also, in words, what is wrong with its file, or is not allowed.
        """
        if options.workspace is None:
            return options, ()
        key = (options.workspace.root, options.limits_key)
        known = self._budgets.get(key)
        if known is None or self._clock() - known.at >= LOOK_SECONDS:
            read = partial(asyncio.to_thread, _own_budget, options.workspace.root, options)
            found = await self.once(("budget", *key), read, until)
            known = _OwnLimits(found=found, at=self._clock())
            self._budgets[key] = known
            _too_many(self._budgets)
        own = known.found
        if own.budget is options.limits and own.problem is None and not own.clamped:
            return options, ()
        told = (*((str(own.problem),) if own.problem is not None else ()), *own.clamped)
        return (options if own.budget == options.limits else replace(options, limits=own.budget)), told

    async def memory(self, options: MemoryOptions, tags: frozenset[str], until: float | None = None) -> Looked:
        """A memory, read again where something in it has changed since it was last looked at."""
        key = (options.paths, tags, options.embeddings, options.follow_symlinks)
        known = self._memories.get(key)
        if known is not None and self._clock() - known.at < LOOK_SECONDS:
            return known
        return await self.once(key, lambda: self._look(key, known), until)

    async def once(
        self, key: Hashable, make: Callable[[], Coroutine[None, None, Value]], until: float | None
    ) -> Value:
        """What is made, once for all who wait for it; it goes on where nobody waits any longer.

        So a disk that hangs has one thread wait for it, and not one for each request.

        Nothing is waited for beyond `until`, a time of the event loop.

        Raises:
            TimeoutError: it takes longer, or is under way for longer already than anybody waits.
        """
        known = self._under_way.get(key)
        if known is None:
            known = self._under_way[key] = (asyncio.ensure_future(make()), self._clock())
            known[0].add_done_callback(lambda ended: self._ended(key, ended))
        task, since = known
        if self._clock() - since > PATIENCE_SECONDS:
            raise TimeoutError  # others have waited for it already, and in vain
        async with asyncio.timeout_at(until):
            found: Value = await asyncio.shield(task)
        return found

    def _ended(self, key: Hashable, task: "asyncio.Future[Any]") -> None:
        self._under_way.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever still waits is told

    async def _look(self, key: _MemoryKey, known: Looked | None) -> Looked:
        memory = known.memory if known is not None else None
        try:
            memory, trouble = await asyncio.to_thread(_looked_at, *key, memory)
        except FoveateError as error:
            memory, trouble = None, str(error)
        if trouble and (known is None or known.trouble != trouble):
            _LOG.warning("memory: %s", trouble)
        found = Looked(memory=memory, at=self._clock(), trouble=trouble)
        self._memories[key] = found
        _too_many(self._memories)
        return found

    async def context(
        self,
        kind: str,
        looked: Looked,
        inputs: ContextInputs,
        counter: "TextCounter",
        until: float | None = None,
    ) -> tuple[Section | None, str]:
        """What is shown of a memory, rendered beside the event loop where it is new; or why nothing is.

        A memory without any notes is not trouble: nothing is shown of it.
        """
        if looked.memory is None:
            return None, looked.trouble
        memory = looked.memory
        built = self._contexts.context(kind, inputs, _kept_only)
        if built.warnings and built.warnings[0].reason == _NOT_KEPT:
            render = partial(asyncio.to_thread, self._rendered, kind, memory, inputs, counter)
            built = await self.once((memory, inputs), render, until)
        if not built.sections or built.warnings:
            nothing = bool(built.sections) and built.sections[0].text == NO_PROJECTS
            return None, "" if nothing else "; ".join(map(str, built.warnings))
        text = _HEADING + built.sections[0].text
        return Section("context", text, priority=Priority.HIGH, stability=Stability.TURN), looked.trouble

    def _rendered(self, kind: str, memory: "Memory", inputs: ContextInputs, counter: "TextCounter") -> Built:
        from foveate.prompt.showing import showing

        return self._contexts.context(
            kind, inputs, showing(memory, counters=lambda _: counter, finished_projects=False)
        )


def _too_many(kept: dict[Key, Value], most: int = _MOST_KEPT) -> Value | None:
    """The oldest, taken out, where a configuration that changed again and again has left too many."""
    return kept.pop(next(iter(kept))) if len(kept) > most else None


_NOT_KEPT = "is not kept"


def _kept_only(_: ContextInputs) -> str:
    raise BadOption(_NOT_KEPT)


def _looked_at(
    paths: tuple[str, ...],
    tags: frozenset[str],
    embeddings: EmbeddingOptions | None,
    follow_symlinks: bool,
    memory: "Memory | None",
) -> "tuple[Memory, str]":
    from foveate.memory.memory import Memory

    if memory is None:
        memory = Memory.load(*paths, private=tags, index=_index(embeddings), follow_symlinks=follow_symlinks)
        # What is only made when something is looked for takes as long as the reading.
        memory.render(query="begin", limit_tokens=_FEW_TOKENS)
    else:
        memory.refresh()
    return memory, "; ".join(map(str, memory.problems[:_TOLD_PROBLEMS]))


def _index(embeddings: EmbeddingOptions | None) -> "Index | None":
    """What finds the relevant notes: by a server's vectors, or None for those that come with Foveate."""
    if embeddings is None:
        return None
    from foveate.memory.endpoint import EndpointEmbedder
    from foveate.memory.relevance import Index

    embedder = EndpointEmbedder(
        embeddings.url, embeddings.model, api_key=embeddings.key, dimensions=embeddings.dimensions
    )
    return Index(lambda: embedder)


def _own_budget(root: str, options: SectionOptions) -> AgentBudget:
    limits = options.limits
    allowed = Budget(options.total_tokens, 0, limits.ladder, sections=limits.sections)
    found = load_agent_budget(Path(root) / OWN_BUDGET, defaults=allowed, allowed=allowed)
    return replace(found, budget=limits) if found.budget == allowed else found


def _capabilities(folder: str, tags: frozenset[str]) -> "Capabilities":
    from foveate.memory.skill_folder import read_capabilities

    return read_capabilities(folder, Gate(tags))


def _log_tails(paths: tuple[str, ...], lines: int, tags: frozenset[str]) -> Source:
    from foveate.memory.logs import log_tail

    items: list[str] = []
    troubles: list[str] = []
    for path in paths:
        tail = log_tail(path, lines, gate=Gate(tags))
        troubles += tail.warnings
        if tail.lines:
            items += [f"Log {Path(path).name}:"] if len(paths) > 1 else []
            items += tail.lines
    if not items:
        return Source(troubles=tuple(troubles))
    section = Section("logs", items=items, priority=Priority.LOW, stability=Stability.TURN)
    return Source(sections=(section,), version=section.text, troubles=tuple(troubles))


def _skills_of(found: "Capabilities", known: "_Looked | None") -> Source:
    if not found.skills:
        # A folder that is gone for a moment takes no skills away; one that is empty does.
        kept = known.source if known is not None and found.warnings else Source()
        return replace(kept, troubles=found.warnings)
    section = Section(
        "skills",
        items=found.text.splitlines(),
        priority=Priority.MEDIUM,
        keep="head",
        stability=Stability.STATIC,
    )
    return Source(sections=(section,), version=section.text, troubles=found.warnings)

"""Sources of sections: files that are read in threads, and cached until they change."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from foveate.budget.budget import Budget
from foveate.budget.sections import Priority, Section, Stability
from foveate.config.budget_files import AgentBudget, load_agent_budget
from foveate.context.sections import NO_PROJECTS, ContextInputs, PromptParts, RenderedSections
from foveate.context.workspace_cache import Bundle, Workspace, WorkspaceCache, WorkspaceCacheStats
from foveate.engine.options import EmbeddingOptions, MemoryOptions, SectionOptions
from foveate.errors import BadOption, FoveateError
from foveate.http.proxies import ProxyRules
from foveate.memory.privacy import Gate
from foveate.store.thread_pool import DaemonThreadPool

if TYPE_CHECKING:
    from foveate.memory.memory import Memory
    from foveate.memory.search.relevance import Index
    from foveate.memory.skills import Capabilities
    from foveate.tokens.text_meter import TextCounter

_LOG = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0
"""Interval at which memories and skills are checked for changes while requests arrive."""

SOURCE_TIMEOUT_SECONDS = 10.0
"""Maximum time that a request waits for its sources; later results are used by the next request."""

AGENT_BUDGET_FILE = "budget.yaml"
"""The file in its workspace in which an agent limits its own sections."""

_MEMORY_HEADING = "## Memory\n\n"
_MAX_PROBLEMS = 3
_WARM_UP_TOKENS = 100
_MAX_CACHED = 256
_MAX_WATCHERS = 16  # each has a thread
_EMBEDDING_THREADS = 4

_MemoryKey = tuple[tuple[str, ...], frozenset[str], EmbeddingOptions | None, bool]
Key = TypeVar("Key")
Value = TypeVar("Value")
_NOT_CACHED = "is not cached"


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionSource:
    sections: tuple[Section, ...] = ()
    version: str = ""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedMemory:
    memory: "Memory | None"
    at: float
    problem: str = ""
    embeddings: EmbeddingOptions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadedSource:
    source: SectionSource
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadedBudget:
    agent_budget: AgentBudget
    at: float


class SectionSources:
    """The files of all agents. `clock` is monotonic; `proxies` lead to servers of embeddings."""

    def __init__(self, clock: Callable[[], float] = monotonic, *, proxies: ProxyRules | None = None) -> None:
        self._clock = clock
        self._proxies = proxies
        self._workspaces: dict[tuple[frozenset[str], float, float], WorkspaceCache] = {}
        self._bundles: dict[tuple[Workspace, frozenset[str]], tuple[Bundle, SectionSource]] = {}
        self._skills: dict[tuple[str, frozenset[str]], _LoadedSource] = {}
        self._logs: dict[tuple[tuple[str, ...], int, frozenset[str]], _LoadedSource] = {}
        self._memories: dict[_MemoryKey, LoadedMemory] = {}
        self._budgets: dict[tuple[str, int], _LoadedBudget] = {}
        self._loading: dict[Hashable, tuple[asyncio.Future[Any], float]] = {}
        self._contexts = PromptParts()
        self._embedding_threads: dict[str, DaemonThreadPool] = {}

    def close(self) -> None:
        for threads in self._embedding_threads.values():
            threads.shut_down(0)
        for workspaces in self._workspaces.values():
            workspaces.close()

    async def preload(self, options: Iterable[SectionOptions]) -> None:
        for section_options in options:
            with suppress(Exception):  # reported to the request that needs it
                await self.workspace(section_options)
                if section_options.memory is not None:
                    await self.memory(section_options.memory, section_options.privacy_tags)

    def workspace_counts(self) -> Mapping[str, WorkspaceCacheStats]:
        totals: dict[str, WorkspaceCacheStats] = {}
        for workspaces in list(self._workspaces.values()):
            for root, counts in workspaces.stats().items():
                total = totals.get(root, WorkspaceCacheStats())
                totals[root] = WorkspaceCacheStats(
                    hits=total.hits + counts.hits,
                    misses=total.misses + counts.misses,
                    invalidations=total.invalidations + counts.invalidations,
                )
        return totals

    async def workspace(self, options: SectionOptions, deadline: float | None = None) -> SectionSource:
        """Load a workspace; files that cannot be read keep their last content."""
        if options.workspace is None:
            return SectionSource()
        tags, cache = options.privacy_tags, options.workspace_cache
        key = (tags, cache.watch_debounce_ms, cache.max_age_seconds)
        workspaces = self._workspaces.get(key)
        if workspaces is None:
            created = WorkspaceCache(Gate(tags), replace(cache, enabled=True))
            workspaces = self._workspaces.setdefault(key, created)
            if (removed := _evict_oldest(self._workspaces, _MAX_WATCHERS)) is not None:
                removed.close()
        workspace, is_cached = options.workspace, cache.enabled
        bundle = workspaces.cached_bundle(workspace) if is_cached else None
        if bundle is None:
            read = partial(asyncio.to_thread, workspaces.bundle, workspace, enabled=is_cached)
            bundle = await self.load_once((workspaces, workspace), read, deadline)
        bundle_key = (workspace, options.privacy_tags)
        cached = self._bundles.get(bundle_key)
        if cached is not None and cached[0] is bundle:
            return cached[1]
        source = SectionSource(
            sections=bundle.sections, version=bundle.version, problems=tuple(map(str, bundle.warnings))
        )
        if source.problems and (cached is None or cached[1].problems != source.problems):
            _LOG.warning("workspace %s: %s", workspace.root, "; ".join(source.problems))
        self._bundles[bundle_key] = (bundle, source)
        _evict_oldest(self._bundles)
        return source

    def last_workspace(self, options: SectionOptions) -> SectionSource:
        if options.workspace is None:
            return SectionSource()
        cached = self._bundles.get((options.workspace, options.privacy_tags))
        return cached[1] if cached is not None else SectionSource()

    def bundle(self, options: SectionOptions) -> Bundle | None:
        cached = self._bundles.get((options.workspace, options.privacy_tags)) if options.workspace else None
        return cached[0] if cached is not None else None

    async def skills(self, options: SectionOptions, deadline: float | None = None) -> SectionSource:
        """Load an agent's skills, one line each; if the folder has vanished, their last content."""
        if options.skills is None:
            return SectionSource()
        key = (options.skills, options.privacy_tags)
        cached = self._skills.get(key)
        if cached is None or self._clock() - cached.at >= REFRESH_SECONDS:
            capabilities = await self.load_once(
                key, partial(asyncio.to_thread, _read_capabilities, *key), deadline
            )
            cached = _LoadedSource(source=_skills_source(capabilities, cached), at=self._clock())
            self._skills[key] = cached
            _evict_oldest(self._skills)
        return cached.source

    async def logs(self, options: SectionOptions, deadline: float | None = None) -> SectionSource:
        if not options.logs:
            return SectionSource()
        key = (options.logs, options.log_lines, options.privacy_tags)
        cached = self._logs.get(key)
        if cached is None or self._clock() - cached.at >= REFRESH_SECONDS:
            source = await self.load_once(
                ("logs", *key), partial(asyncio.to_thread, _read_log_tails, *key), deadline
            )
            cached = _LoadedSource(source=source, at=self._clock())
            self._logs[key] = cached
            _evict_oldest(self._logs)
        return cached.source

    async def with_own_limits(
        self, options: SectionOptions, deadline: float | None = None
    ) -> tuple[SectionOptions, tuple[str, ...]]:
        """Apply the limits in the agent's own file, as far as they are allowed.

        Also returns the problems of the file and what is not allowed.
        """
        if options.workspace is None:
            return options, ()
        key = (options.workspace.root, options.limits_key)
        cached = self._budgets.get(key)
        if cached is None or self._clock() - cached.at >= REFRESH_SECONDS:
            read = partial(asyncio.to_thread, _load_agent_budget, options.workspace.root, options)
            agent_budget = await self.load_once(("budget", *key), read, deadline)
            cached = _LoadedBudget(agent_budget=agent_budget, at=self._clock())
            self._budgets[key] = cached
            _evict_oldest(self._budgets)
        budget = cached.agent_budget
        if budget.budget is options.limits and budget.problem is None and not budget.clamped:
            return options, ()
        problems = (*((str(budget.problem),) if budget.problem is not None else ()), *budget.clamped)
        return (
            options if budget.budget == options.limits else replace(options, limits=budget.budget)
        ), problems

    async def memory(
        self, options: MemoryOptions, tags: frozenset[str], deadline: float | None = None
    ) -> LoadedMemory:
        """Load a memory, or refresh it if it has changed."""
        key = (options.paths, tags, options.embeddings, options.follow_symlinks)
        cached = self._memories.get(key)
        if cached is not None and self._clock() - cached.at < REFRESH_SECONDS:
            return cached
        return await self.load_once(key, lambda: self._load_memory(key, cached), deadline)

    async def run_on_memory(
        self, embeddings: EmbeddingOptions | None, work: Callable[[], Value], deadline: float | None = None
    ) -> Value:
        """Run work on a memory in a thread.

        Work that may wait for a server of embeddings has threads of its own, so that everything else goes on if
        the server hangs.

        Raises:
            TimeoutError: the server has not responded before the deadline.
        """
        if embeddings is None:
            return await asyncio.to_thread(work)
        threads = self._embedding_threads.get(embeddings.url)
        if threads is None:
            threads = DaemonThreadPool(_EMBEDDING_THREADS, "foveate-embeddings")
            self._embedding_threads[embeddings.url] = threads
        async with asyncio.timeout_at(deadline):
            return await threads.run(work)

    async def load_once(
        self, key: Hashable, load: Callable[[], Coroutine[None, None, Value]], deadline: float | None
    ) -> Value:
        """Run `load` once for all who wait for it; it continues if nobody waits any longer.

        So a hanging disk blocks one thread, and not one per request. Nobody waits beyond `deadline`, a time of
        the event loop.

        Raises:
            TimeoutError: the deadline has passed, or the load has been running for too long already.
        """
        running = self._loading.get(key)
        if running is None:
            running = self._loading[key] = (asyncio.ensure_future(load()), self._clock())
            running[0].add_done_callback(lambda finished: self._on_loaded(key, finished))
        task, started_at = running
        if self._clock() - started_at > SOURCE_TIMEOUT_SECONDS:
            raise TimeoutError  # others have waited for it in vain
        async with asyncio.timeout_at(deadline):
            loaded: Value = await asyncio.shield(task)
        return loaded

    def _on_loaded(self, key: Hashable, task: "asyncio.Future[Any]") -> None:
        self._loading.pop(key, None)
        if not task.cancelled():
            task.exception()  # reported to whoever still waits

    async def _load_memory(self, key: _MemoryKey, cached: LoadedMemory | None) -> LoadedMemory:
        memory = cached.memory if cached is not None else None
        embeddings = key[2]
        try:
            load = partial(_load_or_refresh, *key, memory, self._proxies)
            memory, problem = await self.run_on_memory(embeddings, load)
        except FoveateError as error:
            memory, problem = None, str(error)
        if problem and (cached is None or cached.problem != problem):
            _LOG.warning("memory: %s", problem)
        loaded = LoadedMemory(memory=memory, at=self._clock(), problem=problem, embeddings=embeddings)
        self._memories[key] = loaded
        _evict_oldest(self._memories)
        return loaded

    async def memory_section(
        self,
        kind: str,
        loaded: LoadedMemory,
        inputs: ContextInputs,
        counter: "TextCounter",
        deadline: float | None = None,
    ) -> tuple[Section | None, str]:
        """Render a memory, in a thread if it is new. Returns None and the reason if nothing can be shown.

        A memory without notes is not a problem: it has no section.
        """
        if loaded.memory is None:
            return None, loaded.problem
        memory = loaded.memory
        built = self._contexts.context(kind, inputs, _only_cached)
        if built.warnings and built.warnings[0].reason == _NOT_CACHED:
            render = partial(self._render, kind, memory, inputs, counter)
            built = await self.load_once(
                (memory, inputs), partial(self.run_on_memory, loaded.embeddings, render, deadline), deadline
            )
        if not built.sections or built.warnings:
            is_empty = bool(built.sections) and built.sections[0].text == NO_PROJECTS
            return None, "" if is_empty else "; ".join(map(str, built.warnings))
        text = _MEMORY_HEADING + built.sections[0].text
        return Section("context", text, priority=Priority.HIGH, stability=Stability.TURN), loaded.problem

    def _render(
        self, kind: str, memory: "Memory", inputs: ContextInputs, counter: "TextCounter"
    ) -> RenderedSections:
        from foveate.context.sections import memory_context_builder

        return self._contexts.context(
            kind, inputs, memory_context_builder(memory, counters=lambda _: counter, finished_projects=False)
        )


def _evict_oldest(entries: dict[Key, Value], limit: int = _MAX_CACHED) -> Value | None:
    """Configurations that change often leave many entries."""
    return entries.pop(next(iter(entries))) if len(entries) > limit else None


def _only_cached(_: ContextInputs) -> str:
    raise BadOption(_NOT_CACHED)


def _load_or_refresh(
    paths: tuple[str, ...],
    tags: frozenset[str],
    embeddings: EmbeddingOptions | None,
    follow_symlinks: bool,
    memory: "Memory | None",
    proxies: ProxyRules | None,
) -> "tuple[Memory, str]":
    from foveate.memory.memory import Memory

    if memory is None:
        memory = Memory.load(
            *paths, private=tags, index=_embedding_index(embeddings, proxies), follow_symlinks=follow_symlinks
        )
        try:
            # The index is built by the first query, which takes as long as reading.
            memory.render(query="begin", limit_tokens=_WARM_UP_TOKENS)
        except FoveateError as error:  # projects and deadlines are known without an index
            return memory, str(error)
    else:
        memory.refresh()
    return memory, "; ".join(map(str, memory.problems[:_MAX_PROBLEMS]))


def _embedding_index(embeddings: EmbeddingOptions | None, proxies: ProxyRules | None) -> "Index | None":
    """The index of a server's embeddings, None for the built-in ones."""
    if embeddings is None:
        return None
    from foveate.memory.search.embeddings import EndpointEmbedder
    from foveate.memory.search.relevance import Index

    embedder = EndpointEmbedder(
        embeddings.url,
        embeddings.model,
        api_key=embeddings.key,
        dimensions=embeddings.dimensions,
        proxies=proxies,
    )
    return Index(lambda: embedder)


def _load_agent_budget(root: str, options: SectionOptions) -> AgentBudget:
    limits = options.limits
    allowed = Budget(options.total_tokens, 0, limits.ladder, sections=limits.sections)
    agent_budget = load_agent_budget(Path(root) / AGENT_BUDGET_FILE, defaults=allowed, allowed=allowed)
    return replace(agent_budget, budget=limits) if agent_budget.budget == allowed else agent_budget


def _read_capabilities(folder: str, tags: frozenset[str]) -> "Capabilities":
    from foveate.memory.skills import read_capabilities

    return read_capabilities(folder, Gate(tags))


def _read_log_tails(paths: tuple[str, ...], lines: int, tags: frozenset[str]) -> SectionSource:
    from foveate.memory.log_tail import read_log_tail

    items: list[str] = []
    problems: list[str] = []
    for path in paths:
        tail = read_log_tail(path, lines, gate=Gate(tags))
        problems += tail.warnings
        if tail.lines:
            items += [f"Log {Path(path).name}:"] if len(paths) > 1 else []
            items += tail.lines
    if not items:
        return SectionSource(problems=tuple(problems))
    section = Section("logs", items=items, priority=Priority.LOW, stability=Stability.TURN)
    return SectionSource(sections=(section,), version=section.text, problems=tuple(problems))


def _skills_source(capabilities: "Capabilities", cached: "_LoadedSource | None") -> SectionSource:
    if not capabilities.skills:
        # A folder that vanishes for a moment keeps its skills. Those of a readable one were removed, or are
        # private now.
        source = cached.source if cached is not None and not capabilities.is_readable else SectionSource()
        return replace(source, problems=capabilities.warnings)
    section = Section(
        "skills",
        items=capabilities.text.splitlines(),
        priority=Priority.MEDIUM,
        keep="head",
        stability=Stability.STATIC,
    )
    return SectionSource(sections=(section,), version=section.text, problems=capabilities.warnings)

"""The list of agents, and the page of one agent: features, models, caps, sections and workspace."""

import asyncio
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial

from foveate.budget.budget import SectionRule
from foveate.budget.ladder import Drop, Ladder, LastLines, Replace, Rung, Truncate
from foveate.budget.model_limits import find_context_window
from foveate.compaction.overflow import OnOverflow
from foveate.config.settings import AgentSettings, Settings
from foveate.context.sections import DEFAULT_MODEL
from foveate.context.workspace import Bundle
from foveate.context.workspace_cache import WorkspaceCacheStats, read_bundle
from foveate.engine.counting.offline_counters import offline_counter
from foveate.engine.options import AgentOptions, Clearing, SectionOptions
from foveate.engine.sections.sources import AGENT_BUDGET_FILE, SectionSources
from foveate.memory.privacy import Gate
from foveate.session.rollups import TotalsGroup
from foveate.tokens.offline_counters import Backend, CounterOptions
from foveate.web.formatting import format_count, format_number, format_percent, shorten_name
from foveate.web.page import ConfigSnapshot, GatewayData, PageNotFound, PageRequest, Viewer, WebPage
from foveate.web.spending import (
    NO_SPENDING,
    TODAY,
    WEEK,
    SpendingTotals,
    TotalsRows,
    group_by_first,
    list_agent_cap_usage,
    resolve_time_range,
    sum_spending,
)

# Requests wait longer than pages.
_FILES_TIMEOUT_SECONDS = 1.0
# Counting more would take too long for a page.
_MAX_COUNTED_CHARS = 400_000
_MAX_NAME_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceFile:
    """A workspace file: its path from the root, its size and its modification time.

    `tokens` is None if the files are too long to count for a page, and `changed_at` if the file is gone.
    """

    name: str
    path: str
    chars: int
    tokens: int | None
    changed_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceListing:
    root: str
    scope: str
    files: Sequence[WorkspaceFile]
    problems: Sequence[str]
    counts: WorkspaceCacheStats

    @property
    def chars(self) -> int:
        return sum(file.chars for file in self.files)

    @property
    def tokens(self) -> int | None:
        """None if the tokens of any file are unknown."""
        known = [file.tokens for file in self.files if file.tokens is not None]
        return sum(known) if len(known) == len(self.files) else None


async def load_workspace(
    sources: SectionSources, options: SectionOptions, counter: CounterOptions, model: str
) -> WorkspaceListing | None:
    """Load what an agent's requests would contain of its workspace now; None if it has none.

    This does not count as a request, and a hanging disk blocks at most one thread.
    """
    workspace = options.workspace
    if workspace is None:
        return None
    deadline = asyncio.get_running_loop().time() + _FILES_TIMEOUT_SECONDS
    files: Sequence[WorkspaceFile] = ()
    known, gate = sources.bundle(options), Gate(options.privacy_tags)

    def read() -> tuple[Sequence[WorkspaceFile], Sequence[str]]:
        bundle = read_bundle(workspace, gate, known)
        return _list_files(bundle, counter, model), tuple(map(str, bundle.warnings))

    try:
        key = ("page", workspace, gate.tags, counter, model)
        files, problems = await sources.load_once(key, lambda: asyncio.to_thread(read), deadline)
    except TimeoutError:
        problems = (f"{workspace.root}: reading the files takes long",)
    return WorkspaceListing(
        root=workspace.root,
        scope=workspace.scope,
        files=files,
        problems=problems,
        counts=sources.workspace_counts().get(workspace.root, WorkspaceCacheStats()),
    )


def _list_files(bundle: Bundle, options: CounterOptions, model: str) -> Sequence[WorkspaceFile]:
    counter = offline_counter(options, model)
    files = [file for file in bundle.files if file.text]
    is_short = sum(len(file.text) for file in files) <= _MAX_COUNTED_CHARS
    return [
        WorkspaceFile(
            name=file.name,
            path=file.path,
            chars=len(file.text),
            tokens=counter.text(file.text).tokens if is_short else None,
            changed_at=_modified_at(bundle.workspace.root, file.path),
        )
        for file in files
    ]


def _modified_at(root: str, path: str) -> float | None:
    try:
        return os.stat(f"{root}/{path}").st_mtime  # noqa: PTH116 - the path is used exactly as it is
    except (OSError, ValueError):
        return None


_SET_FOR_AGENT = "this agent"
_SET_FOR_ALL = "all agents"

_CLEARING_TEXTS = {
    Clearing.OFF: "tool results are kept",
    Clearing.COLD: "old tool results are cleared once the prompt cache has expired",
    Clearing.COST: "old tool results are cleared whenever that is expected to save money",
}
_OVERFLOW_TEXTS = {
    OnOverflow.MAKE_ROOM: "clears old tool results, then removes the oldest turns, each with a placeholder",
    OnOverflow.REJECT: "rejects requests that are certain to exceed the context window",
    OnOverflow.PASS: "sends requests that do not fit; the provider decides",
}
_BACKEND_TEXTS = {
    Backend.AUTO: "local count, corrected by reported usage; the upstream counts if that is not certain enough",
    Backend.OFFLINE: "local count, corrected by reported usage; no counting requests",
    Backend.ESTIMATE: "local estimate by character classes, corrected by reported usage; no counting requests",
    Backend.ENDPOINT: "the upstream's /tokenize counts every request",
    Backend.ANTHROPIC_API: "Anthropic's count_tokens counts every request",
    Backend.OPENAI_API: "OpenAI's input_tokens counts every request",
    Backend.GEMINI_API: "Gemini's countTokens counts every request",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFeature:
    """A feature: whether it is on, what that means, and who decided it.

    `chosen` is a value other than on and off.
    """

    name: str
    is_on: bool
    meaning: str
    decided_by: str = ""
    chosen: str = ""

    @property
    def state(self) -> str:
        return self.chosen or ("on" if self.is_on else "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionRuleRow:
    section: str
    rule: SectionRule


def list_features(
    options: AgentOptions, agent_settings: AgentSettings | None, settings: Settings
) -> list[AgentFeature]:
    return [
        *_list_cache_features(options, agent_settings),
        *_list_compaction_features(options, agent_settings),
        *_list_counting_features(options, agent_settings, settings),
    ]


def _list_cache_features(options: AgentOptions, agent_settings: AgentSettings | None) -> Iterator[AgentFeature]:
    is_on = options.prompt_cache
    ttl = options.placement.ttl
    long = ", ".join(sorted(options.long_ttl_providers)) or "no provider"
    lifetime = "5 minutes or 1 hour, chosen per session" if ttl is None else f"always {ttl.value}"
    tools = "also on the tools" if options.placement.cache_tools else "never on the tools"
    yield AgentFeature(
        name="Prompt cache",
        is_on=is_on,
        meaning=f"adds cache breakpoints that save money, {tools}; TTL: {lifetime} (1 hour only on {long})"
        if is_on
        else "adds no cache breakpoints",
        decided_by=_decided_by(
            agent_settings is not None and agent_settings.context_optimization.prompt_cache is not None
        ),
    )
    keep_alive = options.keep_alive
    sessions = format_count(keep_alive.max_sessions, "session")
    yield AgentFeature(
        name="Keep-alive",
        is_on=options.sends_keep_alive,
        meaning=f"at most {keep_alive.max_in_a_row} requests in a row, for {sessions} at once"
        if options.sends_keep_alive
        else "sends no keep-alive requests to the prompt cache",
        decided_by=_SET_FOR_ALL,
    )


def _list_compaction_features(
    options: AgentOptions, agent_settings: AgentSettings | None
) -> Iterator[AgentFeature]:
    is_on = options.compaction
    meaning = _describe_compaction(options) if is_on else "histories are sent unchanged"
    yield AgentFeature(
        name="Compaction",
        is_on=options.compacts,
        meaning=meaning if options.token_counter or not is_on else "inactive, because tokens are not counted",
        decided_by=_decided_by(
            agent_settings is not None and agent_settings.context_optimization.compaction is not None
        ),
    )
    yield AgentFeature(
        name="Clearing",
        is_on=options.clears,
        meaning=_CLEARING_TEXTS[options.clearing]
        if options.token_counter or options.clearing is Clearing.OFF
        else "inactive, because tokens are not counted",
        decided_by=_decided_by(
            agent_settings is not None and agent_settings.context_optimization.clearing is not None
        ),
        chosen=options.clearing.value,
    )
    policy = options.overflow_options.policy
    default_text = f"default {'with' if is_on else 'without'} compaction"
    yield AgentFeature(
        name="Overflow",
        is_on=options.token_counter and policy is not OnOverflow.PASS,
        meaning=_OVERFLOW_TEXTS[policy]
        if options.token_counter
        else "left to the provider, because tokens are not counted",
        decided_by=default_text if options.on_overflow is None else _SET_FOR_AGENT,
        chosen=policy.value.replace("_", " "),
    )
    if options.max_turns is not None:
        yield AgentFeature(
            name="Turn limit",
            is_on=True,
            meaning=f"only the last {format_number(options.max_turns)} turns are sent;"
            " a placeholder replaces older ones",
            decided_by=_SET_FOR_AGENT,
        )


def _describe_compaction(options: AgentOptions) -> str:
    compaction = options.compaction_options
    by = shorten_name(options.summarizer_model, _MAX_NAME_CHARS) or "the agent's own model"
    rules = ", or by rules if that fails" if compaction.extractive else ""
    earlier = ", or earlier if that is expected to save money" if options.compacts_by_cost else ""
    return (
        f"starts at {format_percent(compaction.compact_at_pct)} of the context window, minus the tokens"
        f" reserved for the response{earlier}; keeps the last {format_number(compaction.tail_keep_tokens)}"
        f" tokens; at least {format_count(compaction.min_turns_between, 'turn')} between two compactions;"
        f" summaries by {by}{rules}"
    )


def _list_counting_features(
    options: AgentOptions, agent_settings: AgentSettings | None, settings: Settings
) -> Iterator[AgentFeature]:
    counter, is_on = options.counter, options.token_counter
    asks = "; may use the upstream's tokenizer endpoint" if counter.use_endpoint else ""
    yield AgentFeature(
        name="Token counter",
        is_on=is_on,
        meaning=f"{counter.backend.value}: {_BACKEND_TEXTS[counter.backend]}{asks}"
        if is_on
        else "tokens are not counted: the provider enforces the window, and calls under caps are rejected",
        decided_by=_decided_by(
            agent_settings is not None and agent_settings.context_optimization.token_counter is not None
        ),
    )
    yield AgentFeature(
        name="Long tool results",
        is_on=options.compacts,
        meaning=f"shortened if longer than {format_percent(options.tool_result_max_pct)} of the context window"
        if options.compacts
        else f"sent unchanged, because {'compaction is off' if is_on else 'tokens are not counted'}",
        decided_by=_SET_FOR_ALL,
    )
    own_setting = agent_settings.context_optimization.workspace_cache if agent_settings is not None else None
    cache = settings.context_optimization.workspace_cache
    is_cached = cache.enabled if own_setting is None else own_setting
    age = f", and after {cache.max_age_seconds:g} s" if cache.max_age_seconds else ""
    yield AgentFeature(
        name="Workspace cache",
        is_on=is_cached,
        meaning=f"files are read again when they change{age}"
        if is_cached
        else "files are read for each request",
        decided_by=_decided_by(own_setting is not None),
    )


def list_sections(options: SectionOptions | None, viewer: Viewer) -> list[AgentFeature]:
    section_options = options or SectionOptions()
    workspace, memory, binding, time = (
        section_options.workspace,
        section_options.memory,
        section_options.binding,
        section_options.time,
    )
    skills = "" if section_options.skills is None else f"one line for each skill in {section_options.skills}"
    described = (
        ("Workspace", workspace is not None, "" if workspace is None else f"the files in {workspace.root}"),
        ("Skills", section_options.skills is not None, skills),
        ("Binding", binding is not None, "" if binding is None else _describe_binding(section_options)),
        (
            "Memory",
            memory is not None,
            ""
            if memory is None
            else f"up to {format_number(memory.limit_tokens)} tokens of notes, as {memory.format}",
        ),
        (
            "Logs",
            bool(section_options.logs),
            f"the last {format_count(section_options.log_lines, 'line')} of {', '.join(section_options.logs)}",
        ),
        (
            "Time",
            time is not None and time.awareness,
            ""
            if time is None
            else f"{time.format.value}, {section_options.zone};"
            f" deadlines are announced {time.warning_minutes} minutes before",
        ),
        ("Channel", section_options.channel, "the channel of the request, as the client states it"),
        ("Budget", section_options.budget, "the remaining context window and spending caps"),
    )
    return [
        AgentFeature(
            name=name,
            is_on=is_on,
            meaning=viewer.hide_paths(meaning, options) if is_on else "not injected",
        )
        for name, is_on, meaning in described
    ]


def _describe_binding(options: SectionOptions) -> str:
    binding = options.binding
    assert binding is not None
    described = [
        format_count(len(binding.peers), "peer") if binding.peers else "",
        format_count(len(binding.channels), "channel") if binding.channels else "",
        f"responses in {shorten_name(binding.language, _MAX_NAME_CHARS)}" if binding.language else "",
    ]
    return ", ".join(filter(None, described)) or "empty"


def describe_ladder(ladder: Ladder) -> Sequence[str]:
    """Describe, step by step, what happens to sections that do not fit."""
    return [_describe_rung(rung) for rung in ladder.rungs]


def _describe_rung(rung: Rung) -> str:
    names = ", ".join(rung.sections)
    match rung:
        case Truncate():
            return f"truncate {names or 'sections, the lowest priority first'}"
        case Drop():
            return f"drop {names or 'whole sections, the lowest priority first'}"
        case LastLines(lines=lines):
            return f"keep the last {format_count(lines, 'line')} of {names}"
        case Replace():
            return f"replace {names} by one line"


def list_section_rules(options: SectionOptions) -> list[SectionRuleRow]:
    return [SectionRuleRow(section=name, rule=rule) for name, rule in sorted(options.limits.sections.items())]


def _decided_by(is_agent_setting: bool) -> str:
    return _SET_FOR_AGENT if is_agent_setting else _SET_FOR_ALL


ROWS_PER_PAGE = 50
_READ_TIMEOUT_SECONDS = 1.0
# A configured agent never has an empty name.
_UNNAMED_AGENT = ""

AGENT_FILTERS: Mapping[str, str] = {
    "all": "All agents",
    "configured": "In the configuration",
    "asked": "Active in the last 7 days",
}
"""Names and titles of the filters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRow:
    name: str
    is_configured: bool
    options: AgentOptions
    injected: Sequence[str]
    today: SpendingTotals
    week: SpendingTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentModel:
    name: str
    window_tokens: int | None
    window_source: str
    spending: SpendingTotals


async def load_page(data: GatewayData, page_request: PageRequest) -> WebPage:
    """Load the list of agents, those that spent most in the last days first; `find` searches names."""
    agent_filter = page_request.choice("which", "all", AGENT_FILTERS)
    find = page_request.text("find")
    config, store, now = data.current_config(), data.store, data.clock()
    viewer = page_request.viewer
    active, today, week = await asyncio.gather(
        store.totals.list_agents(),
        store.totals.sum_totals(
            [TotalsGroup.AGENT, TotalsGroup.CATEGORY],
            since=resolve_time_range(TODAY, now).since,
            agent=viewer.agent,
        ),
        store.totals.sum_totals(
            [TotalsGroup.AGENT, TotalsGroup.CATEGORY],
            since=resolve_time_range(WEEK, now).since,
            agent=viewer.agent,
        ),
    )
    active = [name for name in active if viewer.can_see(name)]
    configured_names = {agent.id for agent in config.settings.agents if viewer.can_see(agent.id)}

    def list_names() -> list[str]:
        order = _rank_by_cost(week)
        chosen = {"all": {*active, *configured_names}, "configured": configured_names, "asked": {*order}}[
            agent_filter
        ]
        names_found = [name for name in chosen if find.casefold() in name.casefold()]
        return sorted(names_found, key=lambda name: (order.get(name, len(order)), name))

    # Sorting thousands would block the event loop for too long.
    names_found = await asyncio.to_thread(list_names)
    pages = max(1, -(-len(names_found) // ROWS_PER_PAGE))
    # The number of recently active agents can shrink between two requests.
    number = min(page_request.number("page", 1, min_value=1, max_value=1_000_000), pages)
    names = names_found[(number - 1) * ROWS_PER_PAGE : number * ROWS_PER_PAGE]
    spent_today, spent_week = _group_by_agent(names, today), _group_by_agent(names, week)
    return WebPage(
        template="agents.html",
        title="Agents",
        context={
            "agent_filter": agent_filter,
            "filters": AGENT_FILTERS,
            "find": find,
            "rows": [
                _build_row(config, viewer, name, name in configured_names, spent_today, spent_week)
                for name in names
            ],
            "match_count": len(names_found),
            "configured_count": len(configured_names),
            "page": number,
            "pages": pages,
            "link": page_request.link,
            "default_features": list_features(config.options(_UNNAMED_AGENT), None, config.settings),
        },
    )


def _rank_by_cost(rows: TotalsRows) -> Mapping[str, int]:
    negative_spending: dict[str, tuple[Decimal, int]] = {}
    for (agent, *_), totals in rows:
        dollars, requests = negative_spending.get(agent, (Decimal(0), 0))
        negative_spending[agent] = dollars - totals.dollars, requests - totals.requests
    return {
        agent: rank
        for rank, agent in enumerate(
            sorted(negative_spending, key=lambda name: (negative_spending[name], name))
        )
    }


def _group_by_agent(agents: Collection[str], rows: TotalsRows) -> Mapping[str, SpendingTotals]:
    """Sum the spending of these agents only: there may be thousands of others."""
    names = frozenset(agents)
    return group_by_first([row for row in rows if row[0][0] in names])


def _build_row(
    config: ConfigSnapshot,
    viewer: Viewer,
    name: str,
    is_configured: bool,
    today: Mapping[str, SpendingTotals],
    week: Mapping[str, SpendingTotals],
) -> AgentRow:
    options = config.options(name)
    return AgentRow(
        name=name,
        is_configured=is_configured,
        options=options,
        injected=[section.name.lower() for section in list_sections(options.sections, viewer) if section.is_on],
        today=today.get(name, NO_SPENDING),
        week=week.get(name, NO_SPENDING),
    )


async def load_agent_page(data: GatewayData, page_request: PageRequest) -> WebPage:
    """Load the page of one agent.

    Raises:
        PageNotFound: the agent is not configured, and has never sent a request.
        Forbidden: the viewer may not see it.
    """
    name = page_request.viewer.restrict(page_request.path_parameters["name"])
    config, store, now = data.current_config(), data.store, data.clock()
    agent_settings = next((agent for agent in config.settings.agents if agent.id == name), None)
    options = config.options(name)
    today, week = await asyncio.gather(
        store.totals.sum_totals([TotalsGroup.CATEGORY], since=resolve_time_range(TODAY, now).since, agent=name),
        store.totals.sum_totals(
            [TotalsGroup.MODEL, TotalsGroup.CATEGORY], since=resolve_time_range(WEEK, now).since, agent=name
        ),
    )
    if (
        agent_settings is None
        and not week
        and not await store.totals.sum_totals([TotalsGroup.MODEL], agent=name)
    ):
        raise PageNotFound(
            f"The agent {shorten_name(name, _MAX_NAME_CHARS)!r} has never sent a request,"
            " and is not in the configuration."
        )
    models = _list_models(options, group_by_first(week))
    sections = await _load_sections(data.sources, options, models, page_request.viewer)
    return WebPage(
        template="agent.html",
        title=f"Agent {shorten_name(name, _MAX_NAME_CHARS)}",
        context={
            "name": name,
            "agent_settings": agent_settings,
            "options": options,
            "today": sum_spending(group_by_first(today).values()),
            "week": sum_spending(model.spending for model in models),
            "models": models,
            "features": list_features(options, agent_settings, config.settings),
            "caps": await list_agent_cap_usage(
                store, config.caps, name, now=now, shows_shared=page_request.viewer.sees_everything
            ),
            "keys": _count_keys(agent_settings),
            **sections,
        },
    )


def _count_keys(agent_settings: AgentSettings | None) -> int:
    return 0 if agent_settings is None else len(agent_settings.keys)


def _list_models(
    options: AgentOptions, spending_by_model: Mapping[str, SpendingTotals]
) -> Sequence[AgentModel]:
    order = sorted(
        spending_by_model.items(), key=lambda entry: (-entry[1].dollars, -entry[1].requests, entry[0])
    )
    return [_describe_model(options, name, entry) for name, entry in order]


def _describe_model(options: AgentOptions, name: str, spending: SpendingTotals) -> AgentModel:
    if options.window_tokens is not None:
        return AgentModel(
            name=name,
            window_tokens=options.window_tokens,
            window_source="set for this agent",
            spending=spending,
        )
    window = find_context_window(name)
    if window is None:
        return AgentModel(
            name=name, window_tokens=None, window_source="unknown for this model", spending=spending
        )
    family = "from its model family, " if window.inherited else ""
    return AgentModel(
        name=name,
        window_tokens=window.tokens,
        window_source=f"{family}{window.source}, {window.as_of}",
        spending=spending,
    )


async def _load_sections(
    sources: SectionSources, options: AgentOptions, models: Sequence[AgentModel], viewer: Viewer
) -> Mapping[str, object]:
    """Load what is injected into the agent's requests: sections with their budget, workspace and skills."""
    injected: list[AgentFeature] = list_sections(options.sections, viewer)
    if options.sections is None:
        return {
            "sections": injected,
            "limits": None,
            "workspace": None,
            "problems": (),
            "own_budget": AGENT_BUDGET_FILE,
        }
    limited, limit_problems = await _load_own_limits(sources, options.sections)
    model = models[0].name if models else DEFAULT_MODEL
    skill_problems = await _load_skill_problems(sources, options.sections)
    return {
        "sections": injected,
        "limits": limited,
        "is_own": limited.limits != options.sections.limits,
        "ladder": describe_ladder(limited.limits.ladder),
        "rules": list_section_rules(limited),
        "workspace": await load_workspace(sources, options.sections, options.counter, model),
        "counting_model": model,
        "problems": [*limit_problems, *skill_problems],
        "hide_paths": partial(viewer.hide_paths, options=options.sections),
        "own_budget": AGENT_BUDGET_FILE,
    }


async def _load_own_limits(
    sources: SectionSources, options: SectionOptions
) -> tuple[SectionOptions, Sequence[str]]:
    """Return the options with the limits that the agent set itself, and their problems."""
    try:
        return await sources.with_own_limits(options, _read_deadline())
    except TimeoutError:
        return options, (f"reading {AGENT_BUDGET_FILE} takes long",)


async def _load_skill_problems(sources: SectionSources, options: SectionOptions) -> Sequence[str]:
    try:
        return (await sources.skills(options, _read_deadline())).problems
    except TimeoutError:
        return ("reading the folder of skills takes long",)


def _read_deadline() -> float:
    return asyncio.get_running_loop().time() + _READ_TIMEOUT_SECONDS

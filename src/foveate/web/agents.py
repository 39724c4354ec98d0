"""The pages of agents: which there are, what is switched on for each, what it may use, and what it carries."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from foveate.budget.windows import find_context_window
from foveate.config.settings import AgentSettings
from foveate.engine.injecting.options import SectionOptions
from foveate.engine.injecting.sources import AGENT_BUDGET_FILE, SectionSources
from foveate.engine.options import AgentOptions
from foveate.prompt.inputs import DEFAULT_MODEL
from foveate.session.totals import TotalsGroup
from foveate.web.asking import PageNotFound, PageRequest, WebPage
from foveate.web.caps import list_agent_cap_usage
from foveate.web.inside import ConfigSnapshot, GatewayData
from foveate.web.spans import TODAY, WEEK, resolve_time_range
from foveate.web.spent import NO_SPENDING, SpendingTotals, TotalsRows, group_by_first, sum_spending
from foveate.web.switches import AgentFeature, describe_ladder, list_features, list_section_rules, list_sections
from foveate.web.words import shorten
from foveate.web.workspaces import load_workspace

ROWS_PER_PAGE = 50
"""So many agents are on a page."""
_MAX_NAME_CHARS = 80
_READ_TIMEOUT_SECONDS = 1.0
# No agent of a configuration has an empty name.
_UNNAMED_AGENT = ""

AGENT_FILTERS: Mapping[str, str] = {
    "all": "All agents",
    "configured": "Those in the configuration",
    "asked": "Those that asked in the last 7 days",
}
"""Which agents can be shown, and what that is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRow:
    """An agent of the list: whether the configuration names it, its options, and what it spent."""

    name: str
    is_configured: bool
    options: AgentOptions
    injected: Sequence[str]
    today: SpendingTotals
    week: SpendingTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentModel:
    """A model that an agent asked: the window that it has there, who says so, and what was spent on it."""

    name: str
    window_tokens: int | None
    window_of: str
    spent: SpendingTotals


async def load_page(data: GatewayData, page_request: PageRequest) -> WebPage:
    """Every agent, those that spent most in the last days first; `find` looks for a name."""
    agent_filter = page_request.choice("which", "all", AGENT_FILTERS)
    find = page_request.text("find")
    config, store, now = data.current_config(), data.store, data.clock()
    viewer = page_request.viewer
    known, today, week = await asyncio.gather(
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
    known = [name for name in known if viewer.can_see(name)]
    configured_names = {agent.id for agent in config.settings.agents if viewer.can_see(agent.id)}

    def listed() -> list[str]:
        order = _rank_by_cost(week)
        chosen = {"all": {*known, *configured_names}, "configured": configured_names, "asked": {*order}}[
            agent_filter
        ]
        found = [name for name in chosen if find.casefold() in name.casefold()]
        return sorted(found, key=lambda name: (order.get(name, len(order)), name))

    # Of thousands it takes longer than requests should wait for the event loop.
    found = await asyncio.to_thread(listed)
    pages = max(1, -(-len(found) // ROWS_PER_PAGE))
    # Those who asked in the last days become fewer by themselves.
    number = min(page_request.number("page", 1, min_value=1, max_value=1_000_000), pages)
    names = found[(number - 1) * ROWS_PER_PAGE : number * ROWS_PER_PAGE]
    spent_today, spent_week = _group_by_agent(names, today), _group_by_agent(names, week)
    return WebPage(
        template="agents.html",
        title="Agents",
        context={
            "which": agent_filter,
            "choices": AGENT_FILTERS,
            "find": find,
            "rows": [
                _build_row(config, name, name in configured_names, spent_today, spent_week) for name in names
            ],
            "found": len(found),
            "named": len(configured_names),
            "page": number,
            "pages": pages,
            "link": page_request.link,
            "others": list_features(config.options(_UNNAMED_AGENT), None, config.settings),
        },
    )


def _rank_by_cost(rows: TotalsRows) -> Mapping[str, int]:
    """The place of each agent: by what it spent, those that spent nothing by what they asked."""
    spent: dict[str, tuple[Decimal, int]] = {}
    for (agent, *_), totals in rows:
        dollars, requests = spent.get(agent, (Decimal(0), 0))
        spent[agent] = dollars - totals.dollars, requests - totals.requests
    return {agent: rank for rank, agent in enumerate(sorted(spent, key=lambda name: (spent[name], name)))}


def _group_by_agent(agents: Collection[str], rows: TotalsRows) -> Mapping[str, SpendingTotals]:
    """What these agents spent: there may be thousands beside them, of whom nothing is shown."""
    wanted = frozenset(agents)
    return group_by_first([row for row in rows if row[0][0] in wanted])


def _build_row(
    config: ConfigSnapshot,
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
        injected=[section.name.lower() for section in list_sections(options.sections) if section.is_on],
        today=today.get(name, NO_SPENDING),
        week=week.get(name, NO_SPENDING),
    )


async def load_agent_page(data: GatewayData, page_request: PageRequest) -> WebPage:
    """One agent.

    Raises:
        NoSuchPage: the configuration does not name it, and it has never asked anything.
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
            f"the agent {shorten(name, _MAX_NAME_CHARS)!r} has never asked, and the configuration does not name it"
        )
    models = _list_models(options, group_by_first(week))
    sections = await _load_sections(data.sources, options, models)
    return WebPage(
        template="agent.html",
        title=f"Agent {shorten(name, _MAX_NAME_CHARS)}",
        context={
            "name": name,
            "said": agent_settings,
            "options": options,
            "today": sum_spending(group_by_first(today).values()),
            "week": sum_spending(model.spent for model in models),
            "models": models,
            "switches": list_features(options, agent_settings, config.settings),
            "caps": await list_agent_cap_usage(
                store, config.caps, name, now=now, shows_shared=page_request.viewer.sees_everything
            ),
            "keys": _count_keys(agent_settings),
            **sections,
        },
    )


def _count_keys(agent_settings: AgentSettings | None) -> int:
    return 0 if agent_settings is None else len(agent_settings.keys)


def _list_models(options: AgentOptions, spent: Mapping[str, SpendingTotals]) -> Sequence[AgentModel]:
    """The models that were asked, the dearest first."""
    order = sorted(spent.items(), key=lambda entry: (-entry[1].dollars, -entry[1].requests, entry[0]))
    return [_describe_model(options, name, entry) for name, entry in order]


def _describe_model(options: AgentOptions, name: str, spent: SpendingTotals) -> AgentModel:
    if options.window_tokens is not None:
        return AgentModel(
            name=name, window_tokens=options.window_tokens, window_of="set for this agent", spent=spent
        )
    window = find_context_window(name)
    if window is None:
        return AgentModel(name=name, window_tokens=None, window_of="not known of this model", spent=spent)
    kin = "as its kin has it, " if window.inherited else ""
    return AgentModel(
        name=name, window_tokens=window.tokens, window_of=f"{kin}{window.source}, {window.as_of}", spent=spent
    )


async def _load_sections(
    sources: SectionSources, options: AgentOptions, models: Sequence[AgentModel]
) -> Mapping[str, object]:
    """What is put into its requests: sections with their budget, its workspace and its skills."""
    injected: list[AgentFeature] = list_sections(options.sections)
    if options.sections is None:
        return {
            "sections": injected,
            "limits": None,
            "folder": None,
            "troubles": (),
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
        "folder": await load_workspace(sources, options.sections, options.counter, model),
        "counted_for": model,
        "troubles": [*limit_problems, *skill_problems],
        "own_budget": AGENT_BUDGET_FILE,
    }


async def _load_own_limits(
    sources: SectionSources, options: SectionOptions
) -> tuple[SectionOptions, Sequence[str]]:
    """The options with the limits that the agent has set itself, and what is wrong with those."""
    try:
        return await sources.with_own_limits(options, _read_deadline())
    except TimeoutError:
        return options, (f"its own {AGENT_BUDGET_FILE} takes long to be read",)


async def _load_skill_problems(sources: SectionSources, options: SectionOptions) -> Sequence[str]:
    try:
        return (await sources.skills(options, _read_deadline())).problems
    except TimeoutError:
        return ("its folder of skills takes long to be read",)


def _read_deadline() -> float:
    return asyncio.get_running_loop().time() + _READ_TIMEOUT_SECONDS

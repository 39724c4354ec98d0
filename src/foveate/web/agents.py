"""The pages of agents: which there are, what is switched on for each, what it may use, and what it carries."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from foveate.budget.windows import window_of
from foveate.config.settings import Agent
from foveate.engine.injecting.options import SectionOptions
from foveate.engine.injecting.sources import OWN_BUDGET, Sources
from foveate.engine.options import AgentOptions
from foveate.prompt.inputs import DEFAULT_MODEL
from foveate.session.totals import Per
from foveate.web.asking import Asked, NoSuchPage, Shown
from foveate.web.caps import cap_rows_of
from foveate.web.inside import Configured, Inside
from foveate.web.spans import TODAY, WEEK, span_of
from foveate.web.spent import NOTHING, Rows, Spent, all_of, by_first
from foveate.web.switches import Switch, rules, rungs, sections, switches
from foveate.web.words import short
from foveate.web.workspaces import folder_of

ROWS = 50
"""So many agents are on a page."""
_LONGEST_NAME = 80
_PATIENCE_SECONDS = 1.0
# No agent of a configuration has an empty name.
_NOT_NAMED = ""

WHICH: Mapping[str, str] = {
    "all": "All agents",
    "configured": "Those in the configuration",
    "asked": "Those that asked in the last 7 days",
}
"""Which agents can be shown, and what that is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An agent of the list: whether the configuration names it, its options, and what it spent."""

    name: str
    is_configured: bool
    options: AgentOptions
    injected: Sequence[str]
    today: Spent
    week: Spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that an agent asked: the window that it has there, who says so, and what was spent on it."""

    name: str
    window_tokens: int | None
    window_of: str
    spent: Spent


async def look(inside: Inside, asked: Asked) -> Shown:
    """Every agent, those that spent most in the last days first; `find` looks for a name."""
    which = asked.choice("which", "all", WHICH)
    find = asked.text("find")
    configured, store, now = inside.configured(), inside.store, inside.clock()
    viewer = asked.viewer
    known, today, week = await asyncio.gather(
        store.totals.agents(),
        store.totals.totals([Per.AGENT, Per.CATEGORY], since=span_of(TODAY, now).since, agent=viewer.agent),
        store.totals.totals([Per.AGENT, Per.CATEGORY], since=span_of(WEEK, now).since, agent=viewer.agent),
    )
    known = [name for name in known if viewer.can_see(name)]
    named = {agent.id for agent in configured.settings.agents if viewer.can_see(agent.id)}

    def listed() -> list[str]:
        order = _dearest_first(week)
        chosen = {"all": {*known, *named}, "configured": named, "asked": {*order}}[which]
        found = [name for name in chosen if find.casefold() in name.casefold()]
        return sorted(found, key=lambda name: (order.get(name, len(order)), name))

    # Of thousands it takes longer than requests should wait for the event loop.
    found = await asyncio.to_thread(listed)
    pages = max(1, -(-len(found) // ROWS))
    # Those who asked in the last days become fewer by themselves.
    number = min(asked.number("page", 1, least=1, most=1_000_000), pages)
    names = found[(number - 1) * ROWS : number * ROWS]
    spent_today, spent = _of(names, today), _of(names, week)
    return Shown(
        template="agents.html",
        title="Agents",
        given={
            "which": which,
            "choices": WHICH,
            "find": find,
            "rows": [_row(configured, name, name in named, spent_today, spent) for name in names],
            "found": len(found),
            "named": len(named),
            "page": number,
            "pages": pages,
            "link": asked.link,
            "others": switches(configured.options(_NOT_NAMED), None, configured.settings),
        },
    )


def _dearest_first(rows: Rows) -> Mapping[str, int]:
    """The place of each agent: by what it spent, those that spent nothing by what they asked."""
    spent: dict[str, tuple[Decimal, int]] = {}
    for (agent, *_), totals in rows:
        dollars, requests = spent.get(agent, (Decimal(0), 0))
        spent[agent] = dollars - totals.dollars, requests - totals.requests
    return {agent: place for place, agent in enumerate(sorted(spent, key=lambda one: (spent[one], one)))}


def _of(agents: Collection[str], rows: Rows) -> Mapping[str, Spent]:
    """What these agents spent: there may be thousands beside them, of whom nothing is shown."""
    wanted = frozenset(agents)
    return by_first([row for row in rows if row[0][0] in wanted])


def _row(
    configured: Configured, name: str, is_named: bool, today: Mapping[str, Spent], week: Mapping[str, Spent]
) -> Row:
    options = configured.options(name)
    return Row(
        name=name,
        is_configured=is_named,
        options=options,
        injected=[one.name.lower() for one in sections(options.sections) if one.is_on],
        today=today.get(name, NOTHING),
        week=week.get(name, NOTHING),
    )


async def look_at_one(inside: Inside, asked: Asked) -> Shown:
    """One agent.

    Raises:
        NoSuchPage: the configuration does not name it, and it has never asked anything.
        Forbidden: the viewer may not see it.
    """
    name = asked.viewer.restrict(asked.names["name"])
    configured, store, now = inside.configured(), inside.store, inside.clock()
    said = next((agent for agent in configured.settings.agents if agent.id == name), None)
    options = configured.options(name)
    today, week = await asyncio.gather(
        store.totals.totals([Per.CATEGORY], since=span_of(TODAY, now).since, agent=name),
        store.totals.totals([Per.MODEL, Per.CATEGORY], since=span_of(WEEK, now).since, agent=name),
    )
    if said is None and not week and not await store.totals.totals([Per.MODEL], agent=name):
        raise NoSuchPage(
            f"the agent {short(name, _LONGEST_NAME)!r} has never asked, and the configuration does not name it"
        )
    models = _models(options, by_first(week))
    carried = await _carried(inside.sources, options, models)
    return Shown(
        template="agent.html",
        title=f"Agent {short(name, _LONGEST_NAME)}",
        given={
            "name": name,
            "said": said,
            "options": options,
            "today": all_of(by_first(today).values()),
            "week": all_of(model.spent for model in models),
            "models": models,
            "switches": switches(options, said, configured.settings),
            "caps": await cap_rows_of(
                store, configured.caps, name, now=now, shows_shared=asked.viewer.sees_everything
            ),
            "keys": _keys(said),
            **carried,
        },
    )


def _keys(said: Agent | None) -> int:
    return 0 if said is None else len(said.keys)


def _models(options: AgentOptions, spent: Mapping[str, Spent]) -> Sequence[Model]:
    """The models that were asked, the dearest first."""
    order = sorted(spent.items(), key=lambda one: (-one[1].dollars, -one[1].requests, one[0]))
    return [_model(options, name, one) for name, one in order]


def _model(options: AgentOptions, name: str, spent: Spent) -> Model:
    if options.window_tokens is not None:
        return Model(
            name=name, window_tokens=options.window_tokens, window_of="set for this agent", spent=spent
        )
    window = window_of(name)
    if window is None:
        return Model(name=name, window_tokens=None, window_of="not known of this model", spent=spent)
    kin = "as its kin has it, " if window.inherited else ""
    return Model(
        name=name, window_tokens=window.tokens, window_of=f"{kin}{window.source}, {window.as_of}", spent=spent
    )


async def _carried(sources: Sources, options: AgentOptions, models: Sequence[Model]) -> Mapping[str, object]:
    """What is put into its requests: sections with their budget, its workspace and its skills."""
    injected: list[Switch] = sections(options.sections)
    if options.sections is None:
        return {"sections": injected, "limits": None, "folder": None, "troubles": (), "own_budget": OWN_BUDGET}
    limited, told = await _limited(sources, options.sections)
    model = models[0].name if models else DEFAULT_MODEL
    skills = await _skill_troubles(sources, options.sections)
    return {
        "sections": injected,
        "limits": limited,
        "is_own": limited.limits != options.sections.limits,
        "ladder": rungs(limited.limits.ladder),
        "rules": rules(limited),
        "folder": await folder_of(sources, options.sections, options.counter, model),
        "counted_for": model,
        "troubles": [*told, *skills],
        "own_budget": OWN_BUDGET,
    }


async def _limited(sources: Sources, options: SectionOptions) -> tuple[SectionOptions, Sequence[str]]:
    """The options with the limits that the agent has set itself, and what is wrong with those."""
    try:
        return await sources.own_limits(options, _until())
    except TimeoutError:
        return options, (f"its own {OWN_BUDGET} takes long to be read",)


async def _skill_troubles(sources: Sources, options: SectionOptions) -> Sequence[str]:
    try:
        return (await sources.skills(options, _until())).troubles
    except TimeoutError:
        return ("its folder of skills takes long to be read",)


def _until() -> float:
    return asyncio.get_running_loop().time() + _PATIENCE_SECONDS

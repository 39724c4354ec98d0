"""The page of a memory: what a model would see of it, by the functions that put it into requests."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foveate.engine.counters import offline_counter
from foveate.engine.injecting.options import SectionOptions
from foveate.engine.options import AgentOptions
from foveate.errors import BadOption, BudgetExceeded, StoreUnavailable
from foveate.memory.view import Level, View, ViewNode
from foveate.prompt.inputs import DEFAULT_MODEL
from foveate.prompt.kept import Kept
from foveate.tokens.caches import register
from foveate.web.asking import Asked, Shown
from foveate.web.inside import Configured, Inside

if TYPE_CHECKING:
    from foveate.memory.memory import Memory
    from foveate.memory.nodes import Node

MOST_TOKENS = 50_000
"""A longer view is for nobody's eyes."""
MOST_NODES = 300
MOST_CHARS = 60_000
"""Of a view so many nodes and characters are shown."""
_MOST_PROBLEMS = 5
_MOST_AGENTS = 200
# Browsers flatten what is nested much deeper.
_DEEPEST = 24
# How long a page waits for a memory that is being read; requests wait longer.
_PATIENCE_SECONDS = 2.0
# While the memory changes under it, it is looked at again.
_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A node of the outline: how much of it is shown, and of how many below it nothing is.

    `opens` a list below the line before it, or `closes` so many of those that are open.
    """

    id: str
    title: str
    state: str
    level: Level
    tokens: int
    score: float
    is_focus: bool
    hidden_below: int
    opens: bool
    closes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is shown of a memory: its text, the nodes in it as an outline, and how many nodes there are."""

    view: View
    lines: Sequence[Line]
    lists_left: int
    """So many lists are open at the end of the outline."""
    nodes: int
    has_private: bool

    def at(self, level: Level) -> int:
        """How many nodes are shown at a level."""
        shown = sum(one.level is level for one in self.view.nodes)
        return self.nodes - len(self.view.nodes) if level is Level.HIDDEN else shown


# Whoever stays on the page is shown it again whenever anybody has asked anything.
_KEPT: Kept[tuple[object, ...], Seen] = Kept(16)
register(_KEPT)


async def look(inside: Inside, asked: Asked) -> Shown:
    """What an agent's model would see of its memory for a focus, a query and a limit of tokens."""
    configured = inside.configured()
    agents = [
        agent.id
        for agent in configured.settings.agents
        if asked.viewer.can_see(agent.id) and _memory_of(configured, agent.id)
    ]
    agent = asked.agent() or (agents[0] if agents else "")
    options = configured.options(agent)
    given: dict[str, object] = {
        "agents": agents,
        "lists_agents": len(agents) <= _MOST_AGENTS,
        "agent": agent,
        "focus": asked.text("focus"),
        "query": asked.text("query"),
        "said_tokens": asked.text("tokens"),
        "levels": list(Level),
        "most_nodes": MOST_NODES,
        "most_chars": MOST_CHARS,
        "link": asked.link,
        "seen": None,
        "options": None,
        "problem": "",
        "is_busy": False,
        "troubles": (),
        "more_troubles": 0,
    }
    is_refused = False
    if agent in agents and options.sections is not None:
        try:
            given |= await _seen(inside, asked, agent, options, options.sections)
        except (BadOption, BudgetExceeded) as error:
            # The form stays, so that it can be asked otherwise.
            given |= {"options": options.sections.memory, "problem": str(error)}
            is_refused = True
    # To look for a title that may have been meant takes its time, and what happens elsewhere changes nothing.
    status = 400 if is_refused else 200
    return Shown(template="memory.html", title="Memory", given=given, status=status, live=not is_refused)


def _memory_of(configured: Configured, agent: str) -> bool:
    sections = configured.options(agent).sections
    return sections is not None and sections.memory is not None


async def _seen(
    inside: Inside, asked: Asked, agent: str, options: AgentOptions, sections: SectionOptions
) -> Mapping[str, object]:
    memory_options = sections.memory
    assert memory_options is not None
    limit_tokens = asked.number("tokens", memory_options.limit_tokens, least=1, most=MOST_TOKENS)
    last_model = await _last_model(inside, agent)
    given: dict[str, object] = {
        "options": memory_options,
        "model": last_model,
        "limit_tokens": limit_tokens,
        "allowed_tokens": _allowed(sections),
    }
    until = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
    try:
        looked = await inside.sources.memory(memory_options, sections.privacy_tags, until)
    except TimeoutError:
        said = "The memory takes long to be read. Ask again in a moment."
        return given | {"problem": said, "is_busy": True}
    if looked.memory is None:
        return given | {"problem": looked.trouble}
    memory = looked.memory
    focus, query = asked.text("focus") or None, asked.text("query") or None
    model = last_model or DEFAULT_MODEL

    def made() -> Seen:
        counter = offline_counter(options.counter, model)
        for _ in range(_TRIES):
            version, era = memory.version, _KEPT.era
            key = (
                version,
                memory.privacy_tags,
                memory_options,
                focus,
                query,
                limit_tokens,
                options.counter,
                model,
            )
            known = _KEPT.get(key)
            if known is not None:
                return known
            view = memory.render(focus, query, limit_tokens, memory_options.format, model=counter)
            found = _outlined(memory, view, focus)
            if memory.version == version:
                return _KEPT.keep(key, found, era)
        return found

    problems = memory.problems
    return given | {
        "seen": await asyncio.to_thread(made),
        "troubles": [str(problem) for problem in problems[:_MOST_PROBLEMS]],
        "more_troubles": max(0, len(problems) - _MOST_PROBLEMS),
    }


async def _last_model(inside: Inside, agent: str) -> str:
    """The model that the agent asked last; nothing where it is not known."""
    try:
        found = await inside.store.totals.sessions(limit=1, agent=agent)
    except StoreUnavailable:
        return ""  # a memory can be looked at without it
    return found[0].model if found else ""


def _allowed(sections: SectionOptions) -> int:
    """How many tokens the budget of an agent's sections leaves for its memory; none where that is off."""
    rule = sections.limits.sections.get("context")
    if rule is None:
        return sections.total_tokens
    if rule.enabled is False:
        return 0
    share = sections.total_tokens if rule.share is None else int(rule.share * sections.total_tokens)
    return min(share, sections.total_tokens if rule.max_tokens is None else rule.max_tokens)


def _outlined(memory: "Memory", view: View, focus: str | None) -> Seen:
    nodes = memory.nodes
    held = _held(memory, view.nodes)
    shown = {node.id for node in held.values()}
    looked_at = memory.node(focus).id if focus is not None else None
    depths: dict[str, int] = {}
    lines: list[Line] = []
    before = -1
    for one in view.nodes[:MOST_NODES]:
        node = held.get(one.id)
        above = next((parent.id for parent in node.ancestors() if parent.id in depths), None) if node else None
        depth = min(depths[above] + 1 if above is not None else 0, _DEEPEST)
        depths[one.id] = depth
        lines.append(
            Line(
                id=one.id,
                title=one.title,
                state=node.todo if node else "",
                level=one.level,
                tokens=one.tokens,
                score=one.score,
                is_focus=one.id == looked_at,
                hidden_below=sum(child.id not in shown for child in node.children) if node else 0,
                opens=depth > before,
                closes=max(0, before - depth),
            )
        )
        before = depth
    return Seen(view=view, lines=lines, lists_left=before + 1, nodes=len(nodes), has_private=memory.has_private)


def _held(memory: "Memory", wanted: Sequence[ViewNode]) -> Mapping[str, "Node"]:
    """The nodes of a view, but for those that have gone from the memory since."""
    found = {}
    for one in wanted:
        try:
            found[one.id] = memory.node(one.id)
        except BadOption:
            break  # it is looked at again
    return found

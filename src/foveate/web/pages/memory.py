"""The memory page: what a model would see, computed by the functions that inject it into requests."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from foveate.caching import LruCache, register
from foveate.context.sections import DEFAULT_MODEL
from foveate.engine.counting.offline_counters import offline_counter
from foveate.engine.options import AgentOptions, SectionOptions
from foveate.engine.sections.sources import SOURCE_TIMEOUT_SECONDS
from foveate.errors import BadOption, BudgetExceeded, StoreUnavailable
from foveate.memory.views.view import DetailLevel, View, ViewNode, parse_view_format
from foveate.web.page import ConfigSnapshot, GatewayData, PageRequest, WebPage

if TYPE_CHECKING:
    from foveate.memory.memory import Memory
    from foveate.memory.nodes import Node

MAX_TOKENS = 50_000
"""Longer views are not useful on a page."""
MAX_NODES = 300
MAX_CHARS = 60_000
"""Limits for the shown part of a view."""
_MAX_PROBLEMS = 5
_MAX_AGENTS = 200
# Browsers flatten deeper nesting.
_MAX_DEPTH = 24
# Requests wait longer than pages.
_READ_TIMEOUT_SECONDS = 2.0
# The memory may change while it is rendered.
_MAX_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlineLine:
    """A node of the outline: how much of it is shown, and how many nodes below it are hidden.

    `opens`: the line starts a nested list. `closes`: how many open lists end before it.
    """

    id: str
    title: str
    state: str
    level: DetailLevel
    tokens: int
    score: float
    is_focus: bool
    hidden_below: int
    opens: bool
    closes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOutline:
    view: View
    lines: Sequence[OutlineLine]
    open_lists: int
    """Lists that are still open at the end of the outline."""
    nodes: int
    has_private: bool

    def count_at(self, level: DetailLevel) -> int:
        count = sum(node.level is level for node in self.view.nodes)
        return self.nodes - len(self.view.nodes) if level is DetailLevel.HIDDEN else count


# An open page is rendered again at every request of any agent.
_OUTLINE_CACHE: LruCache[MemoryOutline] = LruCache(16)
register(_OUTLINE_CACHE)


async def load_page(data: GatewayData, page_request: PageRequest) -> WebPage:
    config = data.current_config()
    agents = [
        agent.id
        for agent in config.settings.agents
        if page_request.viewer.can_see(agent.id) and _has_memory(config, agent.id)
    ]
    agent = page_request.agent() or (agents[0] if agents else "")
    options = config.options(agent)
    context: dict[str, object] = {
        "agents": agents,
        "lists_agents": len(agents) <= _MAX_AGENTS,
        "agent": agent,
        "focus": page_request.text("focus"),
        "query": page_request.text("query"),
        "typed_tokens": page_request.text("tokens"),
        "levels": list(DetailLevel),
        "max_nodes": MAX_NODES,
        "max_chars": MAX_CHARS,
        "link": page_request.link,
        "hide_paths": partial(page_request.viewer.hide_paths, options=options.sections),
        "outline": None,
        "options": None,
        "problem": "",
        "is_busy": False,
        "problems": (),
        "more_problems": 0,
    }
    is_rejected = False
    if agent in agents and options.sections is not None:
        try:
            context |= await _load_outline(data, page_request, agent, options, options.sections)
        except (BadOption, BudgetExceeded) as error:
            # Show the form, so that the input can be corrected.
            context |= {"options": options.sections.memory, "problem": str(error)}
            is_rejected = True
    # Searching for similar titles is slow, and changes elsewhere do not affect the result.
    status = 400 if is_rejected else 200
    return WebPage(
        template="memory.html", title="Memory", context=context, status=status, is_live=not is_rejected
    )


def _has_memory(config: ConfigSnapshot, agent: str) -> bool:
    sections = config.options(agent).sections
    return sections is not None and sections.memory is not None


async def _load_outline(
    data: GatewayData, page_request: PageRequest, agent: str, options: AgentOptions, sections: SectionOptions
) -> Mapping[str, object]:
    memory_options = sections.memory
    assert memory_options is not None
    limit_tokens = page_request.number("tokens", memory_options.limit_tokens, min_value=1, max_value=MAX_TOKENS)
    last_model = await _last_model(data, agent)
    context: dict[str, object] = {
        "options": memory_options,
        "model": last_model,
        "limit_tokens": limit_tokens,
        "allowed_tokens": _allowed_tokens(sections),
    }
    now = asyncio.get_running_loop().time()
    busy_context = context | {
        "problem": "Reading the notes takes long. Try again in a moment.",
        "is_busy": True,
    }
    try:
        result = await data.sources.memory(memory_options, sections.privacy_tags, now + _READ_TIMEOUT_SECONDS)
    except TimeoutError:
        return busy_context
    if result.memory is None:
        return context | {"problem": result.problem}
    memory = result.memory
    focus, query = page_request.text("focus") or None, page_request.text("query") or None
    model = last_model or DEFAULT_MODEL

    def load() -> MemoryOutline:
        counter = offline_counter(options.counter, model)
        for _ in range(_MAX_TRIES):
            version, era = memory.version, _OUTLINE_CACHE.generation
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
            cached = _OUTLINE_CACHE.get(key)
            if cached is not None:
                return cached
            view = memory.render(
                focus, query, limit_tokens, parse_view_format(memory_options.format), model=counter
            )
            outline = _build_outline(memory, view, focus)
            if memory.version == version:
                return _OUTLINE_CACHE.put_if_absent(key, outline, era)
        return outline  # pyrefly: ignore[unbound-name]

    problems = memory.problems
    try:
        outline = await data.sources.run_on_memory(
            memory_options.embeddings, load, now + SOURCE_TIMEOUT_SECONDS
        )
    except TimeoutError:
        return busy_context
    return context | {
        "outline": outline,
        "problems": [str(problem) for problem in problems[:_MAX_PROBLEMS]],
        "more_problems": max(0, len(problems) - _MAX_PROBLEMS),
    }


async def _last_model(data: GatewayData, agent: str) -> str:
    try:
        sessions = await data.store.totals.list_sessions(limit=1, agent=agent)
    except StoreUnavailable:
        return ""  # the page works without it
    return sessions[0].model if sessions else ""


def _allowed_tokens(sections: SectionOptions) -> int:
    """Return the tokens that the sections' budget leaves for the memory; 0 if it is disabled."""
    rule = sections.limits.sections.get("context")
    if rule is None:
        return sections.total_tokens
    if rule.enabled is False:
        return 0
    share = sections.total_tokens if rule.share is None else int(rule.share * sections.total_tokens)
    return min(share, sections.total_tokens if rule.max_tokens is None else rule.max_tokens)


def _build_outline(memory: "Memory", view: View, focus: str | None) -> MemoryOutline:
    nodes = memory.nodes
    memory_nodes = _find_nodes(memory, view.nodes)
    shown_ids = {node.id for node in memory_nodes.values()}
    focus_id = memory.node(focus).id if focus is not None else None
    depths: dict[str, int] = {}
    lines: list[OutlineLine] = []
    previous_depth = -1
    for view_node in view.nodes[:MAX_NODES]:
        node = memory_nodes.get(view_node.id)
        parent_id = (
            next((parent.id for parent in node.ancestors() if parent.id in depths), None) if node else None
        )
        depth = min(depths[parent_id] + 1 if parent_id is not None else 0, _MAX_DEPTH)
        depths[view_node.id] = depth
        lines.append(
            OutlineLine(
                id=view_node.id,
                title=view_node.title,
                state=node.todo if node else "",
                level=view_node.level,
                tokens=view_node.tokens,
                score=view_node.score,
                is_focus=view_node.id == focus_id,
                hidden_below=sum(child.id not in shown_ids for child in node.children) if node else 0,
                opens=depth > previous_depth,
                closes=max(0, previous_depth - depth),
            )
        )
        previous_depth = depth
    return MemoryOutline(
        view=view, lines=lines, open_lists=previous_depth + 1, nodes=len(nodes), has_private=memory.has_private
    )


def _find_nodes(memory: "Memory", view_nodes: Sequence[ViewNode]) -> Mapping[str, "Node"]:
    """Find the nodes of a view, except those that have been removed since."""
    nodes = {}
    for view_node in view_nodes:
        try:
            nodes[view_node.id] = memory.node(view_node.id)
        except BadOption:
            break  # the caller renders it again
    return nodes

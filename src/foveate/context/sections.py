"""Render the prefix, the context and the active projects of a prompt as sections.

Missing parts get a visible line. Equal inputs give the same bytes, so they are the keys of a cache.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import NoneType
from typing import TYPE_CHECKING

from foveate.budget.sections import Keep, Priority, Section, Stability, check_token_limit, parse_choice
from foveate.caching import LruCache, register
from foveate.errors import BadOption, FoveateError
from foveate.memory.nodes import Node
from foveate.memory.parsing.outline import PlanningDate
from foveate.memory.queries import active_projects
from foveate.memory.views.view import DEFAULT_LIMIT_TOKENS, parse_view_format
from foveate.prompt_cache.stable_order import sort_tools
from foveate.tokens.offline_counters import counter_for

if TYPE_CHECKING:
    from foveate.memory.memory import Memory
    from foveate.tokens.text_meter import TextCounter

DEFAULT_MODEL = "gpt-4o"


class CallKind(StrEnum):
    USER = "user"
    TOOL = "tool"
    HEARTBEAT = "heartbeat"
    DELEGATION = "delegation"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ToolText:
    """A tool as the prefix describes it. `schema` is the JSON of its parameters, verbatim."""

    name: str
    description: str = ""
    schema: str = ""

    def __post_init__(self) -> None:
        """Validate the values.

        Raises:
            BadOption: a field is not a text.
        """
        for field in ("name", "description", "schema"):
            _check_type(getattr(self, field), str, "a string", ("tool", field))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixInputs:
    """Inputs of the prefix. An empty field, or an identity of None, is missing.

    Feedback is ordered oldest first. Tools are sorted by name, without duplicates, so that their order does not
    matter.
    """

    identity: str | None = ""
    feedback: tuple[str, ...] = ()
    mandates: tuple[str, ...] = ()
    tools: tuple[ToolText, ...] = ()

    def __post_init__(self) -> None:
        """Validate the values and sort the tools.

        Raises:
            BadOption: a field is not a tuple, since every letter of a text would be an entry, or an entry has
                the wrong type.
        """
        _check_type(self.identity, (str, NoneType), "a string or None", ("prefix", "identity"))
        for name, kind, description in (
            ("feedback", str, "a string"),
            ("mandates", str, "a string"),
            ("tools", ToolText, "a ToolText"),
        ):
            entries = getattr(self, name)
            _check_type(entries, tuple, "a tuple", ("prefix", name))
            for number, entry in enumerate(entries):
                _check_type(entry, kind, description, ("prefix", name, number))
        object.__setattr__(self, "tools", tuple(sorted(set(self.tools))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextInputs:
    """Inputs of the context section.

    `scope` names a subtree of the memory; None is the whole. `privacy_tags` are tags of what is not shown.
    `format` is the markup of the result, and `model` decides how `limit_tokens` are counted.
    `semantic_threshold` is the minimum similarity; None is the default. `memory_version` is any hashable value
    that differs after every change of the memory.
    """

    agent: str
    format: str
    privacy_tags: frozenset[str]
    memory_version: Hashable
    focus: str | None = None
    scope: str | None = None
    query: str | None = None
    limit_tokens: int | None = None
    model: str = DEFAULT_MODEL
    semantic_threshold: float | None = None

    def __post_init__(self) -> None:
        """Validate the values.

        Raises:
            BadOption: an invalid limit or threshold, a version that is not hashable, a field that is not a
                text, or tags that are not a frozenset: each letter of a text would be a tag.
        """
        for name in ("agent", "format", "model"):
            _check_type(getattr(self, name), str, "a string", ("context", name))
        for name in ("focus", "scope", "query"):
            _check_type(getattr(self, name), (str, NoneType), "a string or None", ("context", name))
        _check_type(self.privacy_tags, frozenset, "a frozenset of tags", ("context", "privacy_tags"))
        for tag in self.privacy_tags:
            _check_type(tag, str, "a set of strings", ("context", "privacy_tags"))
        check_token_limit(self.limit_tokens, ("context", "limit_tokens"))
        _check_threshold(self.semantic_threshold, ("context", "semantic_threshold"))
        try:
            hash(self.memory_version)
        except TypeError:
            type_name = type(self.memory_version).__name__
            raise BadOption(
                f"context.memory_version must be hashable, not {type_name}",
                path=("context", "memory_version"),
            ) from None


def _check_threshold(value: float | None, path: tuple[str, ...]) -> None:
    if value is not None and not (type(value) in (int, float) and 0 <= value <= 1):
        raise BadOption(f"{'.'.join(path)} must be a number from 0 to 1, not {value!r:.40}", path=path)


def _check_type(
    value: object, expected: type | tuple[type, ...], description: str, path: tuple[str | int, ...]
) -> None:
    """Check the type of a value; `description` names the expected type.

    Raises:
        BadOption: it has another type; `path` leads to it.
    """
    if not isinstance(value, expected):
        raise BadOption(
            f"{'.'.join(map(str, path))} must be {description}, not {type(value).__name__}", path=path
        )


def context_inputs(
    memory: "Memory",
    *,
    agent: str,
    focus: str | None = None,
    scope: str | None = None,
    query: str | None = None,
    limit_tokens: int | None = DEFAULT_LIMIT_TOKENS,
    format: str = "auto",  # noqa: A002  # the spec's word
    model: str = DEFAULT_MODEL,
) -> ContextInputs:
    """Return the inputs of the context for the present state of the memory and the environment.

    Raises:
        BadOption: an invalid value, or CONTEXT_SEMANTIC_THRESHOLD is not a number from 0 to 1.
    """
    return ContextInputs(
        agent=agent,
        format=format,
        privacy_tags=memory.privacy_tags,
        memory_version=memory.version,
        focus=focus,
        scope=scope,
        query=query,
        limit_tokens=limit_tokens,
        model=model,
        semantic_threshold=memory.semantic_threshold,
    )


def memory_context_builder(
    memory: "Memory",
    *,
    counters: "Callable[[str], TextCounter]" = counter_for,
    finished_projects: bool = True,
) -> Callable[[ContextInputs], str]:
    """Return a function that renders the context text from a memory, counted for the model in the inputs.

    `counters` gives the counter of a model. The model is part of the inputs, since a text that fits one model
    may be too long for another. Without `finished_projects`, these are shown only with a focus or scope.

    The function raises BadOption if the memory was loaded without hiding one of the privacy tags; nothing is
    shown then.
    """

    def build(inputs: ContextInputs) -> str:
        unhidden_tags = sorted(tag for tag in inputs.privacy_tags if not memory.hides(tag))
        if unhidden_tags:
            raise BadOption(
                f"the memory was loaded without hiding {', '.join(unhidden_tags)}: load it with private=…"
            )
        view = memory.render(
            inputs.focus,
            inputs.query,
            inputs.limit_tokens,
            parse_view_format(inputs.format),
            scope=inputs.scope,
            model=counters(inputs.model),
            semantic_threshold=inputs.semantic_threshold,
            finished_projects=finished_projects or inputs.focus is not None or inputs.scope is not None,
        )
        return view.text

    return build


AWARENESS_SECTION_NAME = "awareness"
NO_IDENTITY = "[Identity not available]"
NO_MANDATES = "No standing mandates."
NO_TOOLS = "No tools available."
NO_FEEDBACK = "No feedback yet."
NO_AWARENESS = "[Awareness not available]"
NO_PROJECTS = "No active projects found."
# Enough for a few dozen agents with a few focuses each; 5 MB at 20 KB per context.
DEFAULT_CAPACITY = 256
_WITHOUT_CONTEXT = frozenset({CallKind.HEARTBEAT, CallKind.DELEGATION})


@dataclass(frozen=True, slots=True)
class MissingContent:
    """Warning: why a section has a placeholder instead of its content."""

    section: str
    reason: str

    def __str__(self) -> str:
        return f"{self.section}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedSections:
    """Sections for a budget, and warnings about missing parts. `fresh`: rendered by this call."""

    sections: tuple[Section, ...]
    warnings: tuple[MissingContent, ...]
    fresh: bool


def render_prefix(inputs: PrefixInputs) -> RenderedSections:
    """Render the sections identity, mandates, tools and feedback.

    Feedback comes last because only it changes within a session, so that everything before it stays in the
    provider's cache. Tools are sorted by name for the same reason. Each entry has its own label, so that it can
    be understood if others are cut. Duplicate mandates are dropped.
    """
    mandates = [f"Mandate: {text}" for text in dict.fromkeys(inputs.mandates) if text.strip()]
    feedback = [f"Feedback: {text}" for text in inputs.feedback if text.strip()]
    tools = [_tool_text(tool) for tool in sort_tools(inputs.tools)]
    identity = inputs.identity if inputs.identity and inputs.identity.strip() else ""
    sections = (
        Section("identity", identity or NO_IDENTITY, priority=Priority.REQUIRED, stability=Stability.STATIC),
        _list_section("mandates", mandates or [NO_MANDATES], Priority.HIGH, Keep.HEAD, Stability.STATIC),
        _list_section("tools", tools or [NO_TOOLS], Priority.REQUIRED, Keep.HEAD, Stability.STATIC),
        _list_section("feedback", feedback or [NO_FEEDBACK], Priority.MEDIUM, Keep.NEWEST, Stability.SESSION),
    )
    parts = (identity, mandates, tools, feedback)
    warnings = tuple(
        MissingContent(section.name, "not provided")
        for section, entries in zip(sections, parts, strict=True)
        if not entries
    )
    return RenderedSections(sections=sections, warnings=warnings, fresh=True)


def render_context(inputs: ContextInputs, text: str | MissingContent) -> RenderedSections:
    """Render the section context: the text from the memory, or why there is none.

    The limit in `inputs` is a cap of the section, even if the text comes from elsewhere.

    Raises:
        BadOption: `text` is not a text.
    """
    _check_type(text, (str, MissingContent), "a string", ("context", "text"))
    missing: MissingContent | None = None
    if isinstance(text, MissingContent):
        section_text, missing = NO_AWARENESS, text
    elif text.strip():
        section_text = text
    else:
        section_text, missing = NO_PROJECTS, MissingContent("context", "the memory has nothing to show")
    section = Section(
        "context",
        section_text,
        priority=Priority.HIGH,
        max_tokens=inputs.limit_tokens,
        stability=Stability.TURN,
    )
    return RenderedSections(sections=(section,), warnings=(missing,) if missing else (), fresh=True)


def _list_section(
    name: str, entries: Sequence[str], priority: Priority, keep: Keep, stability: Stability
) -> Section:
    return Section(name, items=entries, priority=priority, keep=keep, stability=stability)


def _tool_text(tool: ToolText) -> str:
    head = f"Tool {tool.name}: {tool.description}" if tool.description else f"Tool {tool.name}"
    return f"{head}\n{tool.schema}" if tool.schema else head


def render_awareness(nodes: Iterable[Node] | MissingContent) -> RenderedSections:
    """Render the section awareness: each active project with its state, deadlines and id, or why there is none.

    Projects are in the order of the memory, so that a change of one leaves those before it unchanged.
    """
    if isinstance(nodes, MissingContent):
        return _build_awareness([NO_AWARENESS], nodes)
    projects = [_project_line(node) for node in active_projects(nodes)]
    if not projects:
        return _build_awareness(
            [NO_PROJECTS], MissingContent(AWARENESS_SECTION_NAME, "the memory has no active projects")
        )
    return _build_awareness(projects)


def _build_awareness(lines: list[str], *warnings: MissingContent) -> RenderedSections:
    section = Section(
        AWARENESS_SECTION_NAME, items=lines, priority=Priority.HIGH, keep=Keep.HEAD, stability=Stability.TURN
    )
    return RenderedSections(sections=(section,), warnings=warnings, fresh=True)


def _project_line(node: Node) -> str:
    state = f" [{node.todo}]" if node.todo else ""
    details = [*(f"deadline {_stamp_text(stamp)}" for stamp in node.deadlines), f"id {_on_one_line(node.id)}"]
    return f"Project{state}: {_on_one_line(node.title)} ({'; '.join(details)})"


def _stamp_text(stamp: PlanningDate) -> str:
    day = stamp.at.isoformat(timespec="minutes") if stamp.has_time else stamp.at.date().isoformat()
    return f"{day} {stamp.repeater}".rstrip()


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


class PromptParts:
    """LRU cache of prefixes and contexts, `capacity` of each.

    Thread-safe. Concurrent callers may both build the same part, and then get the same value. No caller waits
    for another, so a build that hangs or fails delays nobody else.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        """A capacity of 0 disables the cache.

        Raises:
            BadOption: the capacity is negative.
        """
        if capacity < 0:
            raise BadOption(f"capacity must be a number, 0 or more, not {capacity!r}", path=("capacity",))
        self._prefixes: LruCache[RenderedSections] = LruCache(capacity)
        self._contexts: LruCache[RenderedSections] = LruCache(capacity)
        register(self)

    def prefix(self, inputs: PrefixInputs) -> RenderedSections:
        cached = self._prefixes.get(inputs)
        if cached is not None:
            return cached
        generation = self._prefixes.generation
        return _store(self._prefixes, inputs, render_prefix(inputs), generation)

    def context(
        self, kind: str, inputs: ContextInputs, build: Callable[[ContextInputs], str | None]
    ) -> RenderedSections:
        """Return the context section; `build` is called only if it is not cached.

        Heartbeats and delegations get no section. If `build` returns None, or raises a FoveateError or an
        OSError, the section is a placeholder with a warning, and the next call tries again.

        Raises:
            BadOption: there is no such kind of call, or `build` does not return a text.
        """
        if parse_choice(CallKind, kind, ("kind",)) in _WITHOUT_CONTEXT:
            return RenderedSections(sections=(), warnings=(), fresh=False)
        cached = self._contexts.get(inputs)
        if cached is not None:
            return cached
        generation = self._contexts.generation
        text = _build_text(build, inputs)
        built = render_context(inputs, text)
        if isinstance(text, MissingContent):
            return built
        return _store(self._contexts, inputs, built, generation)

    def clear(self) -> None:
        """Empty the cache; what is being built now is not stored either.

        Counters cache texts too; `foveate.tokens.drop_caches` empties all caches.
        """
        self._prefixes.clear()
        self._contexts.clear()


def _build_text(build: Callable[[ContextInputs], str | None], inputs: ContextInputs) -> str | MissingContent:
    try:
        text = build(inputs)
    except FoveateError as error:
        return MissingContent("context", str(error) or error.code)
    except OSError as error:
        return MissingContent("context", str(error) or type(error).__name__)
    return MissingContent("context", "there is no memory to show") if text is None else text


def _store(
    cache: LruCache[RenderedSections],
    inputs: PrefixInputs | ContextInputs,
    built: RenderedSections,
    generation: int,
) -> RenderedSections:
    """Cache `built` for later calls, unless another thread was first."""
    cached = replace(built, fresh=False)
    current = cache.put_if_absent(inputs, cached, generation)
    return built if current is cached else current

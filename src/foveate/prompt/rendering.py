"""The prefix and the context as sections for the budget, with a visible line where a part is missing."""

from collections.abc import Sequence
from dataclasses import dataclass

from foveate.budget.sections import Keep, Priority, Section, Stability
from foveate.cache.tool_order import sort_tools
from foveate.prompt.inputs import ContextInputs, PrefixInputs, ToolText, check_type

NO_IDENTITY = "[Identity not available]"
NO_MANDATES = "No standing mandates."
NO_TOOLS = "No tools available."
NO_FEEDBACK = "No feedback yet."
NO_AWARENESS = "[Awareness not available]"
NO_PROJECTS = "No active projects found."


@dataclass(frozen=True, slots=True)
class MissingPart:
    """A warning: why a section shows a placeholder instead of what belongs there."""

    section: str
    reason: str

    def __str__(self) -> str:
        """As a line for a log."""
        return f"{self.section}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedSections:
    """Sections for the budget, what was missing in them, and whether this call built them (`fresh`)."""

    sections: tuple[Section, ...]
    warnings: tuple[MissingPart, ...]
    fresh: bool


def render_prefix(inputs: PrefixInputs) -> RenderedSections:
    """The sections identity, mandates, tools and feedback.

    Feedback comes last, because it alone changes within a session: what stands before it stays in the
    provider's cache, for whose sake tools are sorted by name. Each entry says what it is, so that a cut leaves
    none that cannot be understood. A mandate that is given twice stands and counts once.
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
    given = (identity, mandates, tools, feedback)
    warnings = tuple(
        MissingPart(section.name, "none was given")
        for section, entries in zip(sections, given, strict=True)
        if not entries
    )
    return RenderedSections(sections=sections, warnings=warnings, fresh=True)


def render_context(inputs: ContextInputs, text: str | MissingPart) -> RenderedSections:
    """The section context: the text that shows the memory, or why there is none.

    The limit in `inputs` caps the section, so that it holds whoever made the text.

    Raises:
        BadOption: it is something else than a text.
    """
    check_type(text, (str, MissingPart), "a text", ("context", "text"))
    missing: MissingPart | None = None
    if isinstance(text, MissingPart):
        shown, missing = NO_AWARENESS, text
    elif text.strip():
        shown = text
    else:
        shown, missing = NO_PROJECTS, MissingPart("context", "the memory has nothing to show")
    section = Section(
        "context",
        shown,
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

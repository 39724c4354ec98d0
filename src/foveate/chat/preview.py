"""Preview of the next request: its parts and their share of the context window."""

import re
from dataclasses import dataclass

from foveate import formats
from foveate.budget.model_limits import DEFAULT_TOKENS
from foveate.engine.background.tracing import SUMMARY, break_down_window
from foveate.engine.context import RequestContext
from foveate.engine.exchange import Exchange
from foveate.engine.steps.names import SECTIONS
from foveate.model import InsertParts, Text, TokenCount

_SECTION_REASON = re.compile(r"section ([^,]+),")


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionPreview:
    name: str
    tokens: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPreview:
    """The next request as it would be sent.

    `window_tokens` is None if the model's window is unknown, and `count` if nothing is counted. `parts` is
    everything in the window by name. `sections` are injected, with at most `sections_limit` tokens together.
    """

    model: str
    count: TokenCount | None
    window_tokens: int | None
    output_reserve: int
    sections: tuple[SectionPreview, ...] = ()
    parts: tuple[tuple[str, int], ...] = ()
    sections_limit: int | None = None
    problems: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        return self.count.tokens if self.count is not None else 0

    @property
    def is_compacted(self) -> bool:
        return any(name == SUMMARY for name, _ in self.parts)

    @property
    def token_budget(self) -> int:
        return max(1, (self.window_tokens or DEFAULT_TOKENS) - self.output_reserve)

    @property
    def share(self) -> float:
        return self.tokens / self.token_budget


def build_preview(exchange: Exchange, *, max_tokens: int) -> RequestPreview:
    """Build the preview of a prepared request.

    Raises:
        MalformedRequest: it cannot be parsed.
    """
    context = exchange.context
    if context is None:
        problems = tuple(problem.reason for problem in exchange.upstream_request.problems)
        return RequestPreview(
            model="", count=None, window_tokens=None, output_reserve=max_tokens, problems=problems
        )
    sections = context.options.sections
    context.sent_history = formats.message_history(context.request)
    return RequestPreview(
        model=context.model,
        count=context.count.total,
        window_tokens=context.window_tokens,
        output_reserve=context.output_reserve_tokens,
        sections=tuple(_list_injected_sections(context)),
        parts=tuple((part.name, part.tokens) for part in break_down_window(context)),
        sections_limit=None if sections is None else sections.total_tokens,
        problems=tuple(f"{problem.step}: {problem.reason}" for problem in context.problems),
    )


def _list_injected_sections(context: RequestContext) -> list[SectionPreview]:
    """List the injected sections, whose names are in the reasons of their edits."""
    sections = []
    for applied_edit in context.applied_edits:
        edit = applied_edit.edit
        if applied_edit.step != SECTIONS or not isinstance(edit, InsertParts):
            continue
        name = _SECTION_REASON.match(edit.reason)
        text = "\n".join(part.text for part in edit.parts if isinstance(part, Text))
        sections.append(
            SectionPreview(name=name[1] if name else "said before", tokens=-edit.saved_tokens, text=text)
        )
    return sections

"""The assembled prompt, and a report of what was done to make it fit."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from foveate.budget.sections import Priority, Stability, parse_choice
from foveate.model import ApiFormat, Format, TokenCount
from foveate.notebook import BarRow, format_tokens, render_bars

SECTION_SEPARATOR = "\n\n"

BUDGET_SECTION_NAME = "context_budget"
"""Name of the section that reports the budget. It counts, but has no line of its own in the report."""


class LimitSource(StrEnum):
    """Who set the limit. The first of these that is given applies."""

    CALL = "call"
    ENVIRONMENT = "environment"
    AGENT = "agent"
    CONFIGURATION = "configuration"
    WINDOW = "window"
    DEFAULT = "default"


class Action(StrEnum):
    KEPT = "kept"
    TRUNCATED = "truncated"
    REPLACED = "replaced"
    DROPPED = "dropped"
    DISABLED = "disabled"


class SectionReport(msgspec.Struct, frozen=True):
    """A section in the prompt: its text, and its tokens before and after all cuts.

    `upper` is the upper bound after all cuts, which limits and caps apply to; for exact counters it equals
    `after`. `cap_tokens` is the section's own cap, by number or share, or None. A struct of msgspec, since
    prompts can have thousands of these.
    """

    name: str
    priority: Priority
    stability: Stability
    before: int
    after: int
    upper: int
    cap_tokens: int | None
    action: Action
    text: str

    def __repr__(self) -> str:
        """Without the text, which can be megabytes."""
        return f"<SectionReport {self.name!r}: {self.action}, {self.after:,} of {self.before:,} tokens>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One cut: the section, the rung (`cap` for the section's own cap), tokens before and after, and the
    reason.
    """

    section: str
    rung: str
    before: int
    after: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prompt:
    """A prompt that fits: its text, the count of the whole text, and how it was made.

    `limit_source` tells who set the limit. `unmatched` are names in the rules and in a custom ladder that no
    section has, which are often typos.
    """

    text: str
    count: TokenCount
    limit_tokens: int
    sections: tuple[SectionReport, ...]
    cuts: tuple[Cut, ...]
    limit_source: LimitSource = LimitSource.CALL
    unmatched: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens of the whole text."""
        return self.count.tokens

    @property
    def report(self) -> str:
        """The budget as an agent can be shown it."""
        return render_budget_section(self.sections, tokens=self.count.upper, limit_tokens=self.limit_tokens)

    def as_messages(self, *, api_format: ApiFormat = "openai-chat") -> dict[str, Any]:
        """Return the prompt as fields of a request: its messages, and the system prompt where the API has one.

        Sections with the stability `static` or `session` become the system prompt, because providers cache what
        stays the same from call to call. Sections with the stability `turn`, which is the default, become a
        user message after it. Both keep the order of the sections. Pass the result to an SDK with `**`.

            >>> import foveate
            >>> rules = foveate.Section("rules", "Answer in one word.", stability="static")
            >>> question = foveate.Section("question", "What is the capital of France?")
            >>> prompt = foveate.assemble([rules, question])
            >>> prompt.as_messages(api_format="anthropic")["system"]
            'Answer in one word.'
            >>> [message["role"] for message in prompt.as_messages()["messages"]]
            ['system', 'user']

        Args:
            api_format: the format of the request. `openai-chat` has `messages`; `openai-responses` has
                `instructions` and `input`; `anthropic` and `bedrock` have `system` and `messages`; `gemini` has
                `system_instruction` and `contents`, as in its REST API. A system prompt or a user message
                without text is left out.

        Raises:
            BadOption: an unknown format.
        """
        chosen = parse_choice(Format, api_format, ("api_format",))
        is_turn = [section.stability is Stability.TURN for section in self.sections]
        system, user = (
            SECTION_SEPARATOR.join(
                section.text
                for section, goes_to_user in zip(self.sections, is_turn, strict=True)
                if section.text and goes_to_user is wanted
            )
            for wanted in (False, True)
        )
        return _REQUEST_BUILDERS[chosen](system, user)

    def __repr__(self) -> str:
        """Without the texts, which can be megabytes."""
        cuts = f", {len(self.cuts):,} cut{'s' * (len(self.cuts) != 1)}" if self.cuts else ""
        return f"<Prompt: {self._size}, {len(self.sections):,} section{'s' * (len(self.sections) != 1)}{cuts}>"

    @property
    def _size(self) -> str:
        return f"{format_tokens(self.tokens, exact=self.count.exact)} of {self.limit_tokens:,} tokens"

    def _repr_html_(self) -> str:
        rows = [
            BarRow(
                name=section.name,
                tokens=section.after,
                tokens_before=section.before,
                size=f"{section.after:,} of {section.before:,}",
                note=str(section.priority) + ("" if section.action is Action.KEPT else f", {section.action}"),
            )
            for section in self.sections
        ]
        return render_bars(f"prompt: {self._size}", rows)


def _chat_request(system: str, user: str) -> dict[str, Any]:
    roles = {"system": system, "user": user}
    return {"messages": [{"role": role, "content": text} for role, text in roles.items() if text]}


def _responses_request(system: str, user: str) -> dict[str, Any]:
    instructions = {"instructions": system} if system else {}
    return {**instructions, "input": [{"role": "user", "content": user}] if user else []}


def _anthropic_request(system: str, user: str) -> dict[str, Any]:
    fields = {"system": system} if system else {}
    return {**fields, "messages": [{"role": "user", "content": user}] if user else []}


def _gemini_request(system: str, user: str) -> dict[str, Any]:
    instruction = {"system_instruction": {"parts": [{"text": system}]}} if system else {}
    return {**instruction, "contents": [{"role": "user", "parts": [{"text": user}]}] if user else []}


def _bedrock_request(system: str, user: str) -> dict[str, Any]:
    fields = {"system": [{"text": system}]} if system else {}
    return {**fields, "messages": [{"role": "user", "content": [{"text": user}]}] if user else []}


_REQUEST_BUILDERS: Mapping[Format, Callable[[str, str], dict[str, Any]]] = {
    Format.ANTHROPIC: _anthropic_request,
    Format.CHAT: _chat_request,
    Format.RESPONSES: _responses_request,
    Format.GEMINI: _gemini_request,
    Format.BEDROCK: _bedrock_request,
}


def render_budget_section(sections: Iterable[SectionReport], *, tokens: int, limit_tokens: int) -> str:
    """Write the section `## Context Budget`: the total, then a line for each section that is not disabled.

    Estimates are shown as upper bounds, since limits and caps apply to those.
    """
    percent = round(100 * tokens / limit_tokens) if limit_tokens else 100
    lines = ["## Context Budget", f"Using {tokens}/{limit_tokens} tokens ({percent}%)"]
    lines += [
        _section_line(section)
        for section in sections
        if section.action is not Action.DISABLED and section.name != BUDGET_SECTION_NAME
    ]
    return "\n".join(lines)


def is_near_cap(section: SectionReport) -> bool:
    """From 95% of the cap on. A cap of 0 does not count."""
    cap_tokens = section.cap_tokens
    # Integers, since a cap can exceed the largest float.
    return cap_tokens is not None and 20 * section.upper >= 19 * cap_tokens > 0


def _section_line(section: SectionReport) -> str:
    if section.cap_tokens is None:
        return f"- {section.name}: {section.upper}"
    warning = " (near limit!)" if is_near_cap(section) else ""
    return f"- {section.name}: {section.upper}/{section.cap_tokens}{warning}"

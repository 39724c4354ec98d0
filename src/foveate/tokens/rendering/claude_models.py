"""Tokens that Anthropic's models add to a request: documented figures, and figures measured on recorded usage.

As of November 2026. Documented: images, and the tool system prompts from 4.5 on. Measured: bases, thinking, the
tool prompts of 3.5 to 4, the memory tool. Figures of the other client tools are documented, but not confirmed
by usage.
"""

from dataclasses import dataclass

from foveate.tokens.rendering.images import GridImagePricing
from foveate.tokens.tokenizers.claude import ClaudeVersion, claude_family, parse_claude_version


@dataclass(frozen=True, slots=True)
class ToolPrompt:
    """Tokens of the system prompt for tools, with `tool_choice` free or forced."""

    free_tokens: int
    forced_tokens: int


# A version that is missing here uses the previous one of its series and tokenizer.
_TOOL_PROMPTS = {
    ClaudeVersion("opus", (5, 0)): ToolPrompt(286, 406),
    ClaudeVersion("haiku", (5, 5)): ToolPrompt(286, 406),
    ClaudeVersion("fable", (5, 0)): ToolPrompt(290, 410),
    ClaudeVersion("mythos", (5, 0)): ToolPrompt(290, 410),
    ClaudeVersion("sonnet", (5, 0)): ToolPrompt(354, 474),
    ClaudeVersion("opus", (4, 8)): ToolPrompt(290, 410),
    ClaudeVersion("opus", (4, 7)): ToolPrompt(675, 804),
    ClaudeVersion("opus", (4, 6)): ToolPrompt(497, 589),
    ClaudeVersion("sonnet", (4, 6)): ToolPrompt(497, 589),
    ClaudeVersion("opus", (4, 5)): ToolPrompt(496, 588),
    ClaudeVersion("sonnet", (4, 5)): ToolPrompt(496, 588),
    ClaudeVersion("haiku", (4, 5)): ToolPrompt(496, 588),
    ClaudeVersion("opus", (4, 0)): ToolPrompt(313, 313),
    ClaudeVersion("sonnet", (4, 0)): ToolPrompt(313, 313),
    ClaudeVersion("sonnet", (3, 7)): ToolPrompt(313, 313),
    ClaudeVersion("haiku", (3, 5)): ToolPrompt(264, 340),
    ClaudeVersion("sonnet", (3, 5)): ToolPrompt(294, 261),
    ClaudeVersion("opus", (3, 0)): ToolPrompt(530, 281),
    ClaudeVersion("sonnet", (3, 0)): ToolPrompt(159, 235),
    ClaudeVersion("haiku", (3, 0)): ToolPrompt(264, 340),
}
_TOOL_PROMPT_BY_FAMILY = {
    "claude-2": ToolPrompt(264, 340),
    "claude-3": ToolPrompt(497, 589),
    "claude-4.7": ToolPrompt(290, 410),
}

# Tokens that thinking adds, by mode. None if a tool is forced.
_THINKING = {
    ClaudeVersion("opus", (4, 7)): {"adaptive": 5, "enabled": 5},
    ClaudeVersion("sonnet", (4, 6)): {"enabled": 28},
    ClaudeVersion("opus", (4, 6)): {"enabled": 28, "adaptive": 17},
}
_THINKING_BY_FAMILY = {"claude-2": {}, "claude-3": {"enabled": 29, "adaptive": 17}, "claude-4.7": {}}

_BASE_TOKENS = {"claude-2": 9, "claude-3": 7, "claude-4.7": 6}

# Tools defined by Anthropic; the longest matching name applies. For server tools the results are charged too,
# which no request shows.
CLIENT_TOOL_TOKENS = {"memory": 1068, "bash": 245, "text_editor": 700, "computer": 735}
SERVER_TOOL_TOKENS = {
    "tool_search_tool_regex": 213,
    "tool_search": 194,
    "web_search": 1710,
    "web_fetch": 525,
    "code_execution": 4130,
    "advisor": 500,
    "mcp_toolset": 0,
}
# Factor for the newer tokenizer.
_NEW_TOKENIZER_TOOL_FACTOR = 1.45

TASK_BUDGET_TOKENS = 40

# A PDF page is charged as an image and as its text, which is not extracted here. From public measurements of
# dense pages (November 2026), so with a wide margin.
_PDF_PAGE_TOKENS = {"claude-2": 2110, "claude-3": 2110, "claude-4.7": 2330}
PDF_MARGIN = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeModel:
    family: str
    base_tokens: int
    tool_prompt: ToolPrompt
    thinking_tokens: dict[str, int]
    images: GridImagePricing
    pdf_page_tokens: int
    keeps_thinking: bool
    defers_tools: bool

    def tool_factor(self) -> float:
        return _NEW_TOKENIZER_TOOL_FACTOR if self.family == "claude-4.7" else 1.0


def claude_model_figures(model: str) -> ClaudeModel:
    """Return the figures of `model`. What is unknown is taken from its series or family."""
    version, family = parse_claude_version(model), claude_family(model)
    has_new_tokenizer = family == "claude-4.7"
    thinking = _THINKING_BY_FAMILY[family]
    return ClaudeModel(
        family=family,
        base_tokens=_BASE_TOKENS[family],
        tool_prompt=_find_tool_prompt(version, family),
        thinking_tokens=_THINKING.get(version, thinking) if version else thinking,
        images=GridImagePricing(2576, 4784) if has_new_tokenizer else GridImagePricing(1568, 1568),
        pdf_page_tokens=_PDF_PAGE_TOKENS[family],
        # Thinking of finished turns is dropped, except by Opus 4.5 and all models from 4.6 on (documentation).
        keeps_thinking=has_new_tokenizer or version == ClaudeVersion("opus", (4, 5)) or _is_4_6(version),
        defers_tools=has_new_tokenizer,
    )


def _is_4_6(version: ClaudeVersion | None) -> bool:
    return version is not None and version.number == (4, 6)


def _find_tool_prompt(version: ClaudeVersion | None, family: str) -> ToolPrompt:
    if version is None:
        return _TOOL_PROMPT_BY_FAMILY[family]
    earlier_versions = [
        known
        for known in _TOOL_PROMPTS
        if known.series == version.series
        and known.number <= version.number
        and claude_family(f"claude-{known.series}-{known.number[0]}-{known.number[1]}") == family
    ]
    return _TOOL_PROMPTS[max(earlier_versions)] if earlier_versions else _TOOL_PROMPT_BY_FAMILY[family]

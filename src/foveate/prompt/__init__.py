"""Assembling the prompt: its prefix and its context as sections, rebuilt only when their inputs change."""

from foveate.prompt.inputs import CallKind, ContextInputs, PrefixInputs, ToolText
from foveate.prompt.parts import PromptParts
from foveate.prompt.rendering import Built, Missing, render_context, render_prefix

__all__ = [
    "Built",
    "CallKind",
    "ContextInputs",
    "Missing",
    "PrefixInputs",
    "PromptParts",
    "ToolText",
    "render_context",
    "render_prefix",
]

"""Assembling the prompt: its prefix, its context, the files it carries and the time, as sections."""

from foveate.prompt.awareness import awareness
from foveate.prompt.inputs import CallKind, ContextInputs, PrefixInputs, ToolText
from foveate.prompt.parts import PromptParts
from foveate.prompt.rendering import Built, Missing, render_context, render_prefix
from foveate.prompt.showing import context_inputs, showing
from foveate.prompt.time import TimeAwareness, TimeOptions
from foveate.prompt.workspace import Workspace, WorkspaceCacheOptions, Workspaces

__all__ = [
    "Built",
    "CallKind",
    "ContextInputs",
    "Missing",
    "PrefixInputs",
    "PromptParts",
    "TimeAwareness",
    "TimeOptions",
    "ToolText",
    "Workspace",
    "WorkspaceCacheOptions",
    "Workspaces",
    "awareness",
    "context_inputs",
    "render_context",
    "render_prefix",
    "showing",
]

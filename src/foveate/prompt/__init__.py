"""Assembling the prompt: its prefix, its context, the files it carries and the time, as sections."""

from foveate.prompt.awareness import render_awareness
from foveate.prompt.inputs import CallKind, ContextInputs, PrefixInputs, ToolText
from foveate.prompt.parts import PromptParts
from foveate.prompt.rendering import MissingPart, RenderedSections, render_context, render_prefix
from foveate.prompt.showing import context_inputs, memory_context_builder
from foveate.prompt.time import TimeAwareness, TimeOptions
from foveate.prompt.workspace import Workspace, WorkspaceCache, WorkspaceCacheOptions

__all__ = [
    "CallKind",
    "ContextInputs",
    "MissingPart",
    "PrefixInputs",
    "PromptParts",
    "RenderedSections",
    "TimeAwareness",
    "TimeOptions",
    "ToolText",
    "Workspace",
    "WorkspaceCache",
    "WorkspaceCacheOptions",
    "context_inputs",
    "memory_context_builder",
    "render_awareness",
    "render_context",
    "render_prefix",
]

"""Sections for prompts: the prefix, the context from a memory, workspace files and the time."""

from foveate.context.sections import (
    CallKind,
    ContextInputs,
    MissingContent,
    PrefixInputs,
    PromptParts,
    RenderedSections,
    ToolText,
    context_inputs,
    memory_context_builder,
    render_awareness,
    render_context,
    render_prefix,
)
from foveate.context.time_section import TimeAwareness, TimeOptions
from foveate.context.workspace_cache import Workspace, WorkspaceCache, WorkspaceCacheOptions

__all__ = [
    "CallKind",
    "ContextInputs",
    "MissingContent",
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

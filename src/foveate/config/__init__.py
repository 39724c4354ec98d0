"""Configuration: settings, budgets and sections from files, with errors that name the file, line and key.

Names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveate.config.budget_files import AgentBudget, load_agent_budget, load_budget, save_agent_budget
    from foveate.config.section_files import load_sections, parse_sections

__all__ = [
    "AgentBudget",
    "load_agent_budget",
    "load_budget",
    "load_sections",
    "parse_sections",
    "save_agent_budget",
]

_MODULES_BY_NAME = {
    "AgentBudget": "foveate.config.budget_files",
    "load_agent_budget": "foveate.config.budget_files",
    "load_budget": "foveate.config.budget_files",
    "load_sections": "foveate.config.section_files",
    "parse_sections": "foveate.config.section_files",
    "save_agent_budget": "foveate.config.budget_files",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES_BY_NAME[name]), name)
    globals()[name] = value
    return value

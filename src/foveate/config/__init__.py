"""Configuration: settings, budgets and sections from files, with errors that name the file, line and key.

Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from foveate.lazy_imports import import_on_first_use

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

__getattr__ = import_on_first_use(
    __name__,
    {
        "foveate.config.budget_files": ("AgentBudget", "load_agent_budget", "load_budget", "save_agent_budget"),
        "foveate.config.section_files": ("load_sections", "parse_sections"),
    },
)

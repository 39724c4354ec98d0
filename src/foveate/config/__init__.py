"""Configuration: settings, budgets and sections from files, with errors that name the file, line and key."""

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

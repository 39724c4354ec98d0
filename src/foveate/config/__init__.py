"""What files say: budgets and sections, with errors that name the file, the line and the key."""

from foveate.config.budgets import AgentBudget, load_agent_budget, load_budget, save_agent_budget
from foveate.config.sections import load_sections, parse_sections

__all__ = [
    "AgentBudget",
    "load_agent_budget",
    "load_budget",
    "load_sections",
    "parse_sections",
    "save_agent_budget",
]

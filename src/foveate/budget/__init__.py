"""Token budgets: sections, ladders, truncation, and the assembled prompt with its report."""

from foveate.budget.budget import DEFAULT_BUDGET, Budget, SectionRule, budget_as_data, budget_from_data
from foveate.budget.ladder import Ladder
from foveate.budget.prompt import Action, Cut, Prompt, SectionReport
from foveate.budget.sections import Item, Keep, Priority, Section, Stability

__all__ = [
    "DEFAULT_BUDGET",
    "Action",
    "Budget",
    "Cut",
    "Item",
    "Keep",
    "Ladder",
    "Priority",
    "Prompt",
    "Section",
    "SectionReport",
    "SectionRule",
    "Stability",
    "budget_as_data",
    "budget_from_data",
]

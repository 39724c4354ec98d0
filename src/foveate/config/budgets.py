"""Budgets in files: the operator's, and the one that an agent writes itself in its workspace."""

import stat
from dataclasses import dataclass
from pathlib import Path

from foveate.budget.budgets import Budget
from foveate.budget.data import budget_as_data, budget_from_data
from foveate.config.allowance import within
from foveate.config.documents import SETTINGS_LIMIT_BYTES, Document, document_from, read_document
from foveate.config.files import replace_file, shown
from foveate.errors import BadOption, FoveateError, InputError, UnreadableInput

_HEADING = (
    "# How many tokens the prompt may have, and what each section may take of them. null: no rule of its own.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentBudget:
    """The budget that holds for an agent, what is wrong with its file, and in words what was brought down."""

    budget: Budget
    problem: FoveateError | None
    clamped: tuple[str, ...]


def load_budget(path: Path, *, defaults: Budget | None = None) -> Budget:
    """The budget in a file, laid over `defaults`: what it does not name stays.

    Raises:
        UnreadableInput: no such file, a folder, larger than 1 MB, not UTF-8, or empty.
        BadSetting: an unknown key, a wrong type, an impossible value, or no YAML; names file, line and key.
    """
    return _budget_in(read_document(path), defaults)


def _budget_in(document: Document, defaults: Budget | None) -> Budget:
    try:
        return budget_from_data(document.data, defaults=defaults)
    except BadOption as error:
        raise document.problem(str(error), error.path) from None


def load_agent_budget(path: Path, *, defaults: Budget, allowed: Budget | None) -> AgentBudget:
    """An agent's file laid over `defaults`, with nothing above what `allowed` gives.

    A file that is not there is no problem. One that cannot be used is: then the defaults hold whole.
    """
    budget, problem = defaults, None
    try:
        if _is_there(path):
            budget = load_budget(path, defaults=defaults)
    except InputError as error:
        problem = error
    if allowed is None:
        return AgentBudget(budget=budget, problem=problem, clamped=())
    budget, clamped = within(budget, allowed)
    return AgentBudget(budget=budget, problem=problem, clamped=clamped)


def save_agent_budget(path: Path, budget: Budget) -> None:
    """Write the whole of `budget` as YAML, so that it is read back the same; all of it or nothing.

    Raises:
        BadOption: it would not be: something in it is no text for YAML, or it is larger than 1 MB.
        UnwritableFile: the disk is full, the folder cannot be written, …; what was there is untouched.
    """
    if path.suffix.lower() == ".json":
        raise BadOption(f"{shown(path)}: a budget is written as YAML; let the name end in .yaml")
    # In ASCII only where it must be: PyYAML does not escape a NEL (U+0085) otherwise, and reads it as a blank.
    forms = (_as_yaml(budget, in_ascii=in_ascii) for in_ascii in (False, True))
    written = next((form for form in forms if _reads_back(form, budget)), None)
    if written is None:
        raise BadOption("this budget cannot be written so that it is read back the same")
    replace_file(path, written)


def _as_yaml(budget: Budget, *, in_ascii: bool) -> bytes:
    import yaml

    data = budget_as_data(budget)
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=not in_ascii, default_flow_style=None, width=112)
    return f"{_HEADING}{text}".encode()


def _reads_back(written: bytes, budget: Budget) -> bool:
    if len(written) > SETTINGS_LIMIT_BYTES:
        return False
    try:
        return _budget_in(document_from(written, "budget.yaml"), None) == budget
    except InputError:
        return False


def _is_there(path: Path) -> bool:
    """Whether there is a file; anything else of that name could keep a reader waiting for ever."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UnreadableInput(shown(path), error.strerror or "cannot be read") from None
    except ValueError as error:  # a name with a zero byte in it
        raise UnreadableInput(shown(path), str(error)) from None
    if not stat.S_ISREG(mode):
        raise UnreadableInput(shown(path), "is not a file")
    return True

"""Budgets in files: the operator's, and the one that an agent writes in its workspace."""

import stat
from dataclasses import dataclass
from pathlib import Path

from foveate.budget.budget import Budget, budget_as_data, budget_from_data, clamp_budget
from foveate.config.document import MAX_SETTINGS_BYTES, ConfigDocument, parse_document, read_document
from foveate.config.files import StrPath, display_path, replace_file
from foveate.errors import BadOption, FoveateError, InputError, UnreadableInput

_HEADING = (
    "# Token budget of the prompt: limits for the whole prompt and for each section. null means not set.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentBudget:
    budget: Budget
    problem: FoveateError | None
    clamped: tuple[str, ...]


def load_budget(path: StrPath, *, defaults: Budget | None = None) -> Budget:
    """Load a budget from a file, on top of `defaults`.

    Raises:
        UnreadableInput: the file does not exist, is a folder, exceeds 1 MB, is not UTF-8, or is empty.
        BadSetting: an unknown key, a wrong type, an invalid value, or not YAML; names file, line and key.
    """
    return _parse_budget(read_document(Path(path)), defaults)


def _parse_budget(document: ConfigDocument, defaults: Budget | None) -> Budget:
    try:
        return budget_from_data(document.data, defaults=defaults)
    except BadOption as error:
        raise document.error(str(error), error.path) from None


def load_agent_budget(path: StrPath, *, defaults: Budget, allowed: Budget | None) -> AgentBudget:
    """Load an agent's budget on top of `defaults`, clamped to `allowed`.

    A missing file is not an error. If the file cannot be used or leaves no room for a prompt, the clamped
    defaults apply.
    """
    path = Path(path)
    default_budget, _ = _clamp_budget(defaults, defaults, allowed)
    problem = None
    try:
        if _is_regular_file(path):
            document = read_document(path)
            budget, clamped = _clamp_budget(_parse_budget(document, defaults), defaults, allowed)
            if not _find_room_problem(default_budget):  # otherwise the defaults are to blame
                _check_room(budget, document)
            return AgentBudget(budget=budget, problem=None, clamped=clamped)
    except InputError as error:
        problem = error
    return AgentBudget(budget=default_budget, problem=problem, clamped=())


def _clamp_budget(budget: Budget, defaults: Budget, allowed: Budget | None) -> tuple[Budget, tuple[str, ...]]:
    return (budget, ()) if allowed is None else clamp_budget(budget, allowed, defaults=defaults)


def _check_room(budget: Budget, document: ConfigDocument) -> None:
    """Raise an error at the responsible key if the budget leaves no room for a prompt."""
    if problem := _find_room_problem(budget):
        reserves = isinstance(document.data, dict) and "output_reserve" in document.data
        key = "output_reserve" if reserves and budget.total_tokens else "total_tokens"
        raise document.error(problem, (key,))


def _find_room_problem(budget: Budget) -> str:
    """Explain that nothing is left for a prompt, or return "". The model's window is not known here."""
    total, reserve = budget.total_tokens, budget.output_reserve
    if total is None or total > reserve:
        return ""
    reserved = f" and output_reserve is {reserve}" if total else ""
    return f"total_tokens is {total}{reserved}: no tokens are left for the prompt"


def save_agent_budget(path: StrPath, budget: Budget) -> None:
    """Write `budget` as YAML that reads back the same, atomically.

    Raises:
        BadOption: the budget cannot be written as YAML, exceeds 1 MB, or leaves no room for a prompt.
        UnwritableFile: the disk is full, the folder is not writable, …; the old file is unchanged.
    """
    path = Path(path)
    if path.suffix.lower() == ".json":
        raise BadOption(f"{display_path(path)}: a budget is saved as YAML: use a name that ends in .yaml")
    if problem := _find_room_problem(budget):
        raise BadOption(f"this budget was not saved because it cannot be used: {problem}")
    # ASCII only if needed: PyYAML does not escape NEL (U+0085) otherwise, and reads it back as a space.
    forms = (_to_yaml(budget, in_ascii=in_ascii) for in_ascii in (False, True))
    valid_form = next((form for form in forms if _reads_back(form, budget)), None)
    if valid_form is None:
        raise BadOption("this budget cannot be saved: its YAML exceeds 1 MB or does not read back the same")
    replace_file(path, valid_form)


def _to_yaml(budget: Budget, *, in_ascii: bool) -> bytes:
    import yaml

    data = budget_as_data(budget)
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=not in_ascii, default_flow_style=None, width=112)
    return f"{_HEADING}{text}".encode()


def _reads_back(data: bytes, budget: Budget) -> bool:
    if len(data) > MAX_SETTINGS_BYTES:
        return False
    try:
        return _parse_budget(parse_document(data, "budget.yaml"), None) == budget
    except InputError:
        return False


def _is_regular_file(path: Path) -> bool:
    """Return False for a missing file; raise if it is not a regular file, since reading a pipe could block."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UnreadableInput(display_path(path), error.strerror or "cannot be read") from None
    except ValueError as error:  # a name with a NUL byte
        raise UnreadableInput(display_path(path), str(error)) from None
    if not stat.S_ISREG(mode):
        raise UnreadableInput(display_path(path), "is not a file")
    return True

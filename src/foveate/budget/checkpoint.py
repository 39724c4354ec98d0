"""Budgets and what was used of them as a text to keep, there and back."""

import json
from dataclasses import dataclass

from foveate.budget.budgets import Budget
from foveate.budget.data import budget_as_data, budget_from_data, check_mapping
from foveate.budget.prompt import Action, Prompt
from foveate.budget.sections import check_token_limit
from foveate.errors import BadOption

CHECKPOINT_VERSION = 1

_CHECKPOINT_KEYS = ("version", "budget", "usage")
_USAGE_KEYS = ("tokens", "limit_tokens", "sections")
_SECTION_KEYS = ("name", "tokens", "cap_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionUsage:
    """What a section took, and its own cap where it had one."""

    name: str
    tokens: int
    cap_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUsage:
    """What a prompt took of its limit, and each of its sections."""

    tokens: int
    limit_tokens: int
    sections: tuple[SectionUsage, ...] = ()


def measure_usage(prompt: Prompt) -> BudgetUsage:
    """What `prompt` took, without the sections that were disabled."""
    return BudgetUsage(
        tokens=prompt.tokens,
        limit_tokens=prompt.limit_tokens,
        sections=tuple(
            SectionUsage(name=section.name, tokens=section.after, cap_tokens=section.cap_tokens)
            for section in prompt.sections
            if section.action is not Action.DISABLED
        ),
    )


def checkpoint(budget: Budget, usage: BudgetUsage) -> str:
    """Both as JSON that `restore` reads; the same for equal ones, and ASCII, so that it can be kept anywhere.

    Raises:
        BadOption: something in them that could not be read back, such as a section's name of two lines.
    """
    data = {"version": CHECKPOINT_VERSION, "budget": budget_as_data(budget), "usage": _usage_as_data(usage)}
    text = json.dumps(data, sort_keys=True)
    if restore(text) != (budget, usage):
        raise BadOption("this budget or usage holds a text or number that JSON does not give back as it was")
    return text


def restore(text: str) -> tuple[Budget, BudgetUsage]:
    """The budget and the usage that were kept.

    Raises:
        BadOption: it is not a checkpoint, or of a later version, or holds what cannot be; `path` leads to it.
    """
    try:
        data = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:  # the first for what is no text at all
        raise BadOption(f"a checkpoint is JSON, and this is not: {error}") from None
    version = data.get("version") if isinstance(data, dict) else None
    if type(version) is not int or version < 1:  # true is an int too
        raise BadOption("this is not a checkpoint: it has no version", path=("version",))
    if version > CHECKPOINT_VERSION:
        raise BadOption(
            f"this checkpoint is of version {version}, and only those up to {CHECKPOINT_VERSION} can be read: "
            "restore it with the newer Foveate that wrote it",
            path=("version",),
        )
    given = check_mapping(data, _CHECKPOINT_KEYS, "a checkpoint", ())
    return _parse_budget(given.get("budget")), _parse_usage(given.get("usage"))


def _parse_budget(data: object) -> Budget:
    try:
        return budget_from_data(data)
    except BadOption as error:
        raise BadOption(f"the checkpoint's budget: {error}", path=("budget", *error.path)) from None


def _usage_as_data(usage: BudgetUsage) -> dict[str, object]:
    sections = [
        {"name": section.name, "tokens": section.tokens, "cap_tokens": section.cap_tokens}
        for section in usage.sections
    ]
    return {"tokens": usage.tokens, "limit_tokens": usage.limit_tokens, "sections": sections}


def _parse_usage(data: object) -> BudgetUsage:
    given = check_mapping(data, _USAGE_KEYS, "the checkpoint's usage", ("usage",))
    sections = given.get("sections")
    if not isinstance(sections, list):
        raise BadOption(f"usage.sections is a list, not {sections!r}", path=("usage", "sections"))
    return BudgetUsage(
        tokens=_parse_tokens(given.get("tokens"), ("usage", "tokens")),
        limit_tokens=_parse_tokens(given.get("limit_tokens"), ("usage", "limit_tokens")),
        sections=tuple(_parse_section_usage(section, number) for number, section in enumerate(sections)),
    )


def _parse_section_usage(data: object, number: int) -> SectionUsage:
    path = ("usage", "sections", str(number))
    given = check_mapping(data, _SECTION_KEYS, f"usage.sections.{number}", path)
    name = given.get("name")
    if not isinstance(name, str):
        raise BadOption(f"{'.'.join(path)}.name is a text, not {name!r}", path=(*path, "name"))
    return SectionUsage(
        name=name,
        tokens=_parse_tokens(given.get("tokens"), (*path, "tokens")),
        cap_tokens=check_token_limit(given.get("cap_tokens"), (*path, "cap_tokens")),
    )


def _parse_tokens(value: object, path: tuple[str, ...]) -> int:
    tokens = check_token_limit(value, path)
    if tokens is None:
        raise BadOption(f"{'.'.join(path)} is missing", path=path)
    return tokens

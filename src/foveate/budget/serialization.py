"""Budgets as plain data, for files and checkpoints."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from foveate.budget.budget import Budget, SectionRule
from foveate.budget.ladder import BUILT_IN_LADDERS, CUSTOM_LADDER_NAME, Ladder, parse_ladder, rung_as_data
from foveate.budget.prompt import Action, Prompt
from foveate.budget.sections import Keep, Priority, Section, check_share, check_token_limit, parse_choice
from foveate.errors import BadOption

_LADDER_KEYS = ("ladder", "overflow_policy")
_BUDGET_KEYS = ("total_tokens", "output_reserve", *_LADDER_KEYS, "sections")
_RULE_KEYS = tuple(field.name for field in fields(SectionRule))
CHECKPOINT_VERSION = 1
_CHECKPOINT_KEYS = ("version", "budget", "usage")
_USAGE_KEYS = ("tokens", "limit_tokens", "sections")
_SECTION_KEYS = ("name", "tokens", "cap_tokens")


def budget_from_data(data: object, *, defaults: Budget | None = None) -> Budget:
    """Return the budget in `data`, merged over `defaults`.

    Rules of sections are merged by name and field. The name of a ladder or a list of rungs is a budget with
    only that ladder.

        >>> budget_from_data({"total_tokens": 4000, "sections": {"logs": {"share": 0.1}}}).total_tokens
        4000

    Raises:
        BadOption: an unknown key, a wrong type or an invalid value; `path` leads to it.
    """
    base = defaults or Budget()
    if isinstance(data, (str, list)):
        return Budget(base.total_tokens, base.output_reserve, _parse_ladder(data, ()), sections=base.sections)
    fields = check_mapping(data, _BUDGET_KEYS, "a budget", ())
    ladders = [key for key in _LADDER_KEYS if key in fields]
    if len(ladders) > 1:
        raise BadOption("ladder and overflow_policy mean the same: set only one of them", path=(ladders[-1],))
    return Budget(
        fields.get("total_tokens", base.total_tokens),
        fields.get("output_reserve", base.output_reserve),
        _parse_ladder(fields[ladders[0]], (ladders[0],)) if ladders else base.ladder,
        sections=_parse_sections(fields["sections"], base.sections) if "sections" in fields else base.sections,
    )


def to_budget(value: object) -> Budget:
    """Convert what arguments accept as a budget: a budget, a ladder, or either as plain data.

    Raises:
        BadOption: none of these.
    """
    match value:
        case Budget():
            return value
        case Ladder():
            return Budget(ladder=value)
        case int():
            raise BadOption(f"a number is not a budget: use Budget(total_tokens={value})")
        case tuple():
            return Budget(ladder=value)
        case _:
            return budget_from_data(value)


def budget_as_data(budget: Budget) -> dict[str, object]:
    """Return the whole budget, including None, so that merged over any other it gives the same budget."""
    return {
        "total_tokens": budget.total_tokens,
        "output_reserve": budget.output_reserve,
        "ladder": _ladder_as_data(budget.ladder),
        "sections": {name: _rule_as_data(rule) for name, rule in budget.sections.items()},
    }


def check_mapping(
    value: object, known: tuple[str, ...], description: str, path: tuple[str | int, ...]
) -> Mapping[str, Any]:
    """Return `value` if it is a mapping with no other keys than `known`.

    Raises:
        BadOption: it is not; the message suggests a key for an unknown one.
    """
    if not isinstance(value, Mapping):
        raise BadOption(f"{description} must be a mapping with {', '.join(known)}, not {value!r}", path=path)
    for key in value:
        if key not in known:
            raise BadOption(
                f"{description} has no key {key!r}; {_suggest_key(str(key), known)}", path=(*path, str(key))
            )
    return value


def check_section_name(value: Any, path: tuple[str | int, ...]) -> str:
    """Return `value` if it is a valid name of a section.

    Raises:
        BadOption: it is not.
    """
    try:
        return Section(value, "").name
    except BadOption as error:
        raise BadOption(str(error), path=path) from None


def _suggest_key(key: str, known: tuple[str, ...]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(key.casefold(), known, n=1)
    return f"did you mean {close[0]}?" if close else f"its keys are {', '.join(known)}"


def _parse_sections(value: object, base: Mapping[str, SectionRule]) -> dict[str, SectionRule]:
    if not isinstance(value, Mapping):
        raise BadOption(f"sections must be a mapping of names to rules, not {value!r}", path=("sections",))
    rules = dict(base)
    for name, rule in value.items():
        path = "sections", check_section_name(name, ("sections", str(name)))
        rules[name] = _parse_rule(rule, path, rules.get(name, SectionRule()))
    return rules


def _parse_rule(value: object, path: tuple[str, ...], base: SectionRule) -> SectionRule:
    fields = check_mapping(value, _RULE_KEYS, f"the rule for {path[-1]!r}", path)
    priority, keep = fields.get("priority", base.priority), fields.get("keep", base.keep)
    enabled = fields.get("enabled", base.enabled)
    if not (enabled is None or isinstance(enabled, bool)):
        raise BadOption(
            f"{'.'.join(path)}.enabled must be true or false, not {enabled!r}", path=(*path, "enabled")
        )
    return SectionRule(
        priority=None if priority is None else parse_choice(Priority, priority, (*path, "priority")),
        max_tokens=check_token_limit(fields.get("max_tokens", base.max_tokens), (*path, "max_tokens")),
        share=check_share(fields.get("share", base.share), (*path, "share")),
        keep=None if keep is None else parse_choice(Keep, keep, (*path, "keep")),
        enabled=enabled,
    )


def _rule_as_data(rule: SectionRule) -> dict[str, object]:
    return {
        "priority": None if rule.priority is None else rule.priority.value,
        "max_tokens": rule.max_tokens,
        "share": rule.share,
        "keep": None if rule.keep is None else rule.keep.value,
        "enabled": rule.enabled,
    }


def _parse_ladder(value: Any, path: tuple[str, ...]) -> Ladder:
    match value:
        case {"name": str(name), "rungs": list(rungs), **rest} if name and not rest:
            return Ladder(name, _parse_ladder(rungs, (*path, "rungs")).rungs if rungs else ())
    try:
        return parse_ladder(value)
    except BadOption as error:
        raise BadOption(str(error), path=(*path, *_find_wrong_rung(value))) from None


def _find_wrong_rung(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        return ()
    for index, rung in enumerate(value):
        try:
            parse_ladder([rung])
        except BadOption:
            return (index,)
    return ()


def _ladder_as_data(ladder: Ladder) -> object:
    if BUILT_IN_LADDERS.get(ladder.name) == ladder:
        return ladder.name
    rungs = [rung_as_data(rung) for rung in ladder.rungs]
    return rungs if rungs and ladder.name == CUSTOM_LADDER_NAME else {"name": ladder.name, "rungs": rungs}


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionUsage:
    name: str
    tokens: int
    cap_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUsage:
    tokens: int
    limit_tokens: int
    sections: tuple[SectionUsage, ...] = ()


def measure_usage(prompt: Prompt) -> BudgetUsage:
    """Disabled sections are left out."""
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
    """Return both as JSON for `restore`. Equal values give the same text, in ASCII.

    Raises:
        BadOption: a value that could not be restored, such as a section name of two lines.
    """
    data = {"version": CHECKPOINT_VERSION, "budget": budget_as_data(budget), "usage": _usage_as_data(usage)}
    text = json.dumps(data, sort_keys=True)
    if restore(text) != (budget, usage):
        raise BadOption("this budget or usage contains a text or number that JSON cannot represent exactly")
    return text


def restore(text: str) -> tuple[Budget, BudgetUsage]:
    """Return the budget and the usage of a checkpoint.

    Raises:
        BadOption: not a checkpoint, a later version, or an invalid value; `path` leads to it.
    """
    try:
        data = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:  # TypeError if it is not a text
        raise BadOption(f"this checkpoint is not JSON: {error}") from None
    version = data.get("version") if isinstance(data, dict) else None
    if type(version) is not int or version < 1:  # True is an int
        raise BadOption("this is not a checkpoint: it has no version", path=("version",))
    if version > CHECKPOINT_VERSION:
        raise BadOption(
            f"this checkpoint has version {version}, but only versions up to {CHECKPOINT_VERSION} can be read: "
            "restore it with the newer Foveate that wrote it",
            path=("version",),
        )
    fields = check_mapping(data, _CHECKPOINT_KEYS, "a checkpoint", ())
    return _parse_budget(fields.get("budget")), _parse_usage(fields.get("usage"))


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
    fields = check_mapping(data, _USAGE_KEYS, "the checkpoint's usage", ("usage",))
    sections = fields.get("sections")
    if not isinstance(sections, list):
        raise BadOption(f"usage.sections must be a list, not {sections!r}", path=("usage", "sections"))
    return BudgetUsage(
        tokens=_parse_tokens(fields.get("tokens"), ("usage", "tokens")),
        limit_tokens=_parse_tokens(fields.get("limit_tokens"), ("usage", "limit_tokens")),
        sections=tuple(_parse_section_usage(section, number) for number, section in enumerate(sections)),
    )


def _parse_section_usage(data: object, number: int) -> SectionUsage:
    path = ("usage", "sections", str(number))
    fields = check_mapping(data, _SECTION_KEYS, f"usage.sections.{number}", path)
    name = fields.get("name")
    if not isinstance(name, str):
        raise BadOption(f"{'.'.join(path)}.name must be text, not {name!r}", path=(*path, "name"))
    return SectionUsage(
        name=name,
        tokens=_parse_tokens(fields.get("tokens"), (*path, "tokens")),
        cap_tokens=check_token_limit(fields.get("cap_tokens"), (*path, "cap_tokens")),
    )


def _parse_tokens(value: object, path: tuple[str, ...]) -> int:
    tokens = check_token_limit(value, path)
    if tokens is None:
        raise BadOption(f"{'.'.join(path)} is missing", path=path)
    return tokens

"""Budgets: how many tokens a prompt may have, rules for its sections, and who may override whom.

As plain data, a budget can be in a file, and in a checkpoint with what a prompt used of it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, TypeVar

from foveate.budget.ladder import (
    BUILT_IN_LADDERS,
    CUSTOM_LADDER_NAME,
    TRUNCATE_LOW_PRIORITY,
    Ladder,
    LadderLike,
    LadderName,
    parse_ladder,
    rung_as_data,
)
from foveate.budget.prompt import Action, Prompt
from foveate.budget.sections import (
    Keep,
    KeepName,
    Priority,
    PriorityName,
    Section,
    check_share,
    check_token_limit,
    parse_choice,
)
from foveate.errors import BadOption

_SECTION_DEFAULT = "the section's own"
_ENABLED_NAMES = {True: "true", False: "false", None: _SECTION_DEFAULT}
Number = TypeVar("Number", int, float)

_LADDER_KEYS = ("ladder", "overflow_policy")
_BUDGET_KEYS = ("total_tokens", "output_reserve", *_LADDER_KEYS, "sections")
CHECKPOINT_VERSION = 1
_CHECKPOINT_KEYS = ("version", "budget", "usage")
_BUDGET_USAGE_KEYS = ("tokens", "limit_tokens", "sections")
_SECTION_USAGE_KEYS = ("name", "tokens", "cap_tokens")


def smaller_limit(first: Number | None, second: Number | None) -> Number | None:
    """None means no limit."""
    return min((limit for limit in (first, second) if limit is not None), default=None)


@dataclass(frozen=True, slots=True, init=False)
class SectionRule:
    """Rule of a budget for a section. A field that is None leaves the section's own value."""

    priority: Priority | None
    max_tokens: int | None
    share: float | None
    keep: Keep | None
    enabled: bool | None

    def __init__(
        self,
        *,
        priority: Priority | PriorityName | None = None,
        max_tokens: int | None = None,
        share: float | None = None,
        keep: Keep | KeepName | None = None,
        enabled: bool | None = None,
    ) -> None:
        """Validate and convert the values.

        Raises:
            BadOption: an invalid value; its `path` names the field.
        """
        if not (enabled is None or isinstance(enabled, bool)):
            raise BadOption(f"enabled must be true or false, not {enabled!r}", path=("enabled",))
        set_field = object.__setattr__
        set_field(
            self, "priority", None if priority is None else parse_choice(Priority, priority, ("priority",))
        )
        set_field(self, "max_tokens", check_token_limit(max_tokens, ("max_tokens",)))
        set_field(self, "share", check_share(share, ("share",)))
        set_field(self, "keep", None if keep is None else parse_choice(Keep, keep, ("keep",)))
        set_field(self, "enabled", enabled)

    def over(self, other: "SectionRule") -> "SectionRule":
        """Return this rule with the missing fields taken from `other`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(other, **{name: value for name, value in values.items() if value is not None})

    def applied(self, section: Section) -> Section:
        """Of two caps the smaller applies."""
        return Section(
            section.name,
            section.text if section.items is None else None,
            items=section.items,
            priority=self.priority or section.priority,
            max_tokens=smaller_limit(self.max_tokens, section.max_tokens),
            share=smaller_limit(self.share, section.share),
            keep=self.keep or section.keep,
            stability=section.stability,
            enabled=section.enabled if self.enabled is None else self.enabled,
        )


@dataclass(frozen=True, slots=True, init=False)
class Budget:
    """Tokens of a prompt, the part reserved for the response, and what is cut if a prompt does not fit.

    Without `total_tokens` the model's context window is the limit. `sections` are rules by section name.
    `overflow_policy` is another name for `ladder`.

        >>> Budget(total_tokens=4000, output_reserve=500).ladder.name
        'truncate_low_priority'
    """

    total_tokens: int | None
    output_reserve: int
    ladder: Ladder
    sections: Mapping[str, SectionRule]

    def __init__(
        self,
        total_tokens: int | None = None,
        output_reserve: int = 0,
        ladder: LadderLike | None = None,
        *,
        sections: Mapping[str, SectionRule] | None = None,
        overflow_policy: LadderName | None = None,
    ) -> None:
        """Validate the values.

        Raises:
            BadOption: an invalid value; the message and its `path` name the field.
        """
        if ladder is not None and overflow_policy is not None:
            raise BadOption(
                "ladder and overflow_policy mean the same: set only one of them", path=("overflow_policy",)
            )
        reserve = check_token_limit(output_reserve, ("output_reserve",))
        if reserve is None:
            raise BadOption(
                "output_reserve must be a number of tokens, 0 or more, not None", path=("output_reserve",)
            )
        chosen_ladder = next((value for value in (ladder, overflow_policy) if value is not None), None)
        set_field = object.__setattr__
        set_field(self, "total_tokens", check_token_limit(total_tokens, ("total_tokens",)))
        set_field(self, "output_reserve", reserve)
        set_field(
            self, "ladder", TRUNCATE_LOW_PRIORITY if chosen_ladder is None else parse_ladder(chosen_ladder)
        )
        set_field(
            self,
            "sections",
            MappingProxyType({name: _check_rule(rule, name) for name, rule in (sections or {}).items()}),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_budget, (self.total_tokens, self.output_reserve, self.ladder, dict(self.sections))

    def __hash__(self) -> int:
        return hash((self.total_tokens, self.output_reserve, self.ladder, frozenset(self.sections.items())))


def _restore_budget(
    total_tokens: int | None, output_reserve: int, ladder: Ladder, sections: Mapping[str, SectionRule]
) -> Budget:
    return Budget(total_tokens, output_reserve, ladder, sections=sections)


def _check_rule(rule: object, name: str) -> SectionRule:
    if not isinstance(rule, SectionRule):
        raise BadOption(f"sections.{name} must be a SectionRule, not {rule!r}", path=("sections", name))
    return rule


DEFAULT_BUDGET = Budget(
    4000,
    sections={
        "system_prompt": SectionRule(max_tokens=500, priority=Priority.REQUIRED, keep=Keep.HEAD),
        "working_memory": SectionRule(max_tokens=800, priority=Priority.HIGH, keep=Keep.HEAD),
        "rag_memories": SectionRule(max_tokens=600, priority=Priority.MEDIUM, keep=Keep.RELEVANT),
        "action_history": SectionRule(max_tokens=400, priority=Priority.MEDIUM, keep=Keep.NEWEST),
        "subscribed_artifacts": SectionRule(max_tokens=400, priority=Priority.MEDIUM, keep=Keep.HEAD),
        "recent_events": SectionRule(max_tokens=300, priority=Priority.LOW, keep=Keep.NEWEST),
    },
)
"""A budget to start with: six sections of an agent with memory, actions and events."""


def resolve_budget(call: Budget | None, agent: Budget | None, configuration: Budget | None) -> Budget:
    """Merge the budgets field by field: the call's over the agent's over the operator's.

    The agent's budget is clamped to what the operator allows, except for the sections that it requires: that
    was decided when its file was loaded, with the defaults. Limits in tokens are resolved by
    `resolve_prompt_limit`.
    """
    effective = configuration or Budget()
    if agent is not None:
        effective = _merge_budgets(clamp_budget(agent, effective, defaults=agent)[0], effective)
    return effective if call is None else _merge_budgets(call, effective)


def _merge_budgets(budget: Budget, base: Budget) -> Budget:
    rules = dict(base.sections)
    for name, rule in budget.sections.items():
        rules[name] = rule.over(rules[name]) if name in rules else rule
    return Budget(budget.total_tokens, budget.output_reserve, budget.ladder, sections=rules)


def clamp_budget(budget: Budget, allowed: Budget, *, defaults: Budget) -> tuple[Budget, tuple[str, ...]]:
    """Return `budget` limited to what `allowed` permits, and a description of each change.

    Limited are the total, the reserve, and the caps of sections that have caps in `allowed` or are required
    there. If `allowed` has no total, the limit is the model's context window, which is unknown here:
    `resolve_prompt_limit` applies it.

    `enabled` in `allowed` always applies. Sections that `allowed` requires stay required, and are disabled only
    if `allowed` says so. Other sections become required only if `defaults` require them, since a required
    section that does not fit is an error.
    """
    total, reserve = _clamp_totals(budget, allowed)
    rules = dict(budget.sections)
    changes = []
    if (total, reserve) != (budget.total_tokens, budget.output_reserve):
        changes.append(
            f"total_tokens: {_describe_total(budget.total_tokens)} with an output_reserve of "
            f"{budget.output_reserve} exceeds the allowed limit; using {_describe_total(total)} with {reserve}"
        )
    for name in {**allowed.sections, **budget.sections}:
        requested, limit, default = (
            source.sections.get(name, SectionRule()) for source in (budget, allowed, defaults)
        )
        clamped_rule = SectionRule(
            priority=_clamp_priority(requested, limit, default),
            max_tokens=_clamp_cap(requested.max_tokens, limit.max_tokens, limit),
            share=_clamp_cap(requested.share, limit.share, limit),
            keep=requested.keep,
            enabled=_clamp_enabled(requested, limit, default),
        )
        changes += _describe_changes(name, requested, clamped_rule)
        if clamped_rule != requested:
            rules[name] = clamped_rule
    return Budget(total, reserve, budget.ladder, sections=rules), tuple(changes)


def _clamp_totals(budget: Budget, allowed: Budget) -> tuple[int | None, int]:
    """At most the allowed total, and at least the allowed reserve."""
    total = smaller_limit(budget.total_tokens, allowed.total_tokens)
    return total, max(budget.output_reserve, allowed.output_reserve)


def _clamp_cap(requested: Number | None, limit: Number | None, limit_rule: SectionRule) -> Number | None:
    """At most the allowed cap. Exactly that for a required section, since a cap of 0 would disable it."""
    return limit if limit_rule.priority is Priority.REQUIRED else smaller_limit(requested, limit)


def _clamp_priority(requested: SectionRule, limit: SectionRule, default: SectionRule) -> Priority | None:
    if limit.priority is Priority.REQUIRED:
        return Priority.REQUIRED
    if requested.priority is Priority.REQUIRED and default.priority is not Priority.REQUIRED:
        return Priority.HIGH
    return requested.priority


def _clamp_enabled(requested: SectionRule, limit: SectionRule, default: SectionRule) -> bool | None:
    if limit.enabled is not None:
        return limit.enabled
    if limit.priority is Priority.REQUIRED:
        # None if neither is set, so that the section's own value applies, as without an agent.
        return requested.enabled or default.enabled or None
    return requested.enabled


def _describe_changes(name: str, requested: SectionRule, clamped: SectionRule) -> Iterator[str]:
    for field, requested_cap, cap in (
        ("max_tokens", requested.max_tokens, clamped.max_tokens),
        ("share", requested.share, clamped.share),
    ):
        if requested_cap != cap:
            requested_text, cap_text = (
                "no cap" if number is None else number for number in (requested_cap, cap)
            )
            yield f"sections.{name}.{field}: {requested_text} is not allowed; using {cap_text}"
    if requested.priority != clamped.priority:
        requested_priority = requested.priority or _SECTION_DEFAULT
        yield f"sections.{name}.priority: {requested_priority} is not allowed; using {clamped.priority}"
    if requested.enabled != clamped.enabled:
        before, after = _ENABLED_NAMES[requested.enabled], _ENABLED_NAMES[clamped.enabled]
        yield f"sections.{name}.enabled: {before} is not allowed; using {after}"


def _describe_total(total_tokens: int | None) -> str:
    return "the model's window" if total_tokens is None else str(total_tokens)


_RULE_KEYS = tuple(field.name for field in fields(SectionRule))


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
    fields = check_mapping(data, _BUDGET_USAGE_KEYS, "the checkpoint's usage", ("usage",))
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
    fields = check_mapping(data, _SECTION_USAGE_KEYS, f"usage.sections.{number}", path)
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

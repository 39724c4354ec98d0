"""Budgets: how many tokens a prompt may have, rules for its sections, and who may override whom."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, TypeVar

from foveate.budget.ladder import TRUNCATE_LOW_PRIORITY, Ladder, LadderLike, LadderName, parse_ladder
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


def smaller_limit(first: Number | None, second: Number | None) -> Number | None:
    """The smaller of two limits. None means no limit."""
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
        """Return `section` with this rule applied. Of two caps the smaller applies."""
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

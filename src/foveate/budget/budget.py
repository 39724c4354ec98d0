"""Budgets: how many tokens a prompt may have, who gets how many of them, and what is cut when they run out.

What an operator allows, and a budget that keeps within it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, TypeVar

from foveate.budget.ladder import TRUNCATE_LOW_PRIORITY, Ladder, LadderLike, parse_ladder
from foveate.budget.sections import Keep, Priority, Section, check_share, check_token_limit, parse_choice
from foveate.errors import BadOption

Number = TypeVar("Number", int, float)


def smaller_limit(first: Number | None, second: Number | None) -> Number | None:
    """The smaller of two limits, where None is none."""
    return min((limit for limit in (first, second) if limit is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionRule:
    """What a budget says of a section by name; None says nothing, and the section's own value holds."""

    priority: Priority | None = None
    max_tokens: int | None = None
    share: float | None = None
    keep: Keep | None = None
    enabled: bool | None = None

    def __post_init__(self) -> None:
        """Check everything, and take words for what they mean.

        Raises:
            BadOption: a value that cannot be; its `path` names the field.
        """
        set_field = object.__setattr__
        if self.priority is not None:
            set_field(self, "priority", parse_choice(Priority, self.priority, ("priority",)))
        if self.keep is not None:
            set_field(self, "keep", parse_choice(Keep, self.keep, ("keep",)))
        set_field(self, "max_tokens", check_token_limit(self.max_tokens, ("max_tokens",)))
        set_field(self, "share", check_share(self.share, ("share",)))
        if not (self.enabled is None or isinstance(self.enabled, bool)):
            raise BadOption(f"enabled is true or false, not {self.enabled!r}", path=("enabled",))

    def over(self, other: "SectionRule") -> "SectionRule":
        """This rule, and what `other` says of everything that this one says nothing of."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(other, **{name: value for name, value in values.items() if value is not None})

    def applied(self, section: Section) -> Section:
        """`section` as this rule has it: of two caps the smaller holds."""
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
    """How many tokens there are, how many of them are for the answer, and what is cut when they run out.

    Without `total_tokens` the model's window holds. `sections` are rules for sections by name, and
    `overflow_policy` is another word for `ladder`.

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
        overflow_policy: str | None = None,
    ) -> None:
        """Check everything.

        Raises:
            BadOption: a value that cannot be; the message and its `path` name the field.
        """
        if ladder is not None and overflow_policy is not None:
            raise BadOption(
                "ladder and overflow_policy are the same: give one of them", path=("overflow_policy",)
            )
        reserve = check_token_limit(output_reserve, ("output_reserve",))
        if reserve is None:
            raise BadOption(
                "output_reserve is a number of tokens, 0 or more, not None", path=("output_reserve",)
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
        """How it is copied, and comes through to another process."""
        return _restore_budget, (self.total_tokens, self.output_reserve, self.ladder, dict(self.sections))

    def __hash__(self) -> int:
        """As its values, the rules in any order."""
        return hash((self.total_tokens, self.output_reserve, self.ladder, frozenset(self.sections.items())))


def _restore_budget(
    total_tokens: int | None, output_reserve: int, ladder: Ladder, sections: Mapping[str, SectionRule]
) -> Budget:
    return Budget(total_tokens, output_reserve, ladder, sections=sections)


def _check_rule(rule: object, name: str) -> SectionRule:
    if not isinstance(rule, SectionRule):
        raise BadOption(f"sections.{name} is a SectionRule, not {rule!r}", path=("sections", name))
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
"""A budget to begin with: the six sections of an agent that remembers, acts and listens."""


_SECTION_DEFAULT = "the section's own"
_ENABLED_NAMES = {True: "true", False: "false", None: _SECTION_DEFAULT}


def resolve_budget(call: Budget | None, agent: Budget | None, configuration: Budget | None) -> Budget:
    """Whose ladder and rules hold: the call's laid over the agent's laid over the operator's, field by field.

    The agent's are held to what the operator allows, but for what it requires: that was decided where its file
    was read, beside the defaults. Numbers of tokens are for `limits` to resolve.
    """
    effective = configuration or Budget()
    if agent is not None:
        effective = _merge_budgets(clamp_budget(agent, effective, defaults=agent)[0], effective)
    return effective if call is None else _merge_budgets(call, effective)


def _merge_budgets(budget: Budget, base: Budget) -> Budget:
    """`budget`, and the rules of `other` for all that it says nothing of."""
    rules = dict(base.sections)
    for name, rule in budget.sections.items():
        rules[name] = rule.over(rules[name]) if name in rules else rule
    return Budget(budget.total_tokens, budget.output_reserve, budget.ladder, sections=rules)


def clamp_budget(budget: Budget, allowed: Budget, *, defaults: Budget) -> tuple[Budget, tuple[str, ...]]:
    """`budget` with nothing that `allowed` does not give, and in words what had to be changed for it.

    Bound are the total, the reserve, and the caps of each section that has some in `allowed`, or is required
    there. Where `allowed` has no total of its own the model's window holds, which nobody knows here: whoever
    resolves the limit keeps to it.

    What `allowed` says of `enabled` holds. What it requires stays required, and is disabled only if it says so
    itself. Nothing else becomes required that the `defaults` do not require, since a prompt is an error where
    that does not fit.
    """
    total, reserve = _clamp_totals(budget, allowed)
    rules = dict(budget.sections)
    changes = []
    if (total, reserve) != (budget.total_tokens, budget.output_reserve):
        changes.append(
            f"total_tokens: {_describe_total(budget.total_tokens)} with an output_reserve of {budget.output_reserve} is "
            f"more than is allowed; {_describe_total(total)} with {reserve} holds"
        )
    for name in {**allowed.sections, **budget.sections}:
        requested, limit, default = (
            each.sections.get(name, SectionRule()) for each in (budget, allowed, defaults)
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
    """At most the allowed total, of which at least the allowed reserve is for the answer."""
    total = smaller_limit(budget.total_tokens, allowed.total_tokens)
    return total, max(budget.output_reserve, allowed.output_reserve)


def _clamp_cap(requested: Number | None, limit: Number | None, limit_rule: SectionRule) -> Number | None:
    """At most what is allowed; for what is required just that, since a cap of 0 would switch it off as well."""
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
        # None where neither says that it is: then the section's own word holds, as it does without an agent.
        return requested.enabled or default.enabled or None
    return requested.enabled


def _describe_changes(name: str, requested: SectionRule, clamped: SectionRule) -> Iterator[str]:
    for field, wanted, cap in (
        ("max_tokens", requested.max_tokens, clamped.max_tokens),
        ("share", requested.share, clamped.share),
    ):
        if wanted != cap:
            wanted_text, cap_text = ("no cap" if number is None else number for number in (wanted, cap))
            yield f"sections.{name}.{field}: {wanted_text} is not allowed; {cap_text} holds"
    if requested.priority != clamped.priority:
        yield f"sections.{name}.priority: {requested.priority or _SECTION_DEFAULT} is not allowed; {clamped.priority} holds"
    if requested.enabled != clamped.enabled:
        before, after = _ENABLED_NAMES[requested.enabled], _ENABLED_NAMES[clamped.enabled]
        yield f"sections.{name}.enabled: {before} is not allowed; {after} holds"


def _describe_total(total_tokens: int | None) -> str:
    return "the model's window" if total_tokens is None else str(total_tokens)

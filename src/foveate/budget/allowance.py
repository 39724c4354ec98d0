"""What an operator allows, and a budget that keeps within it."""

from collections.abc import Iterator

from foveate.budget.budgets import Budget, Number, SectionRule, smaller_limit
from foveate.budget.sections import Priority

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

"""What an operator allows, and a budget that keeps within it."""

from collections.abc import Iterator

from foveate.budget.budgets import Budget, Number, SectionRule, smaller
from foveate.budget.sections import Priority

_OWN = "the section's own"
_SWITCH = {True: "true", False: "false", None: _OWN}


def in_force(call: Budget | None, agent: Budget | None, configuration: Budget | None) -> Budget:
    """Whose ladder and rules hold: the call's laid over the agent's laid over the operator's, field by field.

    The agent's are held to what the operator allows, but for what it requires: that was decided where its file
    was read, beside the defaults. Numbers of tokens are for `limits` to resolve.
    """
    held = configuration or Budget()
    if agent is not None:
        held = _over(within(agent, held, defaults=agent)[0], held)
    return held if call is None else _over(call, held)


def _over(budget: Budget, other: Budget) -> Budget:
    """`budget`, and the rules of `other` for all that it says nothing of."""
    rules = dict(other.sections)
    for name, rule in budget.sections.items():
        rules[name] = rule.over(rules[name]) if name in rules else rule
    return Budget(budget.total_tokens, budget.output_reserve, budget.ladder, sections=rules)


def within(budget: Budget, allowed: Budget, *, defaults: Budget) -> tuple[Budget, tuple[str, ...]]:
    """`budget` with nothing that `allowed` does not give, and in words what had to be changed for it.

    Bound are the total, the reserve, and the caps of each section that has some in `allowed`, or is required
    there. Where `allowed` has no total of its own the model's window holds, which nobody knows here: whoever
    resolves the limit keeps to it.

    What `allowed` says of `enabled` holds. What it requires stays required, and is disabled only if it says so
    itself. Nothing else becomes required that the `defaults` do not require, since a prompt is an error where
    that does not fit.
    """
    total, reserve = _room(budget, allowed)
    rules = dict(budget.sections)
    clamped = []
    if (total, reserve) != (budget.total_tokens, budget.output_reserve):
        clamped.append(
            f"total_tokens: {_said(budget.total_tokens)} with an output_reserve of {budget.output_reserve} is "
            f"more than is allowed; {_said(total)} with {reserve} holds"
        )
    for name in {**allowed.sections, **budget.sections}:
        asked, most, usual = (each.sections.get(name, SectionRule()) for each in (budget, allowed, defaults))
        given = SectionRule(
            priority=_priority(asked, most, usual),
            max_tokens=_cap(asked.max_tokens, most.max_tokens, most),
            share=_cap(asked.share, most.share, most),
            keep=asked.keep,
            enabled=_enabled(asked, most, usual),
        )
        clamped += _changes(name, asked, given)
        if given != asked:
            rules[name] = given
    return Budget(total, reserve, budget.ladder, sections=rules), tuple(clamped)


def _room(budget: Budget, allowed: Budget) -> tuple[int | None, int]:
    """At most the allowed total, of which at least the allowed reserve is for the answer."""
    total = smaller(budget.total_tokens, allowed.total_tokens)
    return total, max(budget.output_reserve, allowed.output_reserve)


def _cap(asked: Number | None, most: Number | None, rule: SectionRule) -> Number | None:
    """At most what is allowed; for what is required just that, since a cap of 0 would switch it off as well."""
    return most if rule.priority is Priority.REQUIRED else smaller(asked, most)


def _priority(asked: SectionRule, most: SectionRule, usual: SectionRule) -> Priority | None:
    if most.priority is Priority.REQUIRED:
        return Priority.REQUIRED
    if asked.priority is Priority.REQUIRED and usual.priority is not Priority.REQUIRED:
        return Priority.HIGH
    return asked.priority


def _enabled(asked: SectionRule, most: SectionRule, usual: SectionRule) -> bool | None:
    if most.enabled is not None:
        return most.enabled
    if most.priority is Priority.REQUIRED:
        # None where neither says that it is: then the section's own word holds, as it does without an agent.
        return asked.enabled or usual.enabled or None
    return asked.enabled


def _changes(name: str, asked: SectionRule, given: SectionRule) -> Iterator[str]:
    for field, wish, cap in (
        ("max_tokens", asked.max_tokens, given.max_tokens),
        ("share", asked.share, given.share),
    ):
        if wish != cap:
            said, holds = ("no cap" if number is None else number for number in (wish, cap))
            yield f"sections.{name}.{field}: {said} is not allowed; {holds} holds"
    if asked.priority != given.priority:
        yield f"sections.{name}.priority: {asked.priority or _OWN} is not allowed; {given.priority} holds"
    if asked.enabled != given.enabled:
        before, after = _SWITCH[asked.enabled], _SWITCH[given.enabled]
        yield f"sections.{name}.enabled: {before} is not allowed; {after} holds"


def _said(total_tokens: int | None) -> str:
    return "the model's window" if total_tokens is None else str(total_tokens)

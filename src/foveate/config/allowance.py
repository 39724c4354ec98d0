"""What an operator allows, and a budget that keeps within it."""

from collections.abc import Iterator
from typing import TypeVar

from foveate.budget.budgets import Budget, SectionRule
from foveate.budget.sections import Priority

Number = TypeVar("Number", int, float)

_OWN = "the section's own"
_SWITCH = {True: "true", False: "false", None: _OWN}


def within(budget: Budget, allowed: Budget, *, defaults: Budget) -> tuple[Budget, tuple[str, ...]]:
    """`budget` with nothing that `allowed` does not give, and in words what had to be changed for it.

    Bound are the total, the total less the reserve, and the caps of each section that has some in `allowed`, or
    is required there.
    Where `allowed` has no total of its own the model's window holds, which nobody knows here: then only the
    reserve is kept from going below the allowed one.

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
    """A total and a reserve that are allowed, and leave as much of what was asked for as they can."""
    if budget.total_tokens is None or allowed.total_tokens is None:
        total = allowed.total_tokens if budget.total_tokens is None else budget.total_tokens
        return total, max(budget.output_reserve, allowed.output_reserve)
    total = min(budget.total_tokens, allowed.total_tokens)
    room = min(
        budget.total_tokens - budget.output_reserve,
        allowed.total_tokens - allowed.output_reserve,
    )
    return total, total - room


def _cap(asked: Number | None, most: Number | None, rule: SectionRule) -> Number | None:
    """At most what is allowed; for what is required just that, since a cap of 0 would switch it off as well."""
    if asked is None or rule.priority is Priority.REQUIRED:
        return most
    return asked if most is None else min(asked, most)


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

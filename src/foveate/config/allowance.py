"""What an operator allows, and a budget that keeps within it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from foveate.budget.budgets import Budget, SectionRule

Number = TypeVar("Number", int, float)


def within(budget: Budget, allowed: Budget) -> tuple[Budget, tuple[str, ...]]:
    """`budget` with nothing above what `allowed` gives, and in words what had to be brought down.

    Bound are the total, the total less the reserve, and the caps of each section that has some in `allowed`.
    Where `allowed` has no total of its own the model's window holds, which nobody knows here: then only the
    reserve is kept from going below the allowed one.
    """
    total, reserve = _room(budget, allowed)
    rules = dict(budget.sections)
    clamped = []
    if (total, reserve) != (budget.total_tokens, budget.output_reserve):
        clamped.append(
            f"total_tokens: {_said(budget.total_tokens)} with an output_reserve of {budget.output_reserve} is "
            f"more than is allowed; {_said(total)} with {reserve} holds"
        )
    for name, most in allowed.sections.items():
        asked = rules.get(name, SectionRule())
        given = replace(
            asked,
            max_tokens=_at_most(asked.max_tokens, most.max_tokens),
            share=_at_most(asked.share, most.share),
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


def _at_most(asked: Number | None, most: Number | None) -> Number | None:
    if asked is None or most is None:
        return asked if most is None else most
    return min(asked, most)


def _changes(name: str, asked: SectionRule, given: SectionRule) -> Iterator[str]:
    for field, before, after in (
        ("max_tokens", asked.max_tokens, given.max_tokens),
        ("share", asked.share, given.share),
    ):
        if before != after:
            wish = "no cap" if before is None else before
            yield f"sections.{name}.{field}: {wish} is more than is allowed; {after} holds"


def _said(total_tokens: int | None) -> str:
    return "the model's window" if total_tokens is None else str(total_tokens)

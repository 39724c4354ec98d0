"""Foveate decides what goes into a language model's context window, and what that costs.

This is the public API of the library. Importing it loads nothing heavy.

    >>> import foveate
    >>> foveate.count("How many tokens is this?", model="gpt-4o").tokens
    6
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveate.budget import Budget, Cut, Item, Prompt, Section, SectionReport, SectionRule
    from foveate.budget.ladder import LadderLike
    from foveate.memory.memory import Memory
    from foveate.memory.views.view import View
    from foveate.model import TokenCount
    from foveate.tokens.counter import RequestCounter
    from foveate.tokens.request_count import PartCount, RequestCount
    from foveate.tokens.text_meter import TextCounter

__all__ = [
    "Budget",
    "Cut",
    "Item",
    "Memory",
    "PartCount",
    "Prompt",
    "RequestCount",
    "Section",
    "SectionReport",
    "SectionRule",
    "TokenCount",
    "View",
    "assemble",
    "count",
    "count_request",
]


_counter_for: "Callable[[str], RequestCounter] | None" = None


def count(text: str, model: str = "gpt-4o") -> "TokenCount":
    """How many tokens `text` is for `model`, offline.

    Never raises for a text: a model that is not known is estimated, and the count says so (`exact`, `upper`).
    """
    global _counter_for
    if not isinstance(text, str):
        raise TypeError(f"a text to be counted is a str, not {type(text).__name__}")
    if _counter_for is None:  # cached: an import statement would take a fifth of the time of a short text
        from foveate.tokens.families import counter_for

        _counter_for = counter_for
    return _counter_for(model).text(text)


def count_request(body: Mapping[str, Any] | str | bytes, model: str | None = None) -> "RequestCount":
    """How many input tokens a whole request body is: system, tools, messages, images and all that goes around.

    `body` is the JSON of an Anthropic Messages, OpenAI chat, OpenAI Responses, Gemini or Bedrock request, or a
    dict of the same; `model` stands for the one in the body.

        >>> import foveate
        >>> body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello!"}]}
        >>> foveate.count_request(body).total
        TokenCount(tokens=9, exact=True, upper=11)

    Raises:
        foveate.errors.MalformedRequest: not JSON, or none of these formats, or an object in it has the same key
            twice (`foveate.errors.DuplicateKey`).
    """
    from foveate.tokens import count_body

    return count_body(body, model)


def assemble(
    sections: "Iterable[Section]",
    budget: "Budget | Mapping[str, object] | LadderLike | None" = None,
    model: "str | TextCounter" = "gpt-4o",
    *,
    show_budget: bool = False,
    agent: "Budget | None" = None,
    configuration: "Budget | None" = None,
) -> "Prompt":
    """The sections joined by blank lines, and cut where they do not fit the budget, by its ladder.

    The text of the result, counted whole, is within the budget. `budget` can be a ladder alone, by name or as a
    list of rungs. A counter (anything whose `text(text)` gives a `TokenCount`) can stand for the model.
    `show_budget` adds a section in which the agent sees its own budget.

    How many tokens there are is said by the first of these that says it: `budget`, `CONTEXT_MAX_TOKENS` in the
    environment, the budget of the `agent`, that of the operator's `configuration`, the model's window. The
    ladder is that of the first of the three budgets that is given; rules for sections are laid over each other.
    An agent never gets more than the configuration allows, whatever its budget says.

        >>> import foveate
        >>> rules = foveate.Section("rules", "Answer in one word.", priority="required")
        >>> log = foveate.Section("log", items=[f"step {n} done" for n in range(9)], priority="low")
        >>> prompt = foveate.assemble([rules, log], foveate.Budget(total_tokens=22))
        >>> print(prompt.text)
        Answer in one word.
        <BLANKLINE>
        step 7 done
        step 8 done
        [...older entries truncated]
        >>> prompt.tokens, [(cut.section, cut.before, cut.after) for cut in prompt.cuts]
        (21, [('log', 44, 16)])

    Raises:
        foveate.errors.BudgetExceeded: the required sections do not fit; carries every section's size.
        foveate.errors.BadOption: something that cannot be, such as two sections of one name.
    """
    import os
    from dataclasses import replace

    from foveate.budget.assemble import assemble_prompt
    from foveate.budget.budget import Budget, resolve_budget
    from foveate.budget.model_limits import MAX_TOKENS_VARIABLE, find_context_window, resolve_prompt_limit
    from foveate.budget.serialization import to_budget
    from foveate.tokens.families import counter_for
    from foveate.tokens.text_meter import text_meter_for

    call_budget = None if budget is None else to_budget(budget)
    effective = resolve_budget(call_budget, agent, configuration)
    window = find_context_window(model if isinstance(model, str) else getattr(model, "model", ""))
    limit = resolve_prompt_limit(
        call_budget or Budget(),
        environment=os.environ.get(MAX_TOKENS_VARIABLE),
        agent=agent,
        configuration=configuration,
        window_tokens=None if window is None else window.tokens,
    )
    prompt = assemble_prompt(
        sections,
        limit_tokens=limit.tokens,
        ladder=effective.ladder,
        meter=text_meter_for(counter_for(model) if isinstance(model, str) else model),
        rules=effective.sections,
        show_budget=show_budget,
    )
    return replace(prompt, limit_source=limit.source)


_PUBLIC_MODULES = {
    "Budget": "budget.budget",
    "Cut": "budget.prompt",
    "Item": "budget.sections",
    "Memory": "memory.memory",
    "PartCount": "tokens.request_count",
    "Prompt": "budget.prompt",
    "RequestCount": "tokens.request_count",
    "Section": "budget.sections",
    "SectionReport": "budget.prompt",
    "SectionRule": "budget.budget",
    "TokenCount": "model",
    "View": "memory.views.view",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("foveate")
    if name not in _PUBLIC_MODULES:
        raise AttributeError(f"module 'foveate' has no attribute {name!r}")
    from importlib import import_module

    attribute = globals()[name] = getattr(import_module(f"foveate.{_PUBLIC_MODULES[name]}"), name)
    return attribute

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
    """Count the tokens of `text` for `model`, offline.

    Never raises for a text: for an unknown model the count is an estimate, and says so (`exact`, `upper`).
    """
    global _counter_for
    if not isinstance(text, str):
        raise TypeError(f"a text to be counted is a str, not {type(text).__name__}")
    if _counter_for is None:  # cached: an import statement would take a fifth of the time of a short text
        from foveate.tokens.families import counter_for

        _counter_for = counter_for
    return _counter_for(model).text(text)


def count_request(body: Mapping[str, Any] | str | bytes, model: str | None = None) -> "RequestCount":
    """Count the input tokens of a whole request body: system prompt, tools, messages, images and framing.

    `body` is the JSON of an Anthropic Messages, OpenAI chat, OpenAI Responses, Gemini or Bedrock request, or
    the same as a dict. `model` overrides the model in the body.

        >>> import foveate
        >>> body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello!"}]}
        >>> foveate.count_request(body).total
        TokenCount(tokens=9, exact=True, upper=11)

    Raises:
        foveate.errors.MalformedRequest: the body is not JSON or has none of these formats, or an object in it
            has the same key twice (`foveate.errors.DuplicateKey`).
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
    """Join sections by blank lines, and cut them by the budget's ladder until the whole text fits.

    `budget` can be a ladder alone, by name or as a list of rungs. `model` can be a counter instead: any object
    whose `text(text)` returns a `TokenCount`. `show_budget` adds a section in which the agent sees its budget.

    The limit is the first of these that is set: the total of `budget`, `CONTEXT_MAX_TOKENS` in the environment,
    the total of the `agent`'s budget, that of the operator's `configuration`, the model's context window. The
    ladder is that of the first of the three budgets that is given. Rules for sections are merged in the same
    order. An agent never gets more than the configuration allows.

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
        foveate.errors.BudgetExceeded: the required sections do not fit; has the size of every section.
        foveate.errors.BadOption: an invalid argument, such as two sections with the same name.
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

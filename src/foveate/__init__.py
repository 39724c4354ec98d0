"""Foveate decides what goes into a language model's context window, and what that costs.

This is the public API of the library. Importing it loads nothing heavy.

    >>> import foveate
    >>> foveate.count("How many tokens is this?", model="gpt-4o").tokens
    6
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType

from foveate.lazy_imports import import_on_first_use

TYPE_CHECKING = False  # the one of typing would take longer to import than all of this
if TYPE_CHECKING:
    from datetime import date, datetime
    from typing import Any

    from foveate.budget import Budget, Cut, Item, Prompt, Section, SectionReport, SectionRule
    from foveate.budget.ladder import LadderLike, LadderName
    from foveate.budget.sections import KeepName, PriorityName, StabilityName
    from foveate.budget.trim import MessageT, Trimmed
    from foveate.cost.call_cost import Cost
    from foveate.cost.pricing.price_book import PriceBook
    from foveate.errors import (
        BadOption,
        BudgetExceeded,
        FoveateError,
        InputError,
        MalformedRequest,
        UnreadableInput,
    )
    from foveate.memory.memory import Memory
    from foveate.memory.views.view import View, ViewFormatName
    from foveate.model import ApiFormat, Message, TokenCount
    from foveate.tokens.counter import PartCount, RequestCount, RequestCounter
    from foveate.tokens.text_meter import TextCounter

__all__ = [
    "ApiFormat",
    "BadOption",
    "Budget",
    "BudgetExceeded",
    "Cost",
    "Cut",
    "FoveateError",
    "InputError",
    "Item",
    "KeepName",
    "LadderName",
    "MalformedRequest",
    "Memory",
    "PartCount",
    "PriorityName",
    "Prompt",
    "RequestCount",
    "Section",
    "SectionReport",
    "SectionRule",
    "StabilityName",
    "TokenCount",
    "Trimmed",
    "UnreadableInput",
    "View",
    "ViewFormatName",
    "assemble",
    "cost",
    "count",
    "count_request",
    "summarize",
    "trim",
]


_counter_for: "Callable[[str], RequestCounter] | None" = None
_price_book: "PriceBook | None" = None


def count(text: str, model: str = "gpt-4o") -> "TokenCount":
    """Count the tokens of a text, offline.

    For an unknown model the count is an estimate, and says so (`exact`, `upper`).

        >>> import foveate
        >>> foveate.count("How many tokens is this?")
        TokenCount(tokens=6, exact=True, upper=6)

    Args:
        text: the text. An empty one has 0 tokens.
        model: the name of the model whose tokenizer counts.

    Raises:
        TypeError: `text` is not a `str`. No text raises.
    """
    global _counter_for
    if not isinstance(text, str):
        raise TypeError(f"a text to be counted is a str, not {type(text).__name__}")
    if _counter_for is None:  # cached: an import statement would take a fifth of the time of a short text
        from foveate.tokens.offline_counters import counter_for

        _counter_for = counter_for
    return _counter_for(model).text(text)


def count_request(
    body: "Mapping[str, Any] | Sequence[Any] | str | bytes", model: str | None = None
) -> "RequestCount":
    """Count the input tokens of a whole request: system prompt, tools, messages, images and framing.

        >>> import foveate
        >>> body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello!"}]}
        >>> foveate.count_request(body).total
        TokenCount(tokens=9, exact=True, upper=11)
        >>> foveate.count_request(body["messages"], model="gpt-4o").total.tokens
        9

    Args:
        body: an Anthropic Messages, OpenAI chat, OpenAI Responses, Gemini or Bedrock request, as a dict or as
            JSON; or a list of messages in one of these formats. Objects of the providers' SDKs can be in it.
            The format is detected. Messages that have only a role and a text are the same in several formats;
            they count as Anthropic's if the name of the model starts with `claude`, and otherwise as OpenAI
            chat.
        model: overrides the model in the body.

    Raises:
        MalformedRequest: the body is not JSON or has none of these formats, or an object in it has the same key
            twice.
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

    Args:
        sections: the parts of the prompt, in order.
        budget: a `Budget`, the same as a mapping, or only a ladder, by name or as a list of rungs.
        model: the name of a model, or a counter: any object whose `text(text)` returns a `TokenCount`.
        show_budget: add a section in which the agent sees its budget.
        agent: the budget from the agent's own file.
        configuration: the budget from the operator's configuration.

    Raises:
        BudgetExceeded: the required sections do not fit; has the size of every section.
        BadOption: an invalid argument, such as two sections with the same name.
    """
    import os
    from dataclasses import replace

    from foveate.budget.assemble import assemble_prompt
    from foveate.budget.budget import Budget, resolve_budget, to_budget
    from foveate.budget.model_limits import MAX_TOKENS_VARIABLE, find_context_window, resolve_prompt_limit
    from foveate.tokens.offline_counters import counter_for
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


def trim(
    messages: "Sequence[MessageT]", *, limit_tokens: int, model: str, api_format: "ApiFormat | None" = None
) -> "Trimmed[MessageT]":
    """Drop the oldest messages of a conversation until the rest fits a number of tokens.

    Whole turns are dropped first, oldest first, then the oldest steps of the last turn, then a finished answer
    after the last user message. A tool call and its result are dropped together, and so are parallel calls with
    all their results. These messages always stay: system and developer messages, the last user message, and
    tool calls and results at the end that the model has not answered yet.

        >>> import foveate
        >>> messages = [
        ...     {"role": "system", "content": "Be brief."},
        ...     {"role": "user", "content": "What is the capital of France?"},
        ...     {"role": "assistant", "content": "Paris."},
        ...     {"role": "user", "content": "And of Italy?"},
        ... ]
        >>> trimmed = foveate.trim(messages, limit_tokens=30, model="gpt-4o")
        >>> trimmed
        <Trimmed: 2 messages, 18 tokens; 2 dropped>
        >>> [message["content"] for message in trimmed.messages]
        ['Be brief.', 'And of Italy?']

    Args:
        messages: a list of messages. It is not changed, and the same objects are returned. Objects of the
            providers' SDKs can be among them.
        limit_tokens: the most tokens that the rest may have as a request of its own. If the count is an
            estimate, its upper bound is within the limit. A system prompt or tools that are not messages are
            not counted: subtract them from the limit.
        model: the model whose tokens count.
        api_format: the format of the messages. None detects it. Messages that have only a role and a text are
            the same in several formats; they are Anthropic's if the name of the model starts with `claude`, and
            otherwise those of OpenAI chat.

    Returns:
        The messages that stay and those that were dropped, both in order, and the count of those that stay.

    Raises:
        BudgetExceeded: the messages that always stay do not fit.
        BadOption: an invalid limit or format, or `messages` is not a list.
        MalformedRequest: a message is not an object, or cannot be written as JSON.
    """
    from foveate.budget.trim import trim_messages

    return trim_messages(messages, limit_tokens=limit_tokens, model=model, api_format=api_format)


def summarize(
    messages: "Sequence[Mapping[str, Any] | Message]", *, limit_tokens: int, model: str | None = None
) -> str:
    """Summarize a conversation by rules, without a model: whole sentences, as people said them.

    Constraints, labelled statements ("RULE: …"), goals, tasks and facts come from users and developers, and in
    part from the assistant; never from tool results, code, tables or quotations. If a later statement replaces
    an earlier one, only the later is kept. A summary that comes back as a message is read as what it is, so a
    long conversation can be summarized again and again.

        >>> import foveate
        >>> messages = [
        ...     {"role": "user", "content": "Never deploy on a Friday. The staging port is 8081."},
        ...     {"role": "assistant", "content": "Noted."},
        ...     {"role": "user", "content": "The staging port is 8090 now."},
        ... ]
        >>> print(foveate.summarize(messages, limit_tokens=60))
        - Never deploy on a Friday.
        - The staging port is 8090 now.

    Args:
        messages: messages of any API format, as dicts with a role and content or as objects of the providers'
            SDKs, oldest first.
        limit_tokens: the most tokens of the summary. If the count is an estimate, its upper bound is within
            the limit.
        model: the model whose tokens count. None counts those of gpt-4o.

    Returns:
        The summary; empty if nothing fits or nothing was said.

    Raises:
        BadOption: an invalid limit, or `messages` is not a list.
        MalformedRequest: a message is not an object, or cannot be written as JSON.
    """
    from foveate.compaction.summarize.extractive import summarize_messages

    return summarize_messages(messages, limit_tokens=limit_tokens, model=model)


def cost(
    usage_or_response: object,
    *,
    model: str,
    provider: str | None = None,
    at: "date | datetime | None" = None,
) -> "Cost | None":
    """Return the cost of a call from the usage in its response; None if it is unknown.

    The prices are the installed tables and the file of `foveate prices update`. Nothing is downloaded.

        >>> import foveate
        >>> usage = {"prompt_tokens": 2000, "completion_tokens": 100}
        >>> usage["prompt_tokens_details"] = {"cached_tokens": 1024}
        >>> call = foveate.cost(usage, model="gpt-4o", provider="openai")
        >>> call.dollars, call.cached_read
        (Decimal('0.00472000'), Decimal('0.00128000'))
        >>> foveate.cost(usage, model="nobody/knows-this") is None
        True

    Args:
        usage_or_response: the response of a provider's SDK, or its usage; or the same as a dict.
        model: the model that was called.
        provider: the provider that was called, by its name in genai-prices or in Foveate's configuration. None
            takes the provider that makes the model.
        at: the time of the call, if it is not now: a date, or a datetime. Without a time zone it is in UTC.

    Returns:
        The cost, or None if the usage is missing, empty or has impossible numbers, or if the price of anything
        in it is unknown.

    Raises:
        TypeError: `usage_or_response` is neither a dict nor an object of an SDK.
        BadOption: `at` is neither a date nor a datetime.
    """
    global _price_book
    import os
    import time

    from foveate.config.price_file import default_price_file
    from foveate.cost.call_cost import cost_from_price, read_usage, to_seconds
    from foveate.cost.pricing.price_book import PriceBook
    from foveate.prompt_cache.rules import rules_for

    usage, seconds = read_usage(usage_or_response), to_seconds(at, time.time())
    if usage is None:
        return None
    if _price_book is None:
        _price_book = PriceBook(load_imported=default_price_file(os.environ).current_prices)
    name = rules_for(model).provider if provider is None else provider
    price = _price_book.price(model, usage, provider=name, at=seconds)
    return None if price is None else cost_from_price(price)


_import_name = import_on_first_use(
    __name__,
    {
        "foveate.budget.budget": ("Budget", "SectionRule"),
        "foveate.budget.ladder": ("LadderName",),
        "foveate.budget.prompt": ("Cut", "Prompt", "SectionReport"),
        "foveate.budget.sections": ("Item", "KeepName", "PriorityName", "Section", "StabilityName"),
        "foveate.budget.trim": ("Trimmed",),
        "foveate.cost.call_cost": ("Cost",),
        "foveate.errors": (
            "BadOption",
            "BudgetExceeded",
            "FoveateError",
            "InputError",
            "MalformedRequest",
            "UnreadableInput",
        ),
        "foveate.memory.memory": ("Memory",),
        "foveate.memory.views.view": ("View", "ViewFormatName"),
        "foveate.model": ("ApiFormat", "TokenCount"),
        "foveate.tokens.counter": ("PartCount", "RequestCount"),
    },
)


def __getattr__(name: str) -> "Any":
    if name == "__version__":
        from importlib.metadata import version

        return version("foveate")
    return _import_name(name)


def __dir__() -> list[str]:
    """List the public API: names that are imported on first use, and no modules."""
    return [*__all__, "__version__"]


class _Package(ModuleType):
    """Keep the function `cost`: importing the subpackage of the same name would replace it."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name == "cost" and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

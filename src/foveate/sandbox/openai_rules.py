"""What OpenAI takes in both of its formats: models, parameters, tools, cache marks, and the size of it all.

After https://platform.openai.com/docs/api-reference and what its API answered to others (read November 2026).
"""

import re
from collections.abc import Collection, Iterator
from typing import Any

from foveate.budget.windows import window_of
from foveate.cache.rules import Caching, rules_for
from foveate.sandbox.models import Model, model_of
from foveate.sandbox.refusals import Refusal
from foveate.values import Format, Ttl
from foveate.wire.body import as_list, as_record, as_text, kind_of

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def model_problems(asked: dict[str, Any]) -> Iterator[Refusal]:
    """A model that is not named, or that there is not."""
    if not isinstance(asked.get("model"), str) or not asked["model"]:
        yield missing("model")
    if model_of(Format.CHAT, asked["model"]) is None:
        yield Refusal(
            message=f"The model `{asked['model']}` does not exist or you do not have access to it.",
            status=404,
            code="model_not_found",
        )


def unknown_parameters(asked: dict[str, Any], known: Collection[str], at: str = "") -> Iterator[Refusal]:
    """Fields that there are not."""
    for field in asked:
        if field not in known:
            yield unknown(f"{at}.{field}" if at else field)


def unknown(param: str) -> Refusal:
    """A parameter that there is not."""
    return Refusal(message=f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")


def missing(param: str) -> Refusal:
    """A parameter that has to be there."""
    return Refusal(
        message=f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )


def wrong_type(param: str, expected: str, found: object) -> Refusal:
    """A parameter that is something else than it has to be."""
    return Refusal(
        message=f"Invalid type for '{param}': expected {expected}, but got {kind_of(found)} instead.",
        param=param,
        code="invalid_type",
    )


def wrong_value(param: str, found: object, known: Collection[str]) -> Refusal:
    """A parameter with another value than it can have."""
    *others, last = (f"'{value}'" for value in known)
    values = f"{', '.join(others)}, and {last}" if others else last
    return Refusal(
        message=f"Invalid value: '{found}'. Supported values are: {values}.", param=param, code="invalid_value"
    )


def empty_list(param: str) -> Refusal:
    """A list with nothing in it."""
    return Refusal(
        message=f"Invalid '{param}': empty array. Expected an array with minimum length 1, but got an empty "
        "array instead.",
        param=param,
        code="empty_array",
    )


def tool_problems(names: list[tuple[str, object]], choice: object, has_tools: bool) -> Iterator[Refusal]:
    """Functions (path and name of each) that cannot be called so, and a choice of one that there is not."""
    for path, name in names:
        if not isinstance(name, str):
            yield missing(path)
        elif not _TOOL_NAME.fullmatch(name):
            yield Refusal(
                message=f"Invalid '{path}': string does not match pattern. Expected a string that matches the "
                "pattern '^[a-zA-Z0-9_-]+$'.",
                param=path,
                code="invalid_value",
            )
    if choice is None:
        return
    if not has_tools and choice not in ("none", "auto"):
        yield Refusal(
            message="Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are "
            "specified.",
            param="tool_choice",
        )
    if isinstance(choice, str) and choice not in ("none", "auto", "required"):
        yield wrong_value("tool_choice", choice, ("none", "auto", "required"))
    if as_record(choice).get("type") == "function":
        wanted = as_record(as_record(choice).get("function")).get("name") or as_record(choice).get("name")
        if wanted not in [name for _, name in names]:
            yield Refusal(
                message=f"Tool choice 'function' not found in 'tools' parameter: '{wanted}'.",
                param="tool_choice",
            )


def mark_problems(
    asked: dict[str, Any], parts: list[tuple[str, bool, dict[str, Any]]], ttls: tuple[Ttl, ...]
) -> Iterator[Refusal]:
    """Cache marks, and options of the cache, that the model does not take.

    `parts` are the content parts with their paths and whether the model itself said them. More than four marks
    are refused, though by OpenAI's text the first of them are only not written: it is never worth a fifth.
    """
    rules = rules_for(asked["model"], "openai")
    takes_marks = rules.caching is Caching.BOTH
    marked = [(path, own, part) for path, own, part in parts if part.get("prompt_cache_breakpoint") is not None]
    for path, own, part in marked:
        param = f"{path}.prompt_cache_breakpoint"
        mark = as_record(part["prompt_cache_breakpoint"])
        if not takes_marks or own or as_text(part.get("type")) not in rules.markable:
            yield unknown(param)
        if mark.get("mode") != "explicit":
            yield wrong_value(f"{param}.mode", mark.get("mode"), ("explicit",))
        if mark.get("ttl") is not None and mark["ttl"] not in ttls:
            yield wrong_value(f"{param}.ttl", mark["ttl"], ttls)
    if takes_marks and len(marked) > rules.most_marks:
        yield Refusal(
            message=f"A maximum of {rules.most_marks} prompt cache breakpoints may be provided. Found "
            f"{len(marked)}.",
            param="prompt_cache_options",
        )
    yield from _options(asked, takes_marks, ttls)


def _options(asked: dict[str, Any], takes_marks: bool, ttls: tuple[Ttl, ...]) -> Iterator[Refusal]:
    options = asked.get("prompt_cache_options")
    if options is None:
        return
    if not takes_marks:
        yield Refusal(
            message="Unsupported parameter: 'prompt_cache_options' is not supported with this model.",
            param="prompt_cache_options",
            code="unsupported_parameter",
        )
    if not isinstance(options, dict):
        yield wrong_type("prompt_cache_options", "an object", options)
        return
    if options.get("mode", "implicit") not in ("implicit", "explicit"):
        yield wrong_value("prompt_cache_options.mode", options["mode"], ("implicit", "explicit"))
    if options.get("ttl") is not None and options["ttl"] not in ttls:
        yield wrong_value("prompt_cache_options.ttl", options["ttl"], ttls)
    if options.get("ttl") is not None and asked.get("prompt_cache_retention") is not None:
        yield Refusal(
            message="'prompt_cache_retention' cannot be used together with 'prompt_cache_options.ttl'.",
            param="prompt_cache_retention",
            code="invalid_parameter_combination",
        )


def flag_problems(asked: dict[str, Any]) -> Iterator[Refusal]:
    """Switches that are neither on nor off."""
    for param in ("stream", "store", "parallel_tool_calls"):
        if not isinstance(asked.get(param), (bool, type(None))):
            yield wrong_type(param, "a boolean", asked[param])


def output_problems(asked: dict[str, Any], param: str, *, least: int) -> Iterator[Refusal]:
    """A limit of the answer that is none, or more than the model can say."""
    wanted = asked.get(param)
    model = model_of(Format.CHAT, asked["model"])
    if wanted is None or model is None:
        return
    if not isinstance(wanted, int) or isinstance(wanted, bool):
        yield wrong_type(param, "an integer", wanted)
    elif wanted < least:
        yield Refusal(
            message=f"Invalid '{param}': integer below minimum value. Expected a value >= {least}, but got "
            f"{wanted} instead.",
            param=param,
            code="integer_below_min_value",
        )
    elif wanted > model.most_output_tokens:
        yield Refusal(
            message=f"{param} is too large: {wanted}. This model supports at most {model.most_output_tokens} "
            f"completion tokens, whereas you provided {wanted}.",
            param=param,
            code="invalid_value",
        )


def size_problems(model: Model, prompt_tokens: int, output_tokens: int, param: str) -> Iterator[Refusal]:
    """A prompt that does not fit, or not together with the answer that is asked for."""
    window = window_of(model.name)
    if window is None:
        return
    if prompt_tokens > window.tokens:
        reason = f"your {param} resulted in {prompt_tokens} tokens. Please reduce the length of the {param}."
    elif model.adds_output and prompt_tokens + output_tokens > window.tokens:
        reason = (
            f"you requested {prompt_tokens + output_tokens} tokens ({prompt_tokens} in the {param}, "
            f"{output_tokens} in the completion). Please reduce the length of the {param} or completion."
        )
    else:
        return
    yield Refusal(
        message=f"This model's maximum context length is {window.tokens} tokens. However, {reason}",
        param=param,
        code="context_length_exceeded",
    )


def parts_of(path: str, content: object, *, own: bool) -> list[tuple[str, bool, dict[str, Any]]]:
    """The parts of a content that is a list, each with its path."""
    return [(f"{path}[{j}]", own, as_record(part)) for j, part in enumerate(as_list(content))]

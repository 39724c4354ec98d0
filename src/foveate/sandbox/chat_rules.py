"""What OpenAI takes for a chat completion: its messages, calls next to their results, and its parameters.

After https://platform.openai.com/docs/api-reference/chat and what its API answered to others (read November
2026).
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from foveate.sandbox import openai_rules
from foveate.sandbox.models import model_of
from foveate.sandbox.openai_rules import (
    empty_list,
    missing,
    parts_of,
    unknown_parameters,
    wrong_type,
    wrong_value,
)
from foveate.sandbox.refusals import Refusal
from foveate.values import Format, Ttl
from foveate.wire.body import as_list, as_record, as_text

_PARAMETERS = frozenset(
    ("model", "messages", "audio", "frequency_penalty", "function_call", "functions", "logit_bias",
     "logprobs", "max_completion_tokens", "max_tokens", "metadata", "modalities", "moderation", "n",
     "parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key", "prompt_cache_options",
     "prompt_cache_retention", "reasoning_effort", "response_format", "safety_identifier", "seed",
     "service_tier", "stop", "store", "stream", "stream_options", "temperature", "tool_choice", "tools",
     "top_logprobs", "top_p", "user", "verbosity", "web_search_options")
)  # fmt: skip
_ROLES = ("system", "assistant", "user", "function", "tool", "developer")
_MESSAGE = frozenset(("role", "content", "name"))
_FIELDS = {
    "assistant": _MESSAGE | {"tool_calls", "refusal", "audio", "function_call", "annotations"},
    "tool": _MESSAGE | {"tool_call_id"},
}
_PARTS = {
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
}
_PART_FIELDS = {
    "text": frozenset(("type", "text", "prompt_cache_breakpoint")),
    "refusal": frozenset(("type", "refusal")),
    "image_url": frozenset(("type", "image_url", "prompt_cache_breakpoint")),
    "input_audio": frozenset(("type", "input_audio", "prompt_cache_breakpoint")),
    "file": frozenset(("type", "file", "prompt_cache_breakpoint")),
}
_MOST_CHOICES = 128
_TTLS = (Ttl.THIRTY_MINUTES,)  # 12h is for Responses


def first_problem(asked: dict[str, Any], *, prompt_tokens: int | None = None) -> Refusal | None:
    """Why OpenAI would not take a chat completion, or None where it would."""
    return next(_problems(asked, prompt_tokens), None)


def _problems(asked: dict[str, Any], prompt_tokens: int | None) -> Iterator[Refusal]:
    yield from openai_rules.model_problems(asked)
    yield from unknown_parameters(asked, _PARAMETERS)
    messages = asked.get("messages")
    if messages is None:
        yield missing("messages")
    if not isinstance(messages, list):
        yield wrong_type("messages", "an array of objects", messages)
        return
    if not messages:
        yield empty_list("messages")
    yield from chain(_shapes(messages), _pairs(messages), _tools(asked), _options(asked))
    parts = [
        part
        for i, message in enumerate(messages)
        for part in parts_of(
            f"messages[{i}].content", message.get("content"), own=message["role"] == "assistant"
        )
    ]
    yield from openai_rules.mark_problems(asked, parts, _TTLS)
    model = model_of(Format.CHAT, asked["model"])
    if prompt_tokens is not None and model is not None:
        wanted = asked.get("max_completion_tokens") or asked.get("max_tokens") or 0
        yield from openai_rules.size_problems(model, prompt_tokens, wanted, "messages")


def _shapes(messages: list[Any]) -> Iterator[Refusal]:
    for i, message in enumerate(messages):
        at = f"messages[{i}]"
        if not isinstance(message, dict):
            yield wrong_type(at, "an object", message)
            return
        role = message.get("role")
        if role is None:
            yield missing(f"{at}.role")
        if role not in _ROLES:
            yield wrong_value(f"{at}.role", role, _ROLES)
        yield from unknown_parameters(message, _FIELDS.get(str(role), _MESSAGE), at)
        yield from _content(i, message)
        if role == "assistant":
            yield from _calls(at, message)
        if role == "tool" and not isinstance(message.get("tool_call_id"), str):
            yield missing(f"{at}.tool_call_id")


def _content(i: int, message: dict[str, Any]) -> Iterator[Refusal]:
    at, content, role = f"messages[{i}].content", message.get("content"), message["role"]
    if content is None:
        speaks_otherwise = any(message.get(way) for way in ("tool_calls", "function_call", "refusal", "audio"))
        if role != "assistant" or not speaks_otherwise:
            yield Refusal(
                message="Invalid value for 'content': expected a string, got null.",
                param=f"messages.[{i}].content",
            )
        return
    if not isinstance(content, (str, list)):
        yield wrong_type(at, "one of a string or array of objects", content)
    if content == [] and role != "assistant":
        yield empty_list(at)
    for path, _, part in parts_of(at, content, own=False):
        kind = as_text(part.get("type"))
        known = _PARTS.get(role, ("text",))
        if kind not in known:
            yield wrong_value(f"{path}.type", kind, known)
            continue
        yield from unknown_parameters(part, _PART_FIELDS[kind], path)
        if kind not in part:
            yield missing(f"{path}.{kind}")
        if kind == "text" and not isinstance(part.get("text"), str):
            yield wrong_type(f"{path}.text", "a string", part.get("text"))


def _calls(at: str, message: dict[str, Any]) -> Iterator[Refusal]:
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list):
        yield wrong_type(f"{at}.tool_calls", "an array of objects", calls)
        return
    if not calls:
        yield empty_list(f"{at}.tool_calls")
    for j, call in enumerate(calls):
        where, found = f"{at}.tool_calls[{j}]", as_record(call)
        if not isinstance(found.get("id"), str):
            yield missing(f"{where}.id")
        kind = found.get("type")
        if kind not in ("function", "custom"):
            yield wrong_value(f"{where}.type", kind, ("function", "custom"))
        inner = as_record(found.get(str(kind)))
        said = "arguments" if kind == "function" else "input"
        if not isinstance(inner.get("name"), str):
            yield missing(f"{where}.{kind}.name")
        if not isinstance(inner.get(said), str):
            yield wrong_type(f"{where}.{kind}.{said}", "a string", inner.get(said))


def _pairs(messages: list[dict[str, Any]]) -> Iterator[Refusal]:
    """Each call of a message is answered by one of the tool messages right after it."""
    called: list[str] = []
    waiting: dict[str, None] = {}
    for i, message in enumerate(messages):
        if message["role"] == "tool":
            call = message["tool_call_id"]
            if not called:
                yield Refusal(
                    message="Invalid parameter: messages with role 'tool' must be a response to a preceeding "
                    "message with 'tool_calls'.",
                    param=f"messages.[{i}].role",
                )
            if call not in called:
                yield Refusal(
                    message=f"Invalid parameter: 'tool_call_id' of '{call}' not found in 'tool_calls' of "
                    "previous message.",
                    param=f"messages.[{i}].tool_call_id",
                )
            if call not in waiting:
                yield Refusal(
                    message=f"Duplicate value for 'tool_call_id' of '{call}'",
                    param=f"messages.[{i}].tool_call_id",
                )
            waiting.pop(call, None)
            continue
        if waiting:
            yield _unanswered(i, waiting)
        called = [as_text(as_record(call).get("id")) for call in as_list(message.get("tool_calls"))]
        waiting = dict.fromkeys(called)
        if len(waiting) < len(called):
            yield Refusal(message="Duplicate value for 'tool_call_id' in 'tool_calls'", param=f"messages.[{i}]")
    if waiting:
        yield _unanswered(len(messages), waiting)


def _unanswered(i: int, waiting: dict[str, None]) -> Refusal:
    return Refusal(
        message="An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(waiting)}",
        param=f"messages.[{i}].role",
    )


def _tools(asked: dict[str, Any]) -> Iterator[Refusal]:
    tools = asked.get("tools")
    if tools is not None and not isinstance(tools, list):
        yield wrong_type("tools", "an array of objects", tools)
    if tools == []:
        yield empty_list("tools")
    names: list[tuple[str, object]] = []
    for i, tool in enumerate(map(as_record, as_list(tools))):
        kind = tool.get("type")
        if kind not in ("function", "custom"):
            yield wrong_value(f"tools[{i}].type", kind, ("function", "custom"))
        yield from unknown_parameters(tool, ("type", str(kind)), f"tools[{i}]")
        names.append((f"tools[{i}].{kind}.name", as_record(tool.get(str(kind))).get("name")))
    yield from openai_rules.tool_problems(names, asked.get("tool_choice"), bool(tools))


def _options(asked: dict[str, Any]) -> Iterator[Refusal]:
    yield from openai_rules.flag_problems(asked)
    if asked.get("stream_options") is not None and not asked.get("stream"):
        yield Refusal(
            message="The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
        )
    if asked.get("max_tokens") is not None and asked.get("max_completion_tokens") is not None:
        yield Refusal(
            message="Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
            param="max_tokens",
            code="invalid_parameter_combination",
        )
    model = model_of(Format.CHAT, asked["model"])
    if asked.get("max_tokens") is not None and model is not None and model.reasons:
        yield Refusal(
            message="Unsupported parameter: 'max_tokens' is not supported with this model. Use "
            "'max_completion_tokens' instead.",
            param="max_tokens",
            code="unsupported_parameter",
        )
    for param in ("max_tokens", "max_completion_tokens"):
        yield from openai_rules.output_problems(asked, param, least=1)
    number = asked.get("n")
    if number is not None and (not isinstance(number, int) or not 1 <= number <= _MOST_CHOICES):
        yield wrong_type("n", f"an integer from 1 to {_MOST_CHOICES}", number)
    stops = asked.get("stop")
    if not all(isinstance(stop, str) for stop in (stops if isinstance(stops, list) else [stops or ""])):
        yield wrong_type("stop", "one of a string or array of strings", stops)
    if isinstance(stops, list) and len(stops) > 4:
        yield Refusal(
            message="Invalid 'stop': array too long. Expected an array with maximum length 4, but got an "
            f"array with length {len(stops)} instead.",
            param="stop",
            code="array_above_max_length",
        )
    if as_record(asked.get("response_format")).get("type") == "json_object":
        said = str([message.get("content") for message in asked["messages"]])
        if "json" not in said.lower():
            yield Refusal(
                message="'messages' must contain the word 'json' in some form, to use 'response_format' of "
                "type 'json_object'.",
                param="messages",
            )

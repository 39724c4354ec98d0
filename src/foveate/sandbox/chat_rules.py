"""What OpenAI takes for a chat completion: its messages, calls next to their results, and its parameters.

After https://platform.openai.com/docs/api-reference/chat and what its API answered to others (read November
2026).
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from foveate.sandbox import openai_rules
from foveate.sandbox.models import model_of
from foveate.sandbox.openai_rules import parts_of
from foveate.sandbox.openai_words import empty_list, missing, unsupported
from foveate.values import Format, Ttl
from foveate.wire.body import as_list, as_record, as_text
from foveate.wire.refusals import Refusal

# With what an assistant may speak instead of a content.
_OTHER_WAYS = ("tool_calls", "function_call", "refusal", "audio")
_TTLS = (Ttl.THIRTY_MINUTES,)  # 12h is for Responses


def first_problem(asked: dict[str, Any]) -> Refusal | None:
    """Why OpenAI would not take a chat completion, or None where it would."""
    return next(_problems(asked), None)


def too_long(asked: dict[str, Any], prompt_tokens: int) -> Refusal | None:
    """Why a prompt, or it and its answer, does not fit in the model's window."""
    wanted = asked.get("max_completion_tokens") or asked.get("max_tokens") or 0
    return openai_rules.too_long(asked["model"], prompt_tokens, wanted, "messages")


def _problems(asked: dict[str, Any]) -> Iterator[Refusal]:
    yield from openai_rules.model_problems(asked)
    yield from openai_rules.shape_problems(Format.CHAT, asked)
    messages = asked["messages"]
    yield from chain(_contents(messages), _pairs(messages), _tools(asked), _options(asked))
    parts = [
        part
        for i, message in enumerate(messages)
        for part in parts_of(
            f"messages[{i}].content", message.get("content"), own=message["role"] == "assistant"
        )
    ]
    yield from openai_rules.mark_problems(asked, parts, _TTLS)


def _contents(messages: list[dict[str, Any]]) -> Iterator[Refusal]:
    for i, message in enumerate(messages):
        content, role = message.get("content"), message["role"]
        speaks_otherwise = role == "assistant" and any(message.get(way) for way in _OTHER_WAYS)
        if content is None and not speaks_otherwise:
            yield Refusal(
                message="Invalid value for 'content': expected a string, got null.",
                param=f"messages.[{i}].content",
            )
        if content == [] and role != "assistant":
            yield empty_list(f"messages[{i}].content")
        for path, _, part in parts_of(f"messages[{i}].content", content, own=False):
            file = as_record(part.get("file"))
            if part["type"] == "file" and file.get("file_id") is None and file.get("file_data") is None:
                yield missing(f"{path}.file.file_id")


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
    tools = [
        _tool(f"tools[{i}].{tool['type']}", tool[tool["type"]])
        for i, tool in enumerate(as_list(asked.get("tools")))
    ]
    older = [_tool(f"functions[{i}]", function) for i, function in enumerate(as_list(asked.get("functions")))]
    yield from openai_rules.tool_problems([*tools, *older])
    names = [tool.name for tool in tools]
    yield from openai_rules.choice_problems(asked.get("tool_choice"), names, has_tools=bool(tools))
    if asked.get("parallel_tool_calls") is not None and not tools:
        yield Refusal(
            message="Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed when "
            "'tools' are specified.",
            param="parallel_tool_calls",
        )
    if asked.get("function_call") is not None and not older:
        yield Refusal(
            message="Invalid value for 'function_call': 'function_call' is only allowed when 'functions' are "
            "specified.",
            param="function_call",
        )
    wanted = as_record(asked.get("function_call")).get("name")
    if wanted is not None and wanted not in [function.name for function in older]:
        yield Refusal(
            message=f"Invalid value for 'function_call': no function named '{wanted}' was specified in the "
            "'functions' parameter.",
            param="function_call",
        )


def _tool(path: str, said: dict[str, Any]) -> openai_rules.Tool:
    strict = said.get("strict") is True
    return openai_rules.Tool(path=path, name=said["name"], schema=said.get("parameters"), is_strict=strict)


def _options(asked: dict[str, Any]) -> Iterator[Refusal]:
    model = model_of(Format.CHAT, asked["model"])
    reasons = model is not None and model.reasons
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
    if asked.get("max_tokens") is not None and reasons:
        yield unsupported("max_tokens", " Use 'max_completion_tokens' instead.")
    for param in ("max_tokens", "max_completion_tokens"):
        yield from openai_rules.output_problems(asked, param, least=1)
    yield from openai_rules.sampling_problems(Format.CHAT, asked)
    if asked.get("reasoning_effort") is not None and not reasons:
        yield Refusal(message="Unrecognized request argument supplied: reasoning_effort")
    if asked.get("top_logprobs") is not None and not asked.get("logprobs"):
        yield Refusal(
            message="The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.",
            param="top_logprobs",
        )
    yield from _format(asked)


def _format(asked: dict[str, Any]) -> Iterator[Refusal]:
    wanted = as_record(asked.get("response_format"))
    if wanted.get("type") == "json_schema":
        yield from openai_rules.format_problems("response_format.json_schema", wanted["json_schema"])
    if wanted.get("type") == "json_object":
        said = str([message.get("content") for message in asked["messages"]])
        if "json" not in said.lower():
            yield Refusal(
                message="'messages' must contain the word 'json' in some form, to use 'response_format' of "
                "type 'json_object'.",
                param="messages",
            )

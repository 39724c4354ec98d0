"""What OpenAI takes for a response: its input items, calls with their outputs, and its parameters.

After https://platform.openai.com/docs/api-reference/responses and what its API answered to others (read
November 2026).
"""

from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any

from foveate.sandbox import openai_rules
from foveate.sandbox.models import model_of
from foveate.sandbox.openai_rules import missing, parts_of, unknown_parameters, wrong_type, wrong_value
from foveate.sandbox.refusals import Refusal
from foveate.values import Format, Ttl
from foveate.wire.body import as_list, as_record, as_text

_PARAMETERS = frozenset(
    ("model", "input", "access_programs", "background", "context_management", "conversation", "image",
     "include", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "moderation",
     "parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_options",
     "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "store", "stream",
     "stream_options", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation",
     "user")
)  # fmt: skip
_ROLES = ("user", "assistant", "system", "developer")
_CALLS = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
_ITEMS = (
    "message", "reasoning", *_CALLS, *_CALLS.values(), "item_reference", "file_search_call", "computer_call",
    "computer_call_output", "web_search_call", "image_generation_call", "code_interpreter_call",
    "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output", "apply_patch_call",
    "apply_patch_call_output", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "mcp_call",
    "compaction", "tool_search_call", "tool_search_output", "additional_tools", "compaction_trigger",
    "configuration_update", "program", "program_output",
)  # fmt: skip
_INPUT_PARTS = ("input_text", "input_image", "input_file", "input_audio")
_OUTPUT_PARTS = ("output_text", "refusal")
_TTLS = (Ttl.THIRTY_MINUTES, Ttl.TWELVE_HOURS)
_LEAST_OUTPUT_TOKENS = 16
# What stands for earlier items that the body does not show.
_STORED = ("previous_response_id", "conversation")


def first_problem(asked: dict[str, Any], *, prompt_tokens: int | None = None) -> Refusal | None:
    """Why OpenAI would not take a request for a response, or None where it would."""
    return next(_problems(asked, prompt_tokens), None)


def _problems(asked: dict[str, Any], prompt_tokens: int | None) -> Iterator[Refusal]:
    yield from openai_rules.model_problems(asked)
    yield from unknown_parameters(asked, _PARAMETERS)
    given = asked.get("input")
    is_continued = any(asked.get(field) is not None for field in (*_STORED, "prompt"))
    if given is None and not is_continued:
        yield Refusal(
            message="One of 'input', 'previous_response_id', 'conversation' or 'prompt' must be provided.",
            param="input",
            code="missing_required_parameter",
        )
    if not isinstance(given, (str, list, type(None))):
        yield wrong_type("input", "one of a string or array of objects", given)
    if asked.get("previous_response_id") is not None and asked.get("conversation") is not None:
        yield Refusal(
            message="Mutually exclusive parameters: 'previous_response_id' and 'conversation'.",
            param="previous_response_id",
            code="mutually_exclusive_parameters",
        )
    items = as_list(given)
    yield from chain(
        _shapes(items),
        _pairs(items, asked),
        _thoughts(items),
        _tools(asked),
        _options(asked),
        _marks(asked, items),
    )
    model = model_of(Format.RESPONSES, asked["model"])
    if prompt_tokens is not None and model is not None and asked.get("truncation") != "auto":
        yield from openai_rules.size_problems(
            model, prompt_tokens, asked.get("max_output_tokens") or 0, "input"
        )


def _shapes(items: list[Any]) -> Iterator[Refusal]:
    for i, item in enumerate(items):
        at = f"input[{i}]"
        if not isinstance(item, dict):
            yield wrong_type(at, "an object", item)
            return
        kind = item.get("type", "message")
        if kind not in _ITEMS:
            yield wrong_value(f"{at}.type", kind, _ITEMS)
        if kind == "message":
            yield from _message(at, item)
        if kind in (*_CALLS, *_CALLS.values()) and not isinstance(item.get("call_id"), str):
            yield missing(f"{at}.call_id")
        if kind == "function_call":
            for field in ("name", "arguments"):
                if not isinstance(item.get(field), str):
                    yield missing(f"{at}.{field}")
        if kind in _CALLS.values() and not isinstance(item.get("output"), (str, list)):
            yield missing(f"{at}.output")


def _message(at: str, item: dict[str, Any]) -> Iterator[Refusal]:
    role = item.get("role")
    if role not in _ROLES:
        yield wrong_value(f"{at}.role", role, _ROLES)
    if not isinstance(item.get("content"), (str, list)):
        yield wrong_type(f"{at}.content", "one of a string or array of objects", item.get("content"))
    yield from unknown_parameters(item, ("type", "role", "content", "id", "status", "phase"), at)
    known = _OUTPUT_PARTS if role == "assistant" else _INPUT_PARTS
    for path, _, part in parts_of(f"{at}.content", item.get("content"), own=False):
        kind = as_text(part.get("type"))
        if kind not in known:
            yield wrong_value(f"{path}.type", kind, known)
        if part.get("cache_control") is not None:
            yield openai_rules.unknown(f"{path}.cache_control")


def _pairs(items: list[dict[str, Any]], asked: dict[str, Any]) -> Iterator[Refusal]:
    """Every output comes after its call, and every call has an output, unless the call is stored elsewhere."""
    is_continued = any(asked.get(field) is not None for field in _STORED)
    for call_kind, output_kind in _CALLS.items():
        called: list[str] = []
        searched: set[str] = set()  # a search for tools may be answered as a call of one
        answered: set[str] = set()
        for item in items:
            call = as_text(item.get("call_id"))
            if item.get("type") == call_kind:
                if call in called:
                    yield Refusal(message=f"Duplicate call_id {call} in input.", param="input")
                called.append(call)
            elif item.get("type") == "tool_search_call":
                searched.add(call)
            elif item.get("type") == output_kind:
                if call not in called and call not in searched and not is_continued:
                    yield Refusal(
                        message=f"No tool call found for function call output with call_id {call}.",
                        param="input",
                    )
                if call in answered:
                    yield Refusal(message=f"Duplicate output for function call {call} in input.", param="input")
                answered.add(call)
        for call in called:
            if call not in answered:
                yield Refusal(message=f"No tool output found for function call {call}.", param="input")


def _thoughts(items: list[dict[str, Any]]) -> Iterator[Refusal]:
    """Reasoning is sent back with what it led to, or not at all."""
    for item, following in pairwise((*items, {})):
        if item.get("type") == "reasoning":
            kind = following.get("type", "message")
            by_model = (
                following.get("role") == "assistant" if kind == "message" else not kind.endswith("_output")
            )
            if not following or not by_model:
                yield Refusal(
                    message=f"Item '{item.get('id', '')}' of type 'reasoning' was provided without its "
                    "required following item.",
                    param="input",
                )


def _tools(asked: dict[str, Any]) -> Iterator[Refusal]:
    tools = asked.get("tools")
    if tools is not None and not isinstance(tools, list):
        yield wrong_type("tools", "an array of objects", tools)
    names: list[tuple[str, object]] = []
    for i, tool in enumerate(map(as_record, as_list(tools))):
        if not isinstance(tool.get("type"), str):
            yield missing(f"tools[{i}].type")
        if tool.get("type") == "function":
            names.append((f"tools[{i}].name", tool.get("name")))
    yield from openai_rules.tool_problems(names, asked.get("tool_choice"), bool(tools))


def _options(asked: dict[str, Any]) -> Iterator[Refusal]:
    yield from openai_rules.flag_problems(asked)
    yield from openai_rules.output_problems(asked, "max_output_tokens", least=_LEAST_OUTPUT_TOKENS)
    if asked.get("stream_options") is not None and not asked.get("stream"):
        yield Refusal(
            message="The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
        )


def _marks(asked: dict[str, Any], items: list[dict[str, Any]]) -> Iterator[Refusal]:
    parts = []
    for i, item in enumerate(items):
        own = item.get("role") == "assistant"
        parts += parts_of(f"input[{i}].content", item.get("content"), own=own)
        parts += parts_of(f"input[{i}].output", item.get("output"), own=False)
    return openai_rules.mark_problems(asked, parts, _TTLS)

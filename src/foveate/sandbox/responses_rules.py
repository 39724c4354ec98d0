"""What OpenAI takes for a response: its input items, calls with their outputs, and its parameters.

After https://platform.openai.com/docs/api-reference/responses and what its API answered to others (read
November 2026).
"""

from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any

from foveate.sandbox import openai_rules
from foveate.sandbox.models import model_of
from foveate.sandbox.openai_rules import parts_of
from foveate.sandbox.openai_words import missing, unsupported, wrong_value
from foveate.values import Format, Ttl
from foveate.wire.body import as_list, as_record, as_text
from foveate.wire.refusals import Refusal

_CALLS = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
_INPUT_PARTS = ("input_text", "input_image", "input_file", "input_audio")
_SOURCES = {"input_image": ("image_url", "file_id"), "input_file": ("file_id", "file_data", "file_url")}
_OUTPUT_PARTS = ("output_text", "refusal")
_TTLS = (Ttl.THIRTY_MINUTES, Ttl.TWELVE_HOURS)
_LEAST_OUTPUT_TOKENS = 16
# What stands for earlier items that the body does not show.
_STORED = ("previous_response_id", "conversation")


def first_problem(asked: dict[str, Any]) -> Refusal | None:
    """Why OpenAI would not take a request for a response, or None where it would."""
    return next(_problems(asked), None)


def too_long(asked: dict[str, Any], prompt_tokens: int) -> Refusal | None:
    """Why a prompt, or it and its answer, does not fit in the model's window; what is truncated does."""
    if asked.get("truncation") == "auto":
        return None
    return openai_rules.too_long(asked["model"], prompt_tokens, asked.get("max_output_tokens") or 0, "input")


def _problems(asked: dict[str, Any]) -> Iterator[Refusal]:
    yield from openai_rules.model_problems(asked)
    yield from openai_rules.shape_problems(Format.RESPONSES, asked)
    given = asked.get("input")
    is_continued = any(asked.get(field) is not None for field in (*_STORED, "prompt"))
    if given is None and not is_continued:
        yield Refusal(
            message="One of 'input', 'previous_response_id', 'conversation' or 'prompt' must be provided.",
            param="input",
            code="missing_required_parameter",
        )
    if asked.get("previous_response_id") is not None and asked.get("conversation") is not None:
        yield Refusal(
            message="Mutually exclusive parameters: 'previous_response_id' and 'conversation'.",
            param="previous_response_id",
            code="mutually_exclusive_parameters",
        )
    items = as_list(given)
    yield from chain(
        _parts(items),
        _pairs(items, asked),
        _thoughts(items),
        _tools(asked),
        _options(asked),
        _marks(asked, items),
    )


def _parts(items: list[dict[str, Any]]) -> Iterator[Refusal]:
    """What the model said has other parts than what it was told."""
    for i, item in enumerate(items):
        if item.get("type", "message") == "message":
            known = _OUTPUT_PARTS if item["role"] == "assistant" else _INPUT_PARTS
            for path, _, part in parts_of(f"input[{i}].content", item["content"], own=False):
                if part["type"] not in known:
                    yield wrong_value(f"{path}.type", part["type"], known)
                yield from _source(path, part)


def _source(path: str, part: dict[str, Any]) -> Iterator[Refusal]:
    """An image or file comes from somewhere."""
    ways = _SOURCES.get(part["type"], ())
    if ways and all(part.get(way) is None for way in ways):
        yield missing(f"{path}.{ways[0]}")


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
    tools = as_list(asked.get("tools"))
    called = [
        openai_rules.Tool(
            path=f"tools[{i}]",
            name=tool["name"],
            schema=tool.get("parameters"),
            is_strict=tool.get("strict") is True,
        )
        for i, tool in enumerate(tools)
        if tool["type"] in ("function", "custom")
    ]
    yield from openai_rules.tool_problems(called)
    names = [tool.name for tool in called]
    yield from openai_rules.choice_problems(asked.get("tool_choice"), names, has_tools=bool(tools))


def _options(asked: dict[str, Any]) -> Iterator[Refusal]:
    yield from openai_rules.output_problems(asked, "max_output_tokens", least=_LEAST_OUTPUT_TOKENS)
    yield from openai_rules.sampling_problems(Format.RESPONSES, asked)
    if asked.get("stream_options") is not None and not asked.get("stream"):
        yield Refusal(
            message="The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
        )
    model = model_of(Format.RESPONSES, asked["model"])
    if model is not None and not model.reasons and as_record(asked.get("reasoning")).get("effort") is not None:
        yield unsupported("reasoning.effort")
    yield from _format(asked)


def _format(asked: dict[str, Any]) -> Iterator[Refusal]:
    wanted = as_record(as_record(asked.get("text")).get("format"))
    if wanted.get("type") == "json_schema":
        yield from openai_rules.format_problems("text.format", wanted)
    is_continued = any(asked.get(field) is not None for field in (*_STORED, "prompt"))
    if wanted.get("type") == "json_object" and not is_continued:
        said = str([asked.get("instructions"), asked.get("input")])
        if "json" not in said.lower():
            yield Refusal(
                message="Response input messages must contain the word 'json' in some form to use "
                "'text.format' of type 'json_object'.",
                param="input",
            )


def _marks(asked: dict[str, Any], items: list[dict[str, Any]]) -> Iterator[Refusal]:
    parts = []
    for i, item in enumerate(items):
        own = item.get("role") == "assistant"
        parts += parts_of(f"input[{i}].content", item.get("content"), own=own)
        parts += parts_of(f"input[{i}].output", item.get("output"), own=False)
    return openai_rules.mark_problems(asked, parts, _TTLS)

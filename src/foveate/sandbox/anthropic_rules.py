"""What Anthropic takes for a Messages request: its parameters, its tools, thinking, and the size of it all.

After https://platform.claude.com/docs/en/api/messages and what its API answered to others (read November 2026).
"""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from foveate.budget.windows import window_of
from foveate.cache.rules import rules_for
from foveate.sandbox import anthropic_marks, anthropic_turns, seals
from foveate.sandbox.models import Model, model_of
from foveate.sandbox.refusals import Refusal
from foveate.values import Format
from foveate.wire.body import as_list, as_record, as_text

_PARAMETERS = frozenset(
    ("model", "messages", "max_tokens", "system", "tools", "tool_choice", "thinking", "stream",
     "stop_sequences", "temperature", "top_p", "top_k", "metadata", "service_tier", "cache_control",
     "container", "context_management", "mcp_servers", "output_config", "output_format", "speed",
     "inference_geo", "diagnostics", "compaction", "fallbacks", "fallback_credit_token", "thread",
     "user_profile_id", "workspace_id")
)  # fmt: skip
# What counting takes: all that the model reads, nothing of how it shall answer.
_COUNTED = _PARAMETERS - {"max_tokens", "stream", "stop_sequences", "temperature", "top_p", "top_k", "metadata"}

_THINKING = ("enabled", "disabled", "adaptive", "between_tools")
_LEAST_BUDGET_TOKENS = 1024
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_CHOICES = ("auto", "any", "tool", "none")
_SIGNED = ("thinking", "redacted_thinking")


def first_problem(
    asked: dict[str, Any], *, prompt_tokens: int | None = None, counting: bool = False
) -> Refusal | None:
    """Why Anthropic would not take a request, or None where it would.

    `counting` is asked of `count_tokens`, which wants no limit of the answer and has none of its window.
    """
    return next(_problems(asked, prompt_tokens, counting), None)


def _problems(asked: dict[str, Any], prompt_tokens: int | None, counting: bool) -> Iterator[Refusal]:
    yield from _parameters(asked, counting)
    name = as_text(asked["model"])
    model = model_of(Format.ANTHROPIC, name)
    if model is None:
        yield Refusal(message=f"model: {name}", status=404, kind="not_found_error")
        return
    rules = rules_for(name, "anthropic")
    yield from chain(
        _output(asked, model) if not counting else (),
        anthropic_turns.problems(asked["messages"]),
        _system(asked.get("system")),
        _tools(asked),
        _thinking(asked),
        _ending(asked, model),
        anthropic_marks.problems(asked, rules),
        seals.problems(asked, binds=rules.binds_thinking),
    )
    if prompt_tokens is not None and not counting:
        yield from _size(asked, model, prompt_tokens)


def _parameters(asked: dict[str, Any], counting: bool) -> Iterator[Refusal]:
    for field in ("model", "messages") if counting else ("model", "max_tokens", "messages"):
        if field not in asked:
            yield Refusal(message=f"{field}: Field required")
    for field in asked.keys() - (_COUNTED if counting else _PARAMETERS):
        yield Refusal(message=f"{field}: Extra inputs are not permitted")
    if not isinstance(asked["model"], str):
        yield Refusal(message="model: Input should be a valid string")
    if not isinstance(asked["messages"], list):
        yield Refusal(message="messages: Input should be a valid list")
    if not isinstance(asked.get("stream", False), (bool, type(None))):
        yield Refusal(message="stream: Input should be a valid boolean")
    if not isinstance(asked.get("tools") or [], list):
        yield Refusal(message="tools: Input should be a valid list")
    temperature = asked.get("temperature")
    if temperature is not None and not (isinstance(temperature, (int, float)) and 0 <= temperature <= 1):
        yield Refusal(message="temperature: range: 0..1")
    stops = asked.get("stop_sequences")
    if stops is not None and not (isinstance(stops, list) and all(isinstance(stop, str) for stop in stops)):
        yield Refusal(message="stop_sequences: Input should be a valid list")
    if any(not stop.strip() for stop in stops or ()):
        yield Refusal(message="stop_sequences: each stop sequence must contain non-whitespace")


def _output(asked: dict[str, Any], model: Model) -> Iterator[Refusal]:
    wanted = asked["max_tokens"]
    if not isinstance(wanted, int) or isinstance(wanted, bool):
        yield Refusal(message="max_tokens: Input should be a valid integer")
        return
    if wanted < 0:
        yield Refusal(message="max_tokens: Input should be greater than or equal to 0")
    if wanted > model.most_output_tokens:
        yield Refusal(
            message=f"max_tokens: {wanted} > {model.most_output_tokens}, which is the maximum allowed number "
            f"of output tokens for {model.name}"
        )
    if wanted == 0 and asked.get("stream"):  # nothing is said: such a request warms the cache
        yield Refusal(message="max_tokens: 0 is not supported with streaming")


def _system(system: Any) -> Iterator[Refusal]:
    if not isinstance(system, (str, list, type(None))):
        yield Refusal(message="system: Input should be a valid list")
    for j, block in enumerate(as_list(system)):
        found = as_record(block)
        if found.get("type") != "text":
            yield Refusal(message=f"system.{j}.type: Input should be 'text'")
        if not isinstance(found.get("text"), str):
            yield Refusal(message=f"system.{j}.text: Field required")
        for field in found.keys() - (anthropic_turns.BLOCKS["text"] or set()):
            yield Refusal(message=f"system.{j}.{field}: Extra inputs are not permitted")
    yield from anthropic_turns.text_problems("system", "system", [as_record(b) for b in as_list(system)])


def _tools(asked: dict[str, Any]) -> Iterator[Refusal]:
    names = []
    for i, tool in enumerate(as_list(asked.get("tools"))):
        found = as_record(tool)
        kind = as_text(found.get("type")) or "custom"
        if kind == "mcp_toolset" or kind.endswith("_toolset"):  # stands for tools that the provider names
            continue
        name = found.get("name")
        if not isinstance(name, str):
            yield Refusal(message=f"tools.{i}.{kind}.name: Field required")
            continue
        names.append(name)
        if not _TOOL_NAME.fullmatch(name):
            yield Refusal(
                message=f"tools.{i}.{kind}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
            )
        if kind == "custom":
            yield from _schema(f"tools.{i}.custom.input_schema", found)
    if len(names) != len(set(names)):
        yield Refusal(message="tools: Tool names must be unique.")
    yield from _choice(asked.get("tool_choice"), names)


def _schema(at: str, tool: dict[str, Any]) -> Iterator[Refusal]:
    if not isinstance(tool.get("input_schema"), dict):
        yield Refusal(message=f"{at}: Field required")
    elif tool["input_schema"].get("type") != "object":
        yield Refusal(message=f"{at}.type: Input should be 'object'")


def _choice(choice: Any, names: list[str]) -> Iterator[Refusal]:
    if choice is None:
        return
    kind = as_record(choice).get("type")
    if kind not in _CHOICES:
        tags = ", ".join(f"'{tag}'" for tag in _CHOICES)
        yield Refusal(
            message=f"tool_choice: Input tag '{kind}' found using 'type' does not match any of the expected "
            f"tags: {tags}"
        )
    if kind in ("any", "tool") and not names:
        yield Refusal(message="tool_choice: tool_choice may only be specified while providing tools.")
    if kind == "tool" and choice.get("name") not in names:
        yield Refusal(message=f"tool_choice: Tool '{choice.get('name')}' not found in provided tools")


def thinks(asked: dict[str, Any]) -> bool:
    """Whether the answer begins with a thought."""
    return as_record(asked.get("thinking")).get("type") in ("enabled", "adaptive")


def _thinking(asked: dict[str, Any]) -> Iterator[Refusal]:
    thinking = asked.get("thinking")
    if thinking is None:
        return
    kind = as_record(thinking).get("type")
    if kind not in _THINKING:
        tags = ", ".join(f"'{tag}'" for tag in _THINKING)
        yield Refusal(
            message=f"thinking: Input tag '{kind}' found using 'type' does not match any of the expected tags: "
            f"{tags}"
        )
    limit = asked.get("max_tokens")
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        if not isinstance(budget, int):
            yield Refusal(message="thinking.enabled.budget_tokens: Field required")
            return
        if budget < _LEAST_BUDGET_TOKENS:
            yield Refusal(
                message="thinking.enabled.budget_tokens: Input should be greater than or equal to "
                f"{_LEAST_BUDGET_TOKENS}"
            )
        if limit is not None and budget >= limit:
            yield Refusal(
                message="`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our "
                "documentation at https://docs.claude.com/en/docs/build-with-claude/extended-thinking"
                "#max-tokens-and-context-window-size"
            )
    if not thinks(asked):
        return
    if limit == 0:
        yield Refusal(message="max_tokens: 0 is not supported when thinking is enabled")
    if asked.get("temperature") not in (None, 1):
        yield Refusal(message="`temperature` may only be set to 1 when thinking is enabled.")
    # An adaptive model leaves out its thought instead, as recorded requests show.
    if kind == "enabled" and as_record(asked.get("tool_choice")).get("type") in ("any", "tool"):
        yield Refusal(message="Thinking may not be enabled when tool_choice forces tool use.")


def _ending(asked: dict[str, Any], model: Model) -> Iterator[Refusal]:
    """Who may have the last word, and with what the assistant's last turn begins."""
    messages = asked["messages"]
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns:
        return
    blocks = anthropic_turns.blocks_of(messages[turns[-1]])
    # A turn that the provider's own tools paused is sent back to be gone on with.
    is_paused = any(block.get("type") == "server_tool_use" for block in blocks)
    is_prefill = turns[-1] == len(messages) - 1 and not is_paused
    if is_prefill and blocks and not model.takes_prefill:
        yield Refusal(
            message="This model does not support assistant message prefill. The conversation must end with a "
            "user message."
        )
    if not blocks or not thinks(asked):
        return
    # An adaptive model may have called its tool without a thought.
    loops = any(block.get("type") == "tool_use" for block in blocks)
    if as_record(asked["thinking"])["type"] == "enabled" and (is_prefill or loops):
        first = blocks[0].get("type")
        if first not in _SIGNED:
            yield Refusal(
                message=f"messages.{turns[-1]}.content.0.type: Expected `thinking` or `redacted_thinking`, but "
                f"found `{first}`. When `thinking` is enabled, a final `assistant` message must start with a "
                "thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks). To avoid "
                "this requirement, disable `thinking`."
            )
    if is_prefill and blocks[0].get("type") not in _SIGNED:
        yield Refusal(message="Prefilling assistant messages is not supported when `thinking` is enabled.")


def _size(asked: dict[str, Any], model: Model, prompt_tokens: int) -> Iterator[Refusal]:
    window = window_of(model.name)
    if window is None:
        return
    if prompt_tokens > window.tokens:
        yield Refusal(message=f"prompt is too long: {prompt_tokens} tokens > {window.tokens} maximum")
    if model.adds_output and prompt_tokens + asked["max_tokens"] > window.tokens:
        yield Refusal(
            message=f"input length and `max_tokens` exceed context limit: {prompt_tokens} + "
            f"{asked['max_tokens']} > {window.tokens}, decrease input length or `max_tokens` and try again"
        )

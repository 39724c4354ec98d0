"""What Anthropic takes for a Messages request: its parameters, its tools, thinking, and the size of it all.

After https://platform.claude.com/docs/en/api/messages and what its API answered to others (read November 2026).
"""

import re
from collections.abc import Collection, Iterator
from itertools import chain
from typing import Any

from foveate.budget.windows import window_of
from foveate.cache.rules import rules_for
from foveate.sandbox import anthropic_marks, anthropic_turns, seals
from foveate.sandbox.anthropic_words import refusal
from foveate.sandbox.models import Model, model_of
from foveate.sandbox.shapes import shapes_of
from foveate.values import Format
from foveate.wire.body import as_list, as_record, as_text
from foveate.wire.refusals import Refusal

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_LEAST_TOP_P = 0.95  # with thinking
# https://platform.claude.com/docs/en/build-with-claude/preserved-thinking (read November 2026)
_BINDING_BETA = "thinking-binding-controls-2026-08-01"
_SIGNED = ("thinking", "redacted_thinking")


def first_problem(
    asked: dict[str, Any], *, counting: bool = False, betas: Collection[str] = ()
) -> Refusal | None:
    """Why Anthropic would not take a request, or None where it would.

    `counting` is asked of `count_tokens`, which wants no limit of the answer. `betas` are asked for with it.
    """
    return next(_problems(asked, counting, betas), None)


def _problems(asked: dict[str, Any], counting: bool, betas: Collection[str]) -> Iterator[Refusal]:
    yield from _parameters(asked, counting)
    yield from _binding(as_record(asked.get("thinking")), betas)
    name = as_text(asked["model"])
    model = model_of(Format.ANTHROPIC, name)
    if model is None:
        yield Refusal(message=f"model: {name}", status=404, kind="not_found_error")
        return
    rules = rules_for(name, "anthropic")
    yield from chain(
        _output(asked, model) if not counting else (),
        anthropic_turns.problems(asked["messages"], takes_system=model.takes_system),
        _system(asked.get("system")),
        _tools(asked),
        _thinking(asked),
        _ending(asked, model),
        anthropic_marks.problems(asked, rules),
        seals.problems(asked, binds=rules.binds_thinking),
    )


def _parameters(asked: dict[str, Any], counting: bool) -> Iterator[Refusal]:
    yield from anthropic_turns.role_problems(as_list(asked.get("messages")))
    for fault in shapes_of(Format.ANTHROPIC).faults("counted" if counting else "request", asked):
        yield refusal(fault)


def _binding(thinking: dict[str, Any], betas: Collection[str]) -> Iterator[Refusal]:
    """What happens to thoughts after an edit can be said with a beta only, and without it is no field."""
    if thinking.get("block_binding") is not None and _BINDING_BETA not in betas:
        where = f"thinking.{thinking['type']}.block_binding"
        yield Refusal(message=f"{where}: Extra inputs are not permitted")


def _output(asked: dict[str, Any], model: Model) -> Iterator[Refusal]:
    wanted = asked["max_tokens"]
    if wanted > model.most_output_tokens:
        yield Refusal(
            message=f"max_tokens: {wanted} > {model.most_output_tokens}, which is the maximum allowed number "
            f"of output tokens for {model.name}"
        )
    if wanted == 0 and asked.get("stream"):  # nothing is said: such a request warms the cache
        yield Refusal(message="max_tokens: 0 is not supported with streaming")
    if any(not stop.strip() for stop in asked.get("stop_sequences") or ()):
        yield Refusal(message="stop_sequences: each stop sequence must contain non-whitespace")


def _system(system: Any) -> Iterator[Refusal]:
    yield from anthropic_turns.text_problems("system", "system", [as_record(b) for b in as_list(system)])


def _tools(asked: dict[str, Any]) -> Iterator[Refusal]:
    names = []
    for i, tool in enumerate(as_list(asked.get("tools"))):
        if "name" not in tool:  # a set of tools, which the provider names
            continue
        names.append(tool["name"])
        if not _TOOL_NAME.fullmatch(tool["name"]):
            kind = tool.get("type") or "custom"
            yield Refusal(
                message=f"tools.{i}.{kind}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
            )
    if len(names) != len(set(names)):
        yield Refusal(message="tools: Tool names must be unique.")
    yield from _choice(as_record(asked.get("tool_choice")), names)


def _choice(choice: dict[str, Any], names: list[str]) -> Iterator[Refusal]:
    kind = choice.get("type")
    if kind in ("any", "tool") and not names:
        yield Refusal(message="tool_choice: tool_choice may only be specified while providing tools.")
    if kind == "tool" and choice["name"] not in names:
        yield Refusal(message=f"tool_choice: Tool '{choice['name']}' not found in provided tools")


def thinks(asked: dict[str, Any]) -> bool:
    """Whether the answer begins with a thought."""
    return as_record(asked.get("thinking")).get("type") in ("enabled", "adaptive")


def _thinking(asked: dict[str, Any]) -> Iterator[Refusal]:
    thinking = as_record(asked.get("thinking"))
    kind, limit = thinking.get("type"), asked.get("max_tokens")
    if kind == "enabled" and limit is not None and thinking["budget_tokens"] >= limit:
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
    if asked.get("top_k") not in (None, -1):
        yield Refusal(message="`top_k` must be unset when thinking is enabled.")
    top_p = asked.get("top_p")
    if top_p is not None and top_p < _LEAST_TOP_P:
        yield Refusal(
            message=f"`top_p` must be greater than or equal to {_LEAST_TOP_P} or unset when thinking is "
            "enabled."
        )
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


def too_long(asked: dict[str, Any], prompt_tokens: int) -> Refusal | None:
    """Why a prompt, or it and its answer, does not fit in the model's window."""
    model, window = model_of(Format.ANTHROPIC, asked["model"]), window_of(asked["model"])
    if model is None or window is None:
        return None
    if prompt_tokens > window.tokens:
        return Refusal(message=f"prompt is too long: {prompt_tokens} tokens > {window.tokens} maximum")
    if model.adds_output and prompt_tokens + asked["max_tokens"] > window.tokens:
        return Refusal(
            message=f"input length and `max_tokens` exceed context limit: {prompt_tokens} + "
            f"{asked['max_tokens']} > {window.tokens}, decrease input length or `max_tokens` and try again"
        )
    return None

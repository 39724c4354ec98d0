"""The context of a prompt from a memory: what it is made from, and how."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from foveate.errors import BadOption
from foveate.memory.view import DEFAULT_LIMIT_TOKENS
from foveate.prompt.inputs import ContextInputs

if TYPE_CHECKING:
    from foveate.memory.memory import Memory
    from foveate.tokens.gauge import TextCounter


def context_inputs(
    memory: "Memory",
    *,
    agent: str,
    focus: str | None = None,
    scope: str | None = None,
    query: str | None = None,
    limit_tokens: int | None = DEFAULT_LIMIT_TOKENS,
    format: str = "org",  # noqa: A002  # the spec's word
) -> ContextInputs:
    """All that the context is made from, with what holds of the memory now."""
    return ContextInputs(
        agent=agent,
        format=format,
        privacy_tags=memory.privacy_tags,
        memory_version=memory.version,
        focus=focus,
        scope=scope,
        query=query,
        limit_tokens=limit_tokens,
    )


def showing(memory: "Memory", model: "str | TextCounter" = "gpt-4o") -> Callable[[ContextInputs], str]:
    """What makes the text of the context from a memory, counted for a model: a view of it.

    It raises a BadOption where something is to be hidden that the memory was read with: nothing is shown then.
    """

    def build(inputs: ContextInputs) -> str:
        open_tags = sorted(tag for tag in inputs.privacy_tags if not memory.hides(tag))
        if open_tags:
            raise BadOption(
                f"the memory was read without hiding {', '.join(open_tags)}: load it with private=…"
            )
        view = memory.render(
            inputs.focus, inputs.query, inputs.limit_tokens, inputs.format, scope=inputs.scope, model=model
        )
        return view.text

    return build

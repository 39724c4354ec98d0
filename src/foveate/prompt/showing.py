"""The context of a prompt from a memory: what it is made from, and how."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from foveate.errors import BadOption
from foveate.memory.view import DEFAULT_LIMIT_TOKENS
from foveate.prompt.inputs import DEFAULT_MODEL, ContextInputs
from foveate.tokens.families import counter_for

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
    model: str = DEFAULT_MODEL,
) -> ContextInputs:
    """All that the context is made from, with what holds of the memory and in the environment now.

    Raises:
        BadOption: one of them is none, or CONTEXT_SEMANTIC_THRESHOLD is no number from 0 to 1.
    """
    return ContextInputs(
        agent=agent,
        format=format,
        privacy_tags=memory.privacy_tags,
        memory_version=memory.version,
        focus=focus,
        scope=scope,
        query=query,
        limit_tokens=limit_tokens,
        model=model,
        semantic_threshold=memory.semantic_threshold,
    )


def memory_context_builder(
    memory: "Memory",
    *,
    counters: "Callable[[str], TextCounter]" = counter_for,
    finished_projects: bool = True,
) -> Callable[[ContextInputs], str]:
    """What makes the text of the context from a memory: a view of it, counted for the model of the inputs.

    `counters` gives the counter of a model by its name. The model is one of the inputs, and not held here,
    since a text that is kept for one model can be too long for another. Without `finished_projects`, those are
    only shown if the inputs have a focus or a scope.

    It raises a BadOption where something is to be hidden that the memory was read with: nothing is shown then.
    """

    def build(inputs: ContextInputs) -> str:
        unhidden_tags = sorted(tag for tag in inputs.privacy_tags if not memory.hides(tag))
        if unhidden_tags:
            raise BadOption(
                f"the memory was read without hiding {', '.join(unhidden_tags)}: load it with private=…"
            )
        view = memory.render(
            inputs.focus,
            inputs.query,
            inputs.limit_tokens,
            inputs.format,
            scope=inputs.scope,
            model=counters(inputs.model),
            semantic_threshold=inputs.semantic_threshold,
            finished_projects=finished_projects or inputs.focus is not None or inputs.scope is not None,
        )
        return view.text

    return build

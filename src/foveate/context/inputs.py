"""Inputs of the prefix and the context of a prompt. Equal inputs give the same bytes, so they are
cache keys.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum
from types import NoneType
from typing import TYPE_CHECKING

from foveate.budget.sections import check_token_limit
from foveate.errors import BadOption
from foveate.memory.views.view import DEFAULT_LIMIT_TOKENS, parse_view_format
from foveate.tokens.offline_counters import counter_for

if TYPE_CHECKING:
    from foveate.memory.memory import Memory
    from foveate.tokens.text_meter import TextCounter


DEFAULT_MODEL = "gpt-4o"


class CallKind(StrEnum):
    USER = "user"
    TOOL = "tool"
    HEARTBEAT = "heartbeat"
    DELEGATION = "delegation"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ToolText:
    """A tool as the prefix describes it. `schema` is the JSON of its parameters, verbatim."""

    name: str
    description: str = ""
    schema: str = ""

    def __post_init__(self) -> None:
        """Validate the values.

        Raises:
            BadOption: a field is not a text.
        """
        for field in ("name", "description", "schema"):
            check_type(getattr(self, field), str, "a string", ("tool", field))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixInputs:
    """Inputs of the prefix. An empty field, or an identity of None, is missing.

    Feedback is ordered oldest first. Tools are sorted by name, without duplicates, so that their order does not
    matter.
    """

    identity: str | None = ""
    feedback: tuple[str, ...] = ()
    mandates: tuple[str, ...] = ()
    tools: tuple[ToolText, ...] = ()

    def __post_init__(self) -> None:
        """Validate the values and sort the tools.

        Raises:
            BadOption: a field is not a tuple, since every letter of a text would be an entry, or an entry has
                the wrong type.
        """
        check_type(self.identity, (str, NoneType), "a string or None", ("prefix", "identity"))
        for name, kind, description in (
            ("feedback", str, "a string"),
            ("mandates", str, "a string"),
            ("tools", ToolText, "a ToolText"),
        ):
            entries = getattr(self, name)
            check_type(entries, tuple, "a tuple", ("prefix", name))
            for number, entry in enumerate(entries):
                check_type(entry, kind, description, ("prefix", name, number))
        object.__setattr__(self, "tools", tuple(sorted(set(self.tools))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextInputs:
    """Inputs of the context section.

    `scope` names a subtree of the memory; None is the whole. `privacy_tags` are tags of what is not shown.
    `format` is the markup of the result, and `model` decides how `limit_tokens` are counted.
    `semantic_threshold` is the minimum similarity; None is the default. `memory_version` is any hashable value
    that differs after every change of the memory.
    """

    agent: str
    format: str
    privacy_tags: frozenset[str]
    memory_version: Hashable
    focus: str | None = None
    scope: str | None = None
    query: str | None = None
    limit_tokens: int | None = None
    model: str = DEFAULT_MODEL
    semantic_threshold: float | None = None

    def __post_init__(self) -> None:
        """Validate the values.

        Raises:
            BadOption: an invalid limit or threshold, a version that is not hashable, a field that is not a
                text, or tags that are not a frozenset: each letter of a text would be a tag.
        """
        for name in ("agent", "format", "model"):
            check_type(getattr(self, name), str, "a string", ("context", name))
        for name in ("focus", "scope", "query"):
            check_type(getattr(self, name), (str, NoneType), "a string or None", ("context", name))
        check_type(self.privacy_tags, frozenset, "a frozenset of tags", ("context", "privacy_tags"))
        for tag in self.privacy_tags:
            check_type(tag, str, "a set of strings", ("context", "privacy_tags"))
        check_token_limit(self.limit_tokens, ("context", "limit_tokens"))
        _check_threshold(self.semantic_threshold, ("context", "semantic_threshold"))
        try:
            hash(self.memory_version)
        except TypeError:
            type_name = type(self.memory_version).__name__
            raise BadOption(
                f"context.memory_version must be hashable, not {type_name}",
                path=("context", "memory_version"),
            ) from None


def _check_threshold(value: float | None, path: tuple[str, ...]) -> None:
    if value is not None and not (type(value) in (int, float) and 0 <= value <= 1):
        raise BadOption(f"{'.'.join(path)} must be a number from 0 to 1, not {value!r:.40}", path=path)


def check_type(
    value: object, expected: type | tuple[type, ...], description: str, path: tuple[str | int, ...]
) -> None:
    """Check the type of a value; `what` describes the expected type.

    Raises:
        BadOption: it has another type; `path` leads to it.
    """
    if not isinstance(value, expected):
        raise BadOption(
            f"{'.'.join(map(str, path))} must be {description}, not {type(value).__name__}", path=path
        )


def context_inputs(
    memory: "Memory",
    *,
    agent: str,
    focus: str | None = None,
    scope: str | None = None,
    query: str | None = None,
    limit_tokens: int | None = DEFAULT_LIMIT_TOKENS,
    format: str = "auto",  # noqa: A002  # the spec's word
    model: str = DEFAULT_MODEL,
) -> ContextInputs:
    """Return the inputs of the context for the present state of the memory and the environment.

    Raises:
        BadOption: an invalid value, or CONTEXT_SEMANTIC_THRESHOLD is not a number from 0 to 1.
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
    """Return a function that renders the context text from a memory, counted for the model in the inputs.

    `counters` gives the counter of a model. The model is part of the inputs, since a text that fits one model
    may be too long for another. Without `finished_projects`, these are shown only with a focus or scope.

    The function raises BadOption if the memory was loaded without hiding one of the privacy tags; nothing is
    shown then.
    """

    def build(inputs: ContextInputs) -> str:
        unhidden_tags = sorted(tag for tag in inputs.privacy_tags if not memory.hides(tag))
        if unhidden_tags:
            raise BadOption(
                f"the memory was loaded without hiding {', '.join(unhidden_tags)}: load it with private=…"
            )
        view = memory.render(
            inputs.focus,
            inputs.query,
            inputs.limit_tokens,
            parse_view_format(inputs.format),
            scope=inputs.scope,
            model=counters(inputs.model),
            semantic_threshold=inputs.semantic_threshold,
            finished_projects=finished_projects or inputs.focus is not None or inputs.scope is not None,
        )
        return view.text

    return build

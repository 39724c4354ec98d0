"""What the parts of a prompt are made from. Equal inputs give the same bytes, so they are the caches' keys.

The context of a prompt from a memory: what it is made from, and how.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum
from types import NoneType
from typing import TYPE_CHECKING

from foveate.budget.sections import check_token_limit
from foveate.errors import BadOption
from foveate.memory.views.view import DEFAULT_LIMIT_TOKENS
from foveate.tokens.families import counter_for

if TYPE_CHECKING:
    from foveate.memory.memory import Memory
    from foveate.tokens.text_meter import TextCounter


DEFAULT_MODEL = "gpt-4o"


class CallKind(StrEnum):
    """What a call is made for."""

    USER = "user"
    TOOL = "tool"
    HEARTBEAT = "heartbeat"
    DELEGATION = "delegation"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ToolText:
    """A tool as the prefix describes it; `schema` is the JSON of its parameters, as it is to be shown."""

    name: str
    description: str = ""
    schema: str = ""

    def __post_init__(self) -> None:
        """Refuse what is no text.

        Raises:
            BadOption: a field that is something else.
        """
        for field in ("name", "description", "schema"):
            check_type(getattr(self, field), str, "a text", ("tool", field))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixInputs:
    """All that the prefix is made from; what is empty is missing, and so is an identity that is None.

    Feedback stands oldest first. Tools are kept by name, each once, whatever the order they were registered in.
    """

    identity: str | None = ""
    feedback: tuple[str, ...] = ()
    mandates: tuple[str, ...] = ()
    tools: tuple[ToolText, ...] = ()

    def __post_init__(self) -> None:
        """Put the tools in order.

        Raises:
            BadOption: no tuple where one belongs, since of a single text every letter would be an entry; or an
                entry that is something else.
        """
        check_type(self.identity, (str, NoneType), "a text or None", ("prefix", "identity"))
        for name, kind, what in (
            ("feedback", str, "a text"),
            ("mandates", str, "a text"),
            ("tools", ToolText, "a ToolText"),
        ):
            entries = getattr(self, name)
            check_type(entries, tuple, "a tuple", ("prefix", name))
            for number, entry in enumerate(entries):
                check_type(entry, kind, what, ("prefix", name, number))
        object.__setattr__(self, "tools", tuple(sorted(set(self.tools))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextInputs:
    """All that the context section is made from.

    `scope` names a subtree of the memory, the whole where it is None; `privacy_tags` are what may not be shown;
    `format` is how the memory is written out, and `model` whose tokens the limit is in; `semantic_threshold` is
    how similar something is that is shown for that, what is usual where it is None. `memory_version` can be any
    value that is another one after every change of the memory: a number, a hash, not the memory itself.
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
        """Refuse what would be taken for something else.

        Raises:
            BadOption: a limit that is no number of tokens, a threshold that is not from 0 to 1, a version
                that cannot be hashed, something else where a text belongs, or tags that are no frozenset: a
                single text would be taken letter by letter, and nothing would be private.
        """
        for name in ("agent", "format", "model"):
            check_type(getattr(self, name), str, "a text", ("context", name))
        for name in ("focus", "scope", "query"):
            check_type(getattr(self, name), (str, NoneType), "a text or None", ("context", name))
        check_type(self.privacy_tags, frozenset, "a frozenset of tags", ("context", "privacy_tags"))
        for tag in self.privacy_tags:
            check_type(tag, str, "made of texts", ("context", "privacy_tags"))
        check_token_limit(self.limit_tokens, ("context", "limit_tokens"))
        _check_threshold(self.semantic_threshold, ("context", "semantic_threshold"))
        try:
            hash(self.memory_version)
        except TypeError:
            type_name = type(self.memory_version).__name__
            raise BadOption(
                f"context.memory_version is a value that can be hashed, not {type_name}",
                path=("context", "memory_version"),
            ) from None


def _check_threshold(value: float | None, path: tuple[str, ...]) -> None:
    if value is not None and not (type(value) in (int, float) and 0 <= value <= 1):
        raise BadOption(f"{'.'.join(path)} is a number from 0 to 1, not {value!r:.40}", path=path)


def check_type(
    value: object, expected: type | tuple[type, ...], what: str, path: tuple[str | int, ...]
) -> None:
    """Refuse a value that is not of that kind; `what` says in words what belongs there.

    Raises:
        BadOption: it is of another; `path` leads to it.
    """
    if not isinstance(value, expected):
        raise BadOption(f"{'.'.join(map(str, path))} is {what}, not {type(value).__name__}", path=path)


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

"""What the parts of a prompt are made from. Equal inputs give the same bytes, so they are the caches' keys."""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum

from foveate.budget.sections import checked_cap
from foveate.errors import BadOption


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixInputs:
    """All that the prefix is made from; what is empty is missing.

    Feedback stands oldest first. Tools are kept by name, each once, whatever the order they were registered in.
    """

    identity: str = ""
    feedback: tuple[str, ...] = ()
    mandates: tuple[str, ...] = ()
    tools: tuple[ToolText, ...] = ()

    def __post_init__(self) -> None:
        """Put the tools in order.

        Raises:
            BadOption: no tuple where one belongs; of a single text, every letter would be an entry.
        """
        for name in ("feedback", "mandates", "tools"):
            if not isinstance(getattr(self, name), tuple):
                raise BadOption(
                    f"prefix.{name} is a tuple, not {type(getattr(self, name)).__name__}", path=("prefix", name)
                )
        object.__setattr__(self, "tools", tuple(sorted(set(self.tools))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextInputs:
    """All that the context section is made from.

    `scope` names a subtree of the memory, the whole where it is None; `privacy_tags` are what may not be shown;
    `format` is how the memory is written out. `memory_version` can be any value that is another one after every
    change of the memory: a number, a hash, not the memory itself.
    """

    agent: str
    format: str
    privacy_tags: frozenset[str]
    memory_version: Hashable
    focus: str | None = None
    scope: str | None = None
    query: str | None = None
    limit_tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse what would be taken for something else.

        Raises:
            BadOption: a limit that is no number of tokens, or tags that are no frozenset: a single text would
                be taken letter by letter, and nothing would be private.
        """
        checked_cap(self.limit_tokens, ("context", "limit_tokens"))
        if not isinstance(self.privacy_tags, frozenset):
            raise BadOption(
                f"context.privacy_tags is a frozenset of tags, not {type(self.privacy_tags).__name__}",
                path=("context", "privacy_tags"),
            )

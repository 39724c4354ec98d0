"""Sections: the parts that a prompt is assembled from."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Literal, TypeGuard, TypeVar

from foveate.errors import BadOption

PriorityName = Literal["required", "high", "medium", "low"]
KeepName = Literal["newest", "relevant", "head", "ends", "whole"]
StabilityName = Literal["static", "session", "turn"]


class Priority(StrEnum):
    """Order in which sections are kept. Required ones are never cut to make room."""

    REQUIRED = "required"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Keep(StrEnum):
    """The part that is kept if a section is cut."""

    NEWEST = "newest"
    RELEVANT = "relevant"
    HEAD = "head"
    ENDS = "ends"
    WHOLE = "whole"


class Stability(StrEnum):
    """The time for which a section stays the same; decides its place in the provider's prompt cache."""

    STATIC = "static"
    SESSION = "session"
    TURN = "turn"


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a section. `score` is its relevance; without scores, the order decides."""

    text: str
    score: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise BadOption(f"the text of an item must be a str, not {type(self.text).__name__}")
        if self.score is None:
            return
        try:
            can_be_ranked = _is_number(self.score) and isfinite(self.score)
        except OverflowError:  # not in the message: it can have more digits than Python prints
            raise BadOption("the score of an item must be a finite float; this number is too large") from None
        if not can_be_ranked:
            raise BadOption(f"the score of an item must be a finite number, not {self.score!r}")


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Section:
    r"""A part of a prompt: a text, or items on one line each, oldest first.

    By default a text keeps its head, and items keep the newest; `keep` overrides that. `max_tokens` is a cap,
    and so is `share`, a share of the budget without its reserve. If both are given, the smaller applies.

        >>> Section("logs", items=["started", "listening"], priority="low").text
        'started\nlistening'
    """

    name: str
    text: str
    items: tuple[Item, ...] | None
    priority: Priority
    max_tokens: int | None
    share: float | None
    keep: Keep
    stability: Stability
    enabled: bool

    def __init__(
        self,
        name: str,
        text: str | None = None,
        *,
        items: Sequence[str | tuple[str, float] | Item] | None = None,
        priority: Priority | PriorityName = Priority.MEDIUM,
        max_tokens: int | None = None,
        share: float | None = None,
        keep: Keep | KeepName | None = None,
        stability: Stability | StabilityName = Stability.TURN,
        enabled: bool = True,
    ) -> None:
        """Validate the values.

        Raises:
            BadOption: an invalid value; the message names the section and the field.
        """
        if not _is_valid_name(name):
            raise BadOption(f"a section's name must be text that can be shown on one line, not {name!r}")
        entries = None if items is None else _parse_items(name, items)
        joined = None if entries is None else "\n".join(entry.text for entry in entries)
        # Both are given if a section is copied with `dataclasses.replace`.
        if text is joined is None or (None not in (text, joined) and text != joined):
            raise BadOption(f"section {name!r}: set either text or items")
        text = joined if text is None else text
        if not isinstance(text, str):
            raise BadOption(f"section {name!r}: text must be a str, not {type(text).__name__}")
        if not isinstance(enabled, bool):
            raise BadOption(f"section {name!r}: enabled must be true or false, not {enabled!r}")
        default = Keep.HEAD if items is None else Keep.NEWEST
        set_field = object.__setattr__
        set_field(self, "name", name)
        set_field(self, "text", text)
        set_field(self, "items", entries)
        set_field(self, "priority", parse_choice(Priority, priority, (name, "priority")))
        set_field(self, "max_tokens", check_token_limit(max_tokens, (name, "max_tokens")))
        set_field(self, "share", check_share(share, (name, "share")))
        set_field(self, "keep", default if keep is None else parse_choice(Keep, keep, (name, "keep")))
        set_field(self, "stability", parse_choice(Stability, stability, (name, "stability")))
        set_field(self, "enabled", enabled)

    def __repr__(self) -> str:
        """Without the text, which can be megabytes."""
        content = f"{len(self.text):,} characters" if self.items is None else f"{len(self.items):,} items"
        return f"<Section {self.name!r}: {content}, {self.priority}, keeps {self.keep}>"


def _is_valid_name(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and bool(value.strip())


def _parse_items(name: str, items: Sequence[str | tuple[str, float] | Item]) -> tuple[Item, ...]:
    if isinstance(items, str):
        raise BadOption(f"section {name!r}: items must be a list; use text for a single text")
    try:
        return tuple(map(_parse_item, items))
    except (BadOption, TypeError) as error:
        raise BadOption(f"section {name!r}: {error}") from None


def _parse_item(item: str | tuple[str, float] | Item) -> Item:
    match item:
        case Item():
            return item
        case str():
            return Item(item)
        case (str() as text, score):
            return Item(text, score)
        case _:
            raise BadOption(f"an item must be text, or text with a score, not {type(item).__name__}")


Choice = TypeVar("Choice", bound=StrEnum)


def parse_choice(choices: type[Choice], value: object, path: tuple[str, ...]) -> Choice:
    """Return the member of `choices` that `value` names.

    Raises:
        BadOption: it names none; `path` tells where.
    """
    try:
        return choices(str(value))
    except ValueError:
        known = ", ".join(choices)
        raise BadOption(f"{'.'.join(path)} must be one of {known}, not {value!r}", path=path) from None


def check_token_limit(value: object, path: tuple[str, ...]) -> int | None:
    """Return `value` if it is a number of tokens, 0 or more, or None.

    Raises:
        BadOption: anything else.
    """
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise BadOption(f"{'.'.join(path)} must be a number of tokens, 0 or more, not {value!r}", path=path)


def check_share(value: object, path: tuple[str, ...]) -> float | None:
    """Return `value` if it is a share from 0 to 1, or None.

    Raises:
        BadOption: anything else.
    """
    if value is None:
        return None
    if _is_number(value) and 0 <= value <= 1:
        return float(value)
    raise BadOption(f"{'.'.join(path)} must be a number from 0 to 1, not {value!r}", path=path)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)

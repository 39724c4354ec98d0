"""The facts of a conversation, found without a model: names, numbers, errors, decisions, constraints, tasks.

Each says where it stood first and last, and in how many messages who said it: the user, the model, the short
arguments of calls (the files and commands that it works with), long ones (what it wrote), or results of tools.
Time grows with the text: it is split into words once, and each word that is new is looked at once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from foveate.fold.rules import FactKind
from foveate.fold.sentences import boxes_in, errors_in, sentences_in
from foveate.fold.words import classified, names_in, numbers_in, quoted_in, urls_in, words_of
from foveate.values import Document, Message, Part, Text, Thinking, ToolCall, ToolResult
from foveate.wire import large_json

__all__ = ["Fact", "FactKind", "Voice", "facts_of", "said_in"]

# An argument up to this length names something (a path, a command, a query); a longer one is something written.
_SHORT_ARGUMENT_CHARS = 400
MODEL_ROLES = frozenset(("assistant", "model"))
_DONE = frozenset(("completed", "complete", "done", "cancelled", "canceled", "finished"))


class Voice(IntEnum):
    """Who says something."""

    USER = 0
    MODEL = 1
    CALL = 2
    WRITTEN = 3
    RESULT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that was said, word for word.

    `first` and `last` are the places of the messages in which it stood, `last_spoken` the last one in which not
    only a tool said it (-1: none). `times` counts every time, `messages` those of each `Voice`.
    """

    kind: FactKind
    text: str
    first: int
    last: int
    last_spoken: int
    times: int
    messages: tuple[int, ...]

    def said_by(self, voice: Voice) -> int:
        """In how many messages `voice` said it."""
        return self.messages[voice]


def facts_of(messages: Sequence[Message]) -> tuple[Fact, ...]:
    """All facts of a conversation, in the order in which they first stood there."""
    found = _Found()
    tasks: tuple[int, list[str]] = (0, [])
    for place, message in enumerate(messages):
        for voice, text in said_in(message):
            found.add(place, voice, _facts_in(text, voice, found))
        for part in message.parts:
            if isinstance(part, ToolCall) and (open_tasks := _open_tasks(part)) is not None:
                tasks = place, open_tasks
    # Of the lists that a tool for them was given, the last one stands for all before it.
    found.add(tasks[0], Voice.CALL, ((FactKind.TASK, task) for task in tasks[1]))
    return found.facts()


def said_in(message: Message) -> Iterator[tuple[Voice, str]]:
    """Every text of a message, with who says it."""
    own = Voice.MODEL if message.role in MODEL_ROLES else Voice.RESULT if message.role == "tool" else Voice.USER
    for part in message.parts:
        yield from _said(part, own)


def _said(part: Part, own: Voice) -> Iterator[tuple[Voice, str]]:
    match part:
        case Text():
            yield own, part.text
        case Thinking():
            yield Voice.MODEL, part.text
        case Document():
            yield Voice.RESULT, part.text
        case ToolCall():
            for text in arguments_of(part):
                yield (Voice.CALL if len(text) <= _SHORT_ARGUMENT_CHARS else Voice.WRITTEN), text
        case ToolResult():
            for inner in part.parts:
                yield from _said(inner, Voice.RESULT)
        case _:
            return


def arguments_of(call: ToolCall) -> Iterator[str]:
    """The texts and numbers among the arguments of a call; all of it as it is where it is not JSON."""
    try:
        given = large_json.loads(call.arguments)
    except (ValueError, RecursionError):
        yield call.arguments
        return
    waiting = [given]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(reversed(value.values()))
        elif isinstance(value, list):
            waiting.extend(reversed(value))
        elif isinstance(value, str):
            yield value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield str(value)


def _open_tasks(call: ToolCall) -> list[str] | None:
    """What is still to be done by the list that a tool for such lists is given; None for all other calls."""
    if "todo" not in call.name.lower():
        return None
    try:
        given = large_json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    lists = (
        [value for value in given.values() if isinstance(value, list)] if isinstance(given, dict) else [given]
    )
    entries: list[Any] = next((entries for entries in lists if isinstance(entries, list)), [])
    rows = [entry for entry in entries if isinstance(entry, dict)]
    if not rows:
        return None
    return [
        text
        for row in rows
        if str(row.get("status", "")).lower() not in _DONE
        for text in [next((str(row[key]) for key in ("content", "text", "title", "task") if row.get(key)), "")]
        if text
    ]


_WEAK = frozenset((FactKind.QUOTED, FactKind.NAME, FactKind.NUMBER))
_USER_SENTENCES = (FactKind.CONSTRAINT, FactKind.TASK, FactKind.DECISION)
_MODEL_SENTENCES = (FactKind.DECISION, FactKind.TASK)


def _facts_in(text: str, voice: Voice, found: "_Found") -> Iterator[tuple[FactKind, str]]:
    for word in words_of(text):
        yield from found.classified(word)
    yield from ((FactKind.URL, url) for url in urls_in(text))
    yield from ((FactKind.NUMBER, number) for number in numbers_in(text))
    match voice:
        case Voice.USER:
            yield from sentences_in(text, _USER_SENTENCES)
        case Voice.MODEL:
            yield from sentences_in(text, _MODEL_SENTENCES)
        case Voice.RESULT:
            yield from ((FactKind.ERROR, line) for line in errors_in(text))
        case _:
            return
    if voice is not Voice.RESULT:
        yield from ((FactKind.TASK, task) for task in boxes_in(text))
        yield from ((FactKind.QUOTED, quoted) for quoted in quoted_in(text))
        yield from ((FactKind.NAME, name) for name in names_in(text))


@dataclass(slots=True)
class _Seen:
    """A fact while it is being counted."""

    first: int
    last: int
    last_spoken: int = -1
    times: int = 0
    messages: list[int] = field(default_factory=lambda: [0] * len(Voice))
    place_of: list[int] = field(default_factory=lambda: [-1] * len(Voice))


class _Found:
    """The facts of a conversation while it is read."""

    def __init__(self) -> None:
        self._seen: dict[tuple[FactKind, str], _Seen] = {}
        self._classified: dict[str, tuple[tuple[FactKind, str], ...]] = {}

    def classified(self, word: str) -> tuple[tuple[FactKind, str], ...]:
        """What a word holds; each word is looked at once."""
        known = self._classified.get(word)
        if known is None:
            known = self._classified[word] = classified(word)
        return known

    def add(self, place: int, voice: Voice, facts: Iterable[tuple[FactKind, str]]) -> None:
        """Note what `voice` says in the message at `place`."""
        for key, times in Counter(facts).items():
            seen = self._seen.setdefault(key, _Seen(place, place))
            seen.last = max(seen.last, place)
            seen.times += times
            if voice is not Voice.RESULT:
                seen.last_spoken = max(seen.last_spoken, place)
            if seen.place_of[voice] != place:
                seen.place_of[voice] = place
                seen.messages[voice] += 1

    def facts(self) -> tuple[Fact, ...]:
        """All of them; what was quoted, or is written like a name, only where it is nothing else."""
        known = {text for kind, text in self._seen if kind not in _WEAK}
        return tuple(
            Fact(
                kind=kind,
                text=text,
                first=seen.first,
                last=seen.last,
                last_spoken=seen.last_spoken,
                times=seen.times,
                messages=tuple(seen.messages),
            )
            for (kind, text), seen in self._seen.items()
            if kind not in _WEAK or text not in known
        )

"""What the sandbox answers, in no provider's words yet: thoughts, text, calls, and why it stopped."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from foveate.sandbox.fitting import fitting
from foveate.sandbox.scripts import Call, Step

USUAL_TEXT = "This is Foveate's sandbox, not a model. It took your request, counted it, and has nothing to add."
USUAL_INPUT = "This is what a sandbox writes."
USUAL_THOUGHT = "A sandbox does not think, but it can keep the form."

# So many characters come in one event of a stream.
_PIECE_CHARS = 24


class Stop(StrEnum):
    """Why an answer ends."""

    DONE = "done"
    CALLED = "called"
    LIMIT = "limit"
    SEQUENCE = "sequence"
    WINDOW = "window"


@dataclass(frozen=True, slots=True)
class Thought:
    """What was thought before anything was said."""

    text: str


@dataclass(frozen=True, slots=True)
class Said:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A call of a tool; `arguments` is JSON, or any text for a tool that takes such."""

    name: str
    arguments: str
    is_text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a request wants of its answer.

    `tools` are those that can be called, with their schemas, `text_tools` those among them that take any text;
    `must_call` is the name of one, or empty for any. `schema` is the form that the text must have.
    `limit_tokens` bounds the answer, `room_tokens` is what the window has left for it. `text` is what the last
    message says.
    """

    model: str
    streams: bool
    thinks: bool = False
    tools: tuple[tuple[str, dict[str, Any]], ...] = ()
    must_call: str | None = None
    text_tools: frozenset[str] = frozenset()
    schema: dict[str, Any] | None = None
    limit_tokens: int | None = None
    room_tokens: int | None = None
    stops: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer in its parts, and what they come to."""

    parts: tuple[Thought | Said | Called, ...]
    stop: Stop
    stop_sequence: str | None
    output_tokens: int
    thought_tokens: int


def answer(wish: Wish, step: Step | None, count: Callable[[str], int]) -> Answer:
    """What is answered: by the step of a script where there is one, and never more than the wish allows."""
    said, sequence = _until(_text(wish, step), wish.stops)
    calls = [] if sequence is not None else _calls(wish, step)
    wanted: list[Thought | Said | Called] = []
    if wish.thinks or (step is not None and step.thinking is not None):
        wanted.append(Thought(step.thinking if step and step.thinking is not None else USUAL_THOUGHT))
    wanted += [Said(said)] if said else []
    wanted += calls
    limits = {Stop.LIMIT: wish.limit_tokens, Stop.WINDOW: wish.room_tokens}
    stop, limit = min(
        ((stop, limit) for stop, limit in limits.items() if limit is not None),
        key=lambda bound: bound[1],
        default=(Stop.LIMIT, None),
    )
    parts, tokens, is_whole = _within(wanted, limit, count)
    thought = sum(count(part.text) for part in parts if isinstance(part, Thought))
    if is_whole:
        stop = Stop.SEQUENCE if sequence is not None else Stop.CALLED if calls else Stop.DONE
    return Answer(
        parts=tuple(parts),
        stop=stop,
        stop_sequence=sequence if stop is Stop.SEQUENCE else None,
        output_tokens=tokens,
        thought_tokens=thought,
    )


def pieces(text: str) -> list[str]:
    """A text as it is streamed."""
    return [text[at : at + _PIECE_CHARS] for at in range(0, len(text), _PIECE_CHARS)]


def _text(wish: Wish, step: Step | None) -> str:
    if step is not None and (step.text is not None or step.tools):
        return step.text or ""
    if wish.must_call is not None:
        return ""
    if wish.schema is not None:
        return json.dumps(fitting(wish.schema))
    return USUAL_TEXT


def _calls(wish: Wish, step: Step | None) -> list[Called]:
    schemas = dict(wish.tools)
    if step is not None and (step.tools or step.text is not None):
        calls = step.tools
    elif wish.must_call is not None and wish.tools:
        calls = (Call(name=wish.must_call or wish.tools[0][0]),)
    else:
        calls = ()
    return [_called(call, wish, schemas) for call in calls]


def _called(call: Call, wish: Wish, schemas: dict[str, dict[str, Any]]) -> Called:
    if call.name in wish.text_tools:
        return Called(call.name, USUAL_INPUT if call.input is None else json.dumps(call.input), is_text=True)
    said = fitting(schemas.get(call.name, {})) if call.input is None else call.input
    return Called(call.name, json.dumps(said))


def _until(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The text before the first stop sequence in it, and which that is."""
    found = min(((text.find(stop), stop) for stop in stops if stop and stop in text), default=None)
    return (text, None) if found is None else (text[: found[0]], found[1])


def _within(
    wanted: list[Thought | Said | Called], limit: int | None, count: Callable[[str], int]
) -> tuple[list[Thought | Said | Called], int, bool]:
    """As much of an answer as the limit allows, its tokens, and whether that is all; no call is cut in two."""
    parts: list[Thought | Said | Called] = []
    tokens = 0
    for part in wanted:
        size = count(part.name + part.arguments if isinstance(part, Called) else part.text)
        if limit is not None and tokens + size > limit:
            if not isinstance(part, Called):
                text = _cut(part.text, limit - tokens, count)
                parts += [type(part)(text)] if text.strip() else []
            return parts, limit, False
        parts.append(part)
        tokens += size
    return parts, tokens, True


def _cut(text: str, limit: int, count: Callable[[str], int]) -> str:
    """The longest beginning of `text` of so many tokens, or nearly."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(text[:middle]) <= limit else (low, middle - 1)
    return text[:low]

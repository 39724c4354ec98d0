"""Tool results that take too much room: cut before they are first sent, or cleared when they are stale.

Neither is silent. Where something is missing, the result itself says how much.

Of a result, words are cut: its texts, plain documents and search results. A picture or a file cannot be cut to
a part of itself: beside words that fit it is sent as it came, however large it is, and where the words do not
fit it gives way to a line that names it and its tokens. What a provider's own tools answer, and in the format
of Responses the outputs of `shell`, `local_shell` and `apply_patch`, stay: no edit can give them another text.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from foveate import wire
from foveate.budget.cutting import Body, Room, cut
from foveate.budget.sections import Keep
from foveate.budget.standing import text_of
from foveate.errors import BadOption
from foveate.fold.boundary import History
from foveate.fold.replacing import named
from foveate.tokens import RequestCounter
from foveate.tokens.gauge import gauge_for
from foveate.values import (
    Area,
    Document,
    Message,
    Opaque,
    Part,
    Place,
    ReplaceText,
    Request,
    Text,
    ToolCall,
    ToolResult,
)
from foveate.wire.body import as_list, as_record, as_text, record

TOOL_RESULT_MAX_PCT = 0.30

_RESULTS = frozenset(
    ("tool_result", "toolResult", "functionResponse", "function_response", "function_call_output",
     "custom_tool_call_output")
)  # fmt: skip
_MISSING = "[... {tokens:,} tokens left out ...]"
# A marker is so many tokens at most, with the line breaks around it.
_MARKER_TOKENS = 24
_CLEARED = "[cleared: "
# What is hardly longer than what it would leave behind is not worth it.
_WORTH_TOKENS = 100
# About what a picture in a result weighs, against its letters.
_PICTURE_CHARS = 6_000
_CHARS_PER_TOKEN = 3


def result_limit_tokens(window_tokens: int, tool_result_max_pct: float = TOOL_RESULT_MAX_PCT) -> int:
    """How many tokens of a tool's result are sent at most: a share of the window.

    Raises:
        BadOption: a share that is not between 0 and 1.
    """
    if not 0 < tool_result_max_pct <= 1:
        raise BadOption(
            f"tool_result_max_pct is a share, more than 0 and at most 1, not {tool_result_max_pct!r}",
            path=("tool_result_max_pct",),
        )
    return int(window_tokens * tool_result_max_pct)


def truncated_results(
    request: Request, counter: RequestCounter, limits: Mapping[int, int]
) -> tuple[ReplaceText, ...]:
    """Results whose words are longer than the limit of their message, each cut to its head and tail.

    `limits` are those of messages, by their places; others are left alone. For the same counter and limit the
    cut is the same each time, so `counter` must be one that does not learn.
    """
    edits: list[ReplaceText] = []
    for place, limit in sorted(limits.items()):
        # A token is a byte at least.
        if len(request.messages[place]) <= limit:
            continue
        for block, result in _results(request, place):
            edit = _truncated(result, counter, limit, Place(Area.MESSAGES, place, block))
            edits += [edit] if edit else []
    return tuple(edits)


def _truncated(
    result: ToolResult, counter: RequestCounter, limit_tokens: int, place: Place
) -> ReplaceText | None:
    gauge = gauge_for(counter)
    text = "\n".join(words for part in result.parts if (words := _words(part)) is not None)
    tape = gauge.tape(text)
    if tape.total.tokens <= limit_tokens:
        return None
    others = [part for part in result.parts if _words(part) is None]
    other_tokens = _tokens(others, counter) - _tokens((), counter)
    named = _left_out(others, other_tokens)
    # Blank lines at its ends are not worth their tokens.
    body = Body(tape=tape, keep=Keep.ENDS, start=0, end=len(text.rstrip()))
    taken = _MARKER_TOKENS + sum(gauge.count([f"\n{line}"]).tokens for line in named)
    kept = cut(body, Room(gauge, limit_tokens - taken)) or ()
    parts = [part for part in kept if not isinstance(part, str)]
    left = sum(gauge.count([part]).tokens for part in parts)
    marker = _MISSING.format(tokens=max(tape.total.tokens - left, 1))
    from_left = [text_of([part]) for part in parts if part is kept[0]]
    from_right = [text_of([part]) for part in parts if part is not kept[0]]
    short = "\n".join((*from_left, marker, *from_right, *named))
    whole = tape.total.tokens + other_tokens
    return ReplaceText(
        place=place,
        text=short,
        reason=f"a tool result of {whole:,} tokens, of which at most {limit_tokens:,} are sent",
        saved_tokens=whole - gauge.count([short]).tokens,
    )


def _tokens(parts: Sequence[Part], counter: RequestCounter) -> int:
    return counter.message(Message(role="user", parts=tuple(parts))).tokens


def _left_out(parts: Sequence[Part], tokens: int) -> list[str]:
    """A line on pictures and files that give way to words."""
    if not parts:
        return []
    name = (named(parts[0]) or "[something without words]")[1:-1] if len(parts) == 1 else ""
    return [f"[{name or f'{len(parts):,} images and files'}: {tokens:,} tokens left out]"]


def cleared_results(
    request: Request, messages: Sequence[Message], tokens: Sequence[int], *, need_tokens: int
) -> tuple[ReplaceText, ...]:
    """The stale results that make so much room when they are cleared, the oldest first; all where that is less.

    `tokens` are those of each message. Results of the last turn are not stale, errors are kept, and so are
    short ones. What stands in the place of each names the tool, and how much it had said.
    """
    edits: list[ReplaceText] = []
    left = need_tokens
    for edit in _stale_results(request, messages, tokens):
        if left <= 0:
            break
        edits.append(edit)
        left -= edit.saved_tokens
    return tuple(edits)


def _stale_results(
    request: Request, messages: Sequence[Message], tokens: Sequence[int]
) -> Iterator[ReplaceText]:
    """Each stale result cleared, the oldest first."""
    names = {part.id: part.name for message in messages for part in message.parts if isinstance(part, ToolCall)}
    for place in range(History(messages).last_turn()):
        if not any(isinstance(part, ToolResult) for part in messages[place].parts):
            continue
        weight = sum(map(_weight, messages[place].parts))
        for block, result in _results(request, place):
            size = tokens[place] * _weight(result) // max(weight, 1)
            if result.is_error or size < _WORTH_TOKENS or _is_cleared(result):
                continue
            name = result.name or names.get(result.id, "") or "tool"
            short = f"{_CLEARED}{size:,} tokens of {name} output]"
            yield ReplaceText(
                place=Place(Area.MESSAGES, place, block),
                text=short,
                reason=f"a stale result of {name}, cleared to make room",
                saved_tokens=size - len(short) // _CHARS_PER_TOKEN,
            )


def _results(request: Request, place: int) -> Iterator[tuple[int, ToolResult]]:
    """The results in a message, each with the number of its block."""
    raw = request.messages[place]
    alone = replace(request, body=b"{}", tools=(), messages=(raw,), around=None)
    blocks = [block.place.block or 0 for block in wire.blocks(alone) if block.kind in _RESULTS]
    parts = [part for part in wire.message(request.format, raw).parts if isinstance(part, ToolResult)]
    if len(blocks) == len(parts):  # where they are not, one of them is of a shape that nobody knows
        yield from zip(blocks, parts, strict=True)


def _is_cleared(result: ToolResult) -> bool:
    first = next(iter(result.parts), None)
    return isinstance(first, Text) and first.text.startswith(_CLEARED)


def _words(part: Part) -> str | None:
    """What a part of a result says in words; None where it is a picture, a file or something unknown."""
    match part:
        case Text():
            return part.text
        case Document(text=text) if text and part.media_type.startswith("text/"):
            return text
        case Opaque(kind="search_result"):
            found = record(part.raw)
            texts = [as_text(as_record(block).get("text")) for block in as_list(found.get("content"))]
            return "\n".join((as_text(found.get("title")), as_text(found.get("source")), *texts))
        case _:
            return None


def _weight(part: object) -> int:
    """How much of a message a part is, in letters."""
    match part:
        case Text():
            return len(part.text)
        case ToolCall():
            return len(part.arguments) + len(part.name)
        case ToolResult():
            return sum(map(_weight, part.parts))
        case _:
            return _PICTURE_CHARS

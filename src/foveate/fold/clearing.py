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
from foveate.budget.cutting import AvailableRoom, TruncatableText, truncate
from foveate.budget.sections import Keep
from foveate.budget.standing import parts_to_text
from foveate.errors import BadOption
from foveate.fold.boundary import TurnStructure
from foveate.fold.replacing import describe_non_text
from foveate.tokens import RequestCounter
from foveate.tokens.gauge import text_meter_for
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
from foveate.wire.body import as_dict, as_list, as_text, parse_object

TOOL_RESULT_MAX_PCT = 0.30

_RESULT_BLOCK_KINDS = frozenset(
    ("tool_result", "toolResult", "functionResponse", "function_response", "function_call_output",
     "custom_tool_call_output")
)  # fmt: skip
_TRUNCATION_MARKER = "[... {tokens:,} tokens left out ...]"
# A marker is so many tokens at most, with the line breaks around it.
_MAX_MARKER_TOKENS = 24
_CLEARED_PREFIX = "[cleared: "
# What is hardly longer than what it would leave behind is not worth it.
_MIN_CLEARED_TOKENS = 100
# About what a picture in a result weighs, against its letters.
_IMAGE_CHARS = 6_000
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


def build_truncation_edits(
    request: Request, counter: RequestCounter, limits: Mapping[int, int]
) -> tuple[ReplaceText, ...]:
    """Results whose words are longer than the limit of their message, each cut to its head and tail.

    `limits` are those of messages, by their places; others are left alone. For the same counter and limit the
    cut is the same each time, so `counter` must be one that does not learn.
    """
    edits: list[ReplaceText] = []
    for index, limit in sorted(limits.items()):
        # A token is a byte at least.
        if len(request.messages[index]) <= limit:
            continue
        for block, result in _tool_results(request, index):
            edit = _truncate_result(result, counter, limit, Place(Area.MESSAGES, index, block))
            edits += [edit] if edit else []
    return tuple(edits)


def _truncate_result(
    result: ToolResult, counter: RequestCounter, limit_tokens: int, place: Place
) -> ReplaceText | None:
    meter = text_meter_for(counter)
    text = "\n".join(words for part in result.parts if (words := _text_content(part)) is not None)
    measured = meter.measure(text)
    if measured.total.tokens <= limit_tokens:
        return None
    others = [part for part in result.parts if _text_content(part) is None]
    other_tokens = _count_parts(others, counter) - _count_parts((), counter)
    omission_lines = _describe_omitted(others, other_tokens)
    # Blank lines at its ends are not worth their tokens.
    body = TruncatableText(measured_text=measured, keep=Keep.ENDS, start=0, end=len(text.rstrip()))
    taken = _MAX_MARKER_TOKENS + sum(meter.count([f"\n{line}"]).tokens for line in omission_lines)
    kept = truncate(body, AvailableRoom(meter, limit_tokens - taken)) or ()
    parts = [part for part in kept if not isinstance(part, str)]
    kept_tokens = sum(meter.count([part]).tokens for part in parts)
    marker = _TRUNCATION_MARKER.format(tokens=max(measured.total.tokens - kept_tokens, 1))
    from_left = [parts_to_text([part]) for part in parts if part is kept[0]]
    from_right = [parts_to_text([part]) for part in parts if part is not kept[0]]
    short = "\n".join((*from_left, marker, *from_right, *omission_lines))
    total_tokens = measured.total.tokens + other_tokens
    return ReplaceText(
        place=place,
        text=short,
        reason=f"a tool result of {total_tokens:,} tokens, of which at most {limit_tokens:,} are sent",
        saved_tokens=total_tokens - meter.count([short]).tokens,
    )


def _count_parts(parts: Sequence[Part], counter: RequestCounter) -> int:
    return counter.count_message(Message(role="user", parts=tuple(parts))).tokens


def _describe_omitted(parts: Sequence[Part], tokens: int) -> list[str]:
    """A line on pictures and files that give way to words."""
    if not parts:
        return []
    name = (describe_non_text(parts[0]) or "[something without words]")[1:-1] if len(parts) == 1 else ""
    return [f"[{name or f'{len(parts):,} images and files'}: {tokens:,} tokens left out]"]


def clear_stale_results(
    request: Request, messages: Sequence[Message], tokens: Sequence[int], *, need_tokens: int
) -> tuple[ReplaceText, ...]:
    """The stale results that make so much room when they are cleared, the oldest first; all where that is less.

    `tokens` are those of each message. Results of the last turn are not stale, errors are kept, and so are
    short ones. What stands in the place of each names the tool, and how much it had said.
    """
    edits: list[ReplaceText] = []
    left = need_tokens
    for edit in _stale_result_edits(request, messages, tokens):
        if left <= 0:
            break
        edits.append(edit)
        left -= edit.saved_tokens
    return tuple(edits)


def _stale_result_edits(
    request: Request, messages: Sequence[Message], tokens: Sequence[int]
) -> Iterator[ReplaceText]:
    """Each stale result cleared, the oldest first."""
    names = {part.id: part.name for message in messages for part in message.parts if isinstance(part, ToolCall)}
    for index in range(TurnStructure(messages).last_turn_start()):
        if not any(isinstance(part, ToolResult) for part in messages[index].parts):
            continue
        weight = sum(map(_size_chars, messages[index].parts))
        for block, result in _tool_results(request, index):
            size = tokens[index] * _size_chars(result) // max(weight, 1)
            if result.is_error or size < _MIN_CLEARED_TOKENS or _is_cleared(result):
                continue
            name = result.name or names.get(result.id, "") or "tool"
            short = f"{_CLEARED_PREFIX}{size:,} tokens of {name} output]"
            yield ReplaceText(
                place=Place(Area.MESSAGES, index, block),
                text=short,
                reason=f"a stale result of {name}, cleared to make room",
                saved_tokens=size - len(short) // _CHARS_PER_TOKEN,
            )


def _tool_results(request: Request, index: int) -> Iterator[tuple[int, ToolResult]]:
    """The results in a message, each with the number of its block."""
    raw = request.messages[index]
    alone = replace(request, body=b"{}", tools=(), messages=(raw,), envelope=None)
    blocks = [
        block.place.block or 0 for block in wire.request_blocks(alone) if block.kind in _RESULT_BLOCK_KINDS
    ]
    parts = [part for part in wire.parse_message(request.format, raw).parts if isinstance(part, ToolResult)]
    if len(blocks) == len(parts):  # where they are not, one of them is of a shape that nobody knows
        yield from zip(blocks, parts, strict=True)


def _is_cleared(result: ToolResult) -> bool:
    first = next(iter(result.parts), None)
    return isinstance(first, Text) and first.text.startswith(_CLEARED_PREFIX)


def _text_content(part: Part) -> str | None:
    """What a part of a result says in words; None where it is a picture, a file or something unknown."""
    match part:
        case Text():
            return part.text
        case Document(text=text) if text and part.media_type.startswith("text/"):
            return text
        case Opaque(kind="search_result"):
            found = parse_object(part.raw)
            texts = [as_text(as_dict(block).get("text")) for block in as_list(found.get("content"))]
            return "\n".join((as_text(found.get("title")), as_text(found.get("source")), *texts))
        case _:
            return None


def _size_chars(part: object) -> int:
    """How much of a message a part is, in letters."""
    match part:
        case Text():
            return len(part.text)
        case ToolCall():
            return len(part.arguments) + len(part.name)
        case ToolResult():
            return sum(map(_size_chars, part.parts))
        case _:
            return _IMAGE_CHARS

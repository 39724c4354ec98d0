"""Limit tool results: truncate them before they are first sent, or clear them when they are stale.

The result itself says how much is missing. Only text is truncated: text parts, plain-text documents and search
results. Images and files are sent unchanged if the text fits, whatever their size; otherwise a line with their
name and token count replaces them. Results of a provider's own tools stay, and so do the outputs of `shell`,
`local_shell` and `apply_patch` in the Responses format, because no edit can replace their text.

How much of a result is sent is decided once, before the model has answered it, and stored with the hash of its
message. So other gateways, and later ones with other limits, truncate it in the same way. A result that the
model has seen completely is never truncated.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from foveate import formats
from foveate.budget.ladder import parts_to_text
from foveate.budget.sections import Keep
from foveate.budget.truncate import AvailableRoom, TruncatableText, truncate
from foveate.budget.turn_structure import MessageKind, classify_message
from foveate.caching import hash_bytes
from foveate.compaction.apply import describe_non_text
from foveate.compaction.boundary import TurnStructure
from foveate.compaction.store import Compaction, CompactionOutcome, CompactionStore
from foveate.errors import BadOption, StoreUnavailable
from foveate.formats.blocks import get_cached_blocks
from foveate.formats.json_text.parse import as_dict, as_list, as_text, parse_object
from foveate.model import (
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
from foveate.session.hash_chain import HASH_BYTES, HashChain
from foveate.tokens import RequestCounter
from foveate.tokens.text_meter import text_meter_for

TOOL_RESULT_MAX_PCT = 0.30

_RESULT_BLOCK_KINDS = frozenset(
    ("tool_result", "toolResult", "functionResponse", "function_response", "function_call_output",
     "custom_tool_call_output")
)  # fmt: skip
_TRUNCATION_MARKER = "[... {tokens:,} tokens left out ...]"
# With the line breaks around it.
_MAX_MARKER_TOKENS = 24
_CLEARED_PREFIX = "[cleared: "
# Clearing a shorter result would free less than it costs to change the prompt.
_MIN_CLEARED_TOKENS = 100
# Assumed size of an image relative to text.
_IMAGE_CHARS = 6_000
_CHARS_PER_TOKEN = 3


def result_limit_tokens(window_tokens: int, tool_result_max_pct: float = TOOL_RESULT_MAX_PCT) -> int:
    """The maximum size of a tool result: a share of the context window.

    Raises:
        BadOption: `tool_result_max_pct` is not between 0 and 1.
    """
    if not 0 < tool_result_max_pct <= 1:
        raise BadOption(
            f"tool_result_max_pct must be a share above 0 and up to 1, not {tool_result_max_pct!r}",
            path=("tool_result_max_pct",),
        )
    return int(window_tokens * tool_result_max_pct)


def build_truncation_edits(
    request: Request, counter: RequestCounter, limits: Mapping[int, int]
) -> tuple[ReplaceText, ...]:
    """Truncate each result whose text exceeds the limit of its message, keeping its start and end.

    `limits` are by message index; other messages are left alone. `counter` must not be calibrated while
    running: the same counter and limit must give the same text each time.
    """
    edits: list[ReplaceText] = []
    for index, limit in sorted(limits.items()):
        # A token has at least one byte.
        if len(request.messages[index]) <= limit:
            continue
        for block, result in iterate_tool_results(request, index):
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
    non_text_parts = [part for part in result.parts if _text_content(part) is None]
    other_tokens = _count_parts(non_text_parts, counter) - _count_parts((), counter)
    omission_lines = _describe_omitted(non_text_parts, other_tokens)
    # Trailing blank lines are not worth their tokens.
    body = TruncatableText(measured_text=measured, keep=Keep.ENDS, start=0, end=len(text.rstrip()))
    reserved_tokens = _MAX_MARKER_TOKENS + sum(meter.count([f"\n{line}"]).tokens for line in omission_lines)
    cut_parts = truncate(body, AvailableRoom(meter, limit_tokens - reserved_tokens)) or ()
    parts = [part for part in cut_parts if not isinstance(part, str)]
    kept_tokens = sum(meter.count([part]).tokens for part in parts)
    marker = _TRUNCATION_MARKER.format(tokens=max(measured.total.tokens - kept_tokens, 1))
    from_left = [parts_to_text([part]) for part in parts if part is cut_parts[0]]
    from_right = [parts_to_text([part]) for part in parts if part is not cut_parts[0]]
    short = "\n".join((*from_left, marker, *from_right, *omission_lines))
    total_tokens = measured.total.tokens + other_tokens
    return ReplaceText(
        place=place,
        text=short,
        reason=f"a tool result of {total_tokens:,} tokens, truncated to {limit_tokens:,}",
        saved_tokens=total_tokens - meter.count([short]).tokens,
    )


def _count_parts(parts: Sequence[Part], counter: RequestCounter) -> int:
    return counter.count_message(Message(role="user", parts=tuple(parts))).tokens


def _describe_omitted(parts: Sequence[Part], tokens: int) -> list[str]:
    if not parts:
        return []
    name = (describe_non_text(parts[0]) or "[something without words]")[1:-1] if len(parts) == 1 else ""
    return [f"[{name or f'{len(parts):,} images and files'}: {tokens:,} tokens left out]"]


def clear_stale_results(
    request: Request, messages: Sequence[Message], tokens: Sequence[int], *, need_tokens: int
) -> tuple[ReplaceText, ...]:
    """Clear stale results, the oldest first, until `need_tokens` are free or none is left.

    Results of the last turn, errors and short results stay. The replacement names the tool and the number of
    tokens.
    """
    edits: list[ReplaceText] = []
    remaining_tokens = need_tokens
    for edit in _stale_result_edits(request, messages, tokens):
        if remaining_tokens <= 0:
            break
        edits.append(edit)
        remaining_tokens -= edit.saved_tokens
    return tuple(edits)


def _stale_result_edits(
    request: Request, messages: Sequence[Message], tokens: Sequence[int]
) -> Iterator[ReplaceText]:
    names = {part.id: part.name for message in messages for part in message.parts if isinstance(part, ToolCall)}
    for index in range(TurnStructure(messages).last_turn_start()):
        if not any(isinstance(part, ToolResult) for part in messages[index].parts):
            continue
        weight = sum(map(_size_chars, messages[index].parts))
        for block, result in iterate_tool_results(request, index):
            size = tokens[index] * _size_chars(result) // max(weight, 1)
            if result.is_error or size < _MIN_CLEARED_TOKENS or _is_cleared(result):
                continue
            name = result.name or names.get(result.id, "") or "tool"
            short = f"{_CLEARED_PREFIX}{size:,} tokens of {name} output]"
            yield ReplaceText(
                place=Place(Area.MESSAGES, index, block),
                text=short,
                reason=f"an old result of {name}, cleared to make room",
                saved_tokens=size - len(short) // _CHARS_PER_TOKEN,
            )


def iterate_tool_results(request: Request, index: int) -> Iterator[tuple[int, ToolResult]]:
    raw = request.messages[index]
    single_message_request = replace(request, body=b"{}", tools=(), messages=(raw,), envelope=None)
    blocks = [
        block.place.block or 0
        for block in formats.request_blocks(single_message_request)
        if block.kind in _RESULT_BLOCK_KINDS
    ]
    parts = [part for part in formats.parse_message(request.format, raw).parts if isinstance(part, ToolResult)]
    if len(blocks) == len(parts):  # if not, one of them has an unknown shape
        yield from zip(blocks, parts, strict=True)


def _is_cleared(result: ToolResult) -> bool:
    first = next(iter(result.parts), None)
    return isinstance(first, Text) and first.text.startswith(_CLEARED_PREFIX)


def _text_content(part: Part) -> str | None:
    """The text of a part; None for images, files and unknown parts."""
    match part:
        case Text():
            return part.text
        case Document(text=text) if text and part.media_type.startswith("text/"):
            return text
        case Opaque(kind="search_result"):
            fields_of_result = parse_object(part.raw)
            texts = [as_text(as_dict(block).get("text")) for block in as_list(fields_of_result.get("content"))]
            return "\n".join(
                (as_text(fields_of_result.get("title")), as_text(fields_of_result.get("source")), *texts)
            )
        case _:
            return None


def _size_chars(part: object) -> int:
    match part:
        case Text():
            return len(part.text)
        case ToolCall():
            return len(part.arguments) + len(part.name)
        case ToolResult():
            return sum(map(_size_chars, part.parts))
        case _:
            return _IMAGE_CHARS


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncationResult:
    """Truncations of a request. `new_records` were made now; `problem` says why they could not be stored."""

    edits: tuple[ReplaceText, ...] = ()
    new_records: tuple[Compaction, ...] = ()
    problem: str = ""


async def truncate_tool_results(
    request: Request,
    chain: HashChain,
    compactions: Sequence[Compaction],
    counter: RequestCounter,
    store: CompactionStore,
    *,
    agent: str,
    session_id: str,
    limit_tokens: int,
    now: float,
    start: int = 0,
) -> TruncationResult:
    """Truncate the tool results of a request: known ones as before, new ones by `limit_tokens`.

    `compactions` are the stored records at the hashes of the chain. Messages before `start` are not sent.

    Raises:
        MalformedRequest: a message cannot be read.
    """
    limits = result_limits(request, chain, compactions, limit_tokens=limit_tokens, start=start)
    edits = build_truncation_edits(request, counter, limits)
    if not edits:
        return TruncationResult()
    known_boundaries = {compaction.boundary for compaction in _truncation_records(compactions)}
    records = [
        record
        for record in _new_truncation_records(edits, request, chain, counter, limits, (agent, session_id, now))
        if record.boundary not in known_boundaries
    ]
    if not records:
        return TruncationResult(edits=edits)
    try:
        stored = [await _record_once(record, store) for record in records]
    except StoreUnavailable as error:
        return TruncationResult(edits=edits, new_records=tuple(records), problem=str(error))
    if stored != records:  # another process was faster, with its own limit
        limits = result_limits(request, chain, [*compactions, *stored], limit_tokens=limit_tokens, start=start)
        edits = build_truncation_edits(request, counter, limits)
    return TruncationResult(
        edits=edits,
        new_records=tuple(
            record for record, stored_record in zip(records, stored, strict=True) if record == stored_record
        ),
    )


def result_limits(
    request: Request, chain: HashChain, compactions: Sequence[Compaction], *, limit_tokens: int, start: int = 0
) -> Mapping[int, int]:
    """The token limit for results of each message, by index; others are sent completely.

    New messages get `limit_tokens`, others the limit stored when they were new. Messages before `start` are
    skipped.
    """
    new_messages = range(_first_unanswered_index(request, chain.leading_system_messages), len(request.messages))
    limits = dict.fromkeys(new_messages, limit_tokens)
    for compaction in _truncation_records(compactions):
        position = compaction.messages - 1
        if not 0 <= position < len(chain) or chain.hashes[position] != compaction.boundary:
            continue
        if compaction.undone_at is None and compaction.limit_tokens is not None:
            limits[chain.leading_system_messages + position] = compaction.limit_tokens
        else:
            limits.pop(chain.leading_system_messages + position, None)
    return {index: limit for index, limit in limits.items() if index >= start}


def _truncation_records(compactions: Sequence[Compaction]) -> list[Compaction]:
    return [
        compaction
        for compaction in compactions
        if compaction.outcome is CompactionOutcome.TOOL_RESULT_TRUNCATED
    ]


def _first_unanswered_index(request: Request, head: int) -> int:
    """Index of the first message after the model's last one."""
    nodes = formats.message_history(request).nodes
    for index in reversed(range(head, len(request.messages))):
        blocks = get_cached_blocks(nodes[index - head])
        if blocks and blocks[0].role == "user":
            continue
        if (
            classify_message(formats.parse_message(request.format, request.messages[index]))
            is MessageKind.MODEL
        ):
            return index + 1
    return head


def _new_truncation_records(
    edits: Sequence[ReplaceText],
    request: Request,
    chain: HashChain,
    counter: RequestCounter,
    limits: Mapping[int, int],
    owner: tuple[str, str, float],
) -> list[Compaction]:
    agent, session_id, now = owner
    records = []
    for index in dict.fromkeys(edit.place.index for edit in edits):
        position = index - chain.leading_system_messages
        boundary = chain.hashes[position]
        message_edits = [edit for edit in edits if edit.place.index == index]
        tokens_after = sum(counter.text(edit.text).tokens for edit in message_edits)
        records.append(
            Compaction(
                id=hash_bytes(b"cut", agent.encode("utf-8", "replace"), boundary)[:HASH_BYTES].hex(),
                agent=agent,
                session_id=session_id,
                boundary=boundary,
                messages=position + 1,
                seen_messages=len(chain),
                summary="",
                carried=(),
                tokens_before=tokens_after + sum(edit.saved_tokens for edit in message_edits),
                tokens_after=tokens_after,
                model=request.model,
                cost=Decimal(0),
                duration_seconds=0.0,
                outcome=CompactionOutcome.TOOL_RESULT_TRUNCATED,
                compacted_at=now,
                limit_tokens=limits[index],
            )
        )
    return records


async def _record_once(record: Compaction, store: CompactionStore) -> Compaction:
    """Store a record and return what is stored: this one, or one that another process stored before."""
    await store.record(record, (), lease=None)
    return await store.get_compaction(record.id) or record

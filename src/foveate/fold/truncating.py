"""Tool results that are too long, cut before they are first sent, and in the same way whenever they come again.

How much of a result is sent is decided once, while the model has not answered it yet, and kept with the hash of
its message: so another gateway, or one with another limit since, cuts it as before. What the model has answered
whole stays whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from foveate import wire
from foveate.budget.eviction import MessageKind, classify_message
from foveate.errors import StoreUnavailable
from foveate.fold.clearing import build_truncation_edits
from foveate.fold.journal import Compaction, CompactionOutcome, CompactionStore
from foveate.session.chain import HASH_BYTES, HashChain
from foveate.tokens import RequestCounter
from foveate.tokens.memo import hash_bytes
from foveate.values import ReplaceText, Request
from foveate.wire.blocks import get_cached_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncationResult:
    """The cuts of a request; `rows` are those that were made now, and `problem` why they could not be kept."""

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
    """The cuts of a request's results: as before where there was one, kept in the journal where it is new.

    `folds` is what the journal holds at the hashes of the chain. What stands before `start` is not sent.

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
    if stored != records:  # somebody else was quicker, with a limit of their own
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
    """How many tokens of each result in a message are sent, by the place of the message; others are sent whole.

    Those that are new have `limit_tokens`, others what they had when they were new. Places before `start` are
    not looked at.
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
    """The first place that the model has not spoken after."""
    links = wire.message_history(request).nodes
    for index in reversed(range(head, len(request.messages))):
        blocks = get_cached_blocks(links[index - head])
        if blocks and blocks[0].role == "user":
            continue
        if classify_message(wire.parse_message(request.format, request.messages[index])) is MessageKind.MODEL:
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
    """One row for each message in which something is cut."""
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
    """The row as it is kept: this one, or the one that somebody else has kept before."""
    await store.record(record, (), lease=None)
    return await store.get_compaction(record.id) or record

"""Tool results that are too long, cut before they are first sent, and in the same way whenever they come again.

How much of a result is sent is decided once, while the model has not answered it yet, and kept with the hash of
its message: so another gateway, or one with another limit since, cuts it as before. What the model has answered
whole stays whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from foveate import wire
from foveate.budget.eviction import Kind, kind_of
from foveate.errors import StoreUnavailable
from foveate.fold.clearing import truncated_results
from foveate.fold.journal import Fold, Journal, Outcome
from foveate.session.chain import HASH_BYTES, Chain
from foveate.tokens import RequestCounter
from foveate.tokens.memo import digest
from foveate.values import ReplaceText, Request
from foveate.wire.blocks import noted_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated:
    """The cuts of a request; `rows` are those that were made now, and `problem` why they could not be kept."""

    edits: tuple[ReplaceText, ...] = ()
    rows: tuple[Fold, ...] = ()
    problem: str = ""


async def truncate(
    request: Request,
    chain: Chain,
    folds: Sequence[Fold],
    counter: RequestCounter,
    journal: Journal,
    *,
    agent: str,
    session_id: str,
    limit_tokens: int,
    now: float,
    start: int = 0,
) -> Truncated:
    """The cuts of a request's results: as before where there was one, kept in the journal where it is new.

    `folds` is what the journal holds at the hashes of the chain. What stands before `start` is not sent.

    Raises:
        MalformedRequest: a message cannot be read.
    """
    limits = limits_for(request, chain, folds, limit_tokens=limit_tokens, start=start)
    edits = truncated_results(request, counter, limits)
    if not edits:
        return Truncated()
    kept_before = {fold.boundary for fold in _cuts(folds)}
    rows = [
        row
        for row in _rows(edits, request, chain, counter, limits, (agent, session_id, now))
        if row.boundary not in kept_before
    ]
    if not rows:
        return Truncated(edits=edits)
    try:
        kept = [await _kept(row, journal) for row in rows]
    except StoreUnavailable as error:
        return Truncated(edits=edits, rows=tuple(rows), problem=str(error))
    if kept != rows:  # somebody else was quicker, with a limit of their own
        limits = limits_for(request, chain, [*folds, *kept], limit_tokens=limit_tokens, start=start)
        edits = truncated_results(request, counter, limits)
    return Truncated(
        edits=edits, rows=tuple(row for row, there in zip(rows, kept, strict=True) if row == there)
    )


def limits_for(
    request: Request, chain: Chain, folds: Sequence[Fold], *, limit_tokens: int, start: int = 0
) -> Mapping[int, int]:
    """How many tokens of each result in a message are sent, by the place of the message; others are sent whole.

    Those that are new have `limit_tokens`, others what they had when they were new. Places before `start` are
    not looked at.
    """
    new = range(_after_last_answer(request, chain.head), len(request.messages))
    limits = dict.fromkeys(new, limit_tokens)
    for fold in _cuts(folds):
        position = fold.messages - 1
        if not 0 <= position < len(chain) or chain.hashes[position] != fold.boundary:
            continue
        if fold.undone_at is None and fold.limit_tokens is not None:
            limits[chain.head + position] = fold.limit_tokens
        else:
            limits.pop(chain.head + position, None)
    return {place: limit for place, limit in limits.items() if place >= start}


def _cuts(folds: Sequence[Fold]) -> list[Fold]:
    return [fold for fold in folds if fold.outcome is Outcome.TOOL_RESULT_TRUNCATED]


def _after_last_answer(request: Request, head: int) -> int:
    """The first place that the model has not spoken after."""
    links = wire.trail(request).links
    for place in reversed(range(head, len(request.messages))):
        blocks = noted_blocks(links[place - head])
        if blocks and blocks[0].role == "user":
            continue
        if kind_of(wire.message(request.format, request.messages[place])) is Kind.MODEL:
            return place + 1
    return head


def _rows(
    edits: Sequence[ReplaceText],
    request: Request,
    chain: Chain,
    counter: RequestCounter,
    limits: Mapping[int, int],
    whose: tuple[str, str, float],
) -> list[Fold]:
    """One row for each message in which something is cut."""
    agent, session_id, now = whose
    rows = []
    for place in dict.fromkeys(edit.place.index for edit in edits):
        position = place - chain.head
        boundary = chain.hashes[position]
        own = [edit for edit in edits if edit.place.index == place]
        after = sum(counter.text(edit.text).tokens for edit in own)
        rows.append(
            Fold(
                id=digest(b"cut", agent.encode("utf-8", "replace"), boundary)[:HASH_BYTES].hex(),
                agent=agent,
                session_id=session_id,
                boundary=boundary,
                messages=position + 1,
                seen_messages=len(chain),
                summary="",
                carried=(),
                tokens_before=after + sum(edit.saved_tokens for edit in own),
                tokens_after=after,
                model=request.model,
                cost=Decimal(0),
                duration_seconds=0.0,
                outcome=Outcome.TOOL_RESULT_TRUNCATED,
                compacted_at=now,
                limit_tokens=limits[place],
            )
        )
    return rows


async def _kept(row: Fold, journal: Journal) -> Fold:
    """The row as it is kept: this one, or the one that somebody else has kept before."""
    await journal.record(row, (), lease=None)
    return await journal.fold(row.id) or row

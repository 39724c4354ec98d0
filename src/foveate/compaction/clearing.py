"""Clear tool results that are stale or superseded, and keep them cleared in all later requests.

What is cleared is stored with the hash of the last message concerned, which identifies the conversation up to
there in any session and for any gateway, together with the placeholders, so that their bytes never change.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from foveate import formats
from foveate.caching import hash_bytes
from foveate.compaction.boundary import has_signed_thinking
from foveate.compaction.edit_timing import REFETCH_PROBABILITIES, ClearingOption
from foveate.compaction.staleness import find_clearable_results
from foveate.compaction.store import ClearedBlock, Compaction, CompactionOutcome, EditDecision
from foveate.compaction.tool_results import iterate_tool_results
from foveate.model import Area, Message, Part, Place, ReplaceText, Request, ToolResult
from foveate.prompt_cache.rules import rules_for
from foveate.session.hash_chain import HASH_BYTES, HashChain
from foveate.tokens import RequestCounter


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearableBlock:
    block: ClearedBlock
    option: ClearingOption


def cleared_blocks(
    chain: HashChain, compactions: Sequence[Compaction], *, with_undone: bool = False
) -> dict[tuple[int, int], ClearedBlock]:
    """The results of this conversation that are cleared, by position in the chain and block; also those that
    were cleared and restored, if `with_undone`.
    """
    return {
        (block.message, block.block): block
        # Of several placeholders for a result, the oldest stays.
        for compaction in sorted(compactions, key=lambda compaction: -compaction.compacted_at)
        if compaction.outcome is CompactionOutcome.RESULTS_CLEARED
        and (with_undone or compaction.undone_at is None)
        and 0 < compaction.messages <= len(chain)
        and chain.hashes[compaction.messages - 1] == compaction.boundary
        for block in compaction.cleared
    }


def build_clearing_edits(
    chain: HashChain, compactions: Sequence[Compaction], *, start: int = 0
) -> tuple[ReplaceText, ...]:
    """Edits that replace cleared results by their placeholders. Messages before `start` are not sent."""
    return tuple(
        ReplaceText(
            place=Place(Area.MESSAGES, chain.leading_system_messages + message, block),
            text=cleared.text,
            reason="a tool result that is no longer needed, cleared because that pays",
            saved_tokens=cleared.saved_tokens,
        )
        for (message, block), cleared in sorted(cleared_blocks(chain, compactions).items())
        if chain.leading_system_messages + message >= start
    )


def can_clear(request: Request, model: str, *, start: int) -> bool:
    """Return whether no thinking after `start` is bound to messages that would change."""
    if not rules_for(model).binds_thinking:
        return True
    history = formats.message_history(request)
    return not any(
        has_signed_thinking(request, history, index) for index in range(start, len(request.messages))
    )


def find_clearable_blocks(
    request: Request,
    messages: Sequence[Message],
    chain: HashChain,
    compactions: Sequence[Compaction],
    counter: RequestCounter,
    *,
    start: int,
    tokens_per_raw_token: float,
) -> list[ClearableBlock]:
    """Find results that can be cleared, in order. `messages` are those of `request`, from `start` on.

    A result that a user has restored is not cleared again.
    """
    known = cleared_blocks(chain, compactions, with_undone=True)
    clearable = []
    for result in find_clearable_results(messages):
        index = start + result.message
        position = index - chain.leading_system_messages
        message = messages[result.message]
        number = sum(isinstance(part, ToolResult) for part in message.parts[: result.part])
        blocks = [block for block, _ in iterate_tool_results(request, index)]
        if number >= len(blocks) or (position, blocks[number]) in known:
            continue
        tokens = round(_count_result(message.parts[result.part], counter) * tokens_per_raw_token)
        placeholder_tokens = round(counter.text(result.placeholder).tokens * tokens_per_raw_token)
        saved_tokens = tokens - placeholder_tokens
        if saved_tokens > 0:
            clearable.append(
                ClearableBlock(
                    block=ClearedBlock(
                        message=position,
                        block=blocks[number],
                        text=result.placeholder,
                        tokens=tokens,
                        saved_tokens=saved_tokens,
                    ),
                    option=ClearingOption(
                        saved_tokens=saved_tokens, refetch_probability=REFETCH_PROBABILITIES[result.reason]
                    ),
                )
            )
    return clearable


def _count_result(part: Part, counter: RequestCounter) -> int:
    return (
        counter.count_message(Message(role="user", parts=(part,))).tokens
        - counter.count_message(Message(role="user", parts=())).tokens
    )


def make_clearing_record(
    blocks: Sequence[ClearedBlock],
    chain: HashChain,
    decision: EditDecision,
    *,
    agent: str,
    session_id: str,
    model: str,
    now: float,
) -> Compaction:
    """The same decision has the same id everywhere."""
    messages = max(block.message for block in blocks) + 1
    boundary = chain.hashes[messages - 1]
    places = ",".join(f"{block.message}:{block.block}" for block in blocks)
    key = (b"clearing", agent.encode("utf-8", "replace"), boundary, places.encode())
    return Compaction(
        id=hash_bytes(*key)[:HASH_BYTES].hex(),
        agent=agent,
        session_id=session_id,
        boundary=boundary,
        messages=messages,
        seen_messages=len(chain),
        summary="",
        carried=(),
        tokens_before=sum(block.tokens for block in blocks),
        tokens_after=sum(block.tokens - block.saved_tokens for block in blocks),
        model=model,
        cost=Decimal(0),
        duration_seconds=0.0,
        outcome=CompactionOutcome.RESULTS_CLEARED,
        compacted_at=now,
        decision=decision,
        cleared=tuple(blocks),
    )

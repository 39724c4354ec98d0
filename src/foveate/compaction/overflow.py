"""Decide what to do with a request that exceeds the context window: compact, clear, evict, reject or pass.

Each action is tried on what the one before has left. Everything removed leaves a placeholder that the model and
the user can read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from foveate.budget.trim import EvictedMessages, evict
from foveate.budget.turn_structure import count_turns
from foveate.compaction.apply import group_consecutive, placeholder_messages
from foveate.compaction.boundary import TurnStructure, continues_stored
from foveate.compaction.thinking import drop_invalid_thinking
from foveate.compaction.tool_results import clear_stale_results
from foveate.errors import BadOption
from foveate.model import Edit, Message, ReplaceMessages, ReplaceText, Request, TokenCount

_UNLIMITED_TURNS = 10**9
# Tokens are removed in steps of this fraction of the limit. So many consecutive requests lose the same
# messages, and the rest stays a prefix that the provider has cached.
_REMOVAL_STEPS_PER_LIMIT = 8
# Turns beyond a limit are removed in batches of this fraction of it.
_TURN_BATCHES_PER_LIMIT = 4
_MAX_PLACEHOLDER_TOKENS = 120


class OnOverflow(StrEnum):
    MAKE_ROOM = "make_room"
    REJECT = "refuse"
    PASS = "pass"


class OverflowAction(StrEnum):
    """Actions on a request that does not fit, in the order in which they are tried."""

    COMPACT = "fold"
    CLEAR = "clear"
    EVICT = "evict"
    REJECT = "refuse"
    PASS = "pass"


@dataclass(frozen=True, slots=True)
class OverflowOptions:
    compaction: bool
    on_overflow: OnOverflow | None = None

    @property
    def policy(self) -> OnOverflow:
        """The configured policy, or the default with or without compaction."""
        return self.on_overflow or (OnOverflow.MAKE_ROOM if self.compaction else OnOverflow.REJECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowPlan:
    """Actions on a request, and its approximate size afterwards.

    The last of `actions` decides: compact and plan again, reject, or pass the request with `edits`.
    """

    actions: tuple[OverflowAction, ...]
    reason: str
    tokens_before: int
    tokens_after: int
    limit_tokens: int
    edits: tuple[Edit, ...] = ()

    @property
    def final_action(self) -> OverflowAction:
        return self.actions[-1]


def lower_bound_tokens(count: TokenCount) -> int:
    """The smallest size that a count allows: an estimate may be as much too high as too low."""
    return count.tokens if count.exact else max(0, 2 * count.tokens - count.upper)


def plan_overflow(
    request: Request,
    messages: Sequence[Message],
    tokens: Sequence[int],
    count: TokenCount,
    *,
    limit_tokens: int,
    options: OverflowOptions,
    can_compact: bool,
    model: str = "",
) -> OverflowPlan:
    """Plan what to do with a request of `count` tokens if `limit_tokens` fit.

    `request` is what would be sent now, with existing compactions applied. `can_compact` tells whether a longer
    compaction is possible. `model` is needed if the body does not name it, as on Bedrock.

    From a request that continues a stored conversation, only tool results are cleared.

    Raises:
        BadOption: `messages` or `tokens` does not have one item per message of the request.
    """
    if not len(request.messages) == len(messages) == len(tokens):
        size = len(request.messages)
        raise BadOption(
            f"the request has {size} messages, but there are {len(messages)} parsed messages and {len(tokens)}"
            " token counts"
        )
    size_text = f"{count.tokens:,} tokens{'' if count.exact else ' (estimated)'}, the limit is {limit_tokens:,}"
    if count.tokens <= limit_tokens:
        return _make_plan(count, limit_tokens, (OverflowAction.PASS,), f"the request fits: {size_text}")
    if options.compaction and can_compact and not continues_stored(request):
        return _make_plan(
            count, limit_tokens, (OverflowAction.COMPACT,), f"the request does not fit: {size_text}"
        )
    room_maker = _RoomMaker(request, messages, tokens, model or request.model)
    if options.policy is OnOverflow.MAKE_ROOM:
        room_maker.free_tokens(count, limit_tokens)
    edits, saved_tokens = room_maker.build_edits(), room_maker.saved_tokens
    # The rest of an estimate is as uncertain as the whole.
    min_remaining_tokens = lower_bound_tokens(count) * (count.tokens - saved_tokens) // count.tokens
    if min_remaining_tokens > limit_tokens and options.policy is not OnOverflow.PASS:
        # Do not apply edits that would not have helped.
        return _make_plan(
            count,
            limit_tokens,
            (OverflowAction.REJECT,),
            f"the request does not fit: {size_text}; {saved_tokens:,} tokens could be removed",
        )
    reason = (
        f"shortened to fit: {size_text}; {saved_tokens:,} tokens are removed"
        if edits
        else f"the request may not fit: {size_text}"
    )
    return _make_plan(
        count, limit_tokens, (*room_maker.actions, OverflowAction.PASS), reason, edits, saved_tokens
    )


def limit_turns(
    request: Request, messages: Sequence[Message], tokens: Sequence[int], *, max_turns: int, model: str = ""
) -> tuple[Edit, ...]:
    """Edits that remove the oldest turns beyond `max_turns`, with a placeholder.

    Turns are removed in batches of a quarter of `max_turns`, so that many consecutive requests lose the same
    turns and the rest stays a prefix that the provider has cached. Nothing is removed from a request that
    continues a stored conversation, or if the model would reject the remaining thinking.
    """
    over = count_turns(messages) - max_turns
    if over <= 0 or continues_stored(request):
        return ()
    batch = max(2 if max_turns >= _TURN_BATCHES_PER_LIMIT else 1, max_turns // _TURN_BATCHES_PER_LIMIT)
    room_maker = _RoomMaker(request, messages, tokens, model or request.model)
    room_maker.evict_turns(-(-over // batch) * batch)
    return room_maker.build_edits()


def _make_plan(
    count: TokenCount,
    limit_tokens: int,
    actions: tuple[OverflowAction, ...],
    reason: str,
    edits: tuple[Edit, ...] = (),
    saved_tokens: int = 0,
) -> OverflowPlan:
    return OverflowPlan(
        actions=actions,
        reason=reason,
        tokens_before=count.tokens,
        tokens_after=count.tokens - saved_tokens,
        limit_tokens=limit_tokens,
        edits=edits,
    )


class _RoomMaker:
    def __init__(
        self, request: Request, messages: Sequence[Message], tokens: Sequence[int], model: str
    ) -> None:
        self._request = request
        self._model = model
        self._messages = messages
        self._tokens = tokens
        self._structure = TurnStructure(messages)
        self._cleared: tuple[ReplaceText, ...] = ()
        self._evicted: tuple[EvictedMessages, ...] = ()
        self._reason = "the oldest turns are removed to make room"

    def free_tokens(self, count: TokenCount, limit_tokens: int) -> None:
        """Remove enough, in whole steps, that the upper bound of the rest fits."""
        needed_tokens = count.tokens - limit_tokens * count.tokens // count.upper + _MAX_PLACEHOLDER_TOKENS
        step_tokens = max(limit_tokens // _REMOVAL_STEPS_PER_LIMIT, 1)
        rounded_tokens = -(-needed_tokens // step_tokens) * step_tokens
        self._cleared = clear_stale_results(
            self._request, self._messages, self._tokens, need_tokens=rounded_tokens
        )
        if self.saved_tokens < needed_tokens and not continues_stored(self._request):
            remaining_tokens = list(self._tokens)
            for edit in self._cleared:
                remaining_tokens[edit.place.index] -= edit.saved_tokens
            budget = max(sum(self._tokens) - rounded_tokens, 0)
            self._evicted = evict(
                self._messages, remaining_tokens, token_budget=budget, max_turns=_UNLIMITED_TURNS
            ).evicted
        if self._thinking_edits() is None:
            self._cleared, self._evicted = (), ()

    def evict_turns(self, turns: int) -> None:
        self._reason = f"the {turns:,} oldest turns are removed (max_turns)"
        remaining_turns = count_turns(self._messages) - turns
        total = sum(self._tokens)
        self._evicted = evict(
            self._messages, self._tokens, token_budget=total, max_turns=remaining_turns
        ).evicted
        if self._thinking_edits() is None:
            self._evicted = ()

    @property
    def evicted_messages(self) -> set[int]:
        """Indexes of evicted messages; a provider's encrypted blocks stay."""
        evicted = {index for eviction in self._evicted for index in eviction.messages}
        return evicted.intersection(self._structure.turn_indexes)

    @property
    def actions(self) -> tuple[OverflowAction, ...]:
        edits_by_action = {OverflowAction.CLEAR: self._remaining_clears(), OverflowAction.EVICT: self._evicted}
        return tuple(step for step, edits in edits_by_action.items() if edits)

    @property
    def saved_tokens(self) -> int:
        cleared = sum(edit.saved_tokens for edit in self._remaining_clears())
        return cleared + sum(self._tokens[index] for index in self.evicted_messages)

    def build_edits(self) -> tuple[Edit, ...]:
        return (
            *self._remaining_clears(),
            *self._eviction_edits(sorted(self.evicted_messages)),
            *(self._thinking_edits() or ()),
        )

    def _thinking_edits(self) -> tuple[Edit, ...] | None:
        """Edits for thinking after the removed messages; None if the request could not be sent then."""
        evicted = self.evicted_messages
        changed = [*(edit.place.index for edit in self._remaining_clears()), *evicted]
        if not changed:
            return ()
        return drop_invalid_thinking(self._request, self._model, changed_from=min(changed), removed=evicted)

    def _remaining_clears(self) -> list[ReplaceText]:
        evicted = self.evicted_messages
        return [edit for edit in self._cleared if edit.place.index not in evicted]

    def _eviction_edits(self, evicted: Sequence[int]) -> Iterator[ReplaceMessages]:
        structure = self._structure
        for group in _group_evicted(evicted, structure.turn_indexes):
            tokens = sum(self._tokens[index] for index in group)
            placeholder = f"[left out: {len(group):,} earlier messages, {tokens:,} tokens]"
            opening, closing = placeholder_messages(
                placeholder,
                self._request.format,
                after_user=structure.follows_user(group[0]),
                before_model=structure.is_next_from_model(group[-1] + 1),
            )
            runs = group_consecutive(group)
            for run in runs:
                before = opening if run is runs[0] else ()
                yield ReplaceMessages(
                    start=run.start,
                    end=run.stop,
                    messages=before + (closing if run is runs[-1] else ()),
                    reason=self._reason,
                    saved_tokens=tokens if run is runs[0] else 0,
                )


def _group_evicted(evicted: Sequence[int], turn_indexes: Sequence[int]) -> list[list[int]]:
    """Group evicted messages that have no remaining turn message between them; system messages do not count."""
    numbers = {index: number for number, index in enumerate(turn_indexes)}
    runs = group_consecutive([numbers[index] for index in evicted])
    return [[turn_indexes[number] for number in run] for run in runs]

"""What is done with a request that does not fit: fold, clear, evict, refuse or pass, in this order.

Each is tried on what the one before has left. None is silent: whatever is taken out leaves a placeholder in its
place that the model and the user can read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from foveate.budget.evict import EvictedMessages, count_turns, evict
from foveate.compaction.apply import group_consecutive, placeholder_messages
from foveate.compaction.boundary import TurnStructure, continues_stored
from foveate.compaction.thinking import drop_invalid_thinking
from foveate.compaction.tool_results import clear_stale_results
from foveate.errors import BadOption
from foveate.model import Edit, Message, ReplaceMessages, ReplaceText, Request, TokenCount

_UNLIMITED_TURNS = 10**9
# Room is made in pieces of this part of the limit. So the same is taken out of many requests in a row, and what
# is left of the history stays the prefix that the provider has kept.
_REMOVAL_STEPS_PER_LIMIT = 8
# Turns beyond a limit go in batches of this part of it.
_TURN_BATCHES_PER_LIMIT = 4
# What placeholders take, at most.
_MAX_PLACEHOLDER_TOKENS = 120


class OnOverflow(StrEnum):
    """What is wished where a request does not fit."""

    MAKE_ROOM = "make_room"
    REFUSE = "refuse"
    PASS = "pass"


class OverflowAction(StrEnum):
    """What can be done with a request that does not fit, in the order in which it is tried."""

    COMPACT = "fold"
    CLEAR = "clear"
    EVICT = "evict"
    REFUSE = "refuse"
    PASS = "pass"


@dataclass(frozen=True, slots=True)
class OverflowOptions:
    """An agent's wishes: whether its history may be folded, and what else may be done."""

    compaction: bool
    on_overflow: OnOverflow | None = None

    @property
    def policy(self) -> OnOverflow:
        """`on_overflow`, or what is usual for agents with and without compaction."""
        return self.on_overflow or (OnOverflow.MAKE_ROOM if self.compaction else OnOverflow.REFUSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowPlan:
    """What is to be done with a request, and how many tokens it has then, about.

    `steps` are in order, and the last one says what becomes of the request: a fold is to be made and the rest
    planned again after it, it is refused, or it is passed with the `edits`.
    """

    actions: tuple[OverflowAction, ...]
    reason: str
    tokens_before: int
    tokens_after: int
    limit_tokens: int
    edits: tuple[Edit, ...] = ()

    @property
    def final_action(self) -> OverflowAction:
        """What becomes of the request."""
        return self.actions[-1]


def lower_bound_tokens(count: TokenCount) -> int:
    """The fewest tokens that a count can mean: an estimate may be as much too high as it may be too low."""
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
    """What is to be done with a request of `count` tokens, of which `limit_tokens` would fit.

    `request` is what would be sent as things stand, with the folds that there are; `messages` are its messages
    and `tokens` those of each. `can_fold` says that a fold would still reach farther. `model` is its model
    where the body does not name it, as at Bedrock.

    Of a request that goes on from turns that the provider stores, results are cleared at most.

    Raises:
        BadOption: not one message and one count for each message of the request.
    """
    if not len(request.messages) == len(messages) == len(tokens):
        size = len(request.messages)
        raise BadOption(f"each of {size} messages has one count: there are {len(messages)} and {len(tokens)}")
    size_text = f"{count.tokens:,} tokens{'' if count.exact else ' (an estimate)'}, where {limit_tokens:,} fit"
    if count.tokens <= limit_tokens:
        return _make_plan(count, limit_tokens, (OverflowAction.PASS,), f"it fits: {size_text}")
    if options.compaction and can_compact and not continues_stored(request):
        return _make_plan(count, limit_tokens, (OverflowAction.COMPACT,), f"it does not fit: {size_text}")
    room_maker = _RoomMaker(request, messages, tokens, model or request.model)
    if options.policy is OnOverflow.MAKE_ROOM:
        room_maker.free_tokens(count, limit_tokens)
    edits, saved = room_maker.build_edits(), room_maker.saved_tokens
    # What is left of an estimate is as uncertain as all of it was.
    left = lower_bound_tokens(count) * (count.tokens - saved) // count.tokens
    if left > limit_tokens and options.policy is not OnOverflow.PASS:
        # What would not have helped is not done.
        return _make_plan(
            count,
            limit_tokens,
            (OverflowAction.REFUSE,),
            f"it does not fit: {size_text}, and {saved:,} could go",
        )
    reason = (
        f"room was made: {size_text}, and {saved:,} are taken out" if edits else f"it may not fit: {size_text}"
    )
    return _make_plan(count, limit_tokens, (*room_maker.actions, OverflowAction.PASS), reason, edits, saved)


def limit_turns(
    request: Request, messages: Sequence[Message], tokens: Sequence[int], *, max_turns: int, model: str = ""
) -> tuple[Edit, ...]:
    """Edits that leave out the oldest turns beyond `max_turns`, with a placeholder.

    Turns go in batches of a quarter of `max_turns`, so that the same ones are left out of many requests in a
    row and the rest stays the prefix that the provider has cached. None go from a request that continues a
    stored one, or if the model would reject the thinking that stays.
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
    saved: int = 0,
) -> OverflowPlan:
    return OverflowPlan(
        actions=actions,
        reason=reason,
        tokens_before=count.tokens,
        tokens_after=count.tokens - saved,
        limit_tokens=limit_tokens,
        edits=edits,
    )


class _RoomMaker:
    """Takes stale results and old turns out of a request, until it fits or nothing is left that may go."""

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
        self._reason = "the oldest turns are left out to make room"

    def free_tokens(self, count: TokenCount, limit_tokens: int) -> None:
        """Take out as much as it takes for the upper bound of what is left to fit, rounded up to a piece."""
        needed_tokens = count.tokens - limit_tokens * count.tokens // count.upper + _MAX_PLACEHOLDER_TOKENS
        step_tokens = max(limit_tokens // _REMOVAL_STEPS_PER_LIMIT, 1)
        wanted_tokens = -(-needed_tokens // step_tokens) * step_tokens
        self._cleared = clear_stale_results(
            self._request, self._messages, self._tokens, need_tokens=wanted_tokens
        )
        if self.saved_tokens < needed_tokens and not continues_stored(self._request):
            left = list(self._tokens)
            for edit in self._cleared:
                left[edit.place.index] -= edit.saved_tokens
            budget = max(sum(self._tokens) - wanted_tokens, 0)
            self._evicted = evict(self._messages, left, token_budget=budget, max_turns=_UNLIMITED_TURNS).evicted
        if self._thinking_edits() is None:
            self._cleared, self._evicted = (), ()

    def evict_turns(self, turns: int) -> None:
        """Take out so many of the oldest turns."""
        self._reason = f"the {turns:,} oldest turns are left out, beyond max_turns"
        left = count_turns(self._messages) - turns
        total = sum(self._tokens)
        self._evicted = evict(self._messages, self._tokens, token_budget=total, max_turns=left).evicted
        if self._thinking_edits() is None:
            self._evicted = ()

    @property
    def evicted_messages(self) -> set[int]:
        """The messages that are evicted; what a provider has sealed for itself stays where it is."""
        evicted = {index for gone in self._evicted for index in gone.messages}
        return evicted.intersection(self._structure.turn_indexes)

    @property
    def actions(self) -> tuple[OverflowAction, ...]:
        """What was done."""
        done = {OverflowAction.CLEAR: self._remaining_clears(), OverflowAction.EVICT: self._evicted}
        return tuple(step for step, some in done.items() if some)

    @property
    def saved_tokens(self) -> int:
        """How many tokens are taken out."""
        cleared = sum(edit.saved_tokens for edit in self._remaining_clears())
        return cleared + sum(self._tokens[index] for index in self.evicted_messages)

    def build_edits(self) -> tuple[Edit, ...]:
        """All of it as edits of the request."""
        return (
            *self._remaining_clears(),
            *self._eviction_edits(sorted(self.evicted_messages)),
            *(self._thinking_edits() or ()),
        )

    def _thinking_edits(self) -> tuple[Edit, ...] | None:
        """What has to be done about thoughts after what is taken out; None where nothing can be."""
        gone = self.evicted_messages
        changed = [*(edit.place.index for edit in self._remaining_clears()), *gone]
        if not changed:
            return ()
        return drop_invalid_thinking(self._request, self._model, changed_from=min(changed), removed=gone)

    def _remaining_clears(self) -> list[ReplaceText]:
        gone = self.evicted_messages
        return [edit for edit in self._cleared if edit.place.index not in gone]

    def _eviction_edits(self, evicted: Sequence[int]) -> Iterator[ReplaceMessages]:
        """What went, each stretch of it with a placeholder, where something was said in between."""
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
    """What went, in rows between which nothing was said that stays; system messages may stand between."""
    numbers = {index: number for number, index in enumerate(turn_indexes)}
    runs = group_consecutive([numbers[index] for index in evicted])
    return [[turn_indexes[number] for number in run] for run in runs]

"""What is done with a request that does not fit: fold, clear, evict, refuse or pass, in this order.

Each is tried on what the one before has left. None is silent: whatever is taken out leaves a placeholder in its
place that the model and the user can read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from foveate.budget.eviction import Evicted, count_turns, evict
from foveate.errors import BadOption
from foveate.fold.boundary import History, continues_stored
from foveate.fold.clearing import cleared_results
from foveate.fold.replacing import spans, stand_in
from foveate.fold.thoughts import unbound_thoughts
from foveate.values import Edit, Message, ReplaceMessages, ReplaceText, Request, TokenCount

_ANY_TURNS = 10**9
# Room is made in pieces of this part of the limit. So the same is taken out of many requests in a row, and what
# is left of the history stays the prefix that the provider has kept.
_PIECE = 8
# Turns beyond a limit go in batches of this part of it.
_TURN_BATCHES = 4
# What placeholders take, at most.
_PLACEHOLDER_TOKENS = 120


class OnOverflow(StrEnum):
    """What is wished where a request does not fit."""

    MAKE_ROOM = "make_room"
    REFUSE = "refuse"
    PASS = "pass"


class Step(StrEnum):
    """What can be done with a request that does not fit, in the order in which it is tried."""

    FOLD = "fold"
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
    def wish(self) -> OnOverflow:
        """`on_overflow`, or what is usual for agents with and without compaction."""
        return self.on_overflow or (OnOverflow.MAKE_ROOM if self.compaction else OnOverflow.REFUSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be done with a request, and how many tokens it has then, about.

    `steps` are in order, and the last one says what becomes of the request: a fold is to be made and the rest
    planned again after it, it is refused, or it is passed with the `edits`.
    """

    steps: tuple[Step, ...]
    reason: str
    tokens_before: int
    tokens_after: int
    limit_tokens: int
    edits: tuple[Edit, ...] = ()

    @property
    def ends_with(self) -> Step:
        """What becomes of the request."""
        return self.steps[-1]


def lower_end(count: TokenCount) -> int:
    """The fewest tokens that a count can mean: an estimate may be as much too high as it may be too low."""
    return count.tokens if count.exact else max(0, 2 * count.tokens - count.upper)


def plan_for(
    request: Request,
    messages: Sequence[Message],
    tokens: Sequence[int],
    count: TokenCount,
    *,
    limit_tokens: int,
    options: OverflowOptions,
    can_fold: bool,
    model: str = "",
) -> Plan:
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
    said = f"{count.tokens:,} tokens{'' if count.exact else ' (an estimate)'}, where {limit_tokens:,} fit"
    if count.tokens <= limit_tokens:
        return _plan(count, limit_tokens, (Step.PASS,), f"it fits: {said}")
    if options.compaction and can_fold and not continues_stored(request):
        return _plan(count, limit_tokens, (Step.FOLD,), f"it does not fit: {said}")
    room = _Room(request, messages, tokens, model or request.model)
    if options.wish is OnOverflow.MAKE_ROOM:
        room.make(count, limit_tokens)
    edits, saved = room.edits(), room.saved_tokens
    # What is left of an estimate is as uncertain as all of it was.
    left = lower_end(count) * (count.tokens - saved) // count.tokens
    if left > limit_tokens and options.wish is not OnOverflow.PASS:
        # What would not have helped is not done.
        return _plan(count, limit_tokens, (Step.REFUSE,), f"it does not fit: {said}, and {saved:,} could go")
    reason = f"room was made: {said}, and {saved:,} are taken out" if edits else f"it may not fit: {said}"
    return _plan(count, limit_tokens, (*room.steps, Step.PASS), reason, edits, saved)


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
    batch = max(2 if max_turns >= _TURN_BATCHES else 1, max_turns // _TURN_BATCHES)
    room = _Room(request, messages, tokens, model or request.model)
    room.evict_turns(-(-over // batch) * batch)
    return room.edits()


def _plan(
    count: TokenCount,
    limit_tokens: int,
    steps: tuple[Step, ...],
    reason: str,
    edits: tuple[Edit, ...] = (),
    saved: int = 0,
) -> Plan:
    return Plan(
        steps=steps,
        reason=reason,
        tokens_before=count.tokens,
        tokens_after=count.tokens - saved,
        limit_tokens=limit_tokens,
        edits=edits,
    )


class _Room:
    """Takes stale results and old turns out of a request, until it fits or nothing is left that may go."""

    def __init__(
        self, request: Request, messages: Sequence[Message], tokens: Sequence[int], model: str
    ) -> None:
        self._request = request
        self._model = model
        self._messages = messages
        self._tokens = tokens
        self._history = History(messages)
        self._cleared: tuple[ReplaceText, ...] = ()
        self._evicted: tuple[Evicted, ...] = ()
        self._reason = "the oldest turns are left out to make room"

    def make(self, count: TokenCount, limit_tokens: int) -> None:
        """Take out as much as it takes for the upper bound of what is left to fit, rounded up to a piece."""
        need = count.tokens - limit_tokens * count.tokens // count.upper + _PLACEHOLDER_TOKENS
        piece = max(limit_tokens // _PIECE, 1)
        wanted = -(-need // piece) * piece
        self._cleared = cleared_results(self._request, self._messages, self._tokens, need_tokens=wanted)
        if self.saved_tokens < need and not continues_stored(self._request):
            left = list(self._tokens)
            for edit in self._cleared:
                left[edit.place.index] -= edit.saved_tokens
            budget = max(sum(self._tokens) - wanted, 0)
            self._evicted = evict(self._messages, left, token_budget=budget, max_turns=_ANY_TURNS).evicted
        if self._thoughts() is None:
            self._cleared, self._evicted = (), ()

    def evict_turns(self, turns: int) -> None:
        """Take out so many of the oldest turns."""
        self._reason = f"the {turns:,} oldest turns are left out, beyond max_turns"
        left = count_turns(self._messages) - turns
        total = sum(self._tokens)
        self._evicted = evict(self._messages, self._tokens, token_budget=total, max_turns=left).evicted
        if self._thoughts() is None:
            self._evicted = ()

    @property
    def gone(self) -> set[int]:
        """The messages that are evicted; what a provider has sealed for itself stays where it is."""
        evicted = {place for gone in self._evicted for place in gone.messages}
        return evicted.intersection(self._history.spoken)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What was done."""
        done = {Step.CLEAR: self._still_cleared(), Step.EVICT: self._evicted}
        return tuple(step for step, some in done.items() if some)

    @property
    def saved_tokens(self) -> int:
        """How many tokens are taken out."""
        cleared = sum(edit.saved_tokens for edit in self._still_cleared())
        return cleared + sum(self._tokens[place] for place in self.gone)

    def edits(self) -> tuple[Edit, ...]:
        """All of it as edits of the request."""
        return (*self._still_cleared(), *self._evictions(sorted(self.gone)), *(self._thoughts() or ()))

    def _thoughts(self) -> tuple[Edit, ...] | None:
        """What has to be done about thoughts after what is taken out; None where nothing can be."""
        gone = self.gone
        changed = [*(edit.place.index for edit in self._still_cleared()), *gone]
        if not changed:
            return ()
        return unbound_thoughts(self._request, self._model, changed_from=min(changed), gone=gone)

    def _still_cleared(self) -> list[ReplaceText]:
        gone = self.gone
        return [edit for edit in self._cleared if edit.place.index not in gone]

    def _evictions(self, gone: Sequence[int]) -> Iterator[ReplaceMessages]:
        """What went, each stretch of it with a placeholder, where something was said in between."""
        history = self._history
        for stretch in _stretches(gone, history.spoken):
            tokens = sum(self._tokens[place] for place in stretch)
            said = f"[left out: {len(stretch):,} earlier messages, {tokens:,} tokens]"
            opening, closing = stand_in(
                said,
                self._request.format,
                after_user=history.follows_user(stretch[0]),
                before_model=history.by_model(stretch[-1] + 1),
            )
            rows = spans(stretch)
            for row in rows:
                before = opening if row is rows[0] else ()
                yield ReplaceMessages(
                    start=row.start,
                    end=row.stop,
                    messages=before + (closing if row is rows[-1] else ()),
                    reason=self._reason,
                    saved_tokens=tokens if row is rows[0] else 0,
                )


def _stretches(gone: Sequence[int], spoken: Sequence[int]) -> list[list[int]]:
    """What went, in rows between which nothing was said that stays; system messages may stand between."""
    numbers = {place: number for number, place in enumerate(spoken)}
    rows = spans([numbers[place] for place in gone])
    return [[spoken[number] for number in row] for row in rows]

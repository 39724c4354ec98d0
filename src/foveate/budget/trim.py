"""Trim a history to a number of turns and of tokens, and lists of messages to a number of tokens.

Whole turns are evicted first, oldest first. Of the last turn, the user message stays, and the last step, from
which the model continues; the steps in between are evicted, oldest first. So the rest begins with a user
message, roles alternate as before, and every call keeps its result and every result its call. Turns and steps
are defined in `turn_structure`.

Each message of a list is measured once; the number of turns to drop is found by bisection over these
measurements.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from foveate import formats
from foveate.budget.sections import Priority, check_token_limit, parse_choice
from foveate.budget.turn_structure import TurnOutline, is_encrypted_compaction, is_system_message
from foveate.errors import BadOption, BudgetExceeded, MalformedRequest, SectionSize
from foveate.formats.json_text.parse import TOO_DEEP_MESSAGE
from foveate.model import ApiFormat, Format, Message, Request, TokenCount
from foveate.tokens.counter import EMPTY_TALLY, RequestCounter
from foveate.tokens.offline_counters import counter_for
from foveate.tokens.request_bodies import parse_message_list
from foveate.tokens.worker_threads import frequent_thread_switches

DEFAULT_MAX_TURNS = 40


class HistoryLimit(StrEnum):
    MAX_TURNS = "max_turns"
    TOKEN_BUDGET = "token_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictedMessages:
    """Positions of messages that are evicted together: a turn, or a step of the last turn.

    `before` and `after` are the tokens of the whole history; `reasons` are the limits that it exceeded.
    """

    messages: tuple[int, ...]
    before: int
    after: int
    reasons: tuple[HistoryLimit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """Positions of the messages that stay and of those that are evicted, in order."""

    kept: tuple[int, ...]
    evicted: tuple[EvictedMessages, ...]
    tokens_before: int
    tokens_after: int
    token_budget: int

    @property
    def fits(self) -> bool:
        """False only if nothing else may be evicted."""
        return self.tokens_after <= self.token_budget


class EvictionListener(Protocol):
    def on_evicted(self, messages: Sequence[Message]) -> None:
        """Called with messages that will not be sent again, oldest first."""


def evict_turns(
    messages: Sequence[Message],
    tokens: Sequence[int],
    *,
    token_budget: int,
    max_turns: int = DEFAULT_MAX_TURNS,
    listener: EvictionListener | None = None,
) -> Eviction:
    """Evict turns, and pass the evicted messages to `listener`, oldest first.

    Raises:
        BudgetExceeded: what may not be evicted does not fit; the listener is not called then.
        BadOption: as for `evict`.
    """
    eviction = evict(messages, tokens, token_budget=token_budget, max_turns=max_turns)
    if not eviction.fits:
        raise _history_exceeded(messages, tokens, eviction)
    if listener is not None:
        for group in eviction.evicted:
            listener.on_evicted([messages[position] for position in group.messages])
    return eviction


def evict(
    messages: Sequence[Message], tokens: Sequence[int], *, token_budget: int, max_turns: int = DEFAULT_MAX_TURNS
) -> Eviction:
    """Evict as little as possible, oldest first, to satisfy both limits, or everything possible if they cannot
    be.

    `tokens` has the count of each message. System and developer messages always stay, and count. Turns that a
    late result connects count as one; messages before the first user message are not a turn.

    Raises:
        BadOption: an invalid limit, or not one count per message.
    """
    _check_arguments(messages, tokens, token_budget, max_turns)
    positions = _turn_positions(messages)
    outline = TurnOutline([messages[position] for position in positions])
    total = remaining_tokens = sum(tokens)
    remaining_turns = outline.count_question_turns(outline.turns)
    evicted: list[EvictedMessages] = []
    for span in (*outline.turns[:-1], *outline.evictable_steps()):
        over = {
            HistoryLimit.MAX_TURNS: remaining_turns > max_turns,
            HistoryLimit.TOKEN_BUDGET: remaining_tokens > token_budget,
        }
        reasons = tuple(limit for limit, is_over in over.items() if is_over)
        if not reasons:
            break
        evicted_positions = tuple(positions[span.start : span.stop])
        before, remaining_tokens = (
            remaining_tokens,
            remaining_tokens - sum(tokens[position] for position in evicted_positions),
        )
        remaining_turns -= outline.count_question_turns([span])
        evicted.append(
            EvictedMessages(messages=evicted_positions, before=before, after=remaining_tokens, reasons=reasons)
        )
    all_evicted = {position for evicted_positions in evicted for position in evicted_positions.messages}
    return Eviction(
        kept=tuple(position for position in range(len(messages)) if position not in all_evicted),
        evicted=tuple(evicted),
        tokens_before=total,
        tokens_after=remaining_tokens,
        token_budget=token_budget,
    )


def _turn_positions(messages: Sequence[Message]) -> list[int]:
    """Positions of the messages that belong to turns: all except system messages."""
    return [position for position, message in enumerate(messages) if not is_system_message(message)]


def _check_arguments(
    messages: Sequence[Message], tokens: Sequence[int], token_budget: int, max_turns: int
) -> None:
    if len(messages) != len(tokens):
        raise BadOption(f"tokens must have one number for each message: {len(messages)}, not {len(tokens)}")
    if not _is_whole_number(max_turns, minimum=1):
        raise BadOption(
            f"max_turns must be a number of turns, 1 or more, not {max_turns!r}", path=("max_turns",)
        )
    if not _is_whole_number(token_budget, minimum=0):
        raise BadOption(
            f"token_budget must be a number of tokens, 0 or more, not {token_budget!r}", path=("token_budget",)
        )


def _is_whole_number(value: object, *, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _history_exceeded(messages: Sequence[Message], tokens: Sequence[int], eviction: Eviction) -> BudgetExceeded:
    system = sum(tokens[position] for position, message in enumerate(messages) if is_system_message(message))
    history = eviction.tokens_after - system
    return BudgetExceeded(
        f"the history does not fit: its budget is {eviction.token_budget} tokens, but the messages that must "
        f"stay take {eviction.tokens_after}",
        "raise the budget or shorten these messages",
        limit_tokens=eviction.token_budget,
        tokens=eviction.tokens_after,
        sections=(
            SectionSize("system", Priority.REQUIRED, system, system),
            SectionSize("history", Priority.HIGH, eviction.tokens_before - system, history),
        ),
    )


MessageT = TypeVar("MessageT")


@dataclass(frozen=True, slots=True, repr=False)
class Trimmed(Generic[MessageT]):
    """Messages that fit a limit.

    Attributes:
        messages: the messages that stay, the same objects in the same order.
        dropped: the messages that were dropped, in order.
        count: the count of `messages` as a request of their own, with its upper bound.
    """

    messages: list[MessageT]
    dropped: list[MessageT]
    count: TokenCount

    @property
    def tokens(self) -> int:
        """Tokens of `messages`; `count.upper` is the bound that is within the limit."""
        return self.count.tokens

    def __repr__(self) -> str:
        """Without the messages, which can be megabytes."""
        tokens = f"{'' if self.count.exact else '~'}{self.tokens:,} tokens"
        return f"<Trimmed: {len(self.messages):,} messages, {tokens}; {len(self.dropped):,} dropped>"


def trim_messages(
    messages: Sequence[MessageT], *, limit_tokens: int, model: str, api_format: ApiFormat | None = None
) -> Trimmed[MessageT]:
    """Drop the oldest messages until the rest has at most `limit_tokens`; see `foveate.trim`.

    Raises:
        BudgetExceeded: the messages that must stay do not fit.
        BadOption: an invalid limit or format, or `messages` is not a list.
        MalformedRequest: a message is not an object, or cannot be written as JSON.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise BadOption(
            f"messages must be a list of messages, not {type(messages).__name__}", path=("messages",)
        )
    if check_token_limit(limit_tokens, ("limit_tokens",)) is None:
        raise BadOption("limit_tokens must be a number of tokens, 0 or more, not None", path=("limit_tokens",))
    chosen = None if api_format is None else parse_choice(Format, api_format, ("api_format",))
    if not messages:
        return Trimmed([], [], TokenCount(0, True, 0))
    request = parse_message_list(messages, model, chosen)
    try:
        with frequent_thread_switches(len(request.body)):
            trimming = _Trimming(request, limit_tokens)
            dropped, count = trimming.find_dropped(messages)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP_MESSAGE) from None
    return Trimmed(
        [message for position, message in enumerate(messages) if position not in dropped],
        [message for position, message in enumerate(messages) if position in dropped],
        count,
    )


class _Trimming:
    def __init__(self, request: Request, limit_tokens: int) -> None:
        self._request = request
        self._limit_tokens = limit_tokens
        self._counter: RequestCounter = counter_for(request.model)
        self._messages = [
            formats.parse_message(request.format, formats.strip_breakpoints(raw)) for raw in request.messages
        ]
        self._measured = self._counter.measure_messages(*self._messages)
        self._groups = find_droppable(self._messages)

    def find_dropped(self, originals: Sequence[Any]) -> tuple[set[int], TokenCount]:
        """Return the positions to drop, and the count of the rest.

        Raises:
            BudgetExceeded: the rest does not fit even without all groups.
        """
        number = bisect_left(
            range(len(self._groups)), True, key=lambda n: self._measure_rest(n) <= self._limit_tokens
        )
        while True:
            dropped = {position for group in self._groups[:number] for position in group}
            kept = [message for position, message in enumerate(originals) if position not in dropped]
            rest = parse_message_list(kept, self._request.model, self._request.format)
            count = self._counter.count_request(rest, with_parts=False).total
            # The measurements are rounded in another order, so a count may differ by a token.
            if count.upper <= self._limit_tokens:
                return dropped, count
            if number == len(self._groups):
                raise self._limit_exceeded(dropped, count)
            number += 1

    def _measure_rest(self, number: int) -> int:
        """Upper bound of the request without the first `number` groups."""
        dropped = {position for group in self._groups[:number] for position in group}
        kept = [position for position in range(len(self._messages)) if position not in dropped]
        tally = self._counter.add_measured(EMPTY_TALLY, (self._measured[position] for position in kept))
        first, last = (self._messages[kept[0]], self._messages[kept[-1]]) if kept else (None, None)
        envelope_count = self._counter.count_envelope(self._request, first, last, tally.loaded_tools)
        return self._counter.total(self._request, envelope_count, tally).upper

    def _limit_exceeded(self, dropped: set[int], count: TokenCount) -> BudgetExceeded:
        kept = [position for position in range(len(self._messages)) if position not in dropped]
        system = [position for position in kept if is_system_message(self._messages[position])]
        other = [position for position in kept if position not in system]
        every = [position for position in range(len(self._messages)) if position not in system]
        sizes = [sum(round(self._measured[at].upper) for at in group) for group in (system, every, other)]
        return BudgetExceeded(
            f"the messages that must stay take {count.upper:,} tokens, and the limit is {self._limit_tokens:,}",
            "raise limit_tokens or shorten them",
            limit_tokens=self._limit_tokens,
            tokens=count.upper,
            sections=(
                SectionSize("system", Priority.REQUIRED, sizes[0], sizes[0]),
                SectionSize("messages", Priority.HIGH, sizes[1], sizes[2]),
            ),
        )


def find_droppable(messages: Sequence[Message]) -> list[list[int]]:
    """Positions of messages that can be dropped, in groups that are dropped together, in the order of dropping.

    System messages, encrypted compactions of the provider, the last user message, and an exchange with tools
    that the model has not answered yet are in no group.
    """
    positions = _turn_positions(messages)
    outline = TurnOutline([messages[position] for position in positions])
    answer = outline.finished_answer()
    spans = (*outline.turns[:-1], *outline.evictable_steps(), *(() if answer is None else (answer,)))
    groups = [
        [
            position
            for position in positions[span.start : span.stop]
            if not is_encrypted_compaction(messages[position])
        ]
        for span in spans
    ]
    return [group for group in groups if group]

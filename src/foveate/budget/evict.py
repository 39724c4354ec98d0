"""Eviction of turns, so that a history stays within a number of turns and of tokens.

Whole turns are evicted first, oldest first. Of the last turn, the user message stays, and the last step, from
which the model continues; the steps in between are evicted, oldest first. So the rest begins with a user
message, roles alternate as before, and every call keeps its result and every result its call. Turns and steps
are defined in `turn_structure`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from foveate.budget.sections import Priority
from foveate.budget.turn_structure import TurnOutline, is_system_message
from foveate.errors import BadOption, BudgetExceeded, SectionSize
from foveate.model import Message

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
    positions = turn_positions(messages)
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


def turn_positions(messages: Sequence[Message]) -> list[int]:
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

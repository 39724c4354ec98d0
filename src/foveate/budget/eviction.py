"""Eviction: which turns of a history go, so that what stays holds to a number of turns and of tokens.

A **turn** is a question and all that follows it, up to the next question. Inside a turn, a **step** is what the
model said in a row and all that follows, up to where it speaks again: its calls and their results. Neither ends
between a call and its result, however late that comes: what lies between is then one turn, or one step.

Whole turns go first, the oldest first. Of the last turn, the one under way, the question stays, and the last
step, which the model is to go on from; the steps between go, the oldest first. So what stays opens with a
question, speakers follow each other as they did before, and no call has lost its result, nor a result its call.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from itertools import pairwise
from typing import Protocol

from foveate.budget.sections import Priority
from foveate.errors import BadOption, BudgetExceeded, SectionSize
from foveate.values import Message, Opaque, Part, ToolCall, ToolResult

MAX_TURNS = 40

_SYSTEM_ROLES = frozenset(("system", "developer"))
# A Responses item by which the developer hands over more tools in mid-conversation.
_MORE_TOOLS = "additional_tools"
# Responses names the calls of the provider's own tools, and what the client answered, by such kinds:
# `computer_call` and `computer_call_output`, `mcp_approval_request` and `mcp_approval_response`.
_CALL_ENDINGS = ("_call", "_request")
_ANSWER_ENDINGS = ("_output", "_response")


class Limit(StrEnum):
    """What a history has to hold to."""

    MAX_TURNS = "max_turns"
    TOKEN_BUDGET = "token_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """The places of messages that went together: a turn, or a step of the last turn.

    `before` and `after` are the tokens of everything that was there then; `reasons` are the limits that it was
    over.
    """

    messages: tuple[int, ...]
    before: int
    after: int
    reasons: tuple[Limit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """What stays of a history and what goes, in order, by places in the list of its messages."""

    kept: tuple[int, ...]
    evicted: tuple[Evicted, ...]
    tokens_before: int
    tokens_after: int
    token_budget: int

    @property
    def fits(self) -> bool:
        """Whether what stays is within the budget; if not, nothing was left that may go."""
        return self.tokens_after <= self.token_budget


class Summariser(Protocol):
    """Who is shown what goes."""

    def offer(self, messages: Sequence[Message]) -> None:
        """Take note of messages that will not be sent again; older ones were offered before."""


def evict_turns(
    messages: Sequence[Message],
    tokens: Sequence[int],
    *,
    token_budget: int,
    max_turns: int = MAX_TURNS,
    summariser: Summariser | None = None,
) -> Eviction:
    """What `evict` decides, with all that goes offered to `summariser`, the oldest first.

    Raises:
        BudgetExceeded: what may not go does not fit; then nothing was offered.
        BadOption: as for `evict`.
    """
    eviction = evict(messages, tokens, token_budget=token_budget, max_turns=max_turns)
    if not eviction.fits:
        raise _exceeded(messages, tokens, eviction)
    if summariser is not None:
        for gone in eviction.evicted:
            summariser.offer([messages[place] for place in gone.messages])
    return eviction


def evict(
    messages: Sequence[Message], tokens: Sequence[int], *, token_budget: int, max_turns: int = MAX_TURNS
) -> Eviction:
    """The least that has to go, the oldest first, for both limits to hold, or all that may go if they cannot.

    `tokens` are those of each message. System and developer messages stay, wherever they stand, and count.
    Turns that a late result holds together are one; what stands before the first question is none.

    Raises:
        BadOption: a limit that cannot be, or not one count for each message.
    """
    _check(messages, tokens, token_budget, max_turns)
    spoken = [place for place, message in enumerate(messages) if not is_system(message)]
    outline = _Outline([messages[place] for place in spoken])
    total = left = sum(tokens)
    turns_left = outline.opened_by_question(outline.turns)
    evicted: list[Evicted] = []
    for span in (*outline.turns[:-1], *outline.loose_steps()):
        over = {Limit.MAX_TURNS: turns_left > max_turns, Limit.TOKEN_BUDGET: left > token_budget}
        reasons = tuple(limit for limit, is_over in over.items() if is_over)
        if not reasons:
            break
        gone = tuple(spoken[span.start : span.stop])
        before, left = left, left - sum(tokens[place] for place in gone)
        turns_left -= outline.opened_by_question([span])
        evicted.append(Evicted(messages=gone, before=before, after=left, reasons=reasons))
    all_gone = {place for gone in evicted for place in gone.messages}
    return Eviction(
        kept=tuple(place for place in range(len(messages)) if place not in all_gone),
        evicted=tuple(evicted),
        tokens_before=total,
        tokens_after=left,
        token_budget=token_budget,
    )


def count_turns(messages: Sequence[Message]) -> int:
    """How many turns a history has, as `max_turns` counts them."""
    outline = _Outline([message for message in messages if not is_system(message)])
    return outline.opened_by_question(outline.turns)


class Kind(Enum):
    """What a message is in a turn."""

    QUESTION = auto()
    RESULTS = auto()
    MODEL = auto()


class _Outline:
    """Where the turns of a history without its system messages begin and end, and the steps of the last one."""

    def __init__(self, history: Sequence[Message]) -> None:
        self._kinds = [kind_of(message) for message in history]
        self._is_seam = seams(history, self._kinds)
        self.turns = self._cut(range(len(history)), Kind.QUESTION)

    def opened_by_question(self, spans: Sequence[range]) -> int:
        """How many of `spans` begin with a question."""
        return sum(self._kinds[span.start] is Kind.QUESTION for span in spans)

    def loose_steps(self) -> list[range]:
        """The steps of the last turn that may go."""
        if not self.turns:
            return []
        *earlier, _ = self._cut(self.turns[-1], Kind.MODEL)
        asked = max((place for place in self.turns[-1] if self._kinds[place] is Kind.QUESTION), default=-1)
        return [step for step in earlier if self._kinds[step.start] is not Kind.QUESTION and asked not in step]

    def _cut(self, span: range, opening: Kind) -> list[range]:
        """`span` in parts, each from where messages of kind `opening` begin; what stands before is one too."""
        if not span:
            return []
        starts = [
            place for place in span[1:] if self._opens(place, opening) and not self._opens(place - 1, opening)
        ]
        return [range(start, stop) for start, stop in pairwise((span.start, *starts, span.stop))]

    def _opens(self, place: int, opening: Kind) -> bool:
        return self._kinds[place] is opening and self._is_seam[place]


def seams(history: Sequence[Message], kinds: Sequence[Kind]) -> list[bool]:
    """Whether each message answers nothing, nor any later one, that stands before it."""
    calls: defaultdict[str, list[int]] = defaultdict(list)
    latest: dict[str, int] = {}
    spoke = 0
    answers_to = list(range(len(history)))
    for place, message in enumerate(history):
        for part in message.parts:
            if (asked := _asked(part)) is not None:
                calls[asked].append(place)
                latest[asked] = place
            elif (answered := _answered(part)) is not None:
                # The latest open one: a call that was never answered must not take the results of later ones
                # with the same name. A result without a call goes with what the model said last.
                call = calls[answered].pop() if calls[answered] else latest.get(answered, spoke)
                answers_to[place] = min(answers_to[place], call)
        if kinds[place] is Kind.MODEL:
            spoke = place
    found = [False] * len(history)
    earliest = len(history)
    for place in reversed(range(len(history))):
        earliest = min(earliest, answers_to[place])
        found[place] = earliest >= place
    return found


def answers_itself(messages: Sequence[Message]) -> bool:
    """Whether every result in some messages answers a call in them, whatever stands before them."""
    asked: Counter[str] = Counter()
    for message in messages:
        for part in message.parts:
            if (call := _asked(part)) is not None:
                asked[call] += 1
            elif (answered := _answered(part)) is not None:
                if not asked[answered]:
                    return False
                asked[answered] -= 1
    return True


def is_system(message: Message) -> bool:
    """Whether a message stays wherever it stands: it is the developer's, and no part of any turn."""
    return message.role in _SYSTEM_ROLES or any(
        isinstance(part, Opaque) and part.kind == _MORE_TOOLS for part in message.parts
    )


def kind_of(message: Message) -> Kind:
    """What a message is, of those that are no system messages."""
    if message.parts and all(_answered(part) is not None for part in message.parts):
        return Kind.RESULTS
    return Kind.QUESTION if message.role == "user" else Kind.MODEL


def _asked(part: Part) -> str | None:
    """What the result of a call is known by: its id, or its name where the format has no ids."""
    match part:
        case ToolCall():
            return part.id or part.name
        case Opaque() if part.kind.endswith(_CALL_ENDINGS):
            return part.kind.rpartition("_")[0]
        case _:
            return None


def _answered(part: Part) -> str | None:
    """What the call of a result is known by."""
    match part:
        case ToolResult():
            return part.id or part.name
        case Opaque() if part.kind.endswith(_ANSWER_ENDINGS):
            return part.kind.rpartition("_")[0].removesuffix("_call")
        case _:
            return None


def _check(messages: Sequence[Message], tokens: Sequence[int], token_budget: int, max_turns: int) -> None:
    if len(messages) != len(tokens):
        raise BadOption(f"tokens has one number for each message: {len(messages)}, not {len(tokens)}")
    if not _is_whole_number(max_turns, at_least=1):
        raise BadOption(f"max_turns is a number of turns, 1 or more, not {max_turns!r}", path=("max_turns",))
    if not _is_whole_number(token_budget, at_least=0):
        raise BadOption(
            f"token_budget is a number of tokens, 0 or more, not {token_budget!r}", path=("token_budget",)
        )


def _is_whole_number(value: object, *, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def _exceeded(messages: Sequence[Message], tokens: Sequence[int], eviction: Eviction) -> BudgetExceeded:
    system = sum(tokens[place] for place, message in enumerate(messages) if is_system(message))
    history = eviction.tokens_after - system
    return BudgetExceeded(
        f"the history does not fit: its budget is {eviction.token_budget} tokens, and what may not go has "
        f"{eviction.tokens_after}",
        "give it a larger budget or shorten these",
        limit_tokens=eviction.token_budget,
        tokens=eviction.tokens_after,
        sections=(
            SectionSize("system", Priority.REQUIRED, system, system),
            SectionSize("history", Priority.HIGH, eviction.tokens_before - system, history),
        ),
    )

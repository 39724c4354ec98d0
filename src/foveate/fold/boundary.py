"""Where a history is cut into a head that is folded and a tail that stays as it came.

A cut stands before a question, or before a step: where the model begins to speak, so that one long turn of
hundreds of steps can be cut as well. It never stands between a call and its result, however late that comes,
nor between a thought and what it led to.

Of the head, two things stay: what the developer says (system messages), wherever it stands, and, where the head
ends inside a turn, the question of that turn, so that the model goes on from what it was asked. That is told by
the head alone: a summary is made without this question, so it must stay whoever speaks next. And what stands
with the provider stays: what it has folded and sealed, and results of calls that it stores.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, dropwhile

from foveate.budget.eviction import Kind, is_system, kind_of, seams
from foveate.errors import BadOption
from foveate.fold.outlines import COMPACTION, without_words
from foveate.values import Message, Opaque, Part, Request, Text, ToolCall, ToolResult
from foveate.wire.body import as_text, record

COMPACT_AT_PCT = 0.75
TAIL_KEEP_TOKENS = 20_000
MIN_TURNS_BETWEEN = 4


def trigger_tokens(window_tokens: int, output_reserve: int, compact_at_pct: float = COMPACT_AT_PCT) -> int:
    """How many tokens a request must have for its head to be folded: a share of what the answer leaves.

    Raises:
        BadOption: a share that is not between 0 and 1.
    """
    if not 0 < compact_at_pct <= 1:
        raise BadOption(
            f"compact_at_pct is a share, more than 0 and at most 1, not {compact_at_pct!r}",
            path=("compact_at_pct",),
        )
    return int(max(window_tokens - output_reserve, 0) * compact_at_pct)


def triggers(
    tokens: int,
    *,
    trigger_tokens: int,
    turns_since_fold: int | None = None,
    min_turns_between: int = MIN_TURNS_BETWEEN,
) -> bool:
    """Whether a request of so many tokens, as it is sent, is one to fold.

    `turns_since_fold` is how often the model has spoken since this session was last folded, None where it never
    was. A fold that made little room must not be repeated at each step.
    """
    is_rested = turns_since_fold is None or turns_since_fold >= min_turns_between
    return tokens >= trigger_tokens and is_rested


def boundary(
    messages: Sequence[Message],
    tokens: Sequence[int],
    *,
    tail_keep_tokens: int = TAIL_KEEP_TOKENS,
    trigger_tokens: int,
    beyond: int = 0,
) -> int | None:
    """How many messages the head has; None where there is no place to cut.

    `tokens` are those of each message. The tail keeps at least `tail_keep_tokens`, or half of what triggers
    where that is less, and is the shortest that does. Where a step is so long that this would be more than half
    of what triggers, the tail begins after that step. `beyond` is how many messages are folded already: only
    more than these make a new fold.

    Raises:
        BadOption: not one count for each message.
    """
    if len(messages) != len(tokens):
        raise BadOption(f"tokens has one number for each message: {len(messages)}, not {len(tokens)}")
    history = History(messages)
    later = [cut for cut in history.cuts() if cut > beyond]
    # Of what a cut folds, a later one folds all.
    cuts = list(dropwhile(lambda cut: not history.folded(cut, beyond=beyond), later))
    half = trigger_tokens // 2
    keep_tokens = min(tail_keep_tokens, half)
    before = [0, *accumulate(tokens)]
    tails = {cut: before[-1] - before[cut] for cut in cuts}
    long_enough = [cut for cut in cuts if tails[cut] >= keep_tokens]
    if not long_enough:
        return None
    latest = long_enough[-1]
    shorter = cuts[len(long_enough) :]
    return shorter[0] if shorter and tails[latest] > half else latest


def continues_stored(request: Request) -> bool:
    """Whether turns that the provider stores come before the messages of a request.

    Nothing of such a request may be folded or left out: what it answers is not there to be seen.
    """
    return request.continues_stored


def compacted_text(part: Part) -> str:
    """The summary that a provider has made of all before `part`, as far as it can be read."""
    if not isinstance(part, Opaque) or part.kind != COMPACTION:
        return ""
    return as_text(record(part.raw).get("content"))


def _is_sealed(part: Part) -> bool:
    return isinstance(part, Opaque) and part.kind == COMPACTION and not compacted_text(part)


def _spoken(messages: Sequence[Message]) -> list[int]:
    """The places of all messages that are part of a turn.

    The developer's are not, nor what a provider has folded and sealed. Nor are results before the model has
    said anything: the provider stores their calls, and misses them.
    """
    found: list[int] = []
    has_spoken = False
    for place, message in enumerate(messages):
        if is_system(message) or (message.parts and all(map(_is_sealed, message.parts))):
            continue
        kind = kind_of(message)
        has_spoken = has_spoken or kind is Kind.MODEL
        if has_spoken or kind is not Kind.RESULTS:
            found.append(place)
    return found


class History:
    """A conversation, as far as cuts look at it; all places are places in the list of its messages."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._spoken = _spoken(messages)
        history = [messages[place] for place in self._spoken]
        self._kinds = [kind_of(message) for message in history]
        self._is_seam = seams(history, self._kinds)

    @property
    def spoken(self) -> Sequence[int]:
        """All that are part of a turn: no system messages, and nothing that only the provider understands."""
        return self._spoken

    def cuts(self) -> list[int]:
        """Where a tail may begin."""
        return [self._spoken[number] for number in range(1, len(self._spoken)) if self._is_cut(number)]

    def is_cut(self, place: int) -> bool:
        """Whether a tail may begin there; system messages before its first word belong to it."""
        return 0 < self._number(place) < len(self._spoken) and self._is_cut(self._number(place))

    def kept(self, cut: int) -> tuple[int, ...]:
        """What stays of the head: the question of the turn that is under way at its end.

        Where the model had the last word, no turn is: only a question can follow.
        """
        number = self._number(cut)
        if not number or self._kinds[number - 1] is Kind.MODEL:
            return ()
        last = next((other for other in reversed(range(number)) if self._is_question(other)), None)
        return () if last is None else tuple(self._spoken[other] for other in self._run(last))

    def folded(self, cut: int, *, beyond: int = 0) -> tuple[int, ...]:
        """What a fold of the head replaces, of what one of the first `beyond` messages has not replaced."""
        gone = self._replaced(cut)
        already = set(self._replaced(beyond)) if beyond else set()
        return tuple(place for place in gone if place not in already)

    def by_model(self, place: int) -> bool:
        """Whether the first from `place` on that is no system message is something that the model says."""
        number = self._number(place)
        return number < len(self._kinds) and self._kinds[number] is Kind.MODEL

    def follows_user(self, place: int) -> bool:
        """Whether the last before `place` that is no system message is the user's, or a tool's."""
        number = self._number(place)
        return number > 0 and self._kinds[number - 1] is not Kind.MODEL

    def ends_with(self, cut: int) -> Kind:
        """What the head ends with; a question that answers calls as well counts as their results."""
        number = self._number(cut) - 1
        if self._kinds[number] is Kind.QUESTION and not self._is_seam[number]:
            return Kind.RESULTS
        return self._kinds[number]

    def last_turn(self) -> int:
        """Where the last turn begins: with the last question, or with the first message where there is none."""
        asked = (number for number in reversed(range(len(self._spoken))) if self._is_question(number))
        return self._spoken[self._run(next(asked, 0)).start] if self._spoken else 0

    def _run(self, last: int) -> range:
        """The questions in a row of which `last` is the last."""
        first = last
        while first and self._is_question(first - 1):
            first -= 1
        return range(first, last + 1)

    def _replaced(self, cut: int) -> tuple[int, ...]:
        kept = self.kept(cut)
        return tuple(place for place in self._spoken if place < cut and place not in kept)

    def _is_cut(self, number: int) -> bool:
        if self._kinds[number] is Kind.QUESTION:
            return self._is_question(number) and not self._is_question(number - 1)
        # What the model says in a row stays together: a call may not be sent without the thought it came from.
        begins = self._kinds[number] is Kind.MODEL and self._kinds[number - 1] is not Kind.MODEL
        return begins and self._is_seam[number]

    def _is_question(self, number: int) -> bool:
        return self._kinds[number] is Kind.QUESTION and self._is_seam[number]

    def _number(self, place: int) -> int:
        """Which of the spoken messages is the first from `place` on."""
        return bisect_left(self._spoken, place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What has to be known of a head to tell what may follow it; none of its text.

    `spoken` are the places of all that are part of a turn, `question` those of the question that is under way
    at its end. `bridge` stands for it before a tail: its calls and results, and who spoke last.
    """

    spoken: tuple[int, ...]
    question: tuple[int, ...]
    bridge: tuple[Message, ...]

    def before(self, tail: Sequence[Message]) -> "Junction | None":
        """What a fold of the head replaces before `tail`; None where that cannot follow it."""
        history, cut = History([*self.bridge, *tail]), len(self.bridge)
        if not history.is_cut(cut):
            return None
        replaced = tuple(place for place in self.spoken if place not in self.question)
        if not replaced:
            return None
        return Junction(kept=self.question, replaced=replaced, by_model=history.by_model(cut))


@dataclass(frozen=True, slots=True, kw_only=True)
class Junction:
    """Where a head and a tail meet: what stays of the head, what is replaced, and whether the model goes on."""

    kept: tuple[int, ...]
    replaced: tuple[int, ...]
    by_model: bool


def head_of(messages: Sequence[Message]) -> Head:
    """What has to be known of a head that is made of `messages`."""
    cut = len(messages)
    history = History(messages)
    spoken = tuple(history.spoken)
    if not spoken:
        return Head(spoken=(), question=(), bridge=())
    calls = tuple(
        without_words(part) for place in spoken for part in messages[place].parts if _calls_or_answers(part)
    )
    said = Message(role="assistant", parts=calls)
    return Head(spoken=spoken, question=history.kept(cut), bridge=(said, _LAST[history.ends_with(cut)]))


_LAST = {
    Kind.QUESTION: Message(role="user", parts=(Text(""),)),
    Kind.MODEL: Message(role="assistant", parts=(Text(""),)),
    Kind.RESULTS: Message(role="tool", parts=(ToolResult(parts=(), name="what the head ended with"),)),
}


def _calls_or_answers(part: Part) -> bool:
    is_unknown = isinstance(part, Opaque) and part.kind != COMPACTION
    return is_unknown or isinstance(part, ToolCall | ToolResult)

"""The first difference between the prefixes of two requests: what moved, came, went, or says something else."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from foveate.cache import fields
from foveate.cache.causes import Cause, Difference, Side, parameter_changed, reworded_block, side
from foveate.cache.prompts import Piece
from foveate.cache.remembered import Remembered, messages_of
from foveate.values import Area
from foveate.wire.body import compact, value

_THOUGHTS = frozenset(
    ("thinking", "redacted_thinking", "reasoning", "reasoning_content", "reasoning_details", "reasoningContent")
)
# A summary of what was folded is a pair of messages, with a note or two around it.
_MOST_SUMMARY_MESSAGES = 4
# A message that stands in a request many times (`continue`) is looked for in a few of its places.
_MOST_ANCHORS = 8


def first_difference(previous: Remembered, current: Remembered) -> Difference | None:
    """Where `current` no longer begins as `previous`; None where it goes on from it, or stops short of it."""
    parameter = parameter_changed(previous, current)
    at = _first_other_piece(previous.prompt.pieces, current.prompt.pieces)
    if parameter is not None and (at is None or parameter.at <= at):
        return parameter
    if at is None:
        return None
    ours, theirs = previous.prompt.pieces[at:], current.prompt.pieces[at:]
    areas = {pieces[0].area for pieces in (ours, theirs) if pieces}
    found = _Compared(previous, current, at)
    if Area.TOOLS in areas:
        return found.tools()
    if Area.SYSTEM in areas:
        return found.system()
    return found.messages()


def _first_other_piece(previous: Sequence[Piece], current: Sequence[Piece]) -> int | None:
    for at, (one, other) in enumerate(zip(previous, current, strict=False)):
        if one.digest != other.digest or one.area != other.area:
            return at
    return None


class _Compared:
    """Two requests and the first piece in which they differ."""

    def __init__(self, previous: Remembered, current: Remembered, at: int) -> None:
        self.previous = previous
        self.current = current
        self.at = at

    def tools(self) -> Difference:
        """A tool that moved, came, went or changed."""
        before, after = _area(self.previous, Area.TOOLS), _area(self.current, Area.TOOLS)
        digests = _digests(self.previous, before), _digests(self.current, after)
        if Counter(digests[0]) == Counter(digests[1]):
            return self._reordered(digests[0], digests[1])
        names = digests
        if self.previous.bodies is not None and self.current.bodies is not None:
            names = _names(self.previous.bodies, before), _names(self.current.bodies, after)
        was = names[0][self.at] if self.at < len(before) else None
        now = names[1][self.at] if self.at < len(after) else None
        if was is not None and was == now:
            return reworded_block(self.previous, self.current, self.at, self.at)
        is_gone = was is not None and (now is None or names[0].count(was) > names[1].count(was))
        is_new = now is not None and (was is None or names[1].count(now) > names[0].count(now))
        if is_gone and is_new:
            return self._in_place_of()
        if is_new:
            return self._came(Cause.TOOL_ADDED, f"the tool {self._tool(self.current, self.at)} was added")
        if is_gone:
            return self._went(Cause.TOOL_REMOVED, f"the tool {self._tool(self.previous, self.at)} was removed")
        return self._reordered(names[0], names[1])

    def _reordered(self, before: Sequence[bytes], after: Sequence[bytes]) -> Difference:
        at = self.at
        if _without(before, before[at]) == _without(after, before[at]):
            mover, old, new = self._tool(self.previous, at), at, after.index(before[at])
        elif _without(before, after[at]) == _without(after, after[at]):
            mover, old, new = self._tool(self.current, at), before.index(after[at]), at
        else:
            because = f"the tools stand in another order from tools[{at}] on"
            return self._both(Cause.TOOLS_REORDERED, because)
        return self._both(Cause.TOOLS_REORDERED, f"the tool {mover} moved from tools[{old}] to tools[{new}]")

    def _in_place_of(self) -> Difference:
        """Another tool stands where one was: the same one under a new name, or one for the other."""
        was, now = self.previous.body(self.at), self.current.body(self.at)
        if was is None or now is None:
            return reworded_block(self.previous, self.current, self.at, self.at)
        renamed = reworded_block(self.previous, self.current, self.at, self.at)
        if _is_only_renamed(was, now):
            return renamed
        went, came = self._tool(self.previous, self.at), self._tool(self.current, self.at)
        return self._both(Cause.TOOL_REMOVED, f"the tool {went} was removed, and {came} stands in its place")

    def _tool(self, found: Remembered, at: int) -> str:
        body = found.body(at)
        return f"tools[{at}]" if body is None else f"`{_name(body)}`"

    def system(self) -> Difference:
        """A block of the system prompt that came, went, moved or changed."""
        before, after = _area(self.previous, Area.SYSTEM), _area(self.current, Area.SYSTEM)
        was, now = _digests(self.previous, before), _digests(self.current, after)
        start = self.at - (before or after)[0]
        if not after:
            return self._went(Cause.BLOCK_REMOVED, "the system prompt was removed")
        if not before:
            return self._came(Cause.BLOCK_ADDED, "a system prompt was added")
        return self._blocks(was[start:], now[start:], "the system prompt")

    def _blocks(self, was: Sequence[bytes], now: Sequence[bytes], whole: str) -> Difference:
        """The blocks of one whole, from the first that differs on."""
        if now and (not was or (len(now) > len(was) and was[0] in now)):
            return self._came(Cause.BLOCK_ADDED, f"a block was added to {whole}")
        if was and (not now or (len(now) < len(was) and now[0] in was)):
            return self._went(Cause.BLOCK_REMOVED, f"a block was removed from {whole}")
        if Counter(was) == Counter(now):
            return self._both(Cause.BLOCK_MOVED, f"the blocks of {whole} stand in another order")
        return reworded_block(self.previous, self.current, self.at, self.at)

    def messages(self) -> Difference:
        """Messages that were dropped, replaced, inserted, or one that was edited."""
        before, after = _messages(self.previous), _messages(self.current)
        first = min(_message_with(before, self.at), _message_with(after, self.at))
        if before[first].start != after[first].start:  # the same blocks, divided into other messages
            return reworded_block(self.previous, self.current, self.at, self.at)
        if before[first].is_thinking:
            was, now = ([m.key for m in messages[first:] if not m.is_thinking] for messages in (before, after))
            if now[: len(was)] == was:
                because = f"the reasoning that stood at messages[{before[first].index}] was left out"
                return self._went(Cause.THINKING_REMOVED, because)
        kept, follows = _anchor([m.key for m in before], [m.key for m in after], first)
        gone, come = before[first:kept], after[first:follows]
        if kept == len(before) and follows == len(after):
            return self._nothing_in_common(before, after, first)
        if not gone:
            return self._came(Cause.MESSAGES_INSERTED, f"{_count(len(come))} inserted at messages[{first}]")
        if not come:
            return self._dropped(gone, first)
        if len(gone) > len(come) and len(come) <= _MOST_SUMMARY_MESSAGES:
            because = f"{_count(len(gone))} from messages[{first}] on replaced by {len(come)}, as by a summary"
            return self._both(Cause.MESSAGES_REPLACED, because)
        return self._edited(gone[0], come[0])

    def _dropped(self, gone: "Sequence[_Said]", first: int) -> Difference:
        if all(message.is_thinking for message in gone):
            because = f"the reasoning that stood at messages[{first}] was left out"
            return self._went(Cause.THINKING_REMOVED, because)
        is_front = not {"assistant", "model"} & set(self.previous.roles[: gone[0].index])
        place = "the front of the history" if is_front else f"its middle, from messages[{first}] on"
        return self._both(Cause.MESSAGES_DROPPED, f"{_count(len(gone))} dropped from {place}")

    def _nothing_in_common(self, before: "Sequence[_Said]", after: "Sequence[_Said]", first: int) -> Difference:
        """No later message of the one stands in the other."""
        spoken = [message.index for message in before[:first] if not message.is_instruction]
        if not spoken and min(len(before), len(after)) - first > 1:
            because = f"from messages[{first}] on this is another conversation"
            return self._both(Cause.OTHER_CONVERSATION, because)
        return self._edited(before[first], after[first])

    def _edited(self, before: "_Said", after: "_Said") -> Difference:
        """One message that is not what it was."""
        at = self.at - before.start
        was, now = [p.digest for p in before.pieces], [p.digest for p in after.pieces]
        thoughtless = [p.digest for p in before.pieces if p.kind not in _THOUGHTS]
        place = f"messages[{after.index}]"
        if thoughtless == now != was:
            return self._went(Cause.THINKING_REMOVED, f"the reasoning in {place} was left out")
        return self._blocks(was[at:], now[at:], place)

    def _both(self, cause: Cause, because: str) -> Difference:
        before, after = self._side(self.previous), self._side(self.current)
        return Difference(at=self.at, cause=cause, because=because, before=before, after=after)

    def _came(self, cause: Cause, because: str) -> Difference:
        after = self._side(self.current)
        return Difference(at=self.at, cause=cause, because=because, after=after)

    def _went(self, cause: Cause, because: str) -> Difference:
        before = self._side(self.previous)
        return Difference(at=self.at, cause=cause, because=because, before=before)

    def _side(self, found: Remembered) -> Side | None:
        return side(found, self.at) if self.at < len(found.prompt.pieces) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """One message: its number, the piece that it begins with, and who says it."""

    index: int
    start: int
    pieces: tuple[Piece, ...]
    role: str

    @property
    def key(self) -> tuple[bytes, ...]:
        return tuple(piece.digest for piece in self.pieces)

    @property
    def is_thinking(self) -> bool:
        """Whether it is nothing but reasoning, as an item of Responses is."""
        return all(piece.kind in _THOUGHTS for piece in self.pieces)

    @property
    def is_instruction(self) -> bool:
        return self.role in ("system", "developer")


def _messages(found: Remembered) -> list[_Said]:
    pieces = found.prompt.pieces
    own = messages_of(pieces)
    before = sum(piece.area is not Area.MESSAGES for piece in pieces)
    starts = accumulate((len(said) for said in own.values()), initial=before)
    return [
        _Said(index=index, start=start, pieces=said, role=found.roles[index])
        for (index, said), start in zip(own.items(), starts, strict=False)
    ]


def _message_with(messages: Sequence[_Said], at: int) -> int:
    return max(place for place, message in enumerate(messages) if message.start <= at)


def _anchor(
    before: Sequence[tuple[bytes, ...]], after: Sequence[tuple[bytes, ...]], first: int
) -> tuple[int, int]:
    """From where on the rest of `before` stands in `after` too, in both; the ends where nothing of it does."""
    places: dict[tuple[bytes, ...], list[int]] = {}
    for place in range(first, len(after)):
        places.setdefault(after[place], []).append(place)
    for last in range(len(before) - 1, first - 1, -1):
        found = places.get(before[last], ())[-_MOST_ANCHORS:]
        if found:
            runs = [_run_back(before, after, last, place, first) for place in found]
            run = max(runs)
            place = found[runs.index(run)]
            return last - run + 1, place - run + 1
    return len(before), len(after)


def _run_back(
    before: Sequence[tuple[bytes, ...]], after: Sequence[tuple[bytes, ...]], last: int, place: int, first: int
) -> int:
    """How many messages up to these two are the same."""
    most = min(last, place) - first + 1
    return next((n for n in range(most) if before[last - n] != after[place - n]), most)


def _count(messages: int) -> str:
    return "1 message was" if messages == 1 else f"{messages} messages were"


def _area(found: Remembered, area: Area) -> list[int]:
    return [at for at, piece in enumerate(found.prompt.pieces) if piece.area is area]


def _digests(found: Remembered, places: Sequence[int]) -> list[bytes]:
    return [found.prompt.pieces[at].digest for at in places]


def _names(bodies: Sequence[bytes], places: Sequence[int]) -> list[bytes]:
    return [_name(bodies[at]).encode("utf-8", "replace") for at in places]


def _name(tool: bytes) -> str:
    return fields.tool_name(value(tool))


def _without(found: Sequence[bytes], left_out: bytes) -> list[bytes]:
    return [entry for entry in found if entry != left_out]


def _is_only_renamed(was: bytes, now: bytes) -> bool:
    one, other = (b'"name":' + compact(_name(said)) for said in (was, now))
    return was.replace(one, other, 1) == now

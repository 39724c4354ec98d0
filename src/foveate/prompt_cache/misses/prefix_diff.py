"""Finds the first difference between two prompt prefixes: what was moved, added, removed or changed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from foveate.formats.json_text.parse import parse_json, to_json
from foveate.model import Area
from foveate.prompt_cache.misses import field_diff
from foveate.prompt_cache.misses.causes import (
    DifferenceSide,
    MissCause,
    PrefixDifference,
    describe_changed_block,
    find_parameter_change,
    make_side,
)
from foveate.prompt_cache.misses.snapshot import RequestSnapshot, group_by_message
from foveate.prompt_cache.prompt.cached_prompt import PromptPiece

_THINKING_KINDS = frozenset(
    ("thinking", "redacted_thinking", "reasoning", "reasoning_content", "reasoning_details", "reasoningContent")
)
# A compaction's summary is a pair of messages, possibly with a note or two around it.
_MAX_SUMMARY_MESSAGES = 4
# A message that occurs many times (`continue`) is only tried at its last positions.
_MAX_ANCHORS = 8


def find_first_difference(previous: RequestSnapshot, current: RequestSnapshot) -> PrefixDifference | None:
    """The first difference of `current` from `previous`; None if it continues it, or is a prefix of it."""
    parameter = find_parameter_change(previous, current)
    at = _first_differing_piece(previous.prompt.pieces, current.prompt.pieces)
    if parameter is not None and (at is None or parameter.at <= at):
        return parameter
    if at is None:
        return None
    ours, theirs = previous.prompt.pieces[at:], current.prompt.pieces[at:]
    areas = {pieces[0].area for pieces in (ours, theirs) if pieces}
    comparison = _Comparison(previous, current, at)
    if Area.TOOLS in areas:
        return comparison.compare_tools()
    if Area.SYSTEM in areas:
        return comparison.compare_system()
    return comparison.compare_messages()


def _first_differing_piece(previous: Sequence[PromptPiece], current: Sequence[PromptPiece]) -> int | None:
    for at, (first_piece, second_piece) in enumerate(zip(previous, current, strict=False)):
        if first_piece.digest != second_piece.digest or first_piece.area != second_piece.area:
            return at
    return None


class _Comparison:
    """Two requests and the first piece in which they differ."""

    def __init__(self, previous: RequestSnapshot, current: RequestSnapshot, at: int) -> None:
        self.previous = previous
        self.current = current
        self.at = at

    def compare_tools(self) -> PrefixDifference:
        """A tool that was moved, added, removed or changed."""
        before, after = _pieces_in_area(self.previous, Area.TOOLS), _pieces_in_area(self.current, Area.TOOLS)
        digests = _digests(self.previous, before), _digests(self.current, after)
        if Counter(digests[0]) == Counter(digests[1]):
            return self._describe_reordering(digests[0], digests[1])
        names = digests
        if self.previous.contents is not None and self.current.contents is not None:
            names = _tool_names(self.previous.contents, before), _tool_names(self.current.contents, after)
        was = names[0][self.at] if self.at < len(before) else None
        now = names[1][self.at] if self.at < len(after) else None
        if was is not None and was == now:
            return describe_changed_block(self.previous, self.current, self.at, self.at)
        is_gone = was is not None and (now is None or names[0].count(was) > names[1].count(was))
        is_new = now is not None and (was is None or names[1].count(now) > names[0].count(now))
        if is_gone and is_new:
            return self._describe_replaced_tool()
        if is_new:
            return self._added(
                MissCause.TOOL_ADDED, f"the tool {self._tool_label(self.current, self.at)} was added"
            )
        if is_gone:
            return self._removed(
                MissCause.TOOL_REMOVED, f"the tool {self._tool_label(self.previous, self.at)} was removed"
            )
        return self._describe_reordering(names[0], names[1])

    def _describe_reordering(self, before: Sequence[bytes], after: Sequence[bytes]) -> PrefixDifference:
        at = self.at
        if _without(before, before[at]) == _without(after, before[at]):
            mover, old, new = self._tool_label(self.previous, at), at, after.index(before[at])
        elif _without(before, after[at]) == _without(after, after[at]):
            mover, old, new = self._tool_label(self.current, at), before.index(after[at]), at
        else:
            because = f"the tools stand in another order from tools[{at}] on"
            return self._changed(MissCause.TOOLS_REORDERED, because)
        return self._changed(
            MissCause.TOOLS_REORDERED, f"the tool {mover} moved from tools[{old}] to tools[{new}]"
        )

    def _describe_replaced_tool(self) -> PrefixDifference:
        """A different tool at the same position: either renamed, or replaced by another."""
        was, now = self.previous.content(self.at), self.current.content(self.at)
        if was is None or now is None:
            return describe_changed_block(self.previous, self.current, self.at, self.at)
        renamed = describe_changed_block(self.previous, self.current, self.at, self.at)
        if _is_only_renamed(was, now):
            return renamed
        went, came = self._tool_label(self.previous, self.at), self._tool_label(self.current, self.at)
        return self._changed(
            MissCause.TOOL_REMOVED, f"the tool {went} was removed, and {came} stands in its place"
        )

    def _tool_label(self, snapshot: RequestSnapshot, at: int) -> str:
        body = snapshot.content(at)
        return f"tools[{at}]" if body is None else f"`{_tool_name(body)}`"

    def compare_system(self) -> PrefixDifference:
        """A block of the system prompt that was added, removed, moved or changed."""
        before, after = _pieces_in_area(self.previous, Area.SYSTEM), _pieces_in_area(self.current, Area.SYSTEM)
        was, now = _digests(self.previous, before), _digests(self.current, after)
        start = self.at - (before or after)[0]
        if not after:
            return self._removed(MissCause.BLOCK_REMOVED, "the system prompt was removed")
        if not before:
            return self._added(MissCause.BLOCK_ADDED, "a system prompt was added")
        return self._compare_blocks(was[start:], now[start:], "the system prompt")

    def _compare_blocks(self, was: Sequence[bytes], now: Sequence[bytes], whole: str) -> PrefixDifference:
        """Compare two lists of blocks, starting at the first difference."""
        if now and (not was or (len(now) > len(was) and was[0] in now)):
            return self._added(MissCause.BLOCK_ADDED, f"a block was added to {whole}")
        if was and (not now or (len(now) < len(was) and now[0] in was)):
            return self._removed(MissCause.BLOCK_REMOVED, f"a block was removed from {whole}")
        if Counter(was) == Counter(now):
            return self._changed(MissCause.BLOCK_MOVED, f"the blocks of {whole} stand in another order")
        return describe_changed_block(self.previous, self.current, self.at, self.at)

    def compare_messages(self) -> PrefixDifference:
        """Messages that were dropped, replaced or inserted, or one that was edited."""
        before, after = _list_messages(self.previous), _list_messages(self.current)
        first = min(_message_index_at(before, self.at), _message_index_at(after, self.at))
        if before[first].start != after[first].start:  # the same blocks, divided differently into messages
            return describe_changed_block(self.previous, self.current, self.at, self.at)
        if before[first].is_thinking:
            was, now = ([m.key for m in messages[first:] if not m.is_thinking] for messages in (before, after))
            if now[: len(was)] == was:
                because = f"the reasoning that stood at messages[{before[first].index}] was left out"
                return self._removed(MissCause.THINKING_REMOVED, because)
        kept, follows = _find_common_tail([m.key for m in before], [m.key for m in after], first)
        gone, come = before[first:kept], after[first:follows]
        if kept == len(before) and follows == len(after):
            return self._describe_unrelated(before, after, first)
        if not gone:
            return self._added(
                MissCause.MESSAGES_INSERTED, f"{_count_phrase(len(come))} inserted at messages[{first}]"
            )
        if not come:
            return self._describe_dropped(gone, first)
        if len(gone) > len(come) and len(come) <= _MAX_SUMMARY_MESSAGES:
            because = (
                f"{_count_phrase(len(gone))} from messages[{first}] on replaced by {len(come)}, as by a summary"
            )
            return self._changed(MissCause.MESSAGES_REPLACED, because)
        return self._describe_edited(gone[0], come[0])

    def _describe_dropped(self, gone: "Sequence[_SnapshotMessage]", first: int) -> PrefixDifference:
        if all(message.is_thinking for message in gone):
            because = f"the reasoning that stood at messages[{first}] was left out"
            return self._removed(MissCause.THINKING_REMOVED, because)
        is_front = not {"assistant", "model"} & set(self.previous.roles[: gone[0].index])
        place = "the front of the history" if is_front else f"its middle, from messages[{first}] on"
        return self._changed(MissCause.MESSAGES_DROPPED, f"{_count_phrase(len(gone))} dropped from {place}")

    def _describe_unrelated(
        self, before: "Sequence[_SnapshotMessage]", after: "Sequence[_SnapshotMessage]", first: int
    ) -> PrefixDifference:
        """The case that no later message of one request occurs in the other."""
        conversation = [message.index for message in before[:first] if not message.is_instruction]
        if not conversation and min(len(before), len(after)) - first > 1:
            because = f"from messages[{first}] on this is another conversation"
            return self._changed(MissCause.OTHER_CONVERSATION, because)
        return self._describe_edited(before[first], after[first])

    def _describe_edited(self, before: "_SnapshotMessage", after: "_SnapshotMessage") -> PrefixDifference:
        at = self.at - before.start
        was, now = [p.digest for p in before.pieces], [p.digest for p in after.pieces]
        without_thinking = [p.digest for p in before.pieces if p.kind not in _THINKING_KINDS]
        place = f"messages[{after.index}]"
        if without_thinking == now != was:
            return self._removed(MissCause.THINKING_REMOVED, f"the reasoning in {place} was left out")
        return self._compare_blocks(was[at:], now[at:], place)

    def _changed(self, cause: MissCause, because: str) -> PrefixDifference:
        before, after = self._side(self.previous), self._side(self.current)
        return PrefixDifference(at=self.at, cause=cause, because=because, before=before, after=after)

    def _added(self, cause: MissCause, because: str) -> PrefixDifference:
        after = self._side(self.current)
        return PrefixDifference(at=self.at, cause=cause, because=because, after=after)

    def _removed(self, cause: MissCause, because: str) -> PrefixDifference:
        before = self._side(self.previous)
        return PrefixDifference(at=self.at, cause=cause, because=because, before=before)

    def _side(self, snapshot: RequestSnapshot) -> DifferenceSide | None:
        return make_side(snapshot, self.at) if self.at < len(snapshot.prompt.pieces) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _SnapshotMessage:
    """One message: its index, its first piece, and its role."""

    index: int
    start: int
    pieces: tuple[PromptPiece, ...]
    role: str

    @property
    def key(self) -> tuple[bytes, ...]:
        return tuple(piece.digest for piece in self.pieces)

    @property
    def is_thinking(self) -> bool:
        """Whether it consists of reasoning only, as an item of the Responses API can."""
        return all(piece.kind in _THINKING_KINDS for piece in self.pieces)

    @property
    def is_instruction(self) -> bool:
        return self.role in ("system", "developer")


def _list_messages(snapshot: RequestSnapshot) -> list[_SnapshotMessage]:
    pieces = snapshot.prompt.pieces
    by_message = group_by_message(pieces)
    before = sum(piece.area is not Area.MESSAGES for piece in pieces)
    starts = accumulate((len(message_pieces) for message_pieces in by_message.values()), initial=before)
    return [
        _SnapshotMessage(index=index, start=start, pieces=message_pieces, role=snapshot.roles[index])
        for (index, message_pieces), start in zip(by_message.items(), starts, strict=False)
    ]


def _message_index_at(messages: Sequence[_SnapshotMessage], at: int) -> int:
    return max(place for place, message in enumerate(messages) if message.start <= at)


def _find_common_tail(
    before: Sequence[tuple[bytes, ...]], after: Sequence[tuple[bytes, ...]], first: int
) -> tuple[int, int]:
    """The positions in `before` and `after` from which on both are the same; their ends if nothing is."""
    places: dict[tuple[bytes, ...], list[int]] = {}
    for place in range(first, len(after)):
        places.setdefault(after[place], []).append(place)
    for last in range(len(before) - 1, first - 1, -1):
        found = places.get(before[last], ())[-_MAX_ANCHORS:]
        if found:
            runs = [_count_common_before(before, after, last, place, first) for place in found]
            run = max(runs)
            place = found[runs.index(run)]
            return last - run + 1, place - run + 1
    return len(before), len(after)


def _count_common_before(
    before: Sequence[tuple[bytes, ...]], after: Sequence[tuple[bytes, ...]], last: int, place: int, first: int
) -> int:
    """The number of equal messages up to these two."""
    limit = min(last, place) - first + 1
    return next((n for n in range(limit) if before[last - n] != after[place - n]), limit)


def _count_phrase(messages: int) -> str:
    return "1 message was" if messages == 1 else f"{messages} messages were"


def _pieces_in_area(snapshot: RequestSnapshot, area: Area) -> list[int]:
    return [at for at, piece in enumerate(snapshot.prompt.pieces) if piece.area is area]


def _digests(snapshot: RequestSnapshot, places: Sequence[int]) -> list[bytes]:
    return [snapshot.prompt.pieces[at].digest for at in places]


def _tool_names(bodies: Sequence[bytes], places: Sequence[int]) -> list[bytes]:
    return [_tool_name(bodies[at]).encode("utf-8", "replace") for at in places]


def _tool_name(tool: bytes) -> str:
    return field_diff.tool_name(parse_json(tool))


def _without(found: Sequence[bytes], excluded: bytes) -> list[bytes]:
    return [entry for entry in found if entry != excluded]


def _is_only_renamed(was: bytes, now: bytes) -> bool:
    old_name, new_name = (b'"name":' + to_json(_tool_name(tool)) for tool in (was, now))
    return was.replace(old_name, new_name, 1) == now

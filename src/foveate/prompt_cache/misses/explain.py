"""Explains why a request did not read what the previous one left in the provider's cache, and what that cost.

Both are run through the cache simulator: what the first leaves there is what the second could have read. The
reason that it did not is the first difference between them (something moved, added, removed or changed), a
breakpoint, the time between them, or the size of the prefix.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate

from foveate.formats.json_text.parse import parse_json, to_json
from foveate.model import Area, CacheUsage, Place, Ttl
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
from foveate.prompt_cache.prompt.cached_prompt import PromptPiece, prefix_keys
from foveate.prompt_cache.rules import CacheRules, CachingMode
from foveate.prompt_cache.simulator import SimulatedCache

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
    comparison = _SnapshotComparer(previous, current, at)
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


class _SnapshotComparer:
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
        old_name = names[0][self.at] if self.at < len(before) else None
        new_name = names[1][self.at] if self.at < len(after) else None
        if old_name is not None and old_name == new_name:
            return describe_changed_block(self.previous, self.current, self.at, self.at)
        is_gone = old_name is not None and (
            new_name is None or names[0].count(old_name) > names[1].count(old_name)
        )
        is_new = new_name is not None and (
            old_name is None or names[1].count(new_name) > names[0].count(new_name)
        )
        if is_gone and is_new:
            return self._describe_replaced_tool()
        if is_new:
            return self._make_added(
                MissCause.TOOL_ADDED, f"the tool {self._tool_label(self.current, self.at)} was added"
            )
        if is_gone:
            return self._make_removed(
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
            because = f"the order of the tools changed from tools[{at}] on"
            return self._make_changed(MissCause.TOOLS_REORDERED, because)
        return self._make_changed(
            MissCause.TOOLS_REORDERED, f"the tool {mover} moved from tools[{old}] to tools[{new}]"
        )

    def _describe_replaced_tool(self) -> PrefixDifference:
        """A different tool at the same position: either renamed, or replaced by another."""
        old_content, new_content = self.previous.content(self.at), self.current.content(self.at)
        if old_content is None or new_content is None:
            return describe_changed_block(self.previous, self.current, self.at, self.at)
        renamed = describe_changed_block(self.previous, self.current, self.at, self.at)
        if _is_only_renamed(old_content, new_content):
            return renamed
        old_tool, new_tool = self._tool_label(self.previous, self.at), self._tool_label(self.current, self.at)
        return self._make_changed(MissCause.TOOL_REMOVED, f"the tool {old_tool} was replaced by {new_tool}")

    def _tool_label(self, snapshot: RequestSnapshot, at: int) -> str:
        body = snapshot.content(at)
        return f"tools[{at}]" if body is None else f"`{_tool_name(body)}`"

    def compare_system(self) -> PrefixDifference:
        """A block of the system prompt that was added, removed, moved or changed."""
        before, after = _pieces_in_area(self.previous, Area.SYSTEM), _pieces_in_area(self.current, Area.SYSTEM)
        old_digests, new_digests = _digests(self.previous, before), _digests(self.current, after)
        start = self.at - (before or after)[0]
        if not after:
            return self._make_removed(MissCause.BLOCK_REMOVED, "the system prompt was removed")
        if not before:
            return self._make_added(MissCause.BLOCK_ADDED, "a system prompt was added")
        return self._compare_blocks(old_digests[start:], new_digests[start:], "the system prompt")

    def _compare_blocks(
        self, old_blocks: Sequence[bytes], new_blocks: Sequence[bytes], owner: str
    ) -> PrefixDifference:
        if new_blocks and (
            not old_blocks or (len(new_blocks) > len(old_blocks) and old_blocks[0] in new_blocks)
        ):
            return self._make_added(MissCause.BLOCK_ADDED, f"a block was added to {owner}")
        if old_blocks and (
            not new_blocks or (len(new_blocks) < len(old_blocks) and new_blocks[0] in old_blocks)
        ):
            return self._make_removed(MissCause.BLOCK_REMOVED, f"a block was removed from {owner}")
        if Counter(old_blocks) == Counter(new_blocks):
            return self._make_changed(MissCause.BLOCK_MOVED, f"the order of the blocks in {owner} changed")
        return describe_changed_block(self.previous, self.current, self.at, self.at)

    def compare_messages(self) -> PrefixDifference:
        """Messages that were dropped, replaced or inserted, or one that was edited."""
        before, after = _list_messages(self.previous), _list_messages(self.current)
        first = min(_message_index_at(before, self.at), _message_index_at(after, self.at))
        if before[first].start != after[first].start:  # the same blocks, divided differently into messages
            return describe_changed_block(self.previous, self.current, self.at, self.at)
        if before[first].is_thinking:
            old_keys, new_keys = (
                [m.key for m in messages[first:] if not m.is_thinking] for messages in (before, after)
            )
            if new_keys[: len(old_keys)] == old_keys:
                because = f"the thinking at messages[{before[first].index}] was removed"
                return self._make_removed(MissCause.THINKING_REMOVED, because)
        old_end, new_end = _find_common_tail([m.key for m in before], [m.key for m in after], first)
        old_messages, new_messages = before[first:old_end], after[first:new_end]
        if old_end == len(before) and new_end == len(after):
            return self._describe_unrelated(before, after, first)
        if not old_messages:
            return self._make_added(
                MissCause.MESSAGES_INSERTED, f"{_count_phrase(len(new_messages))} inserted at messages[{first}]"
            )
        if not new_messages:
            return self._describe_dropped(old_messages, first)
        if len(old_messages) > len(new_messages) and len(new_messages) <= _MAX_SUMMARY_MESSAGES:
            because = (
                f"{_count_phrase(len(old_messages))} replaced by {len(new_messages)} from messages[{first}] on,"
                " for example by a summary"
            )
            return self._make_changed(MissCause.MESSAGES_REPLACED, because)
        return self._describe_edited(old_messages[0], new_messages[0])

    def _describe_dropped(self, dropped_messages: "Sequence[_SnapshotMessage]", first: int) -> PrefixDifference:
        if all(message.is_thinking for message in dropped_messages):
            because = f"the thinking at messages[{first}] was removed"
            return self._make_removed(MissCause.THINKING_REMOVED, because)
        is_front = not {"assistant", "model"} & set(self.previous.roles[: dropped_messages[0].index])
        place = "the start of the history" if is_front else f"its middle, from messages[{first}] on"
        return self._make_changed(
            MissCause.MESSAGES_DROPPED, f"{_count_phrase(len(dropped_messages))} removed from {place}"
        )

    def _describe_unrelated(
        self, before: "Sequence[_SnapshotMessage]", after: "Sequence[_SnapshotMessage]", first: int
    ) -> PrefixDifference:
        """The case that no later message of one request occurs in the other."""
        conversation = [message.index for message in before[:first] if not message.is_instruction]
        if not conversation and min(len(before), len(after)) - first > 1:
            because = f"from messages[{first}] on, this is another conversation"
            return self._make_changed(MissCause.OTHER_CONVERSATION, because)
        return self._describe_edited(before[first], after[first])

    def _describe_edited(self, before: "_SnapshotMessage", after: "_SnapshotMessage") -> PrefixDifference:
        at = self.at - before.start
        old_digests, new_digests = [p.digest for p in before.pieces], [p.digest for p in after.pieces]
        without_thinking = [p.digest for p in before.pieces if p.kind not in _THINKING_KINDS]
        place = f"messages[{after.index}]"
        if without_thinking == new_digests != old_digests:
            return self._make_removed(MissCause.THINKING_REMOVED, f"the thinking in {place} was removed")
        return self._compare_blocks(old_digests[at:], new_digests[at:], place)

    def _make_changed(self, cause: MissCause, because: str) -> PrefixDifference:
        before, after = self._side(self.previous), self._side(self.current)
        return PrefixDifference(at=self.at, cause=cause, because=because, before=before, after=after)

    def _make_added(self, cause: MissCause, because: str) -> PrefixDifference:
        after = self._side(self.current)
        return PrefixDifference(at=self.at, cause=cause, because=because, after=after)

    def _make_removed(self, cause: MissCause, because: str) -> PrefixDifference:
        before = self._side(self.previous)
        return PrefixDifference(at=self.at, cause=cause, because=because, before=before)

    def _side(self, snapshot: RequestSnapshot) -> DifferenceSide | None:
        return make_side(snapshot, self.at) if self.at < len(snapshot.prompt.pieces) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _SnapshotMessage:
    index: int
    start: int
    pieces: tuple[PromptPiece, ...]
    role: str

    @property
    def key(self) -> tuple[bytes, ...]:
        return tuple(piece.digest for piece in self.pieces)

    @property
    def is_thinking(self) -> bool:
        """Return whether it consists of reasoning only, as an item of the Responses API can."""
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
        anchors = places.get(before[last], ())[-_MAX_ANCHORS:]
        if anchors:
            runs = [_count_common_before(before, after, last, place, first) for place in anchors]
            run = max(runs)
            place = anchors[runs.index(run)]
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


def _without(digests: Sequence[bytes], excluded: bytes) -> list[bytes]:
    return [entry for entry in digests if entry != excluded]


def _is_only_renamed(old_tool: bytes, new_tool: bytes) -> bool:
    old_name, new_name = (b'"name":' + to_json(_tool_name(tool)) for tool in (old_tool, new_tool))
    return old_tool.replace(old_name, new_name, 1) == new_tool


# Token counts are estimates for some models: if this share was read according to the usage, nothing was
# missed.
_MIN_READ_SHARE = 0.8
_UNEXPLAINED = (
    "the prefix is unchanged and should have been read; the provider may have evicted it early, handled the "
    "request on another server, or not finished writing it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMiss:
    """The cached prefix could be read. `remarks` are changes that did no harm, with the reason."""

    kept_tokens: int
    read_tokens: int
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedMiss:
    """Reason and cost of a cache miss.

    `kept_tokens` is what the previous request left in the cache, `read_tokens` what this one could read of it
    (or did, according to its usage), `lost_tokens` what was paid for again. `lost_uncached_tokens` is the
    extra cost, in uncached input tokens; `lost_dollars` is None without a price. `same_tokens` is the length
    of the common prefix. `also` are further reasons, each of which would have been sufficient.
    """

    cause: MissCause
    because: str
    place: Place | None
    field: str
    before: DifferenceSide | None
    after: DifferenceSide | None
    same_tokens: int
    kept_tokens: int
    read_tokens: int
    lost_tokens: int
    lost_uncached_tokens: int
    lost_dollars: Decimal | None
    also: tuple[str, ...] = ()


def explain_miss(
    previous: RequestSnapshot,
    current: RequestSnapshot,
    rules: CacheRules,
    *,
    gap_seconds: float | None = None,
    usage: CacheUsage | None = None,
    price_per_token: Decimal | None = None,
) -> ExplainedMiss | NoMiss:
    """Explain why `current` could not read what `previous` left in the cache, or state that it could.

    `rules` are those of the current model, `gap_seconds` is the time between the starts of both requests,
    `usage` what the provider reported for the current one, `price_per_token` the dollars per uncached input
    token.
    """
    return _MissAnalysis(previous, current, rules, gap_seconds, usage, price_per_token).conclude()


class _MissAnalysis:
    def __init__(
        self,
        previous: RequestSnapshot,
        current: RequestSnapshot,
        rules: CacheRules,
        gap_seconds: float | None,
        usage: CacheUsage | None,
        price_per_token: Decimal | None,
    ) -> None:
        self.previous = previous
        self.current = current
        self.rules = rules
        self.gap_seconds = gap_seconds
        self.usage = usage
        self.price_per_token = price_per_token
        cache = SimulatedCache().serve(previous.prompt, rules, at=0.0).cache
        cached = [at for at, key in enumerate(prefix_keys(previous.prompt)) if key in cache.entries]
        # Pieces are compared instead of tokens, since the tokens of the first piece may be rounded
        # differently later.
        self.cached_pieces = cached[-1] + 1 if cached else 0
        self.readable_pieces = cache.serve(current.prompt, rules, at=0.0).read_pieces
        later = cache.serve(current.prompt, rules, at=gap_seconds or 0.0)
        self.unexpired_pieces = later.read_pieces
        kept_tokens = sum(piece.tokens for piece in previous.prompt.pieces[: self.cached_pieces])
        # Reads are counted in steps, and cannot exceed the request.
        limit = min(kept_tokens, current.prompt.tokens)
        self.kept_tokens = limit // rules.step_tokens * rules.step_tokens
        self.unexpired_tokens = (
            self.kept_tokens if self._reads_all_cached(later.read_pieces) else later.usage.read
        )
        entries = cache.entries.values()
        self.lifetime_seconds = max(entries, key=lambda entry: entry.tokens).ttl.seconds if entries else 0

    def _reads_all_cached(self, pieces: int) -> bool:
        return 0 < self.cached_pieces <= pieces

    @property
    def read_tokens(self) -> int:
        return self.usage.read if self.usage is not None else min(self.unexpired_tokens, self.kept_tokens)

    def conclude(self) -> ExplainedMiss | NoMiss:
        difference = find_first_difference(self.previous, self.current)
        if self._was_read():
            return NoMiss(
                kept_tokens=self.kept_tokens, read_tokens=self.read_tokens, remarks=self._remarks(difference)
            )
        if difference is not None and not self.cached_pieces:
            return self._make_miss(difference, also=(self._explain_not_cached()[1],))
        if difference is not None and not self._reads_all_cached(self.readable_pieces):
            return self._make_miss(difference, also=self._further_causes(difference))
        return self._make_miss(self._explain_same_prefix())

    def _was_read(self) -> bool:
        if self.usage is not None:
            return self.usage.read >= _MIN_READ_SHARE * self.kept_tokens > 0
        return self._reads_all_cached(self.unexpired_pieces) and not self._has_different_key()

    def _has_different_key(self) -> bool:
        return self.previous.cache_key != self.current.cache_key

    def _explain_same_prefix(self) -> PrefixDifference:
        at = len(self.previous.prompt.pieces)
        if not self.cached_pieces:
            cause, because = self._explain_not_cached()
        elif self.unexpired_pieces < self.readable_pieces or self._has_expired():
            cause, because = MissCause.EXPIRED, self._describe_expiry()
        elif not self._reads_all_cached(self.readable_pieces):
            cause, because = self._explain_not_found()
        elif self._has_different_key():
            cause, because = MissCause.CACHE_KEY, self._describe_key_change()
        else:
            cause, because = MissCause.UNEXPLAINED, _UNEXPLAINED
        return PrefixDifference(at=at, cause=cause, because=because)

    def _explain_not_cached(self) -> tuple[MissCause, str]:
        rules, prompt = self.rules, self.previous.prompt
        if rules.caching is CachingMode.NONE:
            return MissCause.NOT_CACHED, f"no prompt cache is known for {prompt.model}"
        breakpoints = [at for at, piece in enumerate(prompt.pieces) if piece.breakpoint_ttl is not None]
        needs_breakpoints = rules.caching is CachingMode.BREAKPOINTS or (
            rules.caching is CachingMode.BOTH and prompt.explicit_only
        )
        if not breakpoints and needs_breakpoints:
            return (
                MissCause.BREAKPOINT_MISSING,
                "nothing was cached: the previous request has no cache breakpoint",
            )
        end = breakpoints[-1] + 1 if rules.caching is CachingMode.BREAKPOINTS else len(prompt.pieces)
        tokens = sum(piece.tokens for piece in prompt.pieces[:end])
        return MissCause.BELOW_MINIMUM, (
            f"nothing was cached: {tokens:,} tokens are below this model's minimum of {rules.minimum_tokens:,}"
        )

    def _explain_not_found(self) -> tuple[MissCause, str]:
        """Explain why no breakpoint of the current request found the entry, although the prefix is the same."""
        ours = self.current.prompt
        breakpoints = [at for at, piece in enumerate(ours.pieces) if piece.breakpoint_ttl is not None]
        if len(ours.pieces) < len(self.previous.prompt.pieces):
            because = (
                "this request is a shorter version of the previous one, and ends before the cached prefix does"
            )
            return MissCause.CUT_BACK, because
        if self.rules.caching is CachingMode.AUTOMATIC:
            return MissCause.UNEXPLAINED, _UNEXPLAINED
        if not breakpoints:
            return (
                MissCause.BREAKPOINT_MISSING,
                "this request has no cache breakpoint, and the provider reads the cache only at breakpoints",
            )
        if breakpoints[-1] < self.cached_pieces - 1:
            return (
                MissCause.BREAKPOINT_MISSING,
                "this request has no cache breakpoint at or after the end of the cached prefix",
            )
        lookback = self.rules.lookback_positions
        because = (
            f"the last cache breakpoint is more than {lookback} positions after the cached prefix, "
            "and the provider looks back no further"
            if lookback
            else "this request has no cache breakpoint at the end of the cached prefix"
        )
        return MissCause.BREAKPOINT_TOO_FAR, because

    def _has_expired(self) -> bool:
        return self.gap_seconds is not None and self.gap_seconds > self.lifetime_seconds > 0

    def _describe_expiry(self) -> str:
        gap, lifetime = _format_duration(self.gap_seconds or 0), _format_duration(self.lifetime_seconds)
        return f"the cache entry expired: it lasts {lifetime}, and the next request arrived after {gap}"

    def _describe_key_change(self) -> str:
        old_key, new_key = (snapshot.cache_key or "none" for snapshot in (self.previous, self.current))
        name = self.rules.key_parameter
        changed = f"`{name}` changed from {old_key[:40]} to {new_key[:40]}"
        return f"{changed}, so a different server, without this prefix, may have handled the request"

    def _further_causes(self, difference: PrefixDifference) -> tuple[str, ...]:
        causes = []
        if self._has_expired():
            causes.append(self._describe_expiry())
        if self._has_different_key() and difference.cause is not MissCause.MODEL:
            causes.append(self._describe_key_change())
        return tuple(causes)

    def _remarks(self, difference: PrefixDifference | None) -> tuple[str, ...]:
        if difference is not None:
            return (f"{difference.because}; this is after the end of the cached prefix",)
        ours, theirs = self.previous.raw_digests, self.current.raw_digests
        if any(a != b for a, b in zip(ours, theirs, strict=False) if a and b):
            return (
                "JSON is written differently (spaces, escapes), which does not affect the provider's cache",
            )
        return ()

    def _make_miss(self, difference: PrefixDifference, *, also: tuple[str, ...] = ()) -> ExplainedMiss:
        ours = self.current.prompt
        if difference.cause is MissCause.THINKING_REMOVED and self.rules.drops_thinking:
            also = (
                *also,
                "the provider removes the thinking of earlier turns after a new user message",
            )
        read = self.read_tokens
        if difference.cause is MissCause.CACHE_KEY and self.usage is None:
            read = 0  # another server has nothing to read
            also = (
                *also,
                "if the same server handled the request, nothing is lost; the reported usage would show it",
            )
        lost_tokens = max(0, self.kept_tokens - read)
        multiple = max(Decimal(0), self._paid_multiple() - Decimal(str(self.rules.read_price)))
        uncached = lost_tokens * multiple
        side = difference.after or difference.before
        return ExplainedMiss(
            cause=difference.cause,
            because=difference.because,
            place=None if side is None else side.place,
            field=difference.field,
            before=difference.before,
            after=difference.after,
            same_tokens=sum(piece.tokens for piece in ours.pieces[: difference.at]),
            kept_tokens=self.kept_tokens,
            read_tokens=read,
            lost_tokens=lost_tokens,
            lost_uncached_tokens=round(uncached),
            lost_dollars=None if self.price_per_token is None else uncached * self.price_per_token,
            also=also,
        )

    def _paid_multiple(self) -> Decimal:
        """The price of the lost tokens, as a multiple of the uncached price."""
        rules, prompt = self.rules, self.current.prompt
        breakpoint_ttls = [piece.breakpoint_ttl for piece in prompt.pieces if piece.breakpoint_ttl is not None]
        ttl: Ttl | None = breakpoint_ttls[-1] if breakpoint_ttls else None
        if ttl is None and rules.caching is CachingMode.BOTH and not prompt.explicit_only:
            ttl = prompt.ttl or rules.ttls[0]
        return Decimal(str(rules.write_prices.get(ttl, 1.0))) if ttl is not None else Decimal(1)


def _format_duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"

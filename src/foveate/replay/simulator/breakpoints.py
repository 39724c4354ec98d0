"""Breakpoints of recorded calls: those that clients are known to place and fixed ones, and serving calls by
them.

If breakpoints depend only on what is sent, no prompt of all pieces is needed: only a few positions near the
end matter. `serve_positions` gives the same result as `SimulatedCache.serve_with_breakpoints` on the whole
prompt.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from msgspec import structs

from foveate.model import Area, Ttl
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, is_same_run, token_ends
from foveate.prompt_cache.rules import CacheRules, CachingMode, rules_for
from foveate.prompt_cache.simulator import ServedRequest, SimulatedCache
from foveate.replay.simulator.history import HistoryNode, SimulatedPreamble

_ASSISTANT, _USER = "assistant", "user"
# Messages searched for one that accepts a breakpoint; without a limit, each call would take time in
# proportion to its history.
_MAX_MESSAGES = 64
# Before this date, the documentation counted every block as one position; counting runs as one came later.
_RUNS_ARE_ONE_SINCE = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
_MAX_CACHED_RULES = 256


class BreakpointPosition(NamedTuple):
    """A breakpoint on a piece of a message, or of the preamble if `node` is None."""

    node: HistoryNode | None
    piece: int
    ttl: Ttl


def uses_breakpoint_lookback(rules: CacheRules) -> bool:
    """Return whether cache entries depend only on a request's breakpoints and a few positions before each."""
    return rules.caching is CachingMode.NONE or (
        rules.caching is CachingMode.BREAKPOINTS and rules.lookback_positions > 0
    )


def client_positions(
    preamble: SimulatedPreamble, last_node: HistoryNode, *, preamble_ttl: Ttl, tail_ttl: Ttl
) -> list[BreakpointPosition]:
    """The breakpoints of coding agents: the ends of the system prompt, and the last assistant and user
    messages.

    In a message it is on the block that was logged last, or on the last one that accepts a breakpoint.
    """
    positions = [BreakpointPosition(None, at, preamble_ttl) for at in preamble.breakpoints]
    missing_roles = {_ASSISTANT, _USER}
    for node in _iterate_back(last_node):
        role = _ASSISTANT if node.role == _ASSISTANT else _USER
        if role in missing_roles:
            missing_roles.remove(role)
            at = client_breakpoint_piece(node)
            if at is not None:
                positions.append(BreakpointPosition(node, at, tail_ttl))
            if not missing_roles:
                break
    return positions


def fixed_positions(preamble: SimulatedPreamble, last_node: HistoryNode, ttl: Ttl) -> list[BreakpointPosition]:
    """Fixed breakpoints: the ends of the tools and of the system prompt, and the last block."""
    by_area: dict[Area, BreakpointPosition] = {}
    for at, piece in enumerate(preamble.pieces):
        if piece.accepts_breakpoint:
            by_area[piece.area] = BreakpointPosition(None, at, ttl)
    for node in _iterate_back(last_node):
        at_last = next(
            (at for at in range(len(node.pieces) - 1, -1, -1) if node.pieces[at].accepts_breakpoint), None
        )
        if at_last is not None:
            by_area[Area.MESSAGES] = BreakpointPosition(node, at_last, ttl)
            break
    return list(by_area.values())


def _iterate_back(last_node: HistoryNode) -> Iterator[HistoryNode]:
    node: HistoryNode | None = last_node
    for _ in range(_MAX_MESSAGES):
        if node is None:
            return
        yield node
        node = node.previous


def client_breakpoint_piece(node: HistoryNode) -> int | None:
    """The piece of a message on which a client places a breakpoint; None if no piece accepts one."""
    pieces = node.pieces
    last_logged = node.message.last_logged_block if node.message is not None else -1
    if 0 <= last_logged < len(pieces) and pieces[last_logged].accepts_breakpoint:
        return last_logged
    return _last_accepting_piece(node)


def _last_accepting_piece(node: HistoryNode) -> int | None:
    for number in range(len(node.pieces) - 1, -1, -1):
        if node.pieces[number].accepts_breakpoint:
            return number
    return None


def serve_positions(
    cache: SimulatedCache,
    preamble: SimulatedPreamble,
    last_node: HistoryNode,
    positions: Iterable[BreakpointPosition],
    rules: CacheRules,
    *,
    at: float,
    response_at: float,
) -> ServedRequest:
    by_place = (
        {}
        if rules.caching is CachingMode.NONE
        else {_place_of_position(position): position for position in positions}
    )
    ends = {place: _end_tokens(preamble, position) for place, position in by_place.items()}
    requested = sorted([place for place, end in ends.items() if end >= rules.minimum_tokens])
    hit = _find_hit(cache, preamble, [by_place[place] for place in requested], rules, at)
    places = requested
    # The hit may also be at a breakpoint below the minimum size, which requests no entry itself.
    if hit is not None and (hit_place := _place_of_position(hit)) not in requested:
        by_place[hit_place], ends[hit_place] = hit, _end_tokens(preamble, hit)
        places = sorted((*requested, hit_place))
    hit_index = places.index(_place_of_position(hit)) if hit is not None else -1
    return cache.apply_hit(
        [_key_at(preamble, by_place[place]) for place in places],
        [*(ends[place] for place in places), preamble.tokens + last_node.end_tokens],
        {places.index(place): by_place[place].ttl for place in requested},
        rules,
        hit=hit_index,
        at=at,
        response_at=response_at,
    )


def _find_hit(
    cache: SimulatedCache,
    preamble: SimulatedPreamble,
    requested: list[BreakpointPosition],
    rules: CacheRules,
    at: float,
) -> BreakpointPosition | None:
    """The farthest position with a readable entry, at a breakpoint or within its lookback."""
    for number in range(len(requested) - 1, -1, -1):
        hit = _look_back(
            cache, preamble, requested[number], requested[number - 1] if number else None, rules, at
        )
        if hit is not None:
            return hit
    return None


def _look_back(
    cache: SimulatedCache,
    preamble: SimulatedPreamble,
    position: BreakpointPosition,
    stop: BreakpointPosition | None,
    rules: CacheRules,
    at: float,
) -> BreakpointPosition | None:
    """Find the entry for a breakpoint after the breakpoint at `stop`, which looks back from there itself."""
    find_entry, runs, positions_left = cache.entries.find, rules.runs_are_one_position, rules.lookback_positions
    node, number, ttl = position
    pieces = node.pieces if node is not None else preamble.pieces
    while True:
        entry = find_entry(preamble.key + node.keys[number] if node is not None else preamble.keys[number])
        if entry is not None and entry.is_readable(at):
            return BreakpointPosition(node, number, ttl)
        later_piece = pieces[number]
        number -= 1
        while number < 0:
            if node is None:
                return None
            node = node.previous
            pieces = node.pieces if node is not None else preamble.pieces
            number = len(pieces) - 1
        if stop is not None and node is stop.node and number == stop.piece:
            return None
        if not (runs and is_same_run(pieces[number], later_piece)):
            positions_left -= 1
            if not positions_left:
                return None


def _place_of_position(position: BreakpointPosition) -> tuple[int, int]:
    return (position.node.depth if position.node is not None else -1), position.piece


def _key_at(preamble: SimulatedPreamble, position: BreakpointPosition) -> bytes:
    node, number, _ = position
    return preamble.keys[number] if node is None else preamble.key + node.keys[number]


def _end_tokens(preamble: SimulatedPreamble, position: BreakpointPosition) -> int:
    """The tokens up to and including a piece."""
    node, number, _ = position
    if node is None:
        return preamble.end_tokens(number)
    end = preamble.tokens + node.end_tokens
    later_pieces = node.pieces[number + 1 :]
    return end - sum([piece.tokens for piece in later_pieces]) if later_pieces else end


def rules_at(model: str, at: float) -> CacheRules:
    """The cache rules of a model at a time; today's rules if the time is unknown."""
    return _dated_rules(model, 0 < at < _RUNS_ARE_ONE_SINCE)


@lru_cache(_MAX_CACHED_RULES)
def _dated_rules(model: str, is_early: bool) -> CacheRules:
    rules = rules_for(model)
    return replace(rules, runs_are_one_position=False) if is_early else rules


def client_breakpoints(
    prompt: CachedPrompt,
    preamble: SimulatedPreamble,
    last_node: HistoryNode,
    *,
    preamble_ttl: Ttl,
    tail_ttl: Ttl,
) -> dict[int, Ttl]:
    """The same breakpoints as `client_positions`, by pieces of `prompt`."""
    breakpoints = dict.fromkeys(preamble.breakpoints, preamble_ttl)
    missing_roles = {_ASSISTANT, _USER}
    for start, node in iterate_full_nodes(prompt, last_node):
        role = _ASSISTANT if node.role == _ASSISTANT else _USER
        if role in missing_roles:
            missing_roles.remove(role)
            at = client_breakpoint_piece(node)
            if at is not None:
                breakpoints[start + at] = tail_ttl
        if not missing_roles:
            break
    return breakpoints


def with_breakpoints(prompt: CachedPrompt, breakpoints: Mapping[int, Ttl]) -> CachedPrompt:
    pieces = list(prompt.pieces)
    for at, ttl in breakpoints.items():
        pieces[at] = structs.replace(pieces[at], breakpoint_ttl=ttl)
    return replace(prompt, pieces=tuple(pieces), layout=None)


def fixed_breakpoint_pieces(
    prompt: CachedPrompt, preamble: SimulatedPreamble, *, minimum_tokens: int
) -> list[int]:
    """The same breakpoints as `fixed_positions`, by pieces of `prompt`."""
    pieces, ends = prompt.pieces, token_ends(prompt)
    last: dict[Area, int] = {}
    for at in range(len(preamble.pieces)):
        if pieces[at].accepts_breakpoint:
            last[pieces[at].area] = at
    messages_backwards = range(len(pieces) - 1, len(preamble.pieces) - 1, -1)
    last_accepting = next((at for at in messages_backwards if pieces[at].accepts_breakpoint), None)
    if last_accepting is not None:
        last[Area.MESSAGES] = last_accepting
    return sorted(at for at in last.values() if ends[at] >= minimum_tokens)


def iterate_full_nodes(prompt: CachedPrompt, last_node: HistoryNode) -> Iterator[tuple[int, HistoryNode]]:
    """The last messages that `prompt` contains in full, last one first, with the index of their first piece."""
    node: HistoryNode | None = last_node
    end = len(prompt.pieces)
    while node is not None:
        start = end - len(node.pieces)
        if node.pieces and prompt.pieces[end - 1] is not node.pieces[-1]:
            return
        yield start, node
        node, end = node.previous, start

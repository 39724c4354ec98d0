"""Breakpoints of recorded calls: those that clients are known to place, and fixed ones."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache

from msgspec import structs

from foveate.model import Area, Ttl
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, token_ends
from foveate.prompt_cache.rules import CacheRules, rules_for
from foveate.replay.simulator.history import HistoryNode, SimulatedPreamble

_ASSISTANT, _USER = "assistant", "user"
# Before this date, the documentation counted every block as one position; counting runs as one came later.
_RUNS_ARE_ONE_SINCE = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
_MAX_CACHED_RULES = 256


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
    """The breakpoints of coding agents, by piece: the ends of the system prompt, and the last assistant and
    user messages.

    In a message it is on the block that was logged last, or on the last one that accepts a breakpoint.
    """
    breakpoints = dict.fromkeys(preamble.breakpoints, preamble_ttl)
    missing_roles = {_ASSISTANT, _USER}
    for start, node in iterate_full_nodes(prompt, last_node):
        role = _ASSISTANT if node.role == _ASSISTANT else _USER
        if role in missing_roles:
            missing_roles.remove(role)
            at = _client_breakpoint_piece(node)
            if at is not None:
                breakpoints[start + at] = tail_ttl
        if not missing_roles:
            break
    return breakpoints


def _client_breakpoint_piece(node: HistoryNode) -> int | None:
    pieces = node.pieces
    last_logged = node.message.last_logged_block if node.message is not None else -1
    if 0 <= last_logged < len(pieces) and pieces[last_logged].accepts_breakpoint:
        return last_logged
    return next((at for at in range(len(pieces) - 1, -1, -1) if pieces[at].accepts_breakpoint), None)


def with_breakpoints(prompt: CachedPrompt, breakpoints: Mapping[int, Ttl]) -> CachedPrompt:
    pieces = list(prompt.pieces)
    for at, ttl in breakpoints.items():
        pieces[at] = structs.replace(pieces[at], breakpoint_ttl=ttl)
    return replace(prompt, pieces=tuple(pieces), layout=None)


def fixed_breakpoint_pieces(
    prompt: CachedPrompt, preamble: SimulatedPreamble, *, minimum_tokens: int
) -> list[int]:
    """Fixed breakpoints, by piece: the ends of the tools and of the system prompt, and the last block."""
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

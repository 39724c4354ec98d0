"""Where marks stand in what was sent: those that clients are known to put, and fixed ones."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache

from msgspec import structs

from foveate.cache.prompts import CachedPrompt, token_ends
from foveate.cache.rules import CacheRules, rules_for
from foveate.replay.serving import client_breakpoint_piece
from foveate.replay.stretches import HistoryNode, PromptFront
from foveate.values import Area, Ttl

# Before that the documentation counts every block as a position of its own; runs as one came later.
_RUNS_ARE_ONE_SINCE = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
_MAX_CACHED_RULES = 256
_ASSISTANT_ROLE, _USER_ROLE = "assistant", "user"


def rules_at(model: str, at: float) -> CacheRules:
    """The rules that a model's cache had at a time; where that is not known, those of today."""
    return _dated_rules(model, 0 < at < _RUNS_ARE_ONE_SINCE)


@lru_cache(_MAX_CACHED_RULES)
def _dated_rules(model: str, is_early: bool) -> CacheRules:
    rules = rules_for(model)
    return replace(rules, runs_are_one_position=False) if is_early else rules


def client_breakpoints(
    prompt: CachedPrompt, front: PromptFront, last_node: HistoryNode, *, front_ttl: Ttl, tail_ttl: Ttl
) -> dict[int, Ttl]:
    """The marks that coding agents put: the ends of the system prompt, what the model and the user said last.

    In a message it is the block that was logged last, or the last that takes a mark.
    """
    breakpoints = dict.fromkeys(front.breakpoints, front_ttl)
    wanted = {_ASSISTANT_ROLE, _USER_ROLE}
    for start, node in iterate_full_nodes(prompt, last_node):
        role = _ASSISTANT_ROLE if node.role == _ASSISTANT_ROLE else _USER_ROLE
        if role in wanted:
            wanted.remove(role)
            at = client_breakpoint_piece(node)
            if at is not None:
                breakpoints[start + at] = tail_ttl
        if not wanted:
            break
    return breakpoints


def with_breakpoints(prompt: CachedPrompt, breakpoints: Mapping[int, Ttl]) -> CachedPrompt:
    """`prompt` with breakpoints on these pieces, as a client sends it."""
    pieces = list(prompt.pieces)
    for at, ttl in breakpoints.items():
        pieces[at] = structs.replace(pieces[at], breakpoint_ttl=ttl)
    return replace(prompt, pieces=tuple(pieces), layout=None)


def fixed_breakpoint_pieces(prompt: CachedPrompt, front: PromptFront, *, minimum_tokens: int) -> list[int]:
    """Where one would mark by hand: the end of the tools, of the system prompt, and the last block."""
    pieces, ends = prompt.pieces, token_ends(prompt)
    last: dict[Area, int] = {}
    for at in range(len(front.pieces)):
        if pieces[at].accepts_breakpoint:
            last[pieces[at].area] = at
    messages_backwards = range(len(pieces) - 1, len(front.pieces) - 1, -1)
    last_accepting = next((at for at in messages_backwards if pieces[at].accepts_breakpoint), None)
    if last_accepting is not None:
        last[Area.MESSAGES] = last_accepting
    return sorted(at for at in last.values() if ends[at] >= minimum_tokens)


def iterate_full_nodes(prompt: CachedPrompt, last_node: HistoryNode) -> Iterator[tuple[int, HistoryNode]]:
    """The last messages of which `prompt` has every piece, the last one first, and where each begins."""
    node: HistoryNode | None = last_node
    end = len(prompt.pieces)
    while node is not None:
        start = end - len(node.pieces)
        if node.pieces and prompt.pieces[end - 1] is not node.pieces[-1]:
            return
        yield start, node
        node, end = node.previous, start

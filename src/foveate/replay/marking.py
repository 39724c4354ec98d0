"""Where marks stand in what was sent: those that clients are known to put, and fixed ones."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache

from msgspec import structs

from foveate.cache.prompts import CachedPrompt, ends_of
from foveate.cache.rules import Rules, rules_for
from foveate.replay.serving import place_in
from foveate.replay.stretches import Front, Stretch
from foveate.values import Area, Ttl

# Before that the documentation counts every block as a position of its own; runs as one came later.
_RUNS_ARE_ONE_FROM = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
_KEPT_RULES = 256
_MODEL, _USER = "assistant", "user"


def rules_then(model: str, at: float) -> Rules:
    """The rules that a model's cache had at a time; where that is not known, those of today."""
    return _rules(model, 0 < at < _RUNS_ARE_ONE_FROM)


@lru_cache(_KEPT_RULES)
def _rules(model: str, is_early: bool) -> Rules:
    rules = rules_for(model)
    return replace(rules, runs_are_one_position=False) if is_early else rules


def client_marks(
    prompt: CachedPrompt, front: Front, last: Stretch, *, front_ttl: Ttl, tail_ttl: Ttl
) -> dict[int, Ttl]:
    """The marks that coding agents put: the ends of the system prompt, what the model and the user said last.

    In a message it is the block that was logged last, or the last that takes a mark.
    """
    marks = dict.fromkeys(front.marks, front_ttl)
    wanted = {_MODEL, _USER}
    for start, stretch in shown(prompt, last):
        role = _MODEL if stretch.role == _MODEL else _USER
        if role in wanted:
            wanted.remove(role)
            at = place_in(stretch)
            if at is not None:
                marks[start + at] = tail_ttl
        if not wanted:
            break
    return marks


def with_breakpoints(prompt: CachedPrompt, breakpoints: Mapping[int, Ttl]) -> CachedPrompt:
    """`prompt` with breakpoints on these pieces, as a client sends it."""
    pieces = list(prompt.pieces)
    for at, ttl in breakpoints.items():
        pieces[at] = structs.replace(pieces[at], mark=ttl)
    return replace(prompt, pieces=tuple(pieces), landmarks=None)


def fixed_places(prompt: CachedPrompt, front: Front, *, minimum_tokens: int) -> list[int]:
    """Where one would mark by hand: the end of the tools, of the system prompt, and the last block."""
    pieces, ends = prompt.pieces, ends_of(prompt)
    last: dict[Area, int] = {}
    for at in range(len(front.pieces)):
        if pieces[at].markable:
            last[pieces[at].area] = at
    behind = range(len(pieces) - 1, len(front.pieces) - 1, -1)
    said = next((at for at in behind if pieces[at].markable), None)
    if said is not None:
        last[Area.MESSAGES] = said
    return sorted(at for at in last.values() if ends[at] >= minimum_tokens)


def shown(prompt: CachedPrompt, last: Stretch) -> Iterator[tuple[int, Stretch]]:
    """The last messages of which `prompt` has every piece, the last one first, and where each begins."""
    here: Stretch | None = last
    end = len(prompt.pieces)
    while here is not None:
        start = end - len(here.pieces)
        if here.pieces and prompt.pieces[end - 1] is not here.pieces[-1]:
            return
        yield start, here
        here, end = here.before, start

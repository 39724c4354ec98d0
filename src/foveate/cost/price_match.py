"""Which model of a table a name means: tables match the beginning of a name, and versions go on."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from genai_prices.types import MatchLogic, ModelInfo


def is_other_version(model: "ModelInfo", name: str) -> bool:
    """Whether a name only begins as the model's does, and goes on to another version: 4-10 is not 4-1."""
    ends = [
        end
        for end in (_find_match_end(clause, name) for clause in _flatten_clauses(model.match))
        if end is not None
    ]
    return bool(ends) and all(_is_within_version(name, end) for end in ends)


def _flatten_clauses(match: "MatchLogic") -> "Iterator[MatchLogic]":
    from genai_prices.types import ClauseAnd, ClauseOr

    match match:
        case ClauseOr():
            for clause in match.or_:
                yield from _flatten_clauses(clause)
        case ClauseAnd():
            for clause in match.and_:
                yield from _flatten_clauses(clause)
        case _:
            yield match


def _find_match_end(clause: "MatchLogic", name: str) -> int | None:
    """Where the part of a name ends that a clause is about; None where it is about none."""
    from genai_prices.types import ClauseContains, ClauseStartsWith

    if not clause.is_match(name):
        return None
    match clause:
        case ClauseStartsWith():
            return len(clause.starts_with)
        case ClauseContains():
            return name.index(clause.contains.lower()) + len(clause.contains)
        case _:
            return len(name)


def _is_within_version(name: str, end: int) -> bool:
    """Whether the digits around a place are a number of two; dates and builds have more."""
    before = len(name[:end]) - len(name[:end].rstrip("0123456789"))
    behind = len(name[end:]) - len(name[end:].lstrip("0123456789"))
    return min(before, behind) > 0 and before + behind == 2

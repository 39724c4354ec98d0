"""Prompts for tests of the provider cache."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from foveate.model import Area, Place, Ttl
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, PromptPiece, compute_digest

MODEL = "claude-sonnet-4-5"


def piece(
    content: str,
    tokens: int,
    *,
    kind: str = "text",
    area: Area = Area.MESSAGES,
    index: int = 0,
    block: int | None = 0,
    breakpoint_ttl: Ttl | None = None,
    accepts_breakpoint: bool = True,
) -> PromptPiece:
    place = Place(area, index, block if area is Area.MESSAGES else None)
    return PromptPiece(
        digest=compute_digest(content.encode()),
        tokens=tokens,
        kind=kind,
        area=area,
        place=place,
        breakpoint_ttl=breakpoint_ttl,
        accepts_breakpoint=accepts_breakpoint,
    )


def prompt(*pieces: PromptPiece, model: str = MODEL) -> CachedPrompt:
    return CachedPrompt(model=model, pieces=pieces)


def opening(tools_tokens: int = 4000, system_tokens: int = 3000) -> list[PromptPiece]:
    """Return tools and a system prompt."""
    return [
        piece("tools", tools_tokens, kind="tool", area=Area.TOOLS),
        piece("system", system_tokens, area=Area.SYSTEM),
    ]


def turns(*tokens: int, start: int = 0) -> list[PromptPiece]:
    """Return messages of one block each, alternating between user and model."""
    return [piece(f"turn {index}", size, index=index) for index, size in enumerate(tokens, start=start)]


def results(count: int, tokens: int, *, index: int, kind: str = "tool_result") -> list[PromptPiece]:
    """Return one message of many blocks."""
    return [piece(f"{kind} {index} {n}", tokens, kind=kind, index=index, block=n) for n in range(count)]


def with_breakpoints(
    pieces: Sequence[PromptPiece], breakpoints: Iterable[tuple[int, Ttl]]
) -> list[PromptPiece]:
    """Return the pieces, some with a client breakpoint."""
    result = list(pieces)
    for at, ttl in breakpoints:
        result[at] = replace(result[at], breakpoint_ttl=ttl)
    return result

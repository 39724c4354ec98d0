"""A fold opened again: the messages that it folded, who says what in them, and what its outcome means."""

from collections.abc import Sequence
from dataclasses import dataclass

from foveate import wire
from foveate.errors import MalformedRequest
from foveate.fold.journal import Fold, Journal, Outcome
from foveate.fold.replacing import named
from foveate.fold.summariser import EXTRACTIVE
from foveate.session.chain import chain_of
from foveate.values import Format, Part, Request, Text, Thinking, ToolCall, ToolResult

MEANINGS = {
    Outcome.OK: "the summary is sent in the place of these messages",
    Outcome.FAILED: "no summary could be had, so the messages are sent as they came",
    Outcome.LOCK_HELD: "somebody else was folding the session, or had just done so",
    Outcome.NO_BOUNDARY: "there was no place to cut at which call and result stay together",
    Outcome.TOOL_RESULT_TRUNCATED: "a tool result was too long, so its beginning and end are sent",
}
"""What each outcome means for the next request."""
_UNDONE = {
    Outcome.OK: "the messages are sent as they came",
    Outcome.TOOL_RESULT_TRUNCATED: "the tool result is sent whole",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfolded:
    """A fold and the messages that it folded, each as it came; `spoken` is None where that is not known."""

    fold: Fold
    turns: Sequence[bytes]
    spoken: Format | None
    hashes: Sequence[bytes] = ()


async def unfolded(journal: Journal, fold: Fold) -> Unfolded:
    """A fold with what it folded."""
    return opened(fold, await journal.folded(fold.id))


def opened(fold: Fold, turns: Sequence[bytes]) -> Unfolded:
    """A fold with all the messages up to its end, and the format that they are in."""
    for spoken in Format if turns else ():
        request = Request(
            format=spoken, model=fold.model, body=b"{}", system=(), tools=(), messages=tuple(turns)
        )
        try:
            chain = chain_of(request)
        except MalformedRequest:
            continue
        # The format is not kept. It is part of each hash, so only the right one leads to the boundary.
        if chain.hashes[-1:] == (fold.boundary,):
            return Unfolded(fold=fold, turns=turns, spoken=spoken, hashes=chain.hashes)
    return Unfolded(fold=fold, turns=turns, spoken=None)


def meaning_when_undone(fold: Fold) -> str:
    """What it means for the next request that a fold is undone."""
    return _UNDONE.get(fold.outcome, "it changed nothing")


def made_by(fold: Fold) -> str:
    """Who made a fold: a model, or rules."""
    if fold.outcome is Outcome.TOOL_RESULT_TRUNCATED:
        return f"rules, for {fold.model}"
    return "rules, without a model" if fold.model == EXTRACTIVE else fold.model


def said(spoken: Format | None, turn: bytes) -> tuple[str, str]:
    """Who speaks in a message, and what is said; all of it as it is where its format is not known."""
    if spoken is None:
        return "", turn.decode("utf-8", "backslashreplace")
    message = wire.message(spoken, turn)
    return message.role, "\n".join(filter(None, map(_part, message.parts)))


def _part(part: Part) -> str:
    match part:
        case Text():
            return part.text
        case Thinking():
            return f"[thinking] {part.text}" if part.text else "[thinking]"
        case ToolCall():
            return f"[calls {part.name}] {part.arguments}"
        case ToolResult():
            inner = "\n".join(filter(None, map(_part, part.parts)))
            return (
                f"[{'error' if part.is_error else 'result'}{f' of {part.name}' if part.name else ''}] {inner}"
            )
        case _:
            return named(part) or ""

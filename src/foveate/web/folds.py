"""Folds as pages show them: what was folded, what stands for it, and what was carried. And the page of one."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from foveate.budget import graphemes
from foveate.errors import MalformedRequest
from foveate.fold.journal import Fold, Journal, Outcome
from foveate.fold.unfolding import MEANINGS, made_by, meaning_when_undone, opened, said
from foveate.store import Store
from foveate.store.glances import FoldedSpan, FoldedTurn
from foveate.tokens.memo import Memo
from foveate.values import Format
from foveate.web.asking import Asked, NoSuchPage, Shown
from foveate.web.inside import Inside
from foveate.web.words import short

_EACH_END = 3
"""So many messages are shown of a fold's beginning, and of its end, where it is one of several."""
_GLIMPSE_CHARS = 300
_SUMMARY_CHARS = 1_500
_TURN_CHARS = 4_000
_MOST_CARRIED = 40
_FACT_CHARS = 300
_ALL_CHARS = 100_000
_PAGE = 30
_KEPT_FORMATS = 1024
_LAST_MESSAGE = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A text as far as it is shown, and how many characters more there are."""

    text: str
    more: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A folded message: its number in the conversation, who speaks and what is said.

    One that `is_raw` is shown as it came, since nobody can tell what it says, or it is far too long. Before it
    so many were `left_out`.
    """

    number: int
    role: str
    said: Said
    is_raw: bool
    size_bytes: int
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A fold with some of the messages that it was the first to fold, of so `many`.

    One that `is_taken_in` is part of a later one, whose summary is sent.
    """

    fold: Fold
    many: int
    is_taken_in: bool
    turns: Sequence[Turn]
    summary: Said
    carried: Sequence[str]

    @property
    def is_in_force(self) -> bool:
        """Whether its summary, or its cut, is sent."""
        is_made = self.fold.outcome in (Outcome.OK, Outcome.TOOL_RESULT_TRUNCATED)
        return is_made and self.fold.undone_at is None and not self.is_taken_in

    @property
    def means(self) -> str:
        """What its outcome means for the next request."""
        if self.fold.undone_at is not None:
            return meaning_when_undone(self.fold)
        return "a later fold took it in" if self.is_taken_in else MEANINGS[self.fold.outcome]

    @property
    def maker(self) -> str:
        """Who made it."""
        return made_by(self.fold)

    @property
    def saved_share(self) -> float | None:
        """How much of what it stands for is no longer sent; None where nothing is."""
        saved = self.fold.tokens_before - self.fold.tokens_after
        return saved / self.fold.tokens_before if saved > 0 else None

    @property
    def carried_left_out(self) -> int:
        """How many more facts it carries."""
        return len(self.fold.carried) - len(self.carried)


async def opened_folds(store: Store, folds: Sequence[Fold]) -> Sequence[Opened]:
    """Folds with the first and the last messages of each."""
    spans = await store.glances.ends([fold.id for fold in folds], each=_EACH_END)
    spoken = await _spoken(store.journal, spans)
    return await asyncio.to_thread(
        lambda: [
            _opened(
                fold,
                spans[fold.id],
                spoken.get(spans[fold.id].first_id),
                turn_chars=_GLIMPSE_CHARS,
                summary_chars=_SUMMARY_CHARS,
                most_carried=_MOST_CARRIED,
            )
            for fold in folds
        ]
    )


async def look(inside: Inside, asked: Asked) -> Shown:
    """One fold, with all that it folded, in pages."""
    fold_id = asked.names["id"]
    fold = await inside.store.journal.fold(fold_id)
    if fold is None or not asked.viewer.can_see(fold.agent):
        raise NoSuchPage(f"there is no fold {short(fold_id, 80)!r}, or it was forgotten")
    first = asked.number("from", 1, least=1, most=_LAST_MESSAGE)
    span = await inside.store.glances.folded(fold_id, skip=first - 1, limit=_PAGE)
    spoken = await _spoken(inside.store.journal, {fold_id: span})
    one = await asyncio.to_thread(
        lambda: _opened(
            fold,
            span,
            spoken.get(span.first_id),
            turn_chars=_TURN_CHARS,
            summary_chars=_ALL_CHARS,
            most_carried=len(fold.carried),
        )
    )
    given = {
        "one": one,
        "first": first,
        "last": first + len(span.turns) - 1,
        "next": first + _PAGE if first - 1 + len(span.turns) < span.many else None,
        "previous": max(1, min(first, span.many + 1) - _PAGE) if first > 1 else None,
    }
    return Shown(template="fold.html", title=f"Fold {short(fold_id, 40)}", given=given, watches=fold.session_id)


_SPOKEN: Memo[tuple[Format | None]] = Memo(_KEPT_FORMATS)
"""The formats of conversations by where their first folds end: to find one, all that was folded is read."""


async def _spoken(journal: Journal, spans: Mapping[str, FoldedSpan]) -> dict[str | None, Format]:
    """The formats of what was folded, by the first fold of each conversation, as far as they are known."""
    found: dict[str | None, Format] = {}
    for first_id in {span.first_id for span in spans.values() if span.first_id and span.turns}:
        fold = await journal.fold(first_id)
        if fold is None:
            continue
        known = _SPOKEN.get(fold.boundary)
        if known is None:
            turns = await journal.folded(first_id)
            known = ((await asyncio.to_thread(opened, fold, turns)).spoken,)
            _SPOKEN.put(fold.boundary, known)
        if known[0] is not None:
            found[first_id] = known[0]
    return found


def _opened(
    fold: Fold,
    span: FoldedSpan,
    spoken: Format | None,
    *,
    turn_chars: int,
    summary_chars: int,
    most_carried: int,
) -> Opened:
    turns = [_turn(turn, spoken, turn_chars) for turn in span.turns]
    return Opened(
        fold=fold,
        many=span.many,
        is_taken_in=span.is_taken_in,
        turns=turns[:1]
        + [replace(turn, left_out=turn.number - before.number - 1) for before, turn in pairwise(turns)],
        summary=_cut(fold.summary, summary_chars),
        carried=[short(fact, _FACT_CHARS) for fact in fold.carried[:most_carried]],
    )


def _turn(turn: FoldedTurn, spoken: Format | None, most_chars: int) -> Turn:
    role, text, is_raw = "", "", True
    if spoken is not None and turn.is_whole:
        try:
            role, text = said(spoken, turn.message)
            is_raw = False
        except MalformedRequest:  # kept by somebody who could read it: it is shown as it came
            pass
    if is_raw:
        _, text = said(None, turn.message)
    return Turn(
        number=turn.position + 1,
        role=role,
        said=_cut(text, most_chars),
        is_raw=is_raw,
        size_bytes=turn.size_bytes,
    )


def _cut(text: str, most_chars: int) -> Said:
    """A text in so many characters at most, none of them cut in two."""
    if len(text) <= most_chars:
        return Said(text=text)
    end = graphemes.floor(text[: 2 * most_chars], most_chars)
    return Said(text=text[:end], more=len(text) - end)

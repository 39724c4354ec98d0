"""Folds in lines for people, and as objects for programs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal

from rich.cells import cell_len, set_cell_size

from foveate.cli.compactions_undone import Undone
from foveate.cli.ids import SHORT_ID, short_ids
from foveate.cli.screen import Look
from foveate.fold.journal import Fold, Outcome
from foveate.fold.unfolding import MEANINGS, Unfolded, made_by, meaning_when_undone, said

_GAP = "  "
_LABEL_CELLS = 10
_REASON_INDENT = SHORT_ID + len(_GAP)
_LONGEST_NAME = 24
_GLIMPSE_CHARS = 160
_BOLD, _DIM, _RED, _GREEN, _YELLOW = "1", "2", "31", "32", "33"
_COLOURS = {Outcome.OK: _GREEN, Outcome.FAILED: _RED}


def fold_object(fold: Fold) -> dict[str, object]:
    """All of a row as JSON can say it: hashes in hex, money as a string, so that nothing of it is lost."""
    return {field.name: _jsonable(getattr(fold, field.name)) for field in fields(fold)}


def listed_object(fold: Fold) -> dict[str, object]:
    """A row without the texts, of which a list would be long."""
    return {name: value for name, value in fold_object(fold).items() if name not in ("summary", "carried")}


def unfolded_object(shown: Unfolded, *, full: bool) -> dict[str, object]:
    """A row with all it says, and the folded messages where they are asked for."""
    turns: dict[str, object] = {"turns_kept": len(shown.turns)}
    for name, turn in zip(("first", "last"), (shown.turns[:1], shown.turns[-1:]), strict=True):
        role, line = _glimpse(shown, turn[0]) if turn else ("", "")
        turns[name] = {"role": role, "line": line} if turn else None
    if full:
        turns["turns"] = [turn_text(turn) for turn in shown.turns]
    return fold_object(shown.fold) | turns


def turn_text(turn: bytes) -> str:
    """A message as it came, as a text that gives the same bytes back: `.encode("utf-8", "surrogateescape")`."""
    return turn.decode("utf-8", "surrogateescape")


def undone_object(undone: Undone) -> dict[str, object]:
    """What was undone, and what that means."""
    return {
        "id": undone.fold.id,
        "session_id": undone.fold.session_id,
        "undone_at": undone.fold.undone_at,
        "undone_before": undone.before,
        "first_message": undone.first_message or None,
        "last_message": undone.fold.messages if undone.first_message else None,
        "more_tokens": undone.more_tokens,
        "in_force": next((fold.id for fold in (undone.above, undone.beneath) if fold is not None), None),
    }


def _jsonable(value: object) -> object:
    match value:
        case bytes():
            return value.hex()
        case Decimal():
            return f"{value:f}"
        case tuple():
            return list(value)
        case _:
            return value


@dataclass(frozen=True, slots=True)
class _Row:
    """What a list says of a fold."""

    id: str
    when: str
    agent: str
    session: str
    span: str
    tokens: str
    saved: str
    cost: str
    model: str
    ended: str
    colour: str


_HEADINGS = _Row(
    "id", "when", "agent", "session", "messages", "tokens", "saved", "cost", "model", "outcome", ""
)
_RIGHT = ("tokens", "saved", "cost")
_COLUMNS = tuple(field.name for field in fields(_Row) if field.name != "colour")


class Writing:
    """Writes folds for a terminal or a file, as far as that can show them."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._dash = "–" if look.can_show("–") else "-"
        self._arrow = "→" if look.can_show("→") else "->"
        self._more = "…" if look.can_show("…") else ".."

    def listed(self, folds: Sequence[Fold]) -> Iterator[str]:
        """A line for each fold below a heading; two without one where a line is too narrow."""
        rows = self._rows(folds)
        if not rows:
            return
        widths = {name: max(cell_len(getattr(row, name)) for row in (_HEADINGS, *rows)) for name in _COLUMNS}
        if sum(widths.values()) + len(_GAP) * (len(widths) - 1) > self._look.columns:
            for row, fold in zip(rows, folds, strict=True):
                yield from self._two_lines(row)
                yield from self._reason(fold)
            return
        yield self._painted(self._in_columns(_HEADINGS, widths), _DIM)
        for row, fold in zip(rows, folds, strict=True):
            line = self._in_columns(row, widths)
            yield line.removesuffix(row.ended) + self._painted(row.ended, row.colour)
            yield from self._reason(fold)

    def _reason(self, fold: Fold) -> Iterator[str]:
        """Why a fold failed, or was not made as it should have been, in one line."""
        if fold.reason:
            said = self._look.plain(" ".join(fold.reason.split()))
            cells = max(self._look.columns - _REASON_INDENT - len(self._more), _LONGEST_NAME)
            if cell_len(said) > cells:
                said = set_cell_size(said, cells).rstrip() + self._more
            yield " " * _REASON_INDENT + self._painted(said, _DIM)

    def _rows(self, folds: Sequence[Fold]) -> list[_Row]:
        ids, sessions = short_ids([f.id for f in folds]), short_ids([f.session_id for f in folds])
        afters = [f"{fold.tokens_after:,}" for fold in folds if _has_saved(fold)]
        after_cells = max(map(len, afters), default=0)
        return [
            _Row(
                id=self._look.plain(ids[fold.id]),
                when=_moment(fold.compacted_at, "%Y-%m-%d %H:%M"),
                agent=self._name(fold.agent),
                session=self._look.plain(sessions[fold.session_id]),
                span=self._span(fold),
                tokens=self._tokens(fold, after_cells),
                saved=_percent(fold) if _has_saved(fold) else "",
                cost=_dollars(fold.cost),
                model=self._name(fold.model),
                ended=_ended(fold),
                colour=_DIM if fold.undone_at is not None else _COLOURS.get(fold.outcome, _YELLOW),
            )
            for fold in folds
        ]

    def _in_columns(self, row: _Row, widths: dict[str, int]) -> str:
        cells = []
        for name in _COLUMNS:
            text: str = getattr(row, name)
            blanks = " " * (widths[name] - cell_len(text))
            cells.append(blanks + text if name in _RIGHT else text + blanks)
        return _GAP.join(cells).rstrip()

    def _two_lines(self, row: _Row) -> Iterator[str]:
        tokens = f"{' '.join(row.tokens.split())} tokens" if row.tokens else ""
        saved = f"{tokens}, {row.saved} saved" if row.saved else tokens
        span = f"messages {row.span}" if row.span else ""
        yield _GAP.join(filter(None, (row.id, row.when, span, saved)))
        known = (self._painted(row.ended, row.colour), row.agent, f"session {row.session}", row.model, row.cost)
        yield " " * (SHORT_ID + len(_GAP)) + _GAP.join(filter(None, known))

    def unfolded(self, shown: Unfolded, *, full: bool) -> Iterator[str]:
        """All that is known of a fold, and the folded messages where they are asked for."""
        fold = shown.fold
        yield self._painted(f"fold {self._look.plain(fold.id)}", _BOLD)
        for label, fact in self._facts(shown):
            yield f"{label:<{_LABEL_CELLS}}{self._look.plain(fact)}"
        if fold.summary:
            yield from self._text("summary", fold.summary)
        if fold.carried:
            yield from self._text(
                "carried, since the summary left it out", "\n".join(f"- {fact}" for fact in fold.carried)
            )
        if full:
            for number, turn in enumerate(shown.turns, start=1):
                role, text = said(shown.spoken, turn)
                yield from self._text(f"message {number:,} {role}".rstrip(), text)

    def _facts(self, shown: Unfolded) -> Iterator[tuple[str, str]]:
        fold = shown.fold
        if fold.undone_at is None:
            yield "outcome", f"{fold.outcome}: {MEANINGS[fold.outcome]}"
        else:
            yield "outcome", str(fold.outcome)
            yield "undone", f"{_moment(fold.undone_at)}: {meaning_when_undone(fold)}"
        yield "when", _moment(fold.compacted_at)
        yield "agent", fold.agent
        yield "session", fold.session_id
        if span := self._span(fold):
            of = f" of {fold.seen_messages:,} that there were then" if fold.seen_messages else ""
            yield "messages", f"{span}{of}"
        if fold.reason:
            yield "reason", " ".join(fold.reason.split())
        if fold.earlier_id is not None:
            yield "took in", f"fold {fold.earlier_id}"
        yield "tokens", self._saving(fold)
        if fold.limit_tokens is not None:
            yield "limit", f"{fold.limit_tokens:,} tokens of each result in that message"
        yield "cost", _dollars(fold.cost)
        maker = made_by(fold)
        yield "made by", f"{maker}{',' * (',' in maker)} in {fold.duration_seconds:.1f} s"
        yield "kept", self._kept(shown)
        if shown.turns:
            yield "first", self._glimpse(shown, shown.turns[0])
            yield "last", self._glimpse(shown, shown.turns[-1])

    def _kept(self, shown: Unfolded) -> str:
        if shown.turns:
            number, size = len(shown.turns), sum(map(len, shown.turns))
            return f"{number:,} folded message{'s' * (number != 1)}, {size:,} bytes, as they came"
        if shown.fold.outcome is Outcome.OK:
            return "none of the folded messages any longer"
        return "no messages, since none were folded"

    def _saving(self, fold: Fold) -> str:
        if not _has_saved(fold):
            return f"{fold.tokens_before:,}" if fold.tokens_before else "none"
        saved = f"{fold.tokens_before - fold.tokens_after:,} saved ({_percent(fold)})"
        return f"{self._tokens(fold)}, {saved}"

    def _glimpse(self, shown: Unfolded, turn: bytes) -> str:
        role, line = _glimpse(shown, turn)
        cut = line if len(line) <= _GLIMPSE_CHARS else f"{line[:_GLIMPSE_CHARS].rstrip()}{self._more}"
        return f"{role}: {cut}" if role else cut

    def _text(self, heading: str, text: str) -> Iterator[str]:
        yield ""
        yield self._painted(self._look.plain(heading), _DIM)
        for line in text.splitlines():
            yield f"  {self._look.plain(line.expandtabs())}".rstrip()

    def undone(self, undone: Undone) -> Iterator[str]:
        """What was undone, and what that means for the next request."""
        fold = undone.fold
        name, session = fold.id[:SHORT_ID], fold.session_id[:SHORT_ID]
        if undone.before:
            when = _moment(fold.undone_at) if fold.undone_at is not None else "before"
            yield self._look.plain(f"fold {name} was undone already ({when}): nothing has changed")
            return
        is_cut = fold.outcome is Outcome.TOOL_RESULT_TRUNCATED
        yield self._look.plain(f"{'the cut' if is_cut else 'fold'} {name} is undone")
        if undone.above is not None:
            other = undone.above
            yield self._look.plain(
                f"fold {other.id[:SHORT_ID]} of messages {self._span(other)} is still in force, so the next "
                f"request of session {session} goes out as before: undo that one too"
            )
            return
        again = (
            f"the tool results in message {fold.messages:,} whole"
            if is_cut
            else f"messages {undone.first_message:,}{self._dash}{fold.messages:,} again"
        )
        yield self._look.plain(
            f"the next request of session {session} sends {again}: about {undone.more_tokens:,} tokens more"
        )
        if undone.beneath is not None:
            other = undone.beneath
            yield self._look.plain(
                f"messages {self._span(other)} stay folded by {other.id[:SHORT_ID]}, which is in force again"
            )
        if not is_cut:
            yield "it may be folded anew when the next fold is due: turn compaction off to keep it so"

    def _span(self, fold: Fold) -> str:
        if not fold.messages:
            return ""
        if fold.outcome is Outcome.TOOL_RESULT_TRUNCATED:
            return f"{fold.messages:,}"
        return f"1{self._dash}{fold.messages:,}"

    def _tokens(self, fold: Fold, after_cells: int = 0) -> str:
        if not _has_saved(fold):
            return f"{fold.tokens_before:,}" if fold.tokens_before else ""
        return f"{fold.tokens_before:,} {self._arrow} {fold.tokens_after:>{after_cells},}"

    def _name(self, name: str) -> str:
        text = self._look.plain(name)
        if cell_len(text) <= _LONGEST_NAME:
            return text
        return set_cell_size(text, _LONGEST_NAME - len(self._more)).rstrip() + self._more

    def _painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if text and colour and self._look.colours else text


def _has_saved(fold: Fold) -> bool:
    return fold.tokens_after < fold.tokens_before


def _percent(fold: Fold) -> str:
    return f"{100 * (fold.tokens_before - fold.tokens_after) / fold.tokens_before:.0f}%"


def _ended(fold: Fold) -> str:
    return f"{fold.outcome}, undone" if fold.undone_at is not None else str(fold.outcome)


def _dollars(cost: Decimal | None) -> str:
    """Dollars as people say them: two digits behind the point, or as many as show something."""
    if cost is None:
        return "unknown"
    if not cost:
        return "$0"
    digits = 2
    while digits < 8 and 0 < cost < Decimal(10) ** (1 - digits):
        digits += 1
    return f"${cost:,.{digits}f}"


def _moment(seconds: float, form: str = "%Y-%m-%d %H:%M:%S %z") -> str:
    """A time as the clock on the wall shows it."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime(form)
    except (ValueError, OverflowError, OSError):  # no year that a calendar has
        return f"{seconds:g}"


def _glimpse(shown: Unfolded, turn: bytes) -> tuple[str, str]:
    """Who speaks in a message, and the first line that says something."""
    role, text = said(shown.spoken, turn)
    return role, " ".join(next((line for line in text.splitlines() if line.strip()), "").split())

"""Compactions as text, as JSON objects and as exports."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, BinaryIO

from rich.cells import cell_len, set_cell_size

from foveate.cli.compactions.selection import (
    CompactionFilter,
    find_compaction,
    find_session_id,
    iterate_compactions,
)
from foveate.cli.compactions.undo import UndoResult
from foveate.cli.console import Display
from foveate.cli.options import SHORT_ID_CHARS, shorten_ids
from foveate.compaction.inspection import (
    OUTCOME_MEANINGS,
    CompactionContents,
    describe_author,
    read_message,
    undone_meaning,
)
from foveate.compaction.store import Compaction, CompactionOutcome
from foveate.errors import BadOption

if TYPE_CHECKING:
    from foveate.store import Store


_GAP = "  "
_LABEL_CELLS = 10
_REASON_INDENT = SHORT_ID_CHARS + len(_GAP)
_MAX_NAME_CELLS = 24
_EXCERPT_CHARS = 160
_BOLD, _DIM, _RED, _GREEN, _YELLOW = "1", "2", "31", "32", "33"
_COLOURS = {CompactionOutcome.OK: _GREEN, CompactionOutcome.FAILED: _RED}


def compaction_object(compaction: Compaction) -> dict[str, object]:
    """Return all fields as JSON without loss: hashes in hex, money as strings."""
    return {field.name: _to_json(getattr(compaction, field.name)) for field in fields(compaction)}


def compaction_row_object(compaction: Compaction) -> dict[str, object]:
    return {
        name: value
        for name, value in compaction_object(compaction).items()
        if name not in ("summary", "carried")
    }


def compaction_details_object(details: CompactionContents, *, full: bool) -> dict[str, object]:
    fields: dict[str, object] = {"turns_kept": len(details.messages)}
    for name, turn in zip(("first", "last"), (details.messages[:1], details.messages[-1:]), strict=True):
        role, line = _message_excerpt(details, turn[0]) if turn else ("", "")
        fields[name] = {"role": role, "line": line} if turn else None
    if full:
        fields["turns"] = [message_text(turn) for turn in details.messages]
    return compaction_object(details.compaction) | fields


def message_text(turn: bytes) -> str:
    """Decode a message so that `.encode("utf-8", "surrogateescape")` gives the same bytes back."""
    return turn.decode("utf-8", "surrogateescape")


def undo_object(result: UndoResult) -> dict[str, object]:
    return {
        "id": result.compaction.id,
        "session_id": result.compaction.session_id,
        "undone_at": result.compaction.undone_at,
        "undone_before": result.was_undone_before,
        "first_message": result.first_message or None,
        "last_message": result.compaction.messages if result.first_message else None,
        "more_tokens": result.more_tokens,
        "in_force": next(
            (
                compaction.id
                for compaction in (result.still_in_force, result.restored)
                if compaction is not None
            ),
            None,
        ),
    }


def _to_json(value: object) -> object:
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
class _CompactionRow:
    id: str
    time: str
    agent: str
    session: str
    span: str
    tokens: str
    saved: str
    cost: str
    model: str
    outcome: str
    colour: str


_HEADINGS = _CompactionRow(
    "id", "when", "agent", "session", "messages", "tokens", "saved", "cost", "model", "outcome", ""
)
_RIGHT = ("tokens", "saved", "cost")
_COLUMNS = tuple(field.name for field in fields(_CompactionRow) if field.name != "colour")


class CompactionFormatter:
    def __init__(self, display: Display) -> None:
        self._display = display
        self._dash = "–" if display.can_show("–") else "-"
        self._arrow = "→" if display.can_show("→") else "->"
        self._ellipsis = "…" if display.can_show("…") else ".."

    def list_lines(self, compactions: Sequence[Compaction]) -> Iterator[str]:
        """Format a table with a line for each compaction; on narrow displays two lines each, no headings."""
        rows = self._rows(compactions)
        if not rows:
            return
        widths = {name: max(cell_len(getattr(row, name)) for row in (_HEADINGS, *rows)) for name in _COLUMNS}
        if sum(widths.values()) + len(_GAP) * (len(widths) - 1) > self._display.columns:
            for row, compaction in zip(rows, compactions, strict=True):
                yield from self._two_lines(row)
                yield from self._reason(compaction)
            return
        yield self._paint(self._align_columns(_HEADINGS, widths), _DIM)
        for row, compaction in zip(rows, compactions, strict=True):
            line = self._align_columns(row, widths)
            yield line.removesuffix(row.outcome) + self._paint(row.outcome, row.colour)
            yield from self._reason(compaction)

    def _reason(self, compaction: Compaction) -> Iterator[str]:
        if compaction.reason:
            reason = self._display.escape(" ".join(compaction.reason.split()))
            cells = max(self._display.columns - _REASON_INDENT - len(self._ellipsis), _MAX_NAME_CELLS)
            if cell_len(reason) > cells:
                reason = set_cell_size(reason, cells).rstrip() + self._ellipsis
            yield " " * _REASON_INDENT + self._paint(reason, _DIM)

    def _rows(self, compactions: Sequence[Compaction]) -> list[_CompactionRow]:
        ids, sessions = (
            shorten_ids([compaction.id for compaction in compactions]),
            shorten_ids([compaction.session_id for compaction in compactions]),
        )
        after_texts = [f"{compaction.tokens_after:,}" for compaction in compactions if _has_saved(compaction)]
        after_cells = max(map(len, after_texts), default=0)
        return [
            _CompactionRow(
                id=self._display.escape(ids[compaction.id]),
                time=_format_time(compaction.compacted_at, "%Y-%m-%d %H:%M"),
                agent=self._shorten_name(compaction.agent),
                session=self._display.escape(sessions[compaction.session_id]),
                span=self._span(compaction),
                tokens=self._tokens(compaction, after_cells),
                saved=_percent(compaction) if _has_saved(compaction) else "",
                cost=_format_dollars(compaction.cost),
                model=self._shorten_name(compaction.model),
                outcome=_outcome_text(compaction),
                colour=_DIM if compaction.undone_at is not None else _COLOURS.get(compaction.outcome, _YELLOW),
            )
            for compaction in compactions
        ]

    def _align_columns(self, row: _CompactionRow, widths: dict[str, int]) -> str:
        cells = []
        for name in _COLUMNS:
            text: str = getattr(row, name)
            blanks = " " * (widths[name] - cell_len(text))
            cells.append(blanks + text if name in _RIGHT else text + blanks)
        return _GAP.join(cells).rstrip()

    def _two_lines(self, row: _CompactionRow) -> Iterator[str]:
        tokens = f"{' '.join(row.tokens.split())} tokens" if row.tokens else ""
        saved = f"{tokens}, {row.saved} saved" if row.saved else tokens
        span = f"messages {row.span}" if row.span else ""
        yield _GAP.join(filter(None, (row.id, row.time, span, saved)))
        facts = (self._paint(row.outcome, row.colour), row.agent, f"session {row.session}", row.model, row.cost)
        yield " " * (SHORT_ID_CHARS + len(_GAP)) + _GAP.join(filter(None, facts))

    def detail_lines(self, details: CompactionContents, *, full: bool) -> Iterator[str]:
        compaction = details.compaction
        yield self._paint(f"fold {self._display.escape(compaction.id)}", _BOLD)
        for label, fact in self._facts(details):
            yield f"{label:<{_LABEL_CELLS}}{self._display.escape(fact)}"
        if compaction.summary:
            yield from self._text_block("summary", compaction.summary)
        if compaction.carried:
            yield from self._text_block(
                "carried, since the summary left it out", "\n".join(f"- {fact}" for fact in compaction.carried)
            )
        if full:
            for number, turn in enumerate(details.messages, start=1):
                role, text = read_message(details.api_format, turn)
                yield from self._text_block(f"message {number:,} {role}".rstrip(), text)

    def _facts(self, details: CompactionContents) -> Iterator[tuple[str, str]]:
        compaction = details.compaction
        if compaction.undone_at is None:
            yield "outcome", f"{compaction.outcome}: {OUTCOME_MEANINGS[compaction.outcome]}"
        else:
            yield "outcome", str(compaction.outcome)
            yield "undone", f"{_format_time(compaction.undone_at)}: {undone_meaning(compaction)}"
        yield "when", _format_time(compaction.compacted_at)
        yield "agent", compaction.agent
        yield "session", compaction.session_id
        if span := self._span(compaction):
            total_text = (
                f" of {compaction.seen_messages:,} that there were then" if compaction.seen_messages else ""
            )
            yield "messages", f"{span}{total_text}"
        if compaction.reason:
            yield "reason", " ".join(compaction.reason.split())
        if compaction.earlier_id is not None:
            yield "took in", f"fold {compaction.earlier_id}"
        yield "tokens", self._describe_saving(compaction)
        if compaction.limit_tokens is not None:
            yield "limit", f"{compaction.limit_tokens:,} tokens of each result in that message"
        yield "cost", _format_dollars(compaction.cost)
        author = describe_author(compaction)
        yield "made by", f"{author}{',' * (',' in author)} in {compaction.duration_seconds:.1f} s"
        yield "kept", self._describe_kept_messages(details)
        if details.messages:
            yield "first", self._excerpt(details, details.messages[0])
            yield "last", self._excerpt(details, details.messages[-1])

    def _describe_kept_messages(self, details: CompactionContents) -> str:
        if details.messages:
            number, size = len(details.messages), sum(map(len, details.messages))
            return f"{number:,} folded message{'s' * (number != 1)}, {size:,} bytes, as they came"
        if details.compaction.outcome is CompactionOutcome.OK:
            return "none of the folded messages any longer"
        return "no messages, since none were folded"

    def _describe_saving(self, compaction: Compaction) -> str:
        if not _has_saved(compaction):
            return f"{compaction.tokens_before:,}" if compaction.tokens_before else "none"
        saved = f"{compaction.tokens_before - compaction.tokens_after:,} saved ({_percent(compaction)})"
        return f"{self._tokens(compaction)}, {saved}"

    def _excerpt(self, details: CompactionContents, turn: bytes) -> str:
        role, line = _message_excerpt(details, turn)
        cut = line if len(line) <= _EXCERPT_CHARS else f"{line[:_EXCERPT_CHARS].rstrip()}{self._ellipsis}"
        return f"{role}: {cut}" if role else cut

    def _text_block(self, heading: str, text: str) -> Iterator[str]:
        yield ""
        yield self._paint(self._display.escape(heading), _DIM)
        for line in text.splitlines():
            yield f"  {self._display.escape(line.expandtabs())}".rstrip()

    def undo_lines(self, result: UndoResult) -> Iterator[str]:
        compaction = result.compaction
        name, session = compaction.id[:SHORT_ID_CHARS], compaction.session_id[:SHORT_ID_CHARS]
        if result.was_undone_before:
            undone_time = _format_time(compaction.undone_at) if compaction.undone_at is not None else "before"
            yield self._display.escape(f"fold {name} was undone already ({undone_time}): nothing has changed")
            return
        is_cut = compaction.outcome is CompactionOutcome.TOOL_RESULT_TRUNCATED
        yield self._display.escape(f"{'the cut' if is_cut else 'fold'} {name} is undone")
        if result.still_in_force is not None:
            other = result.still_in_force
            yield self._display.escape(
                f"fold {other.id[:SHORT_ID_CHARS]} of messages {self._span(other)} is still in force, so the "
                f"next request of session {session} goes out as before: undo that one too"
            )
            return
        restored_text = (
            f"the tool results in message {compaction.messages:,} whole"
            if is_cut
            else f"messages {result.first_message:,}{self._dash}{compaction.messages:,} again"
        )
        yield self._display.escape(
            f"the next request of session {session} sends {restored_text}: "
            f"about {result.more_tokens:,} tokens more"
        )
        if result.restored is not None:
            other = result.restored
            yield self._display.escape(
                f"messages {self._span(other)} stay folded by {other.id[:SHORT_ID_CHARS]}, "
                "which is in force again"
            )
        if not is_cut:
            yield "it may be folded anew when the next fold is due: turn compaction off to keep it so"

    def _span(self, compaction: Compaction) -> str:
        if not compaction.messages:
            return ""
        if compaction.outcome is CompactionOutcome.TOOL_RESULT_TRUNCATED:
            return f"{compaction.messages:,}"
        return f"1{self._dash}{compaction.messages:,}"

    def _tokens(self, compaction: Compaction, after_cells: int = 0) -> str:
        if not _has_saved(compaction):
            return f"{compaction.tokens_before:,}" if compaction.tokens_before else ""
        return f"{compaction.tokens_before:,} {self._arrow} {compaction.tokens_after:>{after_cells},}"

    def _shorten_name(self, name: str) -> str:
        text = self._display.escape(name)
        if cell_len(text) <= _MAX_NAME_CELLS:
            return text
        return set_cell_size(text, _MAX_NAME_CELLS - len(self._ellipsis)).rstrip() + self._ellipsis

    def _paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if text and colour and self._display.colours else text


def _has_saved(compaction: Compaction) -> bool:
    return compaction.tokens_after < compaction.tokens_before


def _percent(compaction: Compaction) -> str:
    return f"{100 * (compaction.tokens_before - compaction.tokens_after) / compaction.tokens_before:.0f}%"


def _outcome_text(compaction: Compaction) -> str:
    return f"{compaction.outcome}, undone" if compaction.undone_at is not None else str(compaction.outcome)


def _format_dollars(cost: Decimal | None) -> str:
    """Format dollars with two decimals, or as many as show a nonzero digit."""
    if cost is None:
        return "unknown"
    if not cost:
        return "$0"
    digits = 2
    while digits < 8 and 0 < cost < Decimal(10) ** (1 - digits):
        digits += 1
    return f"${cost:,.{digits}f}"


def _format_time(seconds: float, time_format: str = "%Y-%m-%d %H:%M:%S %z") -> str:
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime(time_format)
    except (ValueError, OverflowError, OSError):  # year out of range
        return f"{seconds:g}"


def _message_excerpt(details: CompactionContents, turn: bytes) -> tuple[str, str]:
    """Return the role of a message and its first line that is not blank."""
    role, text = read_message(details.api_format, turn)
    return role, " ".join(next((line for line in text.splitlines() if line.strip()), "").split())


async def select_for_export(
    store: "Store", ids: Sequence[str], session: str | None
) -> AsyncIterator[Compaction]:
    """Return the named compactions, those of a session, or all.

    Raises:
        BadOption: one of them does not exist.
    """
    if ids:
        selected = [await find_compaction(store, prefix) for prefix in ids]
        return _iterate(list({compaction.id: compaction for compaction in selected}.values()))
    session_id = None
    if session is not None:
        session_id = await find_session_id(store, session)
        if session_id is None:
            raise BadOption(f"there is no fold of a session whose id begins with {session!r:.80}")
    return iterate_compactions(store.compactions, CompactionFilter(session_id=session_id))


async def _iterate(compactions: Sequence[Compaction]) -> AsyncIterator[Compaction]:
    for compaction in compactions:
        yield compaction


async def write_compactions(
    store: "Store", compactions: AsyncIterator[Compaction], file: BinaryIO, *, as_list: bool
) -> int:
    """Write compactions to `file` one at a time, as JSON lines or as one list, and return their number."""
    count = 0
    if as_list:
        file.write(b"[")
    async for compaction in compactions:
        turns = await store.compactions.load_messages(compaction.id)
        row = json.dumps(compaction_object(compaction) | {"turns": [message_text(turn) for turn in turns]})
        if as_list:
            file.write(b",\n" if count else b"\n")
        file.write(row.encode("ascii"))
        file.write(b"" if as_list else b"\n")
        count += 1
    if as_list:
        file.write(b"\n]\n")
    return count

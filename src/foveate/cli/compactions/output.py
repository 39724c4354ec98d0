"""Compactions as text, as JSON objects and as exports."""

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING, BinaryIO

from rich.cells import cell_len, set_cell_size

from foveate.cli.compactions.selection import (
    CompactionFilter,
    find_compaction,
    find_session_id,
    iterate_compactions,
)
from foveate.cli.compactions.undo import UndoResult
from foveate.cli.shared.console import Display
from foveate.cli.shared.options import SHORT_ID_CHARS, shorten_ids
from foveate.cli.shared.tables import (
    GAP,
    Cell,
    Column,
    Fit,
    Styled,
    format_dollar_column,
    format_table,
    join_styled,
    style_text,
    wrap_text,
)
from foveate.compaction.inspection import (
    OUTCOME_MEANINGS,
    CompactionContents,
    EditGain,
    describe_author,
    edit_noun,
    is_by_rules,
    read_message,
    trace_carried,
    undone_meaning,
)
from foveate.compaction.store import ClearedBlock, Compaction, CompactionOutcome, EditDecision
from foveate.compaction.summarize.extractive import CarriedLine
from foveate.errors import BadOption

if TYPE_CHECKING:
    from foveate.store import Store

_INDENT = 2
_REASON_INDENT = SHORT_ID_CHARS + GAP
_MIN_REASON_CELLS = 24
_EXCERPT_CHARS = 160
_MAX_SUMMARY_INDENT = 12
_STYLES = {CompactionOutcome.OK: "green", CompactionOutcome.FAILED: "red"}
_CARRIED_INDENT = 2
_BULLET = "- "
_MAX_CARRIED_LINES = 12
_MAX_CARRIED_ITEMS = 12


def compaction_object(compaction: Compaction) -> dict[str, object]:
    """Return all fields as JSON without loss: hashes in hex, money as strings."""
    return {field.name: _to_json(getattr(compaction, field.name)) for field in fields(compaction)}


def compaction_row_object(compaction: Compaction) -> dict[str, object]:
    return {
        name: value
        for name, value in compaction_object(compaction).items()
        if name not in ("summary", "carried", "cleared")
    }


def compaction_details_object(details: CompactionContents, *, full: bool) -> dict[str, object]:
    fields: dict[str, object] = {"turns_kept": len(details.messages)}
    for name, turn in zip(("first", "last"), (details.messages[:1], details.messages[-1:]), strict=True):
        role, line = _message_excerpt(details, turn[0]) if turn else ("", "")
        fields[name] = {"role": role, "line": line} if turn else None
    fields["lines"] = [asdict(line) for line in trace_carried(details)]
    if full:
        fields["turns"] = [message_text(turn) for turn in details.messages]
    if details.realized is not None:
        fields["realized"] = {
            "dollars": _to_json(details.realized.dollars),
            "requests": details.realized.requests,
        }
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
            return list(map(_to_json, value))
        case EditDecision() | ClearedBlock():
            return asdict(value)
        case _:
            return value


_COLUMNS = (
    Column(heading="id"),
    Column(heading="time"),
    Column(heading="agent", fit=Fit.SHORTEN, drop_order=3),
    Column(heading="session"),
    Column(heading="messages", drop_order=2),
    Column(heading="tokens", align="right"),
    Column(heading="saved", align="right", drop_order=4),
    Column(heading="cost", align="right"),
    Column(heading="model", fit=Fit.SHORTEN, drop_order=1),
    Column(heading="outcome"),
)


class CompactionFormatter:
    def __init__(self, display: Display) -> None:
        self._display = display
        self._dash = "–" if display.can_show("–") else "-"
        self._arrow = "→" if display.can_show("→") else "->"
        self._ellipsis = "…" if display.can_show("…") else ".."

    def list_lines(self, compactions: Sequence[Compaction]) -> Iterator[str]:
        if not compactions:
            return
        heading, *rows = format_table(_COLUMNS, self._rows(compactions), self._display)
        yield heading
        for row, compaction in zip(rows, compactions, strict=True):
            yield row
            if compaction.reason:
                reason = self._display.escape(" ".join(compaction.reason.split()))
                yield " " * _REASON_INDENT + style_text(self._fit_reason(reason), "dim", self._display)

    def _fit_reason(self, reason: str) -> str:
        cells = max(self._display.columns - _REASON_INDENT - len(self._ellipsis), _MIN_REASON_CELLS)
        if not self._display.is_terminal or cell_len(reason) <= cells:
            return reason
        return set_cell_size(reason, cells).rstrip() + self._ellipsis

    def _rows(self, compactions: Sequence[Compaction]) -> list[list[Cell]]:
        ids, sessions = (
            shorten_ids([compaction.id for compaction in compactions]),
            shorten_ids([compaction.session_id for compaction in compactions]),
        )
        after_texts = [f"{compaction.tokens_after:,}" for compaction in compactions if _has_saved(compaction)]
        after_cells = max(map(len, after_texts), default=0)
        costs = format_dollar_column([compaction.cost for compaction in compactions])
        return [
            [
                ids[compaction.id],
                _format_time(compaction.compacted_at, "%Y-%m-%d %H:%M"),
                compaction.agent,
                sessions[compaction.session_id],
                self._span(compaction),
                self._tokens(compaction, after_cells),
                _percent(compaction) if _has_saved(compaction) else "",
                cost,
                compaction.model,
                Styled(_outcome_text(compaction), _outcome_style(compaction)),
            ]
            for compaction, cost in zip(compactions, costs, strict=True)
        ]

    def detail_lines(self, details: CompactionContents, *, full: bool) -> Iterator[str]:
        compaction = details.compaction
        yield style_text(f"{edit_noun(compaction.outcome)} {compaction.id}", "bold", self._display)
        yield from self._wrap(
            f"Session {compaction.session_id} of agent {compaction.agent}, "
            f"{_format_time(compaction.compacted_at)}."
        )
        outcome = Styled(_outcome_text(compaction), _outcome_style(compaction))
        yield from self._group([Styled("outcome: ", "dim"), outcome], self._outcome_sentences(compaction))
        if gains := EditGain(compaction.outcome, compaction.decision, details.realized).sentences():
            yield from self._group([Styled("money", "dim")], gains)
        yield from self._group([Styled("original messages", "dim")], self._original_sentences(details))
        if compaction.cleared:
            yield from self._group([Styled("placeholders", "dim")], ())
            yield from self._text_lines("\n".join(block.text for block in compaction.cleared))
        carried = trace_carried(details)
        if compaction.summary:
            note = ["Rules quote these sentences of the messages."] if is_by_rules(compaction) else ()
            yield from self._group([Styled("summary", "dim")], note)
            if not is_by_rules(compaction):
                yield from self._summary_lines(compaction.summary)
        if compaction.carried:
            yield from self._group([Styled("facts that Foveate added to the summary", "dim")], ())
        yield from carried_lines(carried, self._display, full=full)
        if full:
            for number, turn in enumerate(details.messages, start=1):
                role, text = read_message(details.api_format, turn)
                yield from self._group([Styled(f"message {number:,} {role}".rstrip(), "dim")], ())
                yield from self._text_lines(text)

    def _group(self, heading: Sequence[Styled], sentences: Iterable[str]) -> Iterator[str]:
        yield ""
        yield join_styled(heading, self._display)
        for sentence in sentences:
            yield from self._wrap(sentence, indent=_INDENT)

    def _wrap(self, text: str, *, indent: int = 0) -> Iterator[str]:
        yield from wrap_text(text, self._display, indent=indent)

    def _text_lines(self, text: str) -> Iterator[str]:
        for line in text.splitlines():
            yield f"{' ' * _INDENT}{self._display.escape(line.expandtabs())}".rstrip()

    def _summary_lines(self, text: str) -> Iterator[str]:
        for line in text.splitlines():
            bare = line.expandtabs()
            indent = min(len(bare) - len(bare.lstrip(" ")), _MAX_SUMMARY_INDENT)
            yield from self._wrap(bare, indent=_INDENT + indent) if bare.strip() else ("",)

    def _outcome_sentences(self, compaction: Compaction) -> Iterator[str]:
        meaning = (
            OUTCOME_MEANINGS[compaction.outcome]
            if compaction.undone_at is None
            else f"Undone on {_format_time(compaction.undone_at)}: {undone_meaning(compaction)}"
        )
        yield f"{_capitalize(meaning)}."
        if span := self._span(compaction):
            total_text = (
                f" of the {compaction.seen_messages:,} that the session had at that time"
                if compaction.seen_messages
                else ""
            )
            noun = "Messages" if self._dash in span else "Message"
            yield f"{noun} {span}{total_text}{self._describe_saving(compaction)}."
        if compaction.limit_tokens is not None:
            yield f"The limit is {compaction.limit_tokens:,} tokens for each tool result in this message."
        if compaction.earlier_id is not None:
            yield f"It replaces the earlier compaction {compaction.earlier_id}."
        yield from self._effort_sentences(compaction)

    def _describe_saving(self, compaction: Compaction) -> str:
        if not compaction.tokens_before:
            return ""
        if not _has_saved(compaction):
            return f": {compaction.tokens_before:,} tokens"
        saved = f"{compaction.tokens_before - compaction.tokens_after:,} fewer, {_percent(compaction)}"
        return f": {self._tokens(compaction)} tokens ({saved})"

    def _effort_sentences(self, compaction: Compaction) -> Iterator[str]:
        effort = f" It took {compaction.duration_seconds:.1f} s and cost {_describe_cost(compaction.cost)}."
        yield f"Made by {describe_author(compaction)}.{effort if compaction.outcome.concerns_summary else ''}"
        if compaction.reason:
            is_ok = compaction.outcome is CompactionOutcome.OK
            heading = "The model's own summary was not used" if is_ok else "Reason"
            yield f"{heading}: {' '.join(compaction.reason.split())}"

    def _original_sentences(self, details: CompactionContents) -> Iterator[str]:
        if details.messages:
            number, size = len(details.messages), sum(map(len, details.messages))
            yield f"The store has {number:,} message{'s' * (number != 1)} ({size:,} bytes), unchanged."
            yield f"First message: {self._excerpt(details, details.messages[0])}"
            yield f"Last message: {self._excerpt(details, details.messages[-1])}"
        elif details.compaction.outcome is CompactionOutcome.OK:
            yield "The store no longer has them."
        else:
            yield "None, because no message was replaced."

    def _excerpt(self, details: CompactionContents, turn: bytes) -> str:
        role, line = _message_excerpt(details, turn)
        cut = line if len(line) <= _EXCERPT_CHARS else f"{line[:_EXCERPT_CHARS].rstrip()}{self._ellipsis}"
        return f"{role}: {cut}" if role else cut

    def undo_lines(self, result: UndoResult) -> Iterator[str]:
        for sentence in self._undo_sentences(result):
            yield from self._wrap(sentence)

    def _undo_sentences(self, result: UndoResult) -> Iterator[str]:
        compaction = result.compaction
        name, session = compaction.id[:SHORT_ID_CHARS], compaction.session_id[:SHORT_ID_CHARS]
        if result.was_undone_before:
            undone_time = (
                f" on {_format_time(compaction.undone_at)}" if compaction.undone_at is not None else ""
            )
            yield f"Compaction {name} was already undone{undone_time}. Nothing has changed."
            return
        noun = edit_noun(compaction.outcome).capitalize()
        concerns_results = compaction.outcome.concerns_results
        yield f"{noun} {name} is undone."
        if result.still_in_force is not None:
            other = result.still_in_force
            yield (
                f"Compaction {other.id[:SHORT_ID_CHARS]} of messages {self._span(other)} still applies, so the "
                f"next request of session {session} does not change. To change it, undo that compaction too."
            )
            return
        restored_text = (
            f"the whole tool results in message {self._span(compaction)}"
            if concerns_results
            else f"the original messages {result.first_message:,}{self._dash}{compaction.messages:,}"
        )
        yield (
            f"The next request of session {session} contains {restored_text}: "
            f"about {result.more_tokens:,} more tokens."
        )
        if result.restored is not None:
            other = result.restored
            yield (
                f"Compaction {other.id[:SHORT_ID_CHARS]} applies again and replaces messages "
                f"{self._span(other)}."
            )
        if not concerns_results:
            yield (
                "The gateway may compact these messages again at the next compaction. To prevent that, turn "
                "compaction off."
            )

    def _span(self, compaction: Compaction) -> str:
        if not compaction.messages:
            return ""
        if compaction.cleared:
            first, last = compaction.cleared[0].message + 1, compaction.cleared[-1].message + 1
            return f"{first:,}" if first == last else f"{first:,}{self._dash}{last:,}"
        if compaction.outcome is CompactionOutcome.TOOL_RESULT_TRUNCATED:
            return f"{compaction.messages:,}"
        return f"1{self._dash}{compaction.messages:,}"

    def _tokens(self, compaction: Compaction, after_cells: int = 0) -> str:
        if not _has_saved(compaction):
            return f"{compaction.tokens_before:,}" if compaction.tokens_before else ""
        return f"{compaction.tokens_before:,} {self._arrow} {compaction.tokens_after:>{after_cells},}"


def _has_saved(compaction: Compaction) -> bool:
    return compaction.tokens_after < compaction.tokens_before


def _percent(compaction: Compaction) -> str:
    return f"{100 * (compaction.tokens_before - compaction.tokens_after) / compaction.tokens_before:.0f}%"


def _outcome_text(compaction: Compaction) -> str:
    return f"{compaction.outcome}, undone" if compaction.undone_at is not None else str(compaction.outcome)


def _outcome_style(compaction: Compaction) -> str:
    return "dim" if compaction.undone_at is not None else _STYLES.get(compaction.outcome, "yellow")


def _capitalize(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _describe_cost(cost: Decimal | None) -> str:
    """Format dollars with two decimals, or as many as show a nonzero digit."""
    if cost is None:
        return "an unknown amount"
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
            raise BadOption(f"no compaction belongs to a session whose id starts with {session!r:.80}")
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
            file.write(b",\n" if count > 0 else b"\n")
        file.write(row.encode("ascii"))
        file.write(b"" if as_list else b"\n")
        count += 1
    if as_list:
        file.write(b"\n]\n")
    return count


def carried_lines(carried: Sequence[CarriedLine], display: Display, *, full: bool) -> Iterator[str]:
    """Format a group for each section; without `full`, only the first lines and names of each."""
    for section, group in groupby(carried, key=lambda line: line.section):
        lines = list(group)
        yield from list_lines(section, [_describe_line(line, full=full) for line in lines], display, full=full)


def list_lines(heading: str, texts: Sequence[str], display: Display, *, full: bool) -> Iterator[str]:
    """Format a heading and a list; without `full`, only its first lines and the number of the others."""
    yield ""
    yield style_text(heading, "dim", display)
    shown = texts if full else texts[:_MAX_CARRIED_LINES]
    for text in shown:
        first, *rest = wrap_text(text, display, indent=_CARRIED_INDENT + len(_BULLET))
        yield f"{' ' * _CARRIED_INDENT}{_BULLET}{first.lstrip(' ')}"
        yield from rest
    if len(shown) < len(texts):
        note = f"and {len(texts) - len(shown):,} more; --full shows all"
        yield " " * _CARRIED_INDENT + style_text(note, "dim", display)


def describe_origin(message: int | None, role: str) -> str:
    if message is None:
        return ""
    return f" (message {message:,}, {role})" if role else f" (message {message:,})"


def _describe_line(line: CarriedLine, *, full: bool) -> str:
    if not line.items:
        return line.text + describe_origin(line.message, line.role)
    left_out = 0 if full else max(len(line.items) - _MAX_CARRIED_ITEMS, 0)
    shown = ", ".join(line.items[: len(line.items) - left_out])
    return f"{shown}, and {left_out:,} more; --full shows all" if left_out else shown

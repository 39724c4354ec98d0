"""Read a stored compaction: its original messages, its author and the meaning of its outcome."""

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from decimal import Decimal

from foveate import formats
from foveate.compaction.apply import describe_non_text
from foveate.compaction.edit_timing import Moment
from foveate.compaction.facts.rules import FactKind
from foveate.compaction.facts.sentences import find_fact_sentences
from foveate.compaction.facts.statements import (
    ASSISTANT_PREFIX,
    FIRST_REQUEST_PREFIX,
    HEADINGS,
    LAST_REQUEST_PREFIX,
    LINE_START,
)
from foveate.compaction.store import Compaction, CompactionOutcome, CompactionStore, EditDecision
from foveate.compaction.summarize.extractive import CarriedLine
from foveate.compaction.summarize.summarizer import EXTRACTIVE_MODEL
from foveate.compaction.summarize.verify import is_unlisted_note
from foveate.cost.ledger import Category, Charge, Ledger
from foveate.errors import MalformedRequest
from foveate.model import Format, Part, Request, Text, Thinking, ToolCall, ToolResult
from foveate.session.hash_chain import compute_chain

OUTCOME_MEANINGS = {
    CompactionOutcome.OK: "the summary is sent instead of these messages",
    CompactionOutcome.FAILED: "no summary could be written, so the messages are sent unchanged",
    CompactionOutcome.LOCK_HELD: "another process was compacting the session, or had just done so",
    CompactionOutcome.NO_BOUNDARY: "the history has no place to cut that keeps tool calls and results together",
    CompactionOutcome.TOOL_RESULT_TRUNCATED: "only the beginning and end of a long tool result are sent",
    CompactionOutcome.RESULTS_CLEARED: "tool results that are no longer needed are sent as placeholders",
    CompactionOutcome.SECTIONS_MOVED: (
        "text that was added to injected sections is sent before the history, where it can be cached"
    ),
}
_UNDONE_MEANINGS = {
    CompactionOutcome.OK: "the messages are sent unchanged",
    CompactionOutcome.TOOL_RESULT_TRUNCATED: "the tool result is sent in full",
    CompactionOutcome.RESULTS_CLEARED: "the tool results are sent in full",
}

_EDIT_NOUNS = {
    CompactionOutcome.TOOL_RESULT_TRUNCATED: "truncation",
    CompactionOutcome.RESULTS_CLEARED: "clearing",
    CompactionOutcome.SECTIONS_MOVED: "move of sections",
}
# A request with a smaller share of the tokens does not continue the conversation whose sections were moved.
_MIN_TOKENS_SHARE = 0.5
# If less of the request before is read, only the system prompt was still cached, or another session's.
_MIN_READ_SHARE = 0.5
_MAX_EDITS = 1_000
# A request may wait for an edit, and comes this much earlier at most.
_MAX_REQUEST_SECONDS = 3_600
_MOMENTS: dict[str, str] = {
    Moment.ARRIVAL: "before a request was sent",
    Moment.RESPONSE: "after a response",
    Moment.EXPIRY: "before the cache expired",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RealizedGain:
    """What an edit has saved so far, after its cost, and in how many requests."""

    dollars: Decimal = Decimal(0)
    requests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionContents:
    """`api_format` is None if it is not known, and `realized` if it was not computed."""

    compaction: Compaction
    messages: Sequence[bytes]
    api_format: Format | None
    hashes: Sequence[bytes] = ()
    realized: RealizedGain | None = None


async def load_contents(store: CompactionStore, compaction: Compaction) -> CompactionContents:
    return identify_contents(compaction, await store.load_messages(compaction.id))


def identify_contents(compaction: Compaction, messages: Sequence[bytes]) -> CompactionContents:
    for api_format in Format if messages else ():
        request = Request(
            format=api_format, model=compaction.model, body=b"{}", system=(), tools=(), messages=tuple(messages)
        )
        try:
            chain = compute_chain(request)
        except MalformedRequest:
            continue
        # The format is not stored, but it is part of each hash: only the right one gives the boundary.
        if chain.hashes[-1:] == (compaction.boundary,):
            return CompactionContents(
                compaction=compaction, messages=messages, api_format=api_format, hashes=chain.hashes
            )
        # The messages of cleared results do not follow each other, so their hashes tell nothing.
        if compaction.cleared and all(_has_results(api_format, raw) for raw in messages):
            return CompactionContents(compaction=compaction, messages=messages, api_format=api_format)
    return CompactionContents(compaction=compaction, messages=messages, api_format=None)


def _has_results(api_format: Format, raw: bytes) -> bool:
    return any(isinstance(part, ToolResult) for part in formats.parse_message(api_format, raw).parts)


@dataclass(frozen=True, slots=True)
class EditGain:
    """What an edit was expected to save, and what it has saved; None if that is not known."""

    outcome: CompactionOutcome
    decision: EditDecision | None
    realized: RealizedGain | None

    def sentences(self) -> tuple[str, ...]:
        return tuple(filter(None, (self._expected_sentence(), self._realized_sentence())))

    def _expected_sentence(self) -> str:
        decision = self.decision
        if decision is None:
            return ""
        return (
            f"Made {_MOMENTS.get(decision.moment, decision.moment)}, because it was expected to save "
            f"${decision.gain_dollars:.4f} in about {decision.expected_requests:.0f} more requests and to "
            f"cost ${decision.cost_dollars:.4f}, so ${decision.net_dollars:.4f} in all."
        )

    def _realized_sentence(self) -> str:
        realized = self.realized
        if realized is None or not (realized.requests or realized.dollars):
            return ""
        requests = f"{realized.requests:,} request{'s' * (realized.requests != 1)}"
        verb = "lost" if realized.dollars < 0 else "saved"
        is_move = self.outcome is CompactionOutcome.SECTIONS_MOVED
        cost = "writing the history again" if is_move else "summary"
        return f"So far it has {verb} ${abs(realized.dollars):.4f} in {requests}, {cost} included."


async def load_gains(store: CompactionStore, ledger: Ledger | None, session_id: str) -> dict[str, EditGain]:
    """The gains of a session's edits, by id, in order of time. Without a ledger, only the expected ones."""
    edits = await store.list_compactions(session_id=session_id, limit=_MAX_EDITS)
    made = [edit for edit in edits if edit.outcome.is_edit]
    realized: Mapping[str, RealizedGain] = {}
    if made and ledger is not None:
        realized = await asyncio.to_thread(realized_gains, made, await _load_charges(ledger, made))
    return {edit.id: EditGain(edit.outcome, edit.decision, realized.get(edit.id)) for edit in reversed(made)}


async def _load_charges(ledger: Ledger, made: Sequence[Compaction]) -> list[Charge]:
    since = min(edit.compacted_at for edit in made) - _MAX_REQUEST_SECONDS
    listed = ledger.list_charges(since=since, agent=made[0].agent, session_id=made[0].session_id)
    return [charge async for charge in listed]


def realized_gains(edits: Iterable[Compaction], charges: Sequence[Charge]) -> dict[str, RealizedGain]:
    """What the edits of a session have saved, by id, from the charges of the session.

    The saving of a request is shared among the edits in force, by the tokens that each of them freed. What
    moves of sections save is computed by itself.
    """
    all_made = [edit for edit in edits if edit.outcome.is_edit]
    made = {edit.id: edit for edit in all_made if edit.outcome.changes_requests}
    freed = {
        edit.id: edit.freed_tokens - (made[edit.earlier_id].freed_tokens if edit.earlier_id in made else 0)
        for edit in made.values()
    }
    main_charges = [charge for charge in charges if charge.call.category is Category.MAIN]
    first_at = {edit.id: _first_request_at(edit, main_charges) for edit in all_made}
    gains = {edit.id: RealizedGain(dollars=-(edit.cost or Decimal(0))) for edit in made.values()}
    for charge in main_charges:
        at, saved = charge.call.at, charge.savings.compaction
        in_force = [
            edit.id
            for edit in made.values()
            if first_at[edit.id] <= at
            and (edit.undone_at is None or at < edit.undone_at)
            and freed[edit.id] > 0
        ]
        if saved is None or not in_force:
            continue
        total = sum(freed[id_] for id_ in in_force)
        for id_ in in_force:
            gains[id_] = RealizedGain(
                dollars=gains[id_].dollars + saved * freed[id_] / total, requests=gains[id_].requests + 1
            )
    edited_at = sorted(
        first_at[edit.id] for edit in all_made if edit.outcome is not CompactionOutcome.TOOL_RESULT_TRUNCATED
    )
    return gains | {
        edit.id: _move_gain(edit, edited_at, main_charges)
        for edit in all_made
        if edit.outcome is CompactionOutcome.SECTIONS_MOVED
    }


def _move_gain(move: Compaction, edited_at: Sequence[float], charges: Iterable[Charge]) -> RealizedGain:
    """What a move of sections has saved, until a request found the history's cache expired or was changed by
    another edit. From then on, the text would be there anyway: it moves at no cost when the history is written
    again.
    """
    if move.decision is None:
        return RealizedGain()
    end = next((at for at in edited_at if at > move.compacted_at), math.inf)
    requests, cached_tokens = 0, move.tokens_before
    for charge in charges:
        tokens = charge.usage.cache.input_tokens
        if charge.call.at <= move.compacted_at or tokens < _MIN_TOKENS_SHARE * move.tokens_before:
            continue
        if charge.call.at >= end or charge.usage.cache.read < _MIN_READ_SHARE * cached_tokens:
            break
        requests, cached_tokens = requests + 1, tokens
    cost = Decimal(str(move.decision.cost_dollars))
    saved = requests * Decimal(str(move.decision.saved_per_request_dollars))
    return RealizedGain(dollars=saved - cost, requests=requests)


def edit_noun(outcome: CompactionOutcome) -> str:
    return _EDIT_NOUNS.get(outcome, "compaction")


def _first_request_at(edit: Compaction, charges: Iterable[Charge]) -> float:
    """When the first request came that an edit has changed: one that waited for it came before the edit."""
    if edit.decision is None or edit.decision.moment != Moment.ARRIVAL:
        return edit.compacted_at
    waited = [charge.call.at for charge in charges if charge.call.at <= edit.compacted_at]
    return max(waited, default=edit.compacted_at)


def undone_meaning(compaction: Compaction) -> str:
    return _UNDONE_MEANINGS.get(compaction.outcome, "it changed nothing")


def describe_author(compaction: Compaction) -> str:
    if not compaction.outcome.concerns_summary:
        return f"rules, for {compaction.model}"
    return "rules, without a model" if is_by_rules(compaction) else compaction.model


def is_by_rules(compaction: Compaction) -> bool:
    return compaction.model == EXTRACTIVE_MODEL


_FACT_SECTIONS = {
    FactKind.CONSTRAINT: "Constraints",
    FactKind.TASK: "Open tasks",
    FactKind.DECISION: "Decisions",
}
_NAMES_SECTION = "Also named"
_PREFIXES = (ASSISTANT_PREFIX, FIRST_REQUEST_PREFIX, LAST_REQUEST_PREFIX)
_CLIPPED_END = " …"


def trace_carried(contents: CompactionContents) -> list[CarriedLine]:
    """The lines of a summary by rules, or the facts listed after a model's, each with its message if found."""
    compaction = contents.compaction
    carried = [
        *(_parse_summary(compaction.summary) if is_by_rules(compaction) else ()),
        *group_facts(compaction.carried),
    ]
    if all(line.items for line in carried):
        return carried
    messages = [_read_plain(contents.api_format, raw) for raw in contents.messages]
    traced = [line if line.items else _find_origin(line, messages) for line in carried]
    if all(line.items or line.message for line in traced):
        return traced
    words = [(role, set(content.split())) for role, content in messages]
    return [line if line.items or line.message else _find_updated_origin(line, words) for line in traced]


def _parse_summary(summary: str) -> Iterator[CarriedLine]:
    section = "Carried"
    for line in summary.splitlines():
        group, colon, rest = line.partition(": ")
        if line in HEADINGS:
            section = line
        elif line.startswith(LINE_START) or not colon:
            yield CarriedLine(section, line.removeprefix(LINE_START), None)
        else:
            yield CarriedLine(group, rest, None, items=tuple(rest.split()))


def group_facts(facts: Sequence[str]) -> Iterator[CarriedLine]:
    """The facts listed after a model's summary by section, with all names in one line."""
    kinds = {fact: next(find_fact_sentences(fact, tuple(_FACT_SECTIONS)), (None, ""))[0] for fact in facts}
    for kind, section in _FACT_SECTIONS.items():
        yield from (CarriedLine(section, fact, None) for fact in facts if kinds[fact] is kind)
    names = [fact for fact in facts if kinds[fact] is None]
    if names:
        names.sort(key=lambda name: (is_unlisted_note(name), name.isalpha(), -len(name)))
        yield CarriedLine(_NAMES_SECTION, " ".join(names), None, items=tuple(names))


def _read_plain(api_format: Format | None, raw: bytes) -> tuple[str, str]:
    try:
        role, text = read_message(api_format, raw)
    except MalformedRequest:
        role, text = read_message(None, raw)
    return role, " ".join(text.split())


def _find_origin(line: CarriedLine, messages: Sequence[tuple[str, str]]) -> CarriedLine:
    """Find the first message that contains the text of a line."""
    prefix = next((prefix for prefix in _PREFIXES if line.text.startswith(prefix)), "")
    text = line.text.removeprefix(prefix).removesuffix(_CLIPPED_END)
    for number, (role, content) in enumerate(messages, start=1):
        if text in content:
            return replace(line, message=number, role=role)
    return line


def _find_updated_origin(line: CarriedLine, messages: Sequence[tuple[str, Set[str]]]) -> CarriedLine:
    """Find the message of an updated sentence, which has another value than there."""
    words = set(line.text.split())
    missing = [len(words - content) for _, content in messages]
    if min(missing, default=len(words)) > len(words) // _WORDS_PER_UPDATE:
        return line
    number = missing.index(min(missing))
    return replace(line, message=number + 1, role=messages[number][0])


# Of this many words, one may be another.
_WORDS_PER_UPDATE = 5


def read_message(api_format: Format | None, raw: bytes) -> tuple[str, str]:
    """Return role and text of a message; the raw text if its format is not known."""
    if api_format is None:
        return "", raw.decode("utf-8", "backslashreplace")
    message = formats.parse_message(api_format, raw)
    return message.role, "\n".join(filter(None, map(_part_text, message.parts)))


def _part_text(part: Part) -> str:
    match part:
        case Text():
            return part.text
        case Thinking():
            return f"[thinking] {part.text}" if part.text else "[thinking]"
        case ToolCall():
            return f"[calls {part.name}] {part.arguments}"
        case ToolResult():
            inner = "\n".join(filter(None, map(_part_text, part.parts)))
            return (
                f"[{'error' if part.is_error else 'result'}{f' of {part.name}' if part.name else ''}] {inner}"
            )
        case _:
            return describe_non_text(part) or ""

"""Find what people said: whole sentences with their kind, label, subject and origin.

Users and developers state constraints, facts, tasks and wishes; the assistant confirms some. Tool results,
code, tables and quotations never count. A summary by rules that comes back as a message is read as what it is:
its lines, with who said them.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from foveate.compaction.facts.language import find_stem, language
from foveate.compaction.facts.prose import find_label, mask_quotations, prose_sentences, strip_label
from foveate.compaction.facts.rules import FactKind, find_names, rules
from foveate.compaction.facts.sentences import clean_sentence, find_phrase, is_question, normalize_letters
from foveate.compaction.facts.subjects import (
    POSSESSIVE,
    Subject,
    cut_reason,
    find_subject,
    split_words,
    starts_with_value,
)
from foveate.compaction.facts.texts import Speaker, message_texts
from foveate.model import Message

_MAX_STATEMENT_CHARS = 400
# A longer message is a document: only its constraints and labelled lines are read.
_MAX_SENTENCES = 400
# Few people write more than this in one message, or less with titles and tables; they paste it.
_MAX_OWN_SENTENCES = 30
_MAX_FORMATTED_SENTENCES = 10
_FORMATTED = re.compile(r"^(?:#{1,6} |\|)", re.MULTILINE)
_MAX_CANCEL_CHARS = 120
_MIN_WORDS = 2
_MIN_MARK_CHARS = 2
# In Italian, "mai" means "never"; in German and French it is May.
_MONTH_MAI = re.compile(r"[mM][aA][iI]\b(?:(?<=\d ...)|(?<=\d\. ...))")
DEVELOPER_ROLES = frozenset(("system", "developer"))
ASSISTANT_PREFIX = "assistant: "
FIRST_REQUEST_PREFIX, LAST_REQUEST_PREFIX = "asked first: ", "asked last: "
LINE_START = "- "
# Lines of a summary by rules that are not statements: names, files, and quoted errors of tools.
_NAMES_LINE = re.compile(r"(?:Names|Files \w{1,20}): ")
_ERROR_LINE = re.compile(r"- [^\n\"]{1,80} answered: \"")


class StatementKind(IntEnum):
    """Kinds of statements, the most important first."""

    CONSTRAINT = 0
    PREFERENCE = 1
    TASK = 2
    FACT = 3
    DECISION = 4
    OTHER = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A sentence as it was said, on one line.

    `message_index`, `text_index` and the range tell where. `is_summary`: it comes from an earlier summary.
    """

    text: str
    kind: StatementKind
    label: str
    subject: Subject
    speaker: Speaker
    message_index: int
    text_index: int
    start: int
    end: int
    is_summary: bool = False
    cancelled: tuple[frozenset[str], ...] = ()
    """The stems of each thing that it calls off."""
    request_prefix: str = ""
    """How an earlier summary introduced it, if it is a request."""
    is_quoted: bool = False
    """It is part of a long text in a message, so perhaps not the author's own words."""

    @property
    def is_marked(self) -> bool:
        """Return whether its label stands out: "SAFETY RULE: …". Others only name a topic: "Tickets: …"."""
        return self.label.isupper() and len(self.label) >= _MIN_MARK_CHARS


def find_statements(messages: Sequence[Message]) -> list[Statement]:
    """All statements of people, and those of the assistant that confirm something, in order."""
    statements: list[Statement] = []
    for message_index, message in enumerate(messages):
        for text_index, (speaker, text) in enumerate(message_texts(message)):
            if speaker is Speaker.USER and is_summary(text):
                statements += _read_summary(text, message_index, text_index)
            elif speaker in (Speaker.USER, Speaker.MODEL):
                found = _read_prose(text, speaker, message_index, text_index)
                statements += map(_as_instruction, found) if message.role in DEVELOPER_ROLES else found
    return statements


def _as_instruction(statement: Statement) -> Statement:
    """What a developer says without a cue is an instruction too: "Be brief."."""
    kind = StatementKind.PREFERENCE if statement.kind is StatementKind.OTHER else statement.kind
    return replace(statement, kind=kind, is_quoted=False)


def is_summary(text: str) -> bool:
    """Return whether a text is a summary by rules: lines of items, perhaps under short headings."""
    lines = text.strip("\n").splitlines()
    return all(_is_item(line) or line in HEADINGS for line in lines) and any(map(_is_item, lines))


QUOTED_HEADING = "From pasted text"
HEADINGS = (
    "Goal", "Constraints", "Facts", "Open tasks", "State", "Decisions", "Errors", "Also said", QUOTED_HEADING
)  # fmt: skip


def _is_item(line: str) -> bool:
    return line.startswith(LINE_START) or _NAMES_LINE.match(line) is not None


def is_error_line(line: str) -> bool:
    return _ERROR_LINE.match(line) is not None


def _read_summary(text: str, message_index: int, text_index: int) -> Iterator[Statement]:
    position = 0
    heading = ""
    for line in text.splitlines(keepends=True):
        start, position = position, position + len(line)
        heading = line.strip() if line.strip() in HEADINGS else heading
        content = line.strip().removeprefix(LINE_START)
        if not line.startswith(LINE_START) or is_error_line(line):
            continue
        prefixes = (ASSISTANT_PREFIX, FIRST_REQUEST_PREFIX, LAST_REQUEST_PREFIX)
        prefix = next((prefix for prefix in prefixes if content.startswith(prefix)), "")
        content = content.removeprefix(prefix)
        speaker = Speaker.MODEL if prefix == ASSISTANT_PREFIX else Speaker.USER
        if content:
            subject = find_statement_subject(content, speaker)
            yield Statement(
                text=content,
                kind=_classify(content, subject, speaker),
                label=find_label(content) if speaker is Speaker.USER else "",
                subject=subject,
                cancelled=_find_cancelled(content),
                speaker=speaker,
                message_index=message_index,
                text_index=text_index,
                start=start,
                end=position,
                is_summary=True,
                request_prefix=prefix if speaker is Speaker.USER else "",
                is_quoted=heading == QUOTED_HEADING,
            )


def _read_prose(text: str, speaker: Speaker, message_index: int, text_index: int) -> Iterator[Statement]:
    ranges = list(_labelled_units(text))
    is_document = len(ranges) > _MAX_SENTENCES
    is_quoted = len(ranges) > (_MAX_FORMATTED_SENTENCES if _FORMATTED.search(text) else _MAX_OWN_SENTENCES)
    remaining = _MAX_SENTENCES
    for start, end in ranges:
        sentence = clean_sentence(text[start:end]) if end - start <= _MAX_STATEMENT_CHARS else ""
        if len(sentence.split()) < _MIN_WORDS and sentence.isascii():
            continue
        label = find_label(sentence) if speaker is Speaker.USER else ""
        if is_document and not (label or _is_constraint(sentence, speaker)):
            continue
        if is_question(sentence) and not (_is_constraint(sentence, speaker) or _asks_for_change(sentence)):
            continue
        subject = find_statement_subject(sentence, speaker)
        kind = _classify(sentence, subject, speaker)
        if speaker is Speaker.USER or kind in _CONFIRMED:
            yield Statement(
                text=sentence,
                kind=kind,
                label=label,
                subject=subject,
                cancelled=_find_cancelled(sentence),
                speaker=speaker,
                message_index=message_index,
                text_index=text_index,
                start=start,
                end=end,
                is_quoted=is_quoted,
            )
            remaining -= 1
            if not remaining:
                return


def _asks_for_change(question: str) -> bool:
    """Return whether a question asks for another value: "Can you move it to 5 pm?"."""
    words = language()
    return (
        words.request_cues.match(question) is not None
        and words.update_cues.search(question) is not None
        and find_statement_subject(question).has_hard_value
    )


# What the assistant says counts if it is one of these.
_CONFIRMED = frozenset((StatementKind.TASK, StatementKind.FACT, StatementKind.DECISION))


def find_statement_subject(sentence: str, speaker: Speaker = Speaker.USER) -> Subject:
    """The subject of a sentence as it was said, perhaps with a label and quotations."""
    plain = _unquoted(sentence)
    unlabelled = strip_label(plain)
    # "Budget: 2,400 euros": the label says what the value is.
    is_value = unlabelled != plain and starts_with_value(unlabelled)
    return find_subject(plain if is_value else unlabelled, with_clauses=speaker is Speaker.USER)


def _find_cancelled(sentence: str) -> tuple[frozenset[str], ...]:
    """The content words of each thing that a sentence calls off: "Forget the tickets and the tour."."""
    text = strip_label(_plain(sentence))
    match = language().cancel_cues.search(text)
    if match is None or _is_plan_to_cancel(text[: match.start()]):
        return ()
    start = max(text.rfind(mark, 0, match.start()) for mark in ",;:.") + 1
    ends = [end for mark in ",;:." if (end := text.find(mark, match.end())) >= 0]
    end = min(ends, default=len(text))
    clause = cut_reason(text[start:end][:_MAX_CANCEL_CHARS])
    after = text[end:].lstrip(",;:. ").partition(",")[0][:_MAX_CANCEL_CHARS]
    # "I called it off, no party." "The books are back, strike that one.": what is called off stands elsewhere.
    return (
        _find_things(clause)
        or (_find_things(after) if after.partition(" ")[0].lower() in rules().negations else ())
        or _find_things(text[: max(start - 1, 0)][-_MAX_CANCEL_CHARS:])
    )


# "no party this year"
_PERIODS = frozenset(
    map(find_stem, ("week", "month", "year", "woche", "monat", "jahr", "semaine", "mois", "año"))
)


def _find_things(clause: str) -> tuple[frozenset[str], ...]:
    """The stems of each thing that a clause names, besides words that call it off."""
    things = (
        frozenset(stem for stem, word in part.words.items() if word not in language().cancel_words) - _PERIODS
        | {find_stem(word) for value in part.all_values for word in split_words(value)}
        for part in map(find_subject, _split_things(clause))
    )
    return tuple(filter(None, things))


def _split_things(clause: str) -> Iterator[str]:
    """Things that a conjunction joins, but not what somebody does instead: "… and want the other"."""
    words = language()
    is_after_cue = False
    for part in words.conjunctions.split(clause):
        functions = words.function_words.intersection(part.lower().split())
        if not is_after_cue or functions <= words.determiners | words.prepositions:
            yield part
        is_after_cue = is_after_cue or words.cancel_cues.search(part) is not None


def _is_plan_to_cancel(before: str) -> bool:
    """Return whether the word before makes a task of a verb or negates it: "to drop …", "don't forget …"."""
    words = before.lower().split()
    return bool(words) and words[-1] in language().before_infinitives


def _plain(sentence: str) -> str:
    """The sentence without what it quotes, for rules."""
    return _MONTH_MAI.sub("   ", _unquoted(sentence))


def _unquoted(sentence: str) -> str:
    return normalize_letters(mask_quotations(sentence))


def _is_constraint(sentence: str, speaker: Speaker) -> bool:
    return speaker is Speaker.USER and find_phrase(FactKind.CONSTRAINT, _plain(sentence)) is not None


def _labelled_units(text: str) -> Iterator[tuple[int, int]]:
    """Ranges of sentences. A label at the start of a line covers its sentence, and those that belong to it."""
    unit: tuple[int, int] | None = None
    for start, end in prose_sentences(text):
        is_labelled = bool(find_label(text[start:end]))
        if unit is not None:
            is_same_line = "\n" not in text[unit[1] : start]
            fits = is_same_line and not is_labelled and end - unit[0] <= _MAX_STATEMENT_CHARS
            if fits and _belongs_to_label(text[start:end], text[unit[0] : unit[1]]):
                unit = unit[0], end
                continue
            yield unit
            unit = None
        line_start = text.rfind("\n", 0, start) + 1
        if is_labelled and not text[line_start:start].strip():
            unit = start, end
        else:
            yield start, end
    if unit is not None:
        yield unit


def _belongs_to_label(sentence: str, labelled: str) -> bool:
    """Return whether a sentence continues a labelled one: it refers back, or states nothing of its own."""
    if is_question(sentence):
        return False
    words = sentence.split(maxsplit=_REFERENCE_WORDS)[:_REFERENCE_WORDS]
    if not language().back_references.isdisjoint(word.strip(".,!?").lower() for word in words):
        return True
    subject = find_statement_subject(sentence)
    names_subject = bool(subject.topic) or any(relation == POSSESSIVE for relation, _ in subject.qualifiers)
    is_task = find_phrase(FactKind.TASK, find_label(labelled)) is not None
    return not is_task and not (names_subject and subject.values)


# A sentence that refers to the one before does so early: "Never exceed it."
_REFERENCE_WORDS = 4


def _classify(sentence: str, subject: Subject, speaker: Speaker) -> StatementKind:
    plain = _plain(sentence)
    words = language()
    if speaker is Speaker.USER and find_phrase(FactKind.CONSTRAINT, plain):
        return StatementKind.CONSTRAINT
    if find_phrase(FactKind.TASK, plain) or words.task_cues.search(plain):
        return StatementKind.TASK
    if speaker is Speaker.USER and words.preference_cues.search(plain):
        return StatementKind.PREFERENCE
    if find_phrase(FactKind.DECISION, plain):
        return StatementKind.DECISION
    if subject.has_hard_value or (speaker is Speaker.USER and subject.values) or next(find_names(plain), None):
        return StatementKind.FACT
    return StatementKind.OTHER


def is_request(text: str) -> bool:
    """Return whether a text asks for something, at the start of one of its first sentences."""
    plain = normalize_letters(mask_quotations(text[:_MAX_STATEMENT_CHARS])).strip()
    if is_question(plain) or is_question(plain.partition("\n")[0]):
        return True
    starts = [0, *(match.end() for match in _CLAUSE_START.finditer(plain))]
    return any(language().request_cues.match(plain, start) for start in starts)


_CLAUSE_START = re.compile(r"[.!?,;:]\s+")

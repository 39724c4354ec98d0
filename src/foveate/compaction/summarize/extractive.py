"""Write an extractive summary, without a model: what people said and is still true, within a token limit.

Labelled statements and the goal come first, then open tasks, the current state, files and errors, each within
its share, and clauses of the statements of people, those that say most in little room first. If the assistant
works with tools, whole constraints come before all others, and the names, paths and numbers that later turns
will most probably need come before the rest of the statements. Room that is left goes to whole sentences. The
summary is a record: it quotes what was said and never gives orders.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from heapq import nlargest
from itertools import starmap
from typing import Any

from foveate import formats
from foveate.budget.sections import check_token_limit
from foveate.compaction.facts.extract import (
    ALWAYS_CARRIED,
    ConversationFacts,
    Fact,
    RankedFact,
    ToolError,
    extract_facts,
    find_tool_errors,
    find_touched_files,
    rank_facts,
    read_conversation,
)
from foveate.compaction.facts.language import is_generic_name
from foveate.compaction.facts.mentions import MentionIndex
from foveate.compaction.facts.prose import find_label
from foveate.compaction.facts.rules import SENTENCE_KINDS, FactKind
from foveate.compaction.facts.sentences import clean_sentence, split_sentences
from foveate.compaction.facts.statements import (
    ASSISTANT_PREFIX,
    DEVELOPER_ROLES,
    FIRST_REQUEST_PREFIX,
    LAST_REQUEST_PREFIX,
    LINE_START,
    QUOTED_HEADING,
    Statement,
    StatementKind,
    is_error_line,
    is_request,
    is_summary,
)
from foveate.compaction.facts.texts import MODEL_ROLES, Speaker, message_texts
from foveate.compaction.summarize.clause_choice import ClauseChooser, TokenCounter
from foveate.compaction.summarize.clause_facts import ClauseWeights
from foveate.compaction.summarize.clauses import find_asking_clause
from foveate.errors import BadOption
from foveate.model import Message, Text, ToolCall
from foveate.tokens.offline_counters import counter_for
from foveate.tokens.request_bodies import parse_message_list

# Share of the replaced tokens. A short head may keep more, but never more than half.
_DEFAULT_SHARE = 0.10
MIN_SUMMARY_TOKENS = 256

_CANDIDATES_PER_TOKEN = 4  # how many names to consider per token of room
_LINE_TOKENS = 1  # for the line break, and for changes where two texts meet

_MAX_GOAL_CHARS = 300
_MAX_REQUEST_CHARS = 4 * _MAX_GOAL_CHARS
_MAX_STATE_CHARS = 200
_MAX_ERROR_CHARS = 160


class _SummarySection(StrEnum):
    GOAL = "Goal"
    CONSTRAINTS = "Constraints"
    TASKS = "Open tasks"
    FACTS = "Facts"
    STATE = "State"
    FILES = "Files"
    DECISIONS = "Decisions"
    ERRORS = "Errors"
    OTHER = "Also said"
    QUOTED = QUOTED_HEADING
    NAMES = "Names"


# These sections need no heading: each of their lines says what it is.
_SELF_DESCRIBING = frozenset((_SummarySection.FILES, _SummarySection.NAMES))
_HEADINGS_SHARE = 0.02

# The maximum share of constraints and marked statements, of the goal, of other marked statements, and of each
# section, in the order in which they are filled. In a conversation without tools, people say step by step what
# they want: a short summary does without the goal, and constraints come first only if they take a small share.
_RULES_SHARE = 0.50
_WHOLE_RULES_SHARE = 0.05
_GOAL_SHARE, _CHAT_GOAL_SHARE = 0.16, 0.035
_MARKED_SHARE, _CHAT_MARKED_SHARE = 0.35, 0.60
# That of statements, if the assistant works with tools, whose names matter as well.
_STATEMENTS_SHARE = 0.11
_SHARES = {
    _SummarySection.TASKS: 0.10,
    _SummarySection.STATE: 0.05,
    _SummarySection.FILES: 0.15,
    _SummarySection.ERRORS: 0.06,
}
_STATEMENT_SECTIONS = {
    StatementKind.CONSTRAINT: _SummarySection.CONSTRAINTS,
    StatementKind.PREFERENCE: _SummarySection.CONSTRAINTS,
    StatementKind.TASK: _SummarySection.TASKS,
    StatementKind.FACT: _SummarySection.FACTS,
    StatementKind.DECISION: _SummarySection.DECISIONS,
    StatementKind.OTHER: _SummarySection.OTHER,
}


@dataclass(frozen=True, slots=True)
class CarriedLine:
    """A line of a summary.

    `message` is the number, from 1, of the message that it comes from, and `role` says who wrote it, if that is
    known. `items` are the names or files if it lists some, the most specific first.
    """

    section: str
    text: str
    message: int | None
    role: str = ""
    items: tuple[str, ...] = ()

    def moved_to(self, positions: Sequence[int], roles: Sequence[str]) -> "CarriedLine":
        """The line with its message among all, which have `roles` and of which `positions` were summarized."""
        if self.message is None:
            return self
        position = positions[self.message - 1]
        return replace(self, message=position + 1, role=roles[position])


@dataclass(frozen=True, slots=True)
class ExtractiveSummary:
    text: str
    facts: tuple[Fact, ...]
    carried: tuple[CarriedLine, ...] = ()
    conversation: ConversationFacts | None = None


def summary_limit_tokens(replaced_tokens: int) -> int:
    return min(replaced_tokens // 2, max(int(replaced_tokens * _DEFAULT_SHARE), MIN_SUMMARY_TOKENS))


def summarize_by_rules(
    messages: Sequence[Message],
    *,
    limit_tokens: int,
    count: TokenCounter,
    tail: Sequence[Message] = (),
    fact_weights: Mapping[str, float] | None = None,
    clause_weights: ClauseWeights | None = None,
) -> ExtractiveSummary:
    """Summarize `messages` within `limit_tokens`, as counted by `count`; empty if nothing fits.

    Names in `tail`, which follows the summary, are not repeated, and what it changes is left out.
    `fact_weights` and `clause_weights` replace the default weights, for experiments.
    """
    conversation = read_conversation(messages, tail)
    ranked = rank_facts(conversation.facts, len(messages), fact_weights)
    statements = _rank_statements(conversation)
    outdated = {conversation.statements[number].text for number in conversation.replaced}
    summary = _SummaryBuilder(limit_tokens, count, outdated - {statement.text for statement in statements})
    chooser = ClauseChooser(messages, statements, count, clause_weights)

    def fill_clauses(chosen: Sequence[Statement], share: float = 1.0) -> bool:
        limit = min(int(limit_tokens * share), summary.room_tokens)
        return summary.fill(starmap(_clause_entry, chooser.choose(chosen, limit)), share_tokens=limit)

    has_work = any(isinstance(part, ToolCall) for message in messages for part in message.parts)
    rules = [rule for rule in statements if rule.is_marked or rule.kind is StatementKind.CONSTRAINT]
    marked = [statement for statement in rules if statement.is_marked]
    entries = [_statement_entry(rule) for rule in rules]
    if not has_work and sum(count(entry.line) + 1 for entry in entries) > limit_tokens * _WHOLE_RULES_SHARE:
        entries = [_statement_entry(statement) for statement in marked]
    summary.fill(entries, share_tokens=int(limit_tokens * _RULES_SHARE))
    requests = _find_requests(messages, statements)
    goal_share = _GOAL_SHARE if has_work else _CHAT_GOAL_SHARE
    summary.fill_goal(requests, share_tokens=int(limit_tokens * goal_share))
    marked_share = _MARKED_SHARE if has_work else _CHAT_MARKED_SHARE
    summary.fill(map(_statement_entry, marked), share_tokens=int(limit_tokens * marked_share))
    sections = _section_entries(messages, ranked)
    for section, share in _SHARES.items():
        if section is _SummarySection.STATE and not has_work:
            continue  # People end a conversation with thanks.
        summary.fill(sections[section], share_tokens=int(limit_tokens * share))
    chooser.cover(summary.quoted_statements())
    useful = [statement for statement in statements if _says_something(statement)]
    if has_work:
        said = [
            statement
            for statement in useful
            if statement.speaker is Speaker.USER
            or statement.kind in (StatementKind.TASK, StatementKind.DECISION)
        ]
        fill_clauses(said, _STATEMENTS_SHARE)
    else:
        fill_clauses(useful)
    tail_facts = {fact.text for fact in extract_facts(tail)}
    names = [
        ranked_fact
        for ranked_fact in ranked
        if ranked_fact.fact.kind not in SENTENCE_KINDS and ranked_fact.fact.text not in tail_facts
        if not is_generic_name(ranked_fact.fact.text) and not _is_bare_result(ranked_fact.fact)
        if has_work or _is_said(ranked_fact.fact)
    ]
    if has_work:
        # A name that only people mention is better carried in its sentence.
        summary.fill_names([ranked_fact for ranked_fact in names if _is_from_work(ranked_fact.fact)])
    for _ in range(_MAX_FILLS):
        if not fill_clauses(useful):
            break
    for _ in range(_MAX_FILLS):
        if not summary.fill(map(_statement_entry, useful)):
            break
    summary.drop_mentioned_names()
    summary.fill_goal(requests or _user_texts(messages)[:1])
    summary.fill_names(names)
    return replace(summary.build(), conversation=conversation)


def summarize_messages(messages: Sequence[Any], *, limit_tokens: int, model: str | None = None) -> str:
    """Summarize messages of any API format; see `foveate.summarize`.

    Raises:
        BadOption: an invalid limit, or `messages` is not a list.
        MalformedRequest: a message is not an object, or cannot be written as JSON.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise BadOption(
            f"messages must be a list of messages, not {type(messages).__name__}", path=("messages",)
        )
    if check_token_limit(limit_tokens, ("limit_tokens",)) is None:
        raise BadOption("limit_tokens must be a number of tokens, 0 or more, not None", path=("limit_tokens",))
    counter = counter_for(model or _DEFAULT_MODEL)
    return summarize_by_rules(
        _parse_messages(messages, model or _DEFAULT_MODEL),
        limit_tokens=limit_tokens,
        count=lambda text: counter.text(text).upper,
    ).text


def _parse_messages(messages: Sequence[Any], model: str) -> list[Message]:
    others = [message for message in messages if not isinstance(message, Message)]
    if not others:
        return [message for message in messages if isinstance(message, Message)]
    if len(others) < len(messages):
        raise BadOption("messages must be all dicts or all Message values, not both", path=("messages",))
    request = parse_message_list(others, model)
    system = [Message(role="system", parts=tuple(request.system))] if request.system else []
    return system + [formats.parse_message(request.format, raw) for raw in request.messages]


_DEFAULT_MODEL = "gpt-4o"
# Counting line by line is not exact, so there may be room again when the whole is counted.
_MAX_FILLS = 3


def _is_from_work(fact: Fact) -> bool:
    return sum(fact.messages_by_speaker) > fact.count_messages_by(Speaker.USER)


def _is_said(fact: Fact) -> bool:
    """Return whether anybody mentions a fact, and not only a tool result."""
    return sum(fact.messages_by_speaker) > fact.count_messages_by(Speaker.TOOL_RESULT)


def _is_bare_result(fact: Fact) -> bool:
    """Return whether a fact is a number without a unit that only tool results contain, such as a table cell."""
    is_bare = fact.kind is FactKind.NUMBER and not any(char.isalpha() for char in fact.text)
    return is_bare and sum(fact.messages_by_speaker) == fact.count_messages_by(Speaker.TOOL_RESULT)


@dataclass(frozen=True, slots=True)
class _SectionEntry:
    section: _SummarySection
    text: str
    fact: Fact | None = None
    group: str | None = None
    order: tuple[int, int] = (-1, 0)
    prefix: str = ""
    source_index: int = -1
    """The message that an entry comes from which has no place in the order."""
    statement: Statement | None = None
    """What it quotes, perhaps not all of it."""

    @property
    def message(self) -> int | None:
        """The number of its message from 1."""
        index = max(self.order[0], self.source_index)
        return index + 1 if index >= 0 else None

    @property
    def is_quotation(self) -> bool:
        """Return whether it may consist of several sentences: a request, or the last text of the assistant."""
        return self.section is _SummarySection.GOAL or (
            self.section is _SummarySection.STATE and self.order[0] < 0
        )

    @property
    def line(self) -> str:
        return self.text if self.group is not None else f"{LINE_START}{self.prefix}{self.text}"


class _SummaryBuilder:
    """Entries in the order of their importance, as many as fit when the whole text is counted."""

    def __init__(self, limit_tokens: int, count: TokenCounter, outdated: Set[str] = frozenset()) -> None:
        self._limit_tokens = limit_tokens
        self._outdated = outdated
        self._count = count
        self._entries: list[_SectionEntry] = []
        self._used_tokens = count("")
        self._texts: set[str] = set()
        """Texts of lines, without groups."""
        self._quotes: list[str] = []
        """Texts of several sentences."""
        self._quoted_from: dict[tuple[object, ...], int] = {}
        """Where the entries are that quote a statement."""

    @property
    def room_tokens(self) -> int:
        return self._limit_tokens - self._used_tokens

    def quoted_statements(self) -> list[Statement]:
        return [entry.statement for entry in self._entries if entry.statement is not None]

    def fill(self, entries: Iterable[_SectionEntry], share_tokens: int | None = None) -> bool:
        """Add the entries that fit, within `share_tokens`. Return whether any was added."""
        room = self._limit_tokens - self._used_tokens
        room = room if share_tokens is None else min(room, share_tokens)
        added = False
        for entry in entries:
            if entry.group is None and self._is_carried(entry.text):
                continue
            place = self._quoted_from.get(_statement_key(entry.statement)) if entry.statement else None
            if place is not None:
                extra = self._count(entry.line) - self._count(self._entries[place].line)
                if extra <= room and len(entry.text) > len(self._entries[place].text):
                    self._texts.discard(self._entries[place].text)
                    self._texts.add(entry.text)
                    self._entries[place] = entry
                    room -= extra
                    added = True
                continue
            if room < _MIN_LINE_TOKENS:
                break
            cost = self._count(entry.line) + _LINE_TOKENS
            if cost <= room:
                if entry.statement is not None:
                    self._quoted_from[_statement_key(entry.statement)] = len(self._entries)
                self._entries.append(entry)
                if entry.group is None:
                    self._texts.add(entry.text)
                if entry.is_quotation:
                    self._quotes.append(entry.text)
                room -= cost
                added = True
        if added:
            self._fit()
        return added

    def fill_names(self, ranked: Sequence[RankedFact]) -> None:
        """Add names that the summary does not mention, by probability per token."""
        room = self._limit_tokens - self._used_tokens
        if not any(entry.section is _SummarySection.NAMES for entry in self._entries):
            room -= self._count(_NAMES_START) + _LINE_TOKENS
        text = "\n".join(entry.text for entry in self._entries)
        for fact in select_missing_facts(text, ranked, limit_tokens=room, count=self._count):
            self._entries.append(
                _SectionEntry(_SummarySection.NAMES, fact.text, fact, group=_SummarySection.NAMES)
            )
        self._fit()

    def drop_mentioned_names(self) -> None:
        """Drop names that lines added after them mention."""
        mentions = MentionIndex("\n".join(entry.text for entry in self._entries if entry.group is None))
        self._entries = [
            entry
            for entry in self._entries
            if entry.section is not _SummarySection.NAMES
            or entry.fact is None
            or not mentions.mentions(entry.fact)
        ]
        self._index()
        self._fit()

    def build(self) -> "ExtractiveSummary":
        facts = tuple(entry.fact for entry in self._entries if entry.fact is not None)
        ordered = sorted(self._entries, key=lambda entry: entry.order)
        carried = [
            CarriedLine(section.value, entry.prefix + entry.text, entry.message)
            for section in _SummarySection
            for entry in ordered
            if entry.section is section and entry.group is None
        ]
        groups = dict.fromkeys(entry.group for entry in self._entries if entry.group is not None)
        items = {group: _group_items(self._entries, group) for group in groups}
        carried += [
            CarriedLine(group, " ".join(texts), None, items=tuple(texts)) for group, texts in items.items()
        ]
        return ExtractiveSummary(self._render(self._entries), facts, tuple(carried))

    def fill_goal(self, requests: Sequence["_Request"], share_tokens: int | None = None) -> None:
        """Add requests without the sentences that the summary already carries."""
        quoted = {statement.text for statement in self.quoted_statements()}
        for request in requests:
            found = (
                clean_sentence(sentence)
                for sentence in split_sentences(_cut_attachment(request.text)[:_MAX_REQUEST_CHARS])
            )
            sentences = [sentence for sentence in found if sentence]
            rest = [
                sentence for sentence in sentences if not self._is_carried(sentence) and sentence not in quoted
            ]
            asking = [sentence for sentence in rest if is_request(sentence)]
            if not asking and len(rest) < len(sentences):
                continue  # What it asks for is carried.
            # All of it, or if that is too long, what it asks for.
            for text in (" ".join(rest), " ".join(asking), find_asking_clause(asking[0]) if asking else ""):
                order = request.message_index, 0
                text = _clip(text, _MAX_GOAL_CHARS)
                entry = _SectionEntry(_SummarySection.GOAL, text, order=order, prefix=request.prefix)
                if text and self.fill([entry], share_tokens):
                    break

    def _is_carried(self, sentence: str) -> bool:
        """Return whether a line contains the sentence, such as a request, or it is no longer true."""
        if sentence in self._outdated or sentence in self._texts:
            return True
        return any(sentence in quote for quote in self._quotes)

    def _fit(self) -> None:
        """Drop the last entries until the whole fits."""
        self._used_tokens = self._count(self._render(self._entries))
        if self._used_tokens <= self._limit_tokens:
            return
        low, high = 0, len(self._entries)
        while low < high:
            middle = (low + high + 1) // 2
            if self._count(self._render(self._entries[:middle])) <= self._limit_tokens:
                low = middle
            else:
                high = middle - 1
        self._entries = self._entries[:low]
        self._used_tokens = self._count(self._render(self._entries))
        self._index()

    def _index(self) -> None:
        self._texts = {entry.text for entry in self._entries if entry.group is None}
        self._quoted_from = {
            _statement_key(entry.statement): place
            for place, entry in enumerate(self._entries)
            if entry.statement is not None
        }
        self._quotes = [entry.text for entry in self._entries if entry.is_quotation]

    def _render(self, entries: Sequence[_SectionEntry]) -> str:
        sections = {
            section: found
            for section in _SummarySection
            if (found := [entry for entry in entries if entry.section is section])
        }
        headings = [section.value for section in sections if section not in _SELF_DESCRIBING]
        has_headings = len(headings) > 1 and (
            self._count("\n".join(headings)) + len(headings) <= self._limit_tokens * _HEADINGS_SHARE
        )
        lines: list[str] = []
        for section, section_entries in sections.items():
            if has_headings and section not in _SELF_DESCRIBING:
                lines.append(section.value)
            lines += [
                entry.line
                for entry in sorted(section_entries, key=lambda entry: entry.order)
                if entry.group is None
            ]
            for group in dict.fromkeys(entry.group for entry in section_entries if entry.group is not None):
                lines.append(f"{group}: {' '.join(_group_items(section_entries, group))}")
        return "\n".join(lines)


def _group_items(entries: Sequence[_SectionEntry], group: str) -> list[str]:
    """The texts of a group; names, which are facts, with the most specific first."""
    found = (entry for entry in entries if entry.group == group)
    return [entry.text for entry in sorted(found, key=_specificity, reverse=True)]


def _specificity(entry: _SectionEntry) -> tuple[int, int]:
    return (0, 0) if entry.fact is None else (_SPECIFIC_KINDS.get(entry.fact.kind, 0), len(entry.text))


_SPECIFIC_KINDS = {
    FactKind.PATH: 2,
    FactKind.URL: 2,
    FactKind.IDENTIFIER: 2,
    FactKind.VERSION: 1,
    FactKind.NUMBER: -1,
}
_FILES_START = "Files "
_NAMES_START = f"{_SummarySection.NAMES}:"
_MIN_LINE_TOKENS = 4


def _rank_statements(conversation: ConversationFacts) -> list[Statement]:
    """Statements that are still true, the most useful first.

    Marked ones, constraints, then the others, the shortest first, and of these the latest. What replaces a
    marked statement is marked as well.
    """
    labels: dict[int, str] = {}
    for number, newer in sorted(conversation.replaced.items()):
        if conversation.statements[number].is_marked:
            labels[newer] = conversation.statements[number].label
        elif number in labels:
            labels[newer] = labels[number]
    current = [
        (number, replace(statement, label=labels.get(number, statement.label)))
        for number, statement in enumerate(conversation.statements)
        if conversation.is_current(number)
    ]

    def rank(pair: tuple[int, Statement]) -> tuple[object, ...]:
        number, statement = pair
        level = -1 if statement.is_marked else _LEVELS[statement.kind]
        if statement.speaker is Speaker.MODEL:
            level += _ASSISTANT_LEVEL
        if statement.is_quoted:
            level += _QUOTED_LEVEL
        return level, len(statement.text), -number

    return [statement for _, statement in sorted(current, key=rank)]


_LEVELS = {
    StatementKind.CONSTRAINT: 0,
    StatementKind.PREFERENCE: 1,
    StatementKind.TASK: 1,
    StatementKind.FACT: 1,
    StatementKind.DECISION: 2,
    StatementKind.OTHER: 5,
}
_ASSISTANT_LEVEL = 2
_QUOTED_LEVEL = 10


def _says_something(statement: Statement) -> bool:
    """Return whether a statement is more than small talk."""
    is_plain = statement.kind is StatementKind.OTHER and not statement.label and not statement.is_summary
    # A cue is a word too: "An aisle seat is better."
    subject = statement.subject
    return not is_plain or len(subject.words) + subject.has_cue + bool(subject.phrases) >= _MIN_CONTENT_WORDS


_MIN_CONTENT_WORDS = 3


def select_missing_facts(
    summary: str, ranked: Sequence[RankedFact], *, limit_tokens: int, count: TokenCounter
) -> list[Fact]:
    """The important facts that `summary` does not mention, as many as fit `limit_tokens`.

    Constraints and open tasks come first, then facts by probability per token.
    """
    mention_index = MentionIndex(summary)
    remaining_tokens = limit_tokens
    selected = []
    for fact, tokens in _sort_by_value(ranked, limit_tokens, count):
        if remaining_tokens < 1:
            break
        if tokens <= remaining_tokens and not mention_index.mentions(fact):
            remaining_tokens -= tokens
            mention_index.add(fact.text)
            selected.append(fact)
    return selected


def _sort_by_value(
    ranked: Sequence[RankedFact], limit_tokens: int, count: TokenCounter
) -> list[tuple[Fact, int]]:
    """Facts that are always carried, then the others by probability per token, each with its tokens."""
    always_carried = [ranked_fact.fact for ranked_fact in ranked if ranked_fact.fact.kind in ALWAYS_CARRIED]
    rest = [ranked_fact for ranked_fact in ranked if ranked_fact.fact.kind not in SENTENCE_KINDS]
    # At most `limit_tokens` of them fit, and counting all would take longer than everything else.
    max_candidates = _CANDIDATES_PER_TOKEN * max(limit_tokens, 0)
    likely = nlargest(
        max_candidates,
        rest,
        key=lambda ranked_fact: value_per_token(ranked_fact, _estimate_tokens(ranked_fact.fact)),
    )
    counted = [(ranked_fact, count(f" {ranked_fact.fact.text}")) for ranked_fact in likely]
    counted.sort(key=lambda pair: -value_per_token(*pair))
    return [(fact, count(f" {fact.text}") + _LINE_TOKENS) for fact in always_carried] + [
        (ranked_fact.fact, tokens) for ranked_fact, tokens in counted
    ]


def value_per_token(ranked_fact: RankedFact, tokens: int) -> float:
    return ranked_fact.probability / max(tokens, 1)


def _estimate_tokens(fact: Fact) -> int:
    return 1 + len(fact.text) // 4


def _section_entries(
    messages: Sequence[Message], ranked: Sequence[RankedFact]
) -> dict[_SummarySection, list[_SectionEntry]]:
    by_section: dict[_SummarySection, list[_SectionEntry]] = {}
    tasks = [ranked_fact.fact for ranked_fact in ranked if ranked_fact.fact.kind is FactKind.TASK]
    by_section[_SummarySection.TASKS] = [
        _SectionEntry(_SummarySection.TASKS, _to_one_line(fact.text), fact, source_index=fact.last_index)
        for fact in tasks
        if not fact.count_messages_by(Speaker.USER)
    ]
    earlier = _earlier_entries(messages)
    by_section[_SummarySection.STATE] = list(_state_entries(messages))
    by_section[_SummarySection.FILES] = [
        _SectionEntry(_SummarySection.FILES, file.path, group=f"{_FILES_START}{file.action}")
        for file in find_touched_files(messages)
    ] + [entry for entry in earlier if entry.section is _SummarySection.FILES]
    by_section[_SummarySection.ERRORS] = [
        _SectionEntry(
            _SummarySection.ERRORS,
            f"{_describe_error(error)}{' (later it went well)' if error.is_resolved else ''}",
            source_index=error.last_index,
        )
        for error in find_tool_errors(messages)
    ] + [entry for entry in earlier if entry.section is _SummarySection.ERRORS]
    return by_section


def _earlier_entries(messages: Sequence[Message]) -> list[_SectionEntry]:
    """Files and errors of an earlier summary."""
    lines = (
        line
        for message in messages
        if message.role not in MODEL_ROLES
        for speaker, text in message_texts(message)
        if speaker is Speaker.USER and is_summary(text)
        for line in text.splitlines()
    )
    entries: list[_SectionEntry] = []
    for line in lines:
        group, colon, rest = line.partition(": ")
        if colon and group.startswith(_FILES_START):
            entries += [_SectionEntry(_SummarySection.FILES, path, group=group) for path in rest.split()]
        elif is_error_line(line):
            entries.append(_SectionEntry(_SummarySection.ERRORS, line.removeprefix(LINE_START)))
    return entries


def _clause_entry(statement: Statement, text: str) -> _SectionEntry:
    return replace(_statement_entry(statement), text=text)


def _statement_key(statement: Statement) -> tuple[object, ...]:
    return statement.message_index, statement.text_index, statement.start, statement.text


def _statement_entry(statement: Statement) -> _SectionEntry:
    section = _STATEMENT_SECTIONS[statement.kind]
    if statement.label and section is _SummarySection.OTHER:
        section = _SummarySection.FACTS
    if statement.speaker is Speaker.MODEL and section is _SummarySection.FACTS:
        section = _SummarySection.STATE  # as when it is the last thing that the assistant said
    prefix = ASSISTANT_PREFIX if statement.speaker is Speaker.MODEL else statement.request_prefix
    if statement.is_quoted:
        section = _SummarySection.QUOTED
    if statement.request_prefix:
        section = _SummarySection.GOAL
    return _SectionEntry(
        section,
        statement.text,
        order=(statement.message_index, statement.start),
        prefix=prefix,
        statement=statement,
    )


def _describe_error(error: ToolError) -> str:
    """Quote a tool, so that its text is not taken for the user's: the summary is sent as a user message."""
    message = _clip(error.text, _MAX_ERROR_CHARS).replace('"', "'")
    return f'{error.tool or "a tool"} answered: "{message}"'


@dataclass(frozen=True, slots=True)
class _Request:
    text: str
    prefix: str
    message_index: int


def _find_requests(messages: Sequence[Message], statements: Sequence[Statement]) -> list[_Request]:
    """The first and the last request of the user, perhaps from an earlier summary."""
    earlier = [
        _Request(statement.text, statement.request_prefix, statement.message_index)
        for statement in sorted(statements, key=lambda statement: (statement.message_index, statement.start))
        if statement.request_prefix
    ]
    new = [request for request in _user_texts(messages) if is_request(request.text)]
    requests = earlier + new
    return [
        replace(request, prefix=prefix)
        for request, prefix in (
            *((request, FIRST_REQUEST_PREFIX) for request in requests[:1]),
            *((request, LAST_REQUEST_PREFIX) for request in requests[1:][-1:]),
        )
    ]


def _cut_attachment(text: str) -> str:
    """The paragraph that asks for something, without the text that was pasted below it."""
    paragraph = text.strip().partition("\n\n")[0]
    return paragraph if len(text) > _MAX_REQUEST_CHARS and is_request(paragraph) else text


def _user_texts(messages: Sequence[Message]) -> list[_Request]:
    return [
        _Request(text, FIRST_REQUEST_PREFIX, index)
        for index, message in enumerate(messages)
        if message.role not in DEVELOPER_ROLES | MODEL_ROLES
        for speaker, text in message_texts(message)
        if speaker is Speaker.USER and text.strip() and not is_summary(text) and not find_label(text)
    ]


def _state_entries(messages: Sequence[Message]) -> Iterator[_SectionEntry]:
    model_texts = (
        (index, part.text)
        for index, message in reversed(list(enumerate(messages)))
        for part in reversed(message.parts)
        if isinstance(part, Text) and message.role in MODEL_ROLES and part.text.strip()
    )
    for index, text in model_texts:
        if len(text.split(maxsplit=_MIN_STATE_WORDS)) > _MIN_STATE_WORDS:
            clipped = _clip(text, _MAX_STATE_CHARS)
            yield _SectionEntry(_SummarySection.STATE, clipped, prefix=ASSISTANT_PREFIX, source_index=index)
        return


_MIN_STATE_WORDS = 5


def _to_one_line(text: str) -> str:
    return " ".join(text.split())


def _clip(text: str, chars: int) -> str:
    line = " ".join(text[: chars * 4].split())
    return line if len(line) <= chars else f"{line[:chars].rpartition(' ')[0] or line[:chars]} …"

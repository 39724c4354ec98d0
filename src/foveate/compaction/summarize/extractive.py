"""Write an extractive summary, without a model: exact quotes, ordered, within a token limit.

Constraints and goal come first, then open tasks, the current state, files, decisions and errors, each within
its share. The rest goes to the names, paths and numbers that later turns will most probably need, and then to
other texts of the user. The summary is a record: it quotes what was said and never gives orders.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import nlargest
from itertools import islice

from foveate.compaction.facts.extract import (
    ALWAYS_CARRIED,
    MODEL_ROLES,
    Fact,
    RankedFact,
    Speaker,
    ToolError,
    extract_facts,
    find_tool_errors,
    find_touched_files,
    message_texts,
    rank_facts,
)
from foveate.compaction.facts.mentions import MentionIndex
from foveate.compaction.facts.rules import SENTENCE_KINDS, FactKind
from foveate.model import Message, Text

# Share of the replaced tokens. A short head may keep more, but never more than half.
_DEFAULT_SHARE = 0.10
MIN_SUMMARY_TOKENS = 256

_CANDIDATES_PER_TOKEN = 4  # how many names to consider per token of room
_LINE_TOKENS = 1  # for the line break, and for changes where two texts meet

TokenCounter = Callable[[str], int]
_MAX_GOAL_CHARS = 300
_MAX_STATE_CHARS = 200
_MAX_REQUEST_CHARS = 200
_MAX_ERROR_CHARS = 160


class _SummarySection(StrEnum):
    GOAL = "Goal"
    CONSTRAINTS = "The user's constraints, as they were said"
    OTHER_REQUESTS = "What else the user said, the latest first"
    TASKS = "Open tasks"
    STATE = "Where it stood"
    FILES = "Files"
    DECISIONS = "Decisions and findings"
    ERRORS = "Errors met"
    NAMES = "Also mentioned"


# The maximum share of each section, in the order in which they are filled.
_SHARES = {
    _SummarySection.CONSTRAINTS: 0.50,
    _SummarySection.GOAL: 0.16,
    _SummarySection.TASKS: 0.10,
    _SummarySection.STATE: 0.05,
    _SummarySection.FILES: 0.15,
    _SummarySection.DECISIONS: 0.06,
    _SummarySection.ERRORS: 0.06,
    _SummarySection.OTHER_REQUESTS: 0.15,  # of what the names leave
}


@dataclass(frozen=True, slots=True)
class ExtractiveSummary:
    text: str
    facts: tuple[Fact, ...]


def summary_limit_tokens(replaced_tokens: int) -> int:
    return min(replaced_tokens // 2, max(int(replaced_tokens * _DEFAULT_SHARE), MIN_SUMMARY_TOKENS))


def summarize_by_rules(
    messages: Sequence[Message],
    *,
    limit_tokens: int,
    count: TokenCounter,
    tail: Sequence[Message] = (),
    fact_weights: Mapping[str, float] | None = None,
) -> ExtractiveSummary:
    """Summarize `messages` within `limit_tokens`, as counted by `count`; empty if nothing fits.

    Names in `tail`, which follows the summary, are not repeated. `fact_weights` replace the default weights,
    for experiments.
    """
    ranked = rank_facts(extract_facts(messages), len(messages), fact_weights)
    selected: list[_SectionEntry] = []
    remaining_tokens = limit_tokens
    for section, entries in _section_entries(messages, ranked):
        section_entries, section_tokens = _fill_section(
            entries, min(remaining_tokens, int(limit_tokens * _SHARES[section])), count
        )
        selected += section_entries
        remaining_tokens -= section_tokens
    tail_facts = {fact.text for fact in extract_facts(tail)}
    names = [
        ranked_fact
        for ranked_fact in ranked
        if ranked_fact.fact.kind not in SENTENCE_KINDS and ranked_fact.fact.text not in tail_facts
    ]
    remaining_tokens -= count(_SummarySection.NAMES)
    missing_facts = select_missing_facts(
        _join_lines(selected), names, limit_tokens=remaining_tokens, count=count
    )
    selected += [_SectionEntry(_SummarySection.NAMES, fact.text, fact, group="") for fact in missing_facts]
    remaining_tokens -= sum(count(f" {fact.text}") for fact in missing_facts)
    selected_lines = {entry.text for entry in selected}
    other_requests = [
        _SectionEntry(_SummarySection.OTHER_REQUESTS, line)
        for line in _other_user_lines(messages)
        if line not in selected_lines
    ]
    selected += _fill_section(
        other_requests,
        min(remaining_tokens, int(limit_tokens * _SHARES[_SummarySection.OTHER_REQUESTS])),
        count,
    )[0]
    return _fit(selected, limit_tokens, count)


def _fill_section(
    entries: Sequence["_SectionEntry"], share_tokens: int, count: TokenCounter
) -> tuple[list["_SectionEntry"], int]:
    selected: list[_SectionEntry] = []
    used_tokens = 0
    for entry in entries:
        heading = 0 if selected else count(entry.section) + _LINE_TOKENS
        cost = heading + count(entry.text) + _LINE_TOKENS
        if used_tokens + cost <= share_tokens:
            used_tokens += cost
            selected.append(entry)
    return selected, used_tokens


def _join_lines(entries: Sequence["_SectionEntry"]) -> str:
    return "\n".join(entry.text for entry in entries)


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


@dataclass(frozen=True, slots=True)
class _SectionEntry:
    section: _SummarySection
    text: str
    fact: Fact | None = None
    group: str | None = None


def _section_entries(
    messages: Sequence[Message], ranked: Sequence[RankedFact]
) -> Iterator[tuple[_SummarySection, list[_SectionEntry]]]:
    sentences = {
        kind: [ranked_fact.fact for ranked_fact in ranked if ranked_fact.fact.kind is kind]
        for kind in SENTENCE_KINDS
    }
    for kind, section in _SENTENCE_SECTIONS.items():
        latest = sorted(sentences[kind], key=lambda fact: (-fact.last_index, fact.first_index))
        if kind is FactKind.CONSTRAINT:
            latest = [fact for fact in latest if fact.count_messages_by(Speaker.USER)]
        yield section, [_SectionEntry(section, f"- {_to_one_line(fact.text)}", fact) for fact in latest]
        if kind is FactKind.CONSTRAINT:
            yield (
                _SummarySection.GOAL,
                [_SectionEntry(_SummarySection.GOAL, line) for line in _goal_lines(messages)],
            )
        if kind is FactKind.TASK:
            yield (
                _SummarySection.STATE,
                [_SectionEntry(_SummarySection.STATE, line) for line in _state_lines(messages)],
            )
            yield (
                _SummarySection.FILES,
                [
                    _SectionEntry(_SummarySection.FILES, file.path, group=file.action)
                    for file in find_touched_files(messages)
                ],
            )
    yield (
        _SummarySection.ERRORS,
        [
            _SectionEntry(
                _SummarySection.ERRORS,
                f"- {_describe_error(error)}{' (later it went well)' if error.is_resolved else ''}",
            )
            for error in find_tool_errors(messages)
        ],
    )


def _describe_error(error: ToolError) -> str:
    """Quote a tool, so that its text is not taken for the user's: the summary is sent as a user message."""
    message = _clip(error.text, _MAX_ERROR_CHARS).replace('"', "'")
    return f'{error.tool or "a tool"} answered: "{message}"'


_SENTENCE_SECTIONS = {
    FactKind.CONSTRAINT: _SummarySection.CONSTRAINTS,
    FactKind.TASK: _SummarySection.TASKS,
    FactKind.DECISION: _SummarySection.DECISIONS,
}


def _user_texts(messages: Sequence[Message]) -> list[str]:
    texts = (pair for message in messages for pair in message_texts(message))
    user_texts = [text for speaker, text in texts if speaker is Speaker.USER and text.strip()]
    return [text for text in user_texts if len(text.split(maxsplit=3)) > 3] or user_texts


def _other_user_lines(messages: Sequence[Message]) -> list[str]:
    """The user's texts between the first and the last, the latest first."""
    return list(
        dict.fromkeys(f"- {_clip(text, _MAX_REQUEST_CHARS)}" for text in reversed(_user_texts(messages)[1:-1]))
    )


def _goal_lines(messages: Sequence[Message]) -> list[str]:
    user_texts = _user_texts(messages)
    lines = [f"- asked first: {_clip(text, _MAX_GOAL_CHARS)}" for text in user_texts[:1]]
    return lines + [f"- asked last: {_clip(text, _MAX_GOAL_CHARS)}" for text in user_texts[1:][-1:]]


def _state_lines(messages: Sequence[Message]) -> list[str]:
    model_texts = (
        part.text
        for message in reversed(messages)
        for part in reversed(message.parts)
        if isinstance(part, Text) and message.role in MODEL_ROLES and part.text.strip()
    )
    return [f"- the model said last: {_clip(text, _MAX_STATE_CHARS)}" for text in list(islice(model_texts, 1))]


def _to_one_line(text: str) -> str:
    return " ".join(text.split())


def _clip(text: str, chars: int) -> str:
    line = " ".join(text[: chars * 4].split())
    return line if len(line) <= chars else f"{line[:chars].rpartition(' ')[0] or line[:chars]} …"


def _fit(entries: Sequence[_SectionEntry], limit_tokens: int, count: TokenCounter) -> ExtractiveSummary:
    """As many of the first `entries` as fit when the whole text is counted."""
    low, high = 0, len(entries)
    if count(_render(entries)) <= limit_tokens:
        low = high
    while low < high:
        middle = (low + high + 1) // 2
        if count(_render(entries[:middle])) <= limit_tokens:
            low = middle
        else:
            high = middle - 1
    fitting = entries[:low]
    return ExtractiveSummary(_render(fitting), tuple(entry.fact for entry in fitting if entry.fact is not None))


def _render(entries: Sequence[_SectionEntry]) -> str:
    lines: list[str] = []
    for section in _SummarySection:
        section_entries = [entry for entry in entries if entry.section is section]
        if not section_entries:
            continue
        lines.append(section.value)
        lines += [entry.text for entry in section_entries if entry.group is None]
        for group in dict.fromkeys(entry.group for entry in section_entries if entry.group is not None):
            names = " ".join(entry.text for entry in section_entries if entry.group == group)
            lines.append(f"- {group}: {names}" if group else names)
    return "\n".join(lines)

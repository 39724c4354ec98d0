"""A summary without any model: what was said, word for word, put in order and kept within a number of tokens.

Constraints and goal come first; then open tasks, where the work stood, files, decisions and errors, each within
its share; all that is left goes to the names, paths and numbers that later turns are likeliest to need. Where
there are no more of these, it tells what else the user said. It is a record: what was said stands in it as
something said, never as an order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import nlargest
from itertools import islice

from foveate.compaction.facts.extract import (
    MODEL_ROLES,
    Fact,
    Speaker,
    ToolError,
    extract_facts,
    find_tool_errors,
    find_touched_files,
    message_texts,
)
from foveate.compaction.facts.mentions import MentionIndex
from foveate.compaction.facts.ranking import ALWAYS_CARRIED, RankedFact, rank_facts
from foveate.compaction.facts.rules import SENTENCE_KINDS, FactKind
from foveate.model import Message, Text

# Of what is folded; a span so short that little would be left of it may keep more, but never half of itself.
_DEFAULT_SHARE = 0.10
MIN_SUMMARY_TOKENS = 256

_CANDIDATES_PER_TOKEN = 4  # so many times as many names as there may be room for
_LINE_TOKENS = 1  # for the end of a line, and for what changes where two texts meet

CountTokens = Callable[[str], int]


class _Section(StrEnum):
    """The sections of a summary, in their order, by their headings."""

    GOAL = "Goal"
    CONSTRAINTS = "The user's constraints, as they were said"
    ASKED = "What else the user said, the latest first"
    TASKS = "Open tasks"
    STATE = "Where it stood"
    FILES = "Files"
    DECISIONS = "Decisions and findings"
    ERRORS = "Errors met"
    NAMES = "Also mentioned"


# How much of the limit a section may take at most, in the order in which they are served.
_SHARES = {
    _Section.CONSTRAINTS: 0.50,
    _Section.GOAL: 0.16,
    _Section.TASKS: 0.10,
    _Section.STATE: 0.05,
    _Section.FILES: 0.15,
    _Section.DECISIONS: 0.06,
    _Section.ERRORS: 0.06,
    _Section.ASKED: 0.15,  # of what the names leave
}


@dataclass(frozen=True, slots=True)
class ExtractiveSummary:
    """A summary, and the facts that were put into it for their own sake."""

    text: str
    facts: tuple[Fact, ...]


def summary_limit_tokens(replaced_tokens: int) -> int:
    """How many tokens the summary of a span of so many may have."""
    return min(replaced_tokens // 2, max(int(replaced_tokens * _DEFAULT_SHARE), MIN_SUMMARY_TOKENS))


def summarize_by_rules(
    messages: Sequence[Message],
    *,
    limit_tokens: int,
    count: CountTokens,
    tail: Sequence[Message] = (),
    fact_weights: Mapping[str, float] | None = None,
) -> ExtractiveSummary:
    """A summary of `messages` of at most `limit_tokens`, as `count` counts; empty where nothing fits.

    `tail` is what will stand after it: names that can be read there are not said twice. `weighed` are other
    weights of facts than those of the table, to be tried.
    """
    ranked = rank_facts(extract_facts(messages), len(messages), fact_weights)
    chosen: list[_SectionEntry] = []
    left_tokens = limit_tokens
    for section, entries in _section_entries(messages, ranked):
        served, spent = _fill_section(entries, min(left_tokens, int(limit_tokens * _SHARES[section])), count)
        chosen += served
        left_tokens -= spent
    tail_facts = {fact.text for fact in extract_facts(tail)}
    names = [
        ranked_fact
        for ranked_fact in ranked
        if ranked_fact.fact.kind not in SENTENCE_KINDS and ranked_fact.fact.text not in tail_facts
    ]
    left_tokens -= count(_Section.NAMES)
    listed = select_missing_facts(_join_lines(chosen), names, limit_tokens=left_tokens, count=count)
    chosen += [_SectionEntry(_Section.NAMES, fact.text, fact, group="") for fact in listed]
    left_tokens -= sum(count(f" {fact.text}") for fact in listed)
    chosen_lines = {entry.text for entry in chosen}
    other_requests = [
        _SectionEntry(_Section.ASKED, line) for line in _other_user_lines(messages) if line not in chosen_lines
    ]
    chosen += _fill_section(
        other_requests, min(left_tokens, int(limit_tokens * _SHARES[_Section.ASKED])), count
    )[0]
    return _fit(chosen, limit_tokens, count)


def _fill_section(
    entries: Sequence["_SectionEntry"], share_tokens: int, count: CountTokens
) -> tuple[list["_SectionEntry"], int]:
    """The entries of one section that its share has room for, and what they take."""
    chosen: list[_SectionEntry] = []
    spent = 0
    for entry in entries:
        heading = 0 if chosen else count(entry.section) + _LINE_TOKENS
        cost = heading + count(entry.text) + _LINE_TOKENS
        if spent + cost <= share_tokens:
            spent += cost
            chosen.append(entry)
    return chosen, spent


def _join_lines(entries: Sequence["_SectionEntry"]) -> str:
    return "\n".join(entry.text for entry in entries)


def select_missing_facts(
    summary: str, ranked: Sequence[RankedFact], *, limit_tokens: int, count: CountTokens
) -> list[Fact]:
    """The important facts that `summary` leaves out, as many as a list of `limit_tokens` has room for.

    Constraints and open tasks come first, then what is likeliest to be needed for the tokens that it takes.
    """
    mentions = MentionIndex(summary)
    left_tokens = limit_tokens
    selected = []
    for fact, tokens in _sort_by_value(ranked, limit_tokens, count):
        if left_tokens < 1:
            break
        if tokens <= left_tokens and not mentions.mentions(fact):
            left_tokens -= tokens
            mentions.add(fact.text)
            selected.append(fact)
    return selected


def _sort_by_value(
    ranked: Sequence[RankedFact], limit_tokens: int, count: CountTokens
) -> list[tuple[Fact, int]]:
    """What must be carried, then the rest by how likely it is to be needed for each token that it takes."""
    always_carried = [ranked_fact.fact for ranked_fact in ranked if ranked_fact.fact.kind in ALWAYS_CARRIED]
    rest = [ranked_fact for ranked_fact in ranked if ranked_fact.fact.kind not in SENTENCE_KINDS]
    # No more than `limit_tokens` of them have room; to count the tokens of all would take longer than the rest.
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
    """How likely a fact is to be needed, for each token that it takes."""
    return ranked_fact.probability / max(tokens, 1)


def _estimate_tokens(fact: Fact) -> int:
    return 1 + len(fact.text) // 4


@dataclass(frozen=True, slots=True)
class _SectionEntry:
    """A line of a section, or a name in a line of its `group`; and the fact that it is, if it is one."""

    section: _Section
    text: str
    fact: Fact | None = None
    group: str | None = None


def _section_entries(
    messages: Sequence[Message], ranked: Sequence[RankedFact]
) -> Iterator[tuple[_Section, list[_SectionEntry]]]:
    """What each section would like to say, the most important first; in the order in which they are served."""
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
            yield _Section.GOAL, [_SectionEntry(_Section.GOAL, line) for line in _goal_lines(messages)]
        if kind is FactKind.TASK:
            yield _Section.STATE, [_SectionEntry(_Section.STATE, line) for line in _state_lines(messages)]
            yield (
                _Section.FILES,
                [
                    _SectionEntry(_Section.FILES, file.path, group=file.action)
                    for file in find_touched_files(messages)
                ],
            )
    yield (
        _Section.ERRORS,
        [
            _SectionEntry(
                _Section.ERRORS,
                f"- {_describe_error(error)}{' (later it went well)' if error.is_resolved else ''}",
            )
            for error in find_tool_errors(messages)
        ],
    )


def _describe_error(error: ToolError) -> str:
    """What a tool said, so that nobody takes it for the user's words: the summary is sent as the user's."""
    message = _clip(error.text, _MAX_ERROR_CHARS).replace('"', "'")
    return f'{error.tool or "a tool"} answered: "{message}"'


_SENTENCE_SECTIONS = {
    FactKind.CONSTRAINT: _Section.CONSTRAINTS,
    FactKind.TASK: _Section.TASKS,
    FactKind.DECISION: _Section.DECISIONS,
}
_MAX_GOAL_CHARS = 300
_MAX_STATE_CHARS = 200
_MAX_REQUEST_CHARS = 200
_MAX_ERROR_CHARS = 160


def _user_texts(messages: Sequence[Message]) -> list[str]:
    """What the user said; not single words, where there is more."""
    texts = (pair for message in messages for pair in message_texts(message))
    user_texts = [text for speaker, text in texts if speaker is Speaker.USER and text.strip()]
    return [text for text in user_texts if len(text.split(maxsplit=3)) > 3] or user_texts


def _other_user_lines(messages: Sequence[Message]) -> list[str]:
    """What the user said between the first and the last wish, the latest first."""
    return list(
        dict.fromkeys(f"- {_clip(text, _MAX_REQUEST_CHARS)}" for text in reversed(_user_texts(messages)[1:-1]))
    )


def _goal_lines(messages: Sequence[Message]) -> list[str]:
    """What the user asked for first, and last."""
    user_texts = _user_texts(messages)
    lines = [f"- asked first: {_clip(text, _MAX_GOAL_CHARS)}" for text in user_texts[:1]]
    return lines + [f"- asked last: {_clip(text, _MAX_GOAL_CHARS)}" for text in user_texts[1:][-1:]]


def _state_lines(messages: Sequence[Message]) -> list[str]:
    """What the model said last."""
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
    """The beginning of a text, on one line, up to a space."""
    line = " ".join(text[: chars * 4].split())
    return line if len(line) <= chars else f"{line[:chars].rpartition(' ')[0] or line[:chars]} …"


def _fit(entries: Sequence[_SectionEntry], limit_tokens: int, count: CountTokens) -> ExtractiveSummary:
    """As many of `entries`, from the first on, as the whole has room for when it is counted as it is sent."""
    low, high = 0, len(entries)
    if count(_render(entries)) <= limit_tokens:
        low = high
    while low < high:
        middle = (low + high + 1) // 2
        if count(_render(entries[:middle])) <= limit_tokens:
            low = middle
        else:
            high = middle - 1
    kept = entries[:low]
    return ExtractiveSummary(_render(kept), tuple(entry.fact for entry in kept if entry.fact is not None))


def _render(entries: Sequence[_SectionEntry]) -> str:
    lines: list[str] = []
    for section in _Section:
        section_entries = [entry for entry in entries if entry.section is section]
        if not section_entries:
            continue
        lines.append(section.value)
        lines += [entry.text for entry in section_entries if entry.group is None]
        for group in dict.fromkeys(entry.group for entry in section_entries if entry.group is not None):
            names = " ".join(entry.text for entry in section_entries if entry.group == group)
            lines.append(f"- {group}: {names}" if group else names)
    return "\n".join(lines)

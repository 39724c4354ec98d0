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

from foveate.fold.deeds import MetError, errors_met, files_touched
from foveate.fold.facts import MODEL_ROLES, Fact, FactKind, Voice, facts_of, said_in
from foveate.fold.ranking import ALWAYS, Ranked, rank
from foveate.fold.rules import SENTENCES
from foveate.fold.telling import Known
from foveate.values import Message, Text

# Of what is folded; a span so short that little would be left of it may keep more, but never half of itself.
_SHARE = 0.10
FLOOR_TOKENS = 256

_LOOKED_AT = 4  # so many times as many names as there may be room for
_LINE_TOKENS = 1  # for the end of a line, and for what changes where two texts meet

Count = Callable[[str], int]


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
class Extract:
    """A summary, and the facts that were put into it for their own sake."""

    text: str
    facts: tuple[Fact, ...]


def summary_limit(folded_tokens: int) -> int:
    """How many tokens the summary of a span of so many may have."""
    return min(folded_tokens // 2, max(int(folded_tokens * _SHARE), FLOOR_TOKENS))


def extract(
    messages: Sequence[Message],
    *,
    limit_tokens: int,
    count: Count,
    tail: Sequence[Message] = (),
    weighed: Mapping[str, float] | None = None,
) -> Extract:
    """A summary of `messages` of at most `limit_tokens`, as `count` counts; empty where nothing fits.

    `tail` is what will stand after it: names that can be read there are not said twice. `weighed` are other
    weights of facts than those of the table, to be tried.
    """
    ranked = rank(facts_of(messages), len(messages), weighed)
    chosen: list[_Entry] = []
    left = limit_tokens
    for section, entries in _told(messages, ranked):
        found, spent = _served(entries, min(left, int(limit_tokens * _SHARES[section])), count)
        chosen += found
        left -= spent
    there = {fact.text for fact in facts_of(tail)}
    names = [one for one in ranked if one.fact.kind not in SENTENCES and one.fact.text not in there]
    left -= count(_Section.NAMES)
    listed = carry(_lines(chosen), names, limit_tokens=left, count=count)
    chosen += [_Entry(_Section.NAMES, fact.text, fact, group="") for fact in listed]
    left -= sum(count(f" {fact.text}") for fact in listed)
    told = {entry.text for entry in chosen}
    asked = [_Entry(_Section.ASKED, line) for line in _asked(messages) if line not in told]
    chosen += _served(asked, min(left, int(limit_tokens * _SHARES[_Section.ASKED])), count)[0]
    return _fitted(chosen, limit_tokens, count)


def _served(entries: Sequence["_Entry"], share_tokens: int, count: Count) -> tuple[list["_Entry"], int]:
    """The entries of one section that its share has room for, and what they take."""
    chosen: list[_Entry] = []
    spent = 0
    for entry in entries:
        heading = 0 if chosen else count(entry.section) + _LINE_TOKENS
        cost = heading + count(entry.text) + _LINE_TOKENS
        if spent + cost <= share_tokens:
            spent += cost
            chosen.append(entry)
    return chosen, spent


def _lines(entries: Sequence["_Entry"]) -> str:
    return "\n".join(entry.text for entry in entries)


def carry(summary: str, ranked: Sequence[Ranked], *, limit_tokens: int, count: Count) -> list[Fact]:
    """The important facts that `summary` leaves out, as many as a list of `limit_tokens` has room for.

    Constraints and open tasks come first, then what is likeliest to be needed for the tokens that it takes.
    """
    known = Known(summary)
    left = limit_tokens
    found = []
    for fact, tokens in _sorted_by_worth(ranked, limit_tokens, count):
        if left < 1:
            break
        if tokens <= left and not known.tells(fact):
            left -= tokens
            known.add(fact.text)
            found.append(fact)
    return found


def _sorted_by_worth(ranked: Sequence[Ranked], limit_tokens: int, count: Count) -> list[tuple[Fact, int]]:
    """What must be carried, then the rest by how likely it is to be needed for each token that it takes."""
    told = [one.fact for one in ranked if one.fact.kind in ALWAYS]
    rest = [one for one in ranked if one.fact.kind not in SENTENCES]
    # No more than `limit_tokens` of them have room; to count the tokens of all would take longer than the rest.
    most = _LOOKED_AT * max(limit_tokens, 0)
    likely = nlargest(most, rest, key=lambda one: worth(one, _rough_tokens(one.fact)))
    counted = [(one, count(f" {one.fact.text}")) for one in likely]
    counted.sort(key=lambda pair: -worth(*pair))
    return [(fact, count(f" {fact.text}") + _LINE_TOKENS) for fact in told] + [
        (one.fact, tokens) for one, tokens in counted
    ]


def worth(one: Ranked, tokens: int) -> float:
    """How likely a fact is to be needed, for each token that it takes."""
    return one.chance / max(tokens, 1)


def _rough_tokens(fact: Fact) -> int:
    return 1 + len(fact.text) // 4


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of a section, or a name in a line of its `group`; and the fact that it is, if it is one."""

    section: _Section
    text: str
    fact: Fact | None = None
    group: str | None = None


def _told(messages: Sequence[Message], ranked: Sequence[Ranked]) -> Iterator[tuple[_Section, list[_Entry]]]:
    """What each section would like to say, the most important first; in the order in which they are served."""
    sentences = {kind: [one.fact for one in ranked if one.fact.kind is kind] for kind in SENTENCES}
    for kind, section in _SENTENCE_SECTIONS.items():
        latest = sorted(sentences[kind], key=lambda fact: (-fact.last, fact.first))
        if kind is FactKind.CONSTRAINT:
            latest = [fact for fact in latest if fact.said_by(Voice.USER)]
        yield section, [_Entry(section, f"- {_one_line(fact.text)}", fact) for fact in latest]
        if kind is FactKind.CONSTRAINT:
            yield _Section.GOAL, [_Entry(_Section.GOAL, line) for line in _goal(messages)]
        if kind is FactKind.TASK:
            yield _Section.STATE, [_Entry(_Section.STATE, line) for line in _state(messages)]
            yield (
                _Section.FILES,
                [_Entry(_Section.FILES, file.path, group=file.deed) for file in files_touched(messages)],
            )
    yield (
        _Section.ERRORS,
        [
            _Entry(_Section.ERRORS, f"- {_answer(error)}{' (later it went well)' if error.gone else ''}")
            for error in errors_met(messages)
        ],
    )


def _answer(error: MetError) -> str:
    """What a tool said, so that nobody takes it for the user's words: the summary is sent as the user's."""
    said = _clipped(error.text, _ERROR_CHARS).replace('"', "'")
    return f'{error.tool or "a tool"} answered: "{said}"'


_SENTENCE_SECTIONS = {
    FactKind.CONSTRAINT: _Section.CONSTRAINTS,
    FactKind.TASK: _Section.TASKS,
    FactKind.DECISION: _Section.DECISIONS,
}
_GOAL_CHARS = 300
_STATE_CHARS = 200
_ASKED_CHARS = 200
_ERROR_CHARS = 160


def _wishes(messages: Sequence[Message]) -> list[str]:
    """What the user said; not single words, where there is more."""
    said = (pair for message in messages for pair in said_in(message))
    asked = [text for voice, text in said if voice is Voice.USER and text.strip()]
    return [text for text in asked if len(text.split(maxsplit=3)) > 3] or asked


def _asked(messages: Sequence[Message]) -> list[str]:
    """What the user said between the first and the last wish, the latest first."""
    return list(
        dict.fromkeys(f"- {_clipped(text, _ASKED_CHARS)}" for text in reversed(_wishes(messages)[1:-1]))
    )


def _goal(messages: Sequence[Message]) -> list[str]:
    """What the user asked for first, and last."""
    asked = _wishes(messages)
    lines = [f"- asked first: {_clipped(text, _GOAL_CHARS)}" for text in asked[:1]]
    return lines + [f"- asked last: {_clipped(text, _GOAL_CHARS)}" for text in asked[1:][-1:]]


def _state(messages: Sequence[Message]) -> list[str]:
    """What the model said last."""
    said = (
        part.text
        for message in reversed(messages)
        for part in reversed(message.parts)
        if isinstance(part, Text) and message.role in MODEL_ROLES and part.text.strip()
    )
    return [f"- the model said last: {_clipped(text, _STATE_CHARS)}" for text in list(islice(said, 1))]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _clipped(text: str, chars: int) -> str:
    """The beginning of a text, on one line, up to a space."""
    line = " ".join(text[: chars * 4].split())
    return line if len(line) <= chars else f"{line[:chars].rpartition(' ')[0] or line[:chars]} …"


def _fitted(entries: Sequence[_Entry], limit_tokens: int, count: Count) -> Extract:
    """As many of `entries`, from the first on, as the whole has room for when it is counted as it is sent."""
    low, high = 0, len(entries)
    if count(_rendered(entries)) <= limit_tokens:
        low = high
    while low < high:
        middle = (low + high + 1) // 2
        if count(_rendered(entries[:middle])) <= limit_tokens:
            low = middle
        else:
            high = middle - 1
    kept = entries[:low]
    return Extract(_rendered(kept), tuple(entry.fact for entry in kept if entry.fact is not None))


def _rendered(entries: Sequence[_Entry]) -> str:
    lines: list[str] = []
    for section in _Section:
        told = [entry for entry in entries if entry.section is section]
        if not told:
            continue
        lines.append(section.value)
        lines += [entry.text for entry in told if entry.group is None]
        for group in dict.fromkeys(entry.group for entry in told if entry.group is not None):
            names = " ".join(entry.text for entry in told if entry.group == group)
            lines.append(f"- {group}: {names}" if group else names)
    return "\n".join(lines)

"""Extract the facts of a conversation without a model, and rank them by how likely later turns mention them.

Facts are names, numbers, errors, decisions, constraints and tasks. Each has its first and last message and a
count of messages per speaker. The time is linear in the text: it is split into words once, and each distinct
word is classified once. Files touched by tool calls and errors in tool results are found separately.

Constraints and tasks rank first. The probability of the others is a logistic function of `features`; its
weights in `ranking.toml` are fitted on recorded sessions by `benchmarks/fit_ranking.py`.
"""

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from math import exp, log1p
from pathlib import Path
from typing import Any

from foveate.compaction.facts.prose import prose_blocks
from foveate.compaction.facts.rules import (
    FactKind,
    classify_word,
    find_names,
    find_numbers,
    find_quotes,
    find_urls,
    rules,
    split_words,
)
from foveate.compaction.facts.sentences import (
    find_error_lines,
    find_fact_sentences,
    find_unchecked_tasks,
    is_description,
)
from foveate.compaction.facts.statements import Statement, find_statements
from foveate.compaction.facts.texts import Speaker, message_texts
from foveate.compaction.facts.updates import find_updates, is_repeated
from foveate.formats.json_text import large_json
from foveate.model import Message, ToolCall, ToolResult

_DONE_STATUSES = frozenset(("completed", "complete", "done", "cancelled", "canceled", "finished"))
_WEAK_KINDS = frozenset((FactKind.QUOTED, FactKind.NAME, FactKind.NUMBER))
_USER_SENTENCES = (FactKind.CONSTRAINT, FactKind.TASK, FactKind.DECISION)
_MODEL_SENTENCES = (FactKind.DECISION, FactKind.TASK)
# Two calls of one tool whose arguments start alike are attempts at the same thing.
_SAME_CALL_CHARS = 60
_MAX_ERROR_CHARS = 200
_MAX_TOOL_NAME_CHARS = 60
# Always carried, whatever the probability: they say what to do and cannot be looked up elsewhere.
ALWAYS_CARRIED = (FactKind.CONSTRAINT, FactKind.TASK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A fact with its exact wording.

    `first_index` and `last_index` are messages that contain it, `last_non_tool_index` the last one in which a
    tool result was not its only source (-1: none). `occurrences` counts all of them.
    """

    kind: FactKind
    text: str
    first_index: int
    last_index: int
    last_non_tool_index: int
    occurrences: int
    messages_by_speaker: tuple[int, ...]

    def count_messages_by(self, speaker: Speaker) -> int:
        return self.messages_by_speaker[speaker]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationFacts:
    """What a conversation says.

    `facts` are those of what is still true. `statements` are what people said and the assistant confirmed, in
    order, also of later messages; `replaced` has the numbers of those that are no longer true, each with the
    number of the statement that replaces it.
    """

    facts: tuple[Fact, ...]
    statements: tuple[Statement, ...]
    replaced: Mapping[int, int]
    message_count: int

    def is_current(self, number: int) -> bool:
        """Return whether a statement is in the conversation itself, and still true."""
        return number not in self.replaced and self.statements[number].message_index < self.message_count


def extract_facts(messages: Sequence[Message]) -> tuple[Fact, ...]:
    """All facts of a conversation that are still true, in order of first appearance."""
    return read_conversation(messages).facts


def read_conversation(messages: Sequence[Message], later: Sequence[Message] = ()) -> ConversationFacts:
    """Read `messages`, of which some may no longer be true because of `later` ones."""
    updates = find_updates(find_statements([*messages, *later]))
    statements = updates.statements
    replaced = {
        old: new
        for old, new in updates.replaced.items()
        # What is only repeated later is still said here.
        if statements[new].message_index < len(messages) or not is_repeated(statements[old], statements[new])
    }
    outdated: dict[tuple[int, int], dict[tuple[int, int], str]] = {}
    for number, newer in replaced.items():
        statement = statements[number]
        if not is_repeated(statement, statements[newer]):
            ranges = outdated.setdefault((statement.message_index, statement.text_index), {})
            ranges[statement.start, statement.end] = ""
    for number in range(updates.count, len(statements)):
        if number not in replaced:
            statement = statements[number]
            ranges = outdated.setdefault((statement.message_index, statement.text_index), {})
            ranges[statement.start, statement.end] = statement.text
    quoted = {
        (statement.message_index, statement.text_index) for statement in statements if statement.is_quoted
    }
    collector = _FactCollector()
    classified = _ClassifiedWords()
    tasks: tuple[int, list[str]] = (0, [])
    for index, message in enumerate(messages):
        for text_index, (speaker, text) in enumerate(message_texts(message)):
            current = _replace_ranges(text, outdated.get((index, text_index), {}))
            facts = _find_facts(current, speaker, classified)
            if (index, text_index) in quoted:
                facts = (fact for fact in facts if not _is_description(*fact))
            collector.add(index, speaker, facts)
        for part in message.parts:
            if isinstance(part, ToolCall) and (open_tasks := _open_tasks(part)) is not None:
                tasks = index, open_tasks
    # Only the last list passed to a todo tool counts.
    collector.add(tasks[0], Speaker.CALL_ARGUMENT, ((FactKind.TASK, task) for task in tasks[1]))
    return ConversationFacts(
        facts=collector.build_facts(),
        statements=tuple(statements),
        replaced=replaced,
        message_count=len(messages),
    )


def _is_description(kind: FactKind, text: str) -> bool:
    return kind is FactKind.DECISION or (kind is FactKind.CONSTRAINT and is_description(text))


def _replace_ranges(text: str, ranges: Mapping[tuple[int, int], str]) -> str:
    for (start, end), current in sorted(ranges.items(), reverse=True):
        text = f"{text[:start]}{current}\n{text[end:]}"
    return text


def _open_tasks(call: ToolCall) -> list[str] | None:
    """The unfinished items of a list passed to a todo tool; None for other calls."""
    if "todo" not in call.name.lower():
        return None
    try:
        arguments = large_json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    lists = (
        [value for value in arguments.values() if isinstance(value, list)]
        if isinstance(arguments, dict)
        else [arguments]
    )
    entries: list[Any] = next((entries for entries in lists if isinstance(entries, list)), [])
    rows = [entry for entry in entries if isinstance(entry, dict)]
    if not rows:
        return None
    return [
        text
        for row in rows
        if str(row.get("status", "")).lower() not in _DONE_STATUSES
        for text in [next((str(row[key]) for key in ("content", "text", "title", "task") if row.get(key)), "")]
        if text
    ]


class _ClassifiedWords(dict[str, tuple[tuple[FactKind, str], ...]]):
    def __missing__(self, word: str) -> tuple[tuple[FactKind, str], ...]:
        facts = self[word] = classify_word(word)
        return facts


def _find_facts(text: str, speaker: Speaker, classified: _ClassifiedWords) -> Iterator[tuple[FactKind, str]]:
    # Line by line, so that the event loop does not wait for all of a long text.
    words = chain.from_iterable(map(split_words, text.splitlines()))
    yield from chain.from_iterable(map(classified.__getitem__, words))
    yield from ((FactKind.URL, url) for url in find_urls(text))
    yield from ((FactKind.NUMBER, number) for number in find_numbers(text))
    match speaker:
        case Speaker.USER:
            yield from _find_prose_facts(text, _USER_SENTENCES)
        case Speaker.MODEL:
            yield from _find_prose_facts(text, _MODEL_SENTENCES)
        case Speaker.TOOL_RESULT:
            yield from ((FactKind.ERROR, line) for line in find_error_lines(text))
        case _:
            return
    if speaker is not Speaker.TOOL_RESULT:
        yield from ((FactKind.TASK, task) for task in find_unchecked_tasks(text))
        yield from ((FactKind.QUOTED, quoted) for quoted in find_quotes(text))
        yield from ((FactKind.NAME, name) for name in find_names(text))


def _find_prose_facts(text: str, kinds: Sequence[FactKind]) -> Iterator[tuple[FactKind, str]]:
    """Sentences of the given kinds, but no rows of tables, titles or code."""
    for start, end in prose_blocks(text):
        yield from find_fact_sentences(text[start:end], kinds)


@dataclass(slots=True)
class _FactCounts:
    first_index: int
    last_index: int
    last_non_tool_index: int = -1
    occurrences: int = 0
    messages_by_speaker: list[int] = field(default_factory=lambda: [0] * len(Speaker))
    last_index_by_speaker: list[int] = field(default_factory=lambda: [-1] * len(Speaker))


class _FactCollector:
    def __init__(self) -> None:
        self._counts: dict[tuple[FactKind, str], _FactCounts] = {}

    def add(self, index: int, speaker: Speaker, facts: Iterable[tuple[FactKind, str]]) -> None:
        for key, times in Counter(facts).items():
            counts = self._counts.get(key)
            if counts is None:
                counts = self._counts[key] = _FactCounts(index, index)
            counts.last_index = max(counts.last_index, index)
            counts.occurrences += times
            if speaker is not Speaker.TOOL_RESULT:
                counts.last_non_tool_index = max(counts.last_non_tool_index, index)
            if counts.last_index_by_speaker[speaker] != index:
                counts.last_index_by_speaker[speaker] = index
                counts.messages_by_speaker[speaker] += 1

    def build_facts(self) -> tuple[Fact, ...]:
        """All facts; quoted words, names and numbers only if they are not facts of another kind."""
        strong_texts = {text for kind, text in self._counts if kind not in _WEAK_KINDS}
        return tuple(
            Fact(
                kind=kind,
                text=text,
                first_index=counts.first_index,
                last_index=counts.last_index,
                last_non_tool_index=counts.last_non_tool_index,
                occurrences=counts.occurrences,
                messages_by_speaker=tuple(counts.messages_by_speaker),
            )
            for (kind, text), counts in self._counts.items()
            if kind not in _WEAK_KINDS or text not in strong_texts
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchedFile:
    path: str
    action: str
    last_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolError:
    """An error line in a result of `tool`. `is_resolved`: the same call succeeded later."""

    text: str
    tool: str
    last_index: int
    is_resolved: bool


def find_touched_files(messages: Sequence[Message]) -> list[TouchedFile]:
    """Files named by tool calls, the latest first."""
    files: dict[str, tuple[str, int]] = {}
    for index, message in enumerate(messages):
        for part in message.parts:
            if isinstance(part, ToolCall) and (action := _file_action(part.name)):
                for path in _path_arguments(part):
                    before = files.get(path, ("", 0))[0]
                    files[path] = action if not before or before == "read" else before, index
    touched = (TouchedFile(path=path, action=action, last_index=last) for path, (action, last) in files.items())
    return sorted(touched, key=lambda file: (-file.last_index, file.path))


def _file_action(tool: str) -> str:
    name = tool.lower()
    return next((action for word, action in rules().file_actions.items() if word in name), "")


def _path_arguments(call: ToolCall) -> Iterable[str]:
    try:
        arguments = large_json.loads(call.arguments)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(arguments, dict):
        return ()
    return [
        value
        for name, value in arguments.items()
        if name.lower() in rules().path_arguments and isinstance(value, str) and 0 < len(value) < 200
        if "\n" not in value
    ]


def find_tool_errors(messages: Sequence[Message]) -> list[ToolError]:
    """Distinct errors in tool results, the latest first."""
    calls: dict[str, tuple[str, str]] = {}
    succeeded_at: dict[str, int] = {}
    errors: dict[str, tuple[int, str, str]] = {}
    for index, message in enumerate(messages):
        for part in message.parts:
            if isinstance(part, ToolCall):
                calls[part.id or part.name] = part.name, f"{part.name} {part.arguments[:_SAME_CALL_CHARS]}"
            elif isinstance(part, ToolResult):
                tool, call_key = calls.get(part.id or part.name, (part.name, ""))
                lines = _error_lines(part)
                if not lines:
                    succeeded_at[call_key] = index
                for line in lines:
                    errors.pop(line, None)
                    errors[line] = index, call_key, " ".join(tool[:_MAX_TOOL_NAME_CHARS].split())
    return [
        ToolError(
            text=line,
            tool=tool,
            last_index=index,
            is_resolved=bool(call_key) and succeeded_at.get(call_key, -1) > index,
        )
        for line, (index, call_key, tool) in reversed(errors.items())
    ]


def _error_lines(result: ToolResult) -> list[str]:
    texts = [text for _, text in message_texts(Message(role="tool", parts=(result,)))]
    lines = [line for text in texts for line in find_error_lines(text)]
    if result.is_error and not lines:
        lines = [text.strip().splitlines()[0][:_MAX_ERROR_CHARS] for text in texts if text.strip()][:1]
    return lines


_WEIGHTS_FILE = Path(__file__).with_name("ranking.toml")


@dataclass(frozen=True, slots=True)
class RankedFact:
    fact: Fact
    probability: float


def rank_facts(
    facts: Sequence[Fact], messages: int, fact_weights: Mapping[str, float] | None = None
) -> list[RankedFact]:
    """Rank the facts of `messages` messages: constraints and open tasks, then by probability.

    `fact_weights` replace the default weights, for experiments.
    """
    used_weights = default_weights() if fact_weights is None else fact_weights
    ranked = [RankedFact(fact, mention_probability(fact, messages, used_weights)) for fact in facts]
    return sorted(
        ranked,
        key=lambda ranked_fact: (
            _priority(ranked_fact.fact),
            -ranked_fact.probability,
            -ranked_fact.fact.last_index,
            ranked_fact.fact.text,
        ),
    )


def _priority(fact: Fact) -> int:
    return ALWAYS_CARRIED.index(fact.kind) if fact.kind in ALWAYS_CARRIED else len(ALWAYS_CARRIED)


def mention_probability(fact: Fact, messages: int, fact_weights: Mapping[str, float]) -> float:
    total = sum(fact_weights.get(name, 0.0) * value for name, value in features(fact, messages).items())
    return 1 / (1 + exp(-max(-30.0, min(30.0, total))))


def features(fact: Fact, messages: int) -> dict[str, float]:
    """The features of a fact, by their names in `ranking.toml`.

    The age of a fact is not among them: recent messages are in the tail, and for older ones the age did not
    generalize to other kinds of sessions.
    """
    kind = {} if fact.kind is FactKind.IDENTIFIER else {f"is_{fact.kind.value}": 1.0}  # the reference kind
    return kind | {
        "always": 1.0,
        "model": log1p(fact.count_messages_by(Speaker.MODEL)),
        "calls": log1p(fact.count_messages_by(Speaker.CALL_ARGUMENT)),
        "times": log1p(fact.occurrences),
        "lasting": (fact.last_index - fact.first_index) / messages,
        "long": log1p(len(fact.text)),
        "absolute": float(fact.text[:1] in "/~"),
    }


@cache
def default_weights() -> dict[str, float]:
    """The weight of each feature; a missing one counts as 0."""
    table = tomllib.loads(_WEIGHTS_FILE.read_text(encoding="utf-8"))
    return dict(table["weights"])

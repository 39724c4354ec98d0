"""Fit the weights that say how probably a clause of a conversation gives a fact that is needed later.

    python -m benchmarks.fit_clauses FOLDER FOLDER...

Each folder contains conversations, one JSON file each:

    {"messages": [{"role": "user" | "assistant" | "tool", "content": "..."}, ...],
     "checks": {"current": [["14 June"], ["no peanuts", "peanut allergy"]],
                "replaced": ["12 June"],
                "pairs": [["port 8081", "port 8443"]],
                "fragments": ["pid 4121"]}}

`current` are the facts that hold at the end, each with alternative phrases, one of which a good summary
contains. `replaced` are values that later messages replaced, and `fragments` are phrases that only tool results
contain: neither belongs in a summary. Of each pair in `pairs`, it contains both phrases.

Prints the table `compaction/summarize/clauses.toml`, and how much of each folder summaries of 20% of the tokens
carry, with weights that were fitted on the others, and on all: figures of the second kind are too good.
"""

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foveate import formats
from foveate.compaction.facts.extract import read_conversation
from foveate.compaction.summarize.clause_facts import VALUES, WORDS, ClauseReader, ClauseWeights
from foveate.compaction.summarize.clauses import split_clauses
from foveate.compaction.summarize.extractive import summarize_by_rules
from foveate.model import Format, Message
from foveate.tokens.offline_counters import counter_for

SHARE = 0.2
STIFFNESS = 2.0
ROUNDS = 30
COUNTER = counter_for("gpt-4o")

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Conversation:
    folder: str
    messages: tuple[Message, ...]
    tokens: int
    checks: Mapping[str, Sequence[Any]]

    def needed_phrases(self) -> list[str]:
        """The phrases of facts that hold, one of each pair included."""
        current = [phrase for phrases in self.checks["current"] for phrase in phrases]
        return list(map(normalize, current + [phrase for pair in self.checks["pairs"] for phrase in pair]))


@dataclass(frozen=True, slots=True)
class Example:
    folder: str
    table: str
    features: Mapping[str, float]
    is_needed: bool


def normalize(text: str) -> str:
    return text.lower().replace("\u2019", "'").replace("\u00a0", " ")


def read_conversations(folder: Path) -> Iterator[Conversation]:
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        # Without their calls, tool results belong to no format.
        messages = [message | {"tool_call_id": "none"} for message in data["messages"]]
        parsed = tuple(formats.parse_message(Format.CHAT, json.dumps(message).encode()) for message in messages)
        tokens = sum(COUNTER.text(message["content"]).tokens for message in messages)
        yield Conversation(str(folder), parsed, tokens, data["checks"])


def find_examples(conversation: Conversation) -> Iterator[Example]:
    """Yield what the clauses say that are still true, and whether it is needed."""
    read = read_conversation(conversation.messages)
    statements = [statement for number, statement in enumerate(read.statements) if read.is_current(number)]
    reader = ClauseReader(conversation.messages, statements)
    phrases = conversation.needed_phrases()
    for statement in statements:
        text = normalize(statement.text)
        spans = [match.span() for phrase in phrases for match in re.finditer(re.escape(phrase), text)]
        for clause in split_clauses(statement.text):
            facts = list(reader.read(statement, clause))
            values = [(fact.start, fact.end) for fact in facts if fact.table == VALUES]
            # Needed phrases without a value are facts in words.
            in_words = [
                span
                for span in spans
                if clause.start <= span[0] < clause.end and not any(_overlap(span, value) for value in values)
            ]
            for fact in facts:
                place = fact.start, fact.end
                is_needed = any(_overlap(place, span) for span in (spans if fact.table == VALUES else in_words))
                yield Example(conversation.folder, fact.table, fact.features, is_needed)


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def fit(examples: Sequence[Example]) -> ClauseWeights:
    return {
        table: fit_table([example for example in examples if example.table == table])
        for table in (VALUES, WORDS)
    }


def fit_table(examples: Sequence[Example]) -> Mapping[str, float]:
    """Fit a logistic regression with L2 regularization, by Newton's method."""
    names = sorted({name for example in examples for name in example.features})
    matrix = np.array([[example.features.get(name, 0.0) for name in names] for example in examples])
    targets = np.array([example.is_needed for example in examples], dtype=float)
    stiffness = np.array([STIFFNESS if name != "always" else 0.01 for name in names])
    coefficients = np.zeros(len(names))
    for _ in range(ROUNDS):
        chances = 1 / (1 + np.exp(-matrix @ coefficients))
        slope = matrix.T @ (chances - targets) + stiffness * coefficients
        curve = (matrix * (chances * (1 - chances))[:, None]).T @ matrix
        coefficients -= np.linalg.solve(curve + np.diag(stiffness), slope)
    return dict(zip(names, np.round(coefficients, 2).tolist(), strict=True))


def judge(conversations: Sequence[Conversation], weights: ClauseWeights) -> str:
    counts = {name: [0, 0] for name in ("current", "replaced", "pairs", "fragments")}
    for conversation in conversations:
        summary = normalize(
            summarize_by_rules(
                conversation.messages,
                limit_tokens=int(conversation.tokens * SHARE),
                count=lambda text: COUNTER.text(text).upper,
                clause_weights=weights,
            ).text
        )
        for name, tally in counts.items():
            for check in conversation.checks.get(name, ()):
                phrases = [check] if isinstance(check, str) else check
                contained = [normalize(phrase) in summary for phrase in phrases]
                tally[0] += all(contained) if name == "pairs" else any(contained)
                tally[1] += 1
    return ", ".join(f"{name} {100 * found / max(total, 1):.1f}" for name, (found, total) in counts.items())


def main() -> None:
    """Print the table, and how well weights do on folders that they were not fitted on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    folders = parser.parse_args().folders
    conversations = {str(folder): list(read_conversations(folder)) for folder in folders}
    examples = [
        example
        for found in conversations.values()
        for conversation in found
        for example in find_examples(conversation)
    ]
    for folder, found in conversations.items():
        others = [example for example in examples if example.folder != folder]
        if others:
            print(f"# {Path(folder).name}, fitted on the others: {judge(found, fit(others))}")
        print(f"# {Path(folder).name}, fitted on all: {judge(found, fit(examples))}")
    for table, weights in fit(examples).items():
        print(f"\n[{table}]")
        for name, weight in weights.items():
            print(f"{name} = {weight:.2f}")


if __name__ == "__main__":
    main()

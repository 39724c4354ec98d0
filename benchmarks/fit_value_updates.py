"""Fit the weights that tell which value a later one replaces, on conversations with checks.

    python -m benchmarks.fit_value_updates FOLDER...

A folder has conversations as JSON files: `messages`, and `checks` with the phrases that are `replaced`, those
that are `current` (lists of alternatives), and `pairs` of phrases that are both true. Prints the table
`compaction/facts/value_updates.toml`, and for each folder how many replaced and current values are removed with
weights fitted on the other folders. The checks do not say which value replaced an old one: of all that may
have, the likeliest counts, in turns with the fit.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foveate.compaction.facts.contrasts import are_different
from foveate.compaction.facts.statements import Statement, find_statements
from foveate.compaction.facts.texts import Speaker
from foveate.compaction.facts.updates import find_surroundings, word_similarity
from foveate.compaction.facts.value_updates import ValueIndex
from foveate.compaction.facts.values import Mention
from foveate.model import Message, Text

THRESHOLD = -0.3
STIFFNESS = 4.0
ROUNDS = 25
TURNS = 8
LENGTH_POWER = 0.15
# A value that no check names is mostly true, but not always. There are more of them.
WEIGHTS = {"replaced": 4.0, "current": 3.0, "other": 0.4}

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairExample:
    """A value and an earlier one. `group` is the same for all pairs that are about one old value."""

    folder: str
    kind: str
    group: tuple[str, ...]
    new: tuple[str, int, int]
    is_checked: bool
    """The new value is in a check as well, so it may be what replaced the old one."""
    features: Mapping[str, float]


def read_examples(folder: Path) -> Iterator[PairExample]:
    for path in sorted(folder.glob("*.json")):
        conversation = json.loads(path.read_text(encoding="utf-8"))
        messages = [_read_message(message) for message in conversation["messages"]]
        yield from _find_examples(folder.name, path.stem, messages, conversation["checks"])


def _read_message(message: Mapping[str, str]) -> Message:
    return Message(role=message["role"], parts=(Text(text=message["content"]),))


def _find_examples(
    folder: str, name: str, messages: Sequence[Message], checks: Mapping[str, Any]
) -> Iterator[PairExample]:
    current = [phrase for check in (*checks["current"], *checks["pairs"]) for phrase in _phrases(check)]
    statements = find_statements(messages)
    values = ValueIndex(partial(are_different, similarity=word_similarity()))
    for number, statement in enumerate(statements):
        if statement.speaker is not Speaker.USER or statement.is_quoted or statement.is_summary:
            continue
        surroundings = find_surroundings(statements, number)
        for pair in values.find_pairs(statement, surroundings, statements, {}):
            old, new = pair.change.old, pair.change.new
            said = statements[pair.change.number]
            outdated = _find_phrase(checks["replaced"], said, old)
            true = _find_phrase(current, said, old)
            yield PairExample(
                folder=folder,
                kind="replaced" if outdated else "current" if true else "other",
                group=(name, outdated or true or f"{pair.change.number} {old.start}"),
                new=(name, number, new.start),
                is_checked=bool(_find_phrase([*current, *checks["replaced"]], statement, new)),
                features=pair.features,
            )
        values.add(number, statement, surroundings.earlier[0] if surroundings.earlier else None)


def _phrases(check: str | Sequence[Any]) -> Iterator[str]:
    if isinstance(check, str):
        yield check
    else:
        for part in check:
            yield from _phrases(part)


def _find_phrase(phrases: Sequence[str], statement: Statement, mention: Mention) -> str:
    """The phrase that a value in a statement is part of, or that it contains."""
    text = _normal(statement.text)
    value = text[mention.start : mention.end]
    found = (
        phrase
        for phrase in phrases
        if (normal := _normal(phrase)) in text and (value in normal or normal in value)
    )
    return next(found, "")


def _normal(text: str) -> str:
    return text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").replace("\N{NO-BREAK SPACE}", " ")


def fit(matrix: Numbers, targets: Numbers, weights: Numbers) -> Numbers:
    """Fit a logistic regression with L2 regularization, by Newton's method."""
    coefficients = np.zeros(matrix.shape[1])
    for _ in range(ROUNDS):
        chances = 1 / (1 + np.exp(-np.clip(matrix @ coefficients, -30, 30)))
        slope = matrix.T @ (weights * (chances - targets)) + STIFFNESS * coefficients
        curve = (matrix * (weights * chances * (1 - chances))[:, None]).T @ matrix
        coefficients -= np.linalg.solve(curve + STIFFNESS * np.eye(len(coefficients)), slope)
    return coefficients


class UpdateFit:
    """Pairs of values as numbers, and the weights that can be fitted on some of them."""

    def __init__(self, examples: Sequence[PairExample]) -> None:
        self._examples = examples
        self.names = sorted({name for example in examples for name in example.features})
        self._matrix = np.array(
            [[example.features.get(name, 0.0) for name in self.names] for example in examples]
        )
        counts = Counter((example.folder, example.new[0]) for example in examples)
        # Long conversations must not dominate.
        weights = np.array(
            [
                WEIGHTS[example.kind] * counts[example.folder, example.new[0]] ** -LENGTH_POWER
                for example in examples
            ]
        )
        self._weights = weights / weights.mean()

    def fit_where(self, is_used: Callable[[PairExample], bool]) -> Numbers:
        """The weights fitted on some of the pairs."""
        groups: dict[tuple[str, ...], list[int]] = {}
        others: list[int] = []
        for number, example in enumerate(self._examples):
            if not is_used(example):
                continue
            if example.kind == "replaced":
                groups.setdefault((example.folder, *example.group), []).append(number)
            else:
                others.append(number)
        for group, numbers in groups.items():
            groups[group] = [number for number in numbers if self._examples[number].is_checked] or numbers
        scores = np.array([_guess(example) for example in self._examples])
        coefficients = np.zeros(len(self.names))
        for _ in range(TURNS):
            chosen = [max(numbers, key=lambda number: scores[number]) for numbers in groups.values()]
            rows = [*chosen, *others]
            targets = np.array([1.0] * len(chosen) + [0.0] * len(others))
            coefficients = fit(self._matrix[rows], targets, self._weights[rows])
            scores = self._matrix @ coefficients
        return coefficients

    def judge(self, folder: str, coefficients: Numbers, threshold: float = THRESHOLD) -> str:
        """How many values of each kind are removed: each new value replaces the likeliest old one, if any."""
        scores = self._matrix @ coefficients
        best: dict[tuple[str, int, int], int] = {}
        groups: dict[str, set[tuple[str, ...]]] = {kind: set() for kind in WEIGHTS}
        for number, example in enumerate(self._examples):
            if example.folder == folder:
                groups[example.kind].add(example.group)
                if scores[number] > scores[best.setdefault(example.new, number)]:
                    best[example.new] = number
        removed: dict[str, set[tuple[str, ...]]] = {kind: set() for kind in WEIGHTS}
        for number in best.values():
            if scores[number] > threshold:
                removed[self._examples[number].kind].add(self._examples[number].group)
        return ", ".join(f"{kind} {len(removed[kind])} of {len(groups[kind])}" for kind in WEIGHTS)


def _guess(example: PairExample) -> float:
    features = example.features
    return features["overlap"] + features["change"] / 2 + 1.5 * features["named"] + example.is_checked


def main() -> None:
    """Print the table, and how well weights do on folders that they were not fitted on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    folders: list[Path] = parser.parse_args().folders
    fitted = UpdateFit([example for folder in folders for example in read_examples(folder)])
    for folder in folders:
        weights = fitted.fit_where(lambda example, name=folder.name: example.folder != name)
        print(f"# {folder.name} with weights of the others: {fitted.judge(folder.name, weights)}")
    weights = fitted.fit_where(lambda _: True)
    for folder in folders:
        print(f"# {folder.name} with all weights: {fitted.judge(folder.name, weights)}")
    print(f"threshold = {THRESHOLD}\n\n[weights]")
    for name, weight in zip(fitted.names, weights.tolist(), strict=True):
        print(f"{name} = {weight:.2f}")


if __name__ == "__main__":
    main()

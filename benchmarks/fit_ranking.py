"""Fit the weights that rank facts for compaction, on recorded sessions compacted at several windows.

    python -m benchmarks.fit_ranking [--data PATH]

Prints the table `compaction/facts/ranking.toml`. A fact that is needed later (mentioned before any tool has
shown it again) counts as 1, one that is only shown again as 0.25. Each session, and all of each source, are
also judged with weights fitted on all others: the share of needed facts, and of all mentioned facts, that fits
into 6.5% of the compacted text. `./bench fold-carry` measures such weights in whole summaries.
"""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.compaction_points import COUNTER, DATA, CompactionPoint, Span, find_compaction_points
from benchmarks.compaction_sessions import RecordedSession, recorded_sessions
from foveate.compaction.facts.extract import ALWAYS_CARRIED, Fact, RankedFact, extract_facts, features
from foveate.compaction.facts.texts import Speaker
from foveate.compaction.summarize.extractive import value_per_token

WINDOWS_TOKENS = (8_000, 12_000, 20_000, 30_000, 40_000)
SHOWN_AGAIN = 0.25
STIFFNESS = 100.0
ROUNDS = 30
# Share that the sections of a summary leave to names.
NAMES_SHARE = 0.065

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactExample:
    """A fact at a compaction, and its later use."""

    session: str
    source: str
    compaction: int
    limit_tokens: float
    fact: Fact
    features: Mapping[str, float]
    needed: bool
    shown: bool


def cases(sessions: Sequence[RecordedSession]) -> list[FactExample]:
    """Yield every name at every compaction that is not in the tail."""
    found: list[FactExample] = []
    compactions = 0
    for session in sessions:
        alone = [extract_facts([message]) for message in session.messages]
        for window_tokens in WINDOWS_TOKENS:
            for point in find_compaction_points(session, _summarize_to_length, window_tokens):
                compactions += 1
                found += _cases_at(point, compactions, alone)
    return found


def _summarize_to_length(span: Span) -> str:
    return " x" * int(span.replaced_tokens * 0.1)


def _cases_at(point: CompactionPoint, compaction: int, alone: Sequence[Sequence[Fact]]) -> list[FactExample]:
    needed: set[str] = set()
    shown: set[str] = set()
    for facts in alone[point.sent :]:
        authored_facts = {
            fact.text
            for fact in facts
            if any(fact.count_messages_by(v) for v in Speaker if v is not Speaker.TOOL_RESULT)
        }
        needed |= authored_facts - shown
        shown |= {fact.text for fact in facts}
    tail_facts = {fact.text for fact in extract_facts(point.span.tail)}
    return [
        FactExample(
            session=point.session.name,
            source=point.session.source,
            compaction=compaction,
            limit_tokens=point.span.replaced_tokens * NAMES_SHARE,
            fact=fact,
            features=features(fact, len(point.span.compacted)),
            needed=fact.text in needed,
            shown=fact.text in shown,
        )
        for fact in extract_facts(point.span.compacted)
        if fact.text not in tail_facts and fact.kind not in (*ALWAYS_CARRIED, "decision", "error")
    ]


def fit(matrix: Numbers, targets: Numbers, weights: Numbers) -> Numbers:
    """Fit a logistic regression with L2 regularization, by Newton's method."""
    coefficients = np.zeros(matrix.shape[1])
    for _ in range(ROUNDS):
        chances = 1 / (1 + np.exp(-matrix @ coefficients))
        slope = matrix.T @ (weights * (chances - targets)) + STIFFNESS * coefficients
        curve = (matrix * (weights * chances * (1 - chances))[:, None]).T @ matrix
        coefficients -= np.linalg.solve(curve + STIFFNESS * np.eye(len(coefficients)), slope)
    return coefficients


def recall(cases_: Sequence[FactExample], chances: Numbers) -> tuple[float, float]:
    """Return how much of what is needed, and of what is mentioned at all, has room."""
    tokens = [COUNTER.text(f" {case.fact.text}").tokens for case in cases_]
    order = sorted(
        zip(cases_, chances, tokens, strict=True),
        key=lambda item: -value_per_token(RankedFact(item[0].fact, float(item[1])), item[2]),
    )
    used: Counter[int] = Counter()
    retained = []
    for case, _, tokens_ in order:
        used[case.compaction] += tokens_
        if used[case.compaction] <= case.limit_tokens:
            retained.append(case)
    needed, shown = sum(case.needed for case in cases_), sum(case.shown for case in cases_)
    return (
        sum(case.needed for case in retained) / max(needed, 1),
        sum(case.shown for case in retained) / max(shown, 1),
    )


class RankingFit:
    """Cases as numbers, and the weights that can be fitted on some of them."""

    def __init__(self, examples: Sequence[FactExample]) -> None:
        self.names = sorted({name for case in examples for name in case.features})
        self._examples = examples
        self._matrix = np.array([[case.features.get(name, 0.0) for name in self.names] for case in examples])
        self._targets = np.array([max(case.needed, SHOWN_AGAIN * case.shown) for case in examples])
        self.compaction_counts = Counter(
            session for session, _ in {(case.session, case.compaction) for case in examples}
        )
        # Long sessions must not dominate.
        weights = np.array([self.compaction_counts[case.session] ** -0.5 for case in examples])
        self._weights = weights / weights.mean()

    def weights_without(self, left_out: Sequence[bool]) -> dict[str, float]:
        """Return the weights fitted on all other cases."""
        retained = ~np.array(left_out)
        found = fit(self._matrix[retained], self._targets[retained], self._weights[retained])
        return dict(zip(self.names, found.tolist(), strict=True))

    def judge(self, is_own_case: Sequence[bool]) -> str:
        """Judge these cases with weights fitted on the others."""
        weights = np.array(list(self.weights_without(is_own_case).values()))
        chances = 1 / (1 + np.exp(-self._matrix[np.array(is_own_case)] @ weights))
        needed, shown = recall(
            [case for case, is_own in zip(self._examples, is_own_case, strict=True) if is_own], chances
        )
        return f"needed {needed:.2f}, mentioned {shown:.2f}"


def held_out_weights(sessions: Sequence[RecordedSession]) -> dict[str, dict[str, float]]:
    """Return for each source the weights fitted on all others."""
    examples = cases(sessions)
    fitted = RankingFit(examples)
    sources = sorted({session.source for session in sessions})
    return {source: fitted.weights_without([case.source == source for case in examples]) for source in sources}


def main() -> None:
    """Print the table, and how well weights do on sessions that they were not fitted on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    examples = cases(recorded_sessions(parser.parse_args().data))
    fitted = RankingFit(examples)
    for session in sorted({case.session for case in examples if case.shown}):
        result = fitted.judge([case.session == session for case in examples])
        print(f"# {session}: {fitted.compaction_counts[session]} folds, {result}")
    for source in sorted({case.source for case in examples}):
        print(f"# all of {source}: {fitted.judge([case.source == source for case in examples])}")
    print("[weights]")
    for name, weight in fitted.weights_without([False] * len(examples)).items():
        print(f"{name} = {weight:.2f}")


if __name__ == "__main__":
    main()

"""Rank facts: constraints and tasks first, then by the probability that later turns mention them.

The probability is a logistic function of `features`. The weights in `ranking.toml` are fitted on recorded
sessions by `benchmarks/fit_ranking.py`.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log1p
from pathlib import Path

from foveate.compaction.facts.extract import Fact, Speaker
from foveate.compaction.facts.rules import FactKind

_WEIGHTS_FILE = Path(__file__).with_name("ranking.toml")
# Always carried, whatever the probability: they say what to do and cannot be looked up elsewhere.
ALWAYS_CARRIED = (FactKind.CONSTRAINT, FactKind.TASK)


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

"""Which facts matter: those that later turns are likely to mention again, and what the user holds the model to.

How likely that is, is a logistic function of what is known of a fact (`features`). The weights are data
(`fold/ranking.toml`), fitted on recorded sessions by `benchmarks/fit_ranking.py`.
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
# What is carried whatever its chances are: it says what is to be done, and cannot be looked up anywhere else.
ALWAYS_CARRIED = (FactKind.CONSTRAINT, FactKind.TASK)


@dataclass(frozen=True, slots=True)
class RankedFact:
    """A fact, and how likely it is that later turns mention it."""

    fact: Fact
    probability: float


def rank_facts(
    facts: Sequence[Fact], messages: int, fact_weights: Mapping[str, float] | None = None
) -> list[RankedFact]:
    """`facts` of a span of so many messages: constraints and open tasks, then the likeliest to come back.

    `weighed` are other weights than those of the table, to be tried.
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
    """How likely it is that a fact from a span of so many messages is mentioned again."""
    total = sum(fact_weights.get(name, 0.0) * value for name, value in features(fact, messages).items())
    return 1 / (1 + exp(-max(-30.0, min(30.0, total))))


def features(fact: Fact, messages: int) -> dict[str, float]:
    """What is known of a fact, by the names under which `fold/ranking.toml` weighs it.

    How long ago it was said is not among them: the tail holds what was said of late, and before that it told
    nothing that would have held on sessions of another kind.
    """
    kind = {} if fact.kind is FactKind.IDENTIFIER else {f"is_{fact.kind.value}": 1.0}  # the others beside it
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
    """How much each feature weighs; one that is not there weighs nothing."""
    table = tomllib.loads(_WEIGHTS_FILE.read_text(encoding="utf-8"))
    return dict(table["weights"])

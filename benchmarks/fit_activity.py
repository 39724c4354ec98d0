"""Fit the prior of `compaction/forecast.toml`: how long sessions go on, how fast they grow, and their pauses.

    .venv-bench/bin/python -m benchmarks.fit_activity [DATA]

Each source weighs the same, whatever its size: traces of coding agents, and recorded sessions by author. A
session ends at a constant rate, and the rates of sessions have a gamma distribution, so lengths have a Lomax
distribution. The log-likelihood of each source is that under a fit on all others, per session.
"""

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.bill_recordings import read_recordings
from benchmarks.recorded import DATA
from foveate.compaction.forecast import ActivityPrior, TurnPrior, load_prior

_SHAPES = (1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0)
_EXPOSURES = (5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 90.0, 150.0, 300.0, 600.0)
_PAUSE_SECONDS = 300.0
# Recorded sessions of one author are few, and their own lengths too few to judge a fit.
_MIN_SESSIONS = 3


@dataclass(frozen=True, slots=True)
class Request:
    at: float
    tokens: int
    calls_tool: bool


Sequences = list[list[Request]]


def main() -> None:
    """Print the prior, and how well it predicts sources that it was not fitted on."""
    sources = _read_sources(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
    for name, sessions in sources.items():
        if len(sessions) >= _MIN_SESSIONS:
            fit = _fit_ends([others for other, others in sources.items() if other != name])
            likelihood, best = _likelihood(sessions, *fit), _likelihood(sessions, *_fit_ends([sessions]))
            print(f"{name:28} {len(sessions):4} sessions, {likelihood:.3f} by {fit}, own fit {best:.3f}")
    for key, value in fit_prior(list(sources.values())).items():
        print(f"{key} = {value}")


def fit_held_out(data: Path = DATA) -> dict[str, ActivityPrior]:
    """The prior for each source, fitted on all others."""
    sources = _read_sources(data)
    return {name: fit_prior([others for other, others in sources.items() if other != name]) for name in sources}


def fit_prior(sources: Sequence[Sequences]) -> ActivityPrior:
    shape, exposure = _fit_ends(sources)
    prior = load_prior()
    return {
        **prior,
        "end_shape": shape,
        "end_exposure_requests": exposure,
        "growth_tokens": round(mean(_growth(sessions) for sessions in sources)),
        "tool_called": _fit_turns(sources, calls_tool=True),
        "turn_ended": _fit_turns(sources, calls_tool=False),
    }


def _fit_turns(sources: Sequence[Sequences], *, calls_tool: bool) -> TurnPrior:
    shares = [_turns(sessions, calls_tool=calls_tool) for sessions in sources]
    ends, cold, returns = (
        round(mean(share[column] for share in shares if share is not None), 3) for column in range(3)
    )
    return {"ends": ends, "cold": cold, "returns": returns}


def _read_sources(data: Path) -> dict[str, Sequences]:
    return {"traces": list(_traces(data / "agent_cache_traces.jsonl.gz")), **_sessions(data / "sessions")}


def _traces(path: Path) -> Iterator[list[Request]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            waiting: list[Sequence[Mapping[str, Any]]] = [json.loads(line)["requests"]]
            while waiting:
                rows = waiting.pop()
                waiting += [row["requests"] for row in rows if row.get("requests")]
                session = [
                    Request(row["t"], row["in"], row["stop"] != "end_turn") for row in rows if "in" in row
                ]
                if session:
                    yield session


def _sessions(folder: Path) -> dict[str, Sequences]:
    sources: dict[str, Sequences] = defaultdict(list)
    for source, recording in read_recordings(folder)[0]:
        conversations: dict[str, list[Request]] = defaultdict(list)
        for call in recording.calls:
            tokens = call.usage.cache.input_tokens if call.usage is not None else 0
            conversations[call.conversation].append(Request(call.at, tokens, b'"tool_use"' in call.response))
        sources[source] += conversations.values()
    return dict(sources)


def _likelihood(sessions: Sequences, shape: float, exposure: float) -> float:
    """The mean log-likelihood of the lengths of sessions."""
    return mean(
        log(
            (exposure / (exposure + len(session) - 1)) ** shape
            - (exposure / (exposure + len(session))) ** shape
        )
        for session in sessions
    )


def _fit_ends(sources: Sequence[Sequences]) -> tuple[float, float]:
    options = [(shape, exposure) for shape in _SHAPES for exposure in _EXPOSURES]
    return max(options, key=lambda option: sum(_likelihood(sessions, *option) for sessions in sources))


def _growth(sessions: Sequences) -> float:
    """The mean growth of requests that do not shrink."""
    steps = [
        after.tokens - before.tokens
        for session in sessions
        for before, after in pairwise(session)
        if after.tokens >= before.tokens
    ]
    return mean(steps) if steps else 0.0


def _turns(sessions: Sequences, *, calls_tool: bool) -> tuple[float, float, float] | None:
    """Shares of such responses: the last ones, those before a pause, and returns among the silent ones."""
    ends = pauses = others = 0
    for session in sessions:
        ends += session[-1].calls_tool is calls_tool
        gaps = [after.at - before.at for before, after in pairwise(session) if before.calls_tool is calls_tool]
        pauses += sum(gap > _PAUSE_SECONDS for gap in gaps)
        others += len(gaps)
    if ends + others < 2 * _MIN_SESSIONS:
        return None
    return ends / (ends + others), pauses / max(others, 1), pauses / max(pauses + ends, 1)


if __name__ == "__main__":
    main()

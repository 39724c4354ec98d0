"""Fit the prior of `placement/prefix_reuse.toml`: how often the first request of a session is continued.

    .venv-bench/bin/python -m benchmarks.fit_reuse [DATA]

Each source weighs the same, whatever its size: recorded tests of agent frameworks by repository, traces of
coding agents, and single calls as the generated workloads make them. The Brier score is that of each source
predicted by a fit on all others, compared with that of a constant 0.5.
"""

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

from benchmarks.recorded import DATA

_CHARS_PER_TOKEN = 4
_RIDGE = 0.05
_STEPS = 4000
_NAMES = ("intercept", "has_tools", "has_history", "has_breakpoints", "log_tokens")

Row = tuple[tuple[float, ...], bool]


def main() -> None:
    """Print the weights and how well they predict unseen data."""
    data = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    sources = {**_suites(data), "coding agents": list(_traces(data)), "single calls": list(_single_calls())}
    for name, rows in sources.items():
        others = [each for other, each in sources.items() if other != name]
        weights = _fit(others)
        print(f"{name:32} {len(rows):5} rows, Brier {_brier(weights, rows):.3f}, constant 0.250")
    for name, weight in zip(_NAMES, _fit(list(sources.values())), strict=True):
        print(f"{name} = {weight:.2f}")


def _features(tools: bool, history: bool, breakpoints: bool, tokens: float) -> tuple[float, ...]:
    return 1.0, float(tools), float(history), float(breakpoints), log(max(1.0, tokens) / 1000)


def _suites(data: Path) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    files: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for name in ("usage_pairs.jsonl.gz", "usage_pairs_more.jsonl.gz"):
        with gzip.open(data / name, "rt", encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                if isinstance(row["request"], dict):
                    files[row["repo"], row["file"]].append((row["idx"], row["request"]))
    for (repo, _), rows in files.items():
        requests = [request for _, request in sorted(rows, key=lambda row: row[0])]
        conversations = [_messages(request) for request in requests]
        for at, (request, messages) in enumerate(zip(requests, conversations, strict=True)):
            if not messages or any(_continues(messages, before) for before in conversations[:at]):
                continue
            serialized = json.dumps(request)
            features = _features(
                bool(request.get("tools")),
                len(messages) > 1,
                "cache_control" in serialized,
                len(serialized) / _CHARS_PER_TOKEN,
            )
            found[repo].append(
                (features, any(_continues(after, messages) for after in conversations[at + 1 :]))
            )
    return found


def _messages(request: dict[str, Any]) -> list[str]:
    messages = request.get("messages") or request.get("input") or request.get("contents") or []
    messages = [messages] if isinstance(messages, str) else messages
    return [json.dumps(each) for each in messages if not _is_system(each)]


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in ("system", "developer")


def _continues(messages: Sequence[str], before: Sequence[str]) -> bool:
    return 0 < len(before) < len(messages) and list(messages[: len(before)]) == list(before)


def _traces(data: Path) -> Iterator[Row]:
    """Yield requests of coding agents, which set their own breakpoints; the traces do not name the clients."""
    with gzip.open(data / "agent_cache_traces.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            trace = json.loads(line)
            requests = [each for each in trace["requests"] if "requests" not in each]
            if requests:
                for breakpoints in (False, True):
                    tools = trace.get("tool_tokens", 0) > 0
                    yield _features(tools, False, breakpoints, requests[0]["in"]), len(requests) > 1


def _single_calls() -> Iterator[Row]:
    for tokens in (1_000, 2_000, 4_000, 8_000, 16_000, 32_000):
        for history in (False, True):
            yield _features(False, history, False, tokens), False


def _fit(sources: Sequence[Sequence[Row]]) -> list[float]:
    """Fit a logistic regression by gradient descent, with equal weight for all sources."""
    weights = [0.0] * len(_NAMES)
    counted: list[dict[Row, int]] = []
    for rows in sources:
        counts: dict[Row, int] = defaultdict(int)
        for features, is_again in rows:
            counts[(*features[:4], round(features[4] * 2) / 2), is_again] += 1
        counted.append(counts)
    for _ in range(_STEPS):
        gradient = [_RIDGE * weight if at else 0.0 for at, weight in enumerate(weights)]
        for counts, rows in zip(counted, sources, strict=True):
            for (features, is_again), count in counts.items():
                error = (_predict(weights, features) - is_again) * count / len(rows) / len(sources)
                gradient = [slope + error * each for slope, each in zip(gradient, features, strict=True)]
        weights = [weight - 0.5 * slope for weight, slope in zip(weights, gradient, strict=True)]
    return weights


def _predict(weights: Sequence[float], features: Sequence[float]) -> float:
    return 1 / (1 + exp(-sum(weight * each for weight, each in zip(weights, features, strict=True))))


def _brier(weights: Sequence[float], rows: Sequence[Row]) -> float:
    return sum((_predict(weights, features) - is_again) ** 2 for features, is_again in rows) / len(rows)


if __name__ == "__main__":
    main()

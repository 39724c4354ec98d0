"""Accuracy of the constants for Claude on the usage of recordings that were held out of their fit.

In each of eight rounds, an eighth of the recordings is held out (whole files, so that the requests of one
recording stay together). The constants are fitted on the rest and on the sessions, and predict the usage that
was held out.
"""

import statistics
from pathlib import Path
from zlib import crc32

from benchmarks.fit_claude import DEFAULT_DATA, Example, examples, fit, session_examples
from benchmarks.harness import BadData, Report
from benchmarks.recorded_steps import increments
from foveate.tokens.tokenizers.claude import ClaudeConstants

FOLDS = 8


FIGURES = (
    "<group>_rows",
    "<group>_median_error",
    "<group>_p95_error",
    "<group>_upper_covers",
)


def run(data: Path | None) -> Report:
    """Return the errors on usage that the fit has not seen."""
    folder = data or DEFAULT_DATA
    if not (folder / "usage_pairs.jsonl.gz").exists():
        raise BadData(f"there is no usage_pairs.jsonl.gz in {folder}")
    examples_by_usage = examples(folder)
    steps = increments(folder / "sessions")
    grown = session_examples(steps)
    seen = {e.recording: crc32(e.recording.encode()) % FOLDS for e in examples_by_usage}
    rows: list[dict[str, str | float | bool]] = []
    for fold in range(FOLDS):
        families = fit([e for e in examples_by_usage if seen[e.recording] != fold], steps, grown)
        rows += [_predict(e, families[e.family]) for e in examples_by_usage if seen[e.recording] == fold]
    figures: dict[str, float] = {}
    for name, group in (
        ("anthropic", [row for row in rows if str(row["recording"]).startswith("anthropic:")]),
        ("other_hosts", [row for row in rows if not str(row["recording"]).startswith("anthropic:")]),
        ("later_models", [row for row in rows if row["family"] == "claude-4.7"]),
    ):
        errors = sorted(float(row["error"]) for row in group)
        figures[f"{name}_rows"] = len(group)
        figures[f"{name}_median_error"] = statistics.median(errors)
        figures[f"{name}_p95_error"] = errors[int(0.95 * len(errors))]
        figures[f"{name}_upper_covers"] = statistics.fmean(bool(row["covered"]) for row in group)
    worst = sorted(rows, key=lambda row: -float(row["error"]))[:20]
    return Report(figures=figures, rows=worst)


def _predict(example: Example, constants: ClaudeConstants) -> dict[str, str | float | bool]:
    weights = constants.text | constants.structure
    spreads = constants.text_spread | constants.structure_spread
    contributions = {name: number * weights.get(name, 0.0) for name, number in example.times.items()}
    predicted = sum(contributions.values())
    margin = sum(tokens * spreads.get(name, 0.0) for name, tokens in contributions.items())
    documented = example.reported_tokens - example.tokens
    upper = documented + predicted + margin + constants.around_tokens
    return {
        "recording": example.recording,
        "family": example.family,
        "billed": example.reported_tokens,
        "predicted": round(documented + predicted),
        "error": abs(predicted - example.tokens) / example.reported_tokens,
        "covered": upper >= example.reported_tokens,
    }

"""Fit the weight of each character class for each bundled vocabulary, and validate it on held-out texts.

    python -m benchmarks.fit_estimate [--data PATH] [--out PATH]

A bounded least squares on relative errors over prose, code, JSON and the world's scripts (`scripts.txt`), each
kind weighing the same. No weight falls below what a run of such characters costs at least, so that no text is
estimated at nothing.
"""

import argparse
import gzip
import random
import re
import sys
import sysconfig
import tarfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from benchmarks.harness import table
from benchmarks.recorded import DATA, PAIRS
from foveate.tokens.tokenizers import estimate
from foveate.tokens.tokenizers.estimate import TEXT_FEATURES, count_text_features
from foveate.tokens.tokenizers.vocabularies import BUNDLED_VOCABULARIES, bundled_vocabulary

FITTED = "2026-11-15"
_SEED = 20261115
_TEXTS_PER_KIND = 1500
_MIN_CHARS, _MAX_CHARS = 40, 12_000
# Below this many tokens, an error of one token does not matter.
_SMALL_TOKENS = 10
# Cross-validation: each fifth of the documents is measured with weights fitted on the others.
_FOLDS = 5
_COVERED = 0.99
_SCRIPTS = Path(__file__).parent / "scripts.txt"
# Images in base64 are not text to a model.
_BASE64 = re.compile(r"[A-Za-z0-9+/=_-]{120,}")

# Minimum value of each feature: vocabularies merge at most about 16 equal punctuation characters or letters,
# 64 or 128 blanks, three digits, three or four letters of other scripts. In runs, every second one is
# counted.
_MIN_WEIGHTS = {
    "words": 0.0,
    "lower": 1 / 16,
    "humps": 0.0,
    "upper": 1 / 8,
    "digits": 1 / 4,
    "digit_runs": 1 / 4,
    "marks": 1 / 16,
    "mark_runs": 1 / 16,
    "lines": 1 / 16,
    "blanks": 1 / 64,
    "cjk": 1 / 3,
    "near": 1 / 4,
    "far": 1 / 4,
    "farthest": 1.0,
    "glued": 0.0,
}


def documents(data: Path) -> dict[str, list[str]]:
    """Return whole texts by kind, in a fixed order."""
    with tarfile.open(data / "knowledge" / "worg.tar.gz") as archive:
        members = sorted((m for m in archive if m.name.endswith(".org")), key=lambda member: member.name)
        read = [found.read() for member in members if (found := archive.extractfile(member)) is not None]
    library = Path(sysconfig.get_paths()["stdlib"])
    code = [path.read_text("utf-8", "ignore") for path in sorted(library.glob("*.py"))]
    with gzip.open(data / PAIRS, "rt", encoding="utf-8") as rows:
        bodies = [msgspec.json.encode(msgspec.json.decode(row)["request"]).decode() for row in rows]
    json = [_BASE64.sub("", body) for body in bodies]
    prose = [text.decode("utf-8", "ignore") for text in read]
    return {"prose": prose, "code": code, "json": json, "scripts": _SCRIPTS.read_text("utf-8").splitlines()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A part of a document, and the cross-validation fold of the document."""

    kind: str
    fold: int
    text: str


def excerpts(data: Path) -> list[Excerpt]:
    """Return excerpts of all lengths from anywhere in the documents, short ones as often as long ones."""
    chance = random.Random(_SEED)
    result: list[Excerpt] = []
    for kind, found in documents(data).items():
        whole = [text for text in found if len(text) >= _MIN_CHARS]
        chance.shuffle(whole)
        for _ in range(_TEXTS_PER_KIND):
            number = chance.randrange(len(whole))
            length = round(_MIN_CHARS * (_MAX_CHARS / _MIN_CHARS) ** chance.random())
            start = chance.randrange(max(1, len(whole[number]) - length))
            text = whole[number][start : start + length]
            result.append(Excerpt(kind=kind, fold=number % _FOLDS, text=text))
    return result


def solve(matrix: NDArray[np.float64], tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weight of each of `FEATURES`, rounded as it is shipped."""
    scale = 1 / np.maximum(tokens, _SMALL_TOKENS)
    min_weights = np.array([_MIN_WEIGHTS[name] for name in TEXT_FEATURES])
    solved = lsq_linear(matrix * scale[:, None], tokens * scale, bounds=(min_weights, np.inf)).x
    shipped: NDArray[np.float64] = np.round(np.maximum(solved, min_weights), 4)
    return shipped


def held_out_errors(
    matrix: NDArray[np.float64], tokens: NDArray[np.float64], folds: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return by how much, relative to the estimate, each text is longer than the other folds predict."""
    longer = np.zeros(len(tokens))
    for fold in range(_FOLDS):
        is_held_out = folds == fold
        estimated = np.maximum(1, matrix[is_held_out] @ solve(matrix[~is_held_out], tokens[~is_held_out]))
        longer[is_held_out] = (tokens[is_held_out] - estimated) / estimated
    return longer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of recorded data")
    parser.add_argument(
        "--out", type=Path, default=Path(estimate.__file__).parents[1] / "data" / "estimate.json"
    )
    options = parser.parse_args()
    excerpts_ = excerpts(options.data)
    texts = [excerpt.text for excerpt in excerpts_]
    kinds = np.array([excerpt.kind for excerpt in excerpts_])
    folds = np.array([excerpt.fold for excerpt in excerpts_])
    matrix = np.array([count_text_features(text) for text in texts], float)
    weights, spread = {}, {}
    rows: list[dict[str, str | float]] = []
    for vocabulary in BUNDLED_VOCABULARIES:
        tokens = np.array(bundled_vocabulary(vocabulary).count_many(texts), float)
        longer = held_out_errors(matrix, tokens, folds)
        weights[vocabulary] = solve(matrix, tokens).tolist()
        spread[vocabulary] = round(float(np.quantile(longer, _COVERED)), 4)
        off = 100 * np.abs(longer)
        medians = {f"{kind} median %": float(np.median(off[kinds == kind])) for kind in np.unique(kinds)}
        p95 = float(np.quantile(off, 0.95))
        rows.append({"vocabulary": vocabulary, **medians, "all p95 %": p95, "spread": spread[vocabulary]})
    shipped = {"fitted": FITTED, "features": TEXT_FEATURES, "weights": weights, "spread": spread}
    options.out.write_bytes(msgspec.json.format(msgspec.json.encode(shipped), indent=1) + b"\n")
    print(table(rows))
    print(f"wrote {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

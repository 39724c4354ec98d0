"""Fit the constants of Claude's tokenizers on recorded usage, and build the table of token classes.

    python -m benchmarks.fit_claude [--data PATH] [--out PATH]

The count of a request is linear in the constants: tokens = what is documented + structure times its number +
text times its tokens of each class. How often a constant counts in a request is found by asking the product's
own rules with that constant at 1 and all others at 0; the fit is a bounded least squares on relative errors,
robust against recordings that were altered, and held near physical priors where the data says little.
"""

import argparse
import gzip
import json
import math
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from benchmarks.claude_priors import (
    ACCENTED_LATER,
    ANCHORS,
    DEFAULT_TEXT_SPREAD,
    ENVELOPE_TOKENS,
    LATER_FACTORS,
    LATER_STRUCTURE,
    STRUCTURE,
    STRUCTURE_SPREAD,
    TEXT,
    TEXT_SPREAD,
    Prior,
)
from benchmarks.recorded_steps import Increment, increments
from foveate import formats
from foveate.model import Format, Message, Request
from foveate.tokens.counter import RequestCount, RequestCounter
from foveate.tokens.rendering.claude import ClaudeRules, claude_model_figures
from foveate.tokens.tokenizers import claude
from foveate.tokens.tokenizers.claude import (
    ClaudeConstants,
    ClaudeTokenizer,
    FittedConstants,
    claude_family,
    count_token_classes,
)
from foveate.tokens.tokenizers.vocabularies import bundled_vocabulary

ROOT = Path(__file__).parent.parent
DEFAULT_DATA = ROOT.parent / "shared" / "data"


_TEXT_STIFFNESS, _STRUCTURE_STIFFNESS = 0.035, 0.15
_ROBUST_AT, _ROUNDS = 0.04, 12
_SMALL_USAGE_TOKENS = 12
_O200K_TOKENS = 199_998
_SESSION_WEIGHT, _OTHER_HOST_WEIGHT, _ANCHOR_WEIGHT = 0.4, 0.5, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A usage, its documented part, and how often each constant counts in the rest."""

    times: Mapping[str, float]
    tokens: float
    reported_tokens: float
    weight: float
    family: str = "claude-3"
    recording: str = ""


def text_times(texts: Sequence[str]) -> dict[str, float]:
    """Count the tokens of each class in `texts`."""
    vocabulary = bundled_vocabulary("o200k_base")
    found = dict.fromkeys(claude.TOKEN_CLASSES, 0.0)
    for text in texts:
        for name, number in zip(
            claude.TOKEN_CLASSES, count_token_classes(vocabulary.encode(text)), strict=True
        ):
            found[name] += number
    return found


def _zero_except(**nonzero: float) -> ClaudeConstants:
    """Return constants that are all zero except `given`."""
    text = dict.fromkeys(claude.TOKEN_CLASSES, 0.0)
    structure = dict.fromkeys((*STRUCTURE, *LATER_STRUCTURE), 0.0)
    return ClaudeConstants(
        text={name: nonzero.get(name, 0.0) for name in text},
        text_spread=text,
        structure={name: nonzero.get(name, 0.0) for name in structure},
        structure_spread={},
        around_tokens=0.0,
    )


def count_with_constants(model: str, request: Request, constants: ClaudeConstants) -> RequestCount:
    """Count with other constants than the shipped ones."""
    tokenizer = ClaudeTokenizer(claude_family(model), bundled_vocabulary("o200k_base"), constants)
    rules = ClaudeRules(claude_model_figures(model), constants)
    return RequestCounter(model=model, backend="probe", tokenizer=tokenizer, rules=rules).count_request(request)


def request_times(model: str, request: Request, documented: int) -> dict[str, float]:
    """Return how often each constant counts in a request."""
    times = {}
    for name in (*TEXT, *STRUCTURE, *LATER_STRUCTURE):
        # A thousand instead of one, since totals are whole tokens.
        with_it = count_with_constants(model, request, _zero_except(**{name: 1000.0})).total.tokens
        times[name] = round((with_it - documented) / 1000, 2)
    return times


def message_times(model: str, messages: Sequence[Message]) -> dict[str, float]:
    """Return how often each constant counts in some messages of a session."""
    rules = ClaudeRules(claude_model_figures(model), _zero_except())
    renderings = [rules.render_message(message) for message in messages]
    times = text_times([text for rendering in renderings for text in rendering.texts])
    for name in STRUCTURE:
        probing = ClaudeRules(claude_model_figures(model), _zero_except(**{name: 1.0}))
        times[name] = sum(probing.render_message(message).fixed_tokens for message in messages)
    return times


_USAGE_FIELDS = (
    "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "prompt_tokens",
    "inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens",
)  # fmt: skip


def usage_rows(data: Path) -> Iterator[tuple[str, Request, float, float, str]]:
    """Yield model, request, usage, weight and origin of every recorded request to a Claude model."""
    with gzip.open(data / "usage_pairs.jsonl.gz") as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        if "claude" not in f"{row['model']} {row['uri']}".lower():
            continue
        api_format, model = _route(row)
        usage = row["usage"]
        reported_tokens = sum(usage.get(name) or 0 for name in _USAGE_FIELDS)
        request = replace(formats.parse_request(row["request"], api_format), model=model)
        weight = 1.0 if api_format is Format.ANTHROPIC else _OTHER_HOST_WEIGHT
        yield model, request, reported_tokens, weight, f"{row['provider']}:{row['file']}"
    with gzip.open(data / "count_tokens.jsonl.gz") as lines:
        counted = [json.loads(line) for line in lines]
    for row in counted:
        if "anthropic.com" in urlsplit(row["uri"]).netloc:
            request = formats.parse_request(row["request"], Format.ANTHROPIC)
            yield request.model, request, row["response"]["input_tokens"], 1.0, f"counted:{row['file']}"


def _route(row: Mapping[str, Any]) -> tuple[Format, str]:
    if row["provider"] == "bedrock":
        return Format.BEDROCK, unquote(row["uri"]).split("/model/")[1].split("/")[0]
    return (Format.ANTHROPIC if row["provider"] == "anthropic" else Format.CHAT), row["model"]


def examples(data: Path) -> list[Example]:
    """Return the recorded requests whose usage the request alone explains."""
    found: list[Example] = []
    for model, request, reported_tokens, weight, recording in usage_rows(data):
        count = count_with_constants(model, request, _zero_except())
        if not reported_tokens or count.unexplained:
            continue
        documented = count.total.tokens
        times = request_times(model, request, documented)
        found.append(
            Example(
                times=times,
                tokens=reported_tokens - documented,
                reported_tokens=reported_tokens,
                weight=weight,
                family=claude_family(model),
                recording=recording,
            )
        )
    return found


def _downweight_copies(examples_given: Sequence[Example]) -> list[Example]:
    """Reduce the weights of copies, so that all copies of a request weigh little more than one."""
    keys = [(e.tokens, tuple(sorted(e.times.items()))) for e in examples_given]
    copies = Counter(keys)
    return [
        replace(e, weight=e.weight * copies[key] ** -0.25) for e, key in zip(examples_given, keys, strict=True)
    ]


def session_examples(some: Sequence[Increment]) -> list[Example]:
    """Return what each step of a recorded session added to its input, and the usage of its response."""
    found: list[Example] = []
    for step in some:
        times = message_times("claude-sonnet-4-5", (step.answer, *step.results))
        reported_tokens = max(step.added_tokens, 60)
        found.append(
            Example(
                times=times, tokens=step.added_tokens, reported_tokens=reported_tokens, weight=_SESSION_WEIGHT
            )
        )
        if step.output_tokens:
            times = message_times("claude-sonnet-4-5", (step.answer,))
            reported_tokens = max(step.output_tokens, 60)
            found.append(
                Example(
                    times=times,
                    tokens=step.output_tokens,
                    reported_tokens=reported_tokens,
                    weight=_SESSION_WEIGHT,
                )
            )
    return found


def solve(examples_: Sequence[Example], priors: Mapping[str, Prior]) -> dict[str, float]:
    """Return the constants that fit the usages best."""
    names = list(priors)
    matrix = np.array([[e.times.get(name, 0.0) for name in names] for e in examples_])
    target = np.array([e.tokens for e in examples_])
    scale = np.array([max(e.reported_tokens, _SMALL_USAGE_TOKENS) for e in examples_])
    weight = np.array([e.weight for e in examples_]) / scale
    prior_values = np.array([priors[name].value for name in names])
    minimum = np.array([priors[name].minimum for name in names])
    maximum = np.array([max(priors[name].maximum, priors[name].minimum + 1e-6) for name in names])
    stiff = np.array([_stiffness(name, priors[name], len(examples_)) for name in names])
    trust: NDArray[np.float64] = np.ones(len(examples_))
    solution = prior_values
    for _ in range(_ROUNDS):
        weighted = weight * np.sqrt(trust)
        rows = np.vstack([matrix * weighted[:, None], np.diag(stiff)])
        targets = np.concatenate([target * weighted, prior_values * stiff])
        solution = lsq_linear(rows, targets, bounds=(minimum, maximum)).x
        error = np.abs(matrix @ solution - target) / scale
        trust = 1 / np.maximum(1, error / _ROBUST_AT) ** 1.5
    return {name: round(float(value), 4) for name, value in zip(names, solution, strict=True)}


def _stiffness(name: str, prior: Prior, number: int) -> float:
    if name in TEXT:
        return _TEXT_STIFFNESS * math.sqrt(number) / 10
    return _STRUCTURE_STIFFNESS / max(abs(prior.value), 1)


def fit_later(
    some: Sequence[Example], first: Mapping[str, float], steps: Sequence[Increment]
) -> dict[str, float]:
    """Fit the later tokenizer, as factors on the first."""
    group_of = {name: group for group, (_, names) in LATER_FACTORS.items() for name in names}
    grouped: list[Example] = []
    for e in (*some, *_anchors(first, steps)):
        times: defaultdict[str, float] = defaultdict(float)
        tokens = e.tokens
        for name, number in e.times.items():
            if name in group_of:
                times[group_of[name]] += number * first[name]
            elif name in TEXT:
                tokens -= number * first[name]
            else:
                times[name] += number
        grouped.append(replace(e, times=times, tokens=tokens))
    priors = {group: prior for group, (prior, _) in LATER_FACTORS.items()}
    priors |= {name: replace(prior, value=first[name]) for name, prior in STRUCTURE.items()}
    solved = solve(grouped, priors | LATER_STRUCTURE)
    text = {name: first[name] * solved[group_of[name]] if name in group_of else first[name] for name in TEXT}
    text["accented"] *= ACCENTED_LATER
    structure = {name: solved[name] for name in (*STRUCTURE, *LATER_STRUCTURE)}
    return {name: round(value, 4) for name, value in (text | structure).items()}


def _anchors(first: Mapping[str, float], steps: Sequence[Increment]) -> list[Example]:
    prose = [part.text for step in steps for part in step.answer.parts if hasattr(part, "text")]
    code = [part.text for step in steps if step.is_code for part in step.result_texts]
    numbers = [(i * 2654435761 % 2**32, i * 7919 % 2**20) for i in range(1, 60)]
    identifiers = [" ".join(f"{a:08x}-e89b-12d3-a456-4266141{b:05x}" for a, b in numbers)]
    found = []
    for name, texts in (("prose", prose), ("code", code), ("identifiers", identifiers)):
        times = text_times(texts)
        tokens = ANCHORS[name] * sum(number * first[key] for key, number in times.items())
        found.append(Example(times=times, tokens=tokens, reported_tokens=tokens, weight=_ANCHOR_WEIGHT))
    return found


def to_constants(family: str, solved: Mapping[str, float]) -> ClaudeConstants:
    """Convert the solution to the shipped form."""
    structure = {name: value for name, value in solved.items() if name not in TEXT}
    default_spread = DEFAULT_TEXT_SPREAD[family]
    return ClaudeConstants(
        text={name: solved[name] for name in TEXT},
        text_spread={name: TEXT_SPREAD.get(name, default_spread) for name in TEXT},
        structure=structure,
        structure_spread={name: STRUCTURE_SPREAD[name] for name in structure},
        around_tokens=ENVELOPE_TOKENS[family],
    )


def fit(
    usage_examples: Sequence[Example], steps: Sequence[Increment], grown: Sequence[Example]
) -> dict[str, ClaudeConstants]:
    """Fit all families, on recorded usage and on the steps of sessions (`grown`: the steps as examples)."""
    by_family = {f: _downweight_copies([e for e in usage_examples if e.family == f]) for f in ENVELOPE_TOKENS}
    first = solve([*by_family["claude-3"], *grown], TEXT | STRUCTURE)
    later = fit_later(by_family["claude-4.7"], first, steps)
    oldest = {**first, "m_user": 4.0, "m_assistant": 4.0}
    solved = {"claude-2": oldest, "claude-3": first, "claude-4.7": later}
    return {family: to_constants(family, some) for family, some in solved.items()}


def class_table() -> bytes:
    """Return the class of every o200k token."""
    import splintr

    engine = splintr.Tokenizer.from_pretrained("o200k_base")
    numbers = {name: number for number, name in enumerate(claude.TOKEN_CLASSES)}
    known = (
        numbers[claude.classify_token(rank, engine.decode_token_bytes(rank))] for rank in range(_O200K_TOKENS)
    )
    # Higher ids are special tokens, which no text produces.
    return bytes(known) + bytes([numbers["mixed"]]) * 100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="the folder of recorded data")
    parser.add_argument("--out", type=Path, default=Path(claude.__file__).parent / "data")
    options = parser.parse_args()
    (options.out / "o200k_classes.z").write_bytes(zlib.compress(class_table(), 9))
    steps = increments(options.data / "sessions")
    families = fit(examples(options.data), steps, session_examples(steps))
    fitted = FittedConstants(fitted=date.today().isoformat(), families=families)
    shipped = msgspec.json.format(msgspec.json.encode(fitted), indent=1)
    (options.out / "claude.json").write_bytes(shipped + b"\n")
    print(f"wrote {options.out / 'claude.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

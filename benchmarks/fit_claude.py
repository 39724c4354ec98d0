"""Fits the constants of Claude's tokenizers on recorded bills, and makes the table of token classes.

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

from benchmarks.sessions import Increment, increments
from foveate import wire
from foveate.tokens import claude, token_classes
from foveate.tokens.claude import Constants, Fitted, class_counts, family_of
from foveate.tokens.counter import RequestCounter
from foveate.tokens.rendering import Length, Rendering
from foveate.tokens.rules.claude import ClaudeRules
from foveate.tokens.rules.claude_models import claude_model
from foveate.tokens.vocabulary import bundled
from foveate.values import Format, Message, Request

ROOT = Path(__file__).parent.parent
DEFAULT_DATA = ROOT.parent / "shared" / "data"


@dataclass(frozen=True, slots=True)
class Prior:
    """What a constant is believed to be, and between which bounds it must lie."""

    value: float
    least: float
    most: float


# Tokens of Claude for one token of o200k of the class. Claude's vocabulary is smaller: rare words cost more.
TEXT = {
    "word_common": Prior(1.0, 0.95, 1.05),
    "word_usual": Prior(1.05, 0.97, 1.4),
    "word_less": Prior(1.2, 0.9, 1.8),
    "word_rare": Prior(1.5, 1.0, 2.2),
    "glued_usual": Prior(1.0, 0.8, 1.5),
    "glued_rare": Prior(1.35, 0.9, 2.0),
    "hump_usual": Prior(1.1, 0.9, 1.6),
    "hump_rare": Prior(1.5, 1.0, 2.4),
    "capitals": Prior(1.2, 0.9, 2.0),
    "mark": Prior(1.0, 0.8, 1.3),
    "marks": Prior(1.0, 0.6, 1.8),
    "mark_line": Prior(2.0, 1.0, 3.0),
    "blanks": Prior(0.7, 0.3, 1.2),
    "lines": Prior(1.4, 0.7, 2.2),
    "digit": Prior(1.2, 0.9, 2.0),
    "digits_2": Prior(1.6, 0.9, 2.2),
    "digits_3": Prior(2.0, 1.0, 3.0),
    "mixed": Prior(1.6, 1.0, 2.2),
    "accented": Prior(1.7, 1.0, 2.2),
    "cjk": Prior(1.45, 1.2, 2.0),
    "other_script": Prior(2.4, 1.8, 3.5),
    "symbols": Prior(1.4, 0.8, 2.2),
}
STRUCTURE = {
    "tool": Prior(13, 0, 40),
    "format": Prior(120, 0, 200),
    "format_ref": Prior(30, 0, 60),
    "m_user": Prior(4, 2, 6),
    "m_assistant": Prior(3, 2, 6),
    "m_system": Prior(4, 0, 12),
    "tool_use": Prior(33, 15, 50),
    "param": Prior(14, 5, 20),
    "tool_result": Prior(10, 2, 20),
    "tool_err": Prior(9, 0, 20),
    "tr_extra": Prior(25, 0, 45),
    "tool_ref": Prior(10, 0, 60),
    "thinking": Prior(5, 0, 30),
    "starts_assistant": Prior(9, 0, 12),
}
LATER_STRUCTURE = {
    "tool_addition": Prior(20, 0, 60),
    "deferred": Prior(20, 0, 80),
    "deferred_any": Prior(40, 0, 120),
}
# The later tokenizer cuts letters finer and leaves digits, marks, blanks and other scripts as they were: a
# factor for each group of classes. So few of its bills are recorded that three published comparisons of
# Anthropic's own counter, 4.7 against 4.6, are fitted in (prose, code, identifiers).
LATER_FACTORS = {
    "common": (Prior(1.1, 1.0, 1.4), ("word_common",)),
    "usual": (Prior(1.5, 1.0, 2.2), ("word_usual",)),
    "rare": (Prior(1.6, 1.0, 2.2), ("word_less", "word_rare")),
    "glued": (Prior(1.2, 1.0, 1.8), ("glued_usual", "hump_usual")),
    "other": (Prior(1.3, 1.0, 1.8), ("glued_rare", "hump_rare", "capitals", "mixed")),
}
ANCHORS = {"prose": 1.42, "code": 1.24, "identifiers": 1.065}
_ACCENTED_LATER = 1.3

# How much longer, relative, what each class and piece contributes may be: chosen by hand, wide enough that the
# bound held in 99% of the recorded requests.
TEXT_SPREAD = {
    "word_less": 0.22, "word_rare": 0.35, "hump_rare": 0.35, "accented": 0.4, "cjk": 0.4, "other_script": 1.0,
    "symbols": 0.6, "digit": 0.15, "digits_2": 0.2, "digits_3": 0.5, "mixed": 0.25, "blanks": 0.2,
    "mark_line": 0.2, "lines": 0.2, "marks": 0.25,
}  # fmt: skip
USUAL_TEXT_SPREAD = {"claude-2": 0.2, "claude-3": 0.17, "claude-4.7": 0.2}
STRUCTURE_SPREAD = {
    "tool": 0.1, "format": 0.1, "format_ref": 0.2, "m_user": 1.0, "m_assistant": 1.0, "m_system": 1.0,
    "tool_use": 0.06, "param": 0.1, "tool_result": 0.2, "tool_err": 0.2, "tr_extra": 0.3, "tool_ref": 0.5,
    "thinking": 2.0, "starts_assistant": 0.0, "tool_addition": 0.4, "deferred": 0.4, "deferred_any": 0.4,
}  # fmt: skip
AROUND_TOKENS = {"claude-2": 4.0, "claude-3": 2.0, "claude-4.7": 3.0}

_TEXT_STIFFNESS, _STRUCTURE_STIFFNESS = 0.035, 0.15
_ROBUST_AT, _ROUNDS = 0.04, 12
_SMALL_BILL = 12
_O200K_TOKENS = 199_998
_SESSION_WEIGHT, _OTHER_HOST_WEIGHT, _ANCHOR_WEIGHT = 0.4, 0.5, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A bill, what of it is documented, and how often each constant counts in the rest."""

    times: Mapping[str, float]
    tokens: float
    billed: float
    weight: float


class Probe:
    """A ruler that measures nothing and hears every text."""

    name = "probe"
    exact = False

    def __init__(self) -> None:
        self.texts: list[str] = []

    def lengths(self, texts: Sequence[str]) -> list[Length]:
        self.texts += texts
        return [Length(0.0, 0.0)] * len(texts)


def text_times(texts: Sequence[str]) -> dict[str, float]:
    """The tokens of each class in `texts`."""
    vocabulary = bundled("o200k_base")
    found = dict.fromkeys(token_classes.CLASSES, 0.0)
    for text in texts:
        for name, number in zip(token_classes.CLASSES, class_counts(vocabulary, text), strict=True):
            found[name] += number
    return found


def _silent(structure: Mapping[str, float]) -> Constants:
    return Constants(
        text=dict.fromkeys(token_classes.CLASSES, 0.0),
        text_spread=dict.fromkeys(token_classes.CLASSES, 0.0),
        structure={**dict.fromkeys((*STRUCTURE, *LATER_STRUCTURE), 0.0), **structure},
        structure_spread={},
        around_tokens=0.0,
    )


def request_times(model: str, request: Request) -> tuple[dict[str, float], float]:
    """How often each constant counts in a request, and what of it is documented."""
    probe = Probe()
    documented = _fixed(model, request, {}, probe)
    times = text_times(probe.texts)
    for name in (*STRUCTURE, *LATER_STRUCTURE):
        # A thousand instead of one, since parts are rounded to whole tokens.
        times[name] = round((_fixed(model, request, {name: 1000.0}, Probe()) - documented) / 1000)
    return times, documented


def _fixed(model: str, request: Request, structure: Mapping[str, float], probe: Probe) -> float:
    counter = RequestCounter(
        model=model, backend="probe", ruler=probe, rules=ClaudeRules(claude_model(model), _silent(structure))
    )
    return counter.request(request).total.tokens


def message_times(model: str, messages: Sequence[Message]) -> dict[str, float]:
    """How often each constant counts in some messages of a session."""
    rules = ClaudeRules(claude_model(model), _silent({}))
    renderings: list[Rendering] = [rules.message(message) for message in messages]
    times = text_times([text for rendering in renderings for text in rendering.texts])
    for name in STRUCTURE:
        probing = ClaudeRules(claude_model(model), _silent({name: 1.0}))
        times[name] = sum(probing.message(message).fixed_tokens for message in messages)
    return times


_BILLED = (
    "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "prompt_tokens",
    "inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens",
)  # fmt: skip


def billed_rows(data: Path) -> Iterator[tuple[str, Request, float, float]]:
    """Model, request, bill and weight of every recorded request to a Claude model."""
    with gzip.open(data / "usage_pairs.jsonl.gz") as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        if "claude" not in f"{row['model']} {row['uri']}".lower():
            continue
        spoken, model = _route(row)
        usage = row["usage"]
        billed = sum(usage.get(name) or 0 for name in _BILLED)
        request = replace(wire.read(row["request"], spoken), model=model)
        yield model, request, billed, 1.0 if spoken is Format.ANTHROPIC else _OTHER_HOST_WEIGHT
    with gzip.open(data / "count_tokens.jsonl.gz") as lines:
        counted = [json.loads(line) for line in lines]
    for row in counted:
        if "anthropic.com" in urlsplit(row["uri"]).netloc:
            request = wire.read(row["request"], Format.ANTHROPIC)
            yield request.model, request, row["response"]["input_tokens"], 1.0


def _route(row: Mapping[str, Any]) -> tuple[Format, str]:
    if row["provider"] == "bedrock":
        return Format.BEDROCK, unquote(row["uri"]).split("/model/")[1].split("/")[0]
    return (Format.ANTHROPIC if row["provider"] == "anthropic" else Format.CHAT), row["model"]


def examples(data: Path) -> dict[str, list[Example]]:
    """Examples by family, those that the request alone explains."""
    found: dict[str, list[Example]] = {"claude-2": [], "claude-3": [], "claude-4.7": []}
    for model, request, billed, weight in billed_rows(data):
        counter = RequestCounter(
            model=model, backend="probe", ruler=Probe(), rules=ClaudeRules(claude_model(model), _silent({}))
        )
        if not billed or counter.request(request).unexplained:
            continue
        times, documented = request_times(model, request)
        found[family_of(model)].append(
            Example(times=times, tokens=billed - documented, billed=billed, weight=weight)
        )
    return {family: _unrepeated(some) for family, some in found.items()}


def _unrepeated(some: list[Example]) -> list[Example]:
    """Copies of one request count little more than one of it."""
    copies = Counter((e.tokens, tuple(sorted(e.times.items()))) for e in some)
    return [
        replace(e, weight=e.weight * copies[e.tokens, tuple(sorted(e.times.items()))] ** -0.25) for e in some
    ]


def session_examples(some: Sequence[Increment]) -> list[Example]:
    """What each step of a recorded session added to its input, and what its answer was billed."""
    found: list[Example] = []
    for step in some:
        times = message_times("claude-sonnet-4-5", (step.answer, *step.results))
        billed = max(step.added_tokens, 60)
        found.append(Example(times=times, tokens=step.added_tokens, billed=billed, weight=_SESSION_WEIGHT))
        if step.output_tokens:
            times = message_times("claude-sonnet-4-5", (step.answer,))
            billed = max(step.output_tokens, 60)
            found.append(Example(times=times, tokens=step.output_tokens, billed=billed, weight=_SESSION_WEIGHT))
    return found


def solve(some: Sequence[Example], priors: Mapping[str, Prior]) -> dict[str, float]:
    """The constants that explain the bills best."""
    names = list(priors)
    matrix = np.array([[e.times.get(name, 0.0) for name in names] for e in some])
    target = np.array([e.tokens for e in some])
    scale = np.array([max(e.billed, _SMALL_BILL) for e in some])
    weight = np.array([e.weight for e in some]) / scale
    believed = np.array([priors[name].value for name in names])
    least = np.array([priors[name].least for name in names])
    most = np.array([max(priors[name].most, priors[name].least + 1e-6) for name in names])
    stiff = np.array([_stiffness(name, priors[name], len(some)) for name in names])
    trust: NDArray[np.float64] = np.ones(len(some))
    solution = believed
    for _ in range(_ROUNDS):
        weighed = weight * np.sqrt(trust)
        rows = np.vstack([matrix * weighed[:, None], np.diag(stiff)])
        aims = np.concatenate([target * weighed, believed * stiff])
        solution = lsq_linear(rows, aims, bounds=(least, most)).x
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
    """The later tokenizer, as factors on the first."""
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
    text["accented"] *= _ACCENTED_LATER
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
        found.append(Example(times=times, tokens=tokens, billed=tokens, weight=_ANCHOR_WEIGHT))
    return found


def constants_of(family: str, solved: Mapping[str, float]) -> Constants:
    """The solution in the form that is shipped."""
    structure = {name: value for name, value in solved.items() if name not in TEXT}
    usual = USUAL_TEXT_SPREAD[family]
    return Constants(
        text={name: solved[name] for name in TEXT},
        text_spread={name: TEXT_SPREAD.get(name, usual) for name in TEXT},
        structure=structure,
        structure_spread={name: STRUCTURE_SPREAD[name] for name in structure},
        around_tokens=AROUND_TOKENS[family],
    )


def fit(data: Path) -> Fitted:
    """All families, from all the data."""
    found = examples(data)
    steps = increments(data / "sessions")
    first = solve(found["claude-3"] + session_examples(steps), TEXT | STRUCTURE)
    later = fit_later(found["claude-4.7"], first, steps)
    oldest = {**first, "m_user": 4.0, "m_assistant": 4.0}
    solved = {"claude-2": oldest, "claude-3": first, "claude-4.7": later}
    return Fitted(
        fitted=date.today().isoformat(),
        families={family: constants_of(family, some) for family, some in solved.items()},
    )


def class_table() -> bytes:
    """The class of every token of o200k."""
    import splintr

    engine = splintr.Tokenizer.from_pretrained("o200k_base")
    numbers = {name: number for number, name in enumerate(token_classes.CLASSES)}
    known = (
        numbers[token_classes.class_of(rank, engine.decode_token_bytes(rank))] for rank in range(_O200K_TOKENS)
    )
    # Ids above are special tokens, which no text becomes.
    return bytes(known) + bytes([numbers["mixed"]]) * 100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="the folder of recorded data")
    parser.add_argument("--out", type=Path, default=Path(claude.__file__).parent / "data")
    options = parser.parse_args()
    (options.out / "o200k_classes.z").write_bytes(zlib.compress(class_table(), 9))
    shipped = msgspec.json.format(msgspec.json.encode(fit(options.data)), indent=1)
    (options.out / "claude.json").write_bytes(shipped + b"\n")
    print(f"wrote {options.out / 'claude.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

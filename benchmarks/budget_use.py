"""Fill level of prompts that were cut, and how often the token counts of two joined texts do not add up."""

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import foveate
from benchmarks.budget_cases import Count, Windows
from foveate.budget import Budget, Keep, Priority, Section

_MODEL = "gpt-4o"
_SEED = 99
_CASES = 250
_JOINS = 4_000
_JOINED_TOKENS = 60
_KEEPS = [keep for keep in Keep if keep is not Keep.WHOLE]
_BLANK_LINE = "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Tokens divided by the limit for each cut prompt, and the share of counts that match tiktoken's."""

    used: Sequence[float]
    right: float


def budget_use(windows: Windows, count: Count, *, lines: bool) -> Use:
    """Measure random sections under random limits; without `lines`, each text is one long line."""
    chance = random.Random(_SEED)
    used: list[float] = []
    right: list[bool] = []
    for sections, limit_tokens in _random_cases(windows, chance, count, lines=lines):
        prompt = foveate.assemble(sections, Budget(total_tokens=limit_tokens), model=_MODEL)
        right.append(prompt.tokens == count(prompt.text) <= limit_tokens)
        if prompt.cuts:
            used.append(prompt.tokens / limit_tokens)
    return Use(used=used, right=statistics.mean(right))


def _random_cases(
    windows: Windows, chance: random.Random, count: Count, *, lines: bool
) -> Iterator[tuple[list[Section], int]]:
    for _ in range(_CASES):
        sections = [_random_section(windows, chance, number, lines) for number in range(chance.randint(3, 12))]
        whole = count(_BLANK_LINE.join(section.text for section in sections))
        yield sections, int(whole * chance.uniform(0.1, 0.9))


def _random_section(windows: Windows, chance: random.Random, number: int, lines: bool) -> Section:
    """Return a section that is neither required, so that it can be cut, nor whole, so that parts can remain."""
    kind = chance.choice(("prose", "code")) if lines else "prose"
    text = windows.take(kind, chance.choice((100, 300, 1000, 3000)))
    priority = chance.choice((Priority.HIGH, Priority.MEDIUM, Priority.LOW))
    keep = chance.choice(_KEEPS)
    if not lines:
        return Section(f"part {number}", " ".join(text.split()), priority=priority, keep=keep)
    if keep is Keep.RELEVANT:
        items = [(line, chance.random()) for line in text.splitlines()]
        return Section(f"part {number}", items=items, priority=priority, keep=keep)
    return Section(f"part {number}", text, priority=priority, keep=keep)


def nonadditive_join_share(windows: Windows, kind: str, count: Count) -> tuple[float, float]:
    """Return the share of joins by a blank line in which the whole is not the sum of its parts.

    First with the blank line as its own part, then as the end of the preceding text: a full stop or a bracket
    forms one token with the line breaks after it.
    """
    blank_tokens = count(_BLANK_LINE)
    texts = [_lines(windows.take(kind, _JOINED_TOKENS)) for _ in range(2 * _JOINS)]
    separate: list[bool] = []
    with_preceding: list[bool] = []
    for before, after in zip(texts[::2], texts[1::2], strict=True):
        whole, after_tokens = count(before + _BLANK_LINE + after), count(after)
        separate.append(whole != count(before) + blank_tokens + after_tokens)
        with_preceding.append(whole != count(before + _BLANK_LINE) + after_tokens)
    return statistics.mean(separate), statistics.mean(with_preceding)


def _lines(text: str) -> str:
    """Return the whole lines of a text; the entire text if it has none."""
    return text[text.find("\n") + 1 : text.rfind("\n")].strip() or text.strip()

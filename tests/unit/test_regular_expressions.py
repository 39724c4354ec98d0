"""No regular expression takes more than linear time for any input.

Python's engine backtracks: an expression may look harmless and still take minutes for a few hundred kilobytes
of crafted input. The inputs for each expression are made from its own parse tree.
"""

import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain
from typing import Any

import pytest

import foveate
from foveate.budget import model_limits
from foveate.compaction.facts import language, rules
from foveate.cost.pricing import price_facts
from foveate.memory import queries
from foveate.memory.search import words
from foveate.prompt_cache import rules as cache_rules
from foveate.sandbox import models
from foveate.tokens.rendering import chat_templates, openai
from tests.support.oracles.regex_inventory import (
    METHODS,
    FoundPattern,
    find_field_methods_used,
    find_hidden_patterns,
    find_patterns,
    patterns_in,
)
from tests.support.oracles.time_growth import superlinear_ratio
from tests.support.strategies.regex_attacks import Attack, attacks, has_choice_in_possessive_group

# Long enough that quadratic time takes longer than the floor, if one comparison takes some nanoseconds.
_SIZE = 2**12
_FLOOR_SECONDS = 0.000_75
# Few tests, since each process that runs one first searches for all expressions, which takes seconds.
_PACKAGES = {
    "compaction": ["compaction"],
    "others": [found.name for found in pkgutil.iter_modules(foveate.__path__) if found.name != "compaction"],
}

# Methods of expressions that the code passes around, so that their names do not show how they are run.
_METHODS = {
    "foveate.prompt_cache.misses.field_diff._WORD": "match",
    "foveate.prompt_cache.misses.field_diff._WORD_CHARACTER": "match",
    "foveate.prompt_cache.misses.field_diff._BASE64": "match",
    "foveate.prompt_cache.misses.field_diff._BASE64_CHARACTER": "match",
}

# Expressions that may take longer, since their callers limit the input to this many characters.
_BOUNDED = {
    # A row of flags takes `\X` quadratic time, 3 ms for as many as this.
    "foveate.prompt_cache.misses.field_diff._GRAPHEME": 1_056,
    # Sentences, which are truncated.
    "foveate.compaction.facts.prose._QUOTED": 400,
    # Names of models, which are truncated.
    "foveate.prompt_cache.rules.rules_for": 256,
    "foveate.cost.pricing.price_table._find_family_schedule": 128,
    "foveate.tokens.rendering.chat_templates._parse_entry": 256,
}


def _compile_patterns(
    pairs: Iterable[tuple[str, str]], flags: int = 0
) -> Iterator[tuple[re.Pattern[str], frozenset[str]]]:
    return ((re.compile(text, flags), frozenset((method,))) for text, method in pairs if text)


def _window_patterns() -> Iterator[tuple[str, str]]:
    for family in model_limits._load_windows().families:
        yield family.match, "search"
        yield from ((names, "fullmatch") for names in family.windows)


def _output_limit_patterns() -> Iterator[tuple[str, str]]:
    for family in model_limits._load_output_limits():
        yield family.match, "search"
        yield from ((names, "fullmatch") for names in family.answers)


def _cache_patterns() -> Iterator[tuple[str, str]]:
    for provider in cache_rules._load_table().providers:
        yield from ((text, "search") for text in (provider.model_pattern, provider.spelling_pattern))
        for row in provider.rows:
            yield from ((row.name_pattern, "fullmatch"), (row.newer_pattern, "search"))


def _price_patterns() -> Iterator[tuple[str, str]]:
    known = price_facts.load_price_facts()
    facts = chain(known.models, known.likes, known.costs_as, known.free, known.multiples, known.weekends)
    return ((fact.names, "fullmatch") for fact in facts)


def _sandbox_patterns() -> Iterator[tuple[str, str]]:
    for provider in models._load_table().values():
        yield from ((family, "fullmatch") for family in provider["families"])
        yield from ((row["match"], "match") for row in provider["model"])


def _patterns_by_field(value: object, package: str) -> Iterator[tuple[Any, frozenset[str]]]:
    """Patterns in the fields of a value, with the methods that the package calls on such fields."""
    for path, found in patterns_in(value):
        yield found, find_field_methods_used(path.partition(".")[2].partition("[")[0], package)


# Expressions that functions make, from tables or from input, by the function that compiles or runs them.
_MADE_BY_FUNCTIONS: dict[str, Callable[[], Iterable[tuple[Any, frozenset[str]]]]] = {
    "foveate.budget.model_limits.find_output_limit": lambda: _compile_patterns(_output_limit_patterns()),
    "foveate.budget.model_limits._matching_tokens": lambda: (),  # those of find_context_window
    "foveate.budget.model_limits.find_context_window": lambda: _compile_patterns(_window_patterns()),
    "foveate.prompt_cache.rejections.find_rejected_parameters": lambda: [
        (re.compile(r"(?<!\w)stream_options(?!\w)"), frozenset(("search",)))
    ],
    "foveate.prompt_cache.rules._ProviderRules.find_row": lambda: (),  # those of rules_for
    "foveate.prompt_cache.rules._find_host": lambda: (),
    "foveate.prompt_cache.rules.rules_for": lambda: _compile_patterns(_cache_patterns()),
    "foveate.cost.pricing.price_facts.PriceFact.applies_to": lambda: _compile_patterns(
        _price_patterns(), re.DOTALL
    ),
    "foveate.cost.pricing.price_facts.load_price_facts": lambda: [
        (price_facts.load_price_facts().other_kinds, frozenset(("search",))),
        (price_facts.load_price_facts().variants, frozenset(("findall",))),
    ],
    "foveate.cost.pricing.price_table._find_family_schedule": lambda: _compile_patterns(
        (family.names, "search") for family in price_facts.load_price_facts().families
    ),
    "foveate.cost.pricing.price_table.add_cache_prices": lambda: _compile_patterns(
        (fact.names, "search") for fact in price_facts.load_price_facts().cache_times
    ),
    "foveate.cost.pricing.price_file._is_fast_regex": lambda: (),  # from a file, which keeps only fast ones
    "foveate.compaction.facts.rules.compile_phrases": lambda: _patterns_by_field(
        language.language(), "foveate.compaction"
    ),
    "foveate.compaction.facts.rules.rules": lambda: _patterns_by_field(rules.rules(), "foveate.compaction"),
    "foveate.memory.parsing.markdown._HeadingScanner._scan_fence": lambda: [
        (re.compile(rf"^ {{0,3}}`{{{length},}}[ \t]*$", re.MULTILINE), frozenset(("search",)))
        for length in (3, 500)
    ],
    "foveate.memory.queries._phrases": lambda: [
        (pattern, METHODS) for pattern in queries._phrases('"a b a" a " a"')
    ],
    "foveate.memory.search.words._patterns": lambda: [(pattern, METHODS) for pattern in words._patterns()],
    "foveate.sandbox.models.find_model": lambda: _compile_patterns(_sandbox_patterns()),
    "foveate.tokens.rendering.openai.find_generation": lambda: _compile_patterns(
        (text, "match") for text, _ in openai._GENERATIONS
    ),
    "foveate.tokens.rendering.chat_templates._parse_entry": lambda: _patterns_by_field(
        chat_templates._load_entries(), "foveate.tokens"
    ),
}


@cache
def _all_patterns() -> tuple[FoundPattern, ...]:
    found = [
        pattern if run_by is None else FoundPattern(pattern.where, pattern.pattern, frozenset((run_by,)))
        for pattern in find_patterns()
        for run_by in [_METHODS.get(pattern.where.partition("[")[0])]
    ]
    from_functions = [
        FoundPattern(where, *pattern) for where, make in _MADE_BY_FUNCTIONS.items() for pattern in make()
    ]
    return (*found, *from_functions)


def _methods_to_try(found: FoundPattern) -> dict[str, Callable[[Any], object]]:
    """The fewest methods that represent all methods that the code calls on an expression."""
    pattern = found.pattern
    runs: dict[str, Callable[[Any], object]] = {}
    if found.methods & {"finditer", "findall", "sub", "subn", "split"}:
        runs["finditer"] = lambda text: [None for _ in pattern.finditer(text)]
    elif "search" in found.methods:
        runs["search"] = pattern.search
    runs |= {name: getattr(pattern, name) for name in ("match", "fullmatch") if name in found.methods}
    return runs


def _find_slow_methods(found: FoundPattern) -> Iterator[str]:
    for name, run in _methods_to_try(found).items():
        for attack in attacks(found.pattern if isinstance(found.pattern, re.Pattern) else None):
            make = _input_maker(found.pattern, attack)
            ratio = superlinear_ratio(run, make, max_size=_SIZE, floor_seconds=_FLOOR_SECONDS)
            if ratio is not None:
                yield f"{found.where}: {name} of {attack} takes {ratio:.0f} times as long for 8 times as much"
                break


def _input_maker(pattern: Any, attack: Attack) -> Callable[[int], Any]:
    is_bytes = isinstance(pattern.pattern, bytes)
    return (lambda size: attack.text(size).encode()) if is_bytes else attack.text


@pytest.mark.slow
@pytest.mark.parametrize("packages", _PACKAGES.values(), ids=_PACKAGES)
def test_no_regular_expression_takes_more_than_linear_time(packages: list[str]) -> None:
    patterns = [found for found in _all_patterns() if found.where.split(".")[1] in packages]
    # One expression may have many names and appear in many rows of a table.
    distinct = {(found.pattern, found.methods): found for found in patterns if found.where not in _BOUNDED}

    assert [problem for found in distinct.values() for problem in _find_slow_methods(found)] == []


@pytest.mark.slow
def test_no_possessive_group_has_a_choice() -> None:
    """Python before 3.11.5, which Debian 12 has, matches these wrongly; atomic groups are right (gh-106052)."""
    assert [
        found.where
        for found in _all_patterns()
        if isinstance(found.pattern, re.Pattern) and has_choice_in_possessive_group(found.pattern)
    ] == []


@pytest.mark.parametrize(
    ("text", "has_choice"),
    [
        (r"(?:(?!-->).)*+", True),
        (r"(?:a|bc)++", True),
        (r"(?:ab?)*+", True),
        (r"x(?:(?:ab)?+c)*+", True),
        (r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', False),
        (r"(?>(?:a|bc)*)", False),
        (r"[a-z]++", False),
    ],
)
def test_a_choice_in_a_possessive_group_is_found(text: str, has_choice: bool) -> None:
    assert has_choice_in_possessive_group(re.compile(text)) is has_choice


@pytest.mark.slow
def test_every_regular_expression_is_tested() -> None:
    """Functions that make expressions must be in the table, and so must expressions with bounded input."""
    assert {found.where for found in find_hidden_patterns()} == _MADE_BY_FUNCTIONS.keys()
    known = {found.where.partition("[")[0] for found in find_patterns()}
    assert known | _MADE_BY_FUNCTIONS.keys() >= _METHODS.keys() | _BOUNDED.keys()
    assert len(known) > 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (r'name="?model"?[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]*)\r\n', re.IGNORECASE),
        (r"(a+)+b", 0),
        (r"\s+$", 0),
        (r"^\s*</(think|thinking)>[ \t]*$", re.MULTILINE),
        (r"\[\[sandbox\s*(\{.*\})\s*\]\]", re.DOTALL),
        (r"(cache_?control|cache_?point)[\w.]*\bttl\b", re.IGNORECASE),
        (r"^ {0,3}(`{3,}|~{3,})[^\n]*\n", re.MULTILINE),
        (r"(?::\d+)+:?$", 0),
    ],
)
def test_an_expression_that_takes_more_than_linear_time_is_found(text: str, flags: int) -> None:
    found = FoundPattern("", re.compile(text, flags), frozenset(("finditer",)))

    assert next(_find_slow_methods(found), "")

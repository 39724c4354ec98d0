"""Words of languages: what changes a statement, what calls it off, what has no meaning of its own.

They are data (`statements.toml`) and belong to languages, not to subjects.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from foveate.compaction.facts.rules import compile_phrases

_DATA_FILE = Path(__file__).with_name("statements.toml")
_MIN_STEM_CHARS = 3
_MAX_WORDS = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """Words of languages, loaded from `statements.toml`."""

    update_cues: re.Pattern[str]
    update_words: frozenset[str]
    weak_cues: re.Pattern[str]
    end_cues: re.Pattern[str]
    correction_cues: frozenset[str]
    rejections: re.Pattern[str]
    certain_rejections: frozenset[str]
    refusals: re.Pattern[str]
    moves: re.Pattern[str]
    interjections: re.Pattern[str]
    fillers: re.Pattern[str]
    bindings: frozenset[str]
    clause_words: frozenset[str]
    hedges: re.Pattern[str]
    attribute_cues: frozenset[str]
    determiners: frozenset[str]
    prepositions: frozenset[str]
    clock_prepositions: frozenset[str]
    auxiliaries: frozenset[str]
    copulas: frozenset[str]
    conjunctions: re.Pattern[str]
    before_infinitives: frozenset[str]
    cancel_cues: re.Pattern[str]
    cancel_words: frozenset[str]
    request_cues: re.Pattern[str]
    step_cues: re.Pattern[str]
    preference_cues: re.Pattern[str]
    task_cues: re.Pattern[str]
    back_references: frozenset[str]
    demonstratives: frozenset[str]
    pronouns: frozenset[str]
    function_words: frozenset[str]
    currencies: frozenset[str]
    weekdays: frozenset[str]
    months: frozenset[str]
    number_words: frozenset[str]
    frequencies: frozenset[str]
    times_of_day: frozenset[str]
    middays: frozenset[str]
    generic_names: frozenset[str]
    open_ends: frozenset[str]
    german_words: frozenset[str]
    suffixes: tuple[str, ...]
    dimensions: Mapping[str, str]
    """Units of measurement, each with the first unit of what it measures."""
    owners: Mapping[str, str]
    """Possessive words, each with the first one of the same owner."""


@cache
def language() -> Language:
    table = tomllib.loads(_DATA_FILE.read_text(encoding="utf-8"))
    return Language(
        update_cues=compile_phrases(table["update_cues"]),
        update_words=frozenset(word for phrase in table["update_cues"] for word in phrase.split()),
        weak_cues=compile_phrases(table["weak_cues"]),
        end_cues=compile_phrases(table["end_cues"]),
        correction_cues=frozenset(table["correction_cues"]),
        rejections=compile_phrases([*table["certain_rejections"], *table["rejections"]]),
        certain_rejections=frozenset(table["certain_rejections"]),
        refusals=compile_phrases(table["refusals"]),
        moves=compile_phrases(table["moves"]),
        interjections=compile_phrases(table["interjections"]),
        fillers=compile_phrases(table["fillers"]),
        bindings=frozenset(table["bindings"]),
        clause_words=frozenset(table["clause_words"]),
        hedges=compile_phrases(table["hedges"]),
        attribute_cues=frozenset(table["attribute_cues"]),
        determiners=frozenset(table["determiners"]),
        prepositions=frozenset(table["prepositions"]),
        clock_prepositions=frozenset(table["clock_prepositions"]),
        auxiliaries=frozenset(table["auxiliaries"]),
        copulas=frozenset(table["copulas"]),
        conjunctions=compile_phrases(table["conjunctions"]),
        before_infinitives=frozenset(table["before_infinitives"]),
        cancel_cues=compile_phrases(table["cancel_cues"]),
        cancel_words=frozenset(
            word for phrase in (*table["cancel_cues"], *table["placeholders"]) for word in phrase.split()
        ),
        request_cues=compile_phrases(table["request_cues"]),
        step_cues=compile_phrases(table["step_cues"]),
        preference_cues=compile_phrases(table["preference_cues"]),
        task_cues=compile_phrases(table["task_cues"]),
        back_references=frozenset(table["back_references"]),
        pronouns=frozenset(table["pronouns"]),
        demonstratives=frozenset(table["demonstratives"]),
        function_words=frozenset(table["function_words"]),
        currencies=frozenset(table["currencies"]),
        weekdays=frozenset(table["weekdays"]),
        months=frozenset(table["months"]),
        number_words=frozenset(table["number_words"]),
        frequencies=frozenset(table["frequencies"]),
        times_of_day=frozenset(table["times_of_day"]),
        middays=frozenset(table["middays"]),
        generic_names=frozenset(table["generic_names"]),
        open_ends=frozenset(table["open_ends"]),
        german_words=frozenset(table["german_words"]),
        suffixes=tuple(sorted(table["suffixes"], key=len, reverse=True)),
        dimensions={unit: units[0] for units in table["dimensions"] for unit in units},
        owners={word: words[0] for words in table["owners"] for word in words},
    )


def is_generic_name(name: str) -> bool:
    """Return whether a name is a stop word, a keyword or a word that any text of its kind contains."""
    words = language()
    lower = name.lower().strip("/\\.:()<>*_-")
    return not lower or lower in words.function_words or lower in words.generic_names


@lru_cache(maxsize=_MAX_WORDS)
def find_stem(word: str) -> str:
    """A short form that variants of a word share: "owner" and "owns", "spending" and "spend"."""
    stem = word.replace("ß", "ss")
    before = ""
    while stem != before:  # "watered", "water"
        before = stem
        for suffix in language().suffixes:
            if stem.endswith(suffix) and len(stem) - len(suffix) >= _MIN_STEM_CHARS:
                stem = stem[: -len(suffix)]
                break
    if len(stem) > _MIN_STEM_CHARS and stem[-1] == stem[-2]:
        stem = stem[:-1]
    return stem

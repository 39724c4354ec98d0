"""The rules by which facts are told, as `fold/facts.toml` has them."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

_RULES_FILE = Path(__file__).with_name("facts.toml")


class FactKind(StrEnum):
    """What a fact is."""

    CONSTRAINT = "constraint"
    TASK = "task"
    DECISION = "decision"
    ERROR = "error"
    PATH = "path"
    URL = "url"
    IDENTIFIER = "identifier"
    VERSION = "version"
    NUMBER = "number"
    QUOTED = "quoted"
    NAME = "name"


SENTENCE_KINDS = frozenset((FactKind.CONSTRAINT, FactKind.TASK, FactKind.DECISION, FactKind.ERROR))


@dataclass(frozen=True, slots=True, kw_only=True)
class FactRules:
    """What `fold/facts.toml` says, ready to be matched."""

    sentences: Mapping[FactKind, re.Pattern[str]]
    orders: re.Pattern[str]
    no_orders: re.Pattern[str]
    before_orders: re.Pattern[str]
    reporting: re.Pattern[str]
    refusing: frozenset[str]
    wishing: re.Pattern[str]
    asking: re.Pattern[str]
    asking_inside: re.Pattern[str]
    unfinished: re.Pattern[str]
    negations: frozenset[str]
    small_words: frozenset[str]
    number: re.Pattern[str]
    extensions: frozenset[str]
    path_arguments: frozenset[str]
    file_actions: Mapping[str, str]


@cache
def rules() -> FactRules:
    """The rules, read once."""
    table = tomllib.loads(_RULES_FILE.read_text(encoding="utf-8"))
    units = "|".join(re.escape(unit) for unit in sorted(table["units"], key=len, reverse=True))
    lead, dense_lead = (_alternatives(phrases) for phrases in _split_by_script(table["before_orders"]))
    return FactRules(
        sentences={kind: _phrases(table[kind.value]) for kind in FactKind if kind in SENTENCE_KINDS},
        orders=_phrases(table["orders"]),
        no_orders=_phrases(table["no_orders"]),
        before_orders=re.compile(
            rf"(?:^|[,;:(–—，；：、])\W{{0,9}}(?:(?:{lead})\W{{1,3}}|(?:{dense_lead})){{0,3}}$|(?<!\w)(?:{lead})\W{{1,3}}$",
            re.IGNORECASE,
        ),
        reporting=re.compile(
            rf"(?:\W{{1,3}}\w{{1,40}}){{0,4}}?\W{{1,3}}(?:{_alternatives(table['reporting'])})\b", re.IGNORECASE
        ),
        refusing=frozenset(table["refusing"]),
        wishing=re.compile(rf"\s+(?:{_alternatives(table['wishing'])})\b", re.IGNORECASE),
        asking=re.compile(
            rf"\W*(?:(?:{_alternatives(table['before_asking'])})\W+){{0,3}}(?:{_alternatives(table['asking'])})\b",
            re.IGNORECASE,
        ),
        asking_inside=re.compile(_alternatives(table["asking_inside"])),
        unfinished=re.compile(rf"(?<!\w)(?:{_alternatives(table['unfinished'])})$", re.IGNORECASE),
        negations=frozenset(table["negating"]),
        small_words=frozenset(table["small"]),
        number=re.compile(
            rf"(?<![\w.,/-])(?:\d{{4}}-\d\d-\d\d|\d{{2,5}}x\d{{2,5}}|"
            rf"[$€£#]?\d{{1,20}}(?:[.,]\d{{1,20}}){{0,5}}(?:e[+-]?\d{{1,3}}|"
            rf" ?(?:{units})(?:/(?:s|sec|min|h|day|month))?(?!\w))?)(?![\w/])",
            re.IGNORECASE,
        ),
        extensions=frozenset(table["extensions"]),
        path_arguments=frozenset(table["path_arguments"]),
        file_actions=table["deeds"],
    )


def _split_by_script(phrases: Sequence[str]) -> tuple[list[str], list[str]]:
    """Phrases of letters with cases, and those of scripts that are written without spaces."""
    spaced = [phrase for phrase in phrases if phrase.upper() != phrase.lower()]
    return spaced, [phrase for phrase in phrases if phrase.upper() == phrase.lower()]


def _phrases(phrases: Sequence[str]) -> re.Pattern[str]:
    """Any of the phrases: as whole words where they are of letters with cases, anywhere where they are not."""
    spaced, dense = _split_by_script(phrases)
    # An error's name ends in the word that tells it: ValueError, FileNotFoundException.
    endings = [phrase.capitalize() for phrase in spaced if phrase in ("error", "exception")]
    # What a phrase can begin with is looked at first: most places of a text are then passed by at once.
    parts = [rf"(?<!\w)(?=\w)(?i:{_alternatives(spaced)})"]
    for inside, end in ((dense, ""), (endings, r"s?\b")):
        if inside:
            parts.append(
                rf"(?=[{''.join(sorted({phrase[0] for phrase in inside}))}])(?:{_alternatives(inside)}){end}"
            )
    return re.compile("|".join(parts))


def _alternatives(phrases: Sequence[str]) -> str:
    return "|".join(map(_phrase_pattern, phrases))


_GAP = r"[^.!?;\n]{0,40}?(?<!\w)"


def _phrase_pattern(phrase: str) -> str:
    """A phrase with its two marks: "…" for some words of a clause, "*" for the rest of a word."""
    parts = [part.strip() for part in phrase.split("…")]
    return _GAP.join(map(_words_pattern, parts))


def _words_pattern(part: str) -> str:
    # A letter with cases, or what stands for some, ends with its word; an apostrophe does not.
    end = r"(?!\w)" if part[-1] == "*" or part[-1].upper() != part[-1].lower() else ""
    words = (re.escape(word).replace(r"\*", r"\w{0,30}") for word in part.split())
    return r"\s{1,3}".join(words) + end

"""The rules by which facts are told, as `fold/facts.toml` has them."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

_TABLE = Path(__file__).with_name("facts.toml")


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


SENTENCES = frozenset((FactKind.CONSTRAINT, FactKind.TASK, FactKind.DECISION, FactKind.ERROR))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
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
    negating: frozenset[str]
    small: frozenset[str]
    number: re.Pattern[str]
    extensions: frozenset[str]
    path_arguments: frozenset[str]
    deeds: Mapping[str, str]


@cache
def rules() -> Rules:
    """The rules, read once."""
    table = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    units = "|".join(re.escape(unit) for unit in sorted(table["units"], key=len, reverse=True))
    lead, dense_lead = (_any(phrases) for phrases in _by_script(table["before_orders"]))
    return Rules(
        sentences={kind: _phrases(table[kind.value]) for kind in FactKind if kind in SENTENCES},
        orders=_phrases(table["orders"]),
        no_orders=_phrases(table["no_orders"]),
        before_orders=re.compile(
            rf"(?:^|[,;:(–—，；：、])\W{{0,9}}(?:(?:{lead})\W{{1,3}}|(?:{dense_lead})){{0,3}}$|(?<!\w)(?:{lead})\W{{1,3}}$",
            re.IGNORECASE,
        ),
        reporting=re.compile(
            rf"(?:\W{{1,3}}\w{{1,40}}){{0,4}}?\W{{1,3}}(?:{_any(table['reporting'])})\b", re.IGNORECASE
        ),
        refusing=frozenset(table["refusing"]),
        wishing=re.compile(rf"\s+(?:{_any(table['wishing'])})\b", re.IGNORECASE),
        asking=re.compile(
            rf"\W*(?:(?:{_any(table['before_asking'])})\W+){{0,3}}(?:{_any(table['asking'])})\b", re.IGNORECASE
        ),
        asking_inside=re.compile(_any(table["asking_inside"])),
        unfinished=re.compile(rf"(?<!\w)(?:{_any(table['unfinished'])})$", re.IGNORECASE),
        negating=frozenset(table["negating"]),
        small=frozenset(table["small"]),
        number=re.compile(
            rf"(?<![\w.,/-])(?:\d{{4}}-\d\d-\d\d|\d{{2,5}}x\d{{2,5}}|"
            rf"[$€£#]?\d{{1,20}}(?:[.,]\d{{1,20}}){{0,5}}(?:e[+-]?\d{{1,3}}|"
            rf" ?(?:{units})(?:/(?:s|sec|min|h|day|month))?(?!\w))?)(?![\w/])",
            re.IGNORECASE,
        ),
        extensions=frozenset(table["extensions"]),
        path_arguments=frozenset(table["path_arguments"]),
        deeds=table["deeds"],
    )


def _by_script(phrases: Sequence[str]) -> tuple[list[str], list[str]]:
    """Phrases of letters with cases, and those of scripts that are written without spaces."""
    spaced = [phrase for phrase in phrases if phrase.upper() != phrase.lower()]
    return spaced, [phrase for phrase in phrases if phrase.upper() == phrase.lower()]


def _phrases(phrases: Sequence[str]) -> re.Pattern[str]:
    """Any of the phrases: as whole words where they are of letters with cases, anywhere where they are not."""
    spaced, dense = _by_script(phrases)
    # An error's name ends in the word that tells it: ValueError, FileNotFoundException.
    endings = [phrase.capitalize() for phrase in spaced if phrase in ("error", "exception")]
    # What a phrase can begin with is looked at first: most places of a text are then passed by at once.
    parts = [rf"(?<!\w)(?=\w)(?i:{_any(spaced)})"]
    for inside, end in ((dense, ""), (endings, r"s?\b")):
        if inside:
            parts.append(rf"(?=[{''.join(sorted({phrase[0] for phrase in inside}))}])(?:{_any(inside)}){end}")
    return re.compile("|".join(parts))


def _any(phrases: Sequence[str]) -> str:
    return "|".join(map(_pattern, phrases))


_GAP = r"[^.!?;\n]{0,40}?(?<!\w)"


def _pattern(phrase: str) -> str:
    """A phrase with its two marks: "…" for some words of a clause, "*" for the rest of a word."""
    parts = [part.strip() for part in phrase.split("…")]
    return _GAP.join(map(_words_of_phrase, parts))


def _words_of_phrase(part: str) -> str:
    # A letter with cases, or what stands for some, ends with its word; an apostrophe does not.
    end = r"(?!\w)" if part[-1] == "*" or part[-1].upper() != part[-1].lower() else ""
    words = (re.escape(word).replace(r"\*", r"\w{0,30}") for word in part.split())
    return r"\s{1,3}".join(words) + end

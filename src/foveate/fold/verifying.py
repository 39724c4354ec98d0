"""What is no summary, whatever its status was; and what a summary leaves out.

An error page or a refusal that was taken for a summary would be all that is left of a history.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from foveate.fold.extractive import Count, carry
from foveate.fold.facts import Fact
from foveate.fold.ranking import ALWAYS, Ranked

# A name that is likelier than this to be mentioned again is worth asking once more for.
_IMPORTANT_CHANCE = 0.5
# A refusal or an error is short; a longer text may speak of one.
_SHORT_CHARS = 1_200
# No text of any length has so many characters a token; a longer one needs no counting.
_MOST_CHARS = 32
# Fewer words than these say nothing of a history.
_LEAST_WORDS = 5

_PAGE = re.compile(r"\s*(```\w*\s*)?(<!doctype\b|<html\b|<\?xml\b|<head\b|<body\b)", re.IGNORECASE)
_JSON_ERROR = re.compile(
    r"""\s*(```\w*\s*)?[\[{]\s*["'](error|errors|detail|fault)["']\s*:"""
    r"""|\s*(```\w*\s*)?\{[^{}]{0,200}["'](type|object|status)["']\s*:\s*["']?error\b""",
    re.IGNORECASE,
)
_PLAIN_ERROR = re.compile(
    r"""\s*(
        (http[ ]?(error|/\d(\.\d)?)?[ :]*)? [45]\d\d\s*($|\n|[:{-]|bad|internal|service|gateway|too[ ]many
          |not[ ]found|forbidden|unauthori|error|overloaded)
        | (api|internal|server|upstream|gateway|proxy|connection|network|rate[ -]?limit|timeout|unknown)[ ]
          (\w+[ ])? (error|failure|exceeded|timeout|timed[ ]out|unavailable)\s*($|\n|[:.({!-]|\d|occurred|or\b)
        | error\b[ ]*(code|\d|:|-)
        | traceback[ ]\(most[ ]recent
        | (bad[ ]gateway|gateway[ ]time-?out|service[ ](temporarily[ ])?unavailable|too[ ]many[ ]requests
          |overloaded|request[ ]timed[ ]out|unauthori[sz]ed|forbidden|not[ ]found)[.!:]?\s*(\n|$)
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_REFUSAL = re.compile(
    r"""\s*((i[ ]?['’]?a?m\s+(very\s+|so\s+)?sorry|sorry|unfortunately|i\s+apologi[sz]e|my\s+apologies
        |as\s+an\s+ai\b[^.,]{0,40})[^.!?]{0,60}?[,.!;:]?\s*(but\s+)?)?
        i(\s+am|['’]m)?\s*(can['’]?t|can\s?not|won['’]?t|will\s+not|not\s+able\s+to|unable\s+to|must\s+decline
          |am\s+not\s+able\s+to|do\s?n['’]?o?t\s+have\s+(access|the\s+ability)|have\s+to\s+decline)
        (\s+(to|in\s+good\s+conscience))?\s*
        (help|assist|comply|do|provide|summari[sz]e|write|create|continue|fulfil|process|generate|discuss|engage
          |answer|respond|share|support|proceed|be\s+able|decline|with|$|[.,])""",
    re.IGNORECASE | re.VERBOSE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Facts that a summary leaves out: those worth a second try, and all that a list after it has room for."""

    important: tuple[str, ...]
    listed: tuple[str, ...]


def problem_of(text: str, *, replaced_tokens: int, count: Count) -> str | None:
    """Why a text is no summary of so many tokens; None where it may be one."""
    if not text.strip():
        return "the summary is empty"
    if _PAGE.match(text):
        return "the answer is a page, not a summary"
    if _JSON_ERROR.match(text):
        return "the answer is an error, not a summary"
    if len(text) <= _SHORT_CHARS:
        if _PLAIN_ERROR.match(text):
            return "the answer is an error, not a summary"
        if _REFUSAL.match(text):
            return "the answer is a refusal, not a summary"
    if len(text.split()) < _LEAST_WORDS and len(text) < _SHORT_CHARS and not _is_unspaced(text):
        return "the answer says nothing"
    if len(text) >= replaced_tokens * _MOST_CHARS or count(text) >= replaced_tokens:
        return f"the summary is longer than the {replaced_tokens:,} tokens that it would replace"
    return None


def missing_in(
    summary: str, ranked: Sequence[Ranked], *, limit_tokens: int, count: Count, most_tokens: int
) -> Missing:
    """What `summary` leaves out of `ranked`, as far as a list after it has room.

    The list fills up what the summary has left of `limit_tokens`, at least a quarter of it, as long as all is
    below `most_tokens`.
    """
    used = count(summary)
    room = min(max(limit_tokens - used, limit_tokens // 4), most_tokens - used)
    chances = {(one.fact.kind, one.fact.text): one.chance for one in ranked}
    listed = carry(summary, ranked, limit_tokens=room, count=count)
    important = [fact for fact in listed if _is_important(fact, chances[fact.kind, fact.text])]
    return Missing(important=tuple(fact.text for fact in important), listed=tuple(fact.text for fact in listed))


def _is_important(fact: Fact, chance: float) -> bool:
    return fact.kind in ALWAYS or chance >= _IMPORTANT_CHANCE


def _is_unspaced(text: str) -> bool:
    """Whether its script writes no spaces between words."""
    return len(text) >= _LEAST_WORDS * 2 and sum(ord(char) >= 0x2E80 for char in text) * 2 > len(text)

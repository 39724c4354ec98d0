"""How others make a prompt fit: a search for the cutoff, a loop that pops lines, LangChain's `trim_messages`.

The search is what Priompt publishes (its README, `renderBinarySearch`): every line has a priority, the levels
are searched by halves, and at each step the whole prompt is rendered and counted. It is written here because
Priompt itself could not be installed: on 2026-11-15 npm answered 404 for `@anysphere/priompt`, and its
tokenizer, which could be, had no binary for 64-bit ARM. Rendering is slicing strings here, where Priompt walks
a tree of scopes: priompt 0.1.2, a port of it to Python, took 3.5 to 28 times as long for the same search.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

from benchmarks.budget_cases import Count, service_order
from foveate.budget import Section

PRIOMPT_NOT_RUN = (
    "npm answered 404 for @anysphere/priompt (2026-11-15); "
    "cutoff_search is its published approach, written here"
)
# Whoever takes longer is stopped, and left out at larger sizes.
TIMEOUT_SECONDS = 4.0

Given = TypeVar("Given")
Peer = Callable[[Given, int, Count], list[str]]
"""From what is given, a limit and a way to count, to what is kept: texts that are each counted by itself."""


@dataclass(frozen=True, slots=True)
class Finish:
    """How long a peer took, and what it kept; None where it was stopped."""

    seconds: float
    kept: list[str] | None


class _TimedOut(Exception):
    """It takes too long."""


def time_peer(peer: Peer[Given], given: Given, limit_tokens: int, count: Count) -> Finish:
    """Lets a peer work until it is done, or wants one more count when patience has ended."""
    started = time.perf_counter()

    def impatient(text: str) -> int:
        if time.perf_counter() - started > TIMEOUT_SECONDS:
            raise _TimedOut
        return count(text)

    kept: list[str] | None
    try:
        kept = peer(given, limit_tokens, impatient)
    except _TimedOut:
        kept = None
    return Finish(time.perf_counter() - started, kept)


def cutoff_search(sections: Sequence[Section], limit_tokens: int, count: Count) -> list[str]:
    """The largest prompt that fits and that a cutoff gives; every line is a level."""
    order = service_order(sections)
    ends = [list(accumulate(map(len, section.text.splitlines(keepends=True)))) for section in sections]
    levels = [(place, end) for place in order for end in ends[place]]

    def rendered(level: int) -> str:
        place, end = levels[level]
        kept = {p: sections[p].text for p in order[: order.index(place)]} | {place: sections[place].text[:end]}
        return "\n\n".join(kept[p] for p in sorted(kept))

    fits, too_much = -1, len(levels)
    found = ""
    while too_much - fits > 1:
        level = (fits + too_much) // 2
        prompt = rendered(level)
        if count(prompt) <= limit_tokens:
            fits, found = level, prompt
        else:
            too_much = level
    return [found]


def popping_lines(sections: Sequence[Section], limit_tokens: int, count: Count) -> list[str]:
    """The prompt that is left when lines are popped, lowest priority first, until a recount fits."""
    lines = [section.text.splitlines(keepends=True) for section in sections]
    order = service_order(sections)
    while count(prompt := "\n\n".join("".join(kept) for kept in lines if kept)) > limit_tokens:
        while not lines[order[-1]]:
            order.pop()
        lines[order[-1]].pop()
    return [prompt]


def messages(texts: Sequence[str]) -> list[Any]:
    """The texts as messages of LangChain's, a user's and a model's in turns."""
    from langchain_core.messages import AIMessage, HumanMessage

    makers: Sequence[Callable[[str], Any]] = (HumanMessage, AIMessage)
    return [makers[turn % 2](text) for turn, text in enumerate(texts)]


def trim_messages(history: Sequence[Any], limit_tokens: int, count: Count) -> list[str]:
    """The newest messages that LangChain keeps; it asks for the tokens of a message at a time."""
    from langchain_core.messages import BaseMessage
    from langchain_core.messages import trim_messages as trim

    def counter(message: BaseMessage) -> int:
        return count(str(message.content))

    kept = trim(history, max_tokens=limit_tokens, token_counter=counter, strategy="last")
    return [str(message.content) for message in kept]

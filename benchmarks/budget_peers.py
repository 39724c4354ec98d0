"""Peers that fit a prompt into a limit: a cutoff search, popping lines, and LangChain's `trim_messages`.

The search is the algorithm that Priompt publishes (`renderBinarySearch` in its README): every line has a
priority, a binary search over the levels finds the cutoff, and each step renders and counts the whole prompt.
It is reimplemented because Priompt could not be installed: on 2026-11-15 npm returned 404 for
`@anysphere/priompt`, and its tokenizer had no binary for 64-bit ARM. Rendering slices strings, while Priompt
walks a tree of scopes: priompt 0.1.2, a Python port, took 3.5 to 28 times as long for the same search.
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
# Slower peers are stopped, and left out at larger sizes.
TIMEOUT_SECONDS = 4.0

Input = TypeVar("Input")
Peer = Callable[[Input, int, Count], list[str]]
"""Takes an input, a limit and a counter; returns the retained texts, each of which is counted by itself."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Time of a peer, and the prompt that it returned; None if it was stopped."""

    seconds: float
    retained: list[str] | None


class _TimedOut(Exception):
    """The peer takes too long."""


def time_peer(peer: Peer[Input], value: Input, limit_tokens: int, count: Count) -> Finish:
    """Run a peer until it finishes, or until it requests a count after its time is up."""
    started = time.perf_counter()

    def count_in_time(text: str) -> int:
        if time.perf_counter() - started > TIMEOUT_SECONDS:
            raise _TimedOut
        return count(text)

    retained: list[str] | None
    try:
        retained = peer(value, limit_tokens, count_in_time)
    except _TimedOut:
        retained = None
    return Finish(time.perf_counter() - started, retained)


def cutoff_search(sections: Sequence[Section], limit_tokens: int, count: Count) -> list[str]:
    """Return the largest prompt that fits and that a cutoff produces; every line is a level."""
    order = service_order(sections)
    ends = [list(accumulate(map(len, section.text.splitlines(keepends=True)))) for section in sections]
    levels = [(place, end) for place in order for end in ends[place]]

    def render(level: int) -> str:
        place, end = levels[level]
        retained = {p: sections[p].text for p in order[: order.index(place)]} | {
            place: sections[place].text[:end]
        }
        return "\n\n".join(retained[p] for p in sorted(retained))

    fits, too_much = -1, len(levels)
    best = ""
    while too_much - fits > 1:
        level = (fits + too_much) // 2
        prompt = render(level)
        if count(prompt) <= limit_tokens:
            fits, best = level, prompt
        else:
            too_much = level
    return [best]


def popping_lines(sections: Sequence[Section], limit_tokens: int, count: Count) -> list[str]:
    """Pop lines, lowest priority first, until a recount fits; return the remaining prompt."""
    lines = [section.text.splitlines(keepends=True) for section in sections]
    order = service_order(sections)
    while count(prompt := "\n\n".join("".join(retained) for retained in lines if retained)) > limit_tokens:
        while not lines[order[-1]]:
            order.pop()
        lines[order[-1]].pop()
    return [prompt]


def messages(texts: Sequence[str]) -> list[Any]:
    """Return the texts as LangChain messages, alternating between user and model."""
    from langchain_core.messages import AIMessage, HumanMessage

    makers: Sequence[Callable[[str], Any]] = (HumanMessage, AIMessage)
    return [makers[turn % 2](text) for turn, text in enumerate(texts)]


def trim_messages(history: Sequence[Any], limit_tokens: int, count: Count) -> list[str]:
    """Return the newest messages that LangChain retains; it counts one message at a time."""
    from langchain_core.messages import BaseMessage
    from langchain_core.messages import trim_messages as trim

    def counter(message: BaseMessage) -> int:
        return count(str(message.content))

    retained = trim(history, max_tokens=limit_tokens, token_counter=counter, strategy="last")
    return [str(message.content) for message in retained]

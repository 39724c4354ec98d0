"""What the log tells of a request: numbers and names, and never a key or a word of a message."""

import time
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec

from foveate.engine.calls import Done, Problem
from foveate.engine.redacting import redacted

_LONGEST = 200
_GONE = "gone"
# As wide as the columns of a bill.
_BILL = 68


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it ended. `status` is what its client got, 0 where it went away before.

    It `is_broken` where its answer broke off, or its client went away. `dollars` is None where the price is not
    known. `refused` is the code of an error of our own, and `reason` what it says. Tokens are as billed. Times
    are in seconds.
    """

    at: float
    id: str
    method: str
    path: str
    agent: str
    status: int
    whole_seconds: float
    session: str = ""
    provider: str = ""
    model: str = ""
    input_tokens: int = 0
    read_tokens: int = 0
    written_tokens: int = 0
    output_tokens: int = 0
    dollars: Decimal | None = None
    added_seconds: float | None = None
    is_billed: bool = False
    is_broken: bool = False
    done: tuple[Done, ...] = ()
    problems: tuple[Problem, ...] = ()
    refused: str = ""
    reason: str = ""


def told_line(told: Told) -> str:
    """A request in one line, its columns below those of the line before."""
    who = f"{told.status or _GONE:>4} {_cell(told.agent, 12)} {_cell(told.model or _asked(told), 26)}"
    bill = ""
    if told.is_billed:
        dollars = "$?" if told.dollars is None else f"${told.dollars:.6f}"
        bill = (
            f"in {told.input_tokens:>9,} read {told.read_tokens:>9,} written {told.written_tokens:>8,}"
            f" out {told.output_tokens:>7,} {dollars:>11}"
        )
    added = " " * 10 if told.added_seconds is None else f"+{1000 * told.added_seconds:>6.1f} ms"
    ends = [f"{added} {1000 * told.whole_seconds:>8,.0f} ms", told.id]
    if told.session:
        ends.append(f"session {_shown(told.session)}")
    if told.done:
        ends.append("edits " + ", ".join(f"{step} {count}" for step, count in edits_of(told).items()))
    if told.problems:
        ends.append("without " + "; ".join(f"{problem.step} ({_reason(problem)})" for problem in told.problems))
    if told.is_broken and told.status:
        ends.append("broke off")
    if told.refused:
        ends.append(f"{told.refused}: {_shown(told.reason)}")
    return f"{who} {bill:<{_BILL}} {'  '.join(ends)}"


def told_object(told: Told) -> dict[str, Any]:
    """The same as an object; all its keys are always there."""
    return {
        "at": stamp(told.at),
        "level": "info",
        "logger": "foveate.requests",
        "id": told.id,
        "agent": _shown(told.agent),
        "session": _shown(told.session),
        "provider": told.provider,
        "model": _shown(told.model),
        "method": told.method,
        "path": _shown(told.path),
        "status": told.status,
        "broken": told.is_broken,
        "input_tokens": told.input_tokens,
        "read_tokens": told.read_tokens,
        "written_tokens": told.written_tokens,
        "output_tokens": told.output_tokens,
        "dollars": None if told.dollars is None else str(told.dollars),
        "added_ms": None if told.added_seconds is None else round(1000 * told.added_seconds, 3),
        "ms": round(1000 * told.whole_seconds, 3),
        "edits": dict(edits_of(told)),
        "problems": [{"step": problem.step, "reason": _reason(problem)} for problem in told.problems],
        "refused": told.refused,
        "reason": _shown(told.reason),
    }


def edits_of(told: Told) -> Mapping[str, int]:
    """How many edits each step made."""
    return Counter(done.step for done in told.done)


def _asked(told: Told) -> str:
    return f"{told.method} {told.path}"


def _reason(problem: Problem) -> str:
    return _shown(problem.reason)


def _shown(text: str) -> str:
    return _short(text[: _LONGEST + 1])


def _cell(text: str, width: int) -> str:
    return _padded(text[: _LONGEST + 1], width)


# Names come again and again; of what is longer, no more is remembered than is shown.
@lru_cache(maxsize=4096)
def _short(text: str) -> str:
    return redacted(escaped(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"))


@lru_cache(maxsize=256)
def _padded(text: str, width: int) -> str:
    shown = _short(text)
    return f"{shown if len(shown) <= width else f'{shown[: width - 1]}…':<{width}}"


def escaped(text: str) -> str:
    """A text that cannot disturb a terminal, on one line."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "replace").decode()
        for letter in text
    )


def stamp(at: float) -> str:
    """A time as machines read it."""
    return f"{_utc(int(at))}.{int(at % 1 * 1000):03d}Z"


def clock(at: float) -> str:
    """A time of day as people read it, where they are."""
    return f"{_local(int(at))}.{int(at % 1 * 1000):03d}"


@lru_cache(maxsize=4)
def _utc(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


@lru_cache(maxsize=4)
def _local(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))

"""What the log tells of a request: numbers and names, and never a key or a word of a message."""

import time
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec

from foveate.engine.calls import AppliedEdit, StepFailure
from foveate.engine.redacting import redact_keys

_MAX_TEXT_CHARS = 200
_DISCONNECTED = "gone"
# As wide as the columns of a bill.
_USAGE_WIDTH = 68


class AccessRecord(msgspec.Struct, frozen=True, kw_only=True):
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
    total_seconds: float
    session: str = ""
    provider: str = ""
    model: str = ""
    input_tokens: int = 0
    read_tokens: int = 0
    written_tokens: int = 0
    output_tokens: int = 0
    dollars: Decimal | None = None
    added_seconds: float | None = None
    has_usage: bool = False
    is_broken: bool = False
    applied_edits: tuple[AppliedEdit, ...] = ()
    problems: tuple[StepFailure, ...] = ()
    error_code: str = ""
    error_reason: str = ""


def format_line(record: AccessRecord) -> str:
    """A request in one line, its columns below those of the line before."""
    caller = f"{record.status or _DISCONNECTED:>4} {_format_cell(record.agent, 12)} {_format_cell(record.model or _request_line(record), 26)}"
    usage = ""
    if record.has_usage:
        dollars = "$?" if record.dollars is None else f"${record.dollars:.6f}"
        usage = (
            f"in {record.input_tokens:>9,} read {record.read_tokens:>9,} written {record.written_tokens:>8,}"
            f" out {record.output_tokens:>7,} {dollars:>11}"
        )
    added = " " * 10 if record.added_seconds is None else f"+{1000 * record.added_seconds:>6.1f} ms"
    details = [f"{added} {1000 * record.total_seconds:>8,.0f} ms", record.id]
    if record.session:
        details.append(f"session {_shorten(record.session)}")
    if record.applied_edits:
        details.append("edits " + ", ".join(f"{step} {count}" for step, count in count_edits(record).items()))
    if record.problems:
        details.append(
            "without "
            + "; ".join(f"{problem.step} ({_problem_reason(problem)})" for problem in record.problems)
        )
    if record.is_broken and record.status:
        details.append("broke off")
    if record.error_code:
        details.append(f"{record.error_code}: {_shorten(record.error_reason)}")
    return f"{caller} {usage:<{_USAGE_WIDTH}} {'  '.join(details)}"


def record_to_json(record: AccessRecord) -> dict[str, Any]:
    """The same as an object; all its keys are always there."""
    return {
        "at": format_timestamp(record.at),
        "level": "info",
        "logger": "foveate.requests",
        "id": record.id,
        "agent": _shorten(record.agent),
        "session": _shorten(record.session),
        "provider": record.provider,
        "model": _shorten(record.model),
        "method": record.method,
        "path": _shorten(record.path),
        "status": record.status,
        "broken": record.is_broken,
        "input_tokens": record.input_tokens,
        "read_tokens": record.read_tokens,
        "written_tokens": record.written_tokens,
        "output_tokens": record.output_tokens,
        "dollars": None if record.dollars is None else str(record.dollars),
        "added_ms": None if record.added_seconds is None else round(1000 * record.added_seconds, 3),
        "ms": round(1000 * record.total_seconds, 3),
        "edits": dict(count_edits(record)),
        "problems": [{"step": problem.step, "reason": _problem_reason(problem)} for problem in record.problems],
        "refused": record.error_code,
        "reason": _shorten(record.error_reason),
    }


def count_edits(record: AccessRecord) -> Mapping[str, int]:
    """How many edits each step made."""
    return Counter(edit.step for edit in record.applied_edits)


def _request_line(record: AccessRecord) -> str:
    return f"{record.method} {record.path}"


def _problem_reason(problem: StepFailure) -> str:
    return _shorten(problem.reason)


def _shorten(text: str) -> str:
    return _shorten_and_redact(text[: _MAX_TEXT_CHARS + 1])


def _format_cell(text: str, width: int) -> str:
    return _pad(text[: _MAX_TEXT_CHARS + 1], width)


# Names come again and again; of what is longer, no more is remembered than is shown.
@lru_cache(maxsize=4096)
def _shorten_and_redact(text: str) -> str:
    return redact_keys(
        escape_unprintable(text if len(text) <= _MAX_TEXT_CHARS else f"{text[:_MAX_TEXT_CHARS]}…")
    )


@lru_cache(maxsize=256)
def _pad(text: str, width: int) -> str:
    shown = _shorten_and_redact(text)
    return f"{shown if len(shown) <= width else f'{shown[: width - 1]}…':<{width}}"


def escape_unprintable(text: str) -> str:
    """A text that cannot disturb a terminal, on one line."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "replace").decode()
        for letter in text
    )


def format_timestamp(at: float) -> str:
    """A time as machines read it."""
    return f"{_format_utc_second(int(at))}.{int(at % 1 * 1000):03d}Z"


def format_local_time(at: float) -> str:
    """A time of day as people read it, where they are."""
    return f"{_format_local_second(int(at))}.{int(at % 1 * 1000):03d}"


@lru_cache(maxsize=4)
def _format_utc_second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


@lru_cache(maxsize=4)
def _format_local_second(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))

"""What went wrong with a question, in one line that says what to do about it."""

from dataclasses import dataclass
from enum import StrEnum

from foveate.chat.bodies import Speaking
from foveate.errors import MalformedRequest
from foveate.gateway.configured import USUAL_VARIABLES
from foveate.wire.body import as_record, as_text
from foveate.wire.replies import record
from foveate.wire.streams import StreamError

# Of what somebody else says, so much is told; what to do about it stands behind.
_MOST_CHARS = 400
_AGAIN = "nothing of it is kept: ask again"


class Trouble(StrEnum):
    """What kind of failure it is."""

    KEY = "key"
    CAP = "cap"
    WINDOW = "window"
    BUSY = "busy"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    BROKEN = "broken"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A question that has no answer, or only the beginning of one."""

    trouble: Trouble
    text: str


def failure_of(
    status: int, headers: dict[str, str], body: bytes, speaking: Speaking, *, has_history: bool
) -> Failure:
    """What an answer means that is none; `has_history`: something was said before the question."""
    said = _message(body)
    where = f"{speaking.upstream.name} ({speaking.upstream.base_url})"
    match status:
        case 401 | 403:
            variable = USUAL_VARIABLES.get(speaking.upstream.name)
            key = (
                f"check {variable}" if variable else "check key_variable of that upstream in the configuration"
            )
            return _failure(Trouble.KEY, f"{where} does not take the key: {said}; {key}")
        case 402:
            return _failure(Trouble.CAP, said)
        case 429 | 529 | 503:
            return _failure(Trouble.BUSY, f"{where} has no room now: {said}; {_when(headers)}")
        case 400 | 413 if _is_too_long(said):
            shorter = ":compact folds the history, :reset begins anew" if has_history else "send less"
            return _failure(Trouble.WINDOW, f"{said}; {shorter}, or :model names one with a larger window")
        case 404:
            return _failure(Trouble.REFUSED, f"{where}: {said}; :model names another model")
        case 502 | 504:
            return _failure(Trouble.UNREACHABLE, f"{where}: {said}; try again, or :model names another model")
        case _ if status >= 500:
            return _failure(Trouble.UNREACHABLE, f"{where} failed ({status}): {said}; try again")
        case _:
            return _failure(Trouble.REFUSED, f"{where} refused it ({status}): {said}")


def broken(error: StreamError | None, *, has_words: bool) -> Failure:
    """What is told of an answer that broke off; `has_words`: something of it came."""
    why = _cut(error.message or error.kind) if error is not None else "the connection was cut"
    left = "what came so far stays in the conversation" if has_words else _AGAIN
    return _failure(Trouble.BROKEN, f"the answer broke off: {why}; {left}")


def internal(error: BaseException) -> Failure:
    """What is told of a fault of our own."""
    return _failure(
        Trouble.INTERNAL, f"Foveate itself failed ({_cut(f'{type(error).__name__}: {error}')}); {_AGAIN}"
    )


def empty() -> Failure:
    """What is told of an answer without a word in it."""
    return _failure(Trouble.REFUSED, f"the answer is empty; {_AGAIN}")


def _failure(trouble: Trouble, text: str) -> Failure:
    return Failure(trouble=trouble, text=" ".join(text.split()))


def _cut(said: str) -> str:
    return said if len(said) <= _MOST_CHARS else f"{said[: _MOST_CHARS - 1]}…"


def _message(body: bytes) -> str:
    """What an error says, as most providers write it."""
    try:
        found = record(body).get("error")
    except MalformedRequest:
        found = None
    said = as_text(as_record(found).get("message")) or as_text(found)
    return _cut((said or body.decode("utf-8", "replace").strip() or "it says nothing more").rstrip("."))


def _when(headers: dict[str, str]) -> str:
    seconds = headers.get("retry-after", "")
    return f"try again in {seconds} s" if seconds.isdecimal() else "try again in a moment"


def _is_too_long(said: str) -> bool:
    words = said.lower()
    return any(sign in words for sign in ("too long", "context length", "maximum size", "context size"))

"""What every rendering of an answer needs: its ids and time, its bill, and server-sent events."""

from collections.abc import Callable
from dataclasses import dataclass

from foveate.values import Usage
from foveate.wire.body import to_json

NewId = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseMetadata:
    """What goes around an answer: the model's name, when it was given, what it cost, and new ids.

    `writes` says that the model's cache takes a fee for what is written, and its bill a line for it.
    """

    model: str
    created_at: float
    usage: Usage
    new_id: NewId
    charges_cache_writes: bool = True


def encode_event(data: object, name: str = "") -> bytes:
    """One server-sent event."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + to_json(data) + b"\n\n"

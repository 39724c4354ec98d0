"""A request as it reaches the sandbox, and what is to be sent back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

MAX_BODY_BYTES = 32 * 1024 * 1024
"""The most bytes of a body that either provider takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRequest:
    """A request over HTTP, byte for byte; the names of headers are in small letters."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    query: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxReply:
    """What is sent back: the pieces of a body, and where there is more than one, as a stream.

    After `delay_seconds` it begins, between two pieces `pace_seconds` pass. Where it `breaks_off`, the
    connection is cut after the last piece, though the client was promised more. `before_last` is called before
    the last piece of one that is whole is sent, and `at_end` once nothing more is.
    """

    status: int
    headers: Mapping[str, str]
    chunks: tuple[bytes, ...]
    is_streaming: bool = False
    delay_seconds: float = 0
    pace_seconds: float = 0
    disconnects: bool = False
    before_last_chunk: Callable[[], None] | None = None
    on_end: Callable[[], None] | None = None

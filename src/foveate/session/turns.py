"""What is kept of sessions, and the small interface of who keeps it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A conversation of one agent, up to `tip`, the hash of its last message.

    A fork is a child: it has a `parent_id`, and `forked_at` is the hash of the last message that both have.
    """

    id: str
    agent: str
    tip: bytes
    messages: int
    created_at: float
    seen_at: float
    parent_id: str | None = None
    forked_at: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message, told by the hash of the chain up to and with it, and where it stands."""

    hash: bytes
    position: int
    session_id: str


class Turns(Protocol):
    """Keeps sessions, their turns, and each turn's tokens per counter."""

    async def known(self, agent: str, hashes: Sequence[bytes]) -> Mapping[bytes, Turn]:
        """Those of `hashes` that are kept for `agent`."""

    async def session(self, session_id: str) -> Session | None:
        """A session by its id."""

    async def keep(self, session: Session, turns: Sequence[Turn]) -> None:
        """Keep a session as it is now, and turns that are new; one that is there already stays as it is."""

    async def tokens(self, agent: str, hashes: Sequence[bytes], counter: str) -> Mapping[bytes, int]:
        """How many tokens each of those turns is by `counter`, as far as that is kept."""

    async def keep_tokens(self, agent: str, tokens: Mapping[bytes, int], counter: str) -> None:
        """Keep how many tokens turns are by `counter`."""

"""Ids of sessions."""

import uuid

from foveate.session.chain import HASH_BYTES
from foveate.tokens.memo import digest


def session_id(*made_of: str | bytes) -> str:
    """Return the id of the session that all of these identify: the same in every process."""
    parts = [part.encode("utf-8", "replace") if isinstance(part, str) else part for part in made_of]
    return digest(b"session", *parts)[:HASH_BYTES].hex()


def named_id(agent: str, name: str) -> str:
    """Return the id of an agent's session that the header `x-foveate-session` names so."""
    return session_id("named", agent, name)


def new_id() -> str:
    """Return an id for a session that nobody names: no two processes ever choose the same."""
    return uuid.uuid4().hex

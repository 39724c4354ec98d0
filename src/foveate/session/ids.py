"""Ids of sessions."""

import re
import uuid

from foveate.session.chain import HASH_BYTES
from foveate.tokens.memo import hash_bytes

NAME_CHARS = 16
"""Ids of sessions that callers of one agent name alike end with so many characters that are the same."""

# A UUID, or 20 letters and digits with three groups of digits: dates and numbered words have fewer.
_UNIQUE = re.compile(
    r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
    r"|(?<![0-9a-z])(?=[0-9a-z]{20})[a-z]*[0-9]+[a-z]+[0-9]+[a-z]+[0-9]",
    re.IGNORECASE,
)


def derive_session_id(*identity: str | bytes) -> str:
    """Return the id of the session that all of these identify: the same in every process."""
    parts = [part.encode("utf-8", "replace") if isinstance(part, str) else part for part in identity]
    return hash_bytes(b"session", *parts)[:HASH_BYTES].hex()


def derive_named_session_id(agent: str, name: str, scope: str = "") -> str:
    """Return the id of an agent's session that the header `x-foveate-session` names so.

    `scope` separates callers, whose names may be the same unless they are unique.
    """
    return scope_session_id(derive_session_id("named", agent, name), name, scope)


def scope_session_id(unscoped: str, name: str, scope: str) -> str:
    """Return the id of a session with this name: in every scope the last `NAME_CHARS` are the same."""
    if not scope or is_unique_name(name):
        return unscoped
    return derive_session_id("scope", unscoped, scope)[:-NAME_CHARS] + unscoped[-NAME_CHARS:]


def is_unique_name(name: str) -> bool:
    """Return whether nobody else chooses the same name by chance: it holds a UUID or another random id."""
    return _UNIQUE.search(name) is not None


def new_session_id() -> str:
    """Return an id for a session that nobody names: no two processes ever choose the same."""
    return uuid.uuid4().hex

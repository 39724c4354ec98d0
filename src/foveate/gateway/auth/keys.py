"""Gateway keys. Each identifies an agent, and only its hash is stored."""

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import Protocol

from blake3 import blake3

from foveate.gateway.request import KEY_PREFIX

_SECRET_BYTES = 32


class Keys(Protocol):
    def agent(self, key: str) -> str | None:
        """Return the agent of a key; None if it is unknown."""

    def has_keys(self, agent: str) -> bool: ...

    def is_admin(self, key: str) -> bool:
        """Return whether a key is an admin key, which sees all pages and sends no requests."""


class NoKeys:
    def agent(self, key: str) -> str | None:
        return None

    def has_keys(self, agent: str) -> bool:
        return False

    def is_admin(self, key: str) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class HashedKeys:
    agents: Mapping[str, str] = field(repr=False)
    admins: Collection[str] = field(default=(), repr=False)

    def agent(self, key: str) -> str | None:
        """Return the agent of a key, in constant time."""
        key_hash = hash_key(key)
        agents = [agent for hashed, agent in self.agents.items() if hmac.compare_digest(hashed, key_hash)]
        return agents[0] if agents else None

    def has_keys(self, agent: str) -> bool:
        return agent in self.agents.values()

    def is_admin(self, key: str) -> bool:
        """Return whether a key is an admin key, in constant time."""
        key_hash = hash_key(key)
        matches = [hashed for hashed in self.admins if hmac.compare_digest(hashed, key_hash)]
        return bool(matches)


def generate_key() -> str:
    return f"{KEY_PREFIX}{token_urlsafe(_SECRET_BYTES)}"


def hash_key(key: str) -> str:
    """Return the stored hash of a key. A key has enough entropy to need no salt and no slow hash."""
    return blake3(b"gateway key\0" + key.encode("utf-8", "replace")).hexdigest()

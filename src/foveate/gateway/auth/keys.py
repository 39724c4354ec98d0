"""Keys of the gateway: each names an agent, and only its hash is kept."""

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import Protocol

from blake3 import blake3

from foveate.gateway.request import KEY_PREFIX

_SECRET_BYTES = 32


class Keys(Protocol):
    """Knows whose a key of the gateway is."""

    def agent(self, key: str) -> str | None:
        """The agent that a key is for; None where it is nobody's."""

    def has_keys(self, agent: str) -> bool:
        """Whether an agent has any."""

    def is_admin(self, key: str) -> bool:
        """Whether a key is an admin key: it sees all pages, and sends no requests."""


class NoKeys:
    """Where none was made, none is known."""

    def agent(self, key: str) -> str | None:
        """None."""
        return None

    def has_keys(self, agent: str) -> bool:
        """No agent has."""
        return False

    def is_admin(self, key: str) -> bool:
        """No key is."""
        return False


@dataclass(frozen=True, slots=True)
class HashedKeys:
    """The agents of keys, by the hashes of these, and the hashes of admin keys."""

    agents: Mapping[str, str] = field(repr=False)
    admins: Collection[str] = field(default=(), repr=False)

    def agent(self, key: str) -> str | None:
        """The agent that a key is for; how long that takes tells nothing of other keys."""
        wanted = hash_key(key)
        found = [agent for hashed, agent in self.agents.items() if hmac.compare_digest(hashed, wanted)]
        return found[0] if found else None

    def has_keys(self, agent: str) -> bool:
        """Whether an agent has any."""
        return agent in self.agents.values()

    def is_admin(self, key: str) -> bool:
        """Whether a key is an admin key; how long that takes tells nothing of the keys."""
        wanted = hash_key(key)
        found = [hashed for hashed in self.admins if hmac.compare_digest(hashed, wanted)]
        return bool(found)


def generate_key() -> str:
    """A key that nobody can guess."""
    return f"{KEY_PREFIX}{token_urlsafe(_SECRET_BYTES)}"


def hash_key(key: str) -> str:
    """What is kept of a key. It is as long as a hash, so it needs no salt and no slow hash to be safe."""
    return blake3(b"gateway key\0" + key.encode("utf-8", "replace")).hexdigest()

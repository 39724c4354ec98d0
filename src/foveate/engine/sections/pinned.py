"""Injected texts that must stay where they are, since thinking blocks depend on them.

Some models accept a thinking block only after exactly what preceded it (`binds_thinking`), and some drop the
thinking of a turn in which the user says something new (`drops_thinking`). For those, turn sections are
injected once per turn, at a user message, and repeated at the same place in all later requests.

Pinned texts are found by the hash chain of the messages before them, also in a fork or after a lost response.
Only this process knows them, since message texts are not stored: if they are unknown, all earlier thinking is
dropped, as after a compaction.
"""

from dataclasses import dataclass

from foveate.caching import LruCache, hash_bytes, register
from foveate.engine.sections.fit import EMPTY_GROUP, SectionGroup
from foveate.model import Request, SetParameter
from foveate.prompt_cache.rules import CacheRules
from foveate.session.hash_chain import HashChain

_MAX_CONVERSATIONS = 4 * 1024
# Clients add a few messages at a time.
_LOOKBACK_MESSAGES = 64
_NOT_THINKING = frozenset(("", "disabled", "none"))


@dataclass(frozen=True, slots=True)
class PinnedText:
    """Texts after the message `message_index` of a chain, each with its tokens."""

    message_index: int
    texts: tuple[tuple[str, int], ...]

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedSections:
    """What is pinned in a conversation up to a message.

    `user_text` is the user's last text. `stable_version` identifies what is in the system prompt,
    `stable_group` is its content and `sources` what it was made of. `pinned_texts` must be repeated. Thinking
    in the first `invalid_before` messages is invalid; `drop_request` asks the provider to drop it if we cannot.
    """

    user_text: str = ""
    stable_version: bytes = b""
    stable_group: SectionGroup = EMPTY_GROUP
    sources: tuple[object, ...] = ()
    pinned_texts: tuple[PinnedText, ...] = ()
    invalid_before: int = 0
    drop_request: SetParameter | None = None


class PinnedSectionCache:
    """Pinned sections of the most recently used conversations."""

    def __init__(self) -> None:
        self.clear()
        register(self)

    def clear(self) -> None:
        self._entries: LruCache[PinnedSections] = LruCache(_MAX_CONVERSATIONS)

    def find(self, agent: str, chain: HashChain) -> tuple[PinnedSections | None, int]:
        """Return what is pinned in a conversation, and the number of messages it covers."""
        name = agent.encode("utf-8", "surrogatepass")
        for length in range(len(chain), max(0, len(chain) - _LOOKBACK_MESSAGES), -1):
            pinned = self._entries.get(hash_bytes(name, chain.hashes[length - 1]))
            if pinned is not None:
                return pinned, length
        return None, 0

    def put(self, agent: str, chain: HashChain, pinned: PinnedSections) -> None:
        if chain.hashes:
            self._entries.put(hash_bytes(agent.encode("utf-8", "surrogatepass"), chain.hashes[-1]), pinned)


def must_be_pinned(request: Request, rules: CacheRules) -> bool:
    """Whether text that is injected into a request must be repeated in all later ones."""
    return rules.binds_thinking or (rules.drops_thinking and request.thinking not in _NOT_THINKING)


def find_message(request: Request, original: Request, index: int) -> int | None:
    """The index of a client's message in the request as sent; None if it was removed."""
    size, sent_size = len(original.messages), len(request.messages)
    if sent_size == size:
        return index
    place = index + sent_size - size  # what was replaced precedes it
    if place < 0 or request.messages[place] != original.messages[index]:
        return None
    return place

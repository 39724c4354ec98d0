"""Texts that have to stay where they were put, since a model has thought after them.

Some models take a thought back only after exactly what it was thought after (`binds_thinking`), and some leave
out the thoughts of a turn in which the user has said something new (`drops_thinking`). There, what changes is
said once a turn, where the user speaks, and is put at the same place again with every later request.

What was said is known by the chain of messages up to it, so that it is found again in a fork and after an
answer that never came. It is remembered by this process alone, since the text of messages is not stored: where
it is not known, all thoughts of before are left out, as after a fold.
"""

from dataclasses import dataclass

from foveate.caching import LruCache, hash_bytes, register
from foveate.engine.sections.fit import EMPTY_GROUP, SectionGroup
from foveate.model import Request, SetParameter
from foveate.prompt_cache.rules import CacheRules
from foveate.session.hash_chain import HashChain

_MAX_CONVERSATIONS = 4 * 1024
# A client adds a few messages at a time.
_LOOKBACK_MESSAGES = 64
_NOT_THINKING = frozenset(("", "disabled", "none"))


@dataclass(frozen=True, slots=True)
class PinnedText:
    """Texts behind the message number `at` of a chain, each with its tokens."""

    message_index: int
    texts: tuple[tuple[str, int], ...]

    @property
    def tokens(self) -> int:
        """How many tokens they take."""
        return sum(tokens for _, tokens in self.texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedSections:
    """What is known of a conversation up to a message.

    `words` are the last that the user said. `stable` tells what was put into the system prompt, `part` is that
    itself and `sources` what it was made of, and `stays` are the texts that have to be repeated. Thoughts in
    the first `since` messages were thought after something else; `asks` is how the provider is asked to leave
    them out, where we cannot.
    """

    user_text: str = ""
    stable_version: bytes = b""
    stable_group: SectionGroup = EMPTY_GROUP
    sources: tuple[object, ...] = ()
    pinned_texts: tuple[PinnedText, ...] = ()
    invalid_before: int = 0
    drop_request: SetParameter | None = None


class PinnedSectionCache:
    """What this process knows of conversations, those used last."""

    def __init__(self) -> None:
        self.clear()
        register(self)

    def clear(self) -> None:
        """Forget all of it."""
        self._entries: LruCache[PinnedSections] = LruCache(_MAX_CONVERSATIONS)

    def find(self, agent: str, chain: HashChain) -> tuple[PinnedSections | None, int]:
        """What is known of a conversation, and up to how many of its messages."""
        name = agent.encode("utf-8", "surrogatepass")
        for length in range(len(chain), max(0, len(chain) - _LOOKBACK_MESSAGES), -1):
            pinned = self._entries.get(hash_bytes(name, chain.hashes[length - 1]))
            if pinned is not None:
                return pinned, length
        return None, 0

    def put(self, agent: str, chain: HashChain, pinned: PinnedSections) -> None:
        """Remember what was said up to the end of a conversation."""
        if chain.hashes:
            self._entries.put(hash_bytes(agent.encode("utf-8", "surrogatepass"), chain.hashes[-1]), pinned)


def must_be_pinned(request: Request, rules: CacheRules) -> bool:
    """Whether what is put into a request has to be in all later ones too."""
    return rules.binds_thinking or (rules.drops_thinking and request.thinking not in _NOT_THINKING)


def find_message(request: Request, original: Request, index: int) -> int | None:
    """Where a message of the client's stands in what would be sent; None where it is not there any more."""
    size, sent_size = len(original.messages), len(request.messages)
    if sent_size == size:
        return index
    place = index + sent_size - size  # what was replaced stands before it
    if place < 0 or request.messages[place] != original.messages[index]:
        return None
    return place

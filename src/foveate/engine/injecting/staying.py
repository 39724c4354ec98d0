"""Texts that have to stay where they were put, since a model has thought after them.

Some models take a thought back only after exactly what it was thought after (`binds_thinking`), and some leave
out the thoughts of a turn in which the user has said something new (`drops_thinking`). There, what changes is
said once a turn, where the user speaks, and is put at the same place again with every later request.

What was said is known by the chain of messages up to it, so that it is found again in a fork and after an
answer that never came. It is remembered by this process alone, since the text of messages is not stored: where
it is not known, all thoughts of before are left out, as after a fold.
"""

from dataclasses import dataclass

from foveate.cache.rules import Rules
from foveate.engine.injecting.fitting import NO_PART, Part
from foveate.session.chain import Chain
from foveate.tokens.caches import register
from foveate.tokens.memo import Memo, digest
from foveate.values import Request, SetParameter

_KEPT = 4 * 1024
# A client adds a few messages at a time.
_LOOKBACK = 64
_NOT_THINKING = frozenset(("", "disabled", "none"))


@dataclass(frozen=True, slots=True)
class Stay:
    """Texts behind the message number `at` of a chain, each with its tokens."""

    at: int
    texts: tuple[tuple[str, int], ...]

    @property
    def tokens(self) -> int:
        """How many tokens they take."""
        return sum(tokens for _, tokens in self.texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What is known of a conversation up to a message.

    `words` are the last that the user said. `stable` tells what was put into the system prompt, `part` is that
    itself and `sources` what it was made of, and `stays` are the texts that have to be repeated. Thoughts in
    the first `since` messages were thought after something else; `asks` is how the provider is asked to leave
    them out, where we cannot.
    """

    words: str = ""
    stable: bytes = b""
    part: Part = NO_PART
    sources: tuple[object, ...] = ()
    stays: tuple[Stay, ...] = ()
    since: int = 0
    asks: SetParameter | None = None


class SaidBefore:
    """What this process knows of conversations, those used last."""

    def __init__(self) -> None:
        self.drop()
        register(self)

    def drop(self) -> None:
        """Forget all of it."""
        self._kept: Memo[Said] = Memo(_KEPT)

    def of(self, agent: str, chain: Chain) -> tuple[Said | None, int]:
        """What is known of a conversation, and up to how many of its messages."""
        name = agent.encode("utf-8", "surrogatepass")
        for length in range(len(chain), max(0, len(chain) - _LOOKBACK), -1):
            found = self._kept.get(digest(name, chain.hashes[length - 1]))
            if found is not None:
                return found, length
        return None, 0

    def keep(self, agent: str, chain: Chain, said: Said) -> None:
        """Remember what was said up to the end of a conversation."""
        if chain.hashes:
            self._kept.put(digest(agent.encode("utf-8", "surrogatepass"), chain.hashes[-1]), said)


def has_to_stay(request: Request, rules: Rules) -> bool:
    """Whether what is put into a request has to be in all later ones too."""
    return rules.binds_thinking or (rules.drops_thinking and request.thinking not in _NOT_THINKING)


def place_now(request: Request, came: Request, index: int) -> int | None:
    """Where a message of the client's stands in what would be sent; None where it is not there any more."""
    size, now = len(came.messages), len(request.messages)
    if now == size:
        return index
    place = index + now - size  # what was replaced stands before it
    if place < 0 or request.messages[place] != came.messages[index]:
        return None
    return place

"""A running count over messages: each new message adds to what was counted before it.

Tallies are values that point at the one before, so a session that grows by a turn makes one new tally, a fork
shares its past, and nothing is ever counted again. What is kept is the raw count; calibration is applied by
whoever reads it.
"""

from collections.abc import Iterator

import msgspec

from foveate.tokens.rendering import Measured


class Tally(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The messages so far: their tokens, their images, and the reasoning of the turn under way."""

    messages: int = 0
    tokens: float = 0.0
    upper: float = 0.0
    image_tokens: int = 0
    image_upper: int = 0
    thought_tokens: float = 0.0
    thought_upper: float = 0.0
    certain: bool = True
    unexplained: tuple[str, ...] = ()
    last: Measured | None = None
    before: "Tally | None" = None

    def plus(self, message: Measured, *, keeps_thoughts: bool) -> "Tally":
        """The tally with one more message."""
        forgets = message.opens_turn and not keeps_thoughts
        new = tuple(name for name in message.unexplained if name not in self.unexplained)
        return Tally(
            messages=self.messages + 1,
            tokens=self.tokens + message.tokens,
            upper=self.upper + message.upper,
            image_tokens=self.image_tokens + message.image_tokens,
            image_upper=self.image_upper + message.image_upper,
            thought_tokens=message.thought_tokens + (0 if forgets else self.thought_tokens),
            thought_upper=message.thought_upper + (0 if forgets else self.thought_upper),
            certain=self.certain and message.certain,
            unexplained=self.unexplained + new,
            last=message,
            before=self,
        )

    def each(self, *, keeps_thoughts: bool) -> list[tuple[float, bool]]:
        """Of each message, first to last: the tokens it adds to the whole as it stands, and their certainty."""
        found: list[tuple[float, bool]] = []
        alive = True
        for message in self._backwards():
            thought = message.thought_tokens if alive else 0
            found.append((message.tokens + thought, message.certain))
            alive = alive and (keeps_thoughts or not message.opens_turn)
        return found[::-1]

    def _backwards(self) -> Iterator[Measured]:
        at: Tally | None = self
        while at is not None and at.last is not None:
            yield at.last
            at = at.before


EMPTY = Tally()

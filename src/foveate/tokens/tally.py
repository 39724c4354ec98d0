"""A running count over messages: each new message adds to what was counted before it.

Tallies are values that point at the one before, so a session that grows by a turn makes one new tally, a fork
shares its past, and nothing is ever counted again. What is kept is the raw count; calibration is applied by
whoever reads it. A message is about 250 bytes of tally.
"""

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
    loads: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()
    features: int = 0
    # The parallel calls whose results are one list, and how many of those are still to come.
    parallel_calls: int = 0
    missing_results: int = 0
    # Of the last message, what the sums do not tell.
    last_thought_tokens: float = 0.0
    last_opens_turn: bool = False
    last_is_certain: bool = True
    before: "Tally | None" = None

    def plus(self, message: Measured, *, keeps_thoughts: bool) -> "Tally":
        """The tally with one more message."""
        forgets = message.opens_turn and not keeps_thoughts
        tokens, upper, certain = message.tokens, message.upper, message.certain
        parallel_calls = missing = message.parallel_calls
        if message.entry_tokens and self.missing_results:
            first, other, last = message.entry_tokens
            parallel_calls, missing = self.parallel_calls, self.missing_results - 1
            tokens = first if self.missing_results == parallel_calls else other if missing else last
            upper += tokens - message.tokens + message.entry_margin_tokens
            certain = certain and not message.entry_margin_tokens
        unexplained = self.unexplained
        if message.unexplained:
            unexplained = tuple(dict.fromkeys(unexplained + message.unexplained))
        return Tally(
            messages=self.messages + 1,
            tokens=self.tokens + tokens,
            upper=self.upper + upper,
            image_tokens=self.image_tokens + message.image_tokens,
            image_upper=self.image_upper + message.image_upper,
            thought_tokens=message.thought_tokens + (0 if forgets else self.thought_tokens),
            thought_upper=message.thought_upper + (0 if forgets else self.thought_upper),
            certain=self.certain and certain,
            loads=self.loads + message.loads if message.loads else self.loads,
            unexplained=unexplained,
            features=self.features | message.features,
            parallel_calls=parallel_calls,
            missing_results=missing,
            last_thought_tokens=message.thought_tokens,
            last_opens_turn=message.opens_turn,
            last_is_certain=certain and not message.unexplained,
            before=self,
        )

    def behind(self, head: "Tally") -> "Tally":
        """The tally of these messages behind others, which hold no reasoning."""
        return Tally(
            messages=head.messages + self.messages,
            tokens=head.tokens + self.tokens,
            upper=head.upper + self.upper,
            image_tokens=head.image_tokens + self.image_tokens,
            image_upper=head.image_upper + self.image_upper,
            thought_tokens=self.thought_tokens,
            thought_upper=self.thought_upper,
            certain=head.certain and self.certain,
            loads=head.loads + self.loads,
            unexplained=tuple(dict.fromkeys(head.unexplained + self.unexplained)),
            features=head.features | self.features,
        )

    def each(self, *, keeps_thoughts: bool) -> list[tuple[float, bool]]:
        """Of each message, first to last: the tokens it adds to the whole as it stands, and their certainty."""
        found: list[tuple[float, bool]] = []
        alive = True
        at = self
        while at.before is not None:
            thought = at.last_thought_tokens if alive else 0
            found.append((at.tokens - at.before.tokens + thought, at.last_is_certain))
            alive = alive and (keeps_thoughts or not at.last_opens_turn)
            at = at.before
        return found[::-1]


EMPTY = Tally()

"""A running count over messages: each new message adds to what was counted before it.

Tallies are values that point at the one before, so a session that grows by a turn makes one new tally, a fork
shares its past, and nothing is ever counted again. What is kept is the raw count; calibration is applied by
whoever reads it. A message is about 250 bytes of tally.
"""

import msgspec

from foveate.tokens.rendering.rendering import MeasuredRendering


class Tally(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The messages so far: their tokens, their images, and the reasoning of the turn under way."""

    messages: int = 0
    tokens: float = 0.0
    upper: float = 0.0
    image_tokens: int = 0
    image_upper: int = 0
    thinking_tokens: float = 0.0
    thinking_upper: float = 0.0
    certain: bool = True
    loaded_tools: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()
    features: int = 0
    # The parallel calls whose results are one list, and how many of those are still to come.
    parallel_calls: int = 0
    missing_results: int = 0
    # Of the last message, what the sums do not tell.
    last_thinking_tokens: float = 0.0
    last_opens_turn: bool = False
    last_is_certain: bool = True
    previous: "Tally | None" = None

    def with_message(self, message: MeasuredRendering, *, keeps_thinking: bool) -> "Tally":
        """The tally with one more message."""
        drops_thinking = message.opens_turn and not keeps_thinking
        tokens, upper, certain = message.tokens, message.upper, message.certain
        parallel_calls = missing_results = message.parallel_calls
        if message.entry_tokens and self.missing_results:
            first, other, last = message.entry_tokens
            parallel_calls, missing_results = self.parallel_calls, self.missing_results - 1
            tokens = first if self.missing_results == parallel_calls else other if missing_results else last
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
            thinking_tokens=message.thinking_tokens + (0 if drops_thinking else self.thinking_tokens),
            thinking_upper=message.thinking_upper + (0 if drops_thinking else self.thinking_upper),
            certain=self.certain and certain,
            loaded_tools=self.loaded_tools + message.loaded_tools
            if message.loaded_tools
            else self.loaded_tools,
            unexplained=unexplained,
            features=self.features | message.features,
            parallel_calls=parallel_calls,
            missing_results=missing_results,
            last_thinking_tokens=message.thinking_tokens,
            last_opens_turn=message.opens_turn,
            last_is_certain=certain and not message.unexplained,
            previous=self,
        )

    def after_head(self, head: "Tally") -> "Tally":
        """The tally of these messages behind others, which hold no reasoning."""
        return Tally(
            messages=head.messages + self.messages,
            tokens=head.tokens + self.tokens,
            upper=head.upper + self.upper,
            image_tokens=head.image_tokens + self.image_tokens,
            image_upper=head.image_upper + self.image_upper,
            thinking_tokens=self.thinking_tokens,
            thinking_upper=self.thinking_upper,
            certain=head.certain and self.certain,
            loaded_tools=head.loaded_tools + self.loaded_tools,
            unexplained=tuple(dict.fromkeys(head.unexplained + self.unexplained)),
            features=head.features | self.features,
        )

    def message_tokens(self, *, keeps_thinking: bool) -> list[tuple[float, bool]]:
        """Of each message, first to last: the tokens it adds to the whole as it stands, and their certainty."""
        counts: list[tuple[float, bool]] = []
        counts_thinking = True
        tally = self
        while tally.previous is not None:
            thinking_tokens = tally.last_thinking_tokens if counts_thinking else 0
            counts.append((tally.tokens - tally.previous.tokens + thinking_tokens, tally.last_is_certain))
            counts_thinking = counts_thinking and (keeps_thinking or not tally.last_opens_turn)
            tally = tally.previous
        return counts[::-1]


EMPTY_TALLY = Tally()

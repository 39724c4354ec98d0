"""Running count over the messages of a conversation.

A tally is a value that points at the previous one. So a new turn adds one tally, forks share their past, and
nothing is counted twice. Counts are raw; calibration is applied by the reader. A message takes about 250 bytes.
"""

import msgspec

from foveate.tokens.rendering.rendering import MeasuredRendering


class Tally(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Counts of the messages so far: tokens, images, and thinking of the current turn."""

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
    # Parallel calls whose results form one list, and the number of results that are still missing.
    parallel_calls: int = 0
    missing_results: int = 0
    # Facts about the last message that the sums do not show.
    last_thinking_tokens: float = 0.0
    last_opens_turn: bool = False
    last_is_certain: bool = True
    previous: "Tally | None" = None

    def with_message(self, message: MeasuredRendering, *, keeps_thinking: bool) -> "Tally":
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
        """Combine with the tally of system messages before these. Those contain no thinking."""
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
        """For each message in order: the tokens that it adds, and whether they are certain."""
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

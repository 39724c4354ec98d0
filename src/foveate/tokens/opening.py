"""Everything of a request but its messages, counted."""

import msgspec

from foveate.tokens.rendering import MeasuredRendering


class EnvelopeCount(msgspec.Struct, frozen=True):
    """Everything of a request but its messages, and what that comes to."""

    system: MeasuredRendering
    tools: MeasuredRendering
    frame: MeasuredRendering
    tokens: float
    upper: float
    certain: bool
    unexplained: tuple[str, ...]
    features: frozenset[str]

    @classmethod
    def combine(
        cls,
        system: MeasuredRendering,
        tools: MeasuredRendering,
        frame: MeasuredRendering,
        features: frozenset[str],
    ) -> "EnvelopeCount":
        """These three together."""
        parts = (system, tools, frame)
        return cls(
            system,
            tools,
            frame,
            sum(part.tokens + part.image_tokens for part in parts),
            sum(part.upper + part.image_upper for part in parts),
            all(is_certain(part) for part in parts),
            tuple(dict.fromkeys(name for part in parts for name in part.unexplained)),
            features,
        )


def is_certain(part: MeasuredRendering) -> bool:
    """Whether the rules guess nothing of a part, and it shows all that is billed for it."""
    return part.certain and not part.unexplained

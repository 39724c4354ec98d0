"""Renderings side by side, as one."""

from collections.abc import Iterable

from foveate.tokens.rendering import Rendering


def joined(renderings: Iterable[Rendering]) -> Rendering:
    """All of `renderings` as one: certain only if each is."""
    parts = tuple(renderings)
    return Rendering(
        texts=tuple(text for part in parts for text in part.texts),
        fixed_tokens=sum(part.fixed_tokens for part in parts),
        margin_tokens=sum(part.margin_tokens for part in parts),
        image_tokens=sum(part.image_tokens for part in parts),
        image_margin_tokens=sum(part.image_margin_tokens for part in parts),
        thoughts=tuple(text for part in parts for text in part.thoughts),
        thought_tokens=sum(part.thought_tokens for part in parts),
        thought_margin_tokens=sum(part.thought_margin_tokens for part in parts),
        opens_turn=any(part.opens_turn for part in parts),
        certain=all(part.certain for part in parts),
        loads=tuple(name for part in parts for name in part.loads),
        unexplained=tuple(dict.fromkeys(name for part in parts for name in part.unexplained)),
    )


def roughly(text: str | bytes) -> float:
    """About how many tokens `text` is, for margins only: a token is rarely less than three bytes."""
    return len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")) / 3

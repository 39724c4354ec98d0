"""Renderings side by side, as one."""

from collections.abc import Iterable

from foveate.tokens.rendering import Rendering


def join_renderings(
    renderings: Iterable[Rendering], *, certain: bool = True, opens_turn: bool = False
) -> Rendering:
    """All of `renderings` as one: certain only if each is, and opening a turn if one does."""
    # One loop over all: every message goes through here, and most have two or three of them.
    texts: list[str] = []
    thinking_texts: list[str] = []
    loaded_tools: list[str] = []
    unexplained: list[str] = []
    fixed_tokens = margin_tokens = thinking_tokens = thinking_margin_tokens = 0.0
    image_tokens = image_margin_tokens = parallel_calls = 0
    for part in renderings:
        texts += part.texts
        thinking_texts += part.thinking_texts
        loaded_tools += part.loaded_tools
        unexplained += part.unexplained
        fixed_tokens += part.fixed_tokens
        margin_tokens += part.margin_tokens
        thinking_tokens += part.thinking_tokens
        thinking_margin_tokens += part.thinking_margin_tokens
        image_tokens += part.image_tokens
        image_margin_tokens += part.image_margin_tokens
        opens_turn = opens_turn or part.opens_turn
        certain = certain and part.certain
        parallel_calls += part.parallel_calls
    return Rendering(
        texts=tuple(texts),
        fixed_tokens=fixed_tokens,
        margin_tokens=margin_tokens,
        image_tokens=image_tokens,
        image_margin_tokens=image_margin_tokens,
        thinking_texts=tuple(thinking_texts),
        thinking_tokens=thinking_tokens,
        thinking_margin_tokens=thinking_margin_tokens,
        opens_turn=opens_turn,
        certain=certain,
        loaded_tools=tuple(loaded_tools),
        unexplained=tuple(dict.fromkeys(unexplained)),
        parallel_calls=parallel_calls,
    )


def estimate_margin_tokens(text: str | bytes) -> float:
    """About how many tokens `text` is, for margins only: a token is rarely less than three bytes."""
    return len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")) / 3

"""What a trace says, in words: the same in a terminal and on a page."""

from foveate.session.traces import CacheBreak


def broke_in_words(broke: CacheBreak, why: str, lost: str = "") -> str:
    """Why and where a cache broke, and what that cost; `lost` are the dollars, as they are written there."""
    where = f", at {broke.where}" if broke.where else ""
    if broke.is_planned:
        return f"planned rewrite: {why}{where}; {broke.lost_tokens:,} tokens written again, counted in savings"
    cost = f", {lost}" if lost else ""
    return f"cache broke: {why}{where}; {broke.lost_tokens:,} tokens paid again{cost}"

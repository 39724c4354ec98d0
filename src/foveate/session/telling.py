"""What a trace says, in words: the same in a terminal and on a page."""

from foveate.session.traces import CacheMiss


def describe_cache_break(cache_miss: CacheMiss, why: str, lost: str = "") -> str:
    """Why and where a cache broke, and what that cost; `lost` are the dollars, as they are written there."""
    where = f", at {cache_miss.where}" if cache_miss.where else ""
    if cache_miss.is_planned:
        return f"planned rewrite: {why}{where}; {cache_miss.lost_tokens:,} tokens written again, counted in savings"
    cost = f", {lost}" if lost else ""
    return f"cache broke: {why}{where}; {cache_miss.lost_tokens:,} tokens paid again{cost}"

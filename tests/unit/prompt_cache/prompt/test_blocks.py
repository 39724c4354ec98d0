"""Facts about blocks are looked up by identity."""

from collections.abc import Iterable, Sequence

from foveate import formats
from foveate.model import Block
from foveate.prompt_cache.prompt.blocks import BlockFactsCache


def parse_blocks(texts: Iterable[str]) -> Sequence[Block]:
    messages = [{"role": "user", "content": text} for text in texts]
    return formats.request_blocks(
        formats.parse_request({"model": "claude-sonnet-4-5", "max_tokens": 10, "messages": messages})
    )


def test_facts_are_looked_up_by_identity_and_dropped_eventually() -> None:
    cache = BlockFactsCache(max_blocks=40)
    first_blocks = parse_blocks(map(str, range(30)))
    facts = cache.look_up(first_blocks)

    assert all(
        first_lookup is second_lookup
        for first_lookup, second_lookup in zip(facts, cache.look_up(first_blocks), strict=True)
    )
    for round_ in range(9):
        cache.look_up(parse_blocks(f"{round_} {number}" for number in range(30)))
        assert len(cache) <= 80
    assert cache.look_up(first_blocks)[0] is not facts[0]
    cache.clear()
    assert len(cache) == 0


def test_facts_about_a_block_that_would_fill_the_cache_are_not_kept() -> None:
    cache = BlockFactsCache(max_bytes=4_000)
    small_block, large_block = parse_blocks(["word " * 100, "word " * 400])

    assert cache.look_up([small_block])[0] is cache.look_up([small_block])[0]
    assert cache.look_up([large_block])[0] is not cache.look_up([large_block])[0]
    assert len(cache) == 1

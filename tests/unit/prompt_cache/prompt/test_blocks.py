"""Facts about blocks are looked up by identity."""

from collections.abc import Iterable, Sequence

from foveate import formats
from foveate.model import Block
from foveate.prompt_cache.prompt.blocks import BlockFactsCache


def blocks(texts: Iterable[str]) -> Sequence[Block]:
    said = [{"role": "user", "content": text} for text in texts]
    return formats.request_blocks(
        formats.parse_request({"model": "claude-sonnet-4-5", "max_tokens": 10, "messages": said})
    )


def test_facts_are_looked_up_by_identity_and_dropped_eventually() -> None:
    known = BlockFactsCache(max_blocks=40)
    first = blocks(map(str, range(30)))
    facts = known.look_up(first)

    assert all(one is other for one, other in zip(facts, known.look_up(first), strict=True))
    for round_ in range(9):
        known.look_up(blocks(f"{round_} {n}" for n in range(30)))
        assert len(known) <= 80
    assert known.look_up(first)[0] is not facts[0]
    known.clear()
    assert len(known) == 0


def test_facts_about_a_block_that_would_fill_the_cache_are_not_kept() -> None:
    cache = BlockFactsCache(max_bytes=4_000)
    small, large = blocks(["word " * 100, "word " * 400])

    assert cache.look_up([small])[0] is cache.look_up([small])[0]
    assert cache.look_up([large])[0] is not cache.look_up([large])[0]
    assert len(cache) == 1

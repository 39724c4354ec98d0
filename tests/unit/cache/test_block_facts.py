"""What is known of blocks, by which they are."""

from collections.abc import Iterable, Sequence

from foveate import wire
from foveate.cache.block_facts import KnownBlocks
from foveate.values import Block


def blocks(texts: Iterable[str]) -> Sequence[Block]:
    said = [{"role": "user", "content": text} for text in texts]
    return wire.blocks(wire.read({"model": "claude-sonnet-4-5", "max_tokens": 10, "messages": said}))


def test_blocks_are_known_by_which_they_are_and_forgotten_in_time() -> None:
    known = KnownBlocks(most_blocks=40)
    first = blocks(map(str, range(30)))
    facts = known.of(first)

    assert all(one is other for one, other in zip(facts, known.of(first), strict=True))
    for round_ in range(9):
        known.of(blocks(f"{round_} {n}" for n in range(30)))
        assert len(known) <= 80
    assert known.of(first)[0] is not facts[0]
    known.drop()
    assert len(known) == 0

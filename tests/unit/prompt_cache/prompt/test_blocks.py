"""Facts about blocks are cached by identity, and weights by content. Results are those without caches."""

from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from foveate import formats
from foveate.model import Block, Request, TokenCount
from foveate.prompt_cache.prompt.blocks import BlockFacts, BlockFactsCache, BlockTokens
from foveate.tokens import RequestCount
from foveate.tokens.counter import PartCount


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


def test_facts_about_a_request_that_would_fill_the_cache_are_not_kept() -> None:
    """Regression: the blocks of two requests of 20 MB stayed in memory until others displaced them."""
    cache = BlockFactsCache(max_bytes=4_000)
    blocks = parse_blocks(f"{number} " + "word " * 50 for number in range(10))

    cache.look_up(blocks)
    assert len(cache) == 0
    facts = cache.look_up(blocks[:5])
    assert cache.look_up(blocks[:5])[0] is facts[0]


class FakeCounter:
    """A text is as long as its characters, and messages are as long as a test says."""

    def __init__(self) -> None:
        self.message_tokens: Sequence[int] = ()

    def text(self, text: str) -> TokenCount:
        return TokenCount(len(text), exact=True, upper=len(text))

    def count_request(self, request: Request) -> RequestCount:
        parts = [PartCount(f"messages[{at}]", tokens, True) for at, tokens in enumerate(self.message_tokens)]
        total = sum(self.message_tokens)
        return RequestCount(
            model=request.model, backend="fake", total=TokenCount(total, True, total), parts=tuple(parts)
        )


def read_facts(facts: BlockFacts) -> list[object]:
    return [getattr(facts, name) for name in BlockFacts.__slots__ if name != "token_shares"]


@given(
    lengths=st.lists(st.lists(st.integers(1, 60), min_size=2, max_size=3), min_size=1, max_size=3),
    steps=st.lists(
        st.tuples(st.tuples(*[st.integers(0, 90)] * 3), st.sets(st.integers(0, 8))), min_size=2, max_size=5
    ),
    capacity=st.integers(1, 12),
)
def test_caches_change_no_facts_and_no_shares(
    lengths: list[list[int]], steps: list[tuple[tuple[int, int, int], set[int]]], capacity: int
) -> None:
    """The twins: new facts, divided by a new instance. Some blocks are dropped, as some providers do."""
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "x" * length} for length in message]}
        for message in lengths
    ]
    request = formats.parse_request({"model": "claude-sonnet-4-5", "max_tokens": 10, "messages": messages})
    counter, facts_cache = FakeCounter(), BlockFactsCache(capacity)
    tokens = BlockTokens(counter, capacity=capacity)
    for message_tokens, dropped in steps:
        counter.message_tokens = message_tokens[: len(lengths)]
        all_blocks = formats.request_blocks(request)
        blocks = [block for at, block in enumerate(all_blocks) if at not in dropped]
        new, cached = [BlockFacts(block) for block in blocks], facts_cache.look_up(blocks)

        assert list(map(read_facts, cached)) == list(map(read_facts, new))
        shares = tokens.divide_request_facts(request, cached)
        assert shares == BlockTokens(counter).divide_request_facts(request, new)

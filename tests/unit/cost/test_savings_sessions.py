"""Savings of whole sessions: call by call they add up to what the session would have cost without its edits."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import takewhile

from hypothesis import event, example, given
from hypothesis import strategies as st

from foveate.cost.ledger import Removed
from foveate.cost.savings import savings_of
from foveate.values import CacheUsage, Usage
from tests.unit.cost.test_savings import priced

PRICE = priced()


@dataclass(frozen=True, slots=True)
class Block:
    """Some tokens of a prompt; two of the same name are the same bytes."""

    name: str
    tokens: int


def sent(blocks: Sequence[Block], before: Sequence[Block]) -> Usage:
    """The bill of a call that has all of its prompt kept, straight after another one."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(blocks, before, strict=False))
    read = size([block for block, _ in same])
    return Usage(cache=CacheUsage(read=read, written_5m=size(blocks) - read), output_tokens=10)


def size(blocks: Sequence[Block]) -> int:
    return sum(block.tokens for block in blocks)


def cost(usage: Usage) -> Decimal:
    found = PRICE(usage)
    assert found is not None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """From call `at` on: all blocks up to `upto` folded, or the one at `upto` cut, to so many tokens."""

    at: int
    upto: int
    to_tokens: int


def edited(
    blocks: Sequence[Block], folds: Sequence[Edit], cuts: Sequence[Edit]
) -> tuple[list[Block], int, int]:
    """What is sent of a prompt, and how many tokens folds and cuts took of it; a fold takes in what was cut."""
    found = list(blocks)
    cut_tokens = 0
    upto = max((fold.upto for fold in folds), default=0)
    for cut in cuts:
        if upto < cut.upto < len(found):
            shorter = min(cut.to_tokens, found[cut.upto].tokens)
            cut_tokens += found[cut.upto].tokens - shorter
            found[cut.upto] = Block(f"cut {cut.upto}", shorter)
    if not upto:
        return found, 0, cut_tokens
    folded = found[1 : upto + 1]
    to_tokens = min(folds[-1].to_tokens, size(folded))
    summary = Block(f"summary up to {upto}", to_tokens)
    return [found[0], summary, *found[upto + 1 :]], size(folded) - to_tokens, cut_tokens


TURNS = st.lists(st.integers(1, 5_000), min_size=3, max_size=8)
EDITS = st.lists(
    st.builds(Edit, at=st.integers(1, 7), upto=st.integers(1, 6), to_tokens=st.integers(1, 2_000)), max_size=2
)


@given(TURNS, EDITS, EDITS)
@example([3_000, 4_000, 900, 800], [Edit(at=2, upto=1, to_tokens=100)], [])
@example([3_000, 4_000, 900, 800], [Edit(at=3, upto=1, to_tokens=9)], [Edit(at=2, upto=2, to_tokens=5)])
@example([3_000, 4_000, 900, 800], [Edit(at=2, upto=1, to_tokens=9)], [Edit(at=2, upto=2, to_tokens=5)])
@example([3_000, 9, 9, 8], [Edit(at=1, upto=1, to_tokens=9), Edit(at=3, upto=2, to_tokens=5)], [])
def test_savings_always_add_up_to_what_the_session_would_have_cost_without_them(
    turns: Sequence[int], folds: Sequence[Edit], cuts: Sequence[Edit]
) -> None:
    whole = [Block("system", 2_000), *(Block(f"turn {number}", size) for number, size in enumerate(turns))]
    folds = sorted(folds, key=lambda fold: (fold.at, fold.upto))
    # A fold takes in what was cut in front of it: then that is the fold's doing, and no cut any more.
    cuts = [cut for cut in cuts if all(cut.upto > fold.upto for fold in folds)][:1]
    bare = edit_bills = saved = Decimal(0)
    before: list[Block] = []
    unedited: list[Block] = []
    folded_before = cut_before = 0
    for number in range(1, len(turns) + 1):
        prompt = whole[: number + 1]
        in_force = [fold for fold in folds if fold.at <= number and fold.upto < len(prompt)]
        request, folded, cut = edited(prompt, in_force, [cut for cut in cuts if cut.at <= number])
        usage = sent(request, before)

        def new(what: str, request: Sequence[Block] = request, before: Sequence[Block] = before) -> bool:
            """Whether something stands in this request that did not in the one before."""
            return any(block.name.startswith(what) for block in request if block not in before)

        savings = savings_of(
            usage,
            PRICE,
            folds=Removed(tokens=folded, is_new=new("summary"), earlier_tokens=folded_before),
            cuts=Removed(tokens=cut, is_new=new("cut"), earlier_tokens=cut_before),
            known_tokens=size(before),
            was_warm=number > 1,
        )
        event(f"folded: {folded > 0}, cut: {cut > 0}")
        assert savings.folds is not None
        assert savings.cuts is not None
        saved += savings.folds + savings.cuts
        bare += cost(sent(prompt, unedited))
        edit_bills += cost(usage)
        before, unedited = request, list(prompt)
        folded_before, cut_before = folded, cut

    assert bare == edit_bills + saved

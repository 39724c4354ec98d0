"""Blocks that Foveate adds to a request are sorted most stable first."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.budget.sections import Stability
from foveate.errors import BadOption
from foveate.prompt_cache.stable_order import (
    SECTION_NAMES,
    InjectedBlock,
    SectionLayer,
    find_layer,
    flatten_blocks,
    order_blocks,
    split_around_history,
)

ORDER = list(SectionLayer)


def make_block(name: str, layer: SectionLayer, text: str = "x") -> InjectedBlock:
    return InjectedBlock(name=name, layer=layer, text=text)


def block_names(blocks: tuple[InjectedBlock, ...]) -> list[str]:
    return [block.name for block in blocks]


block_lists = st.lists(
    st.builds(
        make_block,
        st.sampled_from([name for known in SECTION_NAMES.values() for name in known]) | st.text(max_size=3),
        st.sampled_from(list(SECTION_NAMES)),
        st.sampled_from(["", " ", "a", "b\n\nc"]),
    ),
    max_size=12,
)


def test_layers_are_ordered_from_the_most_to_the_least_stable() -> None:
    assert ORDER == ["tools", "workspace", "skills", "binding", "history", "turn"]


def test_layers_and_sections_use_the_same_words() -> None:
    assert {layer.stability for layer in SectionLayer} == set(Stability)


def test_blocks_are_sorted_most_stable_first() -> None:
    blocks = [
        make_block("time", SectionLayer.TURN),
        make_block("language", SectionLayer.BINDING),
        make_block("workspace/MEMORY.md", SectionLayer.WORKSPACE),
        make_block("skills", SectionLayer.SKILLS),
        make_block("context", SectionLayer.TURN),
        make_block("peers", SectionLayer.BINDING),
        make_block("workspace/notes/house.md", SectionLayer.WORKSPACE),
        make_block("workspace/IDENTITY.md", SectionLayer.WORKSPACE),
    ]

    assert block_names(order_blocks(blocks)) == [
        "workspace/IDENTITY.md",
        "workspace/MEMORY.md",
        "workspace/notes/house.md",
        "skills",
        "peers",
        "language",
        "context",
        "time",
    ]


@pytest.mark.parametrize("layer", [SectionLayer.TOOLS, SectionLayer.HISTORY])
def test_texts_in_the_layers_of_tools_and_history_are_rejected(layer: SectionLayer) -> None:
    with pytest.raises(BadOption, match=f"not {layer}"):
        make_block("x", layer)


@pytest.mark.parametrize(
    ("name", "stability", "layer"),
    [
        ("workspace/SOUL.md", "static", SectionLayer.WORKSPACE),
        ("house_rules", Stability.STATIC, SectionLayer.WORKSPACE),
        ("skills", "static", SectionLayer.SKILLS),
        ("peers", "session", SectionLayer.BINDING),
        ("anything", "session", SectionLayer.BINDING),
        ("time", "turn", SectionLayer.TURN),
        ("identity", "turn", SectionLayer.TURN),
        ("context", "static", SectionLayer.WORKSPACE),
        ("skills", "session", SectionLayer.BINDING),
    ],
)
def test_a_section_gets_its_layer_by_its_stability(name: str, stability: str, layer: SectionLayer) -> None:
    assert find_layer(name, stability) is layer


def test_an_unknown_stability_is_rejected() -> None:
    with pytest.raises(BadOption, match=r"peers\.stability must be one of static, session, turn"):
        find_layer("peers", "forever")


@given(blocks=block_lists)
def test_always_no_block_is_lost_or_precedes_a_more_stable_one(
    blocks: list[InjectedBlock],
) -> None:
    ordered = order_blocks(blocks)

    assert Counter(ordered) == Counter(blocks)
    for before, after in pairwise(ordered):
        assert ORDER.index(before.layer) <= ORDER.index(after.layer)
    assert order_blocks(ordered) == ordered


@given(blocks=block_lists, data=st.data())
def test_always_blocks_with_known_names_have_one_order_whatever_the_input_order(
    blocks: list[InjectedBlock], data: st.DataObject
) -> None:
    known_blocks = list(
        {block.name: block for block in blocks if block.name in SECTION_NAMES[block.layer]}.values()
    )

    assert order_blocks(data.draw(st.permutations(known_blocks))) == order_blocks(known_blocks)


@given(blocks=block_lists)
def test_always_only_blocks_that_change_each_turn_follow_the_history(
    blocks: list[InjectedBlock],
) -> None:
    before, after = split_around_history(blocks)

    assert before + after == order_blocks(blocks)
    assert {block.layer for block in after} <= {SectionLayer.TURN}
    assert SectionLayer.TURN not in {block.layer for block in before}


def test_only_layers_that_outlive_a_turn_are_long_lived() -> None:
    assert [layer for layer in SectionLayer if not layer.is_long_lived] == [
        SectionLayer.HISTORY,
        SectionLayer.TURN,
    ]


def test_flattened_blocks_are_one_text_on_each_side_of_the_history() -> None:
    flattened = flatten_blocks(
        [
            make_block("time", SectionLayer.TURN, "It is nine."),
            make_block("skills", SectionLayer.SKILLS, "You can cook."),
            make_block("soul", SectionLayer.WORKSPACE, ""),
            make_block("identity", SectionLayer.WORKSPACE, "You are Ana."),
        ],
        provider="gemini",
    )

    assert flattened.before == "You are Ana.\n\nYou can cook."
    assert flattened.after == "It is nine."
    assert flattened.note.startswith("gemini does not accept content blocks")


def test_a_single_text_loses_nothing_by_being_flattened() -> None:
    flattened = flatten_blocks(
        [make_block("identity", SectionLayer.WORKSPACE, "You are Ana.")], provider="gemini"
    )

    assert (flattened.before, flattened.after, flattened.note) == ("You are Ana.", "", "")


@given(blocks=block_lists)
def test_always_every_text_is_in_the_flattened_one(blocks: list[InjectedBlock]) -> None:
    flattened = flatten_blocks(blocks, provider="x")
    text = "".join(block.text for block in order_blocks(blocks))

    assert "".join((flattened.before + flattened.after).split()) == "".join(text.split())

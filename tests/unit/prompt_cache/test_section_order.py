"""Blocks that Foveate adds to a request are sorted most stable first."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.budget.sections import Stability
from foveate.errors import BadOption
from foveate.prompt_cache.section_order import (
    SECTION_NAMES,
    InjectedBlock,
    SectionLayer,
    find_layer,
    flatten_blocks,
    order_blocks,
    split_around_history,
)
from tests.support.harness.example_limits import limit_examples

ORDER = list(SectionLayer)


def block(name: str, layer: SectionLayer, text: str = "x") -> InjectedBlock:
    return InjectedBlock(name=name, layer=layer, text=text)


def names(blocks: tuple[InjectedBlock, ...]) -> list[str]:
    return [each.name for each in blocks]


blocks = st.lists(
    st.builds(
        block,
        st.sampled_from([name for known in SECTION_NAMES.values() for name in known]) | st.text(max_size=3),
        st.sampled_from(list(SECTION_NAMES)),
        st.sampled_from(["", " ", "a", "b\n\nc"]),
    ),
    max_size=12,
)


def test_layers_go_from_what_hardly_changes_to_what_always_does() -> None:
    assert ORDER == ["tools", "workspace", "skills", "binding", "history", "turn"]


def test_layers_and_sections_use_the_same_words() -> None:
    assert {layer.stability for layer in SectionLayer} == set(Stability)


def test_blocks_are_sorted_most_stable_first() -> None:
    given_blocks = [
        block("time", SectionLayer.TURN),
        block("language", SectionLayer.BINDING),
        block("workspace/MEMORY.md", SectionLayer.WORKSPACE),
        block("skills", SectionLayer.SKILLS),
        block("context", SectionLayer.TURN),
        block("peers", SectionLayer.BINDING),
        block("workspace/notes/house.md", SectionLayer.WORKSPACE),
        block("workspace/IDENTITY.md", SectionLayer.WORKSPACE),
    ]

    assert names(order_blocks(given_blocks)) == [
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
        block("x", layer)


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
    with pytest.raises(BadOption, match=r"peers\.stability is one of static, session, turn"):
        find_layer("peers", "forever")


@settings(max_examples=limit_examples(80))
@given(given_blocks=blocks)
def test_always_no_block_is_lost_or_precedes_a_more_stable_one(
    given_blocks: list[InjectedBlock],
) -> None:
    found = order_blocks(given_blocks)

    assert Counter(found) == Counter(given_blocks)
    for before, after in pairwise(found):
        assert ORDER.index(before.layer) <= ORDER.index(after.layer)
    assert order_blocks(found) == found


@settings(max_examples=limit_examples(80))
@given(given_blocks=blocks, data=st.data())
def test_always_blocks_of_known_names_have_one_order_however_they_come(
    given_blocks: list[InjectedBlock], data: st.DataObject
) -> None:
    known = list({each.name: each for each in given_blocks if each.name in SECTION_NAMES[each.layer]}.values())

    assert order_blocks(data.draw(st.permutations(known))) == order_blocks(known)


@settings(max_examples=limit_examples(100))
@given(given_blocks=blocks)
def test_always_only_what_changes_each_turn_follows_the_history(
    given_blocks: list[InjectedBlock],
) -> None:
    before, after = split_around_history(given_blocks)

    assert before + after == order_blocks(given_blocks)
    assert {each.layer for each in after} <= {SectionLayer.TURN}
    assert SectionLayer.TURN not in {each.layer for each in before}


def test_only_layers_that_outlive_a_turn_are_long_lived() -> None:
    assert [layer for layer in SectionLayer if not layer.is_long_lived] == [
        SectionLayer.HISTORY,
        SectionLayer.TURN,
    ]


def test_flattened_blocks_are_one_text_on_each_side_of_the_history() -> None:
    flat = flatten_blocks(
        [
            block("time", SectionLayer.TURN, "It is nine."),
            block("skills", SectionLayer.SKILLS, "You can cook."),
            block("soul", SectionLayer.WORKSPACE, ""),
            block("identity", SectionLayer.WORKSPACE, "You are Ana."),
        ],
        provider="gemini",
    )

    assert flat.before == "You are Ana.\n\nYou can cook."
    assert flat.after == "It is nine."
    assert flat.note.startswith("gemini takes no blocks")


def test_a_single_text_loses_nothing_by_being_flattened() -> None:
    flat = flatten_blocks([block("identity", SectionLayer.WORKSPACE, "You are Ana.")], provider="gemini")

    assert (flat.before, flat.after, flat.note) == ("You are Ana.", "", "")


@settings(max_examples=limit_examples(100))
@given(given_blocks=blocks)
def test_always_every_text_is_in_the_flattened_one(given_blocks: list[InjectedBlock]) -> None:
    flat = flatten_blocks(given_blocks, provider="x")
    said = "".join(each.text for each in order_blocks(given_blocks))

    assert "".join((flat.before + flat.after).split()) == "".join(said.split())

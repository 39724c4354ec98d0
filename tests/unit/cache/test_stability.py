"""What Foveate puts into a request stands most stable first."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.budget.sections import Stability
from foveate.cache.stability import (
    NAMES,
    InjectedBlock,
    Layer,
    around_history,
    flattened,
    layer_of,
    ordered,
)
from foveate.errors import BadOption
from tests.support.examples import limit_examples

ORDER = list(Layer)


def block(name: str, layer: Layer, text: str = "x") -> InjectedBlock:
    return InjectedBlock(name=name, layer=layer, text=text)


def names(blocks: tuple[InjectedBlock, ...]) -> list[str]:
    return [each.name for each in blocks]


blocks = st.lists(
    st.builds(
        block,
        st.sampled_from([name for known in NAMES.values() for name in known]) | st.text(max_size=3),
        st.sampled_from(list(NAMES)),
        st.sampled_from(["", " ", "a", "b\n\nc"]),
    ),
    max_size=12,
)


def test_layers_go_from_what_hardly_changes_to_what_always_does() -> None:
    assert ORDER == ["tools", "workspace", "skills", "binding", "history", "turn"]


def test_layers_and_sections_use_the_same_words() -> None:
    assert {layer.stability for layer in Layer} == set(Stability)


def test_blocks_stand_most_stable_first() -> None:
    given_blocks = [
        block("time", Layer.TURN),
        block("language", Layer.BINDING),
        block("workspace/MEMORY.md", Layer.WORKSPACE),
        block("skills", Layer.SKILLS),
        block("context", Layer.TURN),
        block("peers", Layer.BINDING),
        block("workspace/notes/house.md", Layer.WORKSPACE),
        block("workspace/IDENTITY.md", Layer.WORKSPACE),
    ]

    assert names(ordered(given_blocks)) == [
        "workspace/IDENTITY.md",
        "workspace/MEMORY.md",
        "workspace/notes/house.md",
        "skills",
        "peers",
        "language",
        "context",
        "time",
    ]


@pytest.mark.parametrize("layer", [Layer.TOOLS, Layer.HISTORY])
def test_no_text_is_put_among_tools_or_messages(layer: Layer) -> None:
    with pytest.raises(BadOption, match=f"not {layer}"):
        block("x", layer)


@pytest.mark.parametrize(
    ("name", "stability", "layer"),
    [
        ("workspace/SOUL.md", "static", Layer.WORKSPACE),
        ("house_rules", Stability.STATIC, Layer.WORKSPACE),
        ("skills", "static", Layer.SKILLS),
        ("peers", "session", Layer.BINDING),
        ("anything", "session", Layer.BINDING),
        ("time", "turn", Layer.TURN),
        ("identity", "turn", Layer.TURN),
        ("context", "static", Layer.WORKSPACE),
        ("skills", "session", Layer.BINDING),
    ],
)
def test_a_section_finds_its_layer_by_how_long_it_stays_the_same(
    name: str, stability: str, layer: Layer
) -> None:
    assert layer_of(name, stability) is layer


def test_a_stability_that_there_is_not_is_refused() -> None:
    with pytest.raises(BadOption, match=r"peers\.stability is one of static, session, turn"):
        layer_of("peers", "forever")


@settings(max_examples=limit_examples(80))
@given(given_blocks=blocks)
def test_always_nothing_is_lost_and_no_block_stands_before_a_more_stable_one(
    given_blocks: list[InjectedBlock],
) -> None:
    found = ordered(given_blocks)

    assert Counter(found) == Counter(given_blocks)
    for before, after in pairwise(found):
        assert ORDER.index(before.layer) <= ORDER.index(after.layer)
    assert ordered(found) == found


@settings(max_examples=limit_examples(80))
@given(given_blocks=blocks, data=st.data())
def test_always_blocks_of_known_names_have_one_order_however_they_come(
    given_blocks: list[InjectedBlock], data: st.DataObject
) -> None:
    known = list({each.name: each for each in given_blocks if each.name in NAMES[each.layer]}.values())

    assert ordered(data.draw(st.permutations(known))) == ordered(known)


@settings(max_examples=limit_examples(100))
@given(given_blocks=blocks)
def test_always_what_changes_each_turn_stands_behind_the_history_and_nothing_else_does(
    given_blocks: list[InjectedBlock],
) -> None:
    before, after = around_history(given_blocks)

    assert before + after == ordered(given_blocks)
    assert {each.layer for each in after} <= {Layer.TURN}
    assert Layer.TURN not in {each.layer for each in before}


def test_only_what_outlives_its_turn_is_kept_for_long() -> None:
    assert [layer for layer in Layer if not layer.is_long_lived] == [Layer.HISTORY, Layer.TURN]


def test_where_no_blocks_are_taken_they_are_one_text_on_each_side_of_the_history() -> None:
    flat = flattened(
        [
            block("time", Layer.TURN, "It is nine."),
            block("skills", Layer.SKILLS, "You can cook."),
            block("soul", Layer.WORKSPACE, ""),
            block("identity", Layer.WORKSPACE, "You are Ana."),
        ],
        provider="gemini",
    )

    assert flat.before == "You are Ana.\n\nYou can cook."
    assert flat.after == "It is nine."
    assert flat.note.startswith("gemini takes no blocks")


def test_a_single_text_loses_nothing_by_being_no_block() -> None:
    flat = flattened([block("identity", Layer.WORKSPACE, "You are Ana.")], provider="gemini")

    assert (flat.before, flat.after, flat.note) == ("You are Ana.", "", "")


@settings(max_examples=limit_examples(100))
@given(given_blocks=blocks)
def test_always_every_text_is_in_the_flat_one(given_blocks: list[InjectedBlock]) -> None:
    flat = flattened(given_blocks, provider="x")
    said = "".join(each.text for each in ordered(given_blocks))

    assert "".join((flat.before + flat.after).split()) == "".join(said.split())

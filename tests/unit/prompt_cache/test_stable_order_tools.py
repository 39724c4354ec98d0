"""The same tools are sent in the same order; lists of a client that keeps its order are not changed."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.model import Tool, Ttl
from foveate.prompt_cache.stable_order import MAX_TOOL_SETS, ListedTool, ToolList, ToolOrders, sort_tools


def list_tools(names: Sequence[str]) -> list[ListedTool]:
    return [ListedTool(name=name, content=f'{{"name":"{name}"}}'.encode()) for name in names]


def stabilize_all(lists: Sequence[Sequence[ListedTool]]) -> list[list[ListedTool]]:
    """Return the list that is sent for each list of a session, in order."""
    orders = ToolOrders()
    sent_lists = []
    for tools in lists:
        edit, orders = orders.stabilize(ToolList.from_tools(tools))
        sent_lists.append([tools[index] for index in edit.order] if edit else list(tools))
    return sent_lists


def stabilize_names(*lists: str) -> list[str]:
    return [
        "".join(tool.name for tool in tools) for tools in stabilize_all([list_tools(names) for names in lists])
    ]


def test_a_list_that_foveate_builds_is_sorted_by_name() -> None:
    def tool(name: str, raw: bytes = b"{}") -> Tool:
        return Tool(kind="function", name=name, description="", parameters=b"", raw=raw)

    tools = [tool("b"), tool("a", b"2"), tool(""), tool("a", b"1")]

    assert [(sorted_tool.name, sorted_tool.raw) for sorted_tool in sort_tools(tools)] == [
        ("", b"{}"),
        ("a", b"1"),
        ("a", b"2"),
        ("b", b"{}"),
    ]


def test_the_first_list_is_unchanged() -> None:
    edit, _ = ToolOrders().stabilize(ToolList.from_tools(list_tools("cab")))

    assert edit is None


def test_the_same_tools_in_another_order_get_the_order_they_had_first() -> None:
    assert stabilize_names("cab", "abc", "bca", "cab") == ["cab", "cab", "cab", "cab"]


def test_an_edit_has_a_reason() -> None:
    _, orders = ToolOrders().stabilize(ToolList.from_tools(list_tools("ab")))
    edit, _ = orders.stabilize(ToolList.from_tools(list_tools("ba")))

    assert edit is not None
    assert edit.order == (1, 0)
    assert "first sent these tools" in edit.reason


def test_tools_that_are_added_or_left_out_are_not_moved() -> None:
    assert stabilize_names("ac", "abc", "acd", "c", "") == ["ac", "abc", "acd", "c", ""]


@pytest.mark.parametrize(
    ("first", "second"), [("ab", "bac"), ("abc", "ca"), ("abc", "xcbya"), ("abcd", "dca"), ("ab", "ba c")]
)
def test_a_set_that_was_not_sent_before_is_unchanged(first: str, second: str) -> None:
    assert stabilize_names(first, second, second) == [first, second, second]


def test_a_tool_set_that_is_sent_again_gets_its_own_order() -> None:
    # Plan mode has no x; the prefix with x may still be cached.
    assert stabilize_names("axb", "ab", "abx") == ["axb", "ab", "axb"]


def test_requests_without_tools_in_between_change_nothing() -> None:
    assert stabilize_names("ab", "", "ba") == ["ab", "", "ab"]


def test_a_tool_whose_description_changed_keeps_its_position() -> None:
    first = list_tools("abc")
    changed_tools = [ListedTool(name="c", content=b"other"), *first[:2]]

    assert stabilize_all([first, changed_tools])[1] == [*first[:2], changed_tools[0]]


def test_tools_without_a_unique_name_are_distinguished_by_content() -> None:
    tools = [
        ListedTool(name=name, content=content)
        for name, content in [("", b"web"), ("", b"code"), ("a", b"1"), ("a", b"2")]
    ]

    assert stabilize_all([tools, tools[::-1]])[1] == tools


def test_a_tool_that_is_listed_twice_stays_twice() -> None:
    tools = list_tools("aba")

    assert stabilize_all([tools, list_tools("baa")])[1] == tools


def test_breakpoints_that_would_get_out_of_order_prevent_the_edit() -> None:
    def with_breakpoint(name: str, ttl: Ttl) -> ListedTool:
        return ListedTool(name=name, content=name.encode(), breakpoint_ttl=ttl)

    first = list_tools("ab")
    reordered = [with_breakpoint("b", Ttl.ONE_HOUR), with_breakpoint("a", Ttl.FIVE_MINUTES)]
    same_ttl = [with_breakpoint("b", Ttl.ONE_HOUR), with_breakpoint("a", Ttl.ONE_HOUR)]

    assert stabilize_all([first, reordered])[1] == reordered
    assert stabilize_all([first, same_ttl])[1] == same_ttl[::-1]


def test_five_hundred_tools_are_put_in_order() -> None:
    tools = list_tools([f"tool_{number}" for number in range(500)])
    shuffled = tools[:]
    Random(5).shuffle(shuffled)

    assert stabilize_all([tools, shuffled])[1] == tools


def test_a_name_that_cannot_be_encoded_is_accepted() -> None:
    tools = [ListedTool(name="\ud83d", content=b"1"), ListedTool(name="a", content=b"2")]

    assert stabilize_all([tools, tools[::-1]])[1] == tools


any_tools = st.lists(
    st.builds(ListedTool, name=st.sampled_from(["", *"abcd"]), content=st.sampled_from([b"1", b"2", b"3"])),
    max_size=7,
)


@given(lists=st.lists(any_tools, max_size=6))
def test_always_every_tool_is_sent_and_none_twice(lists: list[list[ListedTool]]) -> None:
    def contents(tools: Sequence[ListedTool]) -> list[tuple[str, bytes]]:
        return sorted((tool.name, tool.content) for tool in tools)

    assert list(map(contents, stabilize_all(lists))) == list(map(contents, lists))


@given(tools=any_tools, data=st.data())
def test_always_the_same_tools_have_the_same_order(tools: list[ListedTool], data: st.DataObject) -> None:
    lists = [tools, *data.draw(st.lists(st.permutations(tools), max_size=4))]

    for sent_tools in stabilize_all(lists):
        assert sent_tools == tools


@given(lists=st.lists(st.lists(st.sampled_from("abcd"), unique=True), max_size=8))
def test_always_a_list_is_changed_only_if_the_same_set_was_sent_in_another_order(
    lists: list[list[str]],
) -> None:
    orders = ToolOrders()
    earlier_lists: list[list[str]] = []
    for names in lists:
        edit, orders = orders.stabilize(ToolList.from_tools(list_tools(names)))
        if edit is not None:
            assert any(set(earlier) == set(names) and earlier != names for earlier in earlier_lists)
        earlier_lists.append(names)


@given(
    tools=st.lists(st.sampled_from("abcdefgh"), unique=True),
    data=st.data(),
)
def test_always_a_session_that_keeps_its_order_is_unchanged(tools: list[str], data: st.DataObject) -> None:
    subsets = data.draw(st.lists(st.sets(st.sampled_from(tools)) if tools else st.just(set()), max_size=8))
    lists = [list_tools([name for name in tools if name in subset]) for subset in subsets]
    orders = ToolOrders()
    for tool_list in lists:
        edit, orders = orders.stabilize(ToolList.from_tools(tool_list))

        assert edit is None
        assert len(orders.known_orders) <= MAX_TOOL_SETS

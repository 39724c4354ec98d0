
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.errors import BadOption
from foveate.memory.nodes import Node
from foveate.memory.queries import Query, active_projects, filter_nodes, recent_tasks
from tests.support.scenarios.memory_nodes import NodeSpec, build_test_nodes, closed_at, node_titles

VIENNA = ZoneInfo("Europe/Vienna")
NOW = datetime(2026, 11, 15, 9, 12, tzinfo=VIENNA)
GARDEN = build_test_nodes(
    NodeSpec(title="Roses", content="They need *water* every\n  second day.", tags=("Garden", "flowers")),
    NodeSpec(title="Prune", level=2, todo="TODO"),
    NodeSpec(title="Buy shears", level=2, todo="CANCELLED", is_done=True, properties={"TYPE": "Errand"}),
    NodeSpec(title="House", tags=("gardening", "project"), todo="WAITING"),
    NodeSpec(title="Cellar", level=2, content="Straße, Äpfel", todo="DONE", is_done=True),
)


def asked(nodes: list[Node] = GARDEN, **said: Any) -> list[str]:
    return node_titles(filter_nodes(nodes, Query.parse(now=NOW, **said)))


def test_a_query_that_asks_nothing_finds_everything_in_order() -> None:
    assert asked() == ["notes", "Roses", "Prune", "Buy shears", "House", "Cellar"]


@pytest.mark.parametrize("tag", ["garden", ":garden:", "GARDEN", "#garden", " garden ", ":garden:FLOWERS:"])
def test_a_tag_matches_whole_with_or_without_colons_in_any_case_and_is_inherited(tag: str) -> None:
    assert asked(tag=tag) == ["Roses", "Prune", "Buy shears"]


def test_a_tag_matches_one_that_looks_the_same_as_the_gate_sees_it() -> None:
    """Regression: a decomposed accent or a soft hyphen made another tag."""
    nodes = build_test_nodes(NodeSpec(title="Menu", tags=("cafe\u0301", "din\u00adner")))

    assert asked(nodes, tag="café") == asked(nodes, tag="dinner") == ["Menu"]


def test_of_several_tags_all_are_wanted() -> None:
    assert asked(tag="garden:project") == []


@pytest.mark.parametrize(
    ("todo", "expected"),
    [
        ("todo", ["Prune"]),
        ("Waiting", ["House"]),
        ("CANCELLED", ["Buy shears"]),
        ("any", ["Prune", "Buy shears", "House", "Cellar"]),
        ("open", ["Prune", "House"]),
        ("DONE", ["Buy shears", "Cellar"]),
        ("NEXT", []),
    ],
)
def test_a_state_is_found_by_its_name_or_its_group(todo: str, expected: list[str]) -> None:
    assert asked(todo=todo) == expected


def test_a_state_that_is_called_as_a_group_is_found_too() -> None:
    nodes = build_test_nodes(
        NodeSpec(title="Odd", todo="OPEN", is_done=True), NodeSpec(title="Even", todo="TODO")
    )

    assert asked(nodes, todo="open") == ["Odd", "Even"]


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        ("document", ["notes"]),
        ("Task", ["Prune", "Cellar"]),
        ("errand", ["Buy shears"]),
        ("project", ["House"]),
        ("note", ["Roses"]),
    ],
)
def test_a_type_is_found_in_any_case(type_: str, expected: list[str]) -> None:
    assert asked(type=type_) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("water", ["Roses"]),
        ("WAT", ["Roses"]),
        ("day roses", ["Roses"]),
        ("roses cellar", []),
        ('"every second"', ["Roses"]),
        ('"second every"', []),
        ('"roses they"', []),
        ("STRASSE", ["Cellar"]),
        ("a\u0308pfel", ["Cellar"]),
        ("*water*", ["Roses"]),
        (".*", []),
    ],
)
def test_every_word_of_a_text_and_every_phrase_has_to_stand_in_title_or_content(
    text: str, expected: list[str]
) -> None:
    assert asked(text=text) == expected


def test_the_text_of_what_stands_below_is_not_a_nodes_own() -> None:
    assert asked(text="shears") == ["Buy shears"]


def test_all_that_is_asked_has_to_match() -> None:
    assert asked(tag="garden", todo="open") == ["Prune"]


def dated(*days: str) -> list[Node]:
    """A node for each day, with the day as its title."""
    return build_test_nodes(*(NodeSpec(title=day, properties={"MODIFIED": day}) for day in days))[1:]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"since": "2026-11-01"}, ["2026-11-01", "2026-11-01 23:59:59", "2026-11-08 09:12"]),
        ({"until": "2026-11-01"}, ["2026-10-31", "2026-11-01", "2026-11-01 23:59:59"]),
        ({"since": "2026-11-01", "until": "2026-11-01"}, ["2026-11-01", "2026-11-01 23:59:59"]),
        ({"since": "7d"}, ["2026-11-08 09:12"]),
        ({"since": "1W"}, ["2026-11-08 09:12"]),
        ({"since": "168h"}, ["2026-11-08 09:12"]),
        ({"since": "167h"}, []),
        ({"until": "2w"}, ["2026-10-31", "2026-11-01"]),
        ({"since": "2026-11-08T09:13"}, []),
        ({"since": "2026-11-08 08:12+00:00"}, ["2026-11-08 09:12"]),
        ({"since": "2026-11-08T08:12:01Z"}, []),
    ],
)
def test_since_and_until_include_what_they_name(said: dict[str, str], expected: list[str]) -> None:
    nodes = dated("2026-10-31", "2026-11-01", "2026-11-01 23:59:59", "2026-11-08 09:12")

    assert asked(nodes, **said) == expected


def test_hours_ago_have_passed_also_where_clocks_were_changed() -> None:
    now = datetime(2026, 10, 25, 9, 0, tzinfo=VIENNA)  # 02:00 to 03:00 occurred twice that night
    nodes = dated("2026-10-25 00:00", "2026-10-24 23:00")

    assert node_titles(filter_nodes(nodes, Query.parse(since="10h", now=now))) == ["2026-10-25 00:00"]


@pytest.mark.parametrize("name", ["since", "until"])
@pytest.mark.parametrize(
    "said",
    [
        "",
        "yesterday",
        "7",
        "d",
        "-7d",
        "7m",
        "2026-02-31",
        "2026-11",
        "2026-W45",
        "20261101",
        "99999999w",
        "0001-01-01T00:00+12:00",
        "9" * 5000,
    ],
)
def test_a_moment_that_cannot_be_read_is_refused_with_what_can_be(name: str, said: str) -> None:
    with pytest.raises(BadOption, match=rf"{name} is a date \(2026-11-01\), .* \(12h, 7d, 2w\), not") as caught:
        Query.parse(now=NOW, **{name: said})

    assert caught.value.path == (name,)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("said", "name"),
    [({"tag": "::"}, "tag"), ({"todo": " "}, "todo"), ({"type": ""}, "type"), ({"text": '""'}, "text")],
)
def test_what_says_nothing_is_refused_by_name(said: dict[str, str], name: str) -> None:
    with pytest.raises(BadOption, match=f"{name} is empty"):
        Query(**said)  # type: ignore[arg-type]


def test_a_beginning_after_the_end_is_refused() -> None:
    with pytest.raises(BadOption, match="later than until"):
        Query.parse(since="2026-11-02", until="2026-11-01", now=NOW)


def test_a_text_where_a_time_belongs_is_refused() -> None:
    with pytest.raises(
        BadOption, match=r"since is a local datetime without a zone, not '7d'; Query\.of reads texts"
    ):
        Query(since="7d")  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="until is a local datetime without a zone, not"):
        Query(until=NOW)


@given(
    day=st.datetimes(datetime.min + timedelta(days=2), datetime.max - timedelta(days=2)),
    offset=st.timedeltas(timedelta(0), timedelta(days=1) - timedelta(microseconds=1)),
)
def test_always_a_day_is_all_that_lies_in_it_and_nothing_else(day: datetime, offset: timedelta) -> None:
    start = day.replace(hour=0, minute=0, second=0, microsecond=0)
    query = Query.parse(since=str(start.date()), until=str(start.date()), now=NOW)

    assert query.matches(build_test_nodes(modified=start + offset)[0])
    assert not query.matches(build_test_nodes(modified=start - timedelta(microseconds=1))[0])
    assert not query.matches(build_test_nodes(modified=start + timedelta(days=1))[0])


WORDS = st.text(st.characters(codec="utf-8", exclude_characters='"'), min_size=1).filter(
    lambda word: word.split() == [word]
)


@given(words=st.lists(WORDS, min_size=1, max_size=4), data=st.data())
def test_always_words_are_found_in_any_order_and_a_phrase_in_its_own(
    words: list[str], data: st.DataObject
) -> None:
    node = build_test_nodes(NodeSpec(title="Title", content="\n".join(words)))[1]
    shuffled = data.draw(st.permutations(words))

    assert Query(text=" ".join(shuffled)).matches(node)
    assert Query(text=f'"{" ".join(words)}"').matches(node)
    assert not Query(text=" ".join([*words, "".join(words) + "title"])).matches(node)


@given(tag=st.from_regex(r"[\w@%]+", fullmatch=True), other=st.from_regex(r"[\w@%]+", fullmatch=True))
def test_always_a_tag_is_found_by_itself_and_by_no_part_of_it(tag: str, other: str) -> None:
    node = build_test_nodes(NodeSpec(title="Tagged", tags=(tag,)))[1]

    assert Query(tag=f":{tag.casefold()}:").matches(node)
    assert Query(tag=other).matches(node) == (other.casefold() == tag.casefold())
    assert not Query(tag=tag + "x").matches(node)


def test_a_project_is_tagged_itself_and_not_done() -> None:
    nodes = build_test_nodes(
        NodeSpec(title="A", tags=("Project",)),
        NodeSpec(title="below", level=2, todo="TODO"),
        NodeSpec(title="B", tags=("project",), todo="WAITING"),
        NodeSpec(title="C", tags=("project",), todo="CANCELLED", is_done=True),
        NodeSpec(title="D", tags=("projects",)),
        file=NodeSpec(title="file", level=0, tags=("project",)),
    )

    assert node_titles(active_projects(nodes)) == ["file", "A", "B"]


def test_finished_tasks_come_newest_first_by_when_they_were_closed() -> None:
    nodes = build_test_nodes(
        NodeSpec(title="old", todo="DONE", is_done=True, planning_dates=(closed_at(datetime(2026, 1, 1)),)),
        NodeSpec(title="open", todo="TODO", planning_dates=(closed_at(datetime(2026, 11, 14)),)),
        NodeSpec(title="changed", todo="DONE", is_done=True, properties={"MODIFIED": "2026-06-01"}),
        NodeSpec(
            title="twice",
            todo="CANCELLED",
            is_done=True,
            planning_dates=(closed_at(datetime(2026, 2, 1)), closed_at(datetime(2026, 11, 1))),
        ),
        NodeSpec(title="unsaid", todo="DONE", is_done=True),
        NodeSpec(title="unsaid too", todo="DONE", is_done=True),
        modified=datetime(2019, 1, 1),
    )

    assert node_titles(recent_tasks(nodes)) == ["twice", "changed", "old", "unsaid", "unsaid too"]
    assert node_titles(recent_tasks(nodes, 2)) == ["twice", "changed"]
    assert recent_tasks(nodes, 0) == []
    with pytest.raises(BadOption, match="0 or more, not -1"):
        recent_tasks(nodes, -1)

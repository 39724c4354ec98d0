import time
from collections.abc import Iterator
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


def find_titles(nodes: list[Node] = GARDEN, **conditions: Any) -> list[str]:
    return node_titles(filter_nodes(nodes, Query.parse(now=NOW, **conditions)))


def test_an_empty_query_finds_everything_in_order() -> None:
    assert find_titles() == ["notes", "Roses", "Prune", "Buy shears", "House", "Cellar"]


@pytest.mark.parametrize("tag", ["garden", ":garden:", "GARDEN", "#garden", " garden ", ":garden:FLOWERS:"])
def test_tags_match_completely_in_any_case_and_are_inherited(tag: str) -> None:
    assert find_titles(tag=tag) == ["Roses", "Prune", "Buy shears"]


def test_tags_that_look_the_same_match() -> None:
    """Regression: a decomposed accent or a soft hyphen made another tag."""
    nodes = build_test_nodes(NodeSpec(title="Menu", tags=("cafe\u0301", "din\u00adner")))

    assert find_titles(nodes, tag="café") == find_titles(nodes, tag="dinner") == ["Menu"]


def test_all_of_several_tags_must_match() -> None:
    assert find_titles(tag="garden:project") == []


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
def test_a_state_matches_by_name_or_group(todo: str, expected: list[str]) -> None:
    assert find_titles(todo=todo) == expected


def test_a_state_named_like_a_group_matches_too() -> None:
    nodes = build_test_nodes(
        NodeSpec(title="Odd", todo="OPEN", is_done=True), NodeSpec(title="Even", todo="TODO")
    )

    assert find_titles(nodes, todo="open") == ["Odd", "Even"]


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
def test_a_type_matches_in_any_case(type_: str, expected: list[str]) -> None:
    assert find_titles(type=type_) == expected


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
def test_every_word_and_phrase_must_occur_in_title_or_content(text: str, expected: list[str]) -> None:
    assert find_titles(text=text) == expected


def test_text_of_descendants_does_not_count() -> None:
    assert find_titles(text="shears") == ["Buy shears"]


def test_all_conditions_must_match() -> None:
    assert find_titles(tag="garden", todo="open") == ["Prune"]


def make_dated_nodes(*days: str) -> list[Node]:
    """Build a node for each day, with the day as its title."""
    return build_test_nodes(*(NodeSpec(title=day, properties={"MODIFIED": day}) for day in days))[1:]


@pytest.mark.parametrize(
    ("conditions", "expected"),
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
def test_since_and_until_are_inclusive(conditions: dict[str, str], expected: list[str]) -> None:
    nodes = make_dated_nodes("2026-10-31", "2026-11-01", "2026-11-01 23:59:59", "2026-11-08 09:12")

    assert find_titles(nodes, **conditions) == expected


def test_ages_count_elapsed_hours_despite_clock_changes() -> None:
    now = datetime(2026, 10, 25, 9, 0, tzinfo=VIENNA)  # 02:00 to 03:00 occurred twice that night
    nodes = make_dated_nodes("2026-10-25 00:00", "2026-10-24 23:00")

    assert node_titles(filter_nodes(nodes, Query.parse(since="10h", now=now))) == ["2026-10-25 00:00"]


@pytest.fixture
def machine_in_vienna() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TZ", "Europe/Vienna")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("machine_in_vienna")
@pytest.mark.parametrize("since", ["10h", "2026-10-24T22:00Z"])
def test_a_machine_in_winter_knows_the_times_of_summer(since: str) -> None:
    query = Query.parse(since=since, now=datetime(2026, 10, 25, 9, 0))

    assert query.since == datetime(2026, 10, 25, 0, 0)  # 02:00 to 03:00 occurred twice that night


@pytest.mark.parametrize("name", ["since", "until"])
@pytest.mark.parametrize(
    "conditions",
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
def test_an_invalid_moment_is_rejected_with_the_valid_forms(name: str, conditions: str) -> None:
    with pytest.raises(
        BadOption, match=rf"{name} must be a date \(2026-11-01\), .* \(12h, 7d, 2w\), not"
    ) as caught:
        Query.parse(now=NOW, **{name: conditions})

    assert caught.value.path == (name,)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("conditions", "name"),
    [({"tag": "::"}, "tag"), ({"todo": " "}, "todo"), ({"type": ""}, "type"), ({"text": '""'}, "text")],
)
def test_an_empty_condition_is_rejected_by_name(conditions: dict[str, Any], name: str) -> None:
    with pytest.raises(BadOption, match=f"{name} must not be empty"):
        Query(**conditions)


def test_since_after_until_is_rejected() -> None:
    with pytest.raises(BadOption, match="later than until"):
        Query.parse(since="2026-11-02", until="2026-11-01", now=NOW)


def test_a_string_instead_of_a_time_is_rejected() -> None:
    with pytest.raises(
        BadOption,
        match=r"since must be a local datetime without a time zone, not '7d'; use Query\.parse for text",
    ):
        Query(since="7d")  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(BadOption, match="until must be a local datetime without a time zone, not"):
        Query(until=NOW)


@given(
    day=st.datetimes(datetime.min + timedelta(days=2), datetime.max - timedelta(days=2)),
    offset=st.timedeltas(timedelta(0), timedelta(days=1) - timedelta(microseconds=1)),
)
def test_a_day_matches_exactly_its_times(day: datetime, offset: timedelta) -> None:
    start = day.replace(hour=0, minute=0, second=0, microsecond=0)
    query = Query.parse(since=str(start.date()), until=str(start.date()), now=NOW)

    assert query.matches(build_test_nodes(modified=start + offset)[0])
    assert not query.matches(build_test_nodes(modified=start - timedelta(microseconds=1))[0])
    assert not query.matches(build_test_nodes(modified=start + timedelta(days=1))[0])


WORDS = st.text(st.characters(codec="utf-8", exclude_characters='"'), min_size=1).filter(
    lambda word: word.split() == [word]
)


@given(words=st.lists(WORDS, min_size=1, max_size=4), data=st.data())
def test_words_match_in_any_order_and_phrases_in_theirs(words: list[str], data: st.DataObject) -> None:
    node = build_test_nodes(NodeSpec(title="Title", content="\n".join(words)))[1]
    shuffled = data.draw(st.permutations(words))

    assert Query(text=" ".join(shuffled)).matches(node)
    assert Query(text=f'"{" ".join(words)}"').matches(node)
    assert not Query(text=" ".join([*words, "".join(words) + "title"])).matches(node)


@given(tag=st.from_regex(r"[\w@%]+", fullmatch=True), other=st.from_regex(r"[\w@%]+", fullmatch=True))
def test_a_tag_matches_itself_and_no_part_of_it(tag: str, other: str) -> None:
    node = build_test_nodes(NodeSpec(title="Tagged", tags=(tag,)))[1]

    assert Query(tag=f":{tag.casefold()}:").matches(node)
    assert Query(tag=other).matches(node) == (other.casefold() == tag.casefold())
    assert not Query(tag=tag + "x").matches(node)


def test_active_projects_have_their_own_tag_and_are_not_done() -> None:
    nodes = build_test_nodes(
        NodeSpec(title="A", tags=("Project",)),
        NodeSpec(title="below", level=2, todo="TODO"),
        NodeSpec(title="B", tags=("project",), todo="WAITING"),
        NodeSpec(title="C", tags=("project",), todo="CANCELLED", is_done=True),
        NodeSpec(title="D", tags=("projects",)),
        file=NodeSpec(title="file", level=0, tags=("project",)),
    )

    assert node_titles(active_projects(nodes)) == ["file", "A", "B"]


def test_finished_tasks_are_ordered_by_closing_time() -> None:
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

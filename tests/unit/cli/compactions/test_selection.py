"""Selecting compactions in a real store."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from foveate.cli.compactions.selection import (
    CompactionFilter,
    find_compaction,
    find_session_id,
    iterate_compactions,
    list_compactions,
)
from foveate.compaction.store import Compaction, CompactionOutcome
from foveate.errors import BadOption
from foveate.store import Store, open_store
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.stored_compactions import record_all
from tests.support.stores.records import COMPACTION, compaction_ids, make_compaction
from tests.support.stores.templates import ensure_store

CompactionFields = tuple[int, str, str, CompactionOutcome]
FIELDS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(("ana", "bob")),
        st.sampled_from("st"),
        st.sampled_from(CompactionOutcome),
    ),
    max_size=5,
)
BOUNDS = st.none() | st.integers(-1, 4)


@pytest.mark.slow
@settings(max_examples=limit_examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=FIELDS,
    copies=st.sampled_from((1, 40, 90)),
    agent=st.sampled_from((None, "ana")),
    session=st.sampled_from((None, "s")),
    outcome=st.none() | st.sampled_from(CompactionOutcome),
    since=BOUNDS,
    until=BOUNDS,
)
@example(
    fields=[(0, "ana", "s", CompactionOutcome.OK), (1, "ana", "s", CompactionOutcome.OK)],
    copies=90,
    agent=None,
    session=None,
    outcome=None,
    since=None,
    until=None,
)
def test_every_matching_compaction_is_listed_exactly_once(
    tmp_path: Path,
    fields: list[CompactionFields],
    copies: int,
    agent: str | None,
    session: str | None,
    outcome: CompactionOutcome | None,
    since: int | None,
    until: int | None,
) -> None:
    """Many have the same time, so that pages end among them."""
    stored = [
        replace(
            COMPACTION,
            id=f"{number:03}",
            compacted_at=float(at),
            agent=owner,
            session_id=session_id,
            outcome=ended,
        )
        for number, (at, owner, session_id, ended) in enumerate(fields * copies)
    ]
    selection = CompactionFilter(agent=agent, session_id=session, outcome=outcome, since=since, until=until)

    async def list_selected() -> list[Compaction]:
        path = tmp_path / "copy.sqlite"
        path.unlink(missing_ok=True)
        async with await open_store(ensure_store(path)) as store:
            await asyncio.gather(
                *(store.compactions.record(compaction, (), lease=None) for compaction in stored)
            )
            return [compaction async for compaction in iterate_compactions(store.compactions, selection)]

    def is_selected(compaction: Compaction) -> bool:
        return (
            agent in (None, compaction.agent)
            and session in (None, compaction.session_id)
            and outcome in (None, compaction.outcome)
            and (since is None or compaction.compacted_at >= since)
            and (until is None or compaction.compacted_at <= until)
        )

    expected = sorted(
        filter(is_selected, stored),
        key=lambda compaction: (compaction.compacted_at, compaction.id),
        reverse=True,
    )
    assert asyncio.run(list_selected()) == expected


async def test_a_list_ends_at_its_limit_and_says_that_there_are_more(store: Store) -> None:
    await record_all(store, *(make_compaction(f"f{number}", at=float(number)) for number in range(5)))

    newest, has_more = await list_compactions(store, CompactionFilter(), limit=3)
    everything, has_more_than_all = await list_compactions(store, CompactionFilter(), limit=5)

    assert (compaction_ids(newest), has_more) == (["f4", "f3", "f2"], True)
    assert (len(everything), has_more_than_all) == (5, False)


async def test_a_compaction_is_found_by_a_unique_prefix_of_its_id(store: Store) -> None:
    await record_all(
        store,
        make_compaction("abcdef0123"),
        make_compaction("abcdef9999"),
        make_compaction("abd"),
        make_compaction("abd0"),
    )

    assert (await find_compaction(store, "abcdef0")).id == "abcdef0123"
    assert (await find_compaction(store, "abd")).id == "abd", "a whole id is never ambiguous"
    with pytest.raises(BadOption, match=r"several compaction ids start with 'abc': abcdef01, abcdef99; give"):
        await find_compaction(store, "abc")
    for unknown in ("x", "abcdef0123x", "%", "abc_"):
        with pytest.raises(BadOption, match="no compaction has an id that starts with"):
            await find_compaction(store, unknown)
    with pytest.raises(BadOption, match="is missing"):
        await find_compaction(store, "")


async def test_an_ambiguous_prefix_lists_some_of_its_matches(store: Store) -> None:
    await record_all(store, *(make_compaction(f"a{number:02}") for number in range(40)))

    with pytest.raises(BadOption, match=r"a00, a01, .*, a09, …; give more") as raised:
        await find_compaction(store, "a")
    assert "a10" not in str(raised.value)


async def test_a_session_is_found_by_a_unique_prefix_of_its_id(store: Store) -> None:
    await record_all(
        store,
        make_compaction("1", session_id="abc"),
        make_compaction("2", session_id="abd"),
        make_compaction("3", session_id="abd"),
    )

    assert await find_session_id(store, "abd") == "abd"
    assert await find_session_id(store, "abc") == "abc"
    assert await find_session_id(store, "x") is None
    with pytest.raises(BadOption, match="several session ids"):
        await find_session_id(store, "ab")

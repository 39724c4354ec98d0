"""Archived requests, and deleting the oldest, on both databases."""

import os
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from foveate.session.store import RequestArchive
from foveate.store import Store, open_store
from tests.support.stores.records import STORED_REQUEST

DAY = 86_400.0


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await open_store(database_url) as opened:
        yield opened


@pytest.fixture
def archive(store: Store) -> RequestArchive:
    """The type checker verifies that the store implements the protocol."""
    return store.request_archive


async def test_a_request_is_loaded_as_archived_and_archived_once(archive: RequestArchive) -> None:
    unusual = replace(
        STORED_REQUEST, id="req-2", original_body=None, usage=None, request_body=b"\xff\0" * 1000, status=529
    )
    for request in (STORED_REQUEST, unusual):
        assert await archive.save(request)
        assert await archive.save(replace(request, request_body=b"other")) == 0

    assert await archive.get(STORED_REQUEST.id) == STORED_REQUEST
    assert await archive.get(unusual.id) == unusual
    assert await archive.get("req") is None


async def test_a_request_with_unstorable_names_is_still_archived(archive: RequestArchive) -> None:
    assert await archive.save(replace(STORED_REQUEST, session_id="a\0\ud83d", agent="\0", model="x" * 5000))

    archived = await archive.get(STORED_REQUEST.id)
    assert archived is not None
    assert archived.request_body == STORED_REQUEST.request_body


async def test_the_last_requests_of_a_session_are_found_newest_first(archive: RequestArchive) -> None:
    for at in (3.0, 1.0, 2.0):
        await archive.save(replace(STORED_REQUEST, id=f"req at {at}", at=at))
    await archive.save(replace(STORED_REQUEST, id="of another", session_id="t", at=2.5))

    assert [archived.at for archived in await archive.find_by_session("s", limit=9)] == [3.0, 2.0, 1.0]
    assert [archived.at for archived in await archive.find_by_session("s", limit=1)] == [3.0]
    assert [archived.at for archived in await archive.find_by_session("s", before=3.0)] == [2.0, 1.0]
    assert await archive.find_by_session("never") == []


async def test_only_the_oldest_requests_beyond_a_limit_are_deleted(archive: RequestArchive) -> None:
    sizes = [
        await archive.save(
            replace(
                STORED_REQUEST, id=f"{day}", at=day * DAY, request_body=os.urandom(1000), original_body=None
            )
        )
        for day in range(1, 8)
    ]
    assert all(1000 <= size < 1100 for size in sizes)

    assert await archive.trim(before=0.0, max_bytes=sum(sizes)) == 0
    assert await archive.trim(before=2 * DAY, max_bytes=10**9) == 1
    assert [archived.id for archived in await archive.find_by_session("s", limit=9)] == [
        "7",
        "6",
        "5",
        "4",
        "3",
        "2",
    ]
    assert await archive.trim(before=0.0, max_bytes=sum(sizes[-3:]) + 1) == 3
    assert [archived.id for archived in await archive.find_by_session("s", limit=9)] == ["7", "6", "5"]
    assert await archive.trim(before=0.0, max_bytes=1) == 3


async def test_pruning_deletes_old_archived_requests(store: Store) -> None:
    for day in (1, 9):
        await store.request_archive.save(replace(STORED_REQUEST, id=f"{day}", at=day * DAY))

    await store.prune(keep_days=5, now=10 * DAY)

    assert [archived.id for archived in await store.request_archive.find_by_session("s")] == ["9"]


async def test_ids_are_found_by_prefix(store: Store) -> None:
    for id_, session_id in (("ab1", "s1"), ("ab2", "s1"), ("b%", "ab3")):
        await store.request_archive.save(replace(STORED_REQUEST, id=id_, session_id=session_id))

    assert await store.find_archived_ids("ab", limit=9) == (["ab3"], ["ab1", "ab2"])
    assert await store.find_archived_ids("s", limit=9) == (["s1"], [])
    assert await store.find_archived_ids("%", limit=9) == ([], [])
    assert await store.find_archived_ids("b", limit=9) == ([], ["b%"])


async def test_sizes_report_the_number_and_bytes_of_archived_requests(store: Store) -> None:
    assert ((await store.sizes()).requests, (await store.sizes()).request_bytes) == (0, 0)
    sizes = [await store.request_archive.save(replace(STORED_REQUEST, id=id_)) for id_ in "ab"]

    stored_sizes = await store.sizes()
    assert (stored_sizes.requests, stored_sizes.request_bytes) == (2, sum(sizes))

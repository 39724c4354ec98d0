"""Reading a store for replay without changing it, on both databases."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from foveate.cost.ledger import Call, Category, Charge
from foveate.errors import NothingKept, StoreUnavailable
from foveate.model import CacheUsage, Usage
from foveate.replay.readers.foveate_store import read_store
from foveate.replay.recording import MissingPart, RecordingSource
from foveate.replay.recording_files import find_files, peek_file, read_recordings
from foveate.store import open_store
from tests.support.stores.ledger_records import settle_one
from tests.support.stores.records import STORED_REQUEST

USER = {"role": "user", "content": "look"}
MORE = {"role": "user", "content": "more"}
ANSWER = {"role": "assistant", "content": "seen"}


def make_body(*messages: object) -> bytes:
    fields = {"model": "claude-opus-5-5", "max_tokens": 9, "system": "s", "messages": messages}
    return json.dumps(fields).encode()


def make_named_charge(name: str, at: float, session: str = "s", category: Category = Category.MAIN) -> Charge:
    call = Call(
        id=name,
        agent="ana",
        session_id=session,
        provider="anthropic",
        model="claude-opus-5-5",
        category=category,
        at=at,
    )
    usage = Usage(cache=CacheUsage(uncached=5, read=9_000, written_5m=40), output_tokens=77)
    return Charge(call=call, usage=usage, dollars=Decimal("0.25"))


def read_files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


async def fill_store(url: str) -> None:
    async with await open_store(url) as store:
        await store.request_archive.save(
            replace(STORED_REQUEST, id="one", request_body=make_body(USER), at=400.0)
        )
        await store.request_archive.save(
            replace(STORED_REQUEST, id="two", request_body=make_body(USER, ANSWER, MORE), usage=None, at=500.0)
        )
        await store.request_archive.save(
            replace(STORED_REQUEST, id="refused", request_body=make_body(USER), status=529, at=450.0)
        )
        await store.request_archive.save(replace(STORED_REQUEST, id="odd", request_body=b"\xff\0", at=460.0))
        for charge in (
            make_named_charge("one", 400.0),
            make_named_charge("two", 500.0),
            make_named_charge("three", 100.0, session="t"),
            make_named_charge("four", 200.0, session="t"),
            make_named_charge("a ping", 300.0, session="t", category=Category.PING),
        ):
            await settle_one(store.ledger, charge, accounts=())


async def test_archived_requests_come_with_their_charges(database_url: str) -> None:
    await fill_store(database_url)
    charges, archived = read_store(database_url)
    first, second = archived.calls

    assert [call.id for call in archived.calls] == ["one", "two"]
    assert second.last_message.history()[0] is first.last_message
    assert first.usage is not None
    assert second.usage is not None
    assert first.usage.output_tokens == second.usage.output_tokens == 77
    assert json.loads(first.envelope)["system"] == "s"
    assert (archived.source, archived.name, archived.missing) == (RecordingSource.STORE, "s", frozenset())
    assert archived.reported_dollars == Decimal("0.50")
    assert charges.name == "t"


async def test_charges_are_read_even_if_no_request_is_archived(database_url: str) -> None:
    await fill_store(database_url)
    charges, _ = read_store(database_url)

    assert [call.id for call in charges.calls] == ["three", "four"]
    assert [call.last_message.depth for call in charges.calls] == [0, 2]
    assert charges.missing == {MissingPart.SYSTEM, MissingPart.TOOLS, MissingPart.MESSAGES}


async def test_a_store_is_found_by_its_url(database_url: str) -> None:
    await fill_store(database_url)
    (path,) = find_files([database_url]).files

    assert peek_file(path).source is RecordingSource.STORE
    assert [recording.name for recording in read_recordings(path)] == ["t", "s"]


async def test_reading_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "foveate.sqlite"
    await fill_store(f"sqlite:///{path}")
    before = read_files(tmp_path)
    list(read_recordings(path))

    assert read_files(tmp_path) == before


async def test_a_store_in_use_can_be_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'foveate.sqlite'}"
    await fill_store(url)
    async with await open_store(url) as store:
        await settle_one(store.ledger, make_named_charge("five", 600.0, session="u"), accounts=())

        assert [recording.name for recording in read_store(url)] == ["t", "s", "u"]


def test_a_file_that_is_not_a_store_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with pytest.raises(NothingKept):
        list(read_store(str(path)))
    path.write_bytes(b"SQLite format 3\0" + bytes(100))
    with pytest.raises(StoreUnavailable, match=r"other\.sqlite"):
        list(read_recordings(path, source=RecordingSource.STORE))
    assert peek_file(path).source is None

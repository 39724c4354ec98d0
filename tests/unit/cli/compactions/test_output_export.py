"""Exports of compactions, and their contents in a real store."""

import io
import json
from dataclasses import replace
from typing import Any

import pytest

from foveate.cli.compactions.output import select_for_export, write_compactions
from foveate.compaction.inspection import load_contents
from foveate.errors import BadOption
from foveate.model import Format
from foveate.store import Store
from tests.support.scenarios.compaction_sessions import (
    chat_body,
    claude_body,
    make_subject,
)
from tests.support.scenarios.stored_compactions import compact_session, record_all
from tests.support.stores.records import COMPACTED_MESSAGES, COMPACTION, make_compaction


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "api_format"),
    [(claude_body(12), Format.ANTHROPIC), (chat_body(12), Format.CHAT)],
    ids=["claude", "chat"],
)
async def test_the_api_format_of_compacted_messages_is_detected(
    store: Store, body: Any, api_format: Format
) -> None:
    compaction = await compact_session(store, body, api_format=api_format)

    contents = await load_contents(store.compactions, compaction)

    assert contents.api_format is api_format
    assert len(contents.messages) == compaction.messages
    assert contents.hashes[-1] == compaction.boundary


async def test_messages_that_cannot_be_parsed_are_exported_unchanged(store: Store) -> None:
    await record_all(store, COMPACTION)

    contents = await load_contents(store.compactions, COMPACTION)

    assert (contents.api_format, tuple(contents.messages)) == (None, COMPACTED_MESSAGES)


async def export(store: Store, *ids: str, session: str | None = None, as_list: bool = False) -> bytes:
    file = io.BytesIO()
    await write_compactions(store, await select_for_export(store, ids, session), file, as_list=as_list)
    return file.getvalue()


async def test_an_export_preserves_every_byte(store: Store) -> None:
    await record_all(
        store,
        replace(COMPACTION, summary="half \ud83d and \0", carried=("a\nb",)),
        make_compaction("second", at=100.0),
    )

    rows = [json.loads(line) for line in (await export(store)).splitlines()]

    assert [row["id"] for row in rows] == [COMPACTION.id, "second"]
    assert [turn.encode("utf-8", "surrogateescape") for turn in rows[0]["turns"]] == list(COMPACTED_MESSAGES)
    assert rows[0]["summary"] == "half \ud83d and \0"
    assert rows[0]["carried"] == ["a\nb"]
    assert rows[0]["cost"] == str(COMPACTION.cost)


async def test_an_export_as_a_list_has_the_same_content(store: Store) -> None:
    assert json.loads(await export(store, as_list=True)) == []
    await record_all(store, COMPACTION, make_compaction("second", at=100.0))

    lines = [json.loads(line) for line in (await export(store)).splitlines()]

    assert json.loads(await export(store, as_list=True)) == lines


async def test_a_compaction_of_a_compaction_is_exported_with_all_its_messages(store: Store) -> None:
    first = await compact_session(store, claude_body(12))
    second = await compact_session(store, claude_body(30), first)

    row = json.loads(await export(store, second.id[:8]))

    messages = make_subject(claude_body(30)).original.messages
    assert [turn.encode() for turn in row["turns"]] == list(messages[: second.messages])
    assert row["earlier_id"] == first.id


async def test_named_compactions_are_exported_once_and_must_exist(store: Store) -> None:
    await record_all(
        store, COMPACTION, make_compaction("second", session_id="t"), make_compaction("third", session_id="t")
    )

    exported = [json.loads(line)["id"] for line in (await export(store, "third", "fold", "third")).splitlines()]
    of_session = [json.loads(line)["id"] for line in (await export(store, session="t")).splitlines()]

    assert exported == ["third", "fold-1"]
    assert sorted(of_session) == ["second", "third"]
    with pytest.raises(BadOption, match="no compaction has an id that starts with 'x'"):
        await select_for_export(store, ["fold", "x"], None)
    with pytest.raises(BadOption, match="no compaction belongs to a session whose id starts with 'x'"):
        await select_for_export(store, [], "x")

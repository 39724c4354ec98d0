"""`foveate store`: sizes, and deletion of old records, on both databases."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from foveate.cost.caps import list_accounts
from foveate.session.store import SessionUpdate
from foveate.store import open_store
from foveate.store.migrate import VERSIONS
from tests.support.stores.ledger_records import make_call, make_charge, settle_one
from tests.support.stores.records import (
    COMPACTED_MESSAGES,
    hash_word,
    make_compaction,
    make_session,
    make_turns,
)

DAY = 86_400.0


@pytest.fixture
def url(database_url: str) -> str:
    """A store with a session of today and one of 40 days ago, a compaction of each, and an undone one."""
    now = time.time()

    async def fill() -> None:
        async with await open_store(database_url) as store:
            for name, age in (("new", 0.0), ("old", 40.0)):
                created_at = now - age * DAY
                await store.sessions.save(
                    [
                        SessionUpdate(
                            session=make_session(name, 4, seen_at=created_at), turns=make_turns(name, 0, 4)
                        )
                    ]
                )
                compaction = make_compaction(
                    f"fold of {name}", session_id=name, boundary=hash_word(name), at=created_at
                )
                await store.compactions.record(compaction, [*COMPACTED_MESSAGES, bytes(500_000)], lease=None)
            undone = make_compaction("undone", session_id="new", boundary=hash_word("u"), at=now - 40 * DAY)
            await store.compactions.record(undone, COMPACTED_MESSAGES, lease=None)
            await store.compactions.undo("undone", now=now - 40 * DAY)

    asyncio.run(fill())
    return database_url


def read_info(run: Any, url: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(run("store", "info", "--store", url, "--json").out)
    return report


def test_the_contents_of_the_store_are_reported(run: Any, url: str) -> None:
    outcome, report = run("store", "info", "--store", url), read_info(run, url)

    assert outcome.code == 0
    assert "version      " + VERSIONS[-1] in outcome.out.splitlines()
    assert "compactions  3, with 14 original messages to undo them" in outcome.out.splitlines()
    assert [line.split()[0] for line in outcome.out.splitlines()] == [
        "where", "version", "sessions", "turns", "compactions", "requests", "size",
    ]  # fmt: skip
    assert (report["sessions"], report["turns"], report["folds"], report["folded"]) == (2, 8, 3, 14)
    assert report["size_bytes"] > 10_000
    assert report["version"] == VERSIONS[-1]


def test_a_dry_run_reports_deletions_and_changes_nothing(run: Any, url: str) -> None:
    before = read_info(run, url)

    outcome = run("store", "vacuum", "--store", url, "--dry-run")

    assert outcome.code == 0
    assert outcome.out.startswith(
        "would delete data not used for 30 days: 1 session, 4 turns, 1 compaction, 9 compacted messages; "
        "store size: "
    )
    assert read_info(run, url) == before


def test_old_records_are_deleted_and_space_is_freed(run: Any, url: str) -> None:
    outcome = run("store", "vacuum", "--store", url, "--json")

    result, after = json.loads(outcome.out), read_info(run, url)
    assert result["forgotten"] == {"sessions": 1, "turns": 4, "folds": 1, "folded": 9}
    assert (result["dry_run"], result["keep_days"]) == (False, 30.0)
    assert (after["sessions"], after["turns"], after["folds"], after["folded"]) == (1, 4, 2, 5)
    assert result["bytes_after"] == after["size_bytes"]
    if url.startswith("sqlite"):
        assert result["bytes_after"] < result["bytes_before"] - 400_000


def test_recent_records_are_kept(run: Any, url: str) -> None:
    outcome = run("store", "vacuum", "--store", url, "--keep-days", "50")

    assert "50 days: 0 sessions, 0 turns, 0 compactions, 0 compacted messages; store size: " in outcome.out
    assert read_info(run, url)["sessions"] == 2


def test_the_configuration_says_how_long_records_are_kept(
    run: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a session of 40 days ago was deleted, although the gateway keeps it for a year."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foveate.yaml").write_text("store: {keep_days: 365}\n")

    result = json.loads(run("store", "vacuum", "--store", url, "--json").out)
    (tmp_path / "foveate.yaml").write_text("store: {keep_days: 0}\n")
    outcome = run("store", "vacuum", "--store", url)

    assert (result["keep_days"], result["forgotten"]["sessions"]) == (365.0, 0)
    assert (outcome.code, "keep_days must be more than 0" in outcome.err) == (2, True)
    assert read_info(run, url)["sessions"] == 2


def test_calls_are_deleted_only_on_request(run: Any, url: str) -> None:
    async def settle() -> None:
        async with await open_store(url) as store:
            for call_id, called_at in (("old", 1e9), ("new", time.time())):
                call = make_call(call_id, at=called_at)
                await settle_one(store.ledger, make_charge(call, 1), accounts=list_accounts(call))

    asyncio.run(settle())
    run("store", "vacuum", "--store", url)
    dry_run = run("store", "vacuum", "--store", url, "--keep-ledger-days", "400", "--dry-run")
    result = json.loads(run("store", "vacuum", "--store", url, "--keep-ledger-days", "400", "--json").out)
    repeated = run("store", "vacuum", "--store", url, "--keep-ledger-days", "400")

    assert "and from the ledger 1 call older than 400 days; store size: " in dry_run.out
    assert (result["keep_ledger_days"], result["calls"]) == (400.0, 1)
    assert "and from the ledger 0 calls" in repeated.out
    assert run("store", "vacuum", "--store", url, "--keep-ledger-days", "0").code == 2


@pytest.mark.parametrize("days", ["0", "-1", "nan", "inf", "1e9"])
def test_zero_or_negative_days_are_rejected(run: Any, url: str, days: str) -> None:
    outcome = run("store", "vacuum", "--store", url, f"--keep-days={days}")

    assert outcome.code == 2
    assert "--keep-days takes a number of days above 0" in outcome.err
    assert read_info(run, url)["sessions"] == 2


@pytest.mark.parametrize("command", ["info", "vacuum"])
def test_a_missing_store_is_not_created(run: Any, tmp_path: Path, command: str) -> None:
    url = f"sqlite:///{tmp_path}/no.sqlite"

    outcome = run("store", command, "--store", url)
    json_outcome = run("store", command, "--store", url, "--json")

    assert (outcome.code, outcome.out) == (0, "")
    assert "no data has been stored here yet" in outcome.err
    numbers = json.loads(json_outcome.out)
    assert numbers.get("forgotten", numbers)["sessions"] == 0
    assert list(tmp_path.iterdir()) == []

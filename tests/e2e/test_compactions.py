"""`foveate compactions`: a session is compacted, shown and restored, on both databases."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foveate import formats
from foveate.compaction.apply import build_compaction_edits
from foveate.compaction.compact import CompactionRunner
from foveate.compaction.store import Compaction, CompactionOutcome
from foveate.sandbox import validate_request
from foveate.session.hash_chain import compute_chain
from foveate.session.matching import SessionMatcher, observe_conversation
from foveate.session.store import SessionUpdate
from foveate.store import open_store
from foveate.tokens import counter_for
from tests.support.processes.commands import spawn
from tests.support.scenarios.compaction_sessions import AGENT, MODEL, OPTIONS, RULE, claude_body, make_subject
from tests.support.stores.records import COMPACTED_MESSAGES, COMPACTION, make_compaction

DAY = 86_400.0


def store_compactions(url: str, *compactions: Compaction) -> None:
    """Fill a store with compactions."""

    async def record() -> None:
        async with await open_store(url) as store:
            for compaction in compactions:
                await store.compactions.record(
                    compaction,
                    COMPACTED_MESSAGES if compaction.outcome is CompactionOutcome.OK else (),
                    lease=None,
                )

    asyncio.run(record())


def compact_session(url: str, body: Any) -> Compaction:
    """Match a session and compact it with an extractive summary, as a program does."""

    async def compact() -> Compaction:
        async with await open_store(url) as store:
            subject = make_subject(body)
            chain = subject.chain
            request = formats.parse_request(body)
            conversation = observe_conversation(request, chain, agent=AGENT)
            match = await SessionMatcher(store.sessions).find(conversation, now=time.time())
            await store.sessions.save([SessionUpdate(session=match.session, turns=match.turns)])
            runner = CompactionRunner(
                store.compactions, None, counter_for(MODEL), holder="me", clock=time.time, options=OPTIONS
            )
            result = await runner.compact(replace(subject, session_id=match.session.id))
            assert result is not None
            assert result.compaction is not None
            return result.compaction

    return asyncio.run(compact())


def build_next_request(url: str, body: Any) -> bytes:
    """Return the next request with its compactions applied."""

    async def build() -> bytes:
        request = formats.parse_request(body)
        chain = compute_chain(request)
        async with await open_store(url) as store:
            stored_compactions = await store.compactions.find_compactions(AGENT, chain.hashes)
        return formats.apply_edits(request, build_compaction_edits(request, chain, stored_compactions))

    return asyncio.run(build())


@pytest.mark.process
def test_a_session_is_compacted_listed_shown_exported_and_undone(
    run: Any, database_url: str, tmp_path: Path
) -> None:
    body = claude_body(24)
    original = formats.parse_request(body)
    stored_compaction = compact_session(database_url, body)
    compacted_body = build_next_request(database_url, body)
    assert validate_request(formats.parse_request(compacted_body)) is None
    assert len(compacted_body) < len(original.body) / 2
    short_id, store = stored_compaction.id[:8], ("--store", database_url)

    list_outcome = spawn("compactions", "list", *store, env={"COLUMNS": "200"})
    show_outcome = run("compactions", "show", short_id, "--full", *store)
    export_outcome = run("compactions", "export", *store, "--output", tmp_path / "folds.jsonl")
    undo_outcome = run("compactions", "undo", short_id, *store)
    second_undo = run("compactions", "undo", short_id, *store)
    compactions = json.loads(run("compactions", "list", *store, "--json").out)["folds"]

    assert [
        outcome.code for outcome in (list_outcome, show_outcome, export_outcome, undo_outcome, second_undo)
    ] == [0] * 5
    row = list_outcome.out.splitlines()[1]
    assert row.startswith(f"{short_id}  20")
    assert f"  {AGENT}    {stored_compaction.session_id[:8]}  1–{stored_compaction.messages} " in row
    assert f" {stored_compaction.tokens_before:,} → {stored_compaction.tokens_after:,} " in row
    assert row.endswith("  $0.00  extractive  ok")
    assert f"- {RULE}" in show_outcome.out
    assert f"message {stored_compaction.messages} " in show_outcome.out
    (line,) = (tmp_path / "folds.jsonl").read_bytes().splitlines()
    assert [turn.encode() for turn in json.loads(line)["turns"]] == list(
        original.messages[: stored_compaction.messages]
    )
    assert f"original messages 1–{stored_compaction.messages}: about " in " ".join(undo_outcome.out.split())
    assert "was already undone" in second_undo.out
    assert [(compaction["id"], compaction["undone_at"] is None) for compaction in compactions] == [
        (stored_compaction.id, False)
    ]
    assert build_next_request(database_url, body) == original.body


def test_filters_limit_the_list(run: Any, database_url: str) -> None:
    now = time.time()
    store_compactions(
        database_url,
        replace(COMPACTION, id="old", compacted_at=now - 9 * DAY),
        replace(COMPACTION, id="bobs", agent="bob", session_id="other", compacted_at=now - 3 * DAY),
        replace(
            COMPACTION, id="failed", outcome=CompactionOutcome.FAILED, cost=None, compacted_at=now - 2 * DAY
        ),
        replace(COMPACTION, id="new", compacted_at=now - DAY / 2),
    )

    def list_ids(*options: str) -> list[str]:
        outcome = run("compactions", "list", "--store", database_url, "--json", *options)
        assert (outcome.code, outcome.err) == (0, "")
        return [compaction["id"] for compaction in json.loads(outcome.out)["folds"]]

    assert list_ids() == ["new", "failed", "bobs", "old"]
    assert list_ids("--agent", "ana") == ["new", "failed", "old"]
    assert list_ids("--session", "oth") == ["bobs"]
    assert list_ids("--session", "nobody's") == []
    assert list_ids("--outcome", "failed") == ["failed"]
    assert list_ids("--since", "7d") == ["new", "failed", "bobs"]
    assert list_ids("--since", "7d", "--until", "60h") == ["bobs"]
    assert list_ids("--limit", "1") == ["new"]
    assert "unknown" in run("compactions", "list", "--store", database_url, "--outcome", "failed").out


def test_the_number_of_results_goes_to_standard_error(run: Any, database_url: str) -> None:
    store_compactions(database_url, make_compaction("one"), make_compaction("two"))
    store = ("--store", database_url)

    assert run("compactions", "list", *store).err == "foveate: 2 compactions\n"
    assert (
        run("compactions", "list", *store, "--limit", "1").err
        == "foveate: 1 compaction; older ones are not listed: use --limit\n"
    )
    assert run("compactions", "list", *store, "--agent", "x").err == "foveate: no compaction matches\n"
    assert json.loads(run("compactions", "list", *store, "--limit", "1", "--json").out)["more"] is True


def test_an_ambiguous_id_is_an_error_that_lists_the_matches(run: Any, database_url: str) -> None:
    store_compactions(database_url, make_compaction("abc1"), make_compaction("abc2"))

    for command in ("show", "undo", "export"):
        outcome = run("compactions", command, "abc", "--store", database_url)

        assert outcome.code == 2
        assert outcome.out == ""
        assert "start with 'abc': abc1, abc2; give more characters of the id" in outcome.err


def test_a_complete_list_can_be_exported_in_two_formats(run: Any, database_url: str) -> None:
    store_compactions(database_url, COMPACTION, make_compaction("second", session_id="t"))
    store = ("--store", database_url)

    lines = run("compactions", "export", *store)
    json_export = run("compactions", "export", *store, "--format", "json", "--output", "-")
    session_export = run("compactions", "export", *store, "--session", "t")

    assert [json.loads(line) for line in lines.out.splitlines()] == json.loads(json_export.out)
    assert len(json.loads(json_export.out)) == 2
    assert json.loads(session_export.out)["id"] == "second"
    assert (lines.code, lines.err) == (0, "")


def test_show_as_json_has_everything_and_with_full_the_messages(run: Any, database_url: str) -> None:
    store_compactions(database_url, COMPACTION)

    report = json.loads(run("compactions", "show", "fold", "--store", database_url, "--json").out)
    full_report = json.loads(
        run("compactions", "show", "fold", "--store", database_url, "--json", "--full").out
    )

    assert report["summary"] == COMPACTION.summary
    assert report["carried"] == list(COMPACTION.carried)
    assert report["turns_kept"] == len(full_report["turns"]) == 4
    assert "turns" not in report


@pytest.mark.parametrize(
    "arguments", [("list",), ("export",), ("list", "--json"), ("export", "--json")], ids=" ".join
)
def test_listing_a_missing_store_is_not_an_error_and_does_not_create_it(
    run: Any, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    outcome = run("compactions", *arguments, "--store", f"sqlite:///{tmp_path}/new/foveate.sqlite")

    assert outcome.code == 0
    assert "no data has been stored here yet" in outcome.err
    assert json.loads(outcome.out or '{"folds": 0}')["folds"] in (0, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["show", "undo", "export"])
def test_showing_a_compaction_of_a_missing_store_is_an_error(run: Any, tmp_path: Path, command: str) -> None:
    outcome = run("compactions", command, "abc", "--store", f"sqlite:///{tmp_path}/no.sqlite", "--json")

    assert outcome.code == 1
    assert json.loads(outcome.out)["error"]["code"] == "nothing_kept"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_an_empty_database_on_a_server_stays_empty(run: Any, postgres: Any) -> None:
    url = postgres.new_database()

    assert "no data has been stored here yet" in run("compactions", "list", "--store", url).err
    assert "CREATE TABLE" not in postgres.dump(url)


@pytest.mark.process
def test_the_store_is_set_by_the_variable_or_in_the_data_folder(tmp_path: Path) -> None:
    by_variable, by_home = tmp_path / "mine.sqlite", tmp_path / "home" / "foveate.sqlite"
    store_compactions(f"sqlite:///{by_variable}", make_compaction("by-variable"))
    store_compactions(f"sqlite:///{by_home}", make_compaction("by-home"))
    home = {"FOVEATE_HOME": str(tmp_path / "home"), "FOVEATE_STORE": ""}

    from_variable = spawn("compactions", "list", env=home | {"FOVEATE_STORE": f"sqlite:///{by_variable}"})
    from_home = spawn("compactions", "list", env=home)

    assert from_variable.out.splitlines()[1].startswith("by-varia")
    assert from_home.out.splitlines()[1].startswith("by-home")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "--limit", "0"), "--limit takes a number of compactions from 1 to 1,000,000, not 0"),
        (
            ("list", "--outcome", "fine"),
            "--outcome takes one of ok, failed, lock_held, no_boundary, tool_result",
        ),
        (("list", "--since", "soon"), "since must be a date"),
        (("list", "--since", "1d", "--until", "2d"), "is later than until"),
        (("list", "--session", ""), "--session takes the id of a session"),
        (("list", "--store", ""), "--store must not be empty"),
        (("list", "--store", "mysql://me:secret@host/db"), "mysql: is not a database URL"),
        (("show", ""), "the id of a compaction is missing"),
        (("show", "nope"), "no compaction has an id that starts with 'nope'"),
        (("undo", "failed"), "nothing to undo"),
        (("undo", "a\udcffb"), "lone surrogate"),
        (("export", "--format", "csv"), "--format takes jsonl or json, not 'csv'"),
        (("export", "fold", "--session", "s"), "not both"),
        (("export", "--session", "x"), "no compaction belongs to a session whose id starts with 'x'"),
        (("export", "--output", ""), "--output needs a file name"),
    ],
    ids=lambda value: " ".join(value).encode("ascii", "replace").decode() if isinstance(value, tuple) else "",
)
def test_invalid_input_is_reported_in_one_line(
    run: Any, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    url = f"sqlite:///{tmp_path}/foveate.sqlite"
    store_compactions(url, COMPACTION, replace(COMPACTION, id="failed", outcome=CompactionOutcome.FAILED))
    store = () if "--store" in arguments else ("--store", url)

    outcome = run("compactions", *arguments, *store, "--json")

    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert json.loads(outcome.out)["error"]["code"] == "bad_option"
    assert "secret" not in outcome.err + outcome.out

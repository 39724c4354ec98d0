"""`foveate usage` as users run it: logs in a home folder, the ledger, tables, JSON and CSV."""

import asyncio
import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from foveate.cost.caps import list_accounts
from foveate.cost.ledger import Category
from foveate.model import CacheUsage, Usage
from foveate.store import open_store
from tests.support.processes.commands import ESCAPE, on_terminal, spawn
from tests.support.scenarios.agent_logs import CODEX
from tests.support.scenarios.usage_logs import claude_line, write_lines, write_opencode_database
from tests.support.stores.ledger_records import CHARGE, make_call, settle_one

pytestmark = pytest.mark.process

AT = 1_780_653_600.0  # the time of the logs: 2026-06-05 10:00 UTC
VARIABLES = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "FOVEATE_STORE")


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a user with logs of three agents."""
    lines = [claude_line(second, message_id=f"msg_{second:020}") for second in (0, 60)]
    write_lines(tmp_path / ".claude" / "projects" / "-home-ana-my-repo" / "session-1.jsonl", lines)
    write_lines(tmp_path / ".codex" / "sessions" / "2026" / "06" / "05" / "rollout-1.jsonl", CODEX)
    database = tmp_path / ".local" / "share" / "opencode" / "opencode.db"
    database.parent.mkdir(parents=True)
    write_opencode_database(database)
    return {"HOME": str(tmp_path), "FOVEATE_HOME": str(tmp_path / "data"), **dict.fromkeys(VARIABLES, "")}


def run_json(home: dict[str, str], *arguments: str) -> dict[str, Any]:
    outcome = spawn("usage", *arguments, "--json", env=home)
    assert outcome.code == 0, outcome.err
    result: dict[str, Any] = json.loads(outcome.out)
    return result


def test_all_agents_are_in_one_report(home: dict[str, str]) -> None:
    report = run_json(home, "--timezone", "UTC")
    (row,) = report["rows"]
    assert row["day"] == "2026-06-05"
    assert row["agents"] == ["claude-code", "codex", "opencode"]
    assert (row["calls"], row["logged_cost_calls"], row["unknown_calls"]) == (6, 2, 0)
    assert {key: value for key, value in row.items() if key != "day"} == report["total"]
    assert report["logs"] == 3


def test_the_second_report_is_the_same_and_reads_no_log(home: dict[str, str]) -> None:
    first = run_json(home, "sessions")
    assert (Path(home["FOVEATE_HOME"]) / "usage-cache.msgpack").exists()
    assert run_json(home, "sessions") == first == run_json(home, "sessions", "--no-cache")


def test_agents_and_times_limit_the_report(home: dict[str, str]) -> None:
    assert run_json(home, "--agent", "codex")["total"]["agents"] == ["codex"]
    assert run_json(home, "--agent", "codex", "--agent", "opencode")["total"]["calls"] == 4
    assert (
        run_json(home, "--agent", "claude-code", "--since", "2026-06-05T10:00:30", "--timezone", "UTC")[
            "total"
        ]["calls"]
        == 1
    )
    assert run_json(home, "--until", "2026-06-04")["rows"] == []
    assert run_json(home, "--until", "2026-06-05", "--timezone", "UTC")["total"]["calls"] == 6


def test_times_in_local_time_are_exact_in_summer_and_winter(home: dict[str, str]) -> None:
    home |= {"TZ": "Europe/Vienna"}
    report = run_json(home, "--since", "2026-01-05T10:00Z", "--until", "2026-07-05T10:00Z")
    assert (report["since"], report["until"]) == (1_767_607_200.0, 1_783_245_600.000001)


@pytest.mark.parametrize(("option", "date"), [("--since", "0001-01-01"), ("--until", "9999-12-31")])
def test_times_out_of_range_are_rejected(home: dict[str, str], option: str, date: str) -> None:
    outcome = spawn("usage", option, date, env=home | {"TZ": "Asia/Tokyo"})
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == f"foveate: {option} takes a time from the year 2 to 9998, not {date!r}\n"


def test_calls_through_the_gateway_count_once(home: dict[str, str]) -> None:
    """The ledger has one call of the log, with another output, a call of another program, and a summary."""
    usage = Usage(cache=CacheUsage(uncached=10, read=2_000, written_5m=100, written_1h=200), output_tokens=90)
    calls = [
        replace(CHARGE, call=replace(make_call("seen"), at=AT - 8), usage=usage),
        replace(CHARGE, call=replace(make_call("other", agent="script"), at=AT)),
        replace(CHARGE, call=replace(make_call("summary"), at=AT, category=Category.COMPACTION), usage=usage),
    ]

    async def fill() -> None:
        async with await open_store(f"sqlite:///{home['FOVEATE_HOME']}/foveate.sqlite") as store:
            for charge in calls:
                await settle_one(store.ledger, charge, accounts=list_accounts(charge.call))

    Path(home["FOVEATE_HOME"]).mkdir()
    asyncio.run(fill())
    logged = run_json(home, "--no-ledger")["total"]
    total = run_json(home)["total"]
    assert (logged["calls"], total["calls"], total["gateway_calls"]) == (6, 8, 1)
    assert run_json(home, "--agent", "claude-code")["total"]["output_tokens"] == 95
    assert run_json(home, "--agent", "script")["total"]["calls"] == 1
    # The matched call counts as one of Claude Code, whichever agents are shown.
    assert run_json(home, "--agent", calls[0].call.agent)["total"]["calls"] == 1


@pytest.mark.parametrize("report", ["daily", "weekly", "monthly", "projects"])
def test_a_narrow_terminal_gets_fewer_columns(home: dict[str, str], report: str) -> None:
    output = on_terminal("usage", report, "--timezone", "UTC", env=home | {"NO_COLOR": "1"}, columns=40)
    lines = [line for line in output.splitlines() if not line.startswith("foveate:")]
    table = lines[next(number for number, line in enumerate(lines) if "cost" in line) :]
    assert max(map(len, table)) <= 40
    assert "cache read" not in output


@pytest.mark.parametrize("report", ["daily", "weekly", "monthly", "sessions", "projects", "blocks"])
def test_a_table_fits_80_columns(home: dict[str, str], report: str) -> None:
    output = on_terminal("usage", report, "--timezone", "UTC", env=home | {"NO_COLOR": "1"}, columns=80)
    lines = [line for line in output.splitlines() if not line.startswith("foveate:")]
    assert ESCAPE not in "".join(lines)
    assert max(map(len, lines)) <= 80
    assert lines[-1].startswith("total")
    assert "cache read" in output
    assert "at the cost that the agent logged" in output


def test_the_table_has_colours_on_a_terminal(home: dict[str, str]) -> None:
    assert f"{ESCAPE}[32m" in on_terminal("usage", env=home, columns=80)


def test_csv_has_one_row_for_each_group_and_exact_amounts(home: dict[str, str]) -> None:
    outcome = spawn("usage", "projects", "--csv", env=home)
    rows = {row["project"]: row for row in csv.DictReader(io.StringIO(outcome.out))}
    assert rows.keys() == {"/home/ana/my.repo", "/repo"}
    assert rows["/home/ana/my.repo"]["dollars"] == "0.004560000000"


def test_an_unknown_price_is_a_question_mark(home: dict[str, str]) -> None:
    line = claude_line(message_id="msg_unknown_0123456789")
    line["message"] |= {"model": "nobody/knows-this"}
    write_lines(Path(home["HOME"]) / ".claude" / "projects" / "other" / "1.jsonl", [line])
    outcome = spawn("usage", "projects", "--agent", "claude-code", env=home)
    assert [row.split()[-1] for row in outcome.out.splitlines() if row.startswith("other")] == ["?"]
    assert outcome.out.splitlines()[-1].endswith("$0.0046 + ?")
    assert "1 call without a known price" in outcome.err


@pytest.mark.parametrize("url", ["sqlite:///~/own.sqlite", "sqlite:///$HOME/own.sqlite"])
def test_the_ledger_of_a_store_in_the_home_folder_is_read(home: dict[str, str], url: str) -> None:
    """Regression: the ledger was left out without a word, so that the costs were too low."""

    async def record() -> None:
        call = replace(make_call("other", agent="script"), at=AT)
        async with await open_store(f"sqlite:///{home['HOME']}/own.sqlite") as store:
            await settle_one(store.ledger, replace(CHARGE, call=call), accounts=list_accounts(call))

    asyncio.run(record())

    assert run_json(home | {"FOVEATE_STORE": url}, "--agent", "script")["total"]["calls"] == 1


def test_an_empty_home_says_where_it_looked(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "FOVEATE_HOME": str(tmp_path / "data")} | dict.fromkeys(VARIABLES, "")
    outcome = spawn("usage", env=environment)
    assert (outcome.code, outcome.out) == (0, "")
    assert "no calls in the ledger" in outcome.err
    assert f"{tmp_path}/.claude/projects" in outcome.err
    assert f"{tmp_path}/.codex/sessions" in outcome.err
    assert not (tmp_path / "data").exists()


def test_an_agent_without_calls_is_answered_with_the_known_ones(home: dict[str, str]) -> None:
    outcome = spawn("usage", "--agent", "claud", env=home)

    assert (outcome.code, outcome.out) == (0, "")
    assert "no calls match in the ledger; agents whose logs are read: claude-code, codex, " in outcome.err


def test_what_cannot_be_read_is_reported_in_one_line(home: dict[str, str]) -> None:
    folder = Path(home["HOME"]) / ".claude" / "projects" / "broken"
    folder.mkdir()
    (folder / "2.jsonl").write_text('{"usage":\n' * 3)
    (folder / "loop").symlink_to(folder)
    without_lines = spawn("usage", "--agent", "claude-code", env=home)
    (folder / "1.jsonl").symlink_to("nowhere")
    without_log = spawn("usage", "--agent", "claude-code", env=home)

    # A log to which its agent is writing may end in half a line.
    assert (without_lines.code, len(without_lines.err.splitlines())) == (0, 1)
    assert "left out, because they cannot be read: 3 lines with usage" in without_lines.err
    assert (without_log.code, len(without_log.err.splitlines())) == (1, 1)
    assert "1 log (" in without_log.err
    assert without_log.out == without_lines.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hourly"], "REPORT takes daily, weekly"),
        (["--timezone", "Mars/Olympus"], "--timezone takes a name"),
        (["--timezone", ""], "--timezone takes a name"),
        (["--since", "soon"], "since"),
        (["--agent", ""], "--agent needs a name"),
        (["--json", "--csv"], "cannot be used together"),
    ],
)
def test_wrong_options_say_what_is_valid(home: dict[str, str], arguments: list[str], message: str) -> None:
    outcome = spawn("usage", *arguments, env=home)
    assert outcome.code == 2
    assert message in outcome.out + outcome.err

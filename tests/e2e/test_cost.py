"""`foveate cost`: cost reports, the state of caps, and CSV exports, on both databases."""

import asyncio
import csv
import io
import json
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from foveate.cost.caps import list_accounts, utc_day
from foveate.cost.ledger import Category, Charge
from foveate.model import Savings
from foveate.store import open_store
from tests.support.processes.commands import spawn, write
from tests.support.stores.ledger_records import CHARGE, make_call, make_charge, reserve, settle_one

DAY = 86_400.0
MONDAY = 1_793_577_600.0
"""2026-11-02, at midnight in UTC."""


def fill_ledger(url: str, entries: Sequence[Charge], *, reserved: str = "0", now: float = 0.0) -> None:
    """Fill a ledger and reserve an amount for a call of the agent ana."""

    async def settle() -> None:
        async with await open_store(url) as store:
            for charge in entries:
                await settle_one(store.ledger, charge, accounts=list_accounts(charge.call))
            if Decimal(reserved):
                assert await reserve(
                    store.ledger, make_call("under way", session_id="talk", at=now), reserved, now=now
                )

    asyncio.run(settle())


def charge_call(
    id_: str,
    dollars: str | None,
    *,
    agent: str = "ana",
    session_id: str = "talk",
    model: str = "claude-opus-5-5",
    category: Category = Category.MAIN,
    at: float = MONDAY,
    **savings: str,
) -> Charge:
    call = replace(make_call(id_, agent=agent, session_id=session_id, at=at), model=model, category=category)
    saved: Any = {name: Decimal(value) for name, value in savings.items()}
    return replace(make_charge(call, dollars), savings=Savings(**saved))


WEEK = [
    charge_call("1", "0.10", without="0.68", breakpoints="0.5", compaction="0.2", context="-0.12"),
    charge_call("2", "0.20", agent="bob", session_id="walk-1", at=MONDAY + DAY),
    charge_call("3", "0.30", compaction="-0.30", category=Category.COMPACTION, at=MONDAY + 2 * DAY - 0.001),
    charge_call("4", None, agent="bob", session_id="walk-2", model="qwen3", at=MONDAY + 2 * DAY),
    charge_call("5", "0.000000000001", category=Category.PING, at=MONDAY + 3 * DAY),
]


@pytest.fixture
def url(database_url: str) -> str:
    fill_ledger(database_url, WEEK)
    return database_url


def run_json(run: Any, *arguments: object) -> dict[str, Any]:
    outcome = run("cost", *arguments, "--json")
    assert outcome.code == 0
    report: dict[str, Any] = json.loads(outcome.out)
    return report


def test_every_call_is_in_the_report_under_every_grouping(run: Any, url: str) -> None:
    for grouping in ("agent", "session", "model", "category", "day", "day,model,agent,session,category"):
        report = run_json(run, "--store", url, "--by", grouping)

        assert (report["total"]["calls"], report["total"]["unknown_calls"]) == (5, 1)
        assert Decimal(report["total"]["dollars"]) == Decimal("0.600000000001")
        assert sum(Decimal(row["dollars"] or 0) for row in report["rows"]) == Decimal("0.600000000001")
        assert sum(row["calls"] for row in report["rows"]) == 5
        assert report["total"]["saved"]["compaction"] == "-0.100000000000"


def test_the_table_shows_unknown_costs_and_losses(run: Any, url: str) -> None:
    outcome = run("cost", "--store", url, "--by", "agent")
    lines = outcome.out.splitlines()

    assert lines == [
        "agent  calls  input  output   cost  unpriced  without Foveate  saved",
        "ana        3     30       3  $0.40         0            $0.68  $0.28",
        "bob        2     20       2  $0.20         1                -      -",
        "total      5     50       5  $0.60         1            $0.68  $0.28",
    ]
    assert outcome.err.splitlines() == [
        "foveate: savings: cache breakpoints $0.50, compaction -$0.10, injected context -$0.12",
        "foveate: savings cover 1 of 5 calls",
        "foveate: 1 call without a known price: not included in the cost",
    ]


def test_calls_are_grouped_by_day_and_agent_by_default(run: Any, url: str) -> None:
    assert run_json(run, "--store", url)["by"] == ["day", "agent"]
    assert [line.split()[:2] for line in run("cost", "--store", url).out.splitlines()[1:]] == [
        ["2026-11-02", "ana"],
        ["2026-11-03", "ana"],
        ["2026-11-03", "bob"],
        ["2026-11-04", "bob"],
        ["2026-11-05", "ana"],
        ["total", "5"],
    ]


def test_the_worst_case_cost_is_shown_only_on_request(run: Any, database_url: str) -> None:
    fill_ledger(database_url, [CHARGE])

    usual, requested = (run("cost", "--store", database_url, *option).out for option in ((), ("--worst-case",)))

    assert "worst case" not in usual
    assert "worst case" in requested
    assert "$0.20" in requested


@pytest.mark.parametrize(
    ("filters", "calls"),
    [
        (("--since", "2026-11-03"), 4),
        (("--until", "2026-11-02"), 1),
        (("--since", "2026-11-03", "--until", "2026-11-03"), 2),
        (("--until", "2026-11-05T00:00"), 5),
        (("--since", "2026-11-05T01:00+01:00"), 1),
        (("--agent", "bob"), 2),
        (("--agent", "nobody"), 0),
        (("--session", "walk-1"), 1),
        (("--session", "ta"), 3),
        (("--session", "ta", "--agent", "bob"), 0),
    ],
)
def test_only_matching_calls_are_summed_and_exported(
    run: Any, url: str, filters: tuple[str, ...], calls: int
) -> None:
    assert run_json(run, "--store", url, *filters)["total"]["calls"] == calls
    assert len(run("cost", "export", "--store", url, *filters).out.splitlines()) == calls + 1


def test_rows_can_be_csv(run: Any, url: str) -> None:
    outcome = run("cost", "--store", url, "--by", "day", "--csv")

    rows = list(csv.DictReader(io.StringIO(outcome.out)))
    assert [(row["day"], row["calls"], row["dollars"]) for row in rows] == [
        ("2026-11-02", "1", "0.100000000000"),
        ("2026-11-03", "2", "0.500000000000"),
        ("2026-11-04", "1", ""),
        ("2026-11-05", "1", "0.000000000001"),
    ]


def test_an_export_has_every_call_with_exact_costs_oldest_first(run: Any, url: str, tmp_path: Path) -> None:
    file = tmp_path / "calls.csv"

    outcome = run("cost", "export", "--store", url, "--output", file, "--json")

    assert json.loads(outcome.out) == {"calls": 5, "output": str(file)}
    with file.open(newline="", encoding="utf-8") as csv_file:
        rows = list(csv.DictReader(csv_file))
    assert [row["call_id"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert [row["dollars"] for row in rows[2:]] == ["0.300000000000", "", "0.000000000001"]
    assert rows[0]["at"] == "2026-11-02T00:00:00.000000Z"
    assert sum(Decimal(row["dollars"] or 0) for row in rows) == Decimal("0.600000000001")


CAPS = """
cost:
  caps:
    - {scope: call, dollars: 0.5}
    - {scope: session, dollars: 1}
    - {scope: agent, dollars: 2, agent: ana}
    - {scope: day, dollars: 10}
    - {scope: total, dollars: 1.20}
"""


def test_caps_are_listed_with_what_is_spent_reserved_and_left(
    run: Any, database_url: str, tmp_path: Path
) -> None:
    now = time.time()
    charges = [
        charge_call("1", "0.50", at=now),
        charge_call("2", "0.40", session_id="old", at=now - 3 * DAY),
        charge_call("3", None, agent="bob", session_id="walk", at=now),
    ]
    fill_ledger(database_url, charges, reserved="0.25", now=now)

    report = run_json(run, "caps", "--config", write(tmp_path / "foveate.yaml", CAPS), "--store", database_url)

    call_cap, session, agent, day, total_cap = report["caps"]
    numbers = [(use["spent"], use["reserved"], use["left"], use["level"]) for use in session["uses"]]
    assert call_cap["uses"] == []
    assert [use["session_id"] for use in session["uses"]] == ["talk", "walk"]
    assert numbers[0] == ("0.500000000000", "0.250000000000", "0.250000000000", "fine")
    assert session["uses"][1]["unknown_calls"] == 1
    assert [(use["agent"], use["spent"]) for use in agent["uses"]] == [("ana", "0.900000000000")]
    # Midnight may have passed since the calls were recorded.
    assert day["uses"][0]["day"] in (utc_day(now), utc_day(time.time()))
    assert (total_cap["uses"][0]["left"], total_cap["uses"][0]["level"]) == ("0.050000000000", "near")


def test_an_expired_reservation_is_not_counted(run: Any, database_url: str, tmp_path: Path) -> None:
    fill_ledger(database_url, [charge_call("1", "0.50")], reserved="0.25", now=MONDAY)

    report = run_json(run, "caps", "--config", write(tmp_path / "foveate.yaml", CAPS), "--store", database_url)

    assert report["caps"][-1]["uses"][0]["reserved"] == "0.000000000000"


def test_caps_are_listed_before_any_call_is_stored(run: Any, tmp_path: Path) -> None:
    config = write(tmp_path / "foveate.yaml", CAPS)
    outcome = run("cost", "caps", "--config", config, "--store", f"sqlite:///{tmp_path}/new/no.sqlite")

    assert outcome.code == 0
    assert "no data has been stored here yet" in outcome.err
    assert outcome.out.splitlines()[-1].split() == ["all", "$1.20", "$0.00", "$1.20", "0%"]
    assert sorted(tmp_path.iterdir()) == [config]


def test_caps_are_read_from_the_file_that_the_gateway_finds(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the gateway found the file in its folder, and this command did not."""
    write(tmp_path / "foveate.yaml", CAPS)
    monkeypatch.chdir(tmp_path)
    outcome = run("cost", "caps", "--store", f"sqlite:///{tmp_path}/no.sqlite")

    assert outcome.out.splitlines()[-1].split()[:2] == ["all", "$1.20"]


def test_without_a_configuration_there_are_no_caps(run: Any, tmp_path: Path) -> None:
    without_file = run("cost", "caps", "--json")
    without_caps = run(
        "cost", "caps", "--config", write(tmp_path / "c.yaml", "a: 1\n"), "--store", f"sqlite:///{tmp_path}/no"
    )

    assert (without_file.code, json.loads(without_file.out)) == (0, {"caps": []})
    assert "use --config FILE" in without_file.err
    assert (without_caps.code, without_caps.out) == (0, "")
    assert "defines no caps" in without_caps.err


@pytest.mark.parametrize("arguments", [(), ("--csv",), ("export",), ("--json",), ("export", "--json")])
def test_a_missing_store_is_not_an_error_and_is_not_created(
    run: Any, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    outcome = run("cost", *arguments, "--store", f"sqlite:///{tmp_path}/new/foveate.sqlite")

    assert outcome.code == 0
    assert "no data has been stored here yet" in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_the_store_can_be_set_by_the_variable(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mine.sqlite"
    fill_ledger(url, [CHARGE])

    lines = spawn("cost", "--by", "agent", env={"FOVEATE_STORE": url}).out.splitlines()
    assert lines[1].split()[:2] == ["ana", "1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--by", "week"), "--by takes agent, session, model, category, day, separated by commas, not 'week'"),
        (("--by", "day,day"), "--by names day twice"),
        (("--since", "soon"), "since must be a date"),
        (("--since", "1d", "--until", "2d"), "is later than until"),
        (("--csv",), "--json and --csv cannot be used together"),
        (("--agent", ""), "--agent needs a name"),
        (("--session", ""), "--session needs a name"),
        (("--session", "x"), "there are no calls of a session whose id starts with 'x'"),
        (
            ("--session", "walk"),
            "several session ids start with 'walk': walk-1, walk-2; give more characters of the id",
        ),
        (("--store", ""), "--store must not be empty"),
        (("export", "--session", "x"), "there are no calls of a session whose id starts with 'x'"),
        (("export", "--output", ""), "--output needs a file name"),
        (("caps", "--config", ""), "--config needs a file name"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_invalid_input_is_reported_in_one_line(
    run: Any, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    url = f"sqlite:///{tmp_path}/foveate.sqlite"
    fill_ledger(url, WEEK)
    store = () if "--store" in arguments else ("--store", url)

    outcome = run("cost", *arguments, *store, "--json")

    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert json.loads(outcome.out)["error"]["code"] == "bad_option"


def test_an_invalid_setting_is_reported_with_its_line(run: Any, tmp_path: Path) -> None:
    config = write(tmp_path / "foveate.yaml", "cost:\n  caps:\n    - {scope: day, dollars: lots}\n")

    outcome = run("cost", "caps", "--config", config, "--json")

    assert outcome.code == 2
    assert json.loads(outcome.out)["error"]["code"] == "bad_setting"
    assert f"{config}:3: dollars must be a number" in outcome.err


@pytest.mark.parametrize("option", [("--json",), ("--by", "day"), ("--agent", "ana")])
def test_an_option_before_a_command_is_not_ignored(run: Any, option: tuple[str, ...]) -> None:
    outcome = run("cost", *option, "caps")

    assert outcome.code == 2
    assert f"foveate cost caps {option[0]} …" in outcome.err

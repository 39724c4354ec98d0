"""`foveate cost correct`: calls and cap accounts are corrected, and everything that shows money agrees."""

import asyncio
import json
import re
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from foveate.cost.caps import list_accounts
from foveate.store import open_store
from tests.support.processes.forked_commands import COMMAND
from tests.support.stores.ledger_records import CALL, CHARGE, settle_one
from tests.support.stores.templates import ensure_store

pytestmark = pytest.mark.process


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with two calls: one of known cost, one that is possibly charged."""
    ensure_store(tmp_path / "foveate.sqlite")
    url = f"sqlite:///{tmp_path}/foveate.sqlite"
    possible_charge = replace(
        CHARGE,
        call=replace(CALL, id="cut off"),
        dollars=None,
        charge=Decimal("0.30"),
        is_partial=True,
        is_possibly_charged=True,
    )

    async def fill() -> None:
        async with await open_store(url) as ledger_store:
            for entry in (CHARGE, possible_charge):
                await settle_one(ledger_store.ledger, entry, accounts=list_accounts(CALL))

    asyncio.run(fill())
    return url


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, "cost", *arguments], capture_output=True, text=True, check=False)


def run_json(*arguments: str) -> dict[str, Any]:
    process = run(*arguments, "--json")
    assert process.returncode == 0, process.stderr
    report: dict[str, Any] = json.loads(process.stdout)
    return report


def test_a_possibly_charged_call_is_corrected_by_its_invoice(store: str) -> None:
    before = run_json("--store", store)["total"]
    assert (before["possibly_charged_calls"], before["possibly_charged_dollars"]) == (1, "0.300000000000")
    assert "1 call possibly charged, up to $0.30" in run("--store", store).stderr
    assert (
        "1 call ended before the provider reported the complete usage" in run("--store", store).stderr
    )  # the other call

    result = run_json(
        "correct", "--call", "cut off", "--dollars", "0.12", "--reason", "invoice", "--store", store
    )
    correction = result["correction"]
    assert (correction["call"], correction["agent"], correction["reason"]) == ("cut off", "ana", "invoice")
    assert (correction["before_dollars"], correction["charged_dollars"]) == (None, "0.300000000000")
    assert correction["after_dollars"] == "0.120000000000"

    after = run_json("--store", store)
    assert (after["total"]["possibly_charged_calls"], after["total"]["unknown_calls"]) == (0, 0)
    assert Decimal(after["total"]["dollars"]) == Decimal(before["dollars"]) + Decimal("0.12")
    assert after["corrections"] == 1
    assert "1 manual correction in this period" in run("--store", store).stderr
    assert run_json("corrections", "--store", store)["corrections"] == [correction]
    assert run_json("corrections", "--agent", "nobody", "--store", store)["corrections"] == []


def test_a_cap_account_is_corrected_and_its_previous_value_shown(store: str) -> None:
    process = run("correct", "--agent", "ana", "--dollars", "$1.50", "--reason", "refund", "--store", store)
    assert process.returncode == 0
    assert "account agent ana: $0.361235 -> $1.50  (refund)" in process.stdout
    heading, row = run("corrections", "--store", store).stdout.splitlines()
    assert heading.split() == ["time", "(UTC)", "corrected", "before", "after", "reason"]
    assert re.fullmatch(r"\S+ \S+  account agent ana +\$0\.36  \$1\.50  refund", row)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("--call nobody --dollars 1", "there is no call 'nobody'"),
        ("--agent nobody --dollars 1", "there are no charges for"),
        ("--agent ana --day 2020-01-01 --dollars 1", "there are no charges for"),
        ("--dollars 1", "name one call"),
        ("--total --agent ana --dollars 1", "name one call"),
        ("--call x --session y --dollars 1", "name one call"),
        ("--total --dollars -1", "--dollars takes"),
        ("--total --dollars nan", "--dollars takes"),
        ("--total --dollars much", "--dollars takes"),
        ("--day yesterday --dollars 1", "--day takes"),
    ],
)
def test_an_invalid_correction_changes_nothing_and_gives_the_reason(
    store: str, arguments: str, problem: str
) -> None:
    process = run("correct", *arguments.split(), "--reason", "why", "--store", store)
    assert process.returncode == 2
    assert problem in process.stderr
    assert run_json("corrections", "--store", store)["corrections"] == []


def test_a_correction_requires_a_reason_and_a_store(store: str, tmp_path: Path) -> None:
    assert run("correct", "--total", "--dollars", "1", "--reason", " ", "--store", store).returncode == 2
    missing_url = f"sqlite:///{tmp_path}/none.sqlite"
    process = run("correct", "--total", "--dollars", "1", "--reason", "why", "--store", missing_url)
    assert process.returncode != 0
    assert not (tmp_path / "none.sqlite").exists()

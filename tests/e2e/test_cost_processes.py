"""Processes make calls under caps from a file, some are rejected, and the report matches the charges."""

import asyncio
import csv
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from foveate.config.cost_settings import load_cost
from foveate.cost.admission import Admission, SettlementOutcome
from foveate.cost.ledger import Call, Category, Charge
from foveate.cost.pricing.price_book import PriceBook
from foveate.cost.savings import compare_costs, make_price_function
from foveate.errors import CapExceeded, CapUncheckable
from foveate.model import CacheUsage, SimulatedState, Usage
from foveate.store import open_store
from tests.support.processes.commands import spawn
from tests.support.processes.store_workers import run_together

pytestmark = pytest.mark.process

CONFIG = """
# The ledger ignores settings of the gateway.
server: {port: 8090}
cost:
  caps:
    - {scope: call, dollars: 1.00}
    - {scope: agent, agent: ana, dollars: 0.70}
    - {scope: day, dollars: 100}
  prices:
    - {model: house-*, input: 10, cached_read: 1, write_5m: 12.5, output: 50}
"""
MODEL = "house-large"
INPUT_TOKENS, OUTPUT_TOKENS = 9_000, 2_000
CALLS = 3
# The ceiling is 9,000 x $12.50 and 2,000 x $50 for a million: $0.2125. The charge is $0.0715.
USAGE = Usage(
    cache=CacheUsage(uncached=500, read=4_000, written_5m=1_000), output_tokens=1_000, reported_dollars=None
)
DOLLARS = Decimal("0.0715")
# Without compaction there are 3,000 more tokens; without breakpoints nothing is cached.
SIMULATED = dict.fromkeys(SimulatedState, USAGE.cache) | {
    SimulatedState.CLIENT: CacheUsage(uncached=8_500),
    SimulatedState.COMPACTION: CacheUsage(uncached=5_500),
    SimulatedState.CONTEXT: CacheUsage(uncached=5_500),
}


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The charges of the calls of a process, and the errors of its rejected calls."""

    charges: Sequence[Decimal]
    rejections: Sequence[str]


def call_under_caps(url: str, config: str, worker: int) -> WorkerReport:
    """Make some calls, one after the other, as an agent does."""
    return asyncio.run(_call_under_caps(url, Path(config), worker))


async def _call_under_caps(url: str, config: Path, worker: int) -> WorkerReport:
    options = load_cost(config)
    book = PriceBook(options.prices)
    charges: list[Decimal] = []
    rejections: list[str] = []
    async with await open_store(url, wait_seconds=60.0) as store:
        admission = Admission(store.ledger, clock=time.time)
        for number in range(CALLS):
            call = Call(
                id=f"{worker}-{number}",
                agent="ana",
                session_id=f"talk {worker}",
                provider="house",
                model=MODEL,
                category=Category.MAIN,
                at=time.time(),
            )
            ceiling = book.ceiling(
                MODEL, provider="house", input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS, at=call.at
            )
            try:
                await admission.admit(call, ceiling, options.caps)
            except CapExceeded as error:
                rejections.append(str(error))
                continue
            await asyncio.sleep(0.05)  # the provider answers
            price = book.price(MODEL, USAGE, provider="house", at=call.at)
            assert price is not None
            entry = Charge(
                call=call,
                usage=USAGE,
                dollars=price.dollars,
                estimated_input_tokens=INPUT_TOKENS,
                estimated_dollars=ceiling,
                savings=compare_costs(USAGE, price.dollars, make_price_function(book, call), SIMULATED),
            )
            assert (await admission.settle(entry)).outcome is SettlementOutcome.RECORDED
            charges.append(price.dollars)
        assert await admission.close() == ()
    return WorkerReport(charges, rejections)


async def rejected_for_unknown_price(url: str, config: Path) -> str:
    options = load_cost(config)
    call = Call(
        id="x",
        agent="ana",
        session_id="talk",
        provider="house",
        model="somebody-elses",
        category=Category.MAIN,
        at=time.time(),
    )
    async with await open_store(url) as store:
        admission = Admission(store.ledger, clock=time.time)
        try:
            await admission.admit(call, None, options.caps)
        except CapUncheckable as error:
            return str(error)
        finally:
            await admission.close()
    return ""


def test_calls_of_several_processes_stay_under_their_cap_and_the_report_matches_the_charges(
    run: Any, database_url: str, tmp_path: Path
) -> None:
    config, export_file = tmp_path / "foveate.yaml", tmp_path / "calls.csv"
    config.write_text(CONFIG, encoding="utf-8")
    asyncio.run(create_store(database_url))

    reports = run_together(call_under_caps, [(database_url, str(config), worker) for worker in range(4)])
    unknown_price_error = asyncio.run(rejected_for_unknown_price(database_url, config))

    charges = [charge for worker_report in reports for charge in worker_report.charges]
    rejections = [message for worker_report in reports for message in worker_report.rejections]
    # Twelve calls would be $0.858. Each may cost $0.2125 before it is made, so the last calls are rejected.
    assert set(charges) == {DOLLARS}
    assert len(charges) + len(rejections) == 4 * CALLS
    assert rejections
    assert sum(charges) <= Decimal("0.70")
    assert "this call may cost $0.2125, and the cap on agent ana is $0.70, of which $" in rejections[0]
    assert "cannot be checked: the price of somebody-elses is unknown" in unknown_price_error

    def run_report(*arguments: object) -> dict[str, Any]:
        outcome = run("cost", *map(str, arguments), "--store", database_url, "--json")
        assert outcome.code == 0, outcome.err
        parsed: dict[str, Any] = json.loads(outcome.out)
        return parsed

    for grouping in ("session", "agent,day", "model,category"):
        report = run_report("--by", grouping)
        assert Decimal(report["total"]["dollars"]) == sum(charges)
        assert sum(Decimal(row["dollars"]) for row in report["rows"]) == sum(charges)
    total = run_report()["total"]
    assert (total["calls"], total["unknown_calls"]) == (len(charges), 0)
    assert Decimal(total["estimated_dollars"]) == Decimal("0.2125") * len(charges)
    assert Decimal(total["without_dollars"]) == DOLLARS * len(charges) + Decimal("0.0635") * len(charges)
    assert Decimal(total["saved"]["compaction"]) == Decimal("0.03") * len(charges)
    assert Decimal(total["saved"]["breakpoints"]) == Decimal("0.0335") * len(charges)
    assert Decimal(total["simulation_error"]) == 0

    _, on_ana, on_the_day = run_report("caps", "--config", config)["caps"]
    assert Decimal(on_ana["uses"][0]["spent"]) == sum(charges)
    assert Decimal(on_ana["uses"][0]["reserved"]) == 0
    assert Decimal(on_ana["uses"][0]["left"]) == Decimal("0.70") - sum(charges)
    assert on_the_day["uses"][0]["level"] == "fine"

    assert spawn("cost", "export", "--store", database_url, "--output", str(export_file)).code == 0
    with export_file.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert sum(Decimal(row["dollars"]) for row in rows) == sum(charges)
    assert {row["session_id"] for row in rows} <= {f"talk {worker}" for worker in range(4)}


async def create_store(url: str) -> None:
    await (await open_store(url)).close()

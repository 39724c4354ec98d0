"""Charges and balances in the store of a gateway that runs in a folder."""

import asyncio
from pathlib import Path

from foveate.cost.ledger import AccountBalance, Charge
from foveate.store import open_store


def read_charges(folder: Path) -> list[Charge]:
    async def read() -> list[Charge]:
        async with await open_store(f"sqlite:///{folder}/foveate.sqlite") as store:
            return [charge async for charge in store.ledger.list_charges()]

    return asyncio.run(read())


def read_total_balance(folder: Path) -> AccountBalance:
    async def read() -> AccountBalance:
        async with await open_store(f"sqlite:///{folder}/foveate.sqlite") as store:
            return (await store.ledger.get_balances(["total"], now=0.0))["total"]

    return asyncio.run(read())

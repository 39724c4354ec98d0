"""Detect whether a wait blocks the event loop."""

import asyncio
from collections.abc import Awaitable


async def turns_while(awaitable: Awaitable[object]) -> int:
    """Return the number of turns of the event loop until `waited` completes; 0 if it blocks the loop."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(count_turns())
    try:
        await awaitable
    finally:
        task.cancel()
    return turns

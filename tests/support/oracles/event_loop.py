"""Whether the event loop goes on while something is waited for."""

import asyncio
from collections.abc import Awaitable


async def turns_while(waited: Awaitable[object]) -> int:
    """How many turns the loop makes until `waited` is there; 0 where nothing is done beside it."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count_turns())
    try:
        await waited
    finally:
        counting.cancel()
    return turns

"""What is not urgent is done together, and can be waited for."""

import asyncio

from foveate.engine.pulse import Behind, Pulse


async def test_all_who_wait_go_on_with_one_beat() -> None:
    pulse, gone_on = Pulse(0.01), list[str]()

    async def waits(name: str) -> None:
        await pulse.beat()
        gone_on.append(name)

    tasks = [asyncio.create_task(waits(name)) for name in "abc"]
    await asyncio.sleep(0)
    tasks[0].cancel()
    pulse.fire()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert gone_on == ["b", "c"]
    await asyncio.wait_for(pulse.beat(), 5)  # beats again by itself


async def test_nothing_is_caught_up_before_it_is_done() -> None:
    behind, done = Behind(), list[int]()

    async def settles(number: int) -> None:
        await behind.pulse.beat()
        await asyncio.sleep(0.05)
        done.append(number)

    behind.under_way.update(asyncio.ensure_future(settles(number)) for number in range(3))
    await asyncio.sleep(0)
    await behind.caught_up()

    assert done == [0, 1, 2]

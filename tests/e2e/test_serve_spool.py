"""A gateway that is killed while its store is away: what it was billed is booked by the next one."""

import asyncio
import time
from pathlib import Path

import anthropic

from foveate.store import open_store
from tests.e2e.test_store_faults_sqlite import locked_by_another_process
from tests.sandboxes import KEY, running_sandbox
from tests.served import configure, serving


def ask(url: str) -> str:
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=120) as client:
        reply = client.messages.create(
            model="claude-opus-4-5", max_tokens=50, messages=[{"role": "user", "content": "Hello"}]
        )
    return reply.id


def test_a_bill_outlives_kill_9_of_its_gateway_while_the_store_is_locked(tmp_path: Path) -> None:
    config, spool = tmp_path / "foveate.yaml", tmp_path / "spool"
    with running_sandbox() as sandbox:
        configure(config, sandbox.url)
        with serving(tmp_path, "--config", str(config)) as served:
            assert ask(served.url)
            with locked_by_another_process(tmp_path / "foveate.sqlite"):
                assert ask(served.url)
                deadline = time.monotonic() + 60
                while not (spool.is_dir() and any(path.stat().st_size for path in spool.iterdir())):
                    assert time.monotonic() < deadline, "the bill is not on the disk"
                    time.sleep(0.05)
                served.process.kill()
                served.process.wait()
        assert len(booked(tmp_path)) == 1
        with serving(tmp_path, "--config", str(config)):
            assert len(booked(tmp_path)) == 2
            assert list(spool.iterdir()) == []


def booked(folder: Path) -> list[str]:
    async def read() -> list[str]:
        async with await open_store(f"sqlite:///{folder}/foveate.sqlite") as store:
            return [one.call.id async for one in store.ledger.entries()]

    return asyncio.run(read())

"""Mapping of session names sent by clients to sessions."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import httpx

from foveate.cost.ledger import ChargeTotal, GroupBy
from foveate.store import open_store
from tests.support.servers.gateway import running_gateway
from tests.support.servers.sandbox import KEY, running_sandbox

OTHER_KEY = f"{KEY}-2"
UUID = "69247677-d38f-483f-bfd0-64031bf6f175"


def count_by_session(folder: Path, requests: Sequence[dict[str, str]]) -> list[int]:
    """Send requests with these headers; return the number in each session, largest first."""
    body = {"model": "claude-opus-4-5", "max_tokens": 10, "messages": [{"role": "user", "content": "Hello"}]}
    with running_sandbox() as sandbox, running_gateway(sandbox.url, folder) as gateway:
        for headers in requests:
            headers = {"anthropic-version": "2023-06-01", "user-agent": "test/1", **headers}
            assert (
                httpx.post(f"{gateway.url}/v1/messages", headers=headers, json=body, timeout=60).status_code
                == 200
            )
    assert gateway.failed_steps == []

    async def read() -> Sequence[ChargeTotal]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return await store.ledger.sum_charges([GroupBy.SESSION])

    return sorted((total.calls for total in asyncio.run(read())), reverse=True)


def test_a_plain_name_selects_one_session_per_key(tmp_path: Path) -> None:
    headers = {"x-foveate-session": "main"}
    requests = [
        {**headers, "x-api-key": KEY},
        {**headers, "x-api-key": OTHER_KEY},
        {**headers, "x-api-key": KEY, "user-agent": "another/2"},
        {"x-task-id": "1", "x-api-key": KEY},
        {"x-task-id": "1", "x-api-key": OTHER_KEY},
    ]

    assert count_by_session(tmp_path, requests) == [2, 1, 1, 1]


def test_a_unique_name_selects_one_session_for_all_keys(tmp_path: Path) -> None:
    requests = [{"x-session-id": UUID, "x-api-key": key} for key in (KEY, OTHER_KEY)]

    assert count_by_session(tmp_path, requests) == [2]

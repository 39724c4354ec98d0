"""Base URLs that name a run and its agent."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from foveate.cost.ledger import Charge
from foveate.store import open_store
from tests.support.servers.gateway import running_gateway
from tests.support.servers.sandbox import KEY, running_sandbox

RUN = "0123456789abcdef"
PREFIX = f"/run/{RUN}/pi"
BODY = {"model": "claude-opus-4-5", "max_tokens": 10, "messages": [{"role": "user", "content": "Hello"}]}


def send(url: str, prefix: str = PREFIX, **headers: str) -> httpx.Response:
    all_headers = {"anthropic-version": "2023-06-01", "x-api-key": KEY} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    return httpx.post(f"{url}{prefix}/v1/messages", headers=all_headers, json=BODY, timeout=60)


def read_charges(folder: Path) -> Sequence[Charge]:
    async def read() -> Sequence[Charge]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return [charge async for charge in store.ledger.list_charges()]

    return asyncio.run(read())


def test_calls_of_a_run_have_the_name_of_its_agent_and_ids_of_the_run(tmp_path: Path) -> None:
    with running_sandbox() as sandbox, running_gateway(sandbox.url, tmp_path) as gateway:
        answers = [
            send(gateway.url, user_agent="Anthropic/JS 0.9"),
            send(gateway.url, prefix="", user_agent="claude-cli/2.1"),
        ]

    assert [answer.status_code for answer in answers] == [200, 200]
    in_run, other = read_charges(tmp_path)
    assert (in_run.call.agent, other.call.agent) == ("pi", "claude-code")
    assert in_run.call.id == answers[0].headers["x-foveate-request-id"]
    assert in_run.call.id.startswith(f"req_{RUN}")
    assert not other.call.id.startswith(f"req_{RUN}")


def test_conversations_of_one_run_are_sessions_of_their_own(tmp_path: Path) -> None:
    with running_sandbox() as sandbox, running_gateway(sandbox.url, tmp_path) as gateway:
        for name in ("one", "two"):
            assert send(gateway.url, x_session_id=name).status_code == 200
        assert send(gateway.url, prefix="/run/fedcba9876543210/pi", x_session_id="two").status_code == 200

    first, second, continued = (charge.call.session_id for charge in read_charges(tmp_path))
    assert first != second == continued


def test_the_same_prefix_with_another_key_joins_no_session(tmp_path: Path) -> None:
    with running_sandbox() as sandbox, running_gateway(sandbox.url, tmp_path) as gateway:
        for key in (KEY, f"{KEY}-2"):
            assert send(gateway.url, x_api_key=key, x_session_id="main").status_code == 200

    assert len({charge.call.session_id for charge in read_charges(tmp_path)}) == 2


@pytest.mark.parametrize("page", ["/health", "/metrics", "/-/agents"])
def test_pages_of_the_gateway_are_not_below_a_prefix(page: str, tmp_path: Path) -> None:
    with running_sandbox() as sandbox, running_gateway(sandbox.url, tmp_path) as gateway:
        answer = httpx.get(f"{gateway.url}{PREFIX}{page}", timeout=60)

    assert answer.status_code >= 400
    assert "x-foveate-request-id" in answer.headers  # it was sent to the provider, like any other path

"""A day of traffic in a store: calls of two agents, a cache miss, and two compactions."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from foveate.compaction.store import Compaction
from foveate.store import open_store
from tests.support.scenarios.session_names import named_session_id
from tests.support.stores.records import COMPACTION

MODEL = "claude-opus-5-5"
RULES = "- Read before you write.\n- Run the tests after each change.\n" * 300

COMPACTED_MESSAGES = (
    b'{"role": "user", "content": "Look at src/."}',
    b'{"role": "assistant", "content": "It is small."}',
)

# The session that all requests name in a header.
SESSION_NAME = "garden"
KEY = "sandbox"
NAMED_SESSION_ID = named_session_id("ana", SESSION_NAME, key=KEY)

# Ids that the documentation shows.
COMPACTED_SESSION_ID = "5be01d2286c1b0f7b1d5a1f00c3e9a44"
EARLIER_COMPACTION = replace(
    COMPACTION,
    id="77aa00bb02f04c55a3f5b3f6d4b1c7e8",
    agent="ana",
    session_id=COMPACTED_SESSION_ID,
    messages=203,
    tokens_before=78_904,
    tokens_after=6_077,
    boundary=b"7" * 16,
)
LATER_COMPACTION = replace(
    EARLIER_COMPACTION,
    id="3f9a1c02b41e4c0d9d1f2c6a7be05d13",
    messages=412,
    tokens_before=112_340,
    tokens_after=9_120,
    boundary=b"3" * 16,
    earlier_id=EARLIER_COMPACTION.id,
)


def send_day_of_traffic(gateway_url: str, home: Path) -> None:
    """Send requests of two agents through a gateway with data in `home`; one has a clock in its prompt."""
    for agent, system in (
        ("ana", RULES),
        ("ben", f"It is 10:02:41.\n{RULES}"),
        ("ben", f"It is 10:03:17.\n{RULES}"),
    ):
        messages: list[Any] = []
        for step in range(3):
            messages.append({"role": "user", "content": f"Part {step}: what is next?"})
            messages.append(
                {"role": "assistant", "content": send_request(gateway_url, agent, system, messages)}
            )
    asyncio.run(
        _record_compactions(f"sqlite:///{home / 'foveate.sqlite'}", EARLIER_COMPACTION, LATER_COMPACTION)
    )


def send_request(gateway_url: str, agent: str, system: str, messages: list[Any]) -> Any:
    body = {"model": MODEL, "max_tokens": 64, "system": system, "messages": messages}
    headers = {
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
        "x-api-key": KEY,
        "x-foveate-agent": agent,
        "x-foveate-session": SESSION_NAME,
    }
    with urlopen(Request(f"{gateway_url}/v1/messages", json.dumps(body).encode(), headers)) as response:
        return json.load(response)["content"]


async def _record_compactions(url: str, *compactions: Compaction) -> None:
    async with await open_store(url) as store:
        for compaction in compactions:
            await store.compactions.record(
                replace(compaction, compacted_at=time.time()), COMPACTED_MESSAGES, lease=None
            )

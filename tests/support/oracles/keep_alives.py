"""Keep-alive requests that a sandbox has received."""

import json
import time
from typing import Any

from tests.support.servers.sandbox import RunningSandbox


def keep_alive_requests(sandbox: RunningSandbox) -> list[Any]:
    bodies = [json.loads(request.body) for request in sandbox.requests if request.path == "/v1/messages"]
    return [body for body in bodies if body["max_tokens"] == 0]


def is_keep_alive_sent(sandbox: RunningSandbox, *, after_seconds: float, within_seconds: float = 30) -> bool:
    """Return whether a keep-alive is sent after this time, within `within_seconds` of a real clock."""
    before = len(keep_alive_requests(sandbox))
    sandbox.clock.now += after_seconds
    deadline = time.monotonic() + within_seconds
    while len(keep_alive_requests(sandbox)) == before and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)  # the response must arrive before the clock moves on
    return len(keep_alive_requests(sandbox)) > before

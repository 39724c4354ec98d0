"""Token counts through the gateway: for the request to be sent, by the provider if it counts, not stored."""

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import anthropic
import openai
import pytest

from foveate.compaction.plan import CompactionOptions
from foveate.cost.caps import Cap, CapScope
from foveate.cost.ledger import ChargeTotal, GroupBy
from foveate.engine.options import AgentOptions
from foveate.store import open_store
from tests.e2e.test_gateway_sessions import SYSTEM, TOOLS, turns
from tests.support.servers.gateway import running_gateway
from tests.support.servers.sandbox import KEY, running_sandbox

MODEL = "claude-opus-4-5"
COUNT = "/v1/messages/count_tokens"
LONG: Any = [{"role": "user", "content": "word " * 4_000}]


def booked(folder: Path, *by: GroupBy) -> Sequence[ChargeTotal]:
    async def read() -> Sequence[ChargeTotal]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return await store.ledger.sum_charges(by)

    return asyncio.run(read())


def test_official_clients_get_the_counts_of_their_provider(tmp_path: Path) -> None:
    hello: Any = [{"role": "user", "content": "Hello there"}]
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
        anthropic.Anthropic(base_url=sandbox.url, api_key=KEY, max_retries=0) as direct,
        openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as chatty,
        openai.OpenAI(base_url=sandbox.openai_url, api_key=KEY, max_retries=0) as chatty_direct,
    ):
        counted = client.messages.with_raw_response.count_tokens(model=MODEL, messages=hello)
        expected = direct.messages.count_tokens(model=MODEL, messages=hello)
        response = chatty.responses.input_tokens.count(model="gpt-5", input="Hello there")
        expected_response = chatty_direct.responses.input_tokens.count(model="gpt-5", input="Hello there")

    assert counted.parse() == expected
    assert "x-foveate-count" not in counted.headers
    assert response == expected_response
    assert gateway.failed_steps == []
    counting = {one.group[0]: one for one in booked(tmp_path, GroupBy.CATEGORY)}["counting"]
    assert (counting.calls, counting.unknown_calls, counting.dollars) == (2, 0, Decimal(0))


def test_a_count_applies_to_the_compacted_history_and_stores_nothing(tmp_path: Path) -> None:
    options = AgentOptions(
        compaction=True, window_tokens=12_000, compaction_options=CompactionOptions(extractive=True)
    )
    messages = last_messages()
    with running_sandbox() as sandbox:
        with (
            running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as requested,
            anthropic.Anthropic(base_url=requested.url, api_key=KEY, max_retries=0) as client,
        ):
            usage = turns(client, sandbox, 20, MODEL)
        before = rows(tmp_path)  # a gateway that has ended has kept all of it
        with (
            running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
            anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
        ):
            counted = client.messages.count_tokens(model=MODEL, system=SYSTEM, tools=TOOLS, messages=messages)
        sent = json.loads(sandbox.requests[-1].body)
        after = rows(tmp_path)
        with anthropic.Anthropic(base_url=sandbox.url, api_key=KEY, max_retries=0) as direct:
            whole = direct.messages.count_tokens(model=MODEL, system=SYSTEM, tools=TOOLS, messages=messages)

    assert len(sent["messages"]) < len(messages)  # its head was folded
    assert counted.input_tokens < 12_000 < whole.input_tokens
    assert counted.input_tokens <= max(usage.inputs) * 1.2
    assert before == after
    assert requested.failed_steps == gateway.failed_steps == []


def last_messages() -> list[Any]:
    """Messages that the agent of `turns` sends next."""
    heard: list[Any] = [{"role": "user", "content": "Find the slow parser. Never push to the main branch."}]
    for number in range(20):
        call = {
            "type": "tool_use",
            "id": f"toolu_{number}",
            "name": "read",
            "input": {"path": f"src/part_{number}.py"},
        }
        listing = "\n".join(f"def parse_{number}_{line}(text): return text.split({line})" for line in range(26))
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": listing}
        text = {"type": "text", "text": f"I look into part {number}."}
        heard += [{"role": "assistant", "content": [text, call]}, {"role": "user", "content": [result]}]
    return heard


def rows(folder: Path) -> tuple[object, ...]:
    """All stored rows of sessions and compactions."""

    async def read() -> tuple[object, ...]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            compaction_rows = await store.compactions.list_compactions(limit=1000)
            sessions = [
                await store.sessions.get_session(compaction_row.session_id)
                for compaction_row in compaction_rows
            ]
            return tuple(compaction_rows), tuple(sessions)

    return asyncio.run(read())


def test_a_count_creates_no_session_and_sets_no_tool_order(tmp_path: Path) -> None:
    hello: Any = [{"role": "user", "content": "Hello there"}]
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        client.messages.count_tokens(model=MODEL, messages=hello, tools=TOOLS[::-1])
        until_booked(tmp_path, "counting")
        session = asyncio.run(session_of(tmp_path, "counting"))
        client.messages.create(model=MODEL, max_tokens=50, messages=hello, tools=TOOLS)
        sent = [tool["name"] for tool in json.loads(sandbox.requests[-1].body)["tools"]]

    assert session is None
    assert sent == [tool["name"] for tool in TOOLS]
    assert asyncio.run(session_of(tmp_path, "main")) is not None


def test_a_count_is_charged_to_its_session_if_that_session_exists(
    tmp_path: Path,
) -> None:
    hello: Any = [{"role": "user", "content": "Hello there"}]
    named = {"x-foveate-session": "main"}
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        client.messages.count_tokens(model=MODEL, messages=hello)
        client.messages.count_tokens(model=MODEL, messages=hello, extra_headers=named)
        answer = client.messages.create(model=MODEL, max_tokens=50, messages=hello)
        client.messages.create(model=MODEL, max_tokens=50, messages=hello, extra_headers=named)
        more = [
            *hello,
            {"role": "assistant", "content": answer.content},
            {"role": "user", "content": "And now?"},
        ]
        client.messages.count_tokens(model=MODEL, messages=more)

    by_session: dict[str, dict[str, int]] = {}
    for one in booked(tmp_path, GroupBy.SESSION, GroupBy.CATEGORY):
        session, category = one.group
        by_session.setdefault(session, {})[category] = one.calls
    assert by_session.pop("") == {"counting": 1}
    assert list(by_session.values()) == [{"counting": 1, "main": 1}] * 2


def until_booked(folder: Path, category: str) -> None:
    deadline = time.monotonic() + 10
    while category not in {one.group[0] for one in booked(folder, GroupBy.CATEGORY)}:
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def session_of(folder: Path, category: str) -> object:
    """The session of the first such call in the ledger, if it is stored."""
    async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
        async for entry in store.ledger.list_charges():
            if entry.call.category == category:
                return await store.sessions.get_session(entry.call.session_id)
        return None


def test_a_request_that_would_be_rejected_is_still_counted_and_caps_do_not_apply(tmp_path: Path) -> None:
    caps = [Cap(scope=CapScope.CALL, dollars=Decimal("0.0000001"))]
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, options=AgentOptions(window_tokens=1_000), caps=caps) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        counted = client.messages.count_tokens(model=MODEL, messages=LONG)

    assert counted.input_tokens > 3_000
    assert [ask.path for ask in sandbox.requests] == [COUNT]


@contextmanager
def without_counting_routes() -> Iterator[tuple[str, list[str]]]:
    """A server without a count route, and the paths of its requests."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            paths.append(self.path)
            body = b'{"error":{"message":"Not Found","type":"not_found_error"}}'
            self.send_response(404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", paths
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def test_the_gateway_counts_and_reports_it_if_the_upstream_has_no_count_route(tmp_path: Path) -> None:
    with (
        without_counting_routes() as (url, paths),
        running_gateway(url, tmp_path) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
        openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as chatty,
    ):
        first = client.messages.with_raw_response.count_tokens(model=MODEL, messages=LONG)
        again = client.messages.with_raw_response.count_tokens(model=MODEL, messages=LONG)
        response = chatty.responses.input_tokens.with_raw_response.count(model="gpt-4o", input="Hello there")
        requested = urllib.request.Request(
            f"{gateway.openai_url}/chat/completions/input_tokens",
            data=json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello"}]}).encode(),
            headers={"authorization": f"Bearer {KEY}"},
        )
        with urllib.request.urlopen(requested) as chat:
            chat_tokens, chat_sureness = json.loads(chat.read()), chat.headers["x-foveate-count"]

    assert 3_000 < first.parse().input_tokens < 6_000
    assert first.headers["x-foveate-count"] == "estimate"
    assert again.parse() == first.parse()
    assert paths.count(COUNT) == 1  # a definite no is asked for once
    assert response.parse().object == "response.input_tokens"
    assert response.parse().input_tokens > 1
    assert chat_tokens == {"input_tokens": 8}
    assert chat_sureness == "exact"


def test_a_count_rejected_by_the_provider_returns_its_own_error(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
        anthropic.Anthropic(base_url=sandbox.url, api_key=KEY, max_retries=0) as direct,
    ):
        count_response = []
        for requested in (client, direct):
            with pytest.raises(anthropic.BadRequestError) as refused:
                requested.messages.count_tokens(model=MODEL, messages=[])
            count_response.append(refused.value.body["error"])  # type: ignore[index]

    assert count_response[0] == count_response[1]

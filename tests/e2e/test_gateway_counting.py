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
from tests.support.scenarios.file_reader import SYSTEM, TOOLS, run_file_reader
from tests.support.servers.gateway import running_gateway
from tests.support.servers.sandbox import KEY, running_sandbox

MODEL = "claude-opus-4-5"
COUNT_PATH = "/v1/messages/count_tokens"
LONG_MESSAGES: Any = [{"role": "user", "content": "word " * 4_000}]


def sum_charges(folder: Path, *by: GroupBy) -> Sequence[ChargeTotal]:
    async def read() -> Sequence[ChargeTotal]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return await store.ledger.sum_charges(by)

    return asyncio.run(read())


def test_official_clients_get_the_counts_of_their_provider(tmp_path: Path) -> None:
    messages: Any = [{"role": "user", "content": "Hello there"}]
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
        anthropic.Anthropic(base_url=sandbox.url, api_key=KEY, max_retries=0) as direct_client,
        openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as openai_client,
        openai.OpenAI(base_url=sandbox.openai_url, api_key=KEY, max_retries=0) as direct_openai_client,
    ):
        response = client.messages.with_raw_response.count_tokens(model=MODEL, messages=messages)
        expected = direct_client.messages.count_tokens(model=MODEL, messages=messages)
        openai_response = openai_client.responses.input_tokens.count(model="gpt-5", input="Hello there")
        expected_openai_response = direct_openai_client.responses.input_tokens.count(
            model="gpt-5", input="Hello there"
        )

    assert response.parse() == expected
    assert "x-foveate-count" not in response.headers
    assert openai_response == expected_openai_response
    assert gateway.failed_steps == []
    counting = {total.group[0]: total for total in sum_charges(tmp_path, GroupBy.CATEGORY)}["counting"]
    assert (counting.calls, counting.unknown_calls, counting.dollars) == (2, 0, Decimal(0))


def test_a_count_applies_to_the_compacted_history_and_stores_nothing(tmp_path: Path) -> None:
    options = AgentOptions(
        compaction=True, window_tokens=12_000, compaction_options=CompactionOptions(extractive=True)
    )
    messages = next_messages()
    with running_sandbox() as sandbox:
        with (
            running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as first_gateway,
            anthropic.Anthropic(base_url=first_gateway.url, api_key=KEY, max_retries=0) as client,
        ):
            usage = run_file_reader(client, sandbox, 20, MODEL)
        before = read_rows(tmp_path)  # a gateway that has ended has stored everything
        with (
            running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
            anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
        ):
            count = client.messages.count_tokens(model=MODEL, system=SYSTEM, tools=TOOLS, messages=messages)
        counted_request = json.loads(sandbox.requests[-1].body)
        after = read_rows(tmp_path)
        with anthropic.Anthropic(base_url=sandbox.url, api_key=KEY, max_retries=0) as direct_client:
            uncompacted_count = direct_client.messages.count_tokens(
                model=MODEL, system=SYSTEM, tools=TOOLS, messages=messages
            )

    assert len(counted_request["messages"]) < len(messages)  # its head was compacted
    assert count.input_tokens < 12_000 < uncompacted_count.input_tokens
    assert count.input_tokens <= max(usage.inputs) * 1.2
    assert before == after
    assert first_gateway.failed_steps == gateway.failed_steps == []


def next_messages() -> list[Any]:
    """Messages that the agent of `run_file_reader` sends next."""
    messages: list[Any] = [{"role": "user", "content": "Find the slow parser. Never push to the main branch."}]
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
        messages += [{"role": "assistant", "content": [text, call]}, {"role": "user", "content": [result]}]
    return messages


def read_rows(folder: Path) -> tuple[object, ...]:
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
    messages: Any = [{"role": "user", "content": "Hello there"}]
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        client.messages.count_tokens(model=MODEL, messages=messages, tools=TOOLS[::-1])
        wait_for_charge(tmp_path, "counting")
        session = asyncio.run(find_session(tmp_path, "counting"))
        client.messages.create(model=MODEL, max_tokens=50, messages=messages, tools=TOOLS)
        tool_names = [tool["name"] for tool in json.loads(sandbox.requests[-1].body)["tools"]]

    assert session is None
    assert tool_names == [tool["name"] for tool in TOOLS]
    assert asyncio.run(find_session(tmp_path, "main")) is not None


def test_a_count_is_charged_to_its_session_if_that_session_exists(
    tmp_path: Path,
) -> None:
    messages: Any = [{"role": "user", "content": "Hello there"}]
    headers = {"x-foveate-session": "main"}
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        client.messages.count_tokens(model=MODEL, messages=messages)
        client.messages.count_tokens(model=MODEL, messages=messages, extra_headers=headers)
        response = client.messages.create(model=MODEL, max_tokens=50, messages=messages)
        client.messages.create(model=MODEL, max_tokens=50, messages=messages, extra_headers=headers)
        longer_messages: Any = [
            *messages,
            {"role": "assistant", "content": response.content},
            {"role": "user", "content": "And now?"},
        ]
        client.messages.count_tokens(model=MODEL, messages=longer_messages)

    by_session: dict[str, dict[str, int]] = {}
    for total in sum_charges(tmp_path, GroupBy.SESSION, GroupBy.CATEGORY):
        session, category = total.group
        by_session.setdefault(session, {})[category] = total.calls
    assert by_session.pop("") == {"counting": 1}
    assert list(by_session.values()) == [{"counting": 1, "main": 1}] * 2


def wait_for_charge(folder: Path, category: str) -> None:
    deadline = time.monotonic() + 30
    while category not in {total.group[0] for total in sum_charges(folder, GroupBy.CATEGORY)}:
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def find_session(folder: Path, category: str) -> object:
    """Return the session of the first such call in the ledger, if it is stored."""
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
        count = client.messages.count_tokens(model=MODEL, messages=LONG_MESSAGES)

    assert count.input_tokens > 3_000
    assert [request.path for request in sandbox.requests] == [COUNT_PATH]


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

        def log_message(self, *_: object, **__: object) -> None:
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
        openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as openai_client,
    ):
        first = client.messages.with_raw_response.count_tokens(model=MODEL, messages=LONG_MESSAGES)
        second = client.messages.with_raw_response.count_tokens(model=MODEL, messages=LONG_MESSAGES)
        response = openai_client.responses.input_tokens.with_raw_response.count(
            model="gpt-4o", input="Hello there"
        )
        chat_request = urllib.request.Request(
            f"{gateway.openai_url}/chat/completions/input_tokens",
            data=json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello"}]}).encode(),
            headers={"authorization": f"Bearer {KEY}"},
        )
        with urllib.request.urlopen(chat_request) as chat_response:
            chat_tokens, chat_exactness = (
                json.loads(chat_response.read()),
                chat_response.headers["x-foveate-count"],
            )

    assert 3_000 < first.parse().input_tokens < 6_000
    assert first.headers["x-foveate-count"] == "estimate"
    assert second.parse() == first.parse()
    assert paths.count(COUNT_PATH) == 1  # an upstream without the route is asked once
    assert response.parse().object == "response.input_tokens"
    assert response.parse().input_tokens > 1
    assert chat_tokens == {"input_tokens": 8}
    assert chat_exactness == "exact"


def test_a_count_rejected_by_the_provider_returns_its_own_error(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
        anthropic.Anthropic(base_url=sandbox.url, api_key=KEY, max_retries=0) as direct_client,
    ):
        errors = []
        for api_client in (client, direct_client):
            with pytest.raises(anthropic.BadRequestError) as exc_info:
                api_client.messages.count_tokens(model=MODEL, messages=[])
            body: Any = exc_info.value.body
            errors.append(body["error"])

    assert errors[0] == errors[1]

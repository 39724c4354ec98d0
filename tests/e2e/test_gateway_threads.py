"""Message threads through the gateway, with the official SDK: stored, rejected and forwarded."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import beta_tool

from foveate.cost.caps import Cap, CapScope, UnknownPricePolicy
from foveate.engine.options import AgentOptions
from foveate.formats.json_text.offsets import find_members, value_span
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.routing import Route, ThreadMode, Upstream
from foveate.sandbox.script import ScriptedCall, ScriptStep
from tests.support.oracles.system_state import wait_until
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.gateway_process import gateway_process, write_config
from tests.support.servers.llama import LlamaServer
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox, step_headers
from tests.support.servers.scripted_upstream import http_response, respond_always, running_upstream

BETA = "message-threads-2026-08-12"
TOOL_STEP = ScriptStep(text="I look.", tools=(ScriptedCall(name="read_file", input={"path": "a.md"}),))
HEADERS = {
    "x-api-key": KEY,
    "anthropic-version": "2023-06-01",
    "anthropic-beta": BETA,
    "user-agent": f"Anthropic/Python {anthropic.__version__}",  # the gateway names an agent after its client
}
CREATE_REQUEST: Any = {
    "model": "claude-opus-4-5",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Hello"}],
    "thread": {"type": "create"},
}


@beta_tool
def read_file(path: str) -> str:
    """Read a file.

    Args:
        path: where it is
    """
    return f"{path} says: be kind. " * 40


@dataclass
class RecordedClient:
    """A client and its recorded requests."""

    client: anthropic.Anthropic
    requests: list[dict[str, Any]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    @property
    def threads(self) -> list[str | None]:
        """Types of the threads of all requests; None for requests without a thread."""
        return [(body.get("thread") or {}).get("type") for body in self.requests]


@contextmanager
def recording_client(url: str, key: str = KEY) -> Iterator[RecordedClient]:
    requests: list[dict[str, Any]] = []
    statuses: list[int] = []
    hooks: Any = {
        "request": [lambda request: requests.append(json.loads(request.read()))],
        "response": [lambda response: statuses.append(response.status_code)],
    }
    with (
        anthropic.DefaultHttpxClient(event_hooks=hooks) as http_client,
        anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, http_client=http_client) as client,
    ):
        yield RecordedClient(client, requests, statuses)


def run_tool_loop(
    recorded: RecordedClient, *, streams: bool = False, after: Any = None, **more: Any
) -> list[Any]:
    """Run the SDK's tool runner to its end; call `after` with the number of each response."""
    arguments: Any = {
        "model": "claude-opus-4-5",
        "max_tokens": 4000,
        "system": "Be kind. " * 1500,
        "messages": [{"role": "user", "content": "Look into a.md"}],
        "tools": [read_file],
    }
    responses = list[Any]()
    runner: Any = recorded.client.beta.messages.tool_runner(**arguments | more, stream=streams)
    for number, item in enumerate(runner):
        responses.append(item.get_final_message() if streams else item)
        if after is not None:
            after(number)
    return responses


def message_bytes(body: bytes) -> bytes:
    """Return the bytes of the messages of a request, without the enclosing brackets."""
    return find_members(body, value_span(body)).values["messages"].read(body)[1:-1]


def usage_counts(usage: Any) -> tuple[int, ...]:
    """Return the uncached, read, written and output tokens."""
    written_tokens = usage.cache_creation_input_tokens
    return usage.input_tokens, usage.cache_read_input_tokens, written_tokens, usage.output_tokens


def received_bodies(sandbox: RunningSandbox) -> list[Any]:
    return [json.loads(request.body) for request in sandbox.requests]


def read_traces(folder: Path, calls: int) -> list[tuple[int | None, str]]:
    """Return the counted tokens and the session of each request."""

    def read() -> list[tuple[int | None, str]]:
        with sqlite3.connect(folder / "gateway.sqlite") as store:
            return store.execute("SELECT tokens, session_id FROM traces_v1").fetchall()

    return wait_until(read, lambda rows: len(rows) >= calls)


def threads_upstream(url: str, mode: ThreadMode) -> Upstream:
    return Upstream(
        name="anthropic", base_url=url, family=ApiFamily.ANTHROPIC, provider="anthropic", threads=mode
    )


def post(
    gateway: RunningGateway, body: Any, *, key: str = KEY, step: ScriptStep | None = None
) -> httpx2.Response:
    headers = HEADERS | {"x-api-key": key} | ({} if step is None else step_headers(step))
    return httpx2.post(f"{gateway.url}/v1/messages", json=body, headers=headers, timeout=30)


def continue_request(message_id: str, **changes: Any) -> Any:
    thread = {"type": "continue", "previous_message_id": message_id}
    return CREATE_REQUEST | {"messages": [{"role": "user", "content": "Go on"}], "thread": thread} | changes


def error_code(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["details"]["error_code"]


@pytest.mark.parametrize("thinks", [False, True], ids=["plain", "thinking"])
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_a_stored_thread_sends_and_costs_the_same_as_the_complete_conversation(
    tmp_path: Path, streams: bool, thinks: bool
) -> None:
    thinking_options = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if thinks else {}
    bodies, usages = [], []
    for name, thread in (("threaded", {}), ("whole", {"thread": False})):
        folder = tmp_path / name
        folder.mkdir()
        with (
            running_sandbox(TOOL_STEP, TOOL_STEP, TOOL_STEP) as sandbox,
            running_gateway(sandbox.url, folder, clock=sandbox.clock) as gateway,
            recording_client(gateway.url) as recorded,
        ):
            responses = run_tool_loop(recorded, streams=streams, **thinking_options, **thread)
            bodies.append(received_bodies(sandbox))
            usages.append([usage_counts(response.usage) for response in responses])
            traces = read_traces(folder, 4)
        assert gateway.failed_steps == []
        assert recorded.statuses == [200] * 4
        assert recorded.threads == (["create", *["continue"] * 3] if name == "threaded" else [None] * 4)
        assert len({session for _, session in traces}) == 1
        assert min(tokens or 0 for tokens, _ in traces) > 4500, "the system prompt is in all of them"
        assert len({tokens for tokens, _ in traces}) == 4

    assert bodies[0] == bodies[1]
    assert usages[0] == usages[1]
    assert sum(cached for _, cached, _, _ in usages[0]) > 0


def test_the_bytes_of_a_turn_are_the_same_in_every_later_request(tmp_path: Path) -> None:
    options = AgentOptions(prompt_cache=False)
    with (
        running_sandbox(*[TOOL_STEP] * 5) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
        recording_client(gateway.url) as recorded,
    ):
        run_tool_loop(recorded)

    raw = [message_bytes(request.body) for request in sandbox.requests]
    assert len(raw) == 6
    assert all(after.startswith(before + b",") for before, after in pairwise(raw))
    assert all("anthropic-beta" not in request.headers for request in sandbox.requests)


def test_a_client_resends_the_complete_conversation_after_a_restart(tmp_path: Path) -> None:
    with (
        running_sandbox(TOOL_STEP, TOOL_STEP, TOOL_STEP) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as second,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as first,
        recording_client(first.url) as recorded,
    ):

        def restart(number: int) -> None:
            if number == 1:
                recorded.client.base_url = second.url

        run_tool_loop(recorded, after=restart)

    assert recorded.threads == ["create", "continue", "continue", "create", "continue"]
    assert recorded.statuses == [200, 200, 404, 200, 200]
    assert [len(body["messages"]) for body in received_bodies(sandbox)] == [1, 3, 5, 7]


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_a_response_that_ends_with_an_error_cannot_be_continued(tmp_path: Path, streams: bool) -> None:
    fault = (
        ScriptStep(text="Two, " * 50, fail_after=6) if streams else ScriptStep(text="Two", disconnect_after=1)
    )
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
    ):
        first = post(gateway, CREATE_REQUEST).json()["id"]
        with suppress(httpx2.RemoteProtocolError):
            failed = post(gateway, continue_request(first, stream=streams), step=fault)
            assert "overloaded_error" in failed.text
            first_event = json.loads(failed.text.split("data: ")[1].split("\n")[0])
            response = post(gateway, continue_request(first_event["message"]["id"]))
            assert error_code(response) == (404, "thread_not_found")
        assert wait_until(
            lambda: post(gateway, continue_request(first)).status_code, lambda status: status == 200
        )


def test_an_interrupted_stream_cannot_be_continued(tmp_path: Path) -> None:
    with (
        running_sandbox(ScriptStep(text="One."), ScriptStep(text="Two, " * 50, disconnect_after=6)) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        recording_client(gateway.url) as recorded,
    ):
        thread = recorded.client.beta.messages.thread(model="claude-opus-4-5", max_tokens=400)
        first = thread.send({"role": "user", "content": "Count"})
        with (
            pytest.raises(httpx2.RemoteProtocolError),
            thread.stream({"role": "user", "content": "On"}) as stream,
        ):
            stream.until_done()
        interrupted_id = stream.current_message_snapshot.id

        assert error_code(post(gateway, continue_request(interrupted_id))) == (404, "thread_not_found")
        assert post(gateway, continue_request(first.id)).status_code == 200
        thread.send({"role": "user", "content": "And on"})

    assert recorded.threads == ["create", "continue", "create"]
    assert recorded.statuses == [200] * 3
    assert [message["role"] for message in received_bodies(sandbox)[-1]["messages"]] == [
        *("user", "assistant", "user", "assistant", "user")
    ]


def test_one_of_several_parallel_requests_continues_and_all_are_answered(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        ThreadPoolExecutor(4) as pool,
    ):
        first = post(gateway, CREATE_REQUEST).json()["id"]
        slow = ScriptStep(text="Late.", delay_seconds=1)
        responses = list(pool.map(lambda _: post(gateway, continue_request(first), step=slow), range(4)))
        late_error = error_code(post(gateway, continue_request(first)))

    errors = [error_code(response) for response in responses if response.status_code != 200]
    assert errors == [(400, "thread_continue_in_flight")] * 3
    assert late_error == (400, "thread_already_continued")


def test_a_thread_belongs_to_its_caller_and_keeps_its_system_prompt(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
    ):
        first = post(gateway, CREATE_REQUEST | {"system": "Be kind."}).json()["id"]
        assert error_code(post(gateway, continue_request(first), key="sk-other")) == (404, "thread_not_found")
        changed = post(gateway, continue_request(first, system="Be rude."))
        assert error_code(changed) == (400, "thread_fingerprint_mismatch")
        assert post(gateway, CREATE_REQUEST | {"thread": {"type": "join"}}).status_code == 400
        assert post(gateway, continue_request(first)).status_code == 200

    assert [body["system"] for body in received_bodies(sandbox)] == ["Be kind."] * 2


def test_a_failed_request_can_be_repeated(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
    ):
        first = post(gateway, CREATE_REQUEST).json()["id"]
        assert post(gateway, continue_request(first), step=ScriptStep(overloaded=True)).status_code == 529
        second = post(gateway, continue_request(first))
        assert second.status_code == 200
        assert post(gateway, continue_request(second.json()["id"])).status_code == 200

    assert [len(body["messages"]) for body in received_bodies(sandbox)] == [1, 3, 3, 5]


def test_a_thread_that_cannot_be_stored_is_answered(tmp_path: Path) -> None:
    """Regression: its response was cut off, although the provider had accepted the tool and charged for it."""
    answer = json.dumps({"id": "msg_1", "content": [{"type": "text", "text": "Hi"}]}).encode()
    tool = {"name": "f", "input_schema": {"type": "object", "maximum": "HUGE"}}
    body = json.dumps(CREATE_REQUEST | {"tools": [tool]}).replace('"HUGE"', "1e400")
    with (
        running_upstream(respond_always(http_response(answer))) as upstream,
        running_gateway(upstream.url, tmp_path) as gateway,
    ):
        response = httpx2.post(f"{gateway.url}/v1/messages", content=body, headers=HEADERS)

        assert response.content == answer
        assert error_code(post(gateway, continue_request("msg_1"))) == (404, "thread_not_found")


@pytest.mark.slow
def test_a_large_message_and_many_turns_stay_complete(tmp_path: Path) -> None:
    large_text, options = "A sentence of a large file. " * 40_000, AgentOptions(prompt_cache=False)
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        message = {"role": "user", "content": large_text}
        model = {"model": "claude-opus-4-6"}
        last = post(gateway, CREATE_REQUEST | model | {"messages": [message]}).json()["id"]
        for _ in range(10):
            response = post(gateway, continue_request(last, **model))
            assert response.status_code == 200, response.text
            last = response.json()["id"]

    assert all(body["messages"][0] == message for body in received_bodies(sandbox))
    assert len(received_bodies(sandbox)[-1]["messages"]) == 21


def test_a_token_count_covers_the_complete_conversation_and_continues_nothing(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
    ):
        large_message = {"role": "user", "content": "Be kind. " * 1000}
        first = post(gateway, CREATE_REQUEST | {"messages": [large_message]}).json()["id"]
        first_request = {name: value for name, value in continue_request(first).items() if name != "max_tokens"}
        url = f"{gateway.url}/v1/messages/count_tokens"
        count = httpx2.post(url, json=first_request, headers=HEADERS, timeout=60)
        usage = post(gateway, continue_request(first)).json()["usage"]

    assert count.json()["input_tokens"] > 2000
    input_tokens = (
        usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    )
    assert count.json()["input_tokens"] == input_tokens


@pytest.mark.process
@pytest.mark.slow
def test_several_workers_reject_threads_and_the_client_continues_without_them(tmp_path: Path) -> None:
    with running_sandbox(TOOL_STEP, TOOL_STEP) as sandbox:
        write_config(tmp_path / "foveate.yaml", sandbox.url, "server: {workers: 2}\n")
        with (
            gateway_process(tmp_path, FOVEATE_STORE=f"sqlite:///{tmp_path}/foveate.sqlite") as gateway,
            recording_client(gateway.url) as recorded,
        ):
            run_tool_loop(recorded)

    assert recorded.threads == ["create", None, None, None]
    assert recorded.statuses == [400, 200, 200, 200]
    assert [len(body["messages"]) for body in received_bodies(sandbox)] == [1, 3, 5]


def test_a_forwarded_thread_is_stored_by_its_provider_and_not_changed(tmp_path: Path) -> None:
    with (
        running_sandbox(TOOL_STEP, TOOL_STEP) as sandbox,
        running_gateway(
            sandbox.url,
            tmp_path,
            clock=sandbox.clock,
            upstreams=[threads_upstream(sandbox.url, ThreadMode.PASS)],
        ) as gateway,
        recording_client(gateway.url) as recorded,
    ):
        run_tool_loop(recorded)
        traces = read_traces(tmp_path, 3)

    assert gateway.failed_steps == []
    assert recorded.threads == ["create", "continue", "continue"]
    assert recorded.statuses == [200] * 3
    assert received_bodies(sandbox) == recorded.requests
    assert sorted(tokens is None for tokens, _ in traces) == [False, True, True]
    assert len({session for _, session in traces}) == 1


@pytest.mark.parametrize("unknown", list(UnknownPricePolicy))
def test_a_cap_rejects_a_thread_of_unknown_size(tmp_path: Path, unknown: UnknownPricePolicy) -> None:
    caps: Sequence[Cap] = [Cap(scope=CapScope.DAY, dollars=Decimal(100), unknown=unknown)]
    with (
        running_sandbox() as sandbox,
        running_gateway(
            sandbox.url,
            tmp_path,
            clock=sandbox.clock,
            caps=caps,
            upstreams=[threads_upstream(sandbox.url, ThreadMode.PASS)],
        ) as gateway,
    ):
        first = post(gateway, CREATE_REQUEST).json()["id"]
        second = post(gateway, continue_request(first))

    if unknown is UnknownPricePolicy.ALLOW:
        assert second.status_code == 200
    else:
        assert second.status_code == 402
        assert "its size is unknown" in second.json()["error"]["message"]
        assert "send the whole conversation" in second.json()["error"]["message"]


def test_a_cap_reserves_for_the_complete_stored_thread(tmp_path: Path) -> None:
    """Regression: only the 8 tokens of the new message were reserved, however long the conversation."""
    caps = [Cap(scope=CapScope.CALL, dollars=Decimal("0.1"))]
    large_message = {"role": "user", "content": "Be kind. " * 2500}
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, caps=caps) as gateway,
    ):
        first = post(gateway, CREATE_REQUEST | {"messages": [large_message]})
        second = post(gateway, continue_request(first.json()["id"], messages=[large_message]))

    assert first.status_code == 200
    assert second.status_code == 402


def test_a_thread_is_stored_for_a_server_without_threads(llama_server: LlamaServer, tmp_path: Path) -> None:
    local = Upstream(
        name="llama.cpp",
        base_url=llama_server.base_url,
        family=ApiFamily.OPENAI,
        provider="llama.cpp",
        accepts_both=True,
    )
    route = Route(models="*", upstream="llama.cpp")
    with (
        running_gateway("http://127.0.0.1:9", tmp_path, upstreams=[local], routes=[route]) as gateway,
        recording_client(gateway.url) as recorded,
    ):
        thread = recorded.client.beta.messages.thread(
            model=llama_server.model, max_tokens=8, system="The secret word is swordfish."
        )
        first = thread.send({"role": "user", "content": "Say hello."})
        second = thread.send({"role": "user", "content": "Say it again."})
        with thread.stream({"role": "user", "content": "And again."}) as stream:
            third = stream.get_final_message()

    assert gateway.failed_steps == []
    assert recorded.threads == ["create", "continue", "continue"]
    assert recorded.statuses == [200] * 3

    def read(message: Any) -> int:
        return int(message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0))

    assert read(first) + 8 < read(second) < read(third)

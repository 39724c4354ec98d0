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

BETA = "message-threads-2026-08-12"
LOOK = ScriptStep(text="I look.", tools=(ScriptedCall(name="read_file", input={"path": "a.md"}),))
HEADERS = {
    "x-api-key": KEY,
    "anthropic-version": "2023-06-01",
    "anthropic-beta": BETA,
    "user-agent": f"Anthropic/Python {anthropic.__version__}",  # an agent is named after its client
}
CREATE: Any = {
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
class Recorded:
    """A client and its recorded requests."""

    client: anthropic.Anthropic
    sent: list[dict[str, Any]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    @property
    def threads(self) -> list[str | None]:
        """The types of the threads of all requests, None for those without one."""
        return [(body.get("thread") or {}).get("type") for body in self.sent]


@contextmanager
def recording(url: str, key: str = KEY) -> Iterator[Recorded]:
    sent: list[dict[str, Any]] = []
    statuses: list[int] = []
    hooks: Any = {
        "request": [lambda request: sent.append(json.loads(request.read()))],
        "response": [lambda response: statuses.append(response.status_code)],
    }
    with (
        anthropic.DefaultHttpxClient(event_hooks=hooks) as http,
        anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, http_client=http) as client,
    ):
        yield Recorded(client, sent, statuses)


def run(recorded: Recorded, *, streams: bool = False, after: Any = None, **more: Any) -> list[Any]:
    """Run the SDK's tool runner to its end; call `after` with the number of each response."""
    asking: Any = {
        "model": "claude-opus-4-5",
        "max_tokens": 4000,
        "system": "Be kind. " * 1500,
        "messages": [{"role": "user", "content": "Look into a.md"}],
        "tools": [read_file],
    }
    answers = list[Any]()
    runner: Any = recorded.client.beta.messages.tool_runner(**asking | more, stream=streams)
    for number, one in enumerate(runner):
        answers.append(one.get_final_message() if streams else one)
        if after is not None:
            after(number)
    return answers


def messages_in(body: bytes) -> bytes:
    """The bytes of the messages of a request, without the brackets around."""
    return find_members(body, value_span(body)).values["messages"].read(body)[1:-1]


def usage_counts(usage: Any) -> tuple[int, ...]:
    """Uncached, read, written and output tokens."""
    written = usage.cache_creation_input_tokens
    return usage.input_tokens, usage.cache_read_input_tokens, written, usage.output_tokens


def received_bodies(sandbox: RunningSandbox) -> list[Any]:
    return [json.loads(ask.body) for ask in sandbox.requests]


def read_traces(folder: Path, calls: int) -> list[tuple[int | None, str]]:
    """The counted tokens and the session of each request."""

    def look() -> list[tuple[int | None, str]]:
        with sqlite3.connect(folder / "gateway.sqlite") as store:
            return store.execute("SELECT tokens, session_id FROM traces_v1").fetchall()

    return wait_until(look, lambda found: len(found) >= calls)


def upstream(url: str, mode: ThreadMode) -> Upstream:
    return Upstream(
        name="anthropic", base_url=url, family=ApiFamily.ANTHROPIC, provider="anthropic", threads=mode
    )


def post(
    gateway: RunningGateway, body: Any, *, key: str = KEY, step: ScriptStep | None = None
) -> httpx2.Response:
    headers = HEADERS | {"x-api-key": key} | ({} if step is None else step_headers(step))
    return httpx2.post(f"{gateway.url}/v1/messages", json=body, headers=headers, timeout=30)


def continuing(message_id: str, **changed: Any) -> Any:
    thread = {"type": "continue", "previous_message_id": message_id}
    return CREATE | {"messages": [{"role": "user", "content": "Go on"}], "thread": thread} | changed


def error_code(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["details"]["error_code"]


@pytest.mark.parametrize("thinks", [False, True], ids=["plain", "thinking"])
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_a_stored_thread_sends_and_costs_the_same_as_the_complete_conversation(
    tmp_path: Path, streams: bool, thinks: bool
) -> None:
    more = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if thinks else {}
    bodies, usages = [], []
    for name, thread in (("threaded", {}), ("whole", {"thread": False})):
        folder = tmp_path / name
        folder.mkdir()
        with (
            running_sandbox(LOOK, LOOK, LOOK) as sandbox,
            running_gateway(sandbox.url, folder, clock=sandbox.clock) as gateway,
            recording(gateway.url) as recorded,
        ):
            answers = run(recorded, streams=streams, **more, **thread)
            bodies.append(received_bodies(sandbox))
            usages.append([usage_counts(answer.usage) for answer in answers])
            counted = read_traces(folder, 4)
        assert gateway.failed_steps == []
        assert recorded.statuses == [200] * 4
        assert recorded.threads == (["create", *["continue"] * 3] if name == "threaded" else [None] * 4)
        assert len({session for _, session in counted}) == 1
        assert min(tokens or 0 for tokens, _ in counted) > 4500, "the system prompt is in all of them"
        assert len({tokens for tokens, _ in counted}) == 4

    assert bodies[0] == bodies[1]
    assert usages[0] == usages[1]
    assert sum(read for _, read, _, _ in usages[0]) > 0


def test_the_bytes_of_a_turn_are_the_same_in_every_later_request(tmp_path: Path) -> None:
    options = AgentOptions(prompt_cache=False)
    with (
        running_sandbox(*[LOOK] * 5) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
        recording(gateway.url) as recorded,
    ):
        run(recorded)

    raw = [messages_in(ask.body) for ask in sandbox.requests]
    assert len(raw) == 6
    assert all(later.startswith(before + b",") for before, later in pairwise(raw))
    assert all("anthropic-beta" not in ask.headers for ask in sandbox.requests)


def test_a_client_resends_the_complete_conversation_after_a_restart(tmp_path: Path) -> None:
    with (
        running_sandbox(LOOK, LOOK, LOOK) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as second,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as first,
        recording(first.url) as recorded,
    ):

        def restart(number: int) -> None:
            if number == 1:
                recorded.client.base_url = second.url

        run(recorded, after=restart)

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
        first = post(gateway, CREATE).json()["id"]
        with suppress(httpx2.RemoteProtocolError):
            broken = post(gateway, continuing(first, stream=streams), step=fault)
            assert "overloaded_error" in broken.text
            begun = json.loads(broken.text.split("data: ")[1].split("\n")[0])
            found = post(gateway, continuing(begun["message"]["id"]))
            assert error_code(found) == (404, "thread_not_found")
        assert wait_until(lambda: post(gateway, continuing(first)).status_code, lambda status: status == 200)


def test_an_interrupted_stream_cannot_be_continued(tmp_path: Path) -> None:
    with (
        running_sandbox(ScriptStep(text="One."), ScriptStep(text="Two, " * 50, disconnect_after=6)) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        recording(gateway.url) as recorded,
    ):
        thread = recorded.client.beta.messages.thread(model="claude-opus-4-5", max_tokens=400)
        first = thread.send({"role": "user", "content": "Count"})
        with (
            pytest.raises(httpx2.RemoteProtocolError),
            thread.stream({"role": "user", "content": "On"}) as stream,
        ):
            stream.until_done()
        broken = stream.current_message_snapshot.id

        assert error_code(post(gateway, continuing(broken))) == (404, "thread_not_found")
        assert post(gateway, continuing(first.id)).status_code == 200
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
        first = post(gateway, CREATE).json()["id"]
        slow = ScriptStep(text="Late.", delay_seconds=1)
        found = list(pool.map(lambda _: post(gateway, continuing(first), step=slow), range(4)))
        later = error_code(post(gateway, continuing(first)))

    refused = [error_code(one) for one in found if one.status_code != 200]
    assert refused == [(400, "thread_continue_in_flight")] * 3
    assert later == (400, "thread_already_continued")


def test_a_thread_belongs_to_its_caller_and_keeps_its_system_prompt(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
    ):
        first = post(gateway, CREATE | {"system": "Be kind."}).json()["id"]
        assert error_code(post(gateway, continuing(first), key="sk-other")) == (404, "thread_not_found")
        changed = post(gateway, continuing(first, system="Be rude."))
        assert error_code(changed) == (400, "thread_fingerprint_mismatch")
        assert post(gateway, CREATE | {"thread": {"type": "join"}}).status_code == 400
        assert post(gateway, continuing(first)).status_code == 200

    assert [body["system"] for body in received_bodies(sandbox)] == ["Be kind."] * 2


def test_a_failed_request_can_be_repeated(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
    ):
        first = post(gateway, CREATE).json()["id"]
        assert post(gateway, continuing(first), step=ScriptStep(overloaded=True)).status_code == 529
        second = post(gateway, continuing(first))
        assert second.status_code == 200
        assert post(gateway, continuing(second.json()["id"])).status_code == 200

    assert [len(body["messages"]) for body in received_bodies(sandbox)] == [1, 3, 3, 5]


@pytest.mark.slow
def test_a_large_message_and_many_turns_stay_complete(tmp_path: Path) -> None:
    large, options = "A sentence of a large file. " * 40_000, AgentOptions(prompt_cache=False)
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        request_body = {"role": "user", "content": large}
        model = {"model": "claude-opus-4-6"}
        last = post(gateway, CREATE | model | {"messages": [request_body]}).json()["id"]
        for _ in range(10):
            answer = post(gateway, continuing(last, **model))
            assert answer.status_code == 200, answer.text
            last = answer.json()["id"]

    assert all(body["messages"][0] == request_body for body in received_bodies(sandbox))
    assert len(received_bodies(sandbox)[-1]["messages"]) == 21


def test_a_token_count_covers_the_complete_conversation_and_continues_nothing(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
    ):
        large = {"role": "user", "content": "Be kind. " * 1000}
        first = post(gateway, CREATE | {"messages": [large]}).json()["id"]
        first_request = {
            name: request_body for name, request_body in continuing(first).items() if name != "max_tokens"
        }
        url = f"{gateway.url}/v1/messages/count_tokens"
        counted = httpx2.post(url, json=first_request, headers=HEADERS)
        usage = post(gateway, continuing(first)).json()["usage"]

    assert counted.json()["input_tokens"] > 2000
    usage_counts = (
        usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    )
    assert counted.json()["input_tokens"] == usage_counts


@pytest.mark.process
@pytest.mark.slow
def test_several_workers_reject_threads_and_the_client_continues_without_them(tmp_path: Path) -> None:
    with running_sandbox(LOOK, LOOK) as sandbox:
        write_config(tmp_path / "foveate.yaml", sandbox.url, "server: {workers: 2}\n")
        with (
            gateway_process(tmp_path, FOVEATE_STORE=f"sqlite:///{tmp_path}/foveate.sqlite") as served,
            recording(served.url) as recorded,
        ):
            run(recorded)

    assert recorded.threads == ["create", None, None, None]
    assert recorded.statuses == [400, 200, 200, 200]
    assert [len(body["messages"]) for body in received_bodies(sandbox)] == [1, 3, 5]


def test_a_forwarded_thread_is_stored_by_its_provider_and_not_changed(tmp_path: Path) -> None:
    with (
        running_sandbox(LOOK, LOOK) as sandbox,
        running_gateway(
            sandbox.url, tmp_path, clock=sandbox.clock, upstreams=[upstream(sandbox.url, ThreadMode.PASS)]
        ) as gateway,
        recording(gateway.url) as recorded,
    ):
        run(recorded)
        counted = read_traces(tmp_path, 3)

    assert gateway.failed_steps == []
    assert recorded.threads == ["create", "continue", "continue"]
    assert recorded.statuses == [200] * 3
    assert received_bodies(sandbox) == recorded.sent
    assert sorted(tokens is None for tokens, _ in counted) == [False, True, True]
    assert len({session for _, session in counted}) == 1


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
            upstreams=[upstream(sandbox.url, ThreadMode.PASS)],
        ) as gateway,
    ):
        first = post(gateway, CREATE).json()["id"]
        second = post(gateway, continuing(first))

    if unknown is UnknownPricePolicy.ALLOW:
        assert second.status_code == 200
    else:
        assert second.status_code == 402
        assert "its size is not known" in second.json()["error"]["message"]
        assert "send the whole conversation" in second.json()["error"]["message"]


def test_a_cap_reserves_for_the_complete_stored_thread(tmp_path: Path) -> None:
    """Regression: only the 8 tokens of the new message were reserved, however long the conversation."""
    caps = [Cap(scope=CapScope.CALL, dollars=Decimal("0.1"))]
    large = {"role": "user", "content": "Be kind. " * 2500}
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, caps=caps) as gateway,
    ):
        first = post(gateway, CREATE | {"messages": [large]})
        second = post(gateway, continuing(first.json()["id"], messages=[large]))

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
        recording(gateway.url) as recorded,
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

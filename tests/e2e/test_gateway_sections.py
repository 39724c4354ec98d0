"""Context sections for clients of every API format: the exact bytes that arrive at the provider."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from foveate.budget.budget import Budget
from foveate.compaction.overflow import OnOverflow
from foveate.cost.caps import Cap, CapScope
from foveate.engine.options import AgentOptions
from tests.support.scenarios.injected_sections import HEADING, garden_sections, only_sections
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.gateway_process import gateway_process, write_config
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox

CLAUDE, GPT = "claude-sonnet-4-6", "gpt-4.1"
MESSAGES: Any = [{"role": "user", "content": "When does bed 7 get water?"}]
HEADERS = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
SLACK_HEADERS = {
    "x-foveate-agent": "ana",
    "x-foveate-channel": "slack",
    "x-foveate-sender": "Bøb",
    "x-foveate-channel-topic": "roses",
}
ENCODED_HEADERS = {**SLACK_HEADERS, "x-foveate-sender": "B%C3%B8b"}  # since OpenAI's client takes only ASCII


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    with running_sandbox() as server:
        yield server


@pytest.fixture(scope="module")
def gateway(sandbox: RunningSandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("gateway")
    options = AgentOptions(sections=garden_sections(folder / "garden"))
    caps = [Cap(scope=CapScope.DAY, dollars=Decimal(500))]
    with running_gateway(sandbox.url, folder, clock=sandbox.clock, options=options, caps=caps) as server:
        yield server
        assert server.failed_steps == []


@pytest.fixture
def claude(gateway: RunningGateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def gpt(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as client:
        yield client


def last_request_body(sandbox: RunningSandbox) -> dict[str, Any]:
    """Return the last body the provider received; check that no gateway header was forwarded."""
    request = sandbox.requests[-1]
    assert not any("foveate" in name for name in request.headers)
    body: dict[str, Any] = json.loads(request.body)
    return body


@pytest.mark.parametrize("streams", [False, True])
def test_anthropics_client_gets_every_section(
    claude: anthropic.Anthropic, sandbox: RunningSandbox, streams: bool
) -> None:
    request: Any = {"model": CLAUDE, "max_tokens": 100, "system": "Be kind.", "messages": MESSAGES}
    if streams:
        with claude.messages.stream(**request, extra_headers=SLACK_HEADERS) as stream:
            assert stream.get_final_text()
    else:
        assert claude.messages.create(**request, extra_headers=SLACK_HEADERS).content

    body = last_request_body(sandbox)
    system = [block["text"] for block in body["system"]]
    turn = [block["text"] for block in body["messages"][0]["content"]]
    assert system[:2] == ["Be kind.", "You are Ana, who keeps the garden."]
    assert system[-3:] == ["Peer: Bob: likes roses", "Be short.", "Answer in German."]
    assert turn[0] == MESSAGES[0]["content"]
    assert turn[1] == f"{HEADING}\n\nNo active projects found."
    assert "Bed 7 gets water on day 7." in turn[2]
    assert "tokens (" in turn[3]
    assert "of $500.00 left (a day)" in turn[3]
    assert turn[4:6] == ["Channel: slack\nChannel topic: roses", "Sender: Bøb"]
    assert turn[6].startswith("Time: 2027-01-15T08:00+00:00")
    assert "1234" not in sandbox.requests[-1].body.decode()
    assert "Nobody reads this" not in sandbox.requests[-1].body.decode()


@pytest.mark.parametrize("streams", [False, True])
def test_a_chat_gets_every_section(gpt: openai.OpenAI, sandbox: RunningSandbox, streams: bool) -> None:
    reply = gpt.chat.completions.create(
        model=GPT, messages=MESSAGES, stream=streams, extra_headers=ENCODED_HEADERS
    )
    assert list(reply) if streams else reply

    messages = last_request_body(sandbox)["messages"]
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[0]["content"].startswith("You are Ana, who keeps the garden.\n\n# Bob\n\nHas roses.")
    assert messages[1]["content"].startswith(
        f"{MESSAGES[0]['content']}\n\n{HEADING}\n\nNo active projects found.\n\n## Memory"
    )
    assert "\n\nSender: Bøb\n\n" in messages[1]["content"]


@pytest.mark.parametrize("streams", [False, True])
def test_responses_get_every_section(gpt: openai.OpenAI, sandbox: RunningSandbox, streams: bool) -> None:
    reply = gpt.responses.create(model=GPT, input="Hello", stream=streams, extra_headers=ENCODED_HEADERS)
    assert list(reply) if streams else reply

    body = last_request_body(sandbox)
    assert body["instructions"].startswith("You are Ana")
    assert body["input"].startswith(f"Hello\n\n{HEADING}")


def test_a_chat_with_tools_is_accepted_with_sections_after_a_tool_result(
    gpt: openai.OpenAI, sandbox: RunningSandbox
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    tools: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    messages: Any = [
        *MESSAGES,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "dry"},
    ]

    gpt.chat.completions.create(model=GPT, messages=messages, tools=tools)

    sent_messages = last_request_body(sandbox)["messages"]
    assert sent_messages[1:4] == messages
    assert sent_messages[4]["content"].startswith(HEADING)


def test_responses_with_tools_are_accepted_with_sections_after_a_tool_result(
    gpt: openai.OpenAI, sandbox: RunningSandbox
) -> None:
    items: Any = [
        *MESSAGES,
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "dry"},
    ]

    gpt.responses.create(model=GPT, input=items)

    sent_messages = last_request_body(sandbox)["input"]
    assert sent_messages[:3] == items
    assert HEADING in json.dumps(sent_messages[3])


@pytest.mark.parametrize("kind", ["heartbeat", "delegation"])
def test_heartbeats_and_delegations_are_sent_without_the_memory(
    claude: anthropic.Anthropic, sandbox: RunningSandbox, kind: str
) -> None:
    claude.messages.create(
        model=CLAUDE, max_tokens=100, messages=MESSAGES, extra_headers={"x-foveate-kind": kind}
    )

    body = json.dumps(last_request_body(sandbox))
    assert "## Memory" not in body
    assert "You are Ana" in body


def test_a_token_count_covers_the_request_that_would_be_sent(
    claude: anthropic.Anthropic, sandbox: RunningSandbox
) -> None:
    claude.messages.count_tokens(model=CLAUDE, messages=MESSAGES)

    assert "You are Ana" in json.dumps(last_request_body(sandbox))


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/messages", {"model": CLAUDE, "max_tokens": 9, "messages": MESSAGES}, "invalid_request_error"),
        ("/v1/chat/completions", {"model": GPT, "messages": MESSAGES}, "invalid_request_error"),
        ("/v1/responses", {"model": GPT, "input": "Hello"}, "invalid_request_error"),
    ],
)
def test_required_sections_that_do_not_fit_are_rejected_in_the_providers_format(
    sandbox: RunningSandbox, tmp_path: Path, path: str, body: dict[str, Any], kind: str
) -> None:
    sections = replace(garden_sections(tmp_path / "garden"), limits=Budget(total_tokens=10))
    requests_before = len(sandbox.requests)
    with running_gateway(sandbox.url, tmp_path, options=AgentOptions(sections=sections)) as gateway:
        response = httpx.post(gateway.url + path, json=body, headers=HEADERS, timeout=60)

    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == kind
    assert "workspace/IDENTITY.md (required)" in error["message"]
    assert len(sandbox.requests) == requests_before


@pytest.mark.parametrize("on_overflow", list(OnOverflow))
def test_history_is_cut_for_required_sections_as_for_the_request_itself(
    sandbox: RunningSandbox, tmp_path: Path, on_overflow: OnOverflow
) -> None:
    garden = garden_sections(tmp_path / "garden")
    assert garden.workspace is not None
    (Path(garden.workspace.root) / "IDENTITY.md").write_text("You are Ana.\n" * 300)
    sections = only_sections(garden, workspace=garden.workspace)
    options = AgentOptions(sections=sections, window_tokens=4_000, on_overflow=on_overflow)
    conversation = [
        {"role": "user", "content": "one two three " * 250},
        {"role": "assistant", "content": "Yes."},
    ]
    body = {"model": CLAUDE, "max_tokens": 100, "messages": [*conversation * 4, *MESSAGES]}
    with running_gateway(sandbox.url, tmp_path, options=options) as gateway:
        response = httpx.post(gateway.url + "/v1/messages", json=body, headers=HEADERS, timeout=60)

    if on_overflow is OnOverflow.REJECT:
        assert response.status_code == 400
        message = response.json()["error"]["message"]
        assert message.startswith("prompt is too long")
        assert "required sections take" in message
    else:
        assert response.status_code == 200, response.text
        sent_request = last_request_body(sandbox)
        assert sent_request["system"][0]["text"].count("You are Ana.") == 300
        assert ("[left out: " in json.dumps(sent_request["messages"])) is (on_overflow is OnOverflow.MAKE_ROOM)


@pytest.mark.process
def test_sections_appear_change_and_disappear_with_the_configuration(
    tmp_path: Path, sandbox: RunningSandbox
) -> None:
    garden_sections(tmp_path / "garden")
    config = tmp_path / "foveate.yaml"

    write_config(config, sandbox.url)
    with (
        gateway_process(tmp_path, "--config", str(config), GARDEN=str(tmp_path / "garden")) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):

        def config_with(sections: str) -> str:
            write_config(config, sandbox.url, f"agents:\n- id: ana\n  sections: {sections}\n")
            client.messages.create(
                model=CLAUDE, max_tokens=50, messages=MESSAGES, extra_headers={"x-foveate-agent": "ana"}
            )
            return sandbox.requests[-1].body.decode()

        workspace = config_with("{workspace: {root: $GARDEN/workspace}}")
        memory = config_with(
            "{memory: {paths: [$GARDEN/notes]}, time: {format: natural}, limits: {total_tokens: 900}}"
        )
        broken = config_with("{memory: {paths: []}}")
        no_sections = config_with("null")

    assert "You are Ana" in workspace
    assert "You are Ana" not in memory
    assert "Bed 7 gets water" in memory
    assert time.strftime("%Y") in memory
    assert "Bed 7 gets water" in broken  # an invalid configuration changes nothing
    assert HEADING not in no_sections

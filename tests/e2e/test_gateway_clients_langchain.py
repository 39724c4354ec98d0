"""LangChain chat models through the gateway and the sandbox.

Tests import LangChain when they run: the import takes a second and would delay collection.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from foveate.sandbox.script import ScriptedCall, ScriptStep
from tests.support.oracles.system_state import wait_for_agent_sums
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.sandbox import KEY, running_sandbox, step_headers

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

TOOL_STEP_HEADERS = step_headers(ScriptStep(tools=(ScriptedCall(name="read_file", input={"path": "a.md"}),)))
MODELS = ("claude-opus-5-5", "gpt-4.1", "gpt-4.1 by responses")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[RunningGateway]:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, folder, clock=sandbox.clock) as server,
    ):
        yield server
    assert server.failed_steps == []


def build_model(gateway: RunningGateway, name: str, headers: dict[str, str] | None = None) -> "BaseChatModel":
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI

    if name.startswith("claude"):
        return ChatAnthropic(
            model_name=name,
            base_url=gateway.url,
            api_key=SecretStr(KEY),
            max_retries=0,
            max_tokens_to_sample=400,
            timeout=30,
            stop=None,
            default_headers=headers,
        )
    return ChatOpenAI(
        model=name.removesuffix(" by responses"),
        base_url=gateway.openai_url,
        api_key=SecretStr(KEY),
        max_retries=0,
        timeout=30,
        use_responses_api=name.endswith("responses"),
        default_headers=headers,
    )


def message_text(message: Any) -> str:
    return str(message.text)


# These models share connections, which belong to the event loop that first used them.
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", MODELS)
async def test_a_chat_model_is_invoked_and_streamed(gateway: RunningGateway, name: str) -> None:
    from langchain_core.messages import AIMessage

    model = build_model(gateway, name)
    response = model.invoke("Hello")
    streamed = "".join(message_text(chunk) for chunk in model.stream("Hello"))
    async_response = await model.ainvoke("Hello")
    async_streamed = "".join([message_text(chunk) async for chunk in model.astream("Hello")])

    assert "sandbox" in message_text(response)
    assert message_text(response) == streamed == message_text(async_response) == async_streamed
    assert isinstance(response, AIMessage)
    assert response.usage_metadata is not None
    assert response.usage_metadata["output_tokens"] > 10


@pytest.mark.parametrize("name", MODELS)
def test_bound_tools_are_called_and_their_results_accepted(gateway: RunningGateway, name: str) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def read_file(path: str) -> str:
        """Reads a file."""
        return f"# {path}"

    question = HumanMessage("Hello")
    tool_model: Any = build_model(gateway, name, TOOL_STEP_HEADERS).bind_tools([read_file])
    first: Any = tool_model.invoke([question])
    (call,) = first.tool_calls
    assert (call["name"], call["args"]) == ("read_file", {"path": "a.md"})

    result = ToolMessage(read_file.invoke(call["args"]), tool_call_id=call["id"])
    response: Any = build_model(gateway, name).bind_tools([read_file]).invoke([question, first, result])

    assert not response.tool_calls
    assert "sandbox" in message_text(response)


def test_every_call_of_a_chain_is_charged(gateway: RunningGateway, folder: Path) -> None:
    agent = {"x-foveate-agent": "of-a-chain"}
    for name in MODELS:
        build_model(gateway, name, agent).invoke("Hello")
        list(build_model(gateway, name, agent).stream("Hello"))
    (totals,) = wait_for_agent_sums(folder / "gateway.sqlite", "of-a-chain", 6)

    assert (totals.calls, totals.partial_calls, totals.unknown_calls) == (6, 0, 0)

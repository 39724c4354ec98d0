"""Official clients through the gateway, before the sandbox."""

from pathlib import Path

import anthropic
import openai
from openai.types.chat import ChatCompletionUserMessageParam

from tests.gateways import running_gateway
from tests.sandboxes import KEY, running_sandbox

HELLO: ChatCompletionUserMessageParam = {"role": "user", "content": "Hello"}


def test_anthropics_client_gets_its_answer_through_the_gateway(tmp_path: Path) -> None:
    with running_sandbox() as sandbox, running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway:
        client = anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0)
        reply = client.messages.create(
            model="claude-opus-4-5", max_tokens=100, messages=[{"role": "user", "content": "Hello"}]
        )
        with client.messages.stream(
            model="claude-opus-4-5", max_tokens=100, messages=[{"role": "user", "content": "Hello"}]
        ) as stream:
            text = stream.get_final_text()

    assert reply.content[0].type == "text"
    assert text
    assert gateway.failed == []


def test_openais_client_gets_its_answer_through_the_gateway(tmp_path: Path) -> None:
    with running_sandbox() as sandbox, running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway:
        client = openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0)
        reply = client.chat.completions.create(model="gpt-4.1", messages=[HELLO])
        chunks = list(client.chat.completions.create(model="gpt-4.1", messages=[HELLO], stream=True))
        response = client.responses.create(model="gpt-4.1", input="Hello")

    assert reply.choices[0].message.content
    assert all(chunk.choices for chunk in chunks)
    assert response.output_text
    assert gateway.failed == []

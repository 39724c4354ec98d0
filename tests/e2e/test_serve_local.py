"""`foveate serve --local`: a real small model on this machine, through both APIs, without a key."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anthropic
import openai
import pytest

from foveate.errors import BadOption
from foveate.gateway.local_model import find_weights
from tests.support.servers.gateway_process import child_pids, gateway_process, wait_until_gone

pytestmark = pytest.mark.process


@pytest.fixture(scope="module", autouse=True)
def _require_model() -> None:
    try:
        find_weights()
    except BadOption as reason:
        pytest.skip(f"no model to serve: {reason}")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # The cap applies, but calls that cost nothing pass it.
    folder = tmp_path_factory.mktemp("local")
    (folder / "foveate.yaml").write_text("cost: {caps: [{scope: day, dollars: 0.01}]}\n")
    with gateway_process(folder, "--local", forked=False) as gateway:
        assert gateway.ready_object["local"].startswith("SmolLM2")
        yield gateway.url


def test_both_official_clients_work_without_a_providers_key(url: str) -> None:
    # Temperature 0 gives the same answer each time: llama.cpp starts no message in a stream without text.
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as anthropic_client:
        message = anthropic_client.messages.create(
            model="local",
            max_tokens=8,
            extra_body={"temperature": 0},
            messages=[{"role": "user", "content": "Say hello."}],
        )
        with anthropic_client.messages.stream(
            model="smollm2",
            max_tokens=8,
            extra_body={"temperature": 0},
            messages=[{"role": "user", "content": "Say hello."}],
        ) as stream:
            streamed_text = stream.get_final_text()
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as openai_client:
        chat = openai_client.chat.completions.create(
            model="local",
            max_tokens=8,
            extra_body={"temperature": 0},
            messages=[{"role": "user", "content": "Say hello."}],
        )

    assert message.model.startswith("SmolLM2")
    assert message.usage.output_tokens
    assert streamed_text
    assert chat.choices[0].message.content
    assert chat.usage
    assert chat.usage.prompt_tokens


def test_the_list_of_models_includes_the_local_model(url: str) -> None:
    """Regression: the response had no request id, so it could not be found in the log."""
    result = subprocess.run(["curl", "-si", f"{url}/v1/models"], capture_output=True, text=True, check=True)
    head, _, body = result.stdout.replace("\r", "").partition("\n\n")
    assert [model["id"] for model in json.loads(body)["data"]] == ["local"]
    assert "\nx-foveate-request-id: req_" in head

    result = subprocess.run(
        ["curl", "-s", "-H", "anthropic-version: 2023-06-01", f"{url}/v1/models"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(result.stdout)["data"][0]["type"] == "model"


def test_the_printed_command_works_and_leaves_no_process(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "foveate", "serve", "--local", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "FOVEATE_HOME": str(tmp_path)},
    )
    assert process.stdout is not None
    try:
        lines: list[str] = []
        while not (lines and lines[-1].startswith("metrics")):
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        curl = next(line.strip() for line in lines if line.strip().startswith("curl"))
        response = subprocess.run(curl, shell=True, capture_output=True, text=True, check=True, timeout=60)
        model_pids = child_pids(process.pid)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()

    assert json.loads(response.stdout)["content"][0]["text"]
    assert not re.search("\x1b", "".join(lines))  # no terminal, so no colours
    assert len(model_pids) == 1
    wait_until_gone(model_pids, within_seconds=10)

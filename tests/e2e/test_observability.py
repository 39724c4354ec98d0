"""Metrics, health and log of a gateway, none of which contains a key."""

import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from foveate.sandbox.script import ScriptStep
from tests.support.servers.gateway_process import gateway_process, write_config
from tests.support.servers.sandbox import KEY, running_sandbox, step_headers

pytestmark = pytest.mark.process

SECRETS = (
    "sk-ant-secret-one",
    "sk-secret-two",
    "fov-secret-three",
    "AIzaSecretFourAAAA",
    "SECRET-FIVE-of-a-cookie",
)
TEXT = "the words of a message"


def fetch(url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return the status and body of a response."""
    request = urllib.request.Request(url, data=body, headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def read_health(url: str) -> dict[str, Any]:
    status, body = fetch(f"{url}/health")
    assert status == 200
    report: dict[str, Any] = json.loads(body)
    return report


def read_metrics(url: str, *, calls: int = 0) -> dict[str, float]:
    """Return every sample by name and labels, once no request is open and this number of calls is charged.

    Charges are written shortly after responses.
    """
    deadline = time.monotonic() + 60
    while True:
        _, body = fetch(f"{url}/metrics")
        samples = {
            sample.name
            + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(body)
            for sample in family.samples
        }
        if samples["foveate_open_requests"] == 0 and samples.get("foveate_added_seconds_count", 0) >= calls:
            return samples
        assert time.monotonic() < deadline, body


def send_message(url: str, agent: str = "ana", text: str = TEXT) -> anthropic.types.Message:
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        return client.messages.create(
            model="claude-opus-4-5",
            max_tokens=50,
            messages=[{"role": "user", "content": text}],
            extra_headers={"x-foveate-agent": agent},
        )


def test_metrics_health_and_log_reflect_requests_and_an_invalid_configuration(tmp_path: Path) -> None:
    config = tmp_path / "foveate.yaml"
    with running_sandbox() as sandbox:
        write_config(config, sandbox.url, "server: {log: json}\n")
        with gateway_process(tmp_path, "--config", str(config)) as gateway:
            message = send_message(gateway.url)
            with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
                list(
                    client.chat.completions.create(
                        model="gpt-4.1", messages=[{"role": "user", "content": TEXT}], stream=True
                    )
                )
            assert fetch(f"{gateway.url}/ready")[0] == 200
            assert read_health(gateway.url)["status"] == "ok"
            before = read_metrics(gateway.url, calls=2)

            write_config(config, sandbox.url, "server: {log: jsn}\n")
            send_message(gateway.url)
            degraded_health = read_health(gateway.url)
            assert read_metrics(gateway.url)["foveate_config_valid"] == 0

            write_config(config, sandbox.url, "server: {log: json, log_level: error}\n")
            send_message(gateway.url, agent="not in the log")
            assert read_metrics(gateway.url)["foveate_config_valid"] == 1
            assert read_health(gateway.url)["status"] == "ok"

            (store,) = tmp_path.rglob("*.sqlite")
            store.rename(tmp_path / "aside")
            health_without_store = read_health(gateway.url)
            (tmp_path / "aside").rename(store)
            assert read_health(gateway.url)["store"]["reachable"] is True

            gateway.process.send_signal(signal.SIGTERM)
            _, errors = gateway.wait_for_exit()

    labels = "agent=ana %smodel=claude-opus-4-5 provider=anthropic"
    assert before["foveate_requests_total " + labels % "" + " status=200"] == 1
    assert before["foveate_input_tokens_total " + labels % "exact=true "] == message.usage.input_tokens
    assert before["llm_prompt_tokens_estimated_count " + labels % "exact=false "] == 1
    assert (
        before["foveate_cost_dollars_total agent=ana category=main model=claude-opus-4-5 provider=anthropic"]
        > 0
    )
    assert before["foveate_requests_total agent=default model=gpt-4.1 provider=openai status=200"] == 1
    assert before["foveate_step_duration_seconds_count step=session"] == 2
    assert before["foveate_config_valid"] == before["foveate_store_up"] == 1
    assert (before["foveate_open_requests"], before["foveate_open_streams"]) == (0, 0)

    assert (
        degraded_health["status"],
        degraded_health["config"]["valid"],
        degraded_health["config"]["line"],
    ) == ("degraded", False, 4)
    assert "foveate.yaml:4: log must be one of" in degraded_health["config"]["problem"]

    assert health_without_store["store"]["reachable"] is False
    assert "deleted or replaced" in health_without_store["store"]["problem"]

    lines = [json.loads(line) for line in errors.splitlines()]
    access_log = [line for line in lines if line["logger"] == "foveate.requests"]
    assert [(line["agent"], line["model"], line["status"]) for line in access_log] == [
        ("ana", "claude-opus-4-5", 200),
        ("default", "gpt-4.1", 200),
        ("ana", "claude-opus-4-5", 200),
    ]
    assert all(line["session"] and float(line["dollars"]) > 0 and line["output_tokens"] for line in access_log)
    assert access_log[1]["edits"]["cache"]  # the gateway requests the usage of a streamed chat
    assert any(
        "the new configuration is invalid, keeping the previous one" in line.get("message", "")
        for line in lines
    )
    assert TEXT not in errors


def test_no_output_contains_a_key_wherever_the_client_sends_it(tmp_path: Path) -> None:
    body = json.dumps(
        {"model": "claude-opus-4-5", "max_tokens": 5, "messages": [{"role": "user", "content": TEXT}]}
    ).encode()
    config = tmp_path / "foveate.yaml"
    with running_sandbox() as sandbox, socket.socket() as unused_socket:
        unused_socket.bind(("127.0.0.1", 0))  # a port at which no server listens
        config.write_text(
            f"upstreams:\n  anthropic: {{base_url: '{sandbox.url}'}}\n"
            f"  openai: {{base_url: 'http://127.0.0.1:{unused_socket.getsockname()[1]}/v1'}}\n"
            "server: {log_level: debug}\n"
        )
        with gateway_process(
            tmp_path, "--config", str(config), ANTHROPIC_API_KEY="sk-ant-of-the-server"
        ) as gateway:
            for headers in (
                {"x-api-key": SECRETS[0]},
                {"authorization": f"Bearer {SECRETS[1]}"},
                {"authorization": f"Bearer {SECRETS[2]}"},
                {"x-goog-api-key": SECRETS[3], "cookie": SECRETS[4], "api-key": SECRETS[1]},
                {"x-foveate-agent": SECRETS[0], "x-foveate-session": SECRETS[1]},
            ):
                for path in ("/v1/messages", "/v1/models", "/v1/chat/completions", "/v1/embeddings", "/x"):
                    query = f"?key={SECRETS[3]}&api_key={SECRETS[1]}"
                    fetch(f"{gateway.url}{path}{query}", body, headers)
                    fetch(f"{gateway.url}{path}{query}", b'{"model": [', headers)
            output = fetch(f"{gateway.url}/health")[1] + fetch(f"{gateway.url}/metrics")[1]
            gateway.process.send_signal(signal.SIGTERM)
            output += gateway.wait_for_exit()[1]

    assert "bad_key" in output
    assert "upstream_unreachable" in output
    for secret in (*SECRETS, "sk-ant-of-the-server", TEXT):
        assert secret not in output


def test_workspace_files_open_streams_and_interrupted_responses_are_counted(
    tmp_path: Path,
) -> None:
    config, root = tmp_path / "foveate.yaml", tmp_path / "workspace"
    root.mkdir()
    (root / "IDENTITY.md").write_text("I am Ana.\n")
    agents = [{"id": "ana", "sections": {"workspace": {"root": str(root)}}}]
    with running_sandbox() as sandbox:
        write_config(config, sandbox.url, f"agents: {json.dumps(agents)}\nserver: {{log: json}}\n")
        with gateway_process(tmp_path, "--config", str(config)) as gateway:
            send_message(gateway.url)
            send_message(gateway.url)
            deadline = time.monotonic() + 60
            while f"workspace_cache_misses_total path={root}" not in (samples := read_metrics(gateway.url)):
                assert time.monotonic() < deadline
                time.sleep(0.2)
            assert samples[f"workspace_cache_misses_total path={root}"] == 1
            assert samples[f"workspace_cache_hits_total path={root}"] >= 1
            assert samples[f"workspace_cache_invalidations_total path={root}"] == 0

            (root / "IDENTITY.md").write_text("I am still Ana.\n")
            deadline = time.monotonic() + 60
            while read_metrics(gateway.url)[f"workspace_cache_invalidations_total path={root}"] != 1:
                assert time.monotonic() < deadline
                time.sleep(0.2)

            with (
                anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
                client.messages.stream(
                    model="claude-opus-4-5",
                    max_tokens=500,
                    messages=[{"role": "user", "content": TEXT}],
                    extra_headers=step_headers(ScriptStep(text="word " * 400, pace_seconds=0.05)),
                ) as stream,
            ):
                next(iter(stream.text_stream))
                assert "\nfoveate_open_streams 1.0" in fetch(f"{gateway.url}/metrics")[1]
            assert read_metrics(gateway.url)["foveate_open_streams"] == 0
            gateway.process.send_signal(signal.SIGTERM)
            _, errors = gateway.wait_for_exit()

    *_, line = [line for line in map(json.loads, errors.splitlines()) if line["logger"] == "foveate.requests"]
    assert (line["status"], line["broken"]) == (200, True)


def test_every_worker_shows_the_metrics_of_all_workers(tmp_path: Path) -> None:
    config = tmp_path / "foveate.yaml"
    with running_sandbox() as sandbox:
        write_config(config, sandbox.url)
        # Metrics are stored by process id, which the supervisor of forked workers does not know.
        with gateway_process(tmp_path, "--config", str(config), "--workers", "2", forked=False) as gateway:
            for number in range(8):
                send_message(gateway.url, text=f"{TEXT} {number}")
            name = "foveate_requests_total agent=ana model=claude-opus-4-5 provider=anthropic status=200"
            deadline = time.monotonic() + 60
            counts: list[float | None] = []
            while counts[-6:] != [8] * 6 and time.monotonic() < deadline:  # from either of the two workers
                counts.append(read_metrics(gateway.url).get(name))
                time.sleep(0.1)
            assert counts[-6:] == [8] * 6

            killed_pid = gateway.workers()[0]
            os.kill(killed_pid, signal.SIGKILL)
            while killed_pid in gateway.workers() or len(gateway.workers()) < 2:
                assert time.monotonic() < deadline + 30
                time.sleep(0.1)
            send_message(gateway.url)
            counts = []
            deadline = time.monotonic() + 60
            while counts[-6:] != [9] * 6 and time.monotonic() < deadline:
                counts.append(read_metrics(gateway.url).get(name))
                time.sleep(0.1)
            assert counts[-6:] == [9] * 6
            assert read_health(gateway.url)["status"] == "ok"

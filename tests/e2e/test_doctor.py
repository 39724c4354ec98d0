"""`foveate doctor` as a user runs it: on a fresh machine, with an invalid file, and with real servers."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foveate.memory.search.embeddings import default_embedder
from tests.support.processes.commands import KEYS, WITHOUT_KEYS, Outcome, to_outcome
from tests.support.processes.forked_commands import COMMAND
from tests.support.servers.llama import LlamaServer
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    with running_sandbox() as server:
        yield server


def run_doctor(folder: Path, *arguments: str, **environment: str) -> Outcome:
    """Run `foveate doctor` in its own process."""
    outcome = subprocess.run(
        [*COMMAND, "doctor", *arguments],
        capture_output=True,
        check=False,
        cwd=folder,
        env={**WITHOUT_KEYS, "FOVEATE_HOME": str(folder / "home"), **environment},
    )
    return to_outcome(outcome)


@pytest.fixture
def run_in_process(tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Run `foveate doctor` in this process, in the folder of the test."""
    default_embedder()  # the first use loads it, which can exceed the time limit of a check on a busy machine
    monkeypatch.chdir(tmp_path)
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str, **environment: str) -> Outcome:
        for name, value in {"FOVEATE_HOME": str(tmp_path / "home"), **environment}.items():
            monkeypatch.setenv(name, value)
        outcome: Outcome = run("doctor", *arguments)
        return outcome

    return call


def findings(outcome: Outcome, check: str) -> list[dict[str, Any]]:
    return [finding for finding in json.loads(outcome.out)["findings"] if finding["check"] == check]


def configure(folder: Path, text: str) -> None:
    (folder / "foveate.yaml").write_text(f"server: {{port: 0}}\n{text}", encoding="utf-8")


def test_a_fresh_machine_without_a_network_passes_and_is_unchanged(tmp_path: Path) -> None:
    outcome = run_doctor(tmp_path, "--offline", "--json")
    report = json.loads(outcome.out)

    assert (outcome.code, report["ok"], outcome.err) == (0, True, "")
    checks = {finding["check"] for finding in report["findings"]}
    assert checks - {"agents"} == {  # those that are installed on this machine
        "config",
        "store",
        "vocabularies",
        "embedder",
        "watchers",
        "prices",
        "local model",
        "port",
        "clock",
    }
    assert not list(tmp_path.iterdir())


def test_an_invalid_configuration_fails_and_the_other_checks_run(
    run_in_process: Callable[..., Outcome], tmp_path: Path
) -> None:
    (tmp_path / "foveate.yaml").write_text("server:\n  prot: 80\n  workers: zero\n")
    outcome = run_in_process("--offline")

    assert outcome.code == 1
    report = " ".join(outcome.out.split())
    assert "did you mean port?" in report
    assert "workers must be a whole number" in report
    assert re.search(r"^ok +embedder ", outcome.out, re.MULTILINE)
    assert run_in_process("--offline", "--config", "nowhere.yaml").code == 1


def test_an_unset_key_variable_fails(run_in_process: Callable[..., Outcome], tmp_path: Path) -> None:
    configure(tmp_path, "upstreams: {openai: {key_variable: MY_KEY}}\n")
    outcome = run_in_process("--offline", "--json")

    assert outcome.code == 1
    assert "MY_KEY is not set" in findings(outcome, "config")[0]["said"]


def test_upstreams_are_checked_for_their_key_and_features(
    run_in_process: Callable[..., Outcome], tmp_path: Path, sandbox: RunningSandbox
) -> None:
    configure(
        tmp_path,
        f"upstreams:\n  anthropic: {{base_url: '{sandbox.url}'}}\n  openai: {{base_url: '{sandbox.url}/v1'}}\n"
        "routes:\n  - {models: my-model, upstream: openai, model: gpt-5}\n",
    )
    outcome = run_in_process("--json", ANTHROPIC_API_KEY=KEY, OPENAI_API_KEY=KEY)

    assert outcome.code == 0, outcome.out
    texts = {finding["name"]: "" for finding in findings(outcome, "upstream")}
    for finding in findings(outcome, "upstream"):
        texts[finding["name"]] += f" {finding['said']}"
    assert "accepts the key" in texts["anthropic"]
    assert "counts the tokens of requests and caches prompts at breakpoints" in texts["anthropic"]
    assert "accepts the key" in texts["openai"]
    assert [finding["name"] for finding in findings(outcome, "prices")] == ["gpt-5"]
    assert not [request for request in sandbox.requests if request.method == "POST"], (
        "nothing was asked that costs money"
    )
    assert KEY not in outcome.out


def test_an_unreachable_upstream_fails_within_seconds(
    run_in_process: Callable[..., Outcome], tmp_path: Path
) -> None:
    from foveate.http.listening_sockets import open_listening_socket

    with open_listening_socket("127.0.0.1", 0) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        configure(
            tmp_path,
            f"upstreams:\n  silent: {{base_url: '{address}', api: openai}}\n"
            "  gone: {base_url: 'http://127.0.0.1:1', api: openai}\n",
        )
        outcome = run_in_process("--json")

    assert outcome.code == 1
    by_name = {finding["name"]: finding for finding in findings(outcome, "upstream")}
    assert {name: finding["level"] for name, finding in by_name.items()} == {
        "silent": "failed",
        "gone": "failed",
    }
    assert "no response within 3 s" in by_name["silent"]["said"]


def test_a_local_server_is_checked_for_a_tokenizer(
    run_in_process: Callable[..., Outcome], tmp_path: Path, llama_server: LlamaServer
) -> None:
    configure(tmp_path, f"upstreams: {{mine: {{base_url: '{llama_server.base_url}', api: both}}}}\n")
    outcome = run_in_process("--json")

    assert outcome.code == 0, outcome.out
    assert any("can tokenize (llama.cpp;" in finding["said"] for finding in findings(outcome, "upstream"))


def test_settings_that_prevent_a_start_fail_even_without_a_file(
    run_in_process: Callable[..., Outcome],
) -> None:
    outcome = run_in_process("--offline", "--json", ANTHROPIC_API_KEY="sk-ant-pasted…")

    assert outcome.code == 1
    assert "ANTHROPIC_API_KEY cannot be sent in a header" in findings(outcome, "config")[0]["said"]
    assert "pasted" not in outcome.out


def test_no_password_in_an_address_is_shown(tmp_path: Path) -> None:
    configure(tmp_path, "upstreams: {gone: {base_url: 'http://me:hunter2@127.0.0.1:1', api: openai}}\n")
    outcome = run_doctor(tmp_path, "--json", FOVEATE_STORE="postgresql://me:hunt@er2@127.0.0.1:1/name")

    assert (findings(outcome, "upstream")[0]["level"], findings(outcome, "store")[0]["level"]) == (
        "failed",
        "failed",
    )
    assert "%40" in findings(outcome, "store")[0]["advice"]
    assert "hunter2" not in outcome.out
    assert "er2" not in outcome.out


@pytest.mark.parametrize(("providers", "report"), [("[anthropic]", []), ("[]", ["anthropic"])])
def test_a_provider_left_out_of_the_long_ttl_is_named(
    run_in_process: Callable[..., Outcome], tmp_path: Path, providers: str, report: list[str]
) -> None:
    configure(
        tmp_path,
        f"context_optimization: {{prompt_cache: {{ttl: 1h, long_ttl_providers: {providers}}}}}\n",
    )

    cache_findings = findings(run_in_process("--offline", "--json"), "prompt cache")

    assert [finding["name"] for finding in cache_findings] == report
    assert all("long_ttl_providers" in finding["said"] for finding in cache_findings)


def test_an_address_without_an_api_fails(
    run_in_process: Callable[..., Outcome], tmp_path: Path, sandbox: RunningSandbox
) -> None:
    """Regression: every call got 404, and the doctor reported no problem."""
    configure(tmp_path, f"upstreams: {{openai: {{base_url: '{sandbox.url}/elsewhere'}}}}\n")
    outcome = run_in_process("--json", OPENAI_API_KEY=KEY)

    report = findings(outcome, "upstream")[0]
    assert (outcome.code, report["level"]) == (1, "failed")
    assert "/elsewhere/chat/completions returns 404" in report["said"]

"""`foveate doctor` as a user runs it: on a fresh machine, with an invalid file, and with real servers."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import KEYS, WITHOUT_KEYS, Outcome, finished
from tests.support.processes.forked_commands import COMMAND
from tests.support.servers.llama import LlamaServer
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    with running_sandbox() as running:
        yield running


def doctor(folder: Path, *arguments: str, **environment: str) -> Outcome:
    """`foveate doctor` in a process of its own."""
    done = subprocess.run(
        [*COMMAND, "doctor", *arguments],
        capture_output=True,
        check=False,
        cwd=folder,
        env={**WITHOUT_KEYS, "FOVEATE_HOME": str(folder / "home"), **environment},
    )
    return finished(done)


@pytest.fixture
def examine(tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """`foveate doctor` in this process, in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str, **environment: str) -> Outcome:
        for name, value in {"FOVEATE_HOME": str(tmp_path / "home"), **environment}.items():
            monkeypatch.setenv(name, value)
        return run("doctor", *arguments)  # type: ignore[no-any-return]

    return call


def findings(done: Outcome, check: str) -> list[dict[str, Any]]:
    return [one for one in json.loads(done.out)["findings"] if one["check"] == check]


def configure(folder: Path, text: str) -> None:
    (folder / "foveate.yaml").write_text(f"server: {{port: 0}}\n{text}", encoding="utf-8")


def test_a_fresh_machine_without_a_network_passes_and_is_unchanged(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--offline", "--json")
    report = json.loads(done.out)

    assert (done.code, report["ok"], done.err) == (0, True, "")
    checks = {one["check"] for one in report["findings"]}
    assert checks == {
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
    examine: Callable[..., Outcome], tmp_path: Path
) -> None:
    (tmp_path / "foveate.yaml").write_text("server:\n  prot: 80\n  workers: zero\n")
    done = examine("--offline")

    assert done.code == 1
    report = " ".join(done.out.split())
    assert "did you mean port?" in report
    assert "workers is a whole number" in report
    assert "ok       embedder" in done.out
    assert examine("--offline", "--config", "nowhere.yaml").code == 1


def test_an_unset_key_variable_fails(examine: Callable[..., Outcome], tmp_path: Path) -> None:
    configure(tmp_path, "upstreams: {openai: {key_variable: MY_KEY}}\n")
    done = examine("--offline", "--json")

    assert done.code == 1
    assert "MY_KEY is not set" in findings(done, "config")[0]["said"]


def test_upstreams_are_checked_for_their_key_and_features(
    examine: Callable[..., Outcome], tmp_path: Path, sandbox: RunningSandbox
) -> None:
    configure(
        tmp_path,
        f"upstreams:\n  anthropic: {{base_url: '{sandbox.url}'}}\n  openai: {{base_url: '{sandbox.url}/v1'}}\n"
        "routes:\n  - {models: my-model, upstream: openai, model: gpt-5}\n",
    )
    done = examine("--json", ANTHROPIC_API_KEY=KEY, OPENAI_API_KEY=KEY)

    assert done.code == 0, done.out
    texts = {one["name"]: "" for one in findings(done, "upstream")}
    for one in findings(done, "upstream"):
        texts[one["name"]] += f" {one['said']}"
    assert "takes the key" in texts["anthropic"]
    assert "counts whole requests; caches what is marked" in texts["anthropic"]
    assert "takes the key" in texts["openai"]
    assert [one["name"] for one in findings(done, "prices")] == ["gpt-5"]
    assert not [ask for ask in sandbox.requests if ask.method == "POST"], "nothing was asked that costs money"
    assert KEY not in done.out


def test_an_unreachable_upstream_fails_within_seconds(examine: Callable[..., Outcome], tmp_path: Path) -> None:
    from foveate.http.listening_sockets import open_listening_socket

    with open_listening_socket("127.0.0.1", 0) as silent:
        where = f"http://127.0.0.1:{silent.getsockname()[1]}"
        configure(
            tmp_path,
            f"upstreams:\n  silent: {{base_url: '{where}', api: openai}}\n"
            "  gone: {base_url: 'http://127.0.0.1:1', api: openai}\n",
        )
        done = examine("--json")

    assert done.code == 1
    found = {one["name"]: one for one in findings(done, "upstream")}
    assert {name: one["level"] for name, one in found.items()} == {"silent": "failed", "gone": "failed"}
    assert "no answer within 3 s" in found["silent"]["said"]


def test_a_local_server_is_checked_for_a_tokenizer(
    examine: Callable[..., Outcome], tmp_path: Path, llama_server: LlamaServer
) -> None:
    configure(tmp_path, f"upstreams: {{mine: {{base_url: '{llama_server.base_url}', api: both}}}}\n")
    done = examine("--json")

    assert done.code == 0, done.out
    assert any("tokenises (llama.cpp)" in one["said"] for one in findings(done, "upstream"))


def test_settings_that_prevent_a_start_fail_even_without_a_file(
    examine: Callable[..., Outcome],
) -> None:
    done = examine("--offline", "--json", ANTHROPIC_API_KEY="sk-ant-pasted…")

    assert done.code == 1
    assert "ANTHROPIC_API_KEY holds what no header can" in findings(done, "config")[0]["said"]
    assert "pasted" not in done.out


def test_no_password_in_an_address_is_shown(tmp_path: Path) -> None:
    configure(tmp_path, "upstreams: {gone: {base_url: 'http://me:hunter2@127.0.0.1:1', api: openai}}\n")
    done = doctor(tmp_path, "--json", FOVEATE_STORE="postgresql://me:hunt@er2@127.0.0.1:1/name")

    assert (findings(done, "upstream")[0]["level"], findings(done, "store")[0]["level"]) == ("failed", "failed")
    assert "%40" in findings(done, "store")[0]["advice"]
    assert "hunter2" not in done.out
    assert "er2" not in done.out


@pytest.mark.parametrize(("providers", "report"), [("[anthropic]", []), ("[]", ["anthropic"])])
def test_a_provider_left_out_of_the_long_ttl_is_named(
    examine: Callable[..., Outcome], tmp_path: Path, providers: str, report: list[str]
) -> None:
    configure(
        tmp_path,
        f"context_optimization: {{prompt_cache: {{ttl: 1h, long_ttl_providers: {providers}}}}}\n",
    )

    found = findings(examine("--offline", "--json"), "prompt cache")

    assert [one["name"] for one in found] == report
    assert all("long_ttl_providers" in one["said"] for one in found)


def test_an_address_without_an_api_fails(
    examine: Callable[..., Outcome], tmp_path: Path, sandbox: RunningSandbox
) -> None:
    """Regression: every call got 404, and the doctor reported no problem."""
    configure(tmp_path, f"upstreams: {{openai: {{base_url: '{sandbox.url}/elsewhere'}}}}\n")
    done = examine("--json", OPENAI_API_KEY=KEY)

    report = findings(done, "upstream")[0]
    assert (done.code, report["level"]) == (1, "failed")
    assert "/elsewhere/chat/completions answers 404" in report["said"]

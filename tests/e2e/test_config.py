"""`foveate config` as a user runs it: files are written, checked and shown, and keys are created."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from foveate.gateway.auth.callers import hash_key

INVALID = """server:
  prot: 1
  workers: zero
cost: {caps: [{scope: dya, dollars: 1}]}
agents: [{id: ana, context_optimization: {compaction: 3}}]
"""


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with data in a folder below it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOVEATE_HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.endswith("_API_KEY") or name == "FOVEATE_STORE"]:
        monkeypatch.delenv(name)
    return tmp_path


def test_init_writes_a_valid_file(run: Any, working_folder: Path) -> None:
    init_outcome = run("config", "init")
    outcome = run("config", "check")

    assert init_outcome.code == 0
    assert (working_folder / "foveate.yaml").read_bytes() == (
        Path(__file__).parents[2] / "examples/foveate.yaml"
    ).read_bytes()
    assert outcome.code == 0
    assert outcome.out == "foveate.yaml: no errors found\n"


def test_an_existing_file_is_replaced_only_on_request(run: Any, working_folder: Path) -> None:
    file = working_folder / "own.yaml"
    file.write_text("agents: []\n")

    outcome = run("config", "init", "own.yaml")

    assert outcome.code == 1
    assert "already exists" in outcome.err
    assert file.read_text() == "agents: []\n"
    assert run("config", "init", "own.yaml", "--force").code == 0
    assert "prompt_cache:" in file.read_text()


def test_every_error_is_reported_with_its_line_and_key(run: Any, working_folder: Path) -> None:
    (working_folder / "foveate.yaml").write_text(INVALID)

    outcome = run("config", "check")
    as_json = run("config", "check", "--json")

    assert outcome.code == as_json.code == 2
    assert outcome.out.splitlines() == [
        "foveate.yaml:2: server.prot: unknown setting 'prot'; did you mean port?",
        "foveate.yaml:3: server.workers: workers must be a whole number, not 'zero'",
        "foveate.yaml:4: cost.caps.0.scope: scope must be one of call, session, agent, day, total, not 'dya'",
        "foveate.yaml:5: agents.0.context_optimization.compaction: compaction must be true or false, not 3",
    ]
    errors = json.loads(as_json.out)["errors"]
    assert [(error["line"], error["key"]) for error in errors][:2] == [
        (2, "server.prot"),
        (3, "server.workers"),
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a: [1\n", "foveate.yaml:"),
        ("- 1\n", "the configuration must be a mapping (key: value)"),
        (
            "routes: [{models: '*', upstream: nobody}]\n",
            "foveate.yaml:1: routes.0.upstream: there is no upstream",
        ),
        ("upstreams: {openai: {key_variable: NO_SUCH_KEY}}\n", "NO_SUCH_KEY is not set in the environment"),
        ("server: {tls: {certificate: no.pem, key: no.key}}\n", "the certificate no.pem cannot be read"),
        ("server: {cors_origins: ['https://a.example/']}\n", "must be an origin such as https://app.example"),
        ("server: {host_names: ['a.example:1']}\n", "must be a host name without a port"),
    ],
)
def test_settings_that_cannot_work_on_this_machine_are_reported(
    run: Any, working_folder: Path, content: str, expected: str
) -> None:
    (working_folder / "foveate.yaml").write_text(content)

    outcome = run("config", "check")

    assert outcome.code == 2
    assert expected in outcome.out


SECTIONS = "agents:\n- id: ana\n  window_tokens: 4000\n  sections:\n    limits:\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (f"{SECTIONS}      total_tokens: 5000\n", "foveate.yaml:6: agents.0.sections.limits.total_tokens: "),
        (f"{SECTIONS}      output_reserve: 500\n", "foveate.yaml:6: agents.0.sections.limits.output_reserve: "),
        (
            f"{SECTIONS}      ladder:\n      - {{drop: contxt}}\n      - {{truncate: lowest}}\n",
            "foveate.yaml:7: agents.0.sections.limits.ladder.0: there is no section 'contxt'; did you mean"
            " context?",
        ),
        (
            f"{SECTIONS}      sections:\n        workspace/IDENTIY.md: {{priority: low}}\n",
            "foveate.yaml:7: agents.0.sections.limits.sections.workspace/IDENTIY.md: there is no section"
            " 'workspace/IDENTIY.md'; did you mean workspace/IDENTITY.md?",
        ),
        (
            "server:\n  body_limit_bytes: 1000\n  body_memory_bytes: 2000\n",
            "foveate.yaml:3: server.body_memory_bytes: ",
        ),
    ],
)
def test_conflicting_settings_are_rejected_with_their_line(
    run: Any, working_folder: Path, content: str, expected: str
) -> None:
    (working_folder / "foveate.yaml").write_text(content)

    outcome, serve_outcome = run("config", "check"), run("serve", "--port", "0")

    assert outcome.code == serve_outcome.code == 2
    assert expected in outcome.out
    assert serve_outcome.err.startswith(f"foveate: {outcome.out.partition(': ')[0]}: ")


@pytest.mark.usefixtures("working_folder")
def test_a_missing_file_is_reported(run: Any) -> None:
    outcome = run("config", "check")

    assert outcome.code == 2
    assert "foveate config init" in outcome.err


def test_effective_settings_are_shown_with_their_source_and_without_keys(
    run: Any, working_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (working_folder / "home").mkdir()
    config = working_folder / "home" / "foveate.yaml"
    config.write_text(
        f"server:\n  port: 9000\nagents:\n  - id: ana\n    keys: ['{'a1' * 32}']\n"
        "cost: {caps: [{scope: day, dollars: 20}]}\n"
    )
    monkeypatch.setenv("FOVEATE_STORE", "postgresql://ana:hush@db/x?password=hush&sslmode=require")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hush")

    outcome = run("config", "show", "--json")
    lines = run("config", "show").out

    settings = json.loads(outcome.out)["settings"]
    assert json.loads(outcome.out)["file"] == str(config)
    assert settings["server.port"] == {
        "value": 9000,
        "source": "file",
        "line": 2,
        "variable": None,
        "default": 8090,
    }
    assert settings["server.workers"]["source"] == "default"
    assert settings["store.url"]["variable"] == "FOVEATE_STORE"
    assert settings["cost.caps.0.dollars"]["line"] == 6
    assert settings["upstreams.openai.key"] == {
        "value": "set",
        "source": "environment",
        "line": None,
        "variable": "OPENAI_API_KEY",
        "default": None,
    }
    assert lines.startswith(f"file: {config}\n")
    assert re.search(r"^server\.port +9000 +line 2$", lines, re.MULTILINE)
    assert re.search(r"^store\.url +\S+ +FOVEATE_STORE$", lines, re.MULTILINE)
    for content in (outcome.out, lines):
        assert "hush" not in content
        assert "a1" * 32 not in content


@pytest.mark.usefixtures("working_folder")
def test_without_a_file_all_settings_are_defaults(run: Any) -> None:
    report = json.loads(run("config", "show", "--json").out)

    assert report["file"] is None
    assert {row["source"] for row in report["settings"].values()} == {"default"}


def test_a_key_is_created_and_its_hash_works_in_the_file(run: Any, working_folder: Path) -> None:
    output = run("config", "key", "--agent", "ana: the 1st").out
    key, _, snippet = output.partition("\n")
    (working_folder / "foveate.yaml").write_text(snippet[snippet.index("agents:") :])

    assert key.startswith("fov-")
    assert hash_key(key) in snippet
    assert key not in snippet
    assert run("config", "check").code == 0
    settings = json.loads(run("config", "show", "--json").out)["settings"]
    assert settings["agents.0.id"]["value"] == "ana: the 1st"
    assert json.loads(run("config", "key", "--json").out)["agent"] == "default"


def test_an_admin_key_has_no_agent_and_goes_into_the_server_section(run: Any, working_folder: Path) -> None:
    output = run("config", "key", "--admin").out
    key = output.splitlines()[0]
    (working_folder / "foveate.yaml").write_text(output.partition("Add its hash to foveate.yaml:")[2])

    assert f'admin_keys: ["{hash_key(key)}"]' in output
    assert run("config", "check").code == 0
    config_text = run("config", "show").out
    assert hash_key(key)[:8] in config_text
    assert hash_key(key) not in config_text
    report = json.loads(run("config", "key", "--admin", "--json").out)
    assert (report["agent"], report["admin"]) == (None, True)
    outcome = run("config", "key", "--admin", "--agent", "ana")
    assert outcome.code != 0
    assert "use --admin without --agent" in outcome.err


def test_a_key_cannot_be_both_an_agent_key_and_an_admin_key(run: Any, working_folder: Path) -> None:
    key_hash = hash_key("fov-one")
    (working_folder / "foveate.yaml").write_text(
        f"server:\n  admin_keys: ['{key_hash}']\nagents: [{{id: ana, keys: ['{key_hash}']}}]\n"
    )
    outcome = run("config", "check")

    assert outcome.code != 0
    assert "this is also a key of the agent 'ana'" in outcome.err + outcome.out
    assert ":2" in outcome.err + outcome.out


def test_a_file_of_variables_is_read_and_an_invalid_line_is_reported(
    run: Any, working_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "FOVEATE_STORE"):
        monkeypatch.setenv(name, "")  # so that variables set by the command are removed after the test
        monkeypatch.delenv(name)
    (working_folder / ".env").write_text("OPENAI_API_KEY=sk-hush\nFOVEATE_STORE=sqlite:///other.sqlite\n")
    settings = json.loads(run("config", "show", "--json").out)["settings"]
    assert settings["store.url"]["value"] == "sqlite:///other.sqlite"
    assert settings["upstreams.openai.key"]["value"] == "set"

    (working_folder / ".env").write_text("A=1\nhush\n")
    outcome = run("config", "show")

    assert outcome.code == 2
    assert ".env:2: expected NAME=value" in outcome.err
    assert "hush" not in outcome.err

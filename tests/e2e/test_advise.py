"""`foveate advise` as a user calls it."""

import json
import os
import pty
import subprocess
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from foveate.cli import app
from tests.support.processes.commands import WITHOUT_KEYS, Outcome, spawn
from tests.support.processes.forked_commands import COMMAND

ROOT = Path(__file__).parents[2]
SESSION = ROOT / "examples" / "session.jsonl"
CHANGE = {"context_optimization": {"prompt_cache": {"client_breakpoints": "replace"}}}
VARIABLES = (
    "CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "QWEN_RUNTIME_DIR", "QWEN_HOME", "OPENCODE_DB",
    "PI_CODING_AGENT_SESSION_DIR", "PI_CODING_AGENT_DIR",
)  # fmt: skip


def run_advise(
    *arguments: str | Path, home: Path | None = None, data: Path | None = None, columns: int = 80
) -> Outcome:
    """Run the command in this process, since loading prices takes a second in each new one."""
    env: dict[str, str | None] = {"COLUMNS": str(columns), "NO_COLOR": "1", **dict.fromkeys(VARIABLES)}
    if home is not None:
        env |= {"HOME": str(home), "XDG_CONFIG_HOME": None, "XDG_DATA_HOME": None}
    if data is not None:
        env["FOVEATE_HOME"] = str(data)
    result = CliRunner().invoke(app, ["advise", *map(str, arguments)], env=env, catch_exceptions=False)
    return Outcome(result.exit_code, result.stdout, result.stderr)


def advise_json(*arguments: str | Path) -> dict[str, Any]:
    outcome = run_advise("--json", *arguments)
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert isinstance(report, dict)
    return report


def write_session(path: Path, *, turns: int, ended_at: float, model: str = "claude-sonnet-4-5") -> Path:
    """Write a session of Claude Code with a tool call and its result in each turn, 20 seconds apart."""
    lines: list[dict[str, Any]] = []
    parent, cached = None, 0

    def add(kind: str, turn: int, **more: Any) -> None:
        nonlocal parent
        at = time.gmtime(ended_at - 20 * (turns - turn))
        lines.append(
            {
                "type": kind,
                "uuid": f"{path.stem}-{len(lines)}",
                "parentUuid": parent,
                "sessionId": path.stem,
                "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", at),
                **more,
            }
        )
        parent = lines[-1]["uuid"]

    add("user", 0, message={"role": "user", "content": "fix it"})
    for turn in range(turns):
        name = f"{path.stem}-toolu-{turn}"
        call = {"type": "tool_use", "id": name, "name": "Read", "input": {"file_path": f"src/{turn % 50}.py"}}
        usage = {
            "input_tokens": 3,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 90 if cached else 12_000,
            "output_tokens": 30,
        }
        cached += usage["cache_creation_input_tokens"]
        message = {"role": "assistant", "model": model, "usage": usage, "content": [call]}
        add("assistant", turn, requestId=f"{path.stem}-{turn}", message=message)
        result = {"type": "tool_result", "tool_use_id": name, "content": f"line {turn}\n" * 20}
        add("user", turn, message={"role": "user", "content": [result]})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def check_sums(report: dict[str, Any]) -> None:
    """The parts add up to the charges, and so do the kinds, agents and models."""
    spend, simulation = report["spend"], report["simulation"]
    total = Decimal(spend["dollars"])
    assert sum(Decimal(spend[kind]) for kind in ("uncached", "read", "written", "output", "other")) == total
    for groups in ("by_agent", "by_model"):
        assert sum(Decimal(group["dollars"]) for group in spend[groups]) == total
    parts = sum(Decimal(part["dollars"]) for part in simulation["parts"])
    charged = Decimal(simulation["charged_dollars"])
    assert abs(parts + Decimal(simulation["unattributed_dollars"]) - charged) < Decimal("0.001")
    misses = sum(Decimal(miss["dollars"]) for miss in simulation["misses"])
    assert 0 <= misses < charged
    assert 0 <= Decimal(simulation["superseded_dollars"]) < charged


@pytest.fixture(scope="module")
def recorded_advice(shared_data: Path) -> dict[str, Any]:
    return advise_json(shared_data / "sessions" / "claude_code", shared_data / "sessions" / "pi")


@pytest.mark.process
def test_the_recorded_sessions_add_up(recorded_advice: dict[str, Any]) -> None:
    check_sums(recorded_advice)

    simulation = recorded_advice["simulation"]
    assert recorded_advice["spend"]["dollars"].startswith("46.15")
    assert abs(Decimal(simulation["unattributed_dollars"])) < Decimal("0.01")
    assert Decimal(simulation["charged_dollars"]) >= Decimal("0.9") * Decimal(
        recorded_advice["spend"]["dollars"]
    )
    error = Decimal(simulation["recorded"]["dollars"]) / Decimal(simulation["charged_dollars"]) - 1
    assert abs(error) < Decimal("0.005")


@pytest.mark.process
def test_the_recommended_settings_save_what_is_said(recorded_advice: dict[str, Any]) -> None:
    simulation = recorded_advice["simulation"]
    candidates = {candidate["name"]: candidate for candidate in simulation["candidates"]}

    assert 1 <= len(simulation["recommended"]) <= 3
    mechanisms = [candidates[name]["mechanism"] for name in simulation["recommended"]]
    assert len(set(mechanisms)) == len(mechanisms)
    best = min(Decimal(candidates[name]["cost"]["dollars"]) for name in simulation["recommended"])
    combination = simulation["combination"]
    assert Decimal(combination["cost"]["dollars"]) <= best
    assert set(combination["candidates"]) <= set(simulation["recommended"])


def test_a_screen_of_text_explains_the_example() -> None:
    outcome = run_advise(SESSION)

    assert outcome.code == 0
    assert "All recorded calls: $0.35 in 14 calls of 1 session" in outcome.out
    assert "the cache entry expired before the request arrived" in outcome.out
    assert "context_optimization: {prompt_cache: {client_breakpoints: replace}}" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert len(outcome.out.splitlines()) <= 50


def test_the_example_adds_up_in_json() -> None:
    check_sums(advise_json(SESSION))


def test_local_logs_are_found_and_old_ones_are_left_out(tmp_path: Path) -> None:
    now = time.time()
    projects = tmp_path / ".claude" / "projects" / "work"
    write_session(projects / "new.jsonl", turns=5, ended_at=now - 60)
    old = write_session(projects / "old.jsonl", turns=7, ended_at=now - 40 * 86_400)
    os.utime(old, (now - 40 * 86_400,) * 2)

    month, all_days, other = (
        run_advise("--json", *arguments, home=tmp_path)
        for arguments in ((), ("--days", "90"), ("--agent", "codex"))
    )

    assert json.loads(month.out)["spend"]["calls"] == 5
    assert json.loads(all_days.out)["spend"]["calls"] == 12
    assert other.code == 2
    assert "no logs of coding agents" in other.err


def test_no_logs_at_all_is_an_error_that_says_where_it_looked(tmp_path: Path) -> None:
    outcome = run_advise(home=tmp_path)

    assert outcome.code == 2
    assert "has no logs of coding agents" in outcome.err
    assert str(tmp_path / ".claude" / "projects") in outcome.err
    assert not outcome.out


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    log = tmp_path / ".claude" / "projects" / "p" / "broken.jsonl"
    log.parent.mkdir(parents=True)
    log.symlink_to(tmp_path / "missing")

    outcome = run_advise(home=tmp_path)

    assert outcome.code == 2
    assert f"{log}: No such file or directory" in outcome.err


def test_logs_without_recent_calls_are_an_error_that_names_the_option(tmp_path: Path) -> None:
    (tmp_path / ".claude" / "projects").mkdir(parents=True)

    outcome = run_advise(home=tmp_path)

    assert outcome.code == 2
    assert "no model call in the last 30 days: use --days" in outcome.err


def test_unknown_prices_are_an_error_that_names_the_models(tmp_path: Path) -> None:
    log = write_session(tmp_path / "log.jsonl", turns=3, ended_at=time.time(), model="nobody-knows-1")

    outcome = run_advise(log)

    assert outcome.code == 2
    assert "no price is known for nobody-knows-1" in outcome.err


def test_calls_of_unknown_price_are_said_to_be_left_out(tmp_path: Path) -> None:
    log = write_session(tmp_path / "log.jsonl", turns=3, ended_at=time.time(), model="nobody-knows-1")

    outcome = run_advise(log, SESSION)

    assert outcome.code == 0
    assert "Not included: 3 calls without a known price (nobody-knows-1)" in outcome.out


def test_corrupt_lines_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(SESSION.read_bytes() + b'{"type": "assist\n\x00\xff\n')

    outcome = run_advise(log)

    assert outcome.code == 0
    assert "skipped 2 lines that could not be read" in outcome.err


@pytest.mark.process
@pytest.mark.slow
def test_a_session_of_a_thousand_turns_adds_up(tmp_path: Path) -> None:
    log = write_session(tmp_path / "huge.jsonl", turns=1_000, ended_at=time.time())

    report = advise_json(log)

    check_sums(report)
    assert report["simulation"]["calls"] == 1_000
    assert Decimal(report["simulation"]["superseded_dollars"]) > 0


def test_without_a_terminal_nothing_is_written(tmp_path: Path) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_text("# mine\nserver: {port: 9}\n", encoding="utf-8")

    outcome = run_advise(SESSION, "--apply", "--config", file)

    assert outcome.code == 2
    assert "add --yes" in outcome.err
    assert "client_breakpoints: replace" in outcome.err
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_text(encoding="utf-8") == "# mine\nserver: {port: 9}\n"


def test_settings_are_written_with_a_backup(tmp_path: Path) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_text("# mine\nserver: {port: 9}\n", encoding="utf-8")

    outcome = run_advise(SESSION, "--apply", "--yes", "--config", file)

    (backup,) = [path for path in tmp_path.iterdir() if path != file]
    assert outcome.code == 0
    assert backup.name in outcome.out
    assert backup.read_text(encoding="utf-8") == "# mine\nserver: {port: 9}\n"
    assert file.read_text(encoding="utf-8").startswith("# mine\nserver: {port: 9}\n")
    assert yaml.safe_load(file.read_text(encoding="utf-8")) == {"server": {"port": 9}, **CHANGE}


def test_a_second_run_starts_from_the_written_settings(tmp_path: Path) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_text("server: {port: 9}\n", encoding="utf-8")
    run_advise(SESSION, "--apply", "--yes", "--config", file)

    report = advise_json(SESSION, "--config", file)

    saved = Decimal(report["simulation"]["recorded"]["dollars"]) - Decimal(
        report["simulation"]["current"]["dollars"]
    )
    assert saved > Decimal("0.1")
    assert "Foveate's cache breakpoints instead of the client's" not in [
        candidate["name"] for candidate in report["simulation"]["candidates"]
    ]


def test_a_new_configuration_is_written_to_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"

    outcome = run_advise(SESSION, "--apply", "--yes", "--json", data=data)

    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["applied"] == {"file": str(data / "foveate.yaml"), "backup": None}
    assert yaml.safe_load((data / "foveate.yaml").read_text(encoding="utf-8")) == CHANGE


@pytest.mark.process
@pytest.mark.parametrize(("answer", "is_written"), [(b"y\n", True), (b"\n", False)])
def test_a_terminal_is_asked(tmp_path: Path, answer: bytes, is_written: bool) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_text("server: {port: 9}\n", encoding="utf-8")
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "advise", str(SESSION), "--apply", "--config", str(file)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=WITHOUT_KEYS | {"COLUMNS": "80"},
    ) as process:
        os.close(terminal)
        shown = b""
        while b"?" not in shown.partition(b"Write ")[2]:
            shown += os.read(controller, 65_536)
        os.write(controller, answer)
        assert process.wait(30) == 0
    os.close(controller)

    assert b"+context_optimization:" in shown
    assert ("replace" in file.read_text(encoding="utf-8")) is is_written
    assert len(list(tmp_path.iterdir())) == 1 + is_written


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--days", "0"), "--days takes a number of days above 0"),
        (("--days", "nan"), "--days takes a number of days above 0"),
        (("--agent", "clippy"), "--agent takes claude-code"),
        (("--yes",), "--yes needs --apply"),
        (("missing.jsonl",), "does not exist"),
    ],
)
def test_wrong_options_say_what_to_do(arguments: tuple[str, ...], message: str) -> None:
    outcome = run_advise(*arguments)

    assert outcome.code == 2
    assert message in outcome.err


@pytest.mark.process
def test_the_command_runs_as_a_process() -> None:
    outcome = spawn("advise", SESSION)

    assert outcome.code == 0, outcome.err
    assert "Where it went" in outcome.out

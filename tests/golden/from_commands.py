"""Contracts that show only at run time: JSON of commands, exit codes, error responses, response headers.

As a module, it prints them. `contracts` runs it in a process of its own, whose environment and working folder
depend on nothing outside.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer.main
from typer.testing import CliRunner

from foveate.cli import app
from tests.golden.from_gateway import NOWHERE, GatewayContracts, observe_gateway
from tests.golden.shapes import describe_shape
from tests.golden.stored_records import LATER, SESSION, fill_store
from tests.support.harness import network_guard
from tests.support.processes import forked_commands
from tests.support.processes.service_managers import record_programs
from tests.support.servers.gateway_process import write_config
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SECTIONS = ("exit codes of runs", "gateway refusals", "json keys", "response headers")
MODEL = "claude-opus-4-5"
# Paths of objects whose keys are data: names of settings and models, failed steps.
MAPS = (
    *("settings", r"(sessions\[\]\.)?(unpriced_calls|models)", "failures"),
    *("environment", "files"),
    *(r"(.*\.)?dollars_per_million", r"price\.service_tiers", "skipped", r"cache\.write_prices"),
)


def contracts() -> dict[str, dict[str, str]]:
    """Derive every section that needs processes."""
    with TemporaryDirectory() as home:
        environment = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        finished = subprocess.run(
            [sys.executable, "-m", "tests.golden.from_commands"],
            cwd=ROOT,
            env={**environment, "HOME": home, "LANG": "C.UTF-8", "TZ": "UTC", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert finished.returncode == 0, finished.stderr
    sections: dict[str, dict[str, str]] = json.loads(finished.stdout)
    return sections


class Runs:
    """Runs commands, and records their JSON and their exit codes."""

    def __init__(self) -> None:
        self._documents: dict[str, list[object]] = {}
        self.exit_codes: dict[str, str] = {}

    def add(self, name: str, document: Any) -> None:
        """Record a document by its source; an error looks the same whichever command fails."""
        is_error = set(document) == {"error"} and name.startswith("foveate")
        self._documents.setdefault("foveate, any command that fails" if is_error else name, []).append(document)

    def run(self, command: str, *arguments: str | Path, kind: str = "", case: str = "") -> None:
        """Run a command with `--json` in this process.

        `kind` distinguishes different documents of one command, `case` only its exit codes.
        """
        self.run_line(command, *arguments, "--json", kind=kind, case=case)

    def run_line(
        self, command: str, *arguments: str | Path, kind: str = "", case: str = "", path: str | None = None
    ) -> None:
        """Run a command with exactly these arguments, and with `path` as PATH."""
        command_line = [*command.split(), *map(str, arguments)]
        environment = None if path is None else {"PATH": path}
        result = CliRunner().invoke(app, command_line, catch_exceptions=False, env=environment)
        self._record(f"foveate {command}", result.stdout, result.exit_code, kind, case)

    def spawn(self, command: str, *arguments: str, kind: str = "", case: str = "", stdin: str = "") -> None:
        """Run a command with `--json` in a process of its own, with standard input."""
        command_line = [*forked_commands.COMMAND, command, *arguments, "--json"]
        finished = subprocess.run(command_line, input=stdin, capture_output=True, text=True, check=False)
        self._record(f"foveate {command}", finished.stdout, finished.returncode, kind, case)

    def _record(self, name: str, output: str, code: int, kind: str, case: str) -> None:
        documents = [json.loads(line) for line in output.splitlines()]
        assert documents, f"{name} printed nothing and ended with {code}"
        for document in documents:
            self.add(f"{name}, {kind}" if kind else name, document)
        self.exit_codes[", ".join(filter(None, (name, kind, case)))] = str(code)

    def keys(self) -> dict[str, str]:
        """Return the keys of all documents by their source."""
        return {
            f"{name}: {path}": kind
            for name, documents in self._documents.items()
            for path, kind in describe_shape(documents, MAPS).items()
        }

    def missing_commands(self) -> list[str]:
        """Return the commands with `--json` that were not run."""
        sources = " ".join(f"{name}," for name in self._documents)
        return [name for name in _commands_with_json(typer.main.get_command(app)) if f"{name}," not in sources]


def _commands_with_json(command: Any, name: str = "foveate") -> list[str]:
    own = [name] if any("--json" in parameter.opts for parameter in command.params) else []
    subcommands = getattr(command, "commands", {}).items()
    return own + [
        path for subcommand, inner in subcommands for path in _commands_with_json(inner, f"{name} {subcommand}")
    ]


def run_all(folder: Path) -> dict[str, dict[str, str]]:
    """Run every command that prints JSON; `folder` is the working folder and has all data."""
    runs = Runs()
    forked_commands.ensure_running()
    _run_offline(runs, folder)
    _run_on_store(runs, folder)
    with running_sandbox() as sandbox:
        gateway = _run_servers(runs, folder, sandbox)
        _run_chat(runs, folder, sandbox)
    assert not runs.missing_commands(), f"run these with --json too: {', '.join(runs.missing_commands())}"
    sections = (runs.exit_codes, gateway.error_codes, runs.keys(), gateway.response_headers)
    return dict(zip(SECTIONS, sections, strict=True))


def _run_offline(runs: Runs, folder: Path) -> None:
    """Run what needs neither a store nor a server."""
    request, sections = EXAMPLES / "request.json", EXAMPLES / "sections.yaml"
    runs.run("count", request)
    runs.run("count", "--request", request, case="request")
    runs.run("count", folder / "missing", case="missing file")
    runs.run("count", "--backend", "nonsense", request, case="wrong option")
    runs.run("assemble", "--sections", sections, "--total-tokens", "120")
    runs.run("assemble", "--sections", sections, "--total-tokens", "5", case="required sections do not fit")
    first, second = (EXAMPLES / "cache" / name for name in ("first.json", "second.json"))
    runs.run("explain", "--cache", first, second, "--price", "3", "--gap", "2h", kind="cache", case="break")
    runs.run("explain", "--cache", first, first, kind="no cache break")
    notes = EXAMPLES / "notes"
    broken = folder / "broken.org"
    broken.write_bytes(b"* \xff\n")
    runs.run("memory render", notes, broken, "--query", "water")
    runs.run("memory query", notes, broken)
    runs.run("memory outline", notes, broken)
    runs.run("memory logs", broken)
    runs.run("memory skill", "watering", "--folder", f"{notes}/skills")
    _run_agents(runs, folder)
    runs.run("config init", folder / "first.yaml")
    runs.run("config check", folder / "first.yaml")
    (folder / "wrong.yaml").write_text("server: {port: many}\nnonsense: 1\n", encoding="utf-8")
    runs.run("config check", folder / "wrong.yaml", case="wrong file")
    runs.run("config show", folder / "first.yaml")
    runs.run("config key")
    runs.run("prices show", "claude-haiku-5-5")
    runs.run("prices show", "claude-opus-99", case="inherited")
    price = {"litellm_provider": "openai", "mode": "chat", "output_cost_per_token": 2e-6}
    long_input = {"input_cost_per_token": 1e-6, "input_cost_per_token_above_200k_tokens": 2e-6}
    listed = json.dumps(dict.fromkeys(("gpt-99", "gpt-5"), price | long_input) | {"gpt-98": price})
    (folder / "prices-list.json").write_text(listed, encoding="utf-8")
    runs.run("prices update", folder / "prices-list.json", "--date", "2026-11-17")
    runs.run("prices update", folder / "missing", case="missing file")
    (folder / "prices.json").unlink()
    recorded = (EXAMPLES / "session.jsonl").read_text(encoding="utf-8").splitlines()
    (folder / "short.jsonl").write_text("\n".join(recorded[:12]) + "\n", encoding="utf-8")
    (folder / "broken.jsonl").write_text("\n".join([*recorded, '{"type":']) + "\n", encoding="utf-8")
    runs.run("replay", folder / "broken.jsonl")
    runs.run("replay", folder / "broken.jsonl", folder / "first.yaml", case="unreadable file")
    (folder / "claude" / "projects" / "-home-ana").mkdir(parents=True)
    (folder / "claude" / "projects" / "-home-ana" / "short.jsonl").write_text("\n".join(recorded[:12]) + "\n")
    os.environ["CLAUDE_CONFIG_DIR"] = str(folder / "claude")
    for report in ("daily", "sessions", "projects", "blocks"):
        runs.run("usage", report, kind="" if report == "daily" else report)
    runs.run("usage", "hourly", case="unknown report")
    del os.environ["CLAUDE_CONFIG_DIR"]
    runs.run("usage", case="no logs")
    runs.run("status", "--url", NOWHERE, case="no gateway")
    runs.run("advise", folder / "broken.jsonl")
    runs.run("advise", folder / "broken.jsonl", "--days", "0", case="wrong option")
    runs.run("demo", "--session", folder / "short.jsonl")
    _run_service(runs, folder)
    runs.run("doctor", "--offline")
    del runs.exit_codes["foveate doctor"]  # the result depends on the machine


def _run_service(runs: Runs, folder: Path) -> None:
    """Run the commands of a service, with programs that only record in place of systemd."""
    programs = record_programs(folder / "programs", "systemctl", "loginctl")
    running = "ActiveState=active\nSubState=running\nActiveEnterTimestamp=@1794978013\n"
    programs.print_from("systemctl", running)
    os.environ["PATH"] = programs.path
    (folder / "service.yaml").write_text("server: {port: 0}\n", encoding="utf-8")
    runs.run("service install", "--config", folder / "service.yaml", "--print", kind="print")
    runs.run("service status", case="not installed")
    runs.run("service install", "--config", folder / "service.yaml")
    runs.run("service status")
    programs.print_from("systemctl", "ActiveState=failed\nSubState=failed\nExecMainStatus=2\n")
    runs.run("service install", "--config", folder / "service.yaml", case="does not start")
    runs.run("service remove")
    programs.fail("systemctl show", "Failed to connect to bus")
    runs.run("service status", case="no service manager")


def _run_agents(runs: Runs, folder: Path) -> None:
    """Plan runs of agents, and list those that are installed: one, with an address of its own."""
    runs.run_line("run", "--json", "--print", "pi", kind="with --print")
    runs.run_line("run", "--json", "--print", "continue", kind="with --print", case="lines to add")
    runs.run_line("run", "--json", "--print", "nonsense", kind="with --print", case="unknown agent")
    programs = folder / "agents"
    programs.mkdir()
    for name in ("claude", "goose"):
        (programs / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    settings = Path.home() / ".claude/settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"env": {"ANTHROPIC_BASE_URL": "https://proxy.example"}}', encoding="utf-8")
    runs.run_line("agents", "--all", "--json", path=str(programs))


def _run_on_store(runs: Runs, folder: Path) -> None:
    """Run what reads the store; commands that change it come last."""
    bodies = EXAMPLES / "cache" / "first.json", EXAMPLES / "cache" / "second.json"
    asyncio.run(fill_store(f"sqlite:///{folder}/foveate.sqlite", bodies))
    caps = ("scope: day, dollars: 2", "scope: agent, agent: ana, dollars: 1", "scope: session, dollars: 1")
    listed = ", ".join(f"{{{cap}}}" for cap in caps)
    (folder / "caps.yaml").write_text(f"cost: {{caps: [{listed}]}}\n", encoding="utf-8")
    runs.run("cost", "--by", "agent,session,model,category,day")
    runs.run("cost", "--by", "model", "--since", "7d", "--until", "2100-01-01", case="since")
    runs.run("cost caps", "--config", folder / "caps.yaml")
    runs.run("cost export", "--output", folder / "calls.csv")
    correction = ("--dollars", "0.25", "--reason", "invoice")
    runs.run("cost correct", "--call", "call-1", *correction)
    runs.run("cost correct", "--total", *correction, case="account")
    runs.run("cost correct", "--call", "unknown", *correction, case="unknown call")
    runs.run("cost corrections")
    runs.run("explain", kind="sessions")
    runs.run("explain", SESSION, kind="session")
    runs.run("explain", "call-1", kind="request")
    runs.run("explain", "call-2", kind="request")
    runs.run("explain", SESSION, "--cache", kind="cache of kept requests")
    runs.run("explain", "unknown", case="unknown session")
    runs.run("replay", folder / "foveate.sqlite", case="store")
    runs.run("compactions list")
    runs.run("compactions preview", SESSION)
    runs.run("compactions preview", SESSION, "--keep-tokens", "0", case="all")
    runs.run("compactions show", LATER.id)
    runs.run("compactions show", LATER.id, "--full", case="full")
    runs.run("compactions show", "undone", case="undone")
    runs.run("compactions export", "--output", folder / "compactions.jsonl")
    for line in (folder / "compactions.jsonl").read_text(encoding="utf-8").splitlines():
        runs.add("compactions.jsonl", json.loads(line))
    runs.run("compactions undo", LATER.id)
    runs.run("compactions undo", LATER.id, case="again")
    runs.run("store info")
    runs.run("store vacuum", "--dry-run")
    runs.run("store vacuum", "--keep-ledger-days", "90", case="for good")


def _run_servers(runs: Runs, folder: Path, sandbox: RunningSandbox) -> GatewayContracts:
    """Run `foveate sandbox` and `foveate serve` until Ctrl-C."""
    with subprocess.Popen(
        [*forked_commands.COMMAND, "sandbox", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        runs.add("foveate sandbox", json.loads(process.stdout.readline()))
        process.send_signal(signal.SIGINT)
        runs.exit_codes["foveate sandbox, Ctrl-C"] = str(process.wait(60))
    gateway = observe_gateway(folder, sandbox.url)
    for name, documents in gateway.documents.items():
        for document in documents:
            runs.add(name, document)
    runs.exit_codes["foveate serve, Ctrl-C"] = str(gateway.exit_code)
    return gateway


def _run_chat(runs: Runs, folder: Path, sandbox: RunningSandbox) -> None:
    os.environ["ANTHROPIC_API_KEY"] = KEY
    write_config(folder / "foveate.yaml", sandbox.url)
    runs.spawn("chat", "--model", MODEL, "Hello!", kind="answer")
    runs.spawn("chat", "--model", MODEL, stdin=":cost\n", kind="command")
    write_config(folder / "foveate.yaml", NOWHERE)
    runs.spawn("chat", "--model", MODEL, "Hello!", kind="answer", case="unreachable")


if __name__ == "__main__":
    network_guard.block_other_hosts()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with TemporaryDirectory() as folder:
        os.environ["FOVEATE_HOME"] = folder
        os.chdir(folder)
        sys.stdout.write(json.dumps(run_all(Path(folder))))

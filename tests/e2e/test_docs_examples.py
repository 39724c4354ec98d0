"""Run every example in README.md and docs/: commands with real servers, Python, and configurations.

The pages share a gateway in front of a sandbox, and a store with the calls of a day. A page that starts
another server uses that one.
"""

import ast
import asyncio
import inspect
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from foveate.config.budget_files import load_budget
from foveate.config.cost_settings import parse_cost
from foveate.config.document import parse_document
from foveate.config.load import parse_settings
from foveate.config.settings import Settings
from foveate.errors import BadOption
from foveate.gateway.local_model import find_weights
from tests.support.harness.doc_examples import (
    PAGES,
    ROOT,
    CodeBlock,
    ShellCommand,
    matches_output,
    parse_commands,
    read_blocks,
)
from tests.support.processes.commands import Outcome
from tests.support.processes.fork_client import READ_AT_START
from tests.support.processes.forked_commands import COMMAND, REAL_COMMAND
from tests.support.scenarios.day_of_traffic import NAMED_SESSION_ID, send_day_of_traffic
from tests.support.servers.gateway_process import gateway_process, write_config
from tests.support.servers.sandbox import running_sandbox

GATEWAY, SANDBOX = "http://127.0.0.1:8090", "http://127.0.0.1:8790"
SERVER_COMMAND = re.compile(r"^(?:\./run|foveate)(?P<words>| (?:serve|sandbox)\b[^|&;]*)$")
SHELLS = ("bash", "console")
BLOCKS = [block for page in PAGES for block in read_blocks(page)]
# The number of blocks that cannot be run, by page; each page says why.
NOT_RUN = {
    "docs/get-started/install.md": 7,  # has its own test
    "docs/guides/chat.md": 1,  # a terminal
    "docs/guides/compaction.md": 1,  # what a command prints
    "docs/guides/demo.md": 1,  # has its own test
    "docs/reference/gateway.md": 5,  # Docker, a service manager
    "README.md": 1,  # an agent
    "docs/guides/agents.md": 5,  # agents, their installation, a file of one
    "docs/guides/claude-code.md": 2,  # Claude Code itself
    "docs/guides/codex.md": 1,  # Codex itself
    "docs/guides/grafana.md": 3,  # Prometheus's own file and program
    "docs/guides/postgresql.md": 1,  # a server of the user
    "docs/reference/metrics.md": 1,  # Prometheus's own file
    "docs/guides/dashboard.md": 2,  # a gateway for other machines; nginx's own file
}
DATABASE = "postgresql://foveate@db.example/foveate"
# Pages whose commands see only their own data.
SEPARATE_PAGES = ("docs/get-started/quickstart.md", "docs/guides/postgresql.md")
# This page starts the command as users do. On others it is forked, which takes a fifth of the time.
NOT_FORKED = "docs/get-started/quickstart.md"


def distinct(pages: Any) -> list[str]:
    return list(dict.fromkeys(pages))


@dataclass
class DocServers:
    """Servers for the pages: the real addresses and ids by those in the pages, and the data of the gateway.

    `urls_by_command` maps the command of each started server to its address.
    """

    home: Path
    addresses: dict[str, str]
    urls_by_command: dict[str, str] = field(default_factory=dict)
    exit_stack: ExitStack = field(default_factory=ExitStack)

    def to_real(self, text: str) -> str:
        """Replace the addresses in a text by those of the running servers."""
        for documented, real in self.addresses.items():
            text = text.replace(documented, real).replace(
                documented.removeprefix("http://"), real.removeprefix("http://")
            )
        return text

    def to_documented(self, text: str) -> str:
        """Replace real addresses and ids by those that the page shows."""
        for documented, real in self.addresses.items():
            text = text.replace(real, documented)
        return text


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DocServers]:
    """The gateway and the sandbox for all pages, with a day's work in the store."""
    home = tmp_path_factory.mktemp("home")
    with running_sandbox() as sandbox:
        write_config(home / "foveate.yaml", sandbox.url, "keep_requests: {enabled: true}\n")
        with gateway_process(home) as gateway:
            send_day_of_traffic(gateway.url, home)
            addresses = {GATEWAY: gateway.url, SANDBOX: sandbox.url, " 16d9": f" {NAMED_SESSION_ID}"}
            doc_servers = DocServers(home, addresses, {"serve": gateway.url})
            with doc_servers.exit_stack:
                yield doc_servers


@dataclass
class PageTerminal:
    """The terminal of a page: it runs commands in sequence, in one folder and one environment."""

    servers: DocServers
    folder: Path
    environment: dict[str, str]

    def run(self, typed: str) -> Outcome:
        state = self.folder / ".state"
        save_state = f'{{ export -p; echo cd "$PWD"; }} >{state}'
        script = f"set -a; [ -f {state} ] && . {state}\nset -e\n{typed}\n{save_state}"
        with subprocess.Popen(
            ["bash", "-c", self.servers.to_real(script)],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=120)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # and the processes that it has started
                raise
        return Outcome(process.returncode, out, err)

    def start_server(self, words: str) -> None:
        """Start a server once, as the page does; its address then replaces the one in the page."""
        kind, *options = words.split() or ["serve", "--local"]
        server_command = " ".join([kind, *options])
        if "--local" in options:
            require_weights()
        if server_command not in self.servers.urls_by_command:
            self.servers.urls_by_command[server_command] = self._start_process(kind, *options)
        self.servers.addresses[GATEWAY if kind == "serve" else SANDBOX] = self.servers.urls_by_command[
            server_command
        ]

    def _start_process(self, *words: str) -> str:
        call = (words[0], "--port", "0", "--json", *words[1:])
        process = subprocess.Popen(
            ["bash", "-c", f"[ -f .state ] && . ./.state; exec foveate {' '.join(call)}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.servers.exit_stack.callback(process.wait)
        self.servers.exit_stack.callback(process.terminate)
        assert process.stdout
        self.servers.exit_stack.enter_context(process.stdout)
        line = process.stdout.readline()
        assert line, f"{words} did not start"
        return str(json.loads(line)["url"])


def require_weights() -> None:
    try:
        find_weights()
    except BadOption as reason:
        pytest.skip(f"no model to serve: {reason}")


def require_programs(page: str) -> None:
    """Skip a page that calls a program which is not installed."""
    texts = [
        text
        for block in BLOCKS
        if block.page == page
        for text in (block.text, *(code for _, code in block.setup))
    ]
    for program in ("curl", "jq", "openssl"):
        if any(re.search(rf"\b{program} ", text) for text in texts) and shutil.which(program) is None:
            pytest.skip(f"{page} calls {program}, which is not here")


@pytest.fixture
def terminal(servers: DocServers, tmp_path: Path, request: pytest.FixtureRequest) -> PageTerminal:
    """A terminal in a folder with the same files as the project folder."""
    for name in ("README.md", "CHANGELOG.md", "examples", "dashboards"):
        (tmp_path / name).symlink_to(ROOT / name)
    programs = tmp_path / ".programs"
    programs.mkdir()
    command = REAL_COMMAND if request.node.callspec.params["page"] == NOT_FORKED else COMMAND
    for program in (programs / "foveate", tmp_path / "run"):
        program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        program.chmod(0o755)
    for name in ("python", "python3"):
        (programs / name).symlink_to(sys.executable)
    (tmp_path / ".curlrc").write_text("fail-with-body\n")  # an error response makes curl fail
    names = ("LANG", "PATH", "TMPDIR", *READ_AT_START)
    environment = {name: value for name, value in os.environ.items() if name.startswith(names)} | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "FOVEATE_HOME": str(servers.home),
        "ANTHROPIC_API_KEY": "sandbox",
        "OPENAI_API_KEY": "sandbox",
    }
    return PageTerminal(replace(servers, addresses=dict(servers.addresses)), tmp_path, environment)


@pytest.mark.process
@pytest.mark.parametrize("page", distinct(block.page for block in BLOCKS if block.language in SHELLS))
def test_every_command_of_a_page_prints_the_output_shown(
    terminal: PageTerminal, page: str, request: pytest.FixtureRequest
) -> None:
    require_programs(page)
    if page in SEPARATE_PAGES:
        terminal.environment["FOVEATE_HOME"] = str(terminal.folder / ".home")
        terminal.servers.urls_by_command = {}
    if page == "docs/guides/postgresql.md":
        terminal.servers.addresses[DATABASE] = request.getfixturevalue("postgres").new_database()
    for block in BLOCKS:
        if block.page == page and block.skip_reason is None:
            for language, code in block.setup:
                if language == "bash":
                    assert terminal.run(code).code == 0, block.place
            if block.language in SHELLS:
                for command in parse_commands(block):
                    check_command(terminal, block, command)


def check_command(terminal: PageTerminal, block: CodeBlock, command: ShellCommand) -> None:
    serves = SERVER_COMMAND.match(command.command.strip())
    if serves:
        terminal.start_server(serves["words"])
        return
    outcome = terminal.run(command.command)
    printed = terminal.servers.to_documented(outcome.out)
    description = f"{block.place}: {command.command}\n{printed}{outcome.err}"
    assert outcome.code == block.exit_code, description
    if command.output and not block.is_output_outdated:
        assert matches_output(command.output, printed) or matches_output(command.output, outcome.err), (
            description
        )


PYTHON = [block for block in BLOCKS if block.language == "python" and not block.text.startswith(">>>")]


@pytest.mark.process
@pytest.mark.parametrize("page", distinct(block.page for block in PYTHON))
def test_every_program_of_a_page_runs(servers: DocServers, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sandbox")
    monkeypatch.setenv("OPENAI_API_KEY", "sandbox")
    monkeypatch.setenv("FOVEATE_HOME", str(servers.home))
    names: dict[str, Any] = {"__name__": page}
    with asyncio.Runner() as runner:
        for block in PYTHON:
            if block.page == page and block.skip_reason is None:
                for code in (*(code for language, code in block.setup if language == "python"), block.text):
                    runner.run(run_program(servers.to_real(code), names, block.place))


async def run_program(code: str, names: dict[str, Any], place: str) -> None:
    """Run a program that may use `await` at top level."""
    compiled = compile(code, place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(compiled, names)
    if inspect.isawaitable(result):
        await result


YAML = [block for block in BLOCKS if block.language == "yaml" and block.skip_reason is None]


@pytest.mark.parametrize("block", YAML, ids=lambda block: block.place)
def test_every_configuration_in_a_page_is_valid(block: CodeBlock, tmp_path: Path) -> None:
    data = block.text.encode()
    data_fields = parse_document(data, block.place).data
    assert isinstance(data_fields, dict)
    if data_fields.keys() <= Settings.model_fields.keys():
        parse_settings(data, block.place)
        parse_cost(data, block.place)
    else:
        path = tmp_path / "budget.yaml"
        path.write_bytes(data)
        load_budget(path)


def test_few_examples_are_skipped_and_each_has_a_reason() -> None:
    skipped = [block for block in BLOCKS if block.skip_reason is not None]

    assert all(block.skip_reason for block in skipped)
    assert {
        page: sum(block.page == page for block in skipped) for page in distinct(block.page for block in skipped)
    } == NOT_RUN


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language in ("json", "toml")], ids=lambda block: block.place
)
def test_every_json_and_toml_block_in_a_page_can_be_parsed(block: CodeBlock) -> None:
    assert json.loads(block.text) if block.language == "json" else tomllib.loads(block.text)


def test_every_block_is_in_a_known_language() -> None:
    run = {block.language for block in BLOCKS if block.skip_reason is None}

    assert run <= {*SHELLS, "python", "pycon", "yaml", "json", "tmux", "toml", "text"}

"""`foveate run` with real agents: each does a small task, and its calls are recorded under its own name.

Nothing but keys is set for them: `foveate run` finds the way to the gateway. `tools/agents install` installs
them. They call a scripted model (`tests/agents/model.py`).
"""

import asyncio
import json
import os
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from foveate.agents.run_prefix import NO_RUN, RunPrefix
from foveate.cost.ledger import ChargeTotal, GroupBy
from foveate.sandbox.server import open_listening_socket
from foveate.store import open_store
from tests.agents.agents import (
    AGENTS,
    AIDER_OPTIONS,
    CHAT_MODEL,
    CLAUDE_MODEL,
    CLAUDE_OPTIONS,
    CODEX_OPTIONS,
    GEMINI_MODEL,
    INSTALLED,
    OPENAI_MODEL,
    TIMEOUT_SECONDS,
)
from tests.agents.model import NUMBERS, Model, Task, running_model

PROMPT = "Write the numbers into the file, one after the other, with shell commands."

_KEY_END = f"{0:040d}"

pytestmark = [pytest.mark.agents, pytest.mark.slow, pytest.mark.process]


@dataclass(frozen=True)
class AgentRun:
    """An agent as `foveate run` starts it: arguments for a prompt, and the environment with its key."""

    command: str
    ledger_name: str
    arguments: Callable[[str], Sequence[str]]
    environment: Callable[[str], Mapping[str, str]]
    prepare: Callable[[Path, str], None] = lambda _home, _url: None
    stdin: str = ""
    key_start: str = "sk-ant-api03-"
    edits_text: bool = False
    login: str = ""

    @property
    def id(self) -> str:
        return f"{self.command}-subscription" if self.login else self.command

    @property
    def key(self) -> str:
        """The key, or the token of a subscription, by which the model recognises the agent."""
        return self.login or self.key_start + _KEY_END

    @property
    def folder(self) -> Path | None:
        """The folder of its executable, if it is installed."""
        folders = (INSTALLED / "node_modules/.bin", INSTALLED / self.command / "bin")
        return next((folder for folder in folders if (folder / self.command).exists()), None)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _prepare_gemini(home: Path, _: str) -> None:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
    }
    _write(home / ".gemini/settings.json", json.dumps(settings))


def _prepare_opencode(home: Path, _: str) -> None:
    settings = {
        "$schema": "https://opencode.ai/config.json",  # opencode adds it if it is missing
        "autoupdate": False,
        "share": "disabled",
        "permission": {"bash": "allow", "external_directory": "allow"},
    }
    _write(home / ".config/opencode/opencode.json", json.dumps(settings))


def _prepare_claude(home: Path, _: str) -> None:
    """Another address in its settings, which take precedence over the environment."""
    _write(home / ".claude/settings.json", '{"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}}')


def _prepare_codex(home: Path, _: str) -> None:
    _write(home / ".codex/config.toml", f'model = "{OPENAI_MODEL}"\n')


def _make_token() -> str:
    """A token like those of a ChatGPT login, which is valid for long."""
    account = {"chatgpt_account_id": "account-1", "chatgpt_plan_type": "plus", "chatgpt_user_id": "user-1"}
    claims = {"exp": 4_000_000_000, "email": "a@example.com", "https://api.openai.com/auth": account}
    parts = (json.dumps(part).encode() for part in ({"alg": "RS256", "typ": "JWT"}, claims))
    return ".".join([*(urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "c2lnbmF0dXJl"])


def _prepare_codex_login(home: Path, url: str) -> None:
    _prepare_codex(home, url)
    token = _make_token()
    tokens = {"id_token": token, "access_token": token, "refresh_token": "r", "account_id": "account-1"}
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    login = {"OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": now}
    _write(home / ".codex/auth.json", json.dumps(login))


def _prepare_continue(home: Path, url: str) -> None:
    url += str(RunPrefix(NO_RUN, "continue"))
    model = (
        f"  - {{name: Claude, provider: anthropic, model: {CLAUDE_MODEL}, apiBase: {url}/v1/,"
        f" apiKey: sk-ant-api03-{_KEY_END}}}\n"
    )
    _write(home / ".continue/config.yaml", f"name: test\nversion: 1.0.0\nschema: v1\nmodels:\n{model}")


_CLAUDE_VARIABLES = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "IS_SANDBOX": "1"}

RUNS = (
    AgentRun(
        "claude",
        "claude-code",
        arguments=lambda prompt: ("-p", prompt, *CLAUDE_OPTIONS),
        environment=lambda key: {"ANTHROPIC_API_KEY": key, **_CLAUDE_VARIABLES},
        prepare=_prepare_claude,
    ),
    AgentRun(
        "codex",
        "codex",
        arguments=lambda prompt: ("exec", *CODEX_OPTIONS, prompt),
        environment=lambda key: {"CODEX_API_KEY": key},
        prepare=_prepare_codex,
        key_start="sk-",
    ),
    AgentRun(
        "claude",
        "claude-code",
        arguments=lambda prompt: ("-p", prompt, *CLAUDE_OPTIONS),
        environment=lambda token: {"CLAUDE_CODE_OAUTH_TOKEN": token, **_CLAUDE_VARIABLES},
        login=f"sk-ant-oat01-{_KEY_END}",
    ),
    AgentRun(
        "codex",
        "codex",
        arguments=lambda prompt: ("exec", *CODEX_OPTIONS, prompt),
        environment=lambda _: {},
        prepare=_prepare_codex_login,
        login=_make_token(),
    ),
    AgentRun(
        "opencode",
        "opencode",
        arguments=lambda prompt: ("run", "--model", f"anthropic/{CLAUDE_MODEL}", prompt),
        environment=lambda key: {"ANTHROPIC_API_KEY": key},
        prepare=_prepare_opencode,
    ),
    AgentRun(
        "pi",
        "pi",
        arguments=lambda prompt: ("-p", "--provider", "anthropic", "--model", CLAUDE_MODEL, prompt),
        environment=lambda key: {"ANTHROPIC_API_KEY": key, "PI_OFFLINE": "1"},
    ),
    AgentRun(
        "qwen",
        "qwen-code",
        arguments=lambda prompt: ("--yolo", "-p", prompt, "--auth-type", "openai"),
        environment=lambda key: {"OPENAI_API_KEY": key, "OPENAI_MODEL": CHAT_MODEL},
        key_start="sk-",
    ),
    AgentRun(
        "aider",
        "aider",
        arguments=lambda _: (*AIDER_OPTIONS, NUMBERS),
        environment=lambda key: {"OPENAI_API_KEY": key},
        stdin=f"{PROMPT}\n" * 3 + "/exit\n",
        key_start="sk-",
        edits_text=True,
    ),
    AgentRun(
        "gemini",
        "gemini-cli",
        arguments=lambda prompt: ("--yolo", "-m", GEMINI_MODEL, "-p", prompt),
        environment=lambda key: {"GEMINI_API_KEY": key, "GEMINI_CLI_TRUST_WORKSPACE": "true"},
        prepare=_prepare_gemini,
        key_start="AIzaSy",
    ),
    AgentRun(
        "copilot",
        "copilot",
        arguments=lambda prompt: ("-p", prompt, "--allow-all-tools", "--allow-all-paths"),
        environment=lambda key: {
            "COPILOT_PROVIDER_API_KEY": key,
            "COPILOT_PROVIDER_TYPE": "anthropic",
            "COPILOT_MODEL": CLAUDE_MODEL,
            "COPILOT_OFFLINE": "true",
            "COPILOT_AUTO_UPDATE": "false",
        },
    ),
    AgentRun(
        "openhands",
        "openhands",
        arguments=lambda prompt: ("--headless", "--always-approve", "-t", prompt),
        environment=lambda key: {"LLM_API_KEY": key, "LLM_MODEL": f"anthropic/{CLAUDE_MODEL}"},
    ),
    AgentRun(
        "cn",
        "continue",
        arguments=lambda prompt: ("-p", "--auto", prompt),
        # With ANTHROPIC_API_KEY it would rewrite its own file.
        environment=lambda _: {"CONTINUE_TELEMETRY_ENABLED": "0"},
        prepare=_prepare_continue,
    ),
)


@dataclass(frozen=True)
class Outcome:
    """Result of a run: the process, its summary, and calls by agent in the ledger."""

    code: int
    output: str
    summary: Mapping[str, object]
    totals: Sequence[ChargeTotal]
    left_files: Sequence[str]


@contextmanager
def scripted_model(key: str, folder: Path, *, edits_text: bool) -> Iterator[tuple[str, Model, Task]]:
    with running_model() as (url, model):
        task = Task(folder, edits_text=edits_text)
        model.tasks[key] = task
        yield url, model, task


def run_agent(run: AgentRun, folder: Path, url: str, key: str) -> Outcome:
    home, work, data, temporary = (folder / name for name in ("home", "work", "data", "temporary"))
    for path in (home, data, temporary):
        path.mkdir()
    with open_listening_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    config = folder / "foveate.yaml"
    config.write_text(
        f"server: {{port: {port}}}\n"
        "upstreams:\n"
        f"  anthropic: {{base_url: '{url}'}}\n"
        f"  openai: {{base_url: '{url}/v1'}}\n"
        f"  google: {{base_url: '{url}'}}\n"
    )
    run.prepare(home, f"http://127.0.0.1:{port}")
    if run.edits_text:
        (work / NUMBERS).touch()
    before = _list_files(home)
    assert run.folder is not None
    options = ("run", "--json", "--config", str(config), run.command)
    finished = subprocess.run(
        [sys.executable, "-m", "foveate", *options, *run.arguments(PROMPT)],
        cwd=work,
        env={
            "PATH": os.pathsep.join((str(run.folder), os.environ["PATH"])),
            "HOME": str(home),
            "TMPDIR": str(temporary),
            "TERM": "dumb",
            "CI": "1",
            "FOVEATE_HOME": str(data),
            **run.environment(key),
        },
        input=run.stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    output = f"{finished.stdout[-3000:]}\n{finished.stderr[-3000:]}"
    lines = [line for line in finished.stderr.splitlines() if line.startswith('{"agent"')]
    assert lines, output
    changed = [name for name, text in before.items() if _list_files(home).get(name) != text]
    left = [path.name for path in temporary.iterdir() if path.name.startswith("foveate")]
    return Outcome(finished.returncode, output, json.loads(lines[-1]), _read_totals(data), changed + left)


def _list_files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _read_totals(data: Path) -> Sequence[ChargeTotal]:
    async def read() -> Sequence[ChargeTotal]:
        async with await open_store(f"sqlite:///{data}/foveate.sqlite") as store:
            return await store.ledger.sum_charges([GroupBy.AGENT])

    return asyncio.run(read())


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(
            run,
            id=run.id,
            marks=pytest.mark.skipif(
                run.folder is None, reason=f"{run.command} is not installed: run tools/agents install"
            ),
        )
        for run in RUNS
    ],
)
def test_a_run_of_an_agent_uses_the_gateway_under_its_name(run: AgentRun, tmp_path: Path) -> None:
    key, work = run.key, tmp_path / "work"
    work.mkdir()
    with scripted_model(key, work, edits_text=run.edits_text) as (url, model, task):
        outcome = run_agent(run, tmp_path, url, key)
        requests = model.requests_with_key(key)

    assert outcome.code == 0, outcome.output
    assert task.done_lines > 0, outcome.output
    assert [total.group for total in outcome.totals] == [(run.ledger_name,)]
    charged = [request for request in requests if request.usage is not None]
    assert outcome.summary["calls"] == outcome.totals[0].calls == len(charged) > 0
    assert outcome.summary["subscription_calls"] == (len(charged) if run.login else 0)
    assert outcome.summary["exit_code"] == 0
    assert outcome.left_files == []


def test_every_agent_of_the_other_tests_is_run_too() -> None:
    assert {agent.command for agent in AGENTS} <= {run.command for run in RUNS}

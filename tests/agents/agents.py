"""Coding agents as their users start them: without a terminal, each with its own folder and home."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.agents.model import NUMBERS

INSTALLED = Path(os.environ.get("FOVEATE_AGENTS", Path(__file__).parents[2] / ".agents"))
"""Where `tools/agents install` puts them."""
TIMEOUT_SECONDS = 300

CLAUDE_MODEL = "claude-opus-4-8"
OPENAI_MODEL = "gpt-5.5"
CHAT_MODEL = "gpt-4.1"  # takes `max_tokens`, which some agents send to any model
GEMINI_MODEL = "gemini-2.5-pro"


@dataclass(frozen=True)
class Workplace:
    """Folder, home, key and gateway of one run of an agent."""

    folder: Path
    home: Path
    key: str
    url: str


@dataclass(frozen=True)
class Agent:
    """How an agent is installed and started."""

    name: str
    command: str
    start: Callable[[Workplace, str], Sequence[str]]
    resume: Callable[[Workplace, str], Sequence[str]] | None
    environment: Callable[[Workplace], Mapping[str, str]]
    prepare: Callable[[Workplace], None] = lambda _: None
    stdin: Callable[[str], str] = lambda _: ""
    key_start: str = "sk-"
    sub_agent: str | None = None
    names_parent: bool = True
    keeps_history: bool = True
    edits_text: bool = False
    small_window_tokens: int = 40_000

    @property
    def ledger_name(self) -> str:
        """Its name in the ledger. Some agents do not identify themselves in requests."""
        return "default" if self.name in ("pi", "aider") else self.name

    @property
    def path(self) -> Path | None:
        """Its executable, if it is installed."""
        for path in (
            INSTALLED / "node_modules/.bin" / self.command,
            INSTALLED / self.command / "bin" / self.command,
        ):
            if path.exists():
                return path
        path_found = shutil.which(self.command)
        return None if path_found is None else Path(path_found)

    def run(
        self, workplace: Workplace, prompt: str, *, resumes: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run the agent with a prompt until it ends."""
        assert self.path is not None
        arguments = self.resume if resumes else self.start
        assert arguments is not None, f"{self.name} cannot be resumed"
        if not resumes:
            self.prepare(workplace)
        path = os.pathsep.join((str(self.path.parent), os.environ["PATH"]))
        return subprocess.run(
            [str(self.path), *arguments(workplace, prompt)],
            cwd=workplace.folder,
            env={
                "PATH": path,
                "HOME": str(workplace.home),
                "TERM": "dumb",
                "CI": "1",
                **self.environment(workplace),
            },
            input=self.stdin(prompt),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )


def _claude_environment(workplace: Workplace) -> Mapping[str, str]:
    return {
        "ANTHROPIC_BASE_URL": workplace.url,
        "ANTHROPIC_API_KEY": workplace.key,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
    }


CLAUDE_OPTIONS = ("--dangerously-skip-permissions", "--model", CLAUDE_MODEL)


def _prepare_codex(workplace: Workplace) -> None:
    folder = workplace.home / ".codex"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(
        f'model = "{OPENAI_MODEL}"\n'
        'model_provider = "gateway"\n'
        "[model_providers.gateway]\n"
        'name = "gateway"\n'
        f'base_url = "{workplace.url}/v1"\n'
        'env_key = "OPENAI_API_KEY"\n'
        'wire_api = "responses"\n'
        "[features]\n"
        "multi_agent_v2 = true\n"
    )


CODEX_OPTIONS = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")


def _prepare_opencode(workplace: Workplace) -> None:
    (workplace.folder / "opencode.json").write_text(
        json.dumps(
            {
                "autoupdate": False,
                "share": "disabled",
                "permission": {"bash": "allow", "external_directory": "allow"},
                "provider": {
                    "anthropic": {"options": {"baseURL": f"{workplace.url}/v1", "apiKey": workplace.key}}
                },
            }
        )
    )


_OPENCODE = ("--model", f"anthropic/{CLAUDE_MODEL}")


def _prepare_pi(workplace: Workplace) -> None:
    folder = workplace.home / ".pi/agent"
    folder.mkdir(parents=True, exist_ok=True)
    model = {"id": CLAUDE_MODEL, "contextWindow": 200_000, "maxTokens": 16_000}
    (folder / "models.json").write_text(
        json.dumps(
            {
                "providers": {
                    "gateway": {
                        "baseUrl": workplace.url,
                        "api": "anthropic-messages",
                        "apiKey": workplace.key,
                        "models": [model],
                    }
                }
            }
        )
    )


_PI = ("--provider", "gateway", "--model", CLAUDE_MODEL)


def _openai_environment(workplace: Workplace) -> Mapping[str, str]:
    return {
        "OPENAI_BASE_URL": f"{workplace.url}/v1",
        "OPENAI_API_KEY": workplace.key,
        "OPENAI_MODEL": CHAT_MODEL,
    }


AIDER_OPTIONS = (
    *("--model", f"openai/{CHAT_MODEL}", "--weak-model", f"openai/{CHAT_MODEL}", "--edit-format", "whole"),
    *("--yes-always", "--no-git", "--no-show-model-warnings", "--no-check-update", "--analytics-disable"),
    *("--no-pretty", "--no-fancy-input"),
)


def _prepare_gemini(workplace: Workplace) -> None:
    folder = workplace.home / ".gemini"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(
        json.dumps(
            {
                "security": {"auth": {"selectedType": "gemini-api-key"}},
                "privacy": {"usageStatisticsEnabled": False},
                "general": {"enableAutoUpdate": False},
            }
        )
    )


def _gemini_environment(workplace: Workplace) -> Mapping[str, str]:
    return {
        "GOOGLE_GEMINI_BASE_URL": workplace.url,
        "GEMINI_API_KEY": workplace.key,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }


AGENTS = (
    Agent(
        "claude-code",
        "claude",
        start=lambda _, prompt: ("-p", prompt, *CLAUDE_OPTIONS),
        resume=lambda _, prompt: ("-p", prompt, "--continue", *CLAUDE_OPTIONS),
        environment=_claude_environment,
        key_start="sk-ant-api03-",
        sub_agent="general-purpose",
        small_window_tokens=60_000,
    ),
    Agent(
        "codex",
        "codex",
        start=lambda _, prompt: ("exec", *CODEX_OPTIONS, prompt),
        resume=lambda _, prompt: ("exec", "resume", *CODEX_OPTIONS, "--last", prompt),
        environment=lambda workplace: {"OPENAI_API_KEY": workplace.key},
        prepare=_prepare_codex,
        sub_agent="default",
    ),
    Agent(
        "opencode",
        "opencode",
        start=lambda _, prompt: ("run", *_OPENCODE, prompt),
        resume=lambda _, prompt: ("run", "--continue", *_OPENCODE, prompt),
        environment=lambda workplace: {"ANTHROPIC_API_KEY": workplace.key},
        prepare=_prepare_opencode,
        key_start="sk-ant-api03-",
        sub_agent="general",
        small_window_tokens=60_000,
    ),
    Agent(
        "pi",
        "pi",
        start=lambda _, prompt: ("-p", *_PI, prompt),
        resume=lambda _, prompt: ("-p", "--continue", *_PI, prompt),
        environment=lambda workplace: {"ANTHROPIC_API_KEY": workplace.key},
        prepare=_prepare_pi,
        key_start="sk-ant-api03-",
    ),
    Agent(
        "qwen-code",
        "qwen",
        start=lambda _, prompt: ("--yolo", "-p", prompt, "--auth-type", "openai"),
        resume=lambda _, prompt: ("--yolo", "--continue", "-p", prompt, "--auth-type", "openai"),
        environment=_openai_environment,
        sub_agent="general-purpose",
        names_parent=False,  # nothing in a sub-agent's requests says who started it
    ),
    Agent(
        "aider",
        "aider",
        start=lambda _, __: (*AIDER_OPTIONS, NUMBERS),
        resume=lambda _, __: (*AIDER_OPTIONS, "--restore-chat-history", NUMBERS),
        environment=lambda workplace: {
            "OPENAI_API_BASE": f"{workplace.url}/v1",
            "OPENAI_API_KEY": workplace.key,
        },
        prepare=lambda workplace: (workplace.folder / NUMBERS).touch(),
        stdin=lambda prompt: f"{prompt}\n" * 3 + "/exit\n",
        edits_text=True,
        keeps_history=False,  # it reads it from a file when it is resumed, and sends it in other words
    ),
    Agent(
        "gemini-cli",
        "gemini",
        start=lambda _, prompt: ("--yolo", "-m", GEMINI_MODEL, "-p", prompt),
        resume=None,  # it sends the result of each call twice, which Google refuses, with or without a gateway
        environment=_gemini_environment,
        prepare=_prepare_gemini,
        key_start="AIzaSy",
    ),
)

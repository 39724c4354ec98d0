"""Coding agents as their users start them: each without a screen, in a folder of its own, with its own home."""

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
class Place:
    """Where an agent works: a folder with its files, a home for what it remembers, its key, and the gateway."""

    folder: Path
    home: Path
    key: str
    url: str


@dataclass(frozen=True)
class Agent:
    """How an agent is installed and started."""

    name: str
    command: str
    start: Callable[[Place, str], Sequence[str]]
    resume: Callable[[Place, str], Sequence[str]] | None
    environment: Callable[[Place], Mapping[str, str]]
    prepare: Callable[[Place], None] = lambda _: None
    typed: Callable[[str], str] = lambda _: ""
    key_start: str = "sk-"
    sub_agent: str | None = None
    names_parent: bool = True
    keeps_history: bool = True
    edits_text: bool = False
    small_window_tokens: int = 40_000

    @property
    def booked_as(self) -> str:
        """Its name in the ledger. Some do not say in their requests who they are."""
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
        found = shutil.which(self.command)
        return None if found is None else Path(found)

    def run(self, place: Place, prompt: str, *, resumes: bool = False) -> subprocess.CompletedProcess[str]:
        """Have it do something, until it ends."""
        assert self.path is not None
        arguments = self.resume if resumes else self.start
        assert arguments is not None, f"{self.name} cannot be resumed"
        if not resumes:
            self.prepare(place)
        path = os.pathsep.join((str(self.path.parent), os.environ["PATH"]))
        return subprocess.run(
            [str(self.path), *arguments(place, prompt)],
            cwd=place.folder,
            env={"PATH": path, "HOME": str(place.home), "TERM": "dumb", "CI": "1", **self.environment(place)},
            input=self.typed(prompt),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )


def _claude_environment(place: Place) -> Mapping[str, str]:
    return {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_API_KEY": place.key,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
    }


_CLAUDE = ("--dangerously-skip-permissions", "--model", CLAUDE_MODEL)


def _prepare_codex(place: Place) -> None:
    folder = place.home / ".codex"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(
        f'model = "{OPENAI_MODEL}"\n'
        'model_provider = "gateway"\n'
        "[model_providers.gateway]\n"
        'name = "gateway"\n'
        f'base_url = "{place.url}/v1"\n'
        'env_key = "OPENAI_API_KEY"\n'
        'wire_api = "responses"\n'
        "[features]\n"
        "multi_agent_v2 = true\n"
    )


_CODEX = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")


def _prepare_opencode(place: Place) -> None:
    (place.folder / "opencode.json").write_text(
        json.dumps(
            {
                "autoupdate": False,
                "share": "disabled",
                "permission": {"bash": "allow", "external_directory": "allow"},
                "provider": {"anthropic": {"options": {"baseURL": f"{place.url}/v1", "apiKey": place.key}}},
            }
        )
    )


_OPENCODE = ("--model", f"anthropic/{CLAUDE_MODEL}")


def _prepare_pi(place: Place) -> None:
    folder = place.home / ".pi/agent"
    folder.mkdir(parents=True, exist_ok=True)
    model = {"id": CLAUDE_MODEL, "contextWindow": 200_000, "maxTokens": 16_000}
    (folder / "models.json").write_text(
        json.dumps(
            {
                "providers": {
                    "gateway": {
                        "baseUrl": place.url,
                        "api": "anthropic-messages",
                        "apiKey": place.key,
                        "models": [model],
                    }
                }
            }
        )
    )


_PI = ("--provider", "gateway", "--model", CLAUDE_MODEL)


def _openai_environment(place: Place) -> Mapping[str, str]:
    return {
        "OPENAI_BASE_URL": f"{place.url}/v1",
        "OPENAI_API_KEY": place.key,
        "OPENAI_MODEL": CHAT_MODEL,
    }


_AIDER = (
    *("--model", f"openai/{CHAT_MODEL}", "--weak-model", f"openai/{CHAT_MODEL}", "--edit-format", "whole"),
    *("--yes-always", "--no-git", "--no-show-model-warnings", "--no-check-update", "--analytics-disable"),
    *("--no-pretty", "--no-fancy-input"),
)


def _prepare_gemini(place: Place) -> None:
    folder = place.home / ".gemini"
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


def _gemini_environment(place: Place) -> Mapping[str, str]:
    return {
        "GOOGLE_GEMINI_BASE_URL": place.url,
        "GEMINI_API_KEY": place.key,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }


AGENTS = (
    Agent(
        "claude-code",
        "claude",
        start=lambda _, prompt: ("-p", prompt, *_CLAUDE),
        resume=lambda _, prompt: ("-p", prompt, "--continue", *_CLAUDE),
        environment=_claude_environment,
        key_start="sk-ant-api03-",
        sub_agent="general-purpose",
        small_window_tokens=60_000,
    ),
    Agent(
        "codex",
        "codex",
        start=lambda _, prompt: ("exec", *_CODEX, prompt),
        resume=lambda _, prompt: ("exec", "resume", *_CODEX, "--last", prompt),
        environment=lambda place: {"OPENAI_API_KEY": place.key},
        prepare=_prepare_codex,
        sub_agent="default",
    ),
    Agent(
        "opencode",
        "opencode",
        start=lambda _, prompt: ("run", *_OPENCODE, prompt),
        resume=lambda _, prompt: ("run", "--continue", *_OPENCODE, prompt),
        environment=lambda place: {"ANTHROPIC_API_KEY": place.key},
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
        environment=lambda place: {"ANTHROPIC_API_KEY": place.key},
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
        start=lambda _, __: (*_AIDER, NUMBERS),
        resume=lambda _, __: (*_AIDER, "--restore-chat-history", NUMBERS),
        environment=lambda place: {"OPENAI_API_BASE": f"{place.url}/v1", "OPENAI_API_KEY": place.key},
        prepare=lambda place: (place.folder / NUMBERS).touch(),
        typed=lambda prompt: f"{prompt}\n" * 3 + "/exit\n",
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

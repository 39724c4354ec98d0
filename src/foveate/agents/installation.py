"""Agents on this machine: which are installed, and their base URLs and logins. Settings files are only read."""

import json
import os
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from foveate.agents.catalog import AGENTS, COMMON_VARIABLES, Agent, SettingsFile
from foveate.config.effective_settings import redact_url
from foveate.config.yaml_parser import parse as parse_yaml
from foveate.errors import BadSetting

ENVIRONMENT = "the environment"
CODEX_PROVIDERS = "model_providers."
_MAX_BYTES = 1_000_000
_LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1", "0.0.0.0", "::"))
_PORTS = {"http": 80, "https": 443}
# A string of JSON, or a comment, which opencode, Gemini CLI and Qwen Code allow in their files.
_STRING_OR_COMMENT = re.compile(r'("[^"\\]*+(?:\\.[^"\\]*+)*+"?)|//[^\n]*+|/\*.*?(?:\*/|\Z)', re.DOTALL)
_STRING_OR_LAST_COMMA = re.compile(r'("[^"\\]*+(?:\\.[^"\\]*+)*+"?)|,(?=\s*+[]}])', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredUrl:
    """A base URL that an agent reads, without a password: where it is set (a file, or the environment), and by
    which key.
    """

    source: str
    key: str
    url: str
    overrides_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledAgent:
    """An agent on the search path, with the base URLs that are set for it.

    `bypasses` are those that are not the gateway's, `pointed` those that are. `direct_access` says why it calls
    its provider past any gateway.
    """

    agent: Agent
    path: str
    pointed: tuple[ConfiguredUrl, ...] = ()
    bypasses: tuple[ConfiguredUrl, ...] = ()
    direct_access: tuple[str, ...] = ()


def find_installed(environment: Mapping[str, str], folder: Path, gateway_url: str) -> Iterator[InstalledAgent]:
    """Yield the agents that are installed for a user who starts them in `folder`."""
    for agent in AGENTS:
        path = shutil.which(agent.command, path=environment.get("PATH"))
        if path is None:
            continue
        urls = list(find_configured_urls(agent, environment, folder))
        pointed = tuple(url for url in urls if is_same_server(url.url, gateway_url))
        bypasses = tuple(url for url in urls if url not in pointed)
        direct_access = tuple(find_direct_access(agent, environment, folder))
        yield InstalledAgent(
            agent=agent, path=path, pointed=pointed, bypasses=bypasses, direct_access=direct_access
        )


def find_configured_urls(
    agent: Agent | None, environment: Mapping[str, str], folder: Path
) -> Iterator[ConfiguredUrl]:
    """Yield the base URLs that are set for an agent in `folder`, or in the environment for any other program.

    Files that cannot be read have none.
    """
    for name in COMMON_VARIABLES if agent is None else agent.variables:
        if environment.get(name):
            yield ConfiguredUrl(source=ENVIRONMENT, key=name, url=redact_url(environment[name]))
    for file in () if agent is None else agent.settings_files:
        for path in file.paths:
            yield from _find_urls_in_file(file, locate(path, environment, folder))


def _find_urls_in_file(file: SettingsFile, path: Path) -> Iterator[ConfiguredUrl]:
    document = read_document(path)
    provider = document.get("model_provider") if isinstance(document, dict) else None
    for key in file.keys:
        for found_key, url in _find_values(document, key.split(".")):
            is_codex_provider = key.startswith(CODEX_PROVIDERS)
            # Of Codex's providers, only the selected one is used, instead of the built-in one.
            if is_codex_provider and found_key != f"{CODEX_PROVIDERS}{provider}.base_url":
                continue
            yield ConfiguredUrl(
                source=str(path),
                key=found_key,
                url=redact_url(url),
                overrides_run=file.overrides_run or is_codex_provider,
            )


def find_direct_access(agent: Agent, environment: Mapping[str, str], folder: Path) -> Iterator[str]:
    """Yield why an agent calls its provider past any gateway: a variable, or a login."""
    for name in agent.other_providers:
        if environment.get(name, "").lower() not in ("", "0", "false"):
            yield f"{name} is set"
    for login in agent.direct_logins:
        path = locate(login.path, environment, folder)
        for _, value in _find_values(read_document(path), login.key.split(".")):
            if value in login.values:
                yield f"{login.key} in {path} is {value}"


def find_missing_settings(agent: Agent, environment: Mapping[str, str], folder: Path) -> Iterator[str]:
    needed = agent.needed_setting
    if needed is None:
        return
    documents = (read_document(locate(path, environment, folder)) for path in needed.paths)
    if not any(list(_find_values(document, needed.key.split("."))) for document in documents):
        yield needed.advice


def locate(written_path: str, environment: Mapping[str, str], folder: Path) -> Path:
    """Return the path of a file, see `SettingsFile`."""
    variable, separator, path = written_path.rpartition("|")
    home = environment.get("HOME") or str(Path.home())
    if separator and environment.get(variable[1:]):
        return Path(environment[variable[1:]]) / Path(path).name
    return Path(home + path[1:]) if path.startswith("~/") else folder / path


def read_document(path: Path) -> object:
    """Parse a TOML, YAML, JSON or .env file; None if there is none, or it cannot be parsed."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            return tomllib.loads(text)
        if path.suffix in (".yml", ".yaml"):
            return parse_yaml(text, str(path))
        if path.name == ".env":
            return dict(_parse_env_lines(text))
        return json.loads(_remove_comments(text))
    except (OSError, ValueError, RecursionError, BadSetting):
        return None


def _remove_comments(text: str) -> str:
    """Remove comments and the commas after last elements from JSON."""
    for pattern in (_STRING_OR_COMMENT, _STRING_OR_LAST_COMMA):
        text = pattern.sub(lambda match: match[1] or " ", text)
    return text


def _parse_env_lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, separator, value = line.strip().removeprefix("export ").partition("=")
        if separator and not name.startswith("#"):
            yield name.strip(), value.strip().strip("\"'")


def _find_values(
    document: object, keys: Sequence[str], path: tuple[str, ...] = ()
) -> Iterator[tuple[str, str]]:
    if not keys:
        if isinstance(document, str) and document:
            yield ".".join(path), document
        return
    items: dict[str, object] = {}
    if isinstance(document, dict):
        items = {str(name): value for name, value in document.items()}
    elif isinstance(document, list):
        items = {str(number): value for number, value in enumerate(document)}
    for name in items if keys[0] == "*" else [keys[0]]:
        if name in items:
            yield from _find_values(items[name], keys[1:], (*path, name))


def is_same_server(url: str, gateway_url: str) -> bool:
    """Return whether two URLs have the same host and port. All loopback addresses are the same host."""
    return _server(url) == _server(gateway_url)


def _server(url: str) -> tuple[str, int | None]:
    try:
        parts = urlsplit(os.path.expandvars(url))
        host, port = (parts.hostname or "").rstrip("."), parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return url, None
    return "loopback" if host in _LOOPBACK else host, port

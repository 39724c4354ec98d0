"""Checks of the coding agents on this machine: whether their own configuration leads past the gateway."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from foveate.agents.catalog import Agent
from foveate.agents.installed import find_installed
from foveate.agents.launch import can_replace
from foveate.agents.user_settings import ConfiguredUrl
from foveate.doctor.findings import Finding, ok_finding, warning_finding

CHECK = "agents"
_API_VERSIONS = ("v1", "v1beta")


def check_agents(environment: Mapping[str, str], folder: Path, gateway_url: str) -> list[Finding]:
    findings: list[Finding] = []
    for found in find_installed(environment, folder, gateway_url):
        agent, start = found.agent, f"foveate run {found.agent.word}"
        findings += [
            warning_finding(
                CHECK,
                f"{setting.source} sets {setting.key} to {setting.url}, so its requests bypass the gateway",
                _advise(agent, setting, gateway_url),
                agent.word,
            )
            for setting in found.bypasses
        ]
        findings += [
            warning_finding(
                CHECK,
                f"{reason}, so its requests bypass the gateway",
                "use an API key of the provider instead",
                agent.word,
            )
            for reason in found.direct_access
        ]
        if found.pointed and not found.bypasses:
            setting = found.pointed[0]
            findings.append(ok_finding(CHECK, f"{setting.key} in {setting.source} is the gateway", agent.word))
        elif not found.bypasses and not found.direct_access:
            message = f"calls its provider directly; to use the gateway, start it with: {start}"
            findings.append(ok_finding(CHECK, message, agent.word))
    return findings


def _advise(agent: Agent, setting: ConfiguredUrl, gateway_url: str) -> str:
    if agent.needs_lines:
        return f"`foveate run --print {agent.word}` shows what to set instead"
    version = urlsplit(setting.url).path.rstrip("/").rpartition("/")[2]
    address = f"{gateway_url}/{version}" if version in _API_VERSIONS else gateway_url
    start = f"start the agent with: foveate run {agent.word}"
    remedy = start if can_replace(agent, setting) else f"remove it and {start}"
    return (
        f"set it to {address}, or {remedy}. If requests must still go to its server, make that the base_url of"
        " an upstream in foveate.yaml"
    )

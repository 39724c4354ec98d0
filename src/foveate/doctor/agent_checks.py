"""Checks of the coding agents on this machine: whether their own configuration leads past the gateway."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from foveate.agents.installed import InstalledAgent, find_installed
from foveate.doctor.findings import Finding, ok_finding, warning_finding

CHECK = "agents"


def check_agents(environment: Mapping[str, str], folder: Path, gateway_url: str) -> list[Finding]:
    return describe_agents(find_installed(environment, folder, gateway_url), environment, gateway_url)


def describe_agents(
    installed: Iterable[InstalledAgent], environment: Mapping[str, str], gateway_url: str
) -> list[Finding]:
    findings: list[Finding] = []
    for found in installed:
        agent, start = found.agent, f"foveate run {found.agent.word}"
        findings += [
            warning_finding(
                CHECK,
                f"{setting.source} sets {setting.key} to {setting.url}, so its requests bypass the gateway",
                f"remove it, or set it to {gateway_url} (and /v1 if it had that), or start it with: {start}",
                agent.word,
            )
            for setting in found.bypasses
        ]
        findings += [
            warning_finding(
                CHECK,
                f"{name} is set, so its requests go to another provider, past the gateway",
                f"unset {name} to use it through the gateway",
                agent.word,
            )
            for name in agent.other_providers
            if environment.get(name, "").lower() not in ("", "0", "false")
        ]
        if found.pointed and not found.bypasses:
            setting = found.pointed[0]
            findings.append(ok_finding(CHECK, f"{setting.key} in {setting.source} is the gateway", agent.word))
        elif not found.bypasses:
            message = f"calls its provider directly; to use the gateway, start it with: {start}"
            findings.append(ok_finding(CHECK, message, agent.word))
    return findings

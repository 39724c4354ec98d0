"""Checks of the coding agents on this machine: whether their own configuration leads past the gateway."""

from collections.abc import Mapping
from pathlib import Path

from foveate.agents.installed import find_installed
from foveate.doctor.findings import Finding, ok_finding, warning_finding

CHECK = "agents"


def check_agents(environment: Mapping[str, str], folder: Path, gateway_url: str) -> list[Finding]:
    findings: list[Finding] = []
    for found in find_installed(environment, folder, gateway_url):
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

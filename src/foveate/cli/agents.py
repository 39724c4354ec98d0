"""`foveate agents`: list the coding agents on this machine."""

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli.shared import console
from foveate.cli.shared.errors import report_errors
from foveate.cli.shared.options import ConfigFile, find_config_file
from foveate.errors import NothingKept

if TYPE_CHECKING:
    from foveate.agents.installation import InstalledAgent
    from foveate.store import Store


def command(
    config: ConfigFile = None,
    all_: Annotated[
        bool, typer.Option("--all", "-a", help="Also list known agents that are not installed.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """List the coding agents on this machine, how each uses the gateway, and when its requests were last seen.

    Example: foveate agents
    """
    with report_errors(as_json=json):
        from foveate.agents.catalog import AGENTS
        from foveate.agents.installation import find_installed
        from foveate.cli.run.gateway import load_configured_gateway
        from foveate.cli.store import run_in_store

        configured = load_configured_gateway(find_config_file(config), os.environ)
        installed = list(find_installed(os.environ, Path(), configured.url))
        try:
            seen = run_in_store(configured.store_url, _read_last_seen, "reading the store")
        except NothingKept:
            seen = {}
        commands = {found.agent.command for found in installed}
        missing = [agent for agent in AGENTS if agent.command not in commands]
        if json:
            console.print_object(
                {
                    "gateway": configured.url,
                    "agents": [_agent_object(found, seen) for found in installed]
                    + [
                        {
                            "agent": agent.word,
                            "title": agent.title,
                            "name": agent.name,
                            "path": None,
                            "how": agent.how,
                            "pointed": [],
                            "bypasses": [],
                            "direct_access": [],
                            "seen_at": seen.get(agent.name),
                        }
                        for agent in (missing if all_ else [])
                    ],
                }
            )
            return
        from foveate.cli.shared.tables import Column, Fit, format_table

        rows = [
            (found.agent.word, found.agent.how, _describe_seen(seen.get(found.agent.name)), _status(found))
            for found in installed
        ]
        if all_:
            rows += [
                (agent.word, agent.how, _describe_seen(seen.get(agent.name)), "not installed")
                for agent in missing
            ]
        columns = (
            Column(heading="agent"),
            Column(heading="set by foveate run", fit=Fit.WRAP),
            Column(heading="last seen"),
            Column(heading="without foveate run", fit=Fit.WRAP),
        )
        if rows:
            console.print_lines(format_table(columns, rows, console.display_for(sys.stdout)))
        else:
            console.print_note("no coding agent is installed here; foveate agents --all lists the known ones")


def _status(found: "InstalledAgent") -> str:
    if found.bypasses:
        return f"bypasses the gateway: {found.bypasses[0].key} in {found.bypasses[0].source}"
    if found.direct_access:
        return f"bypasses the gateway: {found.direct_access[0]}"
    return "uses the gateway" if found.pointed else "calls its provider directly"


def _describe_seen(at: float | None) -> str:
    return "never" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"


def _agent_object(found: "InstalledAgent", seen: Mapping[str, float]) -> dict[str, object]:
    return {
        "agent": found.agent.word,
        "title": found.agent.title,
        "name": found.agent.name,
        "path": found.path,
        "how": found.agent.how,
        "pointed": [{"source": url.source, "key": url.key, "url": url.url} for url in found.pointed],
        "bypasses": [{"source": url.source, "key": url.key, "url": url.url} for url in found.bypasses],
        "direct_access": list(found.direct_access),
        "seen_at": seen.get(found.agent.name),
    }


async def _read_last_seen(store: "Store") -> dict[str, float]:
    from foveate.agents.catalog import AGENTS

    seen: dict[str, float] = {}
    for agent in AGENTS:
        latest = await store.traces.list_traces(limit=1, agent=agent.name)
        if latest:
            seen[agent.name] = latest[0].trace.at
    return seen

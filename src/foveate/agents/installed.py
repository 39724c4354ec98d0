"""Which agents are installed, and which base URLs keep their requests from the gateway."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from foveate.agents.catalog import AGENTS, Agent
from foveate.agents.user_settings import (
    ConfiguredUrl,
    find_configured_urls,
    find_direct_access,
    is_same_server,
)


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

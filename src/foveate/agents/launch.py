"""How a run starts an agent: its arguments and environment. Pure decisions."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from foveate.agents.catalog import COMMON_VARIABLES, Agent
from foveate.agents.installation import CODEX_PROVIDERS, ENVIRONMENT, ConfiguredUrl, is_same_server
from foveate.agents.run_prefix import NO_RUN, RunPrefix
from foveate.errors import BadOption

_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_NO_PROXY = "NO_PROXY"
_PACKAGE = str(Path(__file__).parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """What a run sets: `environment` has only changes.

    `notes` are for the user. `lines` must be in the agent's own file (`lines_file`) already.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    notes: tuple[str, ...] = ()
    lines: str = ""
    lines_file: str = ""


def plan_launch(
    agent: Agent | None,
    command: Sequence[str],
    url: str,
    environment: Mapping[str, str],
    *,
    configured: Iterable[ConfiguredUrl] = (),
    direct_access: Iterable[str] = (),
    missing_settings: Iterable[str] = (),
    gateway_url: str,
) -> LaunchPlan:
    """Plan the start of `command`, whose first word is the program, with the base URL `url`.

    `agent` is None for any other program. `configured` are the base URLs that it would read without us;
    `direct_access` says why it would call its provider past any gateway, and `missing_settings` which settings
    it needs for one. `gateway_url` is the address of the
    gateway, which may be among the configured ones.

    Raises:
        BadOption: the agent cannot be pointed at the gateway; the message says what to do.
    """
    program, *arguments = command
    found = list(configured)
    notes: list[str] = []
    variables = COMMON_VARIABLES if agent is None else agent.variables
    changes = {name: _fill(text, url) for name, text in variables.items()}
    if agent is None:
        return LaunchPlan(
            arguments=tuple(command),
            environment=changes | _bypass_proxies(url, environment),
            notes=tuple(_note_replaced(found, gateway_url)),
        )
    if agent.required and not any(environment.get(name) for name in agent.required):
        raise BadOption(f"{agent.title}: {agent.required_advice}")
    notes += [f"{reason}: {agent.title} does not use the gateway for its calls" for reason in direct_access]
    notes += missing_settings
    for name, text in agent.json_variables.items():
        changes[name] = _merge_json(name, environment.get(name), _fill(text, url))
    added = [_fill(argument, url) for argument in agent.arguments]
    replaced = {
        setting: _override(agent, setting, arguments, url, gateway_url)
        for setting in found
        if setting.overrides_run
    }
    added += [argument for replacement in dict.fromkeys(replaced.values()) for argument in replacement]
    if not agent.needs_lines:
        notes += _note_replaced([setting for setting in found if replaced.get(setting, True)], gateway_url)
    notes += [
        f"{setting.source} sets {setting.key} to {setting.url}, which {agent.title} uses instead of the address"
        " of this run: remove it there"
        for setting, replacement in replaced.items()
        if not replacement
    ]
    has_lines = any(is_same_server(setting.url, gateway_url) for setting in found)
    return LaunchPlan(
        arguments=(program, *added, *arguments),
        environment=changes | _bypass_proxies(url, environment),
        notes=tuple(notes),
        lines="" if has_lines else _fill(agent.lines, f"{gateway_url}{RunPrefix(NO_RUN, agent.name)}"),
        lines_file=agent.lines_file,
    )


def can_replace(agent: Agent, setting: ConfiguredUrl) -> bool:
    """Return whether a run replaces a base URL that is not the gateway's."""
    return not agent.needs_lines and (not setting.overrides_run or bool(agent.override_arguments))


def _fill(text: str, url: str) -> str:
    """Not `format`: texts contain other braces."""
    return text.replace("{url}", url).replace("{package}", _PACKAGE)


def _note_replaced(replaced: Iterable[ConfiguredUrl], gateway_url: str) -> list[str]:
    """Say which addresses the run replaces: requests for a proxy or another server of the user would go to the
    provider, with the credentials for that server.
    """
    return [
        f"{setting.key} {'' if setting.source == ENVIRONMENT else f'in {setting.source} '}was {setting.url};"
        " this run replaces it. To send requests there, set it as the base_url of an upstream in foveate.yaml"
        for setting in replaced
        if not is_same_server(setting.url, gateway_url)
    ]


def _override(
    agent: Agent, setting: ConfiguredUrl, arguments: Sequence[str], url: str, gateway_url: str
) -> tuple[str, ...]:
    """Return the arguments that replace an address in a file; none if that is not possible."""
    if setting.key.startswith(CODEX_PROVIDERS):
        # Only if it is the gateway: requests for another provider must not go to OpenAI.
        return ("-c", f'{setting.key}="{url}/v1"') if is_same_server(setting.url, gateway_url) else ()
    if agent.override_arguments and agent.override_arguments[0] not in arguments:
        return tuple(_fill(argument, url) for argument in agent.override_arguments)
    return ()


def _merge_json(name: str, current: str | None, ours: str) -> str:
    if not current:
        return ours
    try:
        value = json.loads(current)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise BadOption(f"{name} is set to something that is not a JSON object: correct or unset it")
    return json.dumps(_merge(value, json.loads(ours)))


def _merge(value: dict[str, object], ours: Mapping[str, object]) -> dict[str, object]:
    merged = dict(value)
    for name, new in ours.items():
        old = merged.get(name)
        merged[name] = _merge(old, new) if isinstance(old, dict) and isinstance(new, dict) else new
    return merged


def _bypass_proxies(url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep an HTTP proxy of the user from being asked for the gateway."""
    names = [name for name in (*_PROXY_VARIABLES, *map(str.lower, _PROXY_VARIABLES)) if environment.get(name)]
    host = urlsplit(url).hostname or ""
    current = environment.get(_NO_PROXY) or environment.get(_NO_PROXY.lower()) or ""
    hosts = [part.strip() for part in current.split(",") if part.strip()]
    if not names or host in hosts or "*" in hosts:
        return {}
    joined = ",".join((*hosts, host))
    return {_NO_PROXY: joined, _NO_PROXY.lower(): joined}

"""Everything that a configuration decides, resolved: the options of the gateway, of agents and of costs."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from foveate.config.loading import Configuration
from foveate.config.price_file import PriceFile
from foveate.config.settings import Settings, UpstreamServer
from foveate.cost.price_book import PriceBook
from foveate.engine.configured import options_by_agent
from foveate.engine.options import AgentOptions, MoneyOptions
from foveate.errors import BadOption, UpstreamUnreachable
from foveate.gateway import telemetry
from foveate.gateway.app import GatewayOptions
from foveate.gateway.aws_signing import check_installed, region_of
from foveate.gateway.body_memory import MIN_BODIES
from foveate.gateway.doors import Family
from foveate.gateway.keys import HashedKeys
from foveate.gateway.request_body import BodyLimits
from foveate.gateway.routing import KNOWN_UPSTREAMS, VERSION, Route, Routing, ThreadMode, Upstream
from foveate.store import is_server
from foveate.upstream.pool import target
from foveate.wire.limits import RequestLimits

# A key goes out in a header (RFC 9110, 5.5).
_SENDABLE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
# Where the keys of upstreams usually are.
USUAL_VARIABLES: Mapping[str, str] = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "google": "GEMINI_API_KEY",
    "deepseek": "DEEPSEEK_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "nvidia": "NVIDIA_API_KEY",
}

# Upstreams whose name tells their API, and which have no address that all share.
_APIS = frozenset(("azure", "bedrock", "vertex"))
# Who runs upstreams of an API that one provider has.
_PROVIDERS = {
    Family.GEMINI: "google",
    Family.AZURE: "azure",
    Family.BEDROCK: "bedrock",
    Family.VERTEX: "vertex",
}
# Whose OpenAI-style API has no version in its paths.
# https://docs.perplexity.ai/guides/chat-completions-guide (November 2026)
_WITHOUT_VERSION = frozenset(("api.perplexity.ai",))
# What clients of an API have in their base URL, and the gateway in its paths.
_SUFFIXES = {
    Family.GEMINI: ("/v1beta", "/v1"),
    Family.AZURE: ("/v1", "/openai"),
    Family.VERTEX: ("/v1beta1", "/v1"),
}


@dataclass(frozen=True, slots=True)
class Choices:
    """All that a configuration decides, ready to be used."""

    settings: Settings
    gateway: GatewayOptions
    agents: Callable[[str], AgentOptions]
    cost: MoneyOptions
    price_file: PriceFile | None = None


def choices_of(
    found: Configuration, environment: Mapping[str, str], price_file: PriceFile | None = None
) -> Choices:
    """What a configuration decides. Prices of `price_file` hold as it is when they are asked for.

    Raises:
        BadOption: something in it does not fit together; `path` leads to it.
    """
    if found.settings.server.opentelemetry:
        telemetry.check()
    return Choices(
        settings=found.settings,
        gateway=gateway_options(found.settings, environment),
        agents=options_by_agent(found.settings, environment),
        cost=MoneyOptions(
            caps=found.cost.caps,
            prices=PriceBook(found.cost.prices, updates=_no_update if price_file is None else price_file.now),
            min_output_tokens=found.cost.min_output_tokens,
            allow_fields=found.cost.allow_fields,
        ),
        price_file=price_file,
    )


def _no_update() -> None:
    return None


def gateway_options(settings: Settings, environment: Mapping[str, str]) -> GatewayOptions:
    """The options of the gateway.

    Raises:
        BadOption: an upstream of which too little is known or that nobody can ask; a route to one that there is
            not; a key that is not in the environment; `path` leads to it.
    """
    threads = _default_threads(settings)
    upstreams = {
        name: replace(known, threads=threads, key=_key(USUAL_VARIABLES.get(name, ""), environment))
        for name, known in KNOWN_UPSTREAMS.items()
    }
    for name, said in settings.upstreams.items():
        found = _upstream(name, said, upstreams.get(name), environment)
        upstreams[name] = replace(found, threads=threads if said.threads is None else ThreadMode(said.threads))
    for number, route in enumerate(settings.routes):
        if route.upstream not in upstreams:
            known = ", ".join(sorted(upstreams))
            raise BadOption(
                f"there is no upstream {route.upstream!r}; there are {known}",
                path=("routes", number, "upstream"),
            )
    server = settings.server
    if server.body_memory_bytes < MIN_BODIES * server.body_limit_bytes:
        raise BadOption(
            f"body_memory_bytes is {server.body_memory_bytes:,}, and has to be at least {MIN_BODIES} times"
            f" body_limit_bytes ({server.body_limit_bytes:,}), since compressed bodies are held twice",
            path=("server", "body_memory_bytes"),
        )
    hashes = {hashed: agent.id for agent in settings.agents for hashed in agent.keys}
    for number, hashed in enumerate(server.admin_keys):
        if hashed in hashes:
            raise BadOption(
                f"this is also a key of the agent {hashes[hashed]!r}: an admin key is a key of no agent",
                path=("server", "admin_keys", number),
            )
    return GatewayOptions(
        routing=Routing(
            upstreams=upstreams,
            routes=[
                Route(models=route.models, upstream=route.upstream, model=route.model)
                for route in settings.routes
            ],
        ),
        keys=HashedKeys(hashes, server.admin_keys),
        user_agents=[(glob, agent.id) for agent in settings.agents for glob in agent.user_agents],
        body=BodyLimits(
            max_bytes=server.body_limit_bytes,
            memory_bytes=server.body_memory_bytes,
            total_seconds=server.body_timeout_seconds,
        ),
        limits=RequestLimits(
            max_messages=server.max_messages, max_tools=server.max_tools, max_depth=server.max_depth
        ),
    )


def _default_threads(settings: Settings) -> ThreadMode:
    """Hold threads unless the next request of a thread may reach another process, which does not have it."""
    is_alone = settings.server.workers == 1 and not is_server(settings.store.url)
    return ThreadMode.HOLD if is_alone else ThreadMode.REFUSE


def _key(variable: str, environment: Mapping[str, str], path: tuple[str, ...] = ()) -> str | None:
    key = environment.get(variable) or None
    if key is not None and not _SENDABLE.fullmatch(key):
        raise BadOption(
            f"{variable} holds what no header can: a line break, a blank at an end, or what is not ASCII",
            path=path,
        )
    return key


def _needs_version(base_url: str) -> bool:
    """Whether an OpenAI-style address names only a host: its API is below `/v1`, with few exceptions."""
    parts = urlsplit(base_url)
    return parts.path in ("", "/") and parts.hostname not in _WITHOUT_VERSION


def _upstream(
    name: str, said: UpstreamServer, known: Upstream | None, environment: Mapping[str, str]
) -> Upstream:
    path = ("upstreams", name)
    if said.api is None and known is None and name in _APIS:
        said = said.model_copy(update={"api": name})
    if known is None and (said.base_url is None or said.api is None):
        missing = "base_url" if said.base_url is None else "api"
        raise BadOption(f"{missing} has to be given for an upstream that is not known by its name", path=path)
    family = None if said.api is None else Family.OPENAI if said.api == "both" else Family(said.api)
    provider = _PROVIDERS.get(family, name) if family is not None else name
    base = known or Upstream(name=name, base_url="", family=family or Family.OPENAI, provider=provider)
    speaks_both = base.speaks_both if said.api is None else said.api == "both"
    base_url = said.base_url or base.base_url
    if (
        speaks_both or (family or base.family) is Family.ANTHROPIC
    ):  # it may be given as OpenAI's clients have it
        base_url = base_url.rstrip("/").removesuffix(VERSION)
    for suffix in _SUFFIXES.get(family or base.family, ()):
        base_url = base_url.rstrip("/").removesuffix(suffix)
    try:
        target(base_url)
    except UpstreamUnreachable as error:
        raise BadOption(f"nobody can be asked there: {error.reason}", path=(*path, "base_url")) from None
    if (family or base.family) is Family.OPENAI and not speaks_both and _needs_version(base_url):
        base_url = base_url.rstrip("/") + VERSION
    key = base.key
    if said.key_variable is not None:
        key = _key(said.key_variable, environment, path=(*path, "key_variable"))
        if key is None:
            raise BadOption(f"{said.key_variable} is not set in the environment", path=(*path, "key_variable"))
    region = ""
    if said.sign is not None:
        check_installed((*path, "sign"))
        region = region_of(base_url, environment, (*path, "sign"))
    return replace(
        base,
        base_url=base_url,
        family=family or base.family,
        provider=said.provider or base.provider,
        key=key,
        replaces_keys=said.key_variable is not None or said.sign is not None,
        speaks_both=speaks_both,
        deployments=said.deployments,
        aws_region=region,
        allow=tuple(said.allow),
        reuse=said.reuse,
    )

"""The resolved configuration of the gateway, and a description of every effective setting and its source."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from foveate.config.document import parse_document
from foveate.config.effective_settings import EffectiveSetting, list_effective_settings
from foveate.config.files import display_path
from foveate.config.live_settings import LiveSettings
from foveate.config.load import Configuration, has_content
from foveate.config.price_file import PriceFile
from foveate.config.settings import Settings, UpstreamSettings
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.options import AgentOptions, SpendingOptions
from foveate.engine.options_from_settings import options_by_agent
from foveate.errors import BadOption, UpstreamUnreachable
from foveate.formats.request_limits import RequestLimits
from foveate.gateway.app import GatewayOptions
from foveate.gateway.auth.callers import HashedKeys
from foveate.gateway.auth.credentials import check_installed, find_region
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.observability import otel
from foveate.gateway.request_body import MIN_BODIES, BodyLimits
from foveate.gateway.routing import KNOWN_UPSTREAMS, VERSION_PATH, Route, Routing, ThreadMode, Upstream
from foveate.http.pool import parse_url
from foveate.http.proxies import parse_proxy
from foveate.store import is_server

# A key must be a valid header value (RFC 9110, 5.5).
_HEADER_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
# Environment variables with the keys of known upstreams.
DEFAULT_KEY_VARIABLES: Mapping[str, str] = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "google": "GEMINI_API_KEY",
    "deepseek": "DEEPSEEK_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "nvidia": "NVIDIA_API_KEY",
}

# Upstreams whose name implies their API, but whose address differs between customers.
_UPSTREAMS_NAMED_BY_API = frozenset(("azure", "bedrock", "vertex"))
# Providers of APIs that only one provider offers.
_PROVIDER_BY_FAMILY = {
    ApiFamily.GEMINI: "google",
    ApiFamily.AZURE: "azure",
    ApiFamily.BEDROCK: "bedrock",
    ApiFamily.VERTEX: "vertex",
}
# Hosts whose OpenAI-style API has no version in its paths. https://docs.perplexity.ai/guides/chat-completions-
# guide (November 2026)
_HOSTS_WITHOUT_VERSION = frozenset(("api.perplexity.ai",))
# Suffixes that clients of an API have in their base URL; the gateway has them in its paths.
_BASE_URL_SUFFIXES = {
    ApiFamily.GEMINI: ("/v1beta", "/v1"),
    ApiFamily.AZURE: ("/v1", "/openai"),
    ApiFamily.VERTEX: ("/v1beta1", "/v1"),
}


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    settings: Settings
    gateway: GatewayOptions
    agents: Callable[[str], AgentOptions]
    cost: SpendingOptions
    price_file: PriceFile | None = None


def resolve_config(
    configuration: Configuration, environment: Mapping[str, str], price_file: PriceFile | None = None
) -> ResolvedConfig:
    """Resolve a configuration. Prices from `price_file` are looked up when they are needed.

    Raises:
        BadOption: settings contradict each other; `path` names the setting.
    """
    if configuration.settings.server.opentelemetry:
        otel.check_installed()
    return ResolvedConfig(
        settings=configuration.settings,
        gateway=build_gateway_options(configuration.settings, environment),
        agents=options_by_agent(configuration.settings, environment),
        cost=SpendingOptions(
            caps=configuration.cost.caps,
            prices=PriceBook(
                configuration.cost.prices,
                load_imported=_no_update if price_file is None else price_file.current_prices,
            ),
            min_output_tokens=configuration.cost.min_output_tokens,
            allow_fields=configuration.cost.allow_fields,
        ),
        price_file=price_file,
    )


def _no_update() -> None:
    return None


def build_gateway_options(settings: Settings, environment: Mapping[str, str]) -> GatewayOptions:
    """Build the gateway's options from the settings.

    Raises:
        BadOption: an upstream is incomplete or its address is invalid, a route names an unknown
            upstream, or a key is not in the environment; `path` names the setting.
    """
    threads = _default_thread_mode(settings)
    upstreams = {
        name: replace(known, threads=threads, key=_read_key(DEFAULT_KEY_VARIABLES.get(name, ""), environment))
        for name, known in KNOWN_UPSTREAMS.items()
    }
    for name, configured in settings.upstreams.items():
        upstream = _build_upstream(name, configured, upstreams.get(name), environment)
        upstreams[name] = replace(
            upstream, threads=threads if configured.threads is None else ThreadMode(configured.threads)
        )
    for number, route in enumerate(settings.routes):
        if route.upstream not in upstreams:
            known = ", ".join(sorted(upstreams))
            raise BadOption(
                f"there is no upstream {route.upstream!r}; the known upstreams are {known}",
                path=("routes", number, "upstream"),
            )
    server = settings.server
    if server.body_memory_bytes < MIN_BODIES * server.body_limit_bytes:
        raise BadOption(
            f"body_memory_bytes is {server.body_memory_bytes:,} but must be at least {MIN_BODIES} times"
            f" body_limit_bytes ({server.body_limit_bytes:,}), because compressed bodies need memory twice",
            path=("server", "body_memory_bytes"),
        )
    if server.proxy:
        try:
            parse_proxy(server.proxy)
        except BadOption as error:
            raise BadOption(str(error), path=("server", "proxy")) from None
    hashes: dict[str, str] = {}
    for agent_number, agent in enumerate(settings.agents):
        for number, hashed in enumerate(agent.keys):
            owner = hashes.setdefault(hashed, agent.id)
            if owner != agent.id:
                raise BadOption(
                    f"this is also a key of the agent {owner!r}: create another one with `foveate config key`",
                    path=("agents", agent_number, "keys", number),
                )
    for number, hashed in enumerate(server.admin_keys):
        if hashed in hashes:
            raise BadOption(
                f"this is also a key of the agent {hashes[hashed]!r}: use separate keys for admins and agents",
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


def _default_thread_mode(settings: Settings) -> ThreadMode:
    """Hold threads only if no other process can receive the next request of a thread."""
    is_alone = settings.server.workers == 1 and not is_server(settings.store.url)
    return ThreadMode.HOLD if is_alone else ThreadMode.REFUSE


def _read_key(variable: str, environment: Mapping[str, str], path: tuple[str, ...] = ()) -> str | None:
    key = environment.get(variable) or None
    if key is not None and not _HEADER_VALUE.fullmatch(key):
        raise BadOption(
            f"{variable} cannot be sent in a header: it contains a line break, leading or trailing blanks, or"
            " characters that are not ASCII",
            path=path,
        )
    return key


def _needs_version(base_url: str) -> bool:
    """Return whether an OpenAI-style base URL is only a host; with few exceptions its API is below `/v1`."""
    parts = urlsplit(base_url)
    return parts.path in ("", "/") and parts.hostname not in _HOSTS_WITHOUT_VERSION


def _build_upstream(
    name: str, configured: UpstreamSettings, known: Upstream | None, environment: Mapping[str, str]
) -> Upstream:
    path = ("upstreams", name)
    if configured.api is None and known is None and name in _UPSTREAMS_NAMED_BY_API:
        configured = configured.model_copy(update={"api": name})
    if known is None and (configured.base_url is None or configured.api is None):
        missing = "base_url" if configured.base_url is None else "api"
        raise BadOption(f"{missing} is required, because {name!r} is not a built-in upstream", path=path)
    family = (
        None
        if configured.api is None
        else ApiFamily.OPENAI
        if configured.api == "both"
        else ApiFamily(configured.api)
    )
    provider = _PROVIDER_BY_FAMILY.get(family, name) if family is not None else name
    base = known or Upstream(name=name, base_url="", family=family or ApiFamily.OPENAI, provider=provider)
    accepts_both = base.accepts_both if configured.api is None else configured.api == "both"
    base_url = configured.base_url or base.base_url
    if (
        accepts_both or (family or base.family) is ApiFamily.ANTHROPIC
    ):  # it may be written as for OpenAI's clients
        base_url = base_url.rstrip("/").removesuffix(VERSION_PATH)
    for suffix in _BASE_URL_SUFFIXES.get(family or base.family, ()):
        base_url = base_url.rstrip("/").removesuffix(suffix)
    try:
        parse_url(base_url)
    except UpstreamUnreachable as error:
        raise BadOption(f"base_url cannot be used: {error.reason}", path=(*path, "base_url")) from None
    if (family or base.family) is ApiFamily.OPENAI and not accepts_both and _needs_version(base_url):
        base_url = base_url.rstrip("/") + VERSION_PATH
    key = base.key
    if configured.key_variable is not None:
        key = _read_key(configured.key_variable, environment, path=(*path, "key_variable"))
        if key is None:
            raise BadOption(
                f"{configured.key_variable} is not set in the environment", path=(*path, "key_variable")
            )
    region = ""
    if configured.sign is not None:
        check_installed((*path, "sign"))
        region = find_region(base_url, environment, (*path, "sign"))
    return replace(
        base,
        base_url=base_url,
        family=family or base.family,
        provider=configured.provider or base.provider,
        key=key,
        replaces_keys=configured.key_variable is not None or configured.sign is not None,
        accepts_both=accepts_both,
        deployments=configured.deployments,
        aws_region=region,
        allow=tuple(configured.allow),
        reuse=configured.reuse,
    )


def describe_current_settings(
    live: LiveSettings[ResolvedConfig], environment: Mapping[str, str]
) -> list[EffectiveSetting]:
    return describe_settings(live.current().value.settings, live.text, live.path, environment)


def describe_settings(
    settings: Settings, text: bytes, path: Path | None, environment: Mapping[str, str]
) -> list[EffectiveSetting]:
    """Describe every effective setting, if the file at `path` contains `text`."""
    variables = dict(DEFAULT_KEY_VARIABLES)
    variables |= {
        name: upstream.key_variable for name, upstream in settings.upstreams.items() if upstream.key_variable
    }
    document = None if path is None or not has_content(text) else parse_document(text, display_path(path))
    return list_effective_settings(settings, document, environment, variables)

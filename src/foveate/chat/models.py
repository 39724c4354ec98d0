"""Configuration of a conversation: which models can be used, and through which upstream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from foveate.chat.requests import ModelTarget
from foveate.config.load import LOCAL_UPSTREAM
from foveate.engine.options import AgentOptions
from foveate.errors import BadOption
from foveate.gateway.auth.callers import NoKeys
from foveate.gateway.config import DEFAULT_KEY_VARIABLES, ResolvedConfig
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.routing import KNOWN_UPSTREAMS, Route, Upstream
from foveate.model import Format
from foveate.tokens.offline_counters import is_claude

LOCAL_WINDOW_TOKENS = 8192
"""Context window of the local model."""

# Default models; the first one with a key is used. The middle of each provider's range (November 2026).
_DEFAULT_MODELS = {
    "anthropic": "claude-sonnet-5-5",
    "openai": "gpt-5.4",
    "deepseek": "deepseek-chat",
    "gemini": "gemini-2.5-flash",
}
# Providers by the prefix of the model's name, if no route matches.
_MODEL_PREFIXES = {"deepseek": "deepseek", "gemini": "gemini"}
_GLOB_CHARS = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConfigOverrides:
    route: Route | None = None
    compacts: bool = False
    is_local: bool = False


class ChatConfig:
    """The configuration of one conversation. `base_config` returns that of files and flags.

    Gateway keys are ignored: the user of this process pays.
    """

    def __init__(self, base_config: Callable[[], ResolvedConfig]) -> None:
        self.base_config = base_config
        self._overrides = _ConfigOverrides()
        self._cached: tuple[ResolvedConfig, _ConfigOverrides, ResolvedConfig] | None = None

    def current_config(self) -> ResolvedConfig:
        base = self.base_config()
        if self._cached is None or self._cached[0] is not base or self._cached[1] is not self._overrides:
            self._cached = (base, self._overrides, _apply_overrides(base, self._overrides))
        return self._cached[2]

    def enable_compaction(self) -> None:
        """Send summaries even if compaction is disabled in the configuration."""
        self._overrides = replace(self._overrides, compacts=True)

    def reset_compaction(self) -> None:
        self._overrides = replace(self._overrides, compacts=False)

    @property
    def has_local(self) -> bool:
        return LOCAL_UPSTREAM in self.current_config().gateway.routing.upstreams

    def list_models(self) -> list[str]:
        config = self.current_config()
        routed = [route.models for route in config.settings.routes if not _GLOB_CHARS & set(route.models)]
        return list(dict.fromkeys((*routed, *_list_models_with_keys(config), LOCAL_UPSTREAM)))

    def default_model(self) -> str:
        """Return the model to use if none is named.

        Raises:
            BadOption: there is a key, but no obvious model.
        """
        config = self.current_config()
        for route in config.settings.routes:
            if not _GLOB_CHARS & set(route.models) and route.models != LOCAL_UPSTREAM:
                return route.models
        if models := _list_models_with_keys(config):
            return models[0]
        if any(route.upstream != LOCAL_UPSTREAM for route in config.settings.routes):
            raise BadOption("no route in the configuration names a single model: choose one with --model NAME")
        upstreams_with_keys = [
            name for name, upstream in config.gateway.routing.upstreams.items() if upstream.key
        ]
        if upstreams_with_keys:
            raise BadOption(f"choose a model with --model {upstreams_with_keys[0]}/NAME")
        return LOCAL_UPSTREAM

    def select_model(self, model: str) -> ModelTarget:
        """Use a model from now on; `UPSTREAM/MODEL` names the upstream.

        Raises:
            BadOption: no upstream has it, or the upstream's key is missing.
        """
        if not model or not model.isprintable():
            raise BadOption("the model needs a name, such as claude-sonnet-5-5 or local")
        overrides = replace(self._overrides, route=None)
        upstream = _find_routed_upstream(self.base_config(), model)
        name, _, upstream_model = model.partition("/")
        if upstream is None and upstream_model and name in self.base_config().gateway.routing.upstreams:
            upstream = self.base_config().gateway.routing.upstreams[name]
            overrides = replace(
                overrides, route=Route(models=_escape_glob(model), upstream=name, model=upstream_model)
            )
        elif upstream is None:
            upstream = _guess_upstream(self.base_config(), model)
            if upstream_model and not _is_custom_server(upstream):
                known = ", ".join(sorted(self.base_config().gateway.routing.upstreams))
                raise BadOption(f"there is no upstream {name!r} for {model}; configured upstreams: {known}")
            default = self.base_config().gateway.routing.default_upstreams[upstream.family]
            if upstream.name != default:
                overrides = replace(overrides, route=Route(models=_escape_glob(model), upstream=upstream.name))
        if not (upstream.accepts(ApiFamily.ANTHROPIC) or upstream.accepts(ApiFamily.OPENAI)):
            raise BadOption(
                f"`foveate chat` does not support the API of {upstream.name} ({upstream.family.value}): choose"
                " an upstream with the OpenAI or Anthropic API"
            )
        if upstream.key is None and upstream.name in DEFAULT_KEY_VARIABLES and not _is_custom_server(upstream):
            raise BadOption(
                f"{model} needs an API key for {upstream.name}: set {DEFAULT_KEY_VARIABLES[upstream.name]},"
                f" or use another model ({LOCAL_UPSTREAM} needs no key)"
            )
        self._overrides = replace(overrides, is_local=upstream.name == LOCAL_UPSTREAM)
        return ModelTarget(model=model, upstream=upstream, api_format=_choose_format(upstream, model))


def _apply_overrides(base: ResolvedConfig, overrides: _ConfigOverrides) -> ResolvedConfig:
    gateway = replace(base.gateway, keys=NoKeys())
    if overrides.route is not None:
        routes = (overrides.route, *gateway.routing.routes)
        gateway = replace(gateway, routing=replace(gateway.routing, routes=routes))

    def agent_options(agent: str) -> AgentOptions:
        options = base.agents(agent)
        if overrides.compacts:
            options = replace(options, compaction=True)
        if overrides.is_local and options.window_tokens is None:
            options = replace(options, window_tokens=LOCAL_WINDOW_TOKENS)
        return options

    return ResolvedConfig(settings=base.settings, gateway=gateway, agents=agent_options, cost=base.cost)


def _list_models_with_keys(config: ResolvedConfig) -> list[str]:
    upstreams = config.gateway.routing.upstreams
    return [model for name, model in _DEFAULT_MODELS.items() if upstreams[name].key]


def _find_routed_upstream(config: ResolvedConfig, model: str) -> Upstream | None:
    routing = config.gateway.routing
    routes = (route for route in routing.routes if fnmatchcase(model, route.models))
    return next((routing.upstreams[route.upstream] for route in routes), None)


def _guess_upstream(config: ResolvedConfig, model: str) -> Upstream:
    """Unknown models are OpenAI's."""
    upstreams = config.gateway.routing.upstreams
    defaults = config.gateway.routing.default_upstreams
    for prefix, name in _MODEL_PREFIXES.items():
        if model.lower().startswith(prefix) and upstreams[name].key:
            return upstreams[name]
    return upstreams[defaults[ApiFamily.ANTHROPIC if is_claude(model) else ApiFamily.OPENAI]]


def _choose_format(upstream: Upstream, model: str) -> Format:
    if upstream.accepts_both:
        return Format.ANTHROPIC if is_claude(model) else Format.CHAT
    return Format.ANTHROPIC if upstream.family is ApiFamily.ANTHROPIC else Format.CHAT


def _is_custom_server(upstream: Upstream) -> bool:
    """A custom server may need no key and have models of its own."""
    return upstream.base_url != KNOWN_UPSTREAMS[upstream.name].base_url


def _escape_glob(model: str) -> str:
    return "".join(f"[{char}]" if char in _GLOB_CHARS else char for char in model)


def find_closest_name(name: str, names: Sequence[str]) -> str | None:
    from difflib import get_close_matches

    return next(iter(get_close_matches(name.casefold(), names, n=1)), None)

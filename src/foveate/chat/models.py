"""Where a conversation takes place: the models that can be reached, and what a configuration says of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from foveate.chat.requests import ModelTarget
from foveate.config.overrides import LOCAL_UPSTREAM
from foveate.engine.options import AgentOptions
from foveate.errors import BadOption
from foveate.gateway.auth.keys import NoKeys
from foveate.gateway.config import DEFAULT_KEY_VARIABLES, ResolvedConfig
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.routing import KNOWN_UPSTREAMS, Route, Upstream
from foveate.model import Format
from foveate.tokens.families import is_claude

LOCAL_WINDOW_TOKENS = 8192
"""What the model on this machine is served with."""

# Asked for where nobody says which: the first of those whose key is there. The middle of each provider's
# range, as its own pages have it (November 2026).
_DEFAULT_MODELS = {
    "anthropic": "claude-sonnet-5-5",
    "openai": "gpt-5.4",
    "deepseek": "deepseek-chat",
    "gemini": "gemini-2.5-flash",
}
# Whose models they are, by how their names begin, where no route says so.
_MODEL_PREFIXES = {"deepseek": "deepseek", "gemini": "gemini"}
_GLOB_CHARS = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConfigOverrides:
    """What a conversation changes: a route to a model named with its upstream, and whether folds are wanted."""

    route: Route | None = None
    compacts: bool = False
    is_local: bool = False


class ChatConfig:
    """A configuration as it holds for one conversation. `found` is what the files and flags say now.

    Who runs it is who pays: keys of the gateway, which are for others, name nobody here.
    """

    def __init__(self, base_config: Callable[[], ResolvedConfig]) -> None:
        self.base_config = base_config
        self._overrides = _ConfigOverrides()
        self._cached: tuple[ResolvedConfig, _ConfigOverrides, ResolvedConfig] | None = None

    def current_config(self) -> ResolvedConfig:
        """What holds for the next request."""
        base = self.base_config()
        if self._cached is None or self._cached[0] is not base or self._cached[1] is not self._overrides:
            self._cached = (base, self._overrides, _apply_overrides(base, self._overrides))
        return self._cached[2]

    def enable_compaction(self) -> None:
        """Have what is folded be sent in the place of what it stands for, also where folding is off."""
        self._overrides = replace(self._overrides, compacts=True)

    def reset_compaction(self) -> None:
        """Have histories be folded only where the configuration says so."""
        self._overrides = replace(self._overrides, compacts=False)

    @property
    def has_local(self) -> bool:
        """Whether the model on this machine is there."""
        return LOCAL_UPSTREAM in self.current_config().gateway.routing.upstreams

    def list_models(self) -> list[str]:
        """The models that can be named without guessing: those of routes, then of providers with a key."""
        config = self.current_config()
        routed = [route.models for route in config.settings.routes if not _GLOB_CHARS & set(route.models)]
        return list(dict.fromkeys((*routed, *_list_models_with_keys(config), LOCAL_UPSTREAM)))

    def default_model(self) -> str:
        """The model that is spoken to where nobody says which.

        Raises:
            BadOption: there is a key, and no model that could be meant.
        """
        config = self.current_config()
        for route in config.settings.routes:
            if not _GLOB_CHARS & set(route.models) and route.models != LOCAL_UPSTREAM:
                return route.models
        if models := _list_models_with_keys(config):
            return models[0]
        if any(route.upstream != LOCAL_UPSTREAM for route in config.settings.routes):
            raise BadOption(
                "the routes of the configuration name no model by itself: say one with --model NAME"
            )
        named = [name for name, upstream in config.gateway.routing.upstreams.items() if upstream.key]
        if named:
            raise BadOption(f"say which model is meant: --model {named[0]}/NAME")
        return LOCAL_UPSTREAM

    def select_model(self, model: str) -> ModelTarget:
        """How a model is spoken to from now on; `UPSTREAM/MODEL` is one of an upstream by its name.

        Raises:
            BadOption: it can be reached nowhere, or there is no key for where it is.
        """
        if not model or not model.isprintable():
            raise BadOption("a model has a name, such as claude-sonnet-5-5 or local")
        overrides = replace(self._overrides, route=None)
        upstream = _find_routed_upstream(self.base_config(), model)
        name, _, rest = model.partition("/")
        if upstream is None and rest and name in self.base_config().gateway.routing.upstreams:
            upstream = self.base_config().gateway.routing.upstreams[name]
            overrides = replace(overrides, route=Route(models=_escape_glob(model), upstream=name, model=rest))
        elif upstream is None:
            upstream = _guess_upstream(self.base_config(), model)
            if rest and not _is_custom_server(upstream):
                known = ", ".join(sorted(self.base_config().gateway.routing.upstreams))
                raise BadOption(f"there is no upstream {name!r} for {model}; there are {known}")
            default = self.base_config().gateway.routing.default_upstreams[upstream.family]
            if upstream.name != default:
                overrides = replace(overrides, route=Route(models=_escape_glob(model), upstream=upstream.name))
        if not (upstream.accepts(ApiFamily.ANTHROPIC) or upstream.accepts(ApiFamily.OPENAI)):
            raise BadOption(
                f"`foveate chat` does not speak the API of {upstream.name} ({upstream.family.value}): name an"
                " upstream that speaks OpenAI's or Anthropic's"
            )
        if upstream.key is None and upstream.name in DEFAULT_KEY_VARIABLES and not _is_custom_server(upstream):
            raise BadOption(
                f"there is no key for {upstream.name}, where {model} is: set {DEFAULT_KEY_VARIABLES[upstream.name]}, "
                f"or talk to another model ({LOCAL_UPSTREAM} needs no key)"
            )
        self._overrides = replace(overrides, is_local=upstream.name == LOCAL_UPSTREAM)
        return ModelTarget(model=model, upstream=upstream, api_format=_choose_format(upstream, model))


def _apply_overrides(base: ResolvedConfig, overrides: _ConfigOverrides) -> ResolvedConfig:
    gateway = replace(base.gateway, keys=NoKeys())
    if overrides.route is not None:
        routes = (overrides.route, *gateway.routing.routes)
        gateway = replace(gateway, routing=replace(gateway.routing, routes=routes))

    def agents(agent: str) -> AgentOptions:
        options = base.agents(agent)
        if overrides.compacts:
            options = replace(options, compaction=True)
        if overrides.is_local and options.window_tokens is None:
            options = replace(options, window_tokens=LOCAL_WINDOW_TOKENS)
        return options

    return ResolvedConfig(settings=base.settings, gateway=gateway, agents=agents, cost=base.cost)


def _list_models_with_keys(config: ResolvedConfig) -> list[str]:
    upstreams = config.gateway.routing.upstreams
    return [model for name, model in _DEFAULT_MODELS.items() if upstreams[name].key]


def _find_routed_upstream(config: ResolvedConfig, model: str) -> Upstream | None:
    """Where the routes have a model go; the first that matches, as for every client that speaks its API."""
    routing = config.gateway.routing
    routes = (route for route in routing.routes if fnmatchcase(model, route.models))
    return next((routing.upstreams[route.upstream] for route in routes), None)


def _guess_upstream(config: ResolvedConfig, model: str) -> Upstream:
    """Whose model it is, by its name; what nobody knows is OpenAI's, or of whom speaks like them."""
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
    """Whether a server was put in a provider's place, which may want no key, and have names of its own."""
    return upstream.base_url != KNOWN_UPSTREAMS[upstream.name].base_url


def _escape_glob(model: str) -> str:
    """A glob that matches this name only."""
    return "".join(f"[{char}]" if char in _GLOB_CHARS else char for char in model)


def find_closest_name(name: str, names: Sequence[str]) -> str | None:
    """The name that was probably meant."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name.casefold(), names, n=1)), None)

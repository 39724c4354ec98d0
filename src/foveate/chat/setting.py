"""Where a conversation takes place: the models that can be reached, and what a configuration says of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from foveate.chat.bodies import Speaking
from foveate.config.overriding import LOCAL
from foveate.engine.options import AgentOptions
from foveate.errors import BadOption
from foveate.gateway.configured import USUAL_VARIABLES, Choices
from foveate.gateway.doors import Family
from foveate.gateway.keys import NoKeys
from foveate.gateway.routing import KNOWN_UPSTREAMS, Route, Upstream
from foveate.tokens.families import is_claude
from foveate.values import Format

LOCAL_WINDOW_TOKENS = 8192
"""What the model on this machine is served with."""

# Asked for where nobody says which: the first of those whose key is there. The middle of each provider's
# range, as its own pages have it (November 2026).
_USUAL_MODELS = {
    "anthropic": "claude-sonnet-5-5",
    "openai": "gpt-5.4",
    "deepseek": "deepseek-chat",
    "gemini": "gemini-2.5-flash",
}
# Whose models they are, by how their names begin, where no route says so.
_BEGINNINGS = {"deepseek": "deepseek", "gemini": "gemini"}
_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changes:
    """What a conversation changes: a route to a model named with its upstream, and whether folds are wanted."""

    route: Route | None = None
    compacts: bool = False
    is_local: bool = False


class Setting:
    """A configuration as it holds for one conversation. `found` is what the files and flags say now.

    Who runs it is who pays: keys of the gateway, which are for others, name nobody here.
    """

    def __init__(self, found: Callable[[], Choices]) -> None:
        self.found = found
        self._changes = _Changes()
        self._now: tuple[Choices, _Changes, Choices] | None = None

    def now(self) -> Choices:
        """What holds for the next request."""
        found = self.found()
        if self._now is None or self._now[0] is not found or self._now[1] is not self._changes:
            self._now = (found, self._changes, _changed(found, self._changes))
        return self._now[2]

    def compact(self) -> None:
        """Have what is folded be sent in the place of what it stands for, also where folding is off."""
        self._changes = replace(self._changes, compacts=True)

    def begin_anew(self) -> None:
        """Have histories be folded only where the configuration says so."""
        self._changes = replace(self._changes, compacts=False)

    @property
    def has_local(self) -> bool:
        """Whether the model on this machine is there."""
        return LOCAL in self.now().gateway.routing.upstreams

    def models(self) -> list[str]:
        """The models that can be named without guessing: those of routes, then of providers with a key."""
        choices = self.now()
        routed = [route.models for route in choices.settings.routes if not _GLOB & set(route.models)]
        return list(dict.fromkeys((*routed, *_keyed(choices), LOCAL)))

    def usual_model(self) -> str:
        """The model that is spoken to where nobody says which.

        Raises:
            BadOption: there is a key, and no model that could be meant.
        """
        choices = self.now()
        for route in choices.settings.routes:
            if not _GLOB & set(route.models) and route.models != LOCAL:
                return route.models
        if known := _keyed(choices):
            return known[0]
        if any(route.upstream != LOCAL for route in choices.settings.routes):
            raise BadOption(
                "the routes of the configuration name no model by itself: say one with --model NAME"
            )
        named = [name for name, upstream in choices.gateway.routing.upstreams.items() if upstream.key]
        if named:
            raise BadOption(f"say which model is meant: --model {named[0]}/NAME")
        return LOCAL

    def speak(self, model: str) -> Speaking:
        """How a model is spoken to from now on; `UPSTREAM/MODEL` is one of an upstream by its name.

        Raises:
            BadOption: it can be reached nowhere, or there is no key for where it is.
        """
        if not model or not model.isprintable():
            raise BadOption("a model has a name, such as claude-sonnet-5-5 or local")
        changes = replace(self._changes, route=None)
        upstream = _routed(self.found(), model)
        name, _, rest = model.partition("/")
        if upstream is None and rest and name in self.found().gateway.routing.upstreams:
            upstream = self.found().gateway.routing.upstreams[name]
            changes = replace(changes, route=Route(models=_literally(model), upstream=name, model=rest))
        elif upstream is None:
            upstream = _by_name(self.found(), model)
            if rest and not _is_own(upstream):
                known = ", ".join(sorted(self.found().gateway.routing.upstreams))
                raise BadOption(f"there is no upstream {name!r} for {model}; there are {known}")
            usual = self.found().gateway.routing.usual[upstream.family]
            if upstream.name != usual:
                changes = replace(changes, route=Route(models=_literally(model), upstream=upstream.name))
        if not (upstream.speaks(Family.ANTHROPIC) or upstream.speaks(Family.OPENAI)):
            raise BadOption(
                f"`foveate chat` does not speak the API of {upstream.name} ({upstream.family.value}): name an"
                " upstream that speaks OpenAI's or Anthropic's"
            )
        if upstream.key is None and upstream.name in USUAL_VARIABLES and not _is_own(upstream):
            raise BadOption(
                f"there is no key for {upstream.name}, where {model} is: set {USUAL_VARIABLES[upstream.name]}, "
                f"or talk to another model ({LOCAL} needs no key)"
            )
        self._changes = replace(changes, is_local=upstream.name == LOCAL)
        return Speaking(model=model, upstream=upstream, spoken=_format(upstream, model))


def _changed(found: Choices, changes: _Changes) -> Choices:
    gateway = replace(found.gateway, keys=NoKeys())
    if changes.route is not None:
        routes = (changes.route, *gateway.routing.routes)
        gateway = replace(gateway, routing=replace(gateway.routing, routes=routes))

    def agents(agent: str) -> AgentOptions:
        options = found.agents(agent)
        if changes.compacts:
            options = replace(options, compaction=True)
        if changes.is_local and options.window_tokens is None:
            options = replace(options, window_tokens=LOCAL_WINDOW_TOKENS)
        return options

    return Choices(settings=found.settings, gateway=gateway, agents=agents, cost=found.cost)


def _keyed(choices: Choices) -> list[str]:
    upstreams = choices.gateway.routing.upstreams
    return [model for name, model in _USUAL_MODELS.items() if upstreams[name].key]


def _routed(choices: Choices, model: str) -> Upstream | None:
    """Where the routes have a model go; the first that matches, as for every client that speaks its API."""
    routing = choices.gateway.routing
    found = (route for route in routing.routes if fnmatchcase(model, route.models))
    return next((routing.upstreams[route.upstream] for route in found), None)


def _by_name(choices: Choices, model: str) -> Upstream:
    """Whose model it is, by its name; what nobody knows is OpenAI's, or of whom speaks like them."""
    upstreams = choices.gateway.routing.upstreams
    usual = choices.gateway.routing.usual
    for beginning, name in _BEGINNINGS.items():
        if model.lower().startswith(beginning) and upstreams[name].key:
            return upstreams[name]
    return upstreams[usual[Family.ANTHROPIC if is_claude(model) else Family.OPENAI]]


def _format(upstream: Upstream, model: str) -> Format:
    if upstream.speaks_both:
        return Format.ANTHROPIC if is_claude(model) else Format.CHAT
    return Format.ANTHROPIC if upstream.family is Family.ANTHROPIC else Format.CHAT


def _is_own(upstream: Upstream) -> bool:
    """Whether a server was put in a provider's place, which may want no key, and have names of its own."""
    return upstream.base_url != KNOWN_UPSTREAMS[upstream.name].base_url


def _literally(model: str) -> str:
    """A glob that matches this name only."""
    return "".join(f"[{char}]" if char in _GLOB else char for char in model)


def nearest(name: str, names: Sequence[str]) -> str | None:
    """The name that was probably meant."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name.casefold(), names, n=1)), None)

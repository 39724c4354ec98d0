"""Where requests go: upstreams by name, and which models go to which of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

import msgspec

from foveate.errors import NoUpstream, WrongApi
from foveate.gateway.endpoints import ApiFamily, Endpoint

VERSION_PATH = "/v1"
_ANY_MODEL = "*"
_ANTHROPIC_AND_OPENAI = frozenset((ApiFamily.ANTHROPIC, ApiFamily.OPENAI))
ALLOWED_OPERATIONS = ("answers", "counting", "embeddings", "models")
"""What the gateway's own credentials are used for if nothing else is configured."""


class ThreadMode(StrEnum):
    """What the gateway does with requests that use message threads."""

    HOLD = "hold"
    REFUSE = "refuse"
    PASS = "pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A server that speaks the API of a family. `provider` is who runs it, for cache rules and prices.

    `base_url` is what a client of that family would be given. `key` is for clients that show a key of the
    gateway; where it `replaces_keys`, also in the place of what others bring. One that `speaks_both` takes the
    other family's requests as well, and its `base_url` is without the version. `deployments` are the models
    that answer under other names. Requests to one with an `aws_region` are signed by the gateway. `allow` names
    the operations that the gateway's own credentials may be used for. Without `reuse` each request has a
    connection of its own. `threads` says what is done with requests that use message threads.
    """

    name: str
    base_url: str
    family: ApiFamily
    provider: str
    key: str | None = field(default=None, repr=False)
    replaces_keys: bool = False
    accepts_both: bool = False
    deployments: Mapping[str, str] = field(default_factory=dict)
    aws_region: str = ""
    allow: tuple[str, ...] = ALLOWED_OPERATIONS
    reuse: bool = True
    threads: ThreadMode = ThreadMode.HOLD

    def accepts(self, family: ApiFamily) -> bool:
        """Whether it takes requests of a family."""
        return family is self.family or (self.accepts_both and family in _ANTHROPIC_AND_OPENAI)

    def url(self, path: str, query: str = "") -> str:
        """Where a path of the gateway is, there. OpenAI's clients have the version in their base URL."""
        is_openai = self.family is ApiFamily.OPENAI and not self.accepts_both
        own_path = path.removeprefix(VERSION_PATH) if is_openai else path
        url = f"{self.base_url.rstrip('/')}{own_path}"
        return f"{url}?{query}" if query else url


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Requests for models that match a glob go to an upstream, for `model` where that is its name there."""

    models: str
    upstream: str
    model: str | None = None


class RouteMatch(msgspec.Struct, frozen=True):
    """Where a request goes, and the model that it names there, if that is another.

    `served_model` is the model that answers, if the body does not name it.
    """

    upstream: Upstream
    model: str | None = None
    served_model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """All upstreams by their names, and the routes in the order in which they are tried.

    A family has a `usual` upstream, for whatever no route matches.
    """

    upstreams: Mapping[str, Upstream]
    routes: Sequence[Route] = ()
    default_upstreams: Mapping[ApiFamily, str] = field(default_factory=lambda: DEFAULT_UPSTREAMS)

    def possible_upstreams(self, endpoint: Endpoint) -> Iterator[Upstream]:
        """The upstreams to which requests through a door may go, whatever model they name."""
        for name in (
            *(route.upstream for route in self.routes),
            self.default_upstreams.get(endpoint.family, ""),
        ):
            upstream = self.upstreams.get(name)
            if upstream is not None and upstream.accepts(endpoint.family):
                yield upstream

    def match(self, endpoint: Endpoint, model: str) -> RouteMatch:
        """Where a request goes that names `model`; only upstreams that speak its family's API.

        What names none goes where all go, if they do.

        Raises:
            WrongApi: no upstream that the routes have for it speaks that. The usual one is somebody else, who
                should see neither the request nor its key.
            NoUpstream: no route matches, and no upstream is the usual one of the family.
        """
        skipped_upstream = ""
        for route in self.routes:
            if not (fnmatchcase(model, route.models) if model else route.models == _ANY_MODEL):
                continue
            upstream = self.upstreams[route.upstream]
            if upstream.accepts(endpoint.family):
                return _build_match(upstream, endpoint, model, route.model)
            skipped_upstream = skipped_upstream or upstream.name
        if skipped_upstream:
            raise WrongApi(model, skipped_upstream, api=endpoint.family.value)
        default = self.upstreams.get(self.default_upstreams.get(endpoint.family, ""))
        if default is None or not default.accepts(endpoint.family):
            raise NoUpstream(endpoint.family.value)
        return _build_match(default, endpoint, model, None)


def _build_match(upstream: Upstream, endpoint: Endpoint, model: str, alias: str | None) -> RouteMatch:
    new_name = alias if model and alias != model else None
    name = new_name or model
    return RouteMatch(upstream, new_name, upstream.deployments.get(name, name if endpoint.model else ""))


DEFAULT_UPSTREAMS: Mapping[ApiFamily, str] = {
    ApiFamily.ANTHROPIC: "anthropic",
    ApiFamily.OPENAI: "openai",
    ApiFamily.GEMINI: "google",
    ApiFamily.AZURE: "azure",
    ApiFamily.BEDROCK: "bedrock",
    ApiFamily.VERTEX: "vertex",
}
"""Where requests of a family go if no route matches."""

# The addresses that each provider's own documentation gives (November 2026).
KNOWN_UPSTREAMS: Mapping[str, Upstream] = {
    upstream.name: upstream
    for upstream in (
        Upstream(
            name="anthropic",
            base_url="https://api.anthropic.com",
            family=ApiFamily.ANTHROPIC,
            provider="anthropic",
        ),
        Upstream(
            name="openai", base_url="https://api.openai.com/v1", family=ApiFamily.OPENAI, provider="openai"
        ),
        Upstream(
            name="openrouter",
            base_url="https://openrouter.ai/api/v1",
            family=ApiFamily.OPENAI,
            provider="openrouter",
        ),
        Upstream(
            name="deepseek",
            base_url="https://api.deepseek.com/v1",
            family=ApiFamily.OPENAI,
            provider="deepseek",
        ),
        Upstream(
            name="google",
            base_url="https://generativelanguage.googleapis.com",
            family=ApiFamily.GEMINI,
            provider="google",
        ),
        Upstream(
            name="gemini",
            base_url="https://generativelanguage.googleapis.com/v1beta/openai",
            family=ApiFamily.OPENAI,
            provider="google",
        ),
        Upstream(
            name="nvidia",
            base_url="https://integrate.api.nvidia.com/v1",
            family=ApiFamily.OPENAI,
            provider="nvidia",
        ),
        Upstream(
            name="llama.cpp",
            base_url="http://127.0.0.1:8080",
            family=ApiFamily.OPENAI,
            provider="llama.cpp",
            accepts_both=True,
        ),
        Upstream(
            name="vllm",
            base_url="http://127.0.0.1:8000",
            family=ApiFamily.OPENAI,
            provider="vllm",
            accepts_both=True,
        ),
    )
}
"""Those that can be named without saying where they are."""

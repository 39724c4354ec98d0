"""Upstreams, and routes from models to upstreams."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

import msgspec

from foveate.errors import NoUpstream, WrongApi
from foveate.gateway.endpoints import ApiFamily, Endpoint

VERSION_PATH = "/v1"
_ANY_MODEL = "*"
_OPENAI_HOST = re.compile(r"https://(?:([a-z]+)\.)?api\.openai\.com(?=[:/]|$)", re.IGNORECASE)
_ANTHROPIC_AND_OPENAI = frozenset((ApiFamily.ANTHROPIC, ApiFamily.OPENAI))
ALLOWED_OPERATIONS = ("answers", "counting", "embeddings", "models")
"""Operations for which the gateway's own credentials are used by default."""


class ThreadMode(StrEnum):
    HOLD = "hold"
    REFUSE = "refuse"
    PASS = "pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A server that implements the API of a family. `provider` determines cache rules and prices.

    `base_url` is what a client of that family would use; with `accepts_both` it has no version, and the server
    accepts the API of Anthropic and of OpenAI. `key` is for clients that send a gateway key; with
    `replaces_keys` it also replaces the credentials of other clients. `deployments` maps deployment names to
    models. With an `aws_region` the gateway signs requests. `allow` lists the operations for which the
    gateway's own credentials may be used. Without `reuse`, each request opens a new connection.
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

    @property
    def region(self) -> str:
        """Where OpenAI serves calls, by the host for data residency; empty for other servers."""
        host = _OPENAI_HOST.match(self.base_url)
        return (host[1] or "global") if host else ""

    def accepts(self, family: ApiFamily) -> bool:
        return family is self.family or (self.accepts_both and family in _ANTHROPIC_AND_OPENAI)

    def url(self, path: str, query: str = "") -> str:
        """Return the upstream's URL for a path of the gateway. OpenAI-style base URLs contain the version."""
        is_openai = self.family is ApiFamily.OPENAI and not self.accepts_both
        # Of `/v1@host` the rest would change the host.
        has_version = path == VERSION_PATH or path.startswith(f"{VERSION_PATH}/")
        own_path = path.removeprefix(VERSION_PATH) if is_openai and has_version else path
        url = f"{self.base_url.rstrip('/')}{own_path}"
        return f"{url}?{query}" if query else url


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Sends models that match a glob to an upstream, renamed to `model` if that is set."""

    models: str
    upstream: str
    model: str | None = None


class RouteMatch(msgspec.Struct, frozen=True):
    """The upstream of a request, and the model's name there if it differs.

    `served_model` is the model that responds, if the body does not name it.
    """

    upstream: Upstream
    model: str | None = None
    served_model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """All upstreams by name, and the routes in order.

    If no route matches, `default_upstreams` has one for each family.
    """

    upstreams: Mapping[str, Upstream]
    routes: Sequence[Route] = ()
    default_upstreams: Mapping[ApiFamily, str] = field(default_factory=lambda: DEFAULT_UPSTREAMS)

    def possible_upstreams(self, endpoint: Endpoint) -> Iterator[Upstream]:
        """Yield the upstreams that requests to an endpoint may use, whatever model they name."""
        for name in (
            *(route.upstream for route in self.routes),
            self.default_upstreams.get(endpoint.family, ""),
        ):
            upstream = self.upstreams.get(name)
            if upstream is not None and upstream.accepts(endpoint.family):
                yield upstream

    def match(self, endpoint: Endpoint, model: str) -> RouteMatch:
        """Find the upstream for a model, among those that accept the API family of the endpoint.

        A request without a model uses only the route that matches everything.

        Raises:
            WrongApi: no matching route has an upstream for this API. The default upstream is another
                provider, which must not see the request or its key.
            NoUpstream: no route matches, and the family has no default upstream.
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


OPENAI = "openai"
CHATGPT = "chatgpt"
"""The upstream for requests to OpenAI with the log-in of a ChatGPT subscription, which OpenAI's API refuses."""

DEFAULT_UPSTREAMS: Mapping[ApiFamily, str] = {
    ApiFamily.ANTHROPIC: "anthropic",
    ApiFamily.OPENAI: OPENAI,
    ApiFamily.GEMINI: "google",
    ApiFamily.AZURE: "azure",
    ApiFamily.BEDROCK: "bedrock",
    ApiFamily.VERTEX: "vertex",
}

# Addresses from each provider's documentation (November 2026).
KNOWN_UPSTREAMS: Mapping[str, Upstream] = {
    upstream.name: upstream
    for upstream in (
        Upstream(
            name="anthropic",
            base_url="https://api.anthropic.com",
            family=ApiFamily.ANTHROPIC,
            provider="anthropic",
        ),
        Upstream(name=OPENAI, base_url="https://api.openai.com/v1", family=ApiFamily.OPENAI, provider="openai"),
        Upstream(
            name=CHATGPT,
            base_url="https://chatgpt.com/backend-api/codex",
            family=ApiFamily.OPENAI,
            provider="openai",
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
"""Upstreams that need no address in the configuration."""

"""Credentials: which providers may see a client's, and for which operations the gateway uses its own.

A credential that certainly belongs to one provider is never sent to the official address of another. Any other
address is a server of the operator, and may see its clients' credentials.

With its own AWS credentials, the gateway signs requests (SigV4). botocore is an extra: `foveate[bedrock]`.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from foveate.errors import BadOption, BadPath, KeyRefused, MethodRefused, OperationRefused
from foveate.extras import install_command
from foveate.gateway.endpoints import Operation
from foveate.gateway.forwarded_headers import GOOGLE_KEY_PARAMETERS, KEY_HEADERS
from foveate.gateway.request import ClientRequest
from foveate.gateway.routing import OPENAI, Upstream

# Prefixes of credentials, and the providers that accept them (each provider's documentation, November 2026).
# The first match counts. Several providers issue keys that start with a plain `sk-`.
_KEY_PREFIXES = (
    ("sk-ant-", "an Anthropic key", ("anthropic",)),
    ("sk-or-", "an OpenRouter key", ("openrouter",)),
    ("sk-proj-", "an OpenAI key", ("openai",)),
    ("sk-svcacct-", "an OpenAI key", ("openai",)),
    ("sk-admin-", "an OpenAI key", ("openai",)),
    ("sess-", "an OpenAI session token", ("openai",)),
    ("sk-", "a key of OpenAI, DeepSeek or a similar provider", ("openai", "deepseek")),
    ("AIza", "a Google API key", ("google",)),
    ("AQ.", "a Google API key", ("google",)),
    ("ya29.", "a Google access token", ("google",)),
    ("AWS4-", "an AWS signature", ("aws",)),
    ("bedrock-api-key-", "a Bedrock key", ("aws",)),
    ("ABSK", "a Bedrock key", ("aws",)),
    ("xai-", "an xAI key", ("xai",)),
    ("gsk_", "a Groq key", ("groq",)),
    ("nvapi-", "an NVIDIA key", ("nvidia",)),
    ("hf_", "a Hugging Face token", ("huggingface",)),
    ("github_pat_", "a GitHub token", ("github",)),
    ("ghp_", "a GitHub token", ("github",)),
    ("gho_", "a GitHub token", ("github",)),
    ("ghu_", "a GitHub token", ("github",)),
    ("pplx-", "a Perplexity key", ("perplexity",)),
    ("csk-", "a Cerebras key", ("cerebras",)),
    ("fw_", "a Fireworks key", ("fireworks",)),
)
# Headers that only one provider's clients send, whatever their value.
_GOOGLE_KEY = ("a Google API key", ("google",))
_PROVIDER_HEADERS = {
    b"x-goog-api-key": _GOOGLE_KEY,
    b"api-key": ("an Azure key", ("azure",)),
    b"x-amz-security-token": ("an AWS session token", ("aws",)),
}
_AWS_PARAMETERS = re.compile(r"x-amz-(?:credential|security-token|signature)", re.IGNORECASE)
_SCHEME = re.compile(r"(?:bearer|token)\s+", re.IGNORECASE)
# Suffixes of official host names.
_OFFICIAL_HOSTS = {
    "anthropic.com": "anthropic",
    "openai.com": "openai",
    "chatgpt.com": "openai",
    "openrouter.ai": "openrouter",
    "deepseek.com": "deepseek",
    "googleapis.com": "google",
    "openai.azure.com": "azure",
    "ai.azure.com": "azure",
    "cognitiveservices.azure.com": "azure",
    "x.ai": "xai",
    "groq.com": "groq",
    "nvidia.com": "nvidia",
    "huggingface.co": "huggingface",
    "githubcopilot.com": "github",
    "github.ai": "github",
    "perplexity.ai": "perplexity",
    "cerebras.ai": "cerebras",
    "fireworks.ai": "fireworks",
}
# Bedrock in a region, or its endpoint in a VPC. Customers' load balancers, virtual machines and gateways also
# have names below amazonaws.com, as those of Azure's customers have below azure.com.
_BEDROCK_HOST = re.compile(r"(?:[^.]+\.)?bedrock[a-z-]*\.[a-z0-9-]+\.(?:vpce\.)?amazonaws\.com")
# Paths of APIs that the gateway does not parse, with their names and the providers that serve them.
_API_PATHS = (
    (re.compile(r"/v1(?:beta\d?|alpha)/"), "Google's native API", ("google",)),
    (re.compile(r"/v1internal:"), "Google's Code Assist API", ("google",)),
    (re.compile(r"/v1/(?:projects/[^/]+/locations|publishers)/"), "the Vertex AI API", ("google",)),
    (re.compile(r"/model/.+/"), "the Bedrock API", ("aws",)),
    (re.compile(r"/openai(?:/|$)"), "the Azure OpenAI API", ("azure",)),
)


def official_provider(upstream: Upstream) -> str | None:
    """Return the provider that owns an upstream's address; None for the operator's own server."""
    return _find_official_provider(upstream.base_url)


@lru_cache(maxsize=256)
def _find_official_provider(base_url: str) -> str | None:
    host = (urlsplit(base_url).hostname or "").rstrip(".")
    if _BEDROCK_HOST.fullmatch(host):
        return "aws"
    return next(
        (name for end, name in _OFFICIAL_HOSTS.items() if host == end or host.endswith(f".{end}")), None
    )


def replaces_credentials(request: ClientRequest, upstream: Upstream) -> bool:
    """Return whether the gateway replaces or removes the client's credentials."""
    return upstream.replaces_keys or (request.key is not None and not request.keeps_credentials)


def is_subscription(request: ClientRequest, upstream: Upstream) -> bool:
    """Return whether the client's own credentials are forwarded and belong to a subscription.

    Claude subscriptions use OAuth tokens (`sk-ant-oat…`); Codex uses a ChatGPT token with an account id.
    """
    is_known = "sk-ant-oat" in request.headers.get("authorization", "") or has_chatgpt_login(request)
    return is_known and not replaces_credentials(request, upstream)


def has_chatgpt_login(request: ClientRequest) -> bool:
    authorization = request.headers.get("authorization", "")
    return "chatgpt-account-id" in request.headers and bool(authorization) and "sk-" not in authorization


def needs_chatgpt(request: ClientRequest, upstream: Upstream) -> bool:
    """Return whether a request with a ChatGPT log-in is on its way to OpenAI's API, which refuses it."""
    return (
        upstream.name == OPENAI
        and official_provider(upstream) == "openai"
        and has_chatgpt_login(request)
        and not replaces_credentials(request, upstream)
    )


def check_credentials(request: ClientRequest, upstream: Upstream) -> None:
    """Check that an upstream may see the credentials of a request, and implements the API of its path.

    Raises:
        KeyRefused: a credential or the path belongs to another provider.
    """
    target = official_provider(upstream)
    if target is None:
        return
    for item, owners in _visible_credentials(request, is_replaced=replaces_credentials(request, upstream)):
        if target not in owners:
            raise KeyRefused(
                f"this request contains {item} but is routed to {upstream.name}, which must not receive it."
                f" Nothing was sent. Use a key for {upstream.name}, or configure the provider of this key in"
                " foveate.yaml (`upstreams` and `routes`)",
                public=f"this request contains {item} but is routed to another provider, which must not receive"
                " it. Nothing was sent",
            )
    for pattern, item, owners in _API_PATHS:
        if target not in owners and pattern.match(request.path):
            raise KeyRefused(
                f"{request.method} {request.path[:100]} belongs to {item}, which {upstream.name} does not"
                f" support."
                " Nothing was sent. Point the client at its provider, or configure an upstream in foveate.yaml"
                " that supports this API (docs/reference/providers.md)",
                public=f"{request.method} {request.path[:100]} belongs to {item}, which this gateway does not"
                " serve. Nothing was sent",
            )


def _visible_credentials(request: ClientRequest, *, is_replaced: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the credentials that an upstream would see, each with the providers that it belongs to."""
    for header, value in request.raw_headers:
        if header in KEY_HEADERS and not is_replaced:
            text = _SCHEME.sub("", value.decode("latin-1").strip(), count=1)
            credential = _match_prefix(text) or _PROVIDER_HEADERS.get(header)
            if credential is not None:
                yield credential
    for name, text in parse_qsl(request.query):
        credential = _match_prefix(text) or (_GOOGLE_KEY if name in GOOGLE_KEY_PARAMETERS else None)
        if _AWS_PARAMETERS.fullmatch(name):
            credential = ("an AWS signature", ("aws",))
        if credential is not None:
            yield credential


def _match_prefix(text: str) -> tuple[str, tuple[str, ...]] | None:
    return next(((item, owners) for start, item, owners in _KEY_PREFIXES if text.startswith(start)), None)


ALLOWED_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""Methods that provider APIs use."""

# No server decodes a path more often than this.
_MAX_DECODINGS = 5
_OPERATION_NAMES = {
    Operation.GENERATE: "answers",
    Operation.COUNT_TOKENS: "counting",
    Operation.EMBEDDINGS: "embeddings",
    Operation.LIST_MODELS: "models",
}
_ALL_OPERATIONS = "all"
# Operations that are forwarded without parsing.
_MODEL_LIST_ROOTS = ("/v1", "/openai", "/openai/v1", "/v1beta", "/v1beta/openai", "/v1alpha")
_GENERATION_PATHS = ("/v1/completions", "/v1/responses/compact", "/v1beta/openai/chat/completions")
_BEDROCK_OPERATIONS = {
    "count-tokens": "counting",
    "invoke": "answers",
    "invoke-with-response-stream": "answers",
}
_EMBEDDING_METHODS = ("embedContent", "batchEmbedContents")


def check_request_line(request: ClientRequest) -> None:
    """Reject methods that no API uses, and paths that leave an upstream's base URL.

    Raises:
        MethodRefused: no API uses the method.
        BadPath: the path contains dot segments, encoded or not.
    """
    if request.method not in ALLOWED_METHODS:
        raise MethodRefused(request.method[:20])
    path = request.raw_path
    for _ in range(_MAX_DECODINGS):
        segments = path.replace("\\", "/").split("/")
        if any(segment.partition(";")[0] in (".", "..") for segment in segments):
            raise BadPath(request.path[:100])
        if "%" not in path:
            return
        path = unquote(path)


def check_operation(request: ClientRequest, upstream: Upstream) -> None:
    """Reject an operation that would use the gateway's credentials without permission.

    Raises:
        OperationRefused: `allow` of the upstream does not list it.
    """
    if replaces_credentials(request, upstream) and not is_allowed(request, upstream.allow):
        raise OperationRefused(f"{request.method} {request.path[:100]}", upstream.name)


def is_allowed(request: ClientRequest, allow: Sequence[str]) -> bool:
    """Return whether `allow` lists the operation of a request, by its kind or by its method and path."""
    line = f"{request.method} {request.path}"
    kind = _OPERATION_NAMES.get(request.endpoint.operation) or _classify_unparsed(request.method, request.path)
    return any(pattern in (_ALL_OPERATIONS, kind) or fnmatchcase(line, pattern) for pattern in allow)


def _classify_unparsed(method: str, path: str) -> str | None:
    if method in ("GET", "HEAD"):
        root, _, name = path.partition("/models")
        is_one = not name or (name[0] == "/" and name.count("/") == 1 and ":" not in name)
        return "models" if root in _MODEL_LIST_ROOTS and "/models" in path and is_one else None
    if method != "POST":
        return None
    if path in _GENERATION_PATHS:
        return "answers"
    if path.startswith("/model/"):
        return _BEDROCK_OPERATIONS.get(path.rpartition("/")[2])
    model, _, operation = path.rpartition("/models/")[2].partition(":")
    if operation in _EMBEDDING_METHODS or (operation == "predict" and "embedding" in model):
        return "embeddings"
    return "counting" if (model, operation) == ("count-tokens", "rawPredict") else None


_SERVICE = "bedrock"
_REGION = re.compile(r"bedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.")
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
# Headers that belong to the client's signature, which is replaced.
CLIENT_SIGNATURE_HEADERS = (b"x-amz-date", b"x-amz-content-sha256")


def check_installed(path: tuple[str, ...], package: str = "botocore") -> None:
    """Check that requests can be signed.

    Raises:
        BadOption: the package for it is not installed.
    """
    if find_spec(package) is None:
        raise BadOption(
            f"`sign: aws` needs a package that is not installed: {install_command()} 'foveate[bedrock]'",
            path=path,
        )


def find_region(base_url: str, environment: Mapping[str, str], path: tuple[str, ...]) -> str:
    """Return the region for signatures, from the host name or else from the environment.

    Raises:
        BadOption: neither names a region.
    """
    match = _REGION.match(urlsplit(base_url).hostname or "")
    region = match[1] if match else next(filter(None, map(environment.get, _REGION_VARIABLES)), None)
    if region is None:
        raise BadOption(
            "the AWS region is unknown: set AWS_REGION, or use a base_url that contains the region", path=path
        )
    return region


class AwsSigner:
    """Signs requests for Bedrock. Finds and renews credentials as AWS's own clients do."""

    def __init__(self) -> None:
        self._credentials: Any = None

    async def sign(
        self, method: str, url: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, *, region: str
    ) -> list[tuple[bytes, bytes]]:
        """Return the headers to add to a request.

        Raises:
            KeyRefused: there are no credentials.
        """
        # Fetching credentials may call a server or a program.
        return await asyncio.to_thread(self._sign, method, url, dict(headers), body, region)

    def _sign(
        self, method: str, url: str, headers: Mapping[bytes, bytes], body: bytes, region: str
    ) -> list[tuple[bytes, bytes]]:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        content_type = headers.get(b"content-type")
        signed_headers = {} if content_type is None else {"content-type": content_type.decode("latin-1")}
        request = AWSRequest(method=method, url=url, headers=signed_headers, data=body)
        SigV4Auth(self._load_credentials(), _SERVICE, region).add_auth(request)
        return [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in request.headers.items()
            if name.lower() not in signed_headers
        ]

    def _load_credentials(self) -> Any:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session

        try:
            self._credentials = self._credentials or Session().get_credentials()
            if self._credentials is not None:
                return self._credentials.get_frozen_credentials()
            reason = "none are configured"
        except BotoCoreError as error:
            reason = str(error)
        raise KeyRefused(
            f"the gateway has no AWS credentials to sign with ({reason}): set AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY, or a profile, in the environment of the gateway",
            public="the gateway cannot sign this request",
        )

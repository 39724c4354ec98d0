"""The agent that sends a request, and the key with which the request is forwarded.

Gateway keys identify agents; only their hashes are stored. Summaries and counts, which the gateway requests
itself, use the client's credentials.
"""

import hmac
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from secrets import token_urlsafe
from typing import Protocol
from urllib.parse import parse_qsl, unquote_plus

from blake3 import blake3

from foveate.compaction.summarize.llm import SummarizerEndpoint
from foveate.errors import KeyRefused
from foveate.gateway.auth.credentials import replaces_credentials
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.forwarded_headers import GOOGLE_KEY_PARAMETERS, KEY_HEADERS, signed_header_names
from foveate.gateway.request import (
    AGENT_HEADER,
    DEFAULT_AGENT,
    GATEWAY_KEY_HEADER,
    KEY_PREFIX,
    ClientRequest,
    decode_header,
    has_misplaced_key,
)
from foveate.gateway.routing import Upstream
from foveate.model import Format
from foveate.session.client_names import user_agent_family

_SECRET_BYTES = 32


class Keys(Protocol):
    def agent(self, key: str) -> str | None: ...

    def has_keys(self, agent: str) -> bool: ...

    def is_admin(self, key: str) -> bool:
        """Return whether a key is an admin key, which sees all pages and sends no requests."""


class NoKeys:
    def agent(self, key: str) -> str | None:
        return None

    def has_keys(self, agent: str) -> bool:
        return False

    def is_admin(self, key: str) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class HashedKeys:
    agents: Mapping[str, str] = field(repr=False)
    admins: Collection[str] = field(default=(), repr=False)

    def agent(self, key: str) -> str | None:
        """Compare hashes in constant time."""
        key_hash = hash_key(key)
        agents = [agent for hashed, agent in self.agents.items() if hmac.compare_digest(hashed, key_hash)]
        return agents[0] if agents else None

    def has_keys(self, agent: str) -> bool:
        return agent in self.agents.values()

    def is_admin(self, key: str) -> bool:
        """Compare hashes in constant time."""
        key_hash = hash_key(key)
        matches = [hashed for hashed in self.admins if hmac.compare_digest(hashed, key_hash)]
        return bool(matches)


def generate_key() -> str:
    return f"{KEY_PREFIX}{token_urlsafe(_SECRET_BYTES)}"


def hash_key(key: str) -> str:
    """Return the stored hash of a key. A key has enough entropy to need no salt and no slow hash."""
    return blake3(b"gateway key\0" + key.encode("utf-8", "replace")).hexdigest()


# Lower-case prefixes of user-agents (releases of November 2026).
_KNOWN_USER_AGENTS = (
    ("claude-cli", "claude-code"),
    ("claude-code", "claude-code"),
    ("codex", "codex"),
    ("opencode", "opencode"),
    ("geminicli", "gemini-cli"),
    ("qwencode", "qwen-code"),
    ("aider", "aider"),
    ("cline", "cline"),
    ("roocode", "roo-code"),
    ("continue", "continue"),
    ("openhands", "openhands"),
    ("copilot", "copilot"),
    ("githubcopilot", "copilot"),
    ("factory-cli", "droid"),
    ("goose", "goose"),
    ("crush", "crush"),
    ("mini-swe-agent", "mini-swe-agent"),
)
# Characters that may follow a prefix.
_PREFIX_SEPARATORS = frozenset("/ _-(")
_MAX_USER_AGENT_CHARS = 256


def name_agent(user_agent: str, configured: Sequence[tuple[str, str]] = ()) -> str | None:
    """`configured` are globs with agent names, which are tried first."""
    trimmed = user_agent.strip()[:_MAX_USER_AGENT_CHARS]
    for glob, name in configured:
        if fnmatchcase(trimmed, glob):
            return name
    lowered = trimmed.lower()
    for prefix, name in _KNOWN_USER_AGENTS:
        if lowered.startswith(prefix) and (
            len(lowered) == len(prefix) or lowered[len(prefix)] in _PREFIX_SEPARATORS
        ):
            return name
    return None


# OAuth tokens of Anthropic and Google, JSON web tokens, Bedrock keys of up to 12 hours, Copilot tokens.
_SHORT_LIVED = re.compile(rb"(?:^|\s)(?:sk-ant-oat|ya29\.|eyJ|bedrock-api-key-|tid=)")

# Ids of temporary keys start with ASIA.
_AWS_SCHEME, _AWS_KEY_ID = b"AWS4-", re.compile(rb"Credential=((?!ASIA)[^/,\s]{1,128})/")
_AWS_ANY_KEY_ID = re.compile(rb"Credential=([^/,\s]{1,128})/")
_GOOGLE_FAMILIES = frozenset((ApiFamily.GEMINI, ApiFamily.VERTEX))
_ALL_KEY_HEADERS = KEY_HEADERS | {GATEWAY_KEY_HEADER.encode()}


def identify_agent(request: ClientRequest, keys: Keys, user_agents: Sequence[tuple[str, str]] = ()) -> str:
    """Identify the agent of a request by its gateway key, a header or its user-agent, else the default one.

    `user_agents` are globs with agent names.

    Raises:
        KeyRefused: the key is unknown, or the request names an agent that has keys without sending one.
    """
    if has_misplaced_key(request.raw_path, request.query, request.raw_headers):
        raise KeyRefused(
            "this request has a gateway key in its URL or in a header that is not meant for keys, where logs"
            " may record it. Nothing was sent. Send the key as `authorization: Bearer` or `x-api-key`"
        )
    if GATEWAY_KEY_HEADER.encode() in signed_header_names(request.raw_headers):
        raise KeyRefused(
            f"the AWS signature of this request covers `{GATEWAY_KEY_HEADER}`, which is never sent to a"
            " provider: add the header after signing, or let the gateway sign (`sign: aws`)"
        )
    if request.key is not None:
        if keys.is_admin(request.key):
            raise KeyRefused(
                "an admin key only opens the gateway's pages and cannot be used for requests: use the key of an"
                " agent (`foveate config key --agent NAME` creates one)"
            )
        agent = keys.agent(request.key)
        if agent is None:
            raise KeyRefused(
                "this key looks like a gateway key but is unknown: create one with `foveate config key`, or"
                " use the provider's key"
            )
        return agent
    name = decode_header(request.headers.get(AGENT_HEADER))
    if not name:
        agent_name = name_agent(request.headers.get("user-agent", ""), user_agents)
        name = DEFAULT_AGENT if agent_name is None or keys.has_keys(agent_name) else agent_name
    if keys.has_keys(name):
        raise KeyRefused(
            f"requests of the agent {name!r} need one of its gateway keys: send one (`foveate config key"
            f" --agent {name}` creates another), or name an agent without keys",
            public="requests of this agent need one of its gateway keys: send one",
        )
    return name


def hash_caller(request: ClientRequest) -> str:
    """Return a digest that tells callers with the same agent name apart, by their key and program.

    Tokens that clients renew every hour are left out. Of a signature, only the id of its key counts.
    """
    return blake3(b"caller\0" + b"\0".join((*_long_lived_keys(request), _client_program(request)))).hexdigest(
        16
    )


def hash_name_scope(request: ClientRequest) -> str:
    """Return a digest of the scope of session names: the caller's key, or its program if it has none.

    It stays the same if the caller sends its key in another header or program, or renews a short-lived token.
    """
    if request.key is not None:
        keys = [request.key.encode()]
    else:  # without "Bearer"
        keys = sorted({word for key in _long_lived_keys(request) for word in key.split()[-1:]})
    return blake3(b"scope\0" + b"\0".join(keys or (b"program", _client_program(request)))).hexdigest(16)


def hash_account(request: ClientRequest, upstream: Upstream) -> str:
    """Return a digest of the account whose prompt cache a request uses: by its upstream, and by the key that
    the upstream gets.

    The accounts of two keys may be the same one. A renewed token counts as another account.
    """
    keys = [] if replaces_credentials(request, upstream) else _list_keys(request, KEY_HEADERS)
    words = {
        match[1] if (match := _AWS_ANY_KEY_ID.search(key)) else key.split()[-1] for key in keys if key.strip()
    }
    return blake3(b"account\0" + b"\0".join((upstream.name.encode(), *sorted(words)))).hexdigest(16)


def _list_keys(request: ClientRequest, header_names: Collection[bytes]) -> list[bytes]:
    keys = [value for name, value in request.raw_headers if name in header_names]
    if request.endpoint.family in _GOOGLE_FAMILIES:
        keys += [text.encode() for name, text in parse_qsl(request.query) if name in GOOGLE_KEY_PARAMETERS]
    return keys


def _long_lived_keys(request: ClientRequest) -> list[bytes]:
    keys = _list_keys(request, _ALL_KEY_HEADERS)
    if any(value.startswith(_AWS_SCHEME) for value in keys):
        keys = [match[1] for value in keys if (match := _AWS_KEY_ID.search(value))]
    return [key for key in keys if not _SHORT_LIVED.search(key)]


def _client_program(request: ClientRequest) -> bytes:
    return user_agent_family(request.headers.get("user-agent", "")).encode("latin-1", "replace")


def check_payer(request: ClientRequest, upstream: Upstream, *, is_open: bool) -> None:
    """Check that somebody known pays for a request. `is_open`: other machines can reach the gateway.

    Raises:
        KeyRefused: the gateway would pay for an unknown caller.
    """
    if is_open and upstream.replaces_keys and request.key is None:
        raise KeyRefused(
            f"the gateway pays for calls to {upstream.name}, so they need a gateway key (`foveate config key`"
            " creates one): send it instead of the provider's key",
            public="the gateway pays for these calls, so they need a gateway key: send it instead of the"
            " provider's key",
        )


def build_upstream_query(request: ClientRequest, upstream: Upstream) -> str:
    """Return the query to forward, without a key that is replaced."""
    if (
        not request.query
        or not replaces_credentials(request, upstream)
        or upstream.family not in _GOOGLE_FAMILIES
    ):
        return request.query
    parameters = [
        pair
        for pair in request.query.split("&")
        if unquote_plus(pair.partition("=")[0]) not in GOOGLE_KEY_PARAMETERS
    ]
    return "&".join(parameters)


def replacement_key_headers(request: ClientRequest, upstream: Upstream) -> list[tuple[bytes, bytes]] | None:
    """Return the key that replaces the client's; None if the client's credentials are forwarded.

    A gateway key is never forwarded.
    """
    if not replaces_credentials(request, upstream):
        return None
    if upstream.key is None:
        return []
    key = upstream.key.encode("latin-1")
    if upstream.family is ApiFamily.ANTHROPIC:
        return [(b"x-api-key", key)]
    if upstream.family in _GOOGLE_FAMILIES:
        return [(b"x-goog-api-key", key)]
    if upstream.family is ApiFamily.AZURE:
        return [(b"api-key", key)]
    return [(b"authorization", b"Bearer " + key)]


# https://ai.google.dev/gemini-api/docs/openai (November 2026)
_GOOGLE_CHAT_PATH = "/v1beta/openai/chat/completions"
_COUNT_SUFFIX = "/input_tokens"
# Headers that a provider needs with every request of a client.
_SUMMARY_HEADERS = KEY_HEADERS | {
    b"anthropic-version",
    b"anthropic-beta",
    b"openai-organization",
    b"openai-project",
}
_SUMMARY_PATHS = {
    Format.ANTHROPIC: "/v1/messages",
    Format.CHAT: "/v1/chat/completions",
    Format.RESPONSES: "/v1/responses",
}


def find_summary_endpoint(
    request: ClientRequest, upstream: Upstream, api_format: Format, model: str
) -> SummarizerEndpoint:
    """Find the endpoint for summaries of a session, with the credentials that its requests use.

    `model` is the name of the client's model at the upstream; empty if the engine uses the same name.
    """
    if request.endpoint.family is ApiFamily.GEMINI:
        return _find_google_endpoint(request, upstream, model)
    if request.endpoint.family is ApiFamily.AZURE:
        return _find_azure_endpoint(request, upstream, model)
    path = _SUMMARY_PATHS.get(api_format)
    if path is None:
        path, api_format = _SUMMARY_PATHS[Format.CHAT], Format.CHAT
    client_headers = [(name, value) for name, value in request.raw_headers if name in _SUMMARY_HEADERS]
    key = replacement_key_headers(request, upstream)
    pairs = (
        client_headers
        if key is None
        else [*(pair for pair in client_headers if pair[0] not in KEY_HEADERS), *key]
    )
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
    if (betas := request.headers.get("anthropic-beta")) is not None:  # all lines joined
        headers["anthropic-beta"] = betas
    return SummarizerEndpoint(
        url=upstream.url(path),
        api_format=api_format,
        headers=headers,
        model=model,
        reuse_connection=upstream.reuse,
    )


def _find_google_endpoint(request: ClientRequest, upstream: Upstream, model: str) -> SummarizerEndpoint:
    """Return Google's endpoint for chat completions, which accepts the same models and keys."""
    return SummarizerEndpoint(
        url=upstream.url(_GOOGLE_CHAT_PATH),
        api_format=Format.CHAT,
        headers={"authorization": _google_credential(request, upstream)},
        model=model,
        reuse_connection=upstream.reuse,
    )


def _find_azure_endpoint(request: ClientRequest, upstream: Upstream, model: str) -> SummarizerEndpoint:
    """Return the endpoint that the client itself calls; `model` is the name of its deployment."""
    replacement = replacement_key_headers(request, upstream)
    client_keys = [(name, value) for name, value in request.raw_headers if name in KEY_HEADERS]
    headers = client_keys if replacement is None else replacement
    return SummarizerEndpoint(
        url=upstream.url(request.raw_path.rstrip("/").removesuffix(_COUNT_SUFFIX), request.query),
        api_format=request.api_format,
        headers={name.decode("latin-1"): value.decode("latin-1") for name, value in headers},
        model=model,
        reuse_connection=upstream.reuse,
    )


def _google_credential(request: ClientRequest, upstream: Upstream) -> str:
    replacement = replacement_key_headers(request, upstream)
    if replacement is not None:
        return f"Bearer {replacement[0][1].decode('latin-1')}" if replacement else ""
    in_query = next((value for name, value in parse_qsl(request.query) if name in GOOGLE_KEY_PARAMETERS), "")
    key = request.headers.get("x-goog-api-key") or in_query
    return f"Bearer {key}" if key else request.headers.get("authorization", "")

"""The agent that sends a request, and the key with which the request is forwarded."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from urllib.parse import parse_qsl, unquote_plus

from blake3 import blake3

from foveate.errors import KeyRefused
from foveate.gateway.auth.credentials import replaces_credentials
from foveate.gateway.auth.keys import Keys
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.headers import GOOGLE_KEY_PARAMETERS, KEY_HEADERS, signed_header_names
from foveate.gateway.request import (
    AGENT_HEADER,
    DEFAULT_AGENT,
    GATEWAY_KEY_HEADER,
    ClientRequest,
    decode_header,
    has_misplaced_key,
)
from foveate.gateway.routing import Upstream
from foveate.session.client_names import user_agent_family

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
    """Return the agent that sends a `user-agent`; None if it is unknown.

    `configured` are globs with agent names, which are tried first.
    """
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


def _long_lived_keys(request: ClientRequest) -> list[bytes]:
    keys = [value for name, value in request.raw_headers if name in _ALL_KEY_HEADERS]
    if request.endpoint.family in _GOOGLE_FAMILIES:
        keys += [text.encode() for name, text in parse_qsl(request.query) if name in GOOGLE_KEY_PARAMETERS]
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

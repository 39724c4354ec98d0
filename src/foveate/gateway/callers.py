"""Who asks and who pays: the agent of a request, and the key that it goes out with."""

import re
from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote_plus

from blake3 import blake3

from foveate.errors import KeyRefused
from foveate.gateway.agent_names import name_agent
from foveate.gateway.asks import AGENT, GATEWAY_KEY, USUAL_AGENT, Ask, has_misplaced_key
from foveate.gateway.credentials import replaces_credentials
from foveate.gateway.doors import Family
from foveate.gateway.headers import GOOGLE_QUERY, KEYS, signed_names
from foveate.gateway.keys import Keys
from foveate.gateway.routing import Upstream
from foveate.gateway.telling import text_of
from foveate.session.naming import user_agent_family

# OAuth tokens of Anthropic and Google, JSON web tokens, Bedrock keys of up to 12 hours, and tokens of Copilot.
_SHORT_LIVED = re.compile(rb"(?:^|\s)(?:sk-ant-oat|ya29\.|eyJ|bedrock-api-key-|tid=)")

# The ids of temporary keys begin with ASIA.
_AWS, _AWS_KEY_ID = b"AWS4-", re.compile(rb"Credential=((?!ASIA)[^/,\s]{1,128})/")
_GOOGLE = frozenset((Family.GEMINI, Family.VERTEX))


def agent_of(ask: Ask, keys: Keys, user_agents: Sequence[tuple[str, str]] = ()) -> str:
    """The agent of a request: by its gateway key, by a header, by its user-agent, or the usual one.

    `user_agents` are globs with the names of their agents.

    Raises:
        KeyRefused: its key is not known, or it names an agent that has keys and shows none of them.
    """
    if has_misplaced_key(ask.raw_path, ask.query, ask.raw_headers):
        raise KeyRefused(
            "a key of the gateway stands in the address of this request or in a header that is none for keys,"
            " where logs keep it. Nothing was sent: send it as `authorization: Bearer` or `x-api-key`"
        )
    if GATEWAY_KEY.encode() in signed_names(ask.raw_headers):
        raise KeyRefused(
            f"a signature of AWS covers `{GATEWAY_KEY}`, which never reaches a provider: add the header after"
            " signing, or have the gateway sign (`sign: aws`)"
        )
    if ask.key is not None:
        if keys.is_admin(ask.key):
            raise KeyRefused(
                "an admin key sees the gateway's pages and sends no requests: use the key of an agent"
                " (`foveate config key --agent NAME` makes one)"
            )
        own = keys.agent(ask.key)
        if own is None:
            raise KeyRefused(
                "this key begins as Foveate's do, and is none of them: make one, or use the provider's own"
            )
        return own
    named = text_of(ask.headers.get(AGENT))
    if not named:
        known = name_agent(ask.headers.get("user-agent", ""), user_agents)
        named = USUAL_AGENT if known is None or keys.are_of(known) else known
    if keys.are_of(named):
        raise KeyRefused(
            f"the agent {named!r} has keys of the gateway, and only they name it: show one of them (`foveate "
            f"config key --agent {named}` makes another), or name an agent that has none",
            public="this agent has keys of the gateway, and only they name it: show one of them",
        )
    return named


def caller_of(ask: Ask) -> str:
    """Return who sends a request, of all that send requests with its agent's name: by its key and its program.

    Only a digest of the key is part of it. Tokens that clients renew every hour are left out, and of a
    signature all but the id of the key that made it.
    """
    return blake3(b"caller\0" + b"\0".join((*_lasting_keys(ask), _program(ask)))).hexdigest(16)


def name_scope(ask: Ask) -> str:
    """Return the scope of the names that a caller gives its sessions: its key, or its program if it has none.

    The scope stays the same if the caller sends its key in another header, with another program, or renews a
    short-lived token.
    """
    if ask.key is not None:
        keys = [ask.key.encode()]
    else:  # without "Bearer"
        keys = sorted({word for key in _lasting_keys(ask) for word in key.split()[-1:]})
    return blake3(b"scope\0" + b"\0".join(keys or (b"program", _program(ask)))).hexdigest(16)


def _lasting_keys(ask: Ask) -> list[bytes]:
    """Return the keys of a request, without short-lived ones."""
    names = KEYS | {GATEWAY_KEY.encode()}
    keys = [value for name, value in ask.raw_headers if name in names]
    if ask.door.family in _GOOGLE:
        keys += [text.encode() for name, text in parse_qsl(ask.query) if name in GOOGLE_QUERY]
    if any(value.startswith(_AWS) for value in keys):
        keys = [found[1] for value in keys if (found := _AWS_KEY_ID.search(value))]
    return [key for key in keys if not _SHORT_LIVED.search(key)]


def _program(ask: Ask) -> bytes:
    return user_agent_family(ask.headers.get("user-agent", "")).encode("latin-1", "replace")


def check_payer(ask: Ask, upstream: Upstream, *, is_open: bool) -> None:
    """Nothing, where a request may go to an upstream; a gateway that `is_open` is reached by other machines.

    Raises:
        KeyRefused: the gateway would pay for it, and nobody knows for whom.
    """
    if is_open and upstream.replaces_keys and ask.key is None:
        raise KeyRefused(
            f"calls of {upstream.name} are paid by this gateway, and only for those who show a key of "
            "the gateway (`foveate config key` makes one): send it in the place of the provider's",
            public="this gateway pays for such calls, and only for those who show one of its keys: send it in"
            " the place of the provider's",
        )


def sent_query(ask: Ask, upstream: Upstream) -> str:
    """The query as it goes out: without the key in it, if another takes its place."""
    if not ask.query or not replaces_credentials(ask, upstream) or upstream.family not in _GOOGLE:
        return ask.query
    kept = [pair for pair in ask.query.split("&") if unquote_plus(pair.partition("=")[0]) not in GOOGLE_QUERY]
    return "&".join(kept)


def key_headers(ask: Ask, upstream: Upstream) -> list[tuple[bytes, bytes]] | None:
    """The key that takes the place of the client's; None where the client's own goes on.

    A key of the gateway never does.
    """
    if not replaces_credentials(ask, upstream):
        return None
    if upstream.key is None:
        return []
    key = upstream.key.encode("latin-1")
    if upstream.family is Family.ANTHROPIC:
        return [(b"x-api-key", key)]
    if upstream.family in _GOOGLE:
        return [(b"x-goog-api-key", key)]
    if upstream.family is Family.AZURE:
        return [(b"api-key", key)]
    return [(b"authorization", b"Bearer " + key)]

"""A conversation as a request: its body and headers in the format of the model's provider."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from foveate.chat.turns import Turn
from foveate.gateway.asks import AGENT, SESSION, Scope
from foveate.gateway.doors import Family
from foveate.gateway.routing import Upstream
from foveate.gateway.telling import FOCUS
from foveate.values import Format
from foveate.wire.body import compact

ANTHROPIC_VERSION = "2023-06-01"

_PATHS = {Format.ANTHROPIC: "/v1/messages", Format.CHAT: "/v1/chat/completions"}
# OpenAI's own models that think refuse the older name; others know only that.
_NEW_NAME_PROVIDERS = frozenset(("openai",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaking:
    """How a model is spoken to: its name, the upstream that it is at, and the format of the two."""

    model: str
    upstream: Upstream
    spoken: Format


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """Whose conversation it is: the agent's, and which of its sessions. `focus` is what its memory looks at."""

    agent: str
    session: str
    focus: str = ""


def body_of(turns: Sequence[Turn], speaking: Speaking, *, max_tokens: int) -> bytes:
    """The body of a request for the next answer, as it streams."""
    messages = [{"role": turn.role.value, "content": turn.sent} for turn in turns]
    return compact(
        {
            "model": speaking.model,
            _limit_name(speaking): max_tokens,
            "stream": True,
            "messages": messages,
        }
    )


def _limit_name(speaking: Speaking) -> str:
    is_new = speaking.spoken is Format.CHAT and speaking.upstream.provider in _NEW_NAME_PROVIDERS
    return "max_completion_tokens" if is_new else "max_tokens"


def scope_of(speaking: Speaking, whose: Whose) -> Scope:
    """Where a request goes at the gateway, and its headers, with the key that the environment has for it."""
    path = _PATHS[speaking.spoken]
    headers = {
        "content-type": "application/json",
        AGENT: quote(whose.agent),
        SESSION: whose.session,
    }
    if whose.focus:
        headers[FOCUS] = quote(whose.focus)
    key = speaking.upstream.key
    if speaking.spoken is Format.ANTHROPIC:
        headers["anthropic-version"] = ANTHROPIC_VERSION
    if key is not None and speaking.upstream.family is Family.ANTHROPIC:
        headers["x-api-key"] = key
    elif key is not None:
        headers["authorization"] = f"Bearer {key}"
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), said.encode("latin-1", "replace")) for name, said in headers.items()],
    }

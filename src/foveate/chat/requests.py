"""Turns of a conversation, and requests for the next answer in the format of the provider."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

from foveate.formats.json_text.parse import to_json
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.request import AGENT_HEADER, FOCUS_HEADER, SESSION_HEADER, Scope
from foveate.gateway.routing import Upstream
from foveate.model import Format

CUT_OFF_TEXT = "[cut off here by the user]"
"""Ends an answer that the user stopped, for the model to read."""
ANTHROPIC_VERSION = "2023-06-01"
_ENDPOINT_PATHS = {Format.ANTHROPIC: "/v1/messages", Format.CHAT: "/v1/chat/completions"}
# OpenAI's reasoning models reject the older name; other servers know only that.
_NEW_NAME_PROVIDERS = frozenset(("openai",))


class ChatRole(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """`is_cut`: the user stopped it."""

    role: ChatRole
    text: str
    is_cut: bool = False

    @property
    def sent_text(self) -> str:
        return f"{self.text.rstrip()} {CUT_OFF_TEXT}" if self.is_cut else self.text


def user_turn(text: str) -> ChatTurn:
    return ChatTurn(role=ChatRole.USER, text=text)


def assistant_turn(text: str, *, is_cut: bool = False) -> ChatTurn:
    return ChatTurn(role=ChatRole.ASSISTANT, text=text, is_cut=is_cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTarget:
    model: str
    upstream: Upstream
    api_format: Format


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionIdentity:
    """`focus` is the focus of the agent's memory."""

    agent: str
    session: str
    focus: str = ""


def build_body(turns: Sequence[ChatTurn], target: ModelTarget, *, max_tokens: int) -> bytes:
    messages = [{"role": turn.role.value, "content": turn.sent_text} for turn in turns]
    return to_json(
        {
            "model": target.model,
            _max_tokens_field(target): max_tokens,
            "stream": True,
            "messages": messages,
        }
    )


def _max_tokens_field(target: ModelTarget) -> str:
    is_new = target.api_format is Format.CHAT and target.upstream.provider in _NEW_NAME_PROVIDERS
    return "max_completion_tokens" if is_new else "max_tokens"


def build_scope(target: ModelTarget, identity: SessionIdentity) -> Scope:
    path = _ENDPOINT_PATHS[target.api_format]
    headers = {
        "content-type": "application/json",
        AGENT_HEADER: quote(identity.agent),
        SESSION_HEADER: identity.session,
    }
    if identity.focus:
        headers[FOCUS_HEADER] = quote(identity.focus)
    key = target.upstream.key
    if target.api_format is Format.ANTHROPIC:
        headers["anthropic-version"] = ANTHROPIC_VERSION
    if key is not None and target.upstream.family is ApiFamily.ANTHROPIC:
        headers["x-api-key"] = key
    elif key is not None:
        headers["authorization"] = f"Bearer {key}"
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()],
    }

"""Names that clients give their conversations, and the session ids derived from them (November 2026).

| client | what it sends |
| --- | --- |
| Claude Code 2.1 | `x-claude-code-session-id`, `-agent-id`, `-parent-agent-id`; `metadata.user_id` |
| Codex 0.166 | `thread-id`, `session-id`, `x-codex-parent-thread-id`, `-turn-metadata`; `client_metadata` |
| opencode 1.18 | `x-session-id`, `x-parent-session-id`; to its own hosts `x-opencode-session` |
| pi 0.73 | `session_id`, `x-session-affinity` |
| litellm | `x-litellm-session-id` |
| Cline 3 | `x-task-id` |
| the Conversations API of OpenAI | `conversation` |
"""

import re
import uuid
from collections.abc import Callable, Mapping

import msgspec

from foveate.caching import hash_bytes
from foveate.errors import MalformedRequest
from foveate.formats.json_text.parse import Fields, as_dict, as_text, parse_json
from foveate.session.hash_chain import HASH_BYTES

NAME_CHARS = 16
"""Sessions with the same name have ids that share this many characters at the end."""

# A UUID, or 20 letters and digits with three groups of digits: dates and numbered words have fewer.
_UNIQUE = re.compile(
    r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
    r"|(?<![0-9a-z])(?=[0-9a-z]{20})[a-z]*[0-9]+[a-z]+[0-9]+[a-z]+[0-9]",
    re.IGNORECASE,
)


def derive_session_id(*identity: str | bytes) -> str:
    """Derive a session id that is the same in every process."""
    parts = [part.encode("utf-8", "replace") if isinstance(part, str) else part for part in identity]
    return hash_bytes(b"session", *parts)[:HASH_BYTES].hex()


def derive_named_session_id(agent: str, name: str, scope: str = "") -> str:
    """Derive the id of the session that the header `x-foveate-session` names.

    `scope` separates callers, whose names may be equal unless they are unique.
    """
    return scope_session_id(derive_session_id("named", agent, name), name, scope)


def scope_session_id(unscoped: str, name: str, scope: str) -> str:
    """Derive the id within a scope. Its last `NAME_CHARS` are the same in every scope."""
    if not scope or is_unique_name(name):
        return unscoped
    return derive_session_id("scope", unscoped, scope)[:-NAME_CHARS] + unscoped[-NAME_CHARS:]


def is_unique_name(name: str) -> bool:
    """Return whether a name contains a UUID or another random id, so that nobody else has it by chance."""
    return _UNIQUE.search(name) is not None


def new_session_id() -> str:
    return uuid.uuid4().hex


MAX_ID_CHARS = 256
"""Longer ids are ignored: agents send UUIDs."""
_MAX_METADATA_CHARS = 64 * 1024
_MAX_FAMILY_CHARS = 128

_CLAUDE_SESSION = "x-claude-code-session-id"
_CLAUDE_AGENT = "x-claude-code-agent-id"
_CLAUDE_PARENT = "x-claude-code-parent-agent-id"
_CODEX_METADATA = "x-codex-turn-metadata"
_CODEX_PARENT = "x-codex-parent-thread-id"
_PARENT = "x-parent-session-id"
# Sent with each request by the SDKs of Anthropic and OpenAI.
_RETRY = "x-stainless-retry-count"
# Other headers that name a conversation. A client may use different ones for different providers.
_PLAIN_HEADERS = (
    *("x-session-id", "x-opencode-session", "x-session-affinity", "session_id", "x-litellm-session-id"),
    "x-task-id",
)
NAMING_HEADERS = frozenset(
    (
        *(_CLAUDE_SESSION, _CLAUDE_AGENT, _CLAUDE_PARENT, "thread-id", "session-id", _CODEX_METADATA),
        *(_CODEX_PARENT, _PARENT, *_PLAIN_HEADERS, _RETRY),
    )
)
"""All headers that are read here."""
_NAMING_FIELDS = ("metadata", "client_metadata", "conversation")
NAME_SOURCES = ("claude-code", "codex", "session", "conversation")
"""Sources of names; the same name from another source is another session."""

# Claude Code's format before it sent JSON.
_OLD_CLAUDE_USER = re.compile(r"_session_([0-9A-Za-z-]{8,64})$")


class ClientName(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    name: tuple[str, ...]
    parent: tuple[str, ...] | None = None

    def session_id(self, agent: str, scope: str = "") -> str:
        """Derive an id that sessions of different agents never share."""
        return derive_client_session_id(agent, self.source, self.name, scope)

    def parent_session_id(self, agent: str, scope: str = "") -> str | None:
        if self.parent is None or self.parent == self.name:
            return None
        return derive_client_session_id(agent, self.source, self.parent, scope)


def derive_client_session_id(agent: str, source: str, name: tuple[str, ...], scope: str = "") -> str:
    """Derive the id of an agent's session from the client's name for it.

    `scope` separates callers, whose names may be equal unless they are unique.
    """
    return scope_session_id(derive_session_id("client", agent, source, *name), name[0], scope)


def read_client_name(headers: Mapping[str, str], fields: Fields | Mapping[str, bytes]) -> ClientName | None:
    """Return the client's name for the conversation, from headers or body fields.

    Ids that are empty or too long are ignored.
    """
    if not headers and not any(name in fields for name in _NAMING_FIELDS):
        return None
    return (
        _read_claude_code_name(headers, lambda: _read_claude_user(fields))
        or _read_codex_name(headers, fields)
        or _read_plain_name(headers)
        or _read_conversation_name(fields)
    )


def _read_claude_code_name(headers: Mapping[str, str], from_body: Callable[[], str]) -> ClientName | None:
    session = _valid_id(headers.get(_CLAUDE_SESSION)) or from_body()
    if not session:
        return None
    agent, parent = _valid_id(headers.get(_CLAUDE_AGENT)), _valid_id(headers.get(_CLAUDE_PARENT))
    if not agent:
        return ClientName(source="claude-code", name=(session,))
    started_by = (session, parent) if parent else (session,)
    return ClientName(source="claude-code", name=(session, agent), parent=started_by)


def _read_claude_user(fields: Fields | Mapping[str, bytes]) -> str:
    user = as_text(_read_object(fields, "metadata").get("user_id"))
    if user.startswith("{"):
        return _valid_id(_parse_text(user).get("session_id"))
    match = _OLD_CLAUDE_USER.search(user[-200:]) if user.startswith("user_") else None
    return match[1] if match else ""


def _read_codex_name(headers: Mapping[str, str], fields: Fields | Mapping[str, bytes]) -> ClientName | None:
    metadata = _parse_text(headers.get(_CODEX_METADATA, ""))
    in_body = _read_object(fields, "client_metadata")
    metadata = metadata or _parse_text(as_text(in_body.get(_CODEX_METADATA))) or in_body
    session = _valid_id(headers.get("session-id")) or _valid_id(metadata.get("session_id"))
    thread = _valid_id(headers.get("thread-id")) or _valid_id(metadata.get("thread_id")) or session
    if not thread:
        return None
    parent = _valid_id(headers.get(_CODEX_PARENT)) or _valid_id(metadata.get("parent_thread_id"))
    parent = parent or _valid_id(in_body.get(_CODEX_PARENT)) or session
    return ClientName(source="codex", name=(thread,), parent=(parent,) if parent else None)


def _read_plain_name(headers: Mapping[str, str]) -> ClientName | None:
    name = next((name for header in _PLAIN_HEADERS if (name := _valid_id(headers.get(header)))), "")
    if not name:
        return None
    parent = _valid_id(headers.get(_PARENT))
    return ClientName(source="session", name=(name,), parent=(parent,) if parent else None)


def _read_conversation_name(fields: Fields | Mapping[str, bytes]) -> ClientName | None:
    try:
        conversation = parse_json(fields.get("conversation"))
    except MalformedRequest:
        return None
    name = _valid_id(as_dict(conversation).get("id") if isinstance(conversation, dict) else conversation)
    return ClientName(source="conversation", name=(name,)) if name else None


def _valid_id(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    return text if len(text) <= MAX_ID_CHARS else ""


def _read_object(fields: Fields | Mapping[str, bytes], name: str) -> dict[str, object]:
    raw = fields.get(name)
    if raw is None or memoryview(raw).nbytes > _MAX_METADATA_CHARS:
        return {}
    try:
        return as_dict(parse_json(raw))
    except MalformedRequest:
        return {}


def _parse_text(text: str) -> dict[str, object]:
    if not text.startswith("{") or len(text) > _MAX_METADATA_CHARS:
        return {}
    try:
        return as_dict(msgspec.json.decode(text.encode("utf-8", "replace")))
    except (msgspec.DecodeError, RecursionError):
        return {}


def is_retry(headers: Mapping[str, str]) -> bool:
    return headers.get(_RETRY, "0").strip() not in ("", "0")


def user_agent_family(user_agent: str) -> str:
    """Return the program in a `user-agent`, without its version: `openai/python`, `claude-cli`."""
    program, *_ = user_agent[:_MAX_FAMILY_CHARS].lower().split() or [""]
    name, _, rest = program.partition("/")
    return f"{name}/{rest}" if rest.isalpha() else name

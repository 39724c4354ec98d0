"""Names that clients give their conversations, in the headers and fields that agents send (November 2026).

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
from collections.abc import Callable, Mapping

import msgspec

from foveate.errors import MalformedRequest
from foveate.session.ids import scoped_id, session_id
from foveate.wire.body import Fields, as_record, as_text, value

MAX_ID_CHARS = 256
"""A longer id is ignored: agents send UUIDs."""
_MAX_METADATA_CHARS = 64 * 1024
_MAX_FAMILY_CHARS = 128

_CLAUDE_SESSION = "x-claude-code-session-id"
_CLAUDE_AGENT = "x-claude-code-agent-id"
_CLAUDE_PARENT = "x-claude-code-parent-agent-id"
_CODEX_METADATA = "x-codex-turn-metadata"
_CODEX_PARENT = "x-codex-parent-thread-id"
_PARENT = "x-parent-session-id"
# The SDKs of Anthropic and OpenAI say so with each request.
_RETRY = "x-stainless-retry-count"
# Other headers that name a conversation. A client may send one of them to one provider and another to the next.
_PLAIN = (
    *("x-session-id", "x-opencode-session", "x-session-affinity", "session_id", "x-litellm-session-id"),
    "x-task-id",
)
HEADERS = frozenset(
    (
        *(_CLAUDE_SESSION, _CLAUDE_AGENT, _CLAUDE_PARENT, "thread-id", "session-id", _CODEX_METADATA),
        *(_CODEX_PARENT, _PARENT, *_PLAIN, _RETRY),
    )
)
"""The headers that are read here."""
SOURCES = ("claude-code", "codex", "session", "conversation")
"""Who gives names; the same name from another source is another session."""

# How Claude Code named its sessions before it sent JSON.
_OLD_CLAUDE_USER = re.compile(r"_session_([0-9A-Za-z-]{8,64})$")


class ClientName(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as its client names it, and the one that started it, if the client says so."""

    source: str
    name: tuple[str, ...]
    parent: tuple[str, ...] | None = None

    def id(self, agent: str, scope: str = "") -> str:
        """Return the id of the session: an agent cannot reach a session of another one."""
        return client_session_id(agent, self.source, self.name, scope)

    def parent_id(self, agent: str, scope: str = "") -> str | None:
        """Return the id of the session that started this one."""
        if self.parent is None or self.parent == self.name:
            return None
        return client_session_id(agent, self.source, self.parent, scope)


def client_session_id(agent: str, source: str, name: tuple[str, ...], scope: str = "") -> str:
    """Return the id of an agent's session that its client names so.

    `scope` separates callers, whose names may be the same unless they are unique.
    """
    return scoped_id(session_id("client", agent, source, *name), name[0], scope)


def client_name(headers: Mapping[str, str], fields: Fields | Mapping[str, bytes]) -> ClientName | None:
    """Return the name that a client gives the conversation of a request, by its headers or its body.

    `fields` are the fields of the body. Ids that are empty or too long are ignored.
    """
    return (
        _claude_code(headers, lambda: _claude_user(fields))
        or _codex(headers, fields)
        or _plain(headers)
        or _conversation(fields)
    )


def _claude_code(headers: Mapping[str, str], from_body: Callable[[], str]) -> ClientName | None:
    session = _checked(headers.get(_CLAUDE_SESSION)) or from_body()
    if not session:
        return None
    agent, parent = _checked(headers.get(_CLAUDE_AGENT)), _checked(headers.get(_CLAUDE_PARENT))
    if not agent:
        return ClientName(source="claude-code", name=(session,))
    started_by = (session, parent) if parent else (session,)
    return ClientName(source="claude-code", name=(session, agent), parent=started_by)


def _claude_user(fields: Fields | Mapping[str, bytes]) -> str:
    user = as_text(_record(fields, "metadata").get("user_id"))
    if user.startswith("{"):
        return _checked(_parsed(user).get("session_id"))
    found = _OLD_CLAUDE_USER.search(user[-200:]) if user.startswith("user_") else None
    return found[1] if found else ""


def _codex(headers: Mapping[str, str], fields: Fields | Mapping[str, bytes]) -> ClientName | None:
    metadata = _parsed(headers.get(_CODEX_METADATA, ""))
    in_body = _record(fields, "client_metadata")
    metadata = metadata or _parsed(as_text(in_body.get(_CODEX_METADATA))) or in_body
    session = _checked(headers.get("session-id")) or _checked(metadata.get("session_id"))
    thread = _checked(headers.get("thread-id")) or _checked(metadata.get("thread_id")) or session
    if not thread:
        return None
    parent = _checked(headers.get(_CODEX_PARENT)) or _checked(metadata.get("parent_thread_id"))
    parent = parent or _checked(in_body.get(_CODEX_PARENT)) or session
    return ClientName(source="codex", name=(thread,), parent=(parent,) if parent else None)


def _plain(headers: Mapping[str, str]) -> ClientName | None:
    name = next((name for header in _PLAIN if (name := _checked(headers.get(header)))), "")
    if not name:
        return None
    parent = _checked(headers.get(_PARENT))
    return ClientName(source="session", name=(name,), parent=(parent,) if parent else None)


def _conversation(fields: Fields | Mapping[str, bytes]) -> ClientName | None:
    try:
        said = value(fields.get("conversation"))
    except MalformedRequest:
        return None
    name = _checked(as_record(said).get("id") if isinstance(said, dict) else said)
    return ClientName(source="conversation", name=(name,)) if name else None


def _checked(said: object) -> str:
    text = said.strip() if isinstance(said, str) else ""
    return text if len(text) <= MAX_ID_CHARS else ""


def _record(fields: Fields | Mapping[str, bytes], name: str) -> dict[str, object]:
    raw = fields.get(name)
    if raw is None or memoryview(raw).nbytes > _MAX_METADATA_CHARS:
        return {}
    try:
        return as_record(value(raw))
    except MalformedRequest:
        return {}


def _parsed(said: str) -> dict[str, object]:
    """Return a JSON object that a client sends as text; empty if it is something else or too long."""
    if not said.startswith("{") or len(said) > _MAX_METADATA_CHARS:
        return {}
    try:
        return as_record(msgspec.json.decode(said.encode("utf-8", "replace")))
    except (msgspec.DecodeError, RecursionError):
        return {}


def is_retry(headers: Mapping[str, str]) -> bool:
    """Return whether a client says that it repeats a request that failed."""
    return headers.get(_RETRY, "0").strip() not in ("", "0")


def user_agent_family(user_agent: str) -> str:
    """Return the program that a `user-agent` names, without its version: `openai/python`, `claude-cli`."""
    program, *_ = user_agent[:_MAX_FAMILY_CHARS].lower().split() or [""]
    name, _, rest = program.partition("/")
    return f"{name}/{rest}" if rest.isalpha() else name

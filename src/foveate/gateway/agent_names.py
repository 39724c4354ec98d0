"""Names for agents that send neither a gateway key nor `x-foveate-agent`, by their `user-agent`."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

# How the user-agents of agents begin, in small letters (their releases of November 2026).
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
# What may follow such a beginning.
_PREFIX_SEPARATORS = frozenset("/ _-(")
_MAX_USER_AGENT_CHARS = 256


def name_agent(user_agent: str, configured: Sequence[tuple[str, str]] = ()) -> str | None:
    """Name the agent that sends a `user-agent`, or return None if it is not known.

    `configured` are globs with the names of their agents, which are tried first.
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

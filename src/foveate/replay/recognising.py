"""Which agent wrote a file, told by what stands in its first lines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from foveate.replay.log_files import decoded
from foveate.replay.recordings import Source
from foveate.wire.body import as_text, value

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
Fields = Mapping[str, msgspec.Raw]

_CLAUDE_TYPES = frozenset(
    ("user", "assistant", "system", "summary", "file-history-snapshot", "queue-operation", "attachment",
     "progress")
)  # fmt: skip
_CLAUDE_NAMES = frozenset(("uuid", "parentUuid", "sessionId", "session_id", "leafUuid", "snapshot"))
_PI_TYPES = frozenset(
    ("session", "message", "compaction", "model_change", "thinking_level_change", "branch_summary", "custom",
     "custom_message", "label", "session_info", "session_state")
)  # fmt: skip
_CODEX_TYPES = frozenset(
    ("session_meta", "response_item", "event_msg", "turn_context", "compacted", "world_state",
     "inter_agent_communication")
)  # fmt: skip
_MESSAGES = frozenset(("messages", "input", "contents", "generateContentRequest"))
# What stands in a body beside its messages, and not in a list that somebody keeps.
_PARAMETERS = frozenset(
    ("model", "modelId", "max_tokens", "max_completion_tokens", "max_output_tokens", "stream", "temperature",
     "generationConfig", "inferenceConfig", "anthropic_version", "tool_choice", "instructions",
     "systemInstruction")
)  # fmt: skip
# Under which names logs of requests keep the body.
WRAPPERS = (
    "request", "request_body", "requestBody", "request_data", "providerRequest", "reqPayload", "req", "body",
    "json", "kwargs", "input", "inputs", "params", "data", "converse", "proxy_server_request",
)  # fmt: skip
# Under which names what an observer's API or export gives has its rows.
ROWS = ("data", "observations", "requests", "logs", "rows", "runs", "items", "results")
_DEEPEST = 3
_ANSWERS = frozenset(("response", "output", "usage", "answer", "completion", "response_body", "responseBody"))


@dataclass(frozen=True, slots=True)
class Peek:
    """What the head of a file tells: who wrote it, and the session and agent that its first lines name.

    `unsupported` names a format that is recognised and cannot be replayed.
    """

    source: Source | None
    session: str = ""
    is_agent: bool = False
    unsupported: str = ""


def recognised(lines: Sequence[bytes]) -> Peek:
    """What the first lines of a file tell, the first that tells something; no source where none does."""
    told = [source for line in lines if (source := source_of(line)) is not None]
    if not told:
        return Peek(None, unsupported=next(filter(None, map(unsupported_format, lines)), ""))
    if told[0] is Source.CLAUDE_CODE and Source.QWEN_CODE not in told:
        return _claude_peek(lines)
    if told[0] is Source.CLAUDE_CODE:  # a record without a message looks the same in both
        return Peek(Source.QWEN_CODE)
    if told[0] is Source.OPENCODE:
        return _opencode_peek(lines)
    # A body may end with the beginning of an answer, and then looks like a list that somebody keeps.
    return Peek(Source.REQUESTS if told[0] is Source.MESSAGES and Source.REQUESTS in told else told[0])


def source_of(document: bytes) -> Source | None:
    """Who writes such a line, or such a file; None where it cannot be told."""
    if document.lstrip().startswith(b"["):
        return _source_of_list(items_of(document))
    found = fields_of(document)
    return _source_of_object(found) if found else None


def fields_of(document: bytes | msgspec.Raw) -> Fields:
    """The members of a JSON object; none where it is something else, or broken."""
    try:
        return decoded(_FIELDS, document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def items_of(document: bytes | msgspec.Raw) -> list[msgspec.Raw]:
    """The items of a JSON list; none where it is something else, or broken."""
    try:
        return decoded(_ITEMS, document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []


def _source_of_list(found: Sequence[msgspec.Raw]) -> Source | None:
    """A list of messages, of such lists, of requests, or of an agent's lines."""
    for item in found[:8]:
        if bytes(memoryview(item)[:1]) == b"[":
            return Source.MESSAGES
        source = _source_of_object(fields_of(item))
        if source is not None:
            return source
    return None


def _source_of_object(found: Fields) -> Source | None:
    kind = text_of(found, "type")
    if (source := _source_of_agent(found, kind)) is not None:
        return source
    if prompt_history(found):
        return None
    if "trajectory_format" in found or ("history" in found and _is_list(found["history"])):
        return Source.SWE_AGENT
    if "trajectory" in found and _is_list(found["trajectory"]):
        return Source.SWE_AGENT
    if kind in _CLAUDE_TYPES and found.keys() & _CLAUDE_NAMES:
        return Source.CLAUDE_CODE
    if kind in _PI_TYPES and (kind != "message" or "message" in found):
        return Source.PI
    if "messages" in found and _is_list(found["messages"]):
        if "info" in found:
            return Source.SWE_AGENT
        is_body = found.keys() & (_PARAMETERS | _ANSWERS) and not _ends_with_answer(found["messages"])
        return Source.REQUESTS if is_body or found.keys() & _ANSWERS else Source.MESSAGES
    if found.keys() & _MESSAGES and found.keys() & (_PARAMETERS | _ANSWERS):
        return Source.REQUESTS
    if any(_is_body(found[name], _DEEPEST) for name in WRAPPERS if name in found) or "contents" in found:
        return Source.REQUESTS
    if any(name in found and _is_list(found[name]) for name in ("conversations", "conversation")):
        return Source.MESSAGES
    if any(_source_of_list(rows) is Source.REQUESTS for rows in rows_in(found)):
        return Source.REQUESTS
    return Source.MESSAGES if "role" in found and found.keys() & {"content", "parts", "tool_calls"} else None


def _source_of_agent(found: Fields, kind: str) -> Source | None:
    """Name the agent or benchmark whose own members an object has."""
    if (kind in _CODEX_TYPES and "payload" in found) or "record_type" in found:
        return Source.CODEX
    if found.keys() >= {"id", "timestamp", "instructions"}:  # Codex before September 2025
        return Source.CODEX
    if found.keys() >= {"sessionId", "projectHash"} or (kind == "gemini" and "content" in found):
        return Source.GEMINI_CLI
    if found.keys() >= {"uuid", "sessionId"} and ("systemPayload" in found or _has_parts(found)):
        return Source.QWEN_CODE
    if _is_opencode(found):
        return Source.OPENCODE
    if found.keys() >= {"response", "kwargs", "timestamp", "cost"} or found.keys() >= {"response", "llm_path"}:
        return Source.OPENHANDS
    if found.keys() >= {"error", "latency_sec", "cost"}:  # a request of OpenHands that failed
        return Source.OPENHANDS
    if "traj" in found and _is_list(found["traj"]) and found.keys() & {"task_id", "reward"}:
        return Source.TAU_BENCH
    return None


def _has_parts(found: Fields) -> bool:
    return "parts" in fields_of(found.get("message", b""))


def _is_opencode(found: Fields) -> bool:
    own, info = text_of(found, "id"), fields_of(found.get("info", b""))
    if "sessionID" in found:
        return own.startswith(("msg", "prt")) or "messageID" in found
    if "messages" in found and text_of(info, "id").startswith("ses"):
        return True
    return own.startswith("ses") and found.keys() >= {"directory", "time"}


def rows_in(found: Fields) -> Iterator[list[msgspec.Raw]]:
    """Lists that an object holds under a name for rows."""
    yield from (items_of(found[name]) for name in ROWS if name in found and _is_list(found[name]))


def _is_body(raw: msgspec.Raw, deepest: int) -> bool:
    document = bytes(raw)
    if document.startswith(b'"'):  # JSON inside of a string
        document = as_text(value(document)).encode("utf-8", "replace")
    inner = fields_of(document)
    if inner.keys() & _MESSAGES:
        return True
    return deepest > 0 and any(_is_body(inner[name], deepest - 1) for name in WRAPPERS if name in inner)


def _ends_with_answer(raw: msgspec.Raw) -> bool:
    found = items_of(bytes(raw))
    return bool(found) and text_of(fields_of(found[-1]), "role") in ("assistant", "model")


def _is_list(raw: msgspec.Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"["


def text_of(found: Fields, name: str) -> str:
    """A text among members that are otherwise not read."""
    raw = found.get(name)
    return as_text(value(raw)) if raw is not None and bytes(memoryview(raw)[:1]) == b'"' else ""


def _claude_peek(lines: Sequence[bytes]) -> Peek:
    for line in lines:
        found = fields_of(line)
        session = text_of(found, "sessionId")
        if session and "uuid" in found:
            is_agent = bytes(found.get("isSidechain", b"false")) == b"true" and "agentId" in found
            return Peek(Source.CLAUDE_CODE, session, is_agent)
    return Peek(Source.CLAUDE_CODE)


def _opencode_peek(lines: Sequence[bytes]) -> Peek:
    for line in lines:
        found = fields_of(line)
        if _is_opencode(found):
            return Peek(Source.OPENCODE, text_of(found, "sessionID") or text_of(found, "id"))
    return Peek(Source.OPENCODE)


def prompt_history(found: Fields) -> str:
    """Name the program that keeps such an object in a history of prompts; empty if it is something else."""
    if found.keys() == {"session_id", "ts", "text"}:
        return "Codex"
    if found.keys() >= {"sessionId", "messageId", "message", "timestamp"} and "uuid" not in found:
        return "Gemini CLI"
    return ""


def unsupported_format(document: bytes) -> str:
    """Name the format of a line or file that is recognised but cannot be replayed; empty if it is unknown."""
    found = fields_of(document) or fields_of(next(iter(items_of(document)), b""))
    kind = text_of(found, "type")
    if program := prompt_history(found):
        return f"a history of prompts of {program}, without responses; its session logs can be replayed"
    if kind.startswith(("thread.", "turn.", "item.")):
        return "output of `codex exec --json`; the session logs in ~/.codex/sessions can be replayed"
    if kind.startswith("session.") and "data" in found:
        return "a session log of GitHub Copilot CLI, which names no tokens for its calls"
    if text_of(found, "schema_version").startswith("ATIF"):
        return "a trajectory in the Agent Trajectory Interchange Format"
    if found.keys() >= {"simulations", "tasks"}:
        return "a result file of tau2-bench"
    is_event = found.keys() >= {"id", "timestamp", "source"}
    if is_event and (text_of(found, "kind").endswith("Event") or found.keys() & {"action", "observation"}):
        return "an event of OpenHands; its LLM logs (log_completions) can be replayed"
    return ""

"""Detects the format of a recording from its first lines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from foveate.formats.json_text.parse import as_text, parse_json
from foveate.replay.readers.log_file import decode_line
from foveate.replay.recording import RecordingSource

_OBJECT_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST_DECODER = msgspec.json.Decoder(list[msgspec.Raw])
Fields = Mapping[str, msgspec.Raw]

_CLAUDE_TYPES = frozenset(
    ("user", "assistant", "system", "summary", "file-history-snapshot", "queue-operation", "attachment",
     "progress")
)  # fmt: skip
_CLAUDE_FIELDS = frozenset(("uuid", "parentUuid", "sessionId", "session_id", "leafUuid", "snapshot"))
_PI_TYPES = frozenset(
    ("session", "message", "compaction", "model_change", "thinking_level_change", "branch_summary", "custom",
     "custom_message", "label", "session_info", "session_state")
)  # fmt: skip
_CODEX_TYPES = frozenset(
    ("session_meta", "response_item", "event_msg", "turn_context", "compacted", "world_state",
     "inter_agent_communication")
)  # fmt: skip
_MESSAGE_FIELDS = frozenset(("messages", "input", "contents", "generateContentRequest"))
# Fields of a request body besides its messages, which a plain list of messages does not have.
_PARAMETER_FIELDS = frozenset(
    ("model", "modelId", "max_tokens", "max_completion_tokens", "max_output_tokens", "stream", "temperature",
     "generationConfig", "inferenceConfig", "anthropic_version", "tool_choice", "instructions",
     "systemInstruction")
)  # fmt: skip
# Fields under which request logs keep the body.
BODY_FIELDS = (
    "request", "request_body", "requestBody", "request_data", "providerRequest", "reqPayload", "req", "body",
    "json", "kwargs", "input", "inputs", "params", "data", "converse", "proxy_server_request",
)  # fmt: skip
# Fields under which the APIs and exports of observability tools keep their rows.
ROW_FIELDS = ("data", "observations", "requests", "logs", "rows", "runs", "items", "results")
_MAX_DEPTH = 3
_RESPONSE_FIELDS = frozenset(
    ("response", "output", "usage", "answer", "completion", "response_body", "responseBody")
)


@dataclass(frozen=True, slots=True)
class DetectedFormat:
    """The format of a file, and the session and agent that its first lines name.

    `unsupported` names a format that is recognized but cannot be replayed.
    """

    source: RecordingSource | None
    session: str = ""
    is_agent: bool = False
    unsupported: str = ""


def detect_recording_format(lines: Sequence[bytes]) -> DetectedFormat:
    """Detect the format from the first lines of a file, by the first one that identifies it."""
    sources = [source for line in lines if (source := detect_source(line)) is not None]
    if not sources:
        return DetectedFormat(None, unsupported=next(filter(None, map(detect_unsupported, lines)), ""))
    if sources[0] is RecordingSource.CLAUDE_CODE and RecordingSource.QWEN_CODE not in sources:
        return _detect_claude_session(lines)
    if sources[0] is RecordingSource.CLAUDE_CODE:  # a record without a message looks the same in both formats
        return DetectedFormat(RecordingSource.QWEN_CODE)
    if sources[0] is RecordingSource.OPENCODE:
        return _detect_opencode_session(lines)
    # A body may end with the start of a response, and then looks like a list of messages.
    return DetectedFormat(
        RecordingSource.REQUESTS
        if sources[0] is RecordingSource.MESSAGES and RecordingSource.REQUESTS in sources
        else sources[0]
    )


def detect_source(document: bytes) -> RecordingSource | None:
    if document.lstrip().startswith(b"["):
        return _detect_list(read_items(document))
    fields = read_fields(document)
    return _detect_object(fields) if fields else None


def read_fields(document: bytes | msgspec.Raw) -> Fields:
    """The members of a JSON object; empty if it is something else, or malformed."""
    try:
        return decode_line(_OBJECT_DECODER, document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def read_items(document: bytes | msgspec.Raw) -> list[msgspec.Raw]:
    """The items of a JSON list; empty if it is something else, or malformed."""
    try:
        return decode_line(_LIST_DECODER, document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []


def _detect_list(items: Sequence[msgspec.Raw]) -> RecordingSource | None:
    """Detect a list of messages, of such lists, of requests, or of an agent's lines."""
    for item in items[:8]:
        if bytes(memoryview(item)[:1]) == b"[":
            return RecordingSource.MESSAGES
        source = _detect_object(read_fields(item))
        if source is not None:
            return source
    return None


def _detect_object(fields: Fields) -> RecordingSource | None:
    kind = read_text(fields, "type")
    if (source := _detect_agent(fields, kind)) is not None:
        return source
    if detect_prompt_history(fields):
        return None
    if "trajectory_format" in fields or ("history" in fields and _is_list(fields["history"])):
        return RecordingSource.SWE_AGENT
    if "trajectory" in fields and _is_list(fields["trajectory"]):
        return RecordingSource.SWE_AGENT
    if kind in _CLAUDE_TYPES and fields.keys() & _CLAUDE_FIELDS:
        return RecordingSource.CLAUDE_CODE
    if kind in _PI_TYPES and (kind != "message" or "message" in fields):
        return RecordingSource.PI
    if "messages" in fields and _is_list(fields["messages"]):
        if "info" in fields:
            return RecordingSource.SWE_AGENT
        is_body = fields.keys() & (_PARAMETER_FIELDS | _RESPONSE_FIELDS) and not _ends_with_response(
            fields["messages"]
        )
        return (
            RecordingSource.REQUESTS
            if is_body or fields.keys() & _RESPONSE_FIELDS
            else RecordingSource.MESSAGES
        )
    if fields.keys() & _MESSAGE_FIELDS and fields.keys() & (_PARAMETER_FIELDS | _RESPONSE_FIELDS):
        return RecordingSource.REQUESTS
    if (
        any(_is_body(fields[name], _MAX_DEPTH) for name in BODY_FIELDS if name in fields)
        or "contents" in fields
    ):
        return RecordingSource.REQUESTS
    if any(name in fields and _is_list(fields[name]) for name in ("conversations", "conversation")):
        return RecordingSource.MESSAGES
    if any(_detect_list(rows) is RecordingSource.REQUESTS for rows in list_rows(fields)):
        return RecordingSource.REQUESTS
    return (
        RecordingSource.MESSAGES
        if "role" in fields and fields.keys() & {"content", "parts", "tool_calls"}
        else None
    )


def _detect_agent(fields: Fields, kind: str) -> RecordingSource | None:
    """Detect an agent or benchmark by members that only it writes."""
    if (kind in _CODEX_TYPES and "payload" in fields) or "record_type" in fields:
        return RecordingSource.CODEX
    if fields.keys() >= {"id", "timestamp", "instructions"}:  # Codex before September 2025
        return RecordingSource.CODEX
    if fields.keys() >= {"sessionId", "projectHash"} or (kind == "gemini" and "content" in fields):
        return RecordingSource.GEMINI_CLI
    if fields.keys() >= {"uuid", "sessionId"} and ("systemPayload" in fields or _has_parts(fields)):
        return RecordingSource.QWEN_CODE
    if _is_opencode(fields):
        return RecordingSource.OPENCODE
    if fields.keys() >= {"response", "kwargs", "timestamp", "cost"} or fields.keys() >= {
        "response",
        "llm_path",
    }:
        return RecordingSource.OPENHANDS
    if fields.keys() >= {"error", "latency_sec", "cost"}:  # a failed request of OpenHands
        return RecordingSource.OPENHANDS
    if "traj" in fields and _is_list(fields["traj"]) and fields.keys() & {"task_id", "reward"}:
        return RecordingSource.TAU_BENCH
    return None


def _has_parts(fields: Fields) -> bool:
    return "parts" in read_fields(fields.get("message", b""))


def _is_opencode(fields: Fields) -> bool:
    record_id, info = read_text(fields, "id"), read_fields(fields.get("info", b""))
    if "sessionID" in fields:
        return record_id.startswith(("msg", "prt")) or "messageID" in fields
    if "messages" in fields and read_text(info, "id").startswith("ses"):
        return True
    return record_id.startswith("ses") and fields.keys() >= {"directory", "time"}


def list_rows(fields: Fields) -> Iterator[list[msgspec.Raw]]:
    yield from (read_items(fields[name]) for name in ROW_FIELDS if name in fields and _is_list(fields[name]))


def _is_body(raw: msgspec.Raw, max_depth: int) -> bool:
    document = bytes(raw)
    if document.startswith(b'"'):  # JSON in a string
        document = as_text(parse_json(document)).encode("utf-8", "replace")
    inner = read_fields(document)
    if inner.keys() & _MESSAGE_FIELDS:
        return True
    return max_depth > 0 and any(_is_body(inner[name], max_depth - 1) for name in BODY_FIELDS if name in inner)


def _ends_with_response(raw: msgspec.Raw) -> bool:
    messages = read_items(bytes(raw))
    return bool(messages) and read_text(read_fields(messages[-1]), "role") in ("assistant", "model")


def _is_list(raw: msgspec.Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"["


def read_text(fields: Fields, name: str) -> str:
    """A string member of an object whose other members are not decoded."""
    raw = fields.get(name)
    return as_text(parse_json(raw)) if raw is not None and bytes(memoryview(raw)[:1]) == b'"' else ""


def _detect_claude_session(lines: Sequence[bytes]) -> DetectedFormat:
    for line in lines:
        fields = read_fields(line)
        session = read_text(fields, "sessionId")
        if session and "uuid" in fields:
            is_agent = bytes(fields.get("isSidechain", b"false")) == b"true" and "agentId" in fields
            return DetectedFormat(RecordingSource.CLAUDE_CODE, session, is_agent)
    return DetectedFormat(RecordingSource.CLAUDE_CODE)


def _detect_opencode_session(lines: Sequence[bytes]) -> DetectedFormat:
    for line in lines:
        fields = read_fields(line)
        if _is_opencode(fields):
            return DetectedFormat(
                RecordingSource.OPENCODE, read_text(fields, "sessionID") or read_text(fields, "id")
            )
    return DetectedFormat(RecordingSource.OPENCODE)


def detect_prompt_history(fields: Fields) -> str:
    """Name the program that writes such an object to a history of prompts; empty if it is something else."""
    if fields.keys() == {"session_id", "ts", "text"}:
        return "Codex"
    if fields.keys() >= {"sessionId", "messageId", "message", "timestamp"} and "uuid" not in fields:
        return "Gemini CLI"
    return ""


def detect_unsupported(document: bytes) -> str:
    """Name the format of a line or file that is recognized but cannot be replayed; empty if it is unknown."""
    fields = read_fields(document) or read_fields(next(iter(read_items(document)), b""))
    kind = read_text(fields, "type")
    if program := detect_prompt_history(fields):
        return f"a history of prompts of {program}, without responses; its session logs can be replayed"
    if kind.startswith(("thread.", "turn.", "item.")):
        return "output of `codex exec --json`; the session logs in ~/.codex/sessions can be replayed"
    if kind.startswith("session.") and "data" in fields:
        return "a session log of GitHub Copilot CLI, which names no tokens for its calls"
    if read_text(fields, "schema_version").startswith("ATIF"):
        return "a trajectory in the Agent Trajectory Interchange Format"
    if fields.keys() >= {"simulations", "tasks"}:
        return "a result file of tau2-bench"
    is_event = fields.keys() >= {"id", "timestamp", "source"}
    if is_event and (read_text(fields, "kind").endswith("Event") or fields.keys() & {"action", "observation"}):
        return "an event of OpenHands; its LLM logs (log_completions) can be replayed"
    return ""

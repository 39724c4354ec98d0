"""Reads trajectories of SWE-agent and mini-swe-agent.

Newer ones contain what was sent with each step (`query`), older ones only the history. Demonstrations are
part of the history. The cost of a whole run is recorded, and by mini-swe-agent also the usage of each
response.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import msgspec

from foveate import formats
from foveate.errors import MalformedRequest
from foveate.formats.json_text.parse import as_dict, as_list, as_text, to_json
from foveate.model import Format, Ttl, Usage
from foveate.replay.readers.log_file import TOO_DEEP, LogFile, describe_decode_error, parse_time
from foveate.replay.readers.message_tree import MessageTree, find_breakpoint_ttl
from foveate.replay.recording import (
    MissingPart,
    RecordedCall,
    RecordedMessage,
    Recording,
    RecordingSource,
    find_missing_parts,
)

# Members of an entry that are sent to the model.
_SENT_FIELDS = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content")
_ITEM_FIELDS = ("type", "role", "content", "id", "call_id", "name", "arguments", "output", "summary")
_ROLE_ALIASES = {"ai": "assistant", "model": "assistant", "human": "user"}
_KNOWN_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
_THINKING_FIELDS = ("thinking_blocks", "reasoning_content", "reasoning")

_DOCUMENT_DECODER = msgspec.json.Decoder()
_Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunInfo:
    name: str
    model: str
    dollars: Decimal | None
    breakpoint_ttl: Ttl | None


def read_trajectories(file: LogFile, model: str | None = None) -> list[Recording]:
    """Read the runs in a file, each as a recording.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    recordings = []
    for number, document in file.documents():
        try:
            decoded = _DOCUMENT_DECODER.decode(document)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            file.report_unreadable(number, describe_decode_error(error))
            continue
        several = [entry for entry in as_list(decoded) if isinstance(entry, dict)]
        runs = several if several and all(map(_is_run, several)) else [_as_run(decoded)]
        for at, run in enumerate(runs):
            if not _is_run(run):
                file.report_unreadable(number, "contains no run: neither history, trajectory nor messages")
                continue
            name = as_text(run.get("instance_id")) or file.name
            name = name if at == 0 or name != file.name else f"{name}:{at + 1}"
            try:
                recordings.append(_make_recording(run, name, model))
            except (RecursionError, MalformedRequest):  # could be decoded, but is too deep to encode
                file.report_unreadable(number, TOO_DEEP)
    return [
        replace(recording, unreadable=tuple(file.unreadable), size_bytes=file.size_bytes)
        if at == 0
        else recording
        for at, recording in enumerate(recordings)
    ]


def _as_run(document: object) -> dict[str, Any]:
    """Treat a bare history as a run without further data."""
    return {"history": document} if isinstance(document, list) else as_dict(document)


def _is_run(run: _Entry) -> bool:
    return any(_list_entries(run.get(name)) for name in ("history", "trajectory", "messages"))


def _list_entries(value: object) -> list[dict[str, Any]]:
    """A list of objects, possibly written as a string."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = _DOCUMENT_DECODER.decode(value)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return []
    return [entry for entry in as_list(value) if isinstance(entry, dict)]


def _make_recording(run: _Entry, name: str, model: str | None) -> Recording:
    model_name = _find_model(run)
    info = _RunInfo(
        name=name,
        model=model_name or model or "",
        dollars=_reported_dollars(run),
        breakpoint_ttl=_find_run_breakpoint_ttl(run),
    )
    api_format = Format.CHAT
    messages = _list_entries(run.get("messages"))
    if messages and not _list_entries(run.get("history")):
        if any("output" in entry and entry.get("object") == "response" for entry in messages):
            api_format = Format.RESPONSES
        calls = list(_calls_from_messages(messages, info, api_format))
    else:
        steps = _list_entries(run.get("trajectory"))
        calls = list(_calls_from_queries(steps, info))
        history = _add_last_response(_list_entries(run.get("history")), steps) or list(
            _history_from_steps(steps)
        )
        calls = calls or list(_calls_from_history(history, info, observations=_max_observations(run)))
    missing = find_missing_parts(calls) if model_name else find_missing_parts(calls) | {MissingPart.MODEL}
    if any(b'"tool_calls"' in call.response or b'"function_call"' in call.response for call in calls):
        missing |= {MissingPart.TOOLS}
    if not any(
        message.role in ("system", "developer") for call in calls[:1] for message in call.last_message.history()
    ):
        missing |= {MissingPart.SYSTEM}
    return Recording(
        name=name,
        source=RecordingSource.SWE_AGENT,
        format=api_format,
        calls=tuple(calls),
        missing=missing,
        reported_dollars=info.dollars,
    )


def _add_last_response(history: list[dict[str, Any]], steps: Iterable[_Entry]) -> list[dict[str, Any]]:
    """Add the response that ended the run, which SWE-agent 1 records only in its steps."""
    responses = [text for step in steps if (text := as_text(step.get("response")))]
    logged_responses = [
        entry for entry in history if _entry_role(entry) == "assistant" and entry.get("is_demo") is not True
    ]
    if not history or len(responses) != len(logged_responses) + 1 or _entry_role(history[-1]) == "assistant":
        return history
    return [*history, {"role": "assistant", "content": responses[-1], "agent": history[-1].get("agent")}]


def _calls_from_history(
    history: Iterable[_Entry], run: _RunInfo, *, observations: int | None
) -> Iterator[RecordedCall]:
    """Each agent of a run sees only its own messages, and only the last `observations` if that is set."""
    tree = MessageTree()
    messages_by_agent: dict[str, list[bytes]] = {}
    observed: dict[str, list[int]] = {}
    last: dict[str, RecordedMessage | None] = {}
    for number, entry in enumerate(history):
        agent = as_text(entry.get("agent"))
        message = _sent_message(entry)
        if message is None:
            continue
        before, agent_messages = last.get(agent), messages_by_agent.setdefault(agent, [])
        raw = to_json(message)
        is_demo = entry.get("is_demo") is True
        if message["role"] == "assistant" and not is_demo and before is not None:
            yield _make_call(run, number, agent, before, raw, entry, None)
        agent_messages.append(raw)
        last[agent] = tree.append(before, raw)
        if observations and message["role"] in ("user", "tool") and not is_demo:
            observation_indexes = observed.setdefault(agent, [])
            observation_indexes.append(len(agent_messages) - 1)
            if len(observation_indexes) > observations + 1:  # the first one is the task, and stays
                old = observation_indexes.pop(1)
                agent_messages[old] = _omit_observation(agent_messages[old])
                last[agent] = tree.append_all(agent_messages)


def _omit_observation(raw: bytes) -> bytes:
    """The text sent instead of an old observation."""
    message = as_dict(_DOCUMENT_DECODER.decode(raw))
    content = message.get("content")
    lines = (
        content
        if isinstance(content, str)
        else "\n".join(as_text(block.get("text")) for block in _list_entries(content))
    )
    return to_json(message | {"content": f"Old environment output: ({len(lines.splitlines())} lines omitted)"})


def _max_observations(run: _Entry) -> int | None:
    processors = as_dict(_read_config(run).get("agent")).get("history_processors")
    for processor in _list_entries(processors):
        limit = processor.get("n")
        if processor.get("type") == "last_n_observations" and isinstance(limit, int) and limit > 0:
            return limit
    return None


def _calls_from_queries(steps: Iterable[_Entry], run: _RunInfo) -> Iterator[RecordedCall]:
    tree = MessageTree()
    for number, step in enumerate(steps):
        messages = [
            message
            for entry in _list_entries(step.get("query"))
            if (message := _sent_message(entry)) is not None
        ]
        last = tree.append_all(map(to_json, messages))
        if last is not None:
            response_message = {
                "role": "assistant",
                "content": as_text(step.get("response")) or as_text(step.get("output")),
            }
            calls = step.get("tool_calls")
            response = to_json(response_message | {"tool_calls": calls} if calls else response_message)
            yield _make_call(run, number, as_text(step.get("agent")), last, response, step, None)


def _history_from_steps(steps: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, step in enumerate(steps):
        if "role" in step:  # the trajectory is in fact a history
            yield step
            continue
        if number == 0:  # the task is not recorded
            yield {"role": "user", "content": ""}
        yield {"role": "assistant", "content": as_text(step.get("response")) or as_text(step.get("action"))}
        yield {"role": "user", "content": as_text(step.get("observation"))}


def _calls_from_messages(
    messages: Sequence[_Entry], run: _RunInfo, api_format: Format
) -> Iterator[RecordedCall]:
    """Calls of mini-swe-agent, which records the provider's response and usage with each assistant message."""
    tree = MessageTree()
    last: RecordedMessage | None = None
    for number, entry in enumerate(messages):
        raw_messages = [to_json(message) for message in _sent_messages(entry, api_format)]
        if not raw_messages:
            continue
        extra = as_dict(entry.get("extra"))
        response = as_dict(extra.get("response")) or (entry if entry.get("object") == "response" else {})
        if last is not None and _entry_role(entry) == "assistant":
            usage = (
                formats.read_response_usage(api_format, to_json({"usage": response.get("usage")}))
                if response
                else None
            )
            yield _make_call(
                run, number, "", last, raw_messages[-1], {**extra, **_model_and_time(extra, response)}, usage
            )
        last = tree.append_all(raw_messages, last)


def _sent_messages(entry: _Entry, api_format: Format) -> list[dict[str, Any]]:
    if api_format is Format.RESPONSES:
        items = _list_entries(entry.get("output")) if entry.get("object") == "response" else [dict(entry)]
        return [
            {name: item[name] for name in _ITEM_FIELDS if item.get(name) is not None}
            for item in items
            if "type" in item or as_text(item.get("role")) in _KNOWN_ROLES
        ]
    message = _sent_message(entry)
    return [message] if message is not None else []


def _entry_role(entry: _Entry) -> str:
    role = as_text(entry.get("role"))
    return "assistant" if entry.get("object") == "response" else _ROLE_ALIASES.get(role, role)


def _model_and_time(extra: _Entry, response: _Entry) -> dict[str, Any]:
    return {"model": response.get("model"), "timestamp": extra.get("timestamp") or response.get("created")}


def _sent_message(entry: _Entry) -> dict[str, Any] | None:
    role = _entry_role(entry)
    if role not in _KNOWN_ROLES:
        return None
    message = {name: entry[name] for name in _SENT_FIELDS if entry.get(name) is not None} | {"role": role}
    content = entry.get("content")
    if content is None and "tool_calls" not in message:
        message["content"] = as_text(entry.get("text")) or as_text(entry.get("system_prompt"))
    ids = as_list(entry.get("tool_call_ids"))
    if role == "tool" and ids and "tool_call_id" not in message:
        message["tool_call_id"] = as_text(ids[0])
    return message


def _make_call(
    run: _RunInfo,
    number: int,
    agent: str,
    last: RecordedMessage,
    response: bytes,
    entry: _Entry,
    usage: Usage | None,
) -> RecordedCall:
    at = parse_time(entry.get("timestamp"))
    return RecordedCall(
        id=f"{run.name}:{agent}:{number}",
        conversation=f"{run.name}:{agent}" if agent else run.name,
        model=run.model or as_text(entry.get("model")),
        at=at,
        response_at=at,
        last_message=last,
        response=response,
        has_thinking=any(entry.get(name) for name in _THINKING_FIELDS),
        breakpoint_ttl=run.breakpoint_ttl,
        usage=usage,
    )


def _read_config(run: _Entry) -> dict[str, Any]:
    """The configuration of a run, possibly written as a string."""
    config = run.get("replay_config")
    if isinstance(config, str):
        try:
            config = _DOCUMENT_DECODER.decode(config)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return {}
    return as_dict(config)


def _find_model(run: _Entry) -> str:
    info = as_dict(run.get("info"))
    for source in (_read_config(run), as_dict(info.get("config")), info, run):
        for inner in (as_dict(source.get("agent")), source):
            model = inner.get("model")
            name = as_dict(model).get("name") or as_dict(model).get("model_name") or model
            if isinstance(name, str) and name:
                return name
            if as_text(inner.get("model_name")):
                return as_text(inner.get("model_name"))
    return as_text(run.get("model_name_or_path"))


def _find_run_breakpoint_ttl(run: _Entry) -> Ttl | None:
    agent = as_dict(_read_config(run).get("agent"))
    processors = {as_text(document.get("type")) for document in _list_entries(agent.get("history_processors"))}
    model = as_dict(as_dict(as_dict(run.get("info")).get("config")).get("model"))
    if "cache_control" in processors or model.get("set_cache_control"):
        return Ttl.FIVE_MINUTES
    last = next((step.get("query") for step in reversed(_list_entries(run.get("trajectory")))), None)
    documents = (run.get("history"), run.get("messages"), last)
    return next(
        (
            ttl
            for document in documents
            if document and (ttl := find_breakpoint_ttl(to_json(document))) is not None
        ),
        None,
    )


def _reported_dollars(run: _Entry) -> Decimal | None:
    stats = as_dict(as_dict(run.get("info")).get("model_stats"))
    cost = stats.get("instance_cost")
    is_sum = isinstance(cost, int | float) and not isinstance(cost, bool) and cost > 0
    return Decimal(repr(cost)) if is_sum else None

"""Trajectories of SWE-agent and of mini-swe-agent: every answer was asked for with all that stands before it.

Newer ones keep with each step what was sent (`query`), older ones only the history. Demonstrations stand in the
history as if they had been said. What a whole run cost is told, and by mini-swe-agent also each answer's usage.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import msgspec

from foveate import wire
from foveate.errors import MalformedRequest
from foveate.replay.growing import Growing
from foveate.replay.log_files import TOO_DEEP, LogFile, why_broken
from foveate.replay.marks_seen import marks_seen
from foveate.replay.recordings import Call, Lacking, Recording, Said, Source, lacks_of
from foveate.replay.times import seconds
from foveate.values import Format, Ttl, Usage
from foveate.wire.body import as_list, as_record, as_text, compact

# What of an entry was sent to the model.
_SENT = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content")
_ITEM = ("type", "role", "content", "id", "call_id", "name", "arguments", "output", "summary")
_ROLES = {"ai": "assistant", "model": "assistant", "human": "user"}
_SPOKEN = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
_THOUGHTS = ("thinking_blocks", "reasoning_content", "reasoning")

_DOCUMENT = msgspec.json.Decoder()
_Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What is told of a whole run."""

    name: str
    model: str
    dollars: Decimal | None
    marks: Ttl | None


def read_trajectories(file: LogFile, model: str | None = None) -> list[Recording]:
    """The runs in a file, each a recording.

    Raises:
        UnreadableInput: the file cannot be opened.
    """
    found = []
    for number, document in file.documents():
        try:
            told = _DOCUMENT.decode(document)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            file.broke(number, why_broken(error))
            continue
        several = [entry for entry in as_list(told) if isinstance(entry, dict)]
        runs = several if several and all(map(_is_run, several)) else [_as_run(told)]
        for at, run in enumerate(runs):
            if not _is_run(run):
                file.broke(number, "holds no run: neither history, trajectory nor messages")
                continue
            name = as_text(run.get("instance_id")) or file.name
            name = name if at == 0 or name != file.name else f"{name}:{at + 1}"
            try:
                found.append(_recording(run, name, model))
            except (RecursionError, MalformedRequest):  # read, but too deep to be written
                file.broke(number, TOO_DEEP)
    return [
        replace(one, broken=tuple(file.broken), size_bytes=file.size_bytes) if at == 0 else one
        for at, one in enumerate(found)
    ]


def _as_run(told: object) -> dict[str, Any]:
    """A bare history is a run of which nothing else is known."""
    return {"history": told} if isinstance(told, list) else as_record(told)


def _is_run(run: _Entry) -> bool:
    return any(_entries(run.get(name)) for name in ("history", "trajectory", "messages"))


def _entries(found: object) -> list[dict[str, Any]]:
    """A list of objects, also where it is written as a string."""
    if isinstance(found, str) and found.lstrip().startswith("["):
        try:
            found = _DOCUMENT.decode(found)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return []
    return [entry for entry in as_list(found) if isinstance(entry, dict)]


def _recording(run: _Entry, name: str, model: str | None) -> Recording:
    named = _model(run)
    told = _Run(name=name, model=named or model or "", dollars=_dollars(run), marks=_marks(run))
    spoken = Format.CHAT
    messages = _entries(run.get("messages"))
    if messages and not _entries(run.get("history")):
        if any("output" in entry and entry.get("object") == "response" for entry in messages):
            spoken = Format.RESPONSES
        calls = list(_of_messages(messages, told, spoken))
    else:
        steps = _entries(run.get("trajectory"))
        calls = list(_of_queries(steps, told))
        history = _ended(_entries(run.get("history")), steps) or list(_of_steps(steps))
        calls = calls or list(_of_history(history, told, observations=_observations(run)))
    lacks = lacks_of(calls) if named else lacks_of(calls) | {Lacking.MODEL}
    if any(b'"tool_calls"' in call.answer or b'"function_call"' in call.answer for call in calls):
        lacks |= {Lacking.TOOLS}
    if not any(said.role in ("system", "developer") for call in calls[:1] for said in call.last.history()):
        lacks |= {Lacking.SYSTEM}
    return Recording(
        name=name,
        source=Source.SWE_AGENT,
        format=spoken,
        calls=tuple(calls),
        lacks=lacks,
        said_dollars=told.dollars,
    )


def _ended(history: list[dict[str, Any]], steps: Iterable[_Entry]) -> list[dict[str, Any]]:
    """A history, and the answer that ended the run: SWE-agent 1 has that only among its steps."""
    said = [text for step in steps if (text := as_text(step.get("response")))]
    answers = [entry for entry in history if _speaks(entry) == "assistant" and entry.get("is_demo") is not True]
    if not history or len(said) != len(answers) + 1 or _speaks(history[-1]) == "assistant":
        return history
    return [*history, {"role": "assistant", "content": said[-1], "agent": history[-1].get("agent")}]


def _of_history(history: Iterable[_Entry], run: _Run, *, observations: int | None) -> Iterator[Call]:
    """Each agent of a run sees only what is its own, and where it says so only the last `observations`."""
    tree = Growing()
    sent: dict[str, list[bytes]] = {}
    observed: dict[str, list[int]] = {}
    last: dict[str, Said | None] = {}
    for number, entry in enumerate(history):
        agent = as_text(entry.get("agent"))
        message = _message(entry)
        if message is None:
            continue
        before, said = last.get(agent), sent.setdefault(agent, [])
        raw = compact(message)
        is_demo = entry.get("is_demo") is True
        if message["role"] == "assistant" and not is_demo and before is not None:
            yield _call(run, number, agent, before, raw, entry, None)
        said.append(raw)
        last[agent] = tree.hung(before, raw)
        if observations and message["role"] in ("user", "tool") and not is_demo:
            seen = observed.setdefault(agent, [])
            seen.append(len(said) - 1)
            if len(seen) > observations + 1:  # the first is the task, and stays
                old = seen.pop(1)
                said[old] = _left_out(said[old])
                last[agent] = tree.last(said)


def _left_out(raw: bytes) -> bytes:
    """An old observation, as it is sent once it is one of too many."""
    message = as_record(_DOCUMENT.decode(raw))
    content = message.get("content")
    lines = (
        content
        if isinstance(content, str)
        else "\n".join(as_text(block.get("text")) for block in _entries(content))
    )
    return compact(message | {"content": f"Old environment output: ({len(lines.splitlines())} lines omitted)"})


def _observations(run: _Entry) -> int | None:
    """How many observations are sent, where the run says that it leaves out older ones."""
    processors = as_record(_config(run).get("agent")).get("history_processors")
    for processor in _entries(processors):
        kept = processor.get("n")
        if processor.get("type") == "last_n_observations" and isinstance(kept, int) and kept > 0:
            return kept
    return None


def _of_queries(steps: Iterable[_Entry], run: _Run) -> Iterator[Call]:
    tree = Growing()
    for number, step in enumerate(steps):
        sent = [message for entry in _entries(step.get("query")) if (message := _message(entry)) is not None]
        last = tree.last(map(compact, sent))
        if last is not None:
            said = {
                "role": "assistant",
                "content": as_text(step.get("response")) or as_text(step.get("output")),
            }
            calls = step.get("tool_calls")
            answer = compact(said | {"tool_calls": calls} if calls else said)
            yield _call(run, number, as_text(step.get("agent")), last, answer, step, None)


def _of_steps(steps: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A history as far as the steps alone tell it."""
    for number, step in enumerate(steps):
        if "role" in step:  # a trajectory that is a history under another name
            yield step
            continue
        if number == 0:  # what was asked is not told
            yield {"role": "user", "content": ""}
        yield {"role": "assistant", "content": as_text(step.get("response")) or as_text(step.get("action"))}
        yield {"role": "user", "content": as_text(step.get("observation"))}


def _of_messages(messages: Sequence[_Entry], run: _Run, spoken: Format) -> Iterator[Call]:
    """Of mini-swe-agent: the answer of the provider stands beside each answer, with its usage."""
    tree = Growing()
    last: Said | None = None
    for number, entry in enumerate(messages):
        sent = [compact(message) for message in _sent(entry, spoken)]
        if not sent:
            continue
        extra = as_record(entry.get("extra"))
        response = as_record(extra.get("response")) or (entry if entry.get("object") == "response" else {})
        if last is not None and _speaks(entry) == "assistant":
            billed = wire.reply_usage(spoken, compact({"usage": response.get("usage")})) if response else None
            yield _call(run, number, "", last, sent[-1], {**extra, **_when(extra, response)}, billed)
        last = tree.last(sent, last)


def _sent(entry: _Entry, spoken: Format) -> list[dict[str, Any]]:
    if spoken is Format.RESPONSES:
        items = _entries(entry.get("output")) if entry.get("object") == "response" else [dict(entry)]
        return [
            {name: item[name] for name in _ITEM if item.get(name) is not None}
            for item in items
            if "type" in item or as_text(item.get("role")) in _SPOKEN
        ]
    message = _message(entry)
    return [message] if message is not None else []


def _speaks(entry: _Entry) -> str:
    role = as_text(entry.get("role"))
    return "assistant" if entry.get("object") == "response" else _ROLES.get(role, role)


def _when(extra: _Entry, response: _Entry) -> dict[str, Any]:
    return {"model": response.get("model"), "timestamp": extra.get("timestamp") or response.get("created")}


def _message(entry: _Entry) -> dict[str, Any] | None:
    """What of an entry was sent; None where it is none."""
    role = _speaks(entry)
    if role not in _SPOKEN:
        return None
    found = {name: entry[name] for name in _SENT if entry.get(name) is not None} | {"role": role}
    content = entry.get("content")
    if content is None and "tool_calls" not in found:
        found["content"] = as_text(entry.get("text")) or as_text(entry.get("system_prompt"))
    ids = as_list(entry.get("tool_call_ids"))
    if role == "tool" and ids and "tool_call_id" not in found:
        found["tool_call_id"] = as_text(ids[0])
    return found


def _call(
    run: _Run, number: int, agent: str, last: Said, answer: bytes, entry: _Entry, billed: Usage | None
) -> Call:
    at = seconds(entry.get("timestamp"))
    return Call(
        id=f"{run.name}:{agent}:{number}",
        conversation=f"{run.name}:{agent}" if agent else run.name,
        model=run.model or as_text(entry.get("model")),
        at=at,
        answers_at=at,
        last=last,
        answer=answer,
        thinks=any(entry.get(name) for name in _THOUGHTS),
        marks=run.marks,
        billed=billed,
    )


def _config(run: _Entry) -> dict[str, Any]:
    """The configuration of a run, which may be written as a string."""
    config = run.get("replay_config")
    if isinstance(config, str):
        try:
            config = _DOCUMENT.decode(config)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return {}
    return as_record(config)


def _model(run: _Entry) -> str:
    """The model's name, wherever a version keeps it."""
    info = as_record(run.get("info"))
    for told in (_config(run), as_record(info.get("config")), info, run):
        for inner in (as_record(told.get("agent")), told):
            model = inner.get("model")
            named = as_record(model).get("name") or as_record(model).get("model_name") or model
            if isinstance(named, str) and named:
                return named
            if as_text(inner.get("model_name")):
                return as_text(inner.get("model_name"))
    return as_text(run.get("model_name_or_path"))


def _marks(run: _Entry) -> Ttl | None:
    """For how long the marks of a run ask, where it says that it puts some, or shows them in what it sent."""
    agent = as_record(_config(run).get("agent"))
    processors = {as_text(one.get("type")) for one in _entries(agent.get("history_processors"))}
    model = as_record(as_record(as_record(run.get("info")).get("config")).get("model"))
    if "cache_control" in processors or model.get("set_cache_control"):
        return Ttl.FIVE_MINUTES
    last = next((step.get("query") for step in reversed(_entries(run.get("trajectory")))), None)
    sent = (run.get("history"), run.get("messages"), last)
    return next((found for one in sent if one and (found := marks_seen(compact(one))) is not None), None)


def _dollars(run: _Entry) -> Decimal | None:
    stats = as_record(as_record(run.get("info")).get("model_stats"))
    cost = stats.get("instance_cost")
    is_sum = isinstance(cost, int | float) and not isinstance(cost, bool) and cost > 0
    return Decimal(repr(cost)) if is_sum else None

"""A recorded session as the demo sends it: each request with all that stood before it, and when it comes."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from foveate.errors import UnreadableInput
from foveate.replay.reading import read
from foveate.replay.recordings import Call, Lacking, Recording
from foveate.sandbox.models import model_of
from foveate.values import Format
from foveate.wire.marks import without_marks

DOORS = {
    Format.ANTHROPIC: "/v1/messages",
    Format.CHAT: "/v1/chat/completions",
    Format.RESPONSES: "/v1/responses",
}
_LISTS = {Format.ANTHROPIC: "messages", Format.CHAT: "messages", Format.RESPONSES: "input"}
_MODELS = {Format.ANTHROPIC: "claude-sonnet-4-5", Format.CHAT: "gpt-5", Format.RESPONSES: "gpt-5"}
_MOST_OUTPUT_TOKENS = 1024
# Where a recording has no times: as long as an agent's step takes, and a person's next question.
STEP_SECONDS, QUESTION_SECONDS, BREAK_SECONDS, BREAK_EVERY = 20.0, 120.0, 900.0, 3
# A message is in every request after it, and is looked into once.
_once = lru_cache(maxsize=4096)
_BREAKPOINT = {"cache_control": {"type": "ephemeral"}}
# Sealed by whoever has answered, so that no other server takes them.
_SEALED = frozenset(("thinking", "redacted_thinking"))


@dataclass(frozen=True, slots=True)
class Step:
    """One request of a session, and how long after the one before it comes."""

    body: bytes
    after_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A session as it is sent: its requests, what it is of, and whether its times are its own.

    `lacks` is what the recording does not hold of them, and `is_unsealed` says that thinking was left out.
    `left_out` is how many more requests it has, and `broken_lines` how many lines could not be read.
    """

    name: str
    model: str
    format: Format
    steps: Sequence[Step]
    has_times: bool = False
    lacks: frozenset[Lacking] = frozenset()
    is_unsealed: bool = False
    left_out: int = 0
    broken_lines: int = 0


def played(path: Path, *, most_steps: int | None = None) -> Played:
    """The longest session that a recording holds, as it is sent: each request with all that stood before it.

    Raises:
        UnreadableInput: it is no recording, or none of a format that the sandbox speaks.
    """
    recordings = [one for one in read(path) if one.format in DOORS and one.calls]
    if not recordings:
        formats = ", ".join(spoken.value for spoken in DOORS)
        raise UnreadableInput(str(path), f"holds no session of a format that the sandbox speaks: {formats}")
    longest = max(recordings, key=lambda one: len(one.calls))
    every = _main(longest)
    calls = every[:most_steps]
    spoken = longest.format
    named = next((call.model for call in calls if call.model), "")
    model = named if named and model_of(spoken, named) is not None else _MODELS[spoken]
    return Played(
        name=longest.name,
        model=model,
        format=spoken,
        steps=[Step(_body(call, spoken, model), gap) for call, gap in zip(calls, _gaps(calls), strict=True)],
        has_times=all(call.at for call in calls),
        left_out=len(every) - len(calls),
        broken_lines=len(longest.broken),
        lacks=longest.lacks & {Lacking.SYSTEM, Lacking.TOOLS},
        is_unsealed=spoken is Format.ANTHROPIC
        and any(_is_sealed(said.raw) for said in calls[-1].last.history()),
    )


def with_usual_breakpoints(session: Played) -> Played:
    """The same session with the cache breakpoints that coding agents usually place.

    They mark the system prompt (or the tools, without one) and the last two messages of the user. Other
    providers than Anthropic cache unasked: their requests stay as they are.
    """
    if session.format is not Format.ANTHROPIC:
        return session
    return replace(session, steps=[replace(step, body=_with_breakpoints(step.body)) for step in session.steps])


def _with_breakpoints(body: bytes) -> bytes:
    request: dict[str, Any] = json.loads(body)
    users = [message for message in request["messages"] if message.get("role") == "user"]
    for message in users[-2:]:
        message["content"] = _marked(message.get("content"))
    if request.get("system"):
        request["system"] = _marked(request["system"])
    elif request.get("tools"):
        request["tools"][-1] |= _BREAKPOINT
    return json.dumps(request).encode()


def _marked(content: Any) -> Any:
    """A content with a breakpoint on the last of its blocks that takes one."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])
    for at in reversed(range(len(blocks))):
        if isinstance(blocks[at], dict) and str(blocks[at].get("text", "x")).strip():
            blocks[at] = {**blocks[at], **_BREAKPOINT}
            break
    return blocks


def _main(recording: Recording) -> list[Call]:
    """The calls of its longest conversation, without those of agents that it sent."""
    by_conversation: dict[str, list[Call]] = {}
    for call in recording.calls:
        by_conversation.setdefault(call.conversation, []).append(call)
    return max(by_conversation.values(), key=len)


def _gaps(calls: Sequence[Call]) -> list[float]:
    """How long after the one before it each call comes."""
    if all(call.at for call in calls):
        times = [call.at for call in calls]
        return [0.0, *(max(0.0, now - before) for before, now in pairwise(times))]
    found, questions = [], 0
    for call in calls:
        is_question = b'"tool_result"' not in call.last.raw and call.last.role == "user"
        questions += is_question
        rests = is_question and questions % BREAK_EVERY == 0
        found.append(BREAK_SECONDS if rests else QUESTION_SECONDS if is_question else STEP_SECONDS)
    return [0.0, *found[1:]]


def _body(call: Call, spoken: Format, model: str) -> bytes:
    """A request as it was sent, as far as the recording holds it; what was sealed is left out.

    So are cache breakpoints: each way of caching places its own.
    """
    around: dict[str, Any] = json.loads(call.around) if call.around else {}
    for name in ("system", "tools"):
        if isinstance(around.get(name), list):
            around[name] = [without_marks(entry) for entry in around[name]]
    around["model"] = model
    around.pop("stream", None)
    raws = [said.raw for said in call.last.history()]
    if spoken is Format.ANTHROPIC:
        around.setdefault("max_tokens", _MOST_OUTPUT_TOKENS)
        around.pop("thinking", None)
        raws = _answered([_unsealed(raw) if _is_sealed(raw) else raw for raw in raws])
        names = [] if around.get("tools") else _tools_used(raws)
        if names:  # they have to be named wherever one was used
            around["tools"] = [{"name": name, "input_schema": {"type": "object"}} for name in names]
    head = json.dumps(around).encode()
    return head[:-1] + b', "' + _LISTS[spoken].encode() + b'": [' + b",".join(raws) + b"]}"


def _is_sealed(raw: bytes) -> bool:
    return b'"thinking"' in raw or b'"redacted_thinking"' in raw


@_once
def _unsealed(raw: bytes) -> bytes:
    message = json.loads(raw)
    if not isinstance(message.get("content"), list):
        return raw
    kept = [
        block for block in message["content"] if not (isinstance(block, dict) and block.get("type") in _SEALED)
    ]
    message["content"] = kept or [{"type": "text", "text": "(thinking)"}]
    return json.dumps(message).encode()


def _answered(raws: Sequence[bytes]) -> list[bytes]:
    """Messages in which the results of tools stand first behind their calls, as the provider wants them.

    Logs have them in the order in which they came, with reminders between them, and lack those of calls that
    were broken off.
    """
    found: list[bytes] = []
    waiting: tuple[str, ...] = ()
    for raw in raws:
        if waiting and not _is_users(raw):
            found.append(_results(waiting))
            waiting = ()
        found.append(_with_results_first(raw, waiting) if waiting or b'"tool_result"' in raw else raw)
        waiting = () if _is_users(raw) else _calls(raw, "id")
    return [*found, _results(waiting)] if waiting else found


@_once
def _is_users(raw: bytes) -> bool:
    return bool(json.loads(raw).get("role") == "user")


@_once
def _with_results_first(raw: bytes, waiting: tuple[str, ...]) -> bytes:
    """A user's message that answers the calls that wait for it, all of them, and only them."""
    message = json.loads(raw)
    content = message.get("content") or []
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    results = {block["tool_use_id"]: block for block in blocks if _is_result(block, waiting)}
    lacking = [_no_result(id_) for id_ in waiting if id_ not in results]
    others = [_as_text(block) for block in blocks if not _is_result(block, waiting)]
    mended = [*results.values(), *lacking, *others]
    return raw if mended == content else json.dumps({**message, "content": mended}).encode()


def _is_result(block: object, waiting: Sequence[str]) -> bool:
    return (
        isinstance(block, dict) and block.get("type") == "tool_result" and block.get("tool_use_id") in waiting
    )


def _as_text(block: Any) -> Any:
    """A block; a result that nobody has asked for as a text, which anybody may send."""
    if not isinstance(block, dict) or block.get("type") != "tool_result":
        return block
    return {"type": "text", "text": f"(a result) {json.dumps(block.get('content'))}"}


def _results(ids: Sequence[str]) -> bytes:
    return json.dumps({"role": "user", "content": [_no_result(id_) for id_ in ids]}).encode()


def _no_result(id_: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, "content": "(broken off)", "is_error": True}


@_once
def _calls(raw: bytes, name: str) -> tuple[str, ...]:
    """What a message's calls of tools have under a name."""
    content = json.loads(raw).get("content") if b'"tool_use"' in raw else None
    return tuple(
        block[name]
        for block in (content if isinstance(content, list) else ())
        if isinstance(block, dict) and block.get("type") == "tool_use" and isinstance(block.get(name), str)
    )


def _tools_used(raws: Iterable[bytes]) -> list[str]:
    return list(dict.fromkeys(name for raw in raws for name in _calls(raw, "name")))

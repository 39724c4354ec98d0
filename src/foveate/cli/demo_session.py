"""A recorded session as the demo sends it: each request with all that stood before it, and when it comes."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from foveate.errors import UnreadableInput
from foveate.replay.reading import read
from foveate.replay.recordings import Call, Lacking, Recording
from foveate.sandbox.models import model_of
from foveate.values import Format

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
    `left_out` is how many more requests it has.
    """

    name: str
    model: str
    format: Format
    steps: Sequence[Step]
    has_times: bool = False
    lacks: frozenset[Lacking] = frozenset()
    is_unsealed: bool = False
    left_out: int = 0


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
        lacks=longest.lacks & {Lacking.SYSTEM, Lacking.TOOLS},
        is_unsealed=spoken is Format.ANTHROPIC
        and any(_is_sealed(said.raw) for said in calls[-1].last.history()),
    )


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
    """A request as it was sent, as far as the recording holds it; what was sealed is left out."""
    around: dict[str, Any] = json.loads(call.around) if call.around else {}
    around["model"] = model
    around.pop("stream", None)
    raws = [said.raw for said in call.last.history()]
    if spoken is Format.ANTHROPIC:
        around.setdefault("max_tokens", _MOST_OUTPUT_TOKENS)
        around.pop("thinking", None)
        raws = [_unsealed(raw) if _is_sealed(raw) else raw for raw in raws]
        names = [] if around.get("tools") else _tools_used(raws)
        if names:  # they have to be named wherever one was used
            around["tools"] = [{"name": name, "input_schema": {"type": "object"}} for name in names]
    head = json.dumps(around).encode()
    return head[:-1] + b', "' + _LISTS[spoken].encode() + b'": [' + b",".join(raws) + b"]}"


def _is_sealed(raw: bytes) -> bool:
    return b'"thinking"' in raw or b'"redacted_thinking"' in raw


def _unsealed(raw: bytes) -> bytes:
    message = json.loads(raw)
    if not isinstance(message.get("content"), list):
        return raw
    kept = [
        block for block in message["content"] if not (isinstance(block, dict) and block.get("type") in _SEALED)
    ]
    message["content"] = kept or [{"type": "text", "text": "(thinking)"}]
    return json.dumps(message).encode()


def _tools_used(raws: Iterable[bytes]) -> list[str]:
    found: dict[str, None] = {}
    for raw in raws:
        content = json.loads(raw).get("content") if b'"tool_use"' in raw else None
        for block in content if isinstance(content, list) else ():
            if (
                isinstance(block, dict)
                and block.get("type") == "tool_use"
                and isinstance(block.get("name"), str)
            ):
                found[block["name"]] = None
    return list(found)

"""Invented recordings with usage from the simulated cache, and breakpoints as agents place them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from foveate.model import Area, Format, Ttl, Usage
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, PromptPiece, compute_digest
from foveate.prompt_cache.rules import rules_for
from foveate.prompt_cache.simulator import SimulatedCache
from foveate.replay.recording import MissingPart, RecordedCall, RecordedMessage, Recording, RecordingSource

MODEL = "claude-sonnet-4-6"
STARTED_AT = 1_793_577_600.0
PREFIX_TOKENS = 14_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTurn:
    """A call: what is new before it, and its response.

    `gap_seconds` is the time since the previous call. With `changes_system`, the system prompt differs from
    here on, which no log shows. `steps_back` is how many of the last steps are taken back before it. With
    `reads_again`, it reads a file that other such calls have read. With `thinks`, the response begins with
    signed thinking. With `compacts`, the client has replaced all before it by a summary.
    """

    result_chars: int = 4_000
    is_question: bool = False
    gap_seconds: float = 20.0
    changes_system: bool = False
    steps_back: int = 0
    reads_again: bool = False
    thinks: bool = False
    compacts: bool = False


def make_message(before: RecordedMessage | None, role: str, content: object) -> RecordedMessage:
    raw = json.dumps({"role": role, "content": content}).encode()
    return RecordedMessage(previous=before, role=role, raw=raw, depth=before.depth + 1 if before else 0)


def make_recording(
    turns: Sequence[PlannedTurn],
    *,
    name: str = "talk",
    model: str = MODEL,
    prefix_tokens: int = PREFIX_TOKENS,
    ttl: Ttl = Ttl.FIVE_MINUTES,
    has_usage: bool = True,
) -> Recording:
    """Record a session of these calls, as Claude Code logs it."""
    rules, cache = rules_for(model), SimulatedCache()
    last = make_message(None, "user", f"{name}: find the fault, and say how you found it")
    prompts = _Prompts(model, prefix_tokens, ttl)
    at, changes, calls = STARTED_AT, 0, []
    for number, turn in enumerate(turns):
        at += turn.gap_seconds if number else 0.0
        changes += turn.changes_system
        for _ in range(2 * turn.steps_back):
            last = (
                last.previous.previous
                if last.previous is not None and last.previous.previous is not None
                else last
            )
        if turn.compacts:
            last = make_message(None, "user", f"{name}: summary of {number} calls")
        prompt = prompts.make(last, b"front %d" % changes)
        served = cache.serve(prompt, rules, at=at, response_at=at + 3)
        cache = served.cache
        answer, following = _make_answer(last, f"{name}-{number}", turn)
        calls.append(
            RecordedCall(
                id=f"{name}-{number}",
                conversation=name,
                model=model,
                at=at,
                response_at=at + 3,
                last_message=last,
                response=answer.raw,
                usage=Usage(cache=served.usage, output_tokens=count_message_tokens(answer))
                if has_usage
                else None,
            )
        )
        last = following
    return Recording(
        name=name,
        source=RecordingSource.CLAUDE_CODE,
        format=Format.ANTHROPIC,
        calls=tuple(calls),
        missing=frozenset(
            (MissingPart.SYSTEM, MissingPart.TOOLS, *(() if has_usage else (MissingPart.USAGE,)))
        ),
        size_bytes=sum(len(call.last_message.raw) for call in calls),
    )


def _make_answer(
    last: RecordedMessage, name: str, turn: PlannedTurn
) -> tuple[RecordedMessage, RecordedMessage]:
    """Return the answer, and the next message: a tool result or a question."""
    if turn.is_question:
        answer = make_message(last, "assistant", [{"type": "text", "text": f"{name}: it is done. " * 20}])
        return answer, make_message(answer, "user", f"{name}: now the next one, please")
    path = "src/shared.py" if turn.reads_again else f"src/{name}.py"
    tool_call = {"type": "tool_use", "id": f"toolu_{name}", "name": "read", "input": {"path": path}}
    thinking = [{"type": "thinking", "thinking": f"What is in {name}?", "signature": "c2lnbmVk"}]
    blocks = [*(thinking if turn.thinks else ()), {"type": "text", "text": f"I read {name}."}, tool_call]
    answer = make_message(last, "assistant", blocks)
    text = (f"{name} " + "the quick brown fox jumps over the lazy dog; " * 200)[: turn.result_chars]
    result = {"type": "tool_result", "tool_use_id": f"toolu_{name}", "content": text}
    return answer, make_message(answer, "user", [result])


def count_message_tokens(message: RecordedMessage) -> int:
    """Return the true size of a message, which no counter predicts."""
    return 11 + len(message.raw) * 10 // 37


@dataclass(frozen=True, slots=True)
class _MessagePieces:
    message: RecordedMessage
    is_question: bool
    pieces: tuple[PromptPiece, ...]


class _Prompts:
    """Prompts of one session. Each message is read once, since the next prompts contain it again."""

    def __init__(self, model: str, prefix_tokens: int, ttl: Ttl) -> None:
        self._model = model
        self._prefix_tokens = prefix_tokens
        self._ttl = ttl
        self._drops_thinking = rules_for(model).drops_thinking
        self._read: dict[int, _MessagePieces] = {}

    def make(self, last: RecordedMessage, prefix: bytes) -> CachedPrompt:
        """Make the prompt of a request that ends with this message."""
        system = PromptPiece(
            digest=compute_digest(prefix),
            tokens=self._prefix_tokens,
            kind="text",
            area=Area.SYSTEM,
            breakpoint_ttl=self._ttl,
            accepts_breakpoint=True,
        )
        pieces = [system]
        breakpoint_indexes: dict[str, int] = {}
        history = [self._pieces(message) for message in last.history()]
        turn_start = max(number for number, read in enumerate(history) if read.is_question)
        for number, read in enumerate(history):
            drops_thinking = self._drops_thinking and number < turn_start
            pieces += [piece for piece in read.pieces if not (drops_thinking and piece.kind == "thinking")]
            breakpoint_indexes[read.message.role] = len(pieces) - 1
        for index in breakpoint_indexes.values():
            pieces[index] = replace(pieces[index], breakpoint_ttl=self._ttl)
        return CachedPrompt(model=self._model, pieces=tuple(pieces))

    def _pieces(self, message: RecordedMessage) -> _MessagePieces:
        read = self._read.get(id(message))
        if read is None:
            read = self._read[id(message)] = _read_message(message)
        return read


def _read_message(message: RecordedMessage) -> _MessagePieces:
    content = json.loads(message.raw)["content"]
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [json.dumps(block) for block in blocks]
    remaining_tokens, remaining_chars = count_message_tokens(message), sum(map(len, texts))
    pieces = []
    for block, text in zip(blocks, texts, strict=True):
        share = remaining_tokens * len(text) // remaining_chars
        remaining_tokens, remaining_chars = remaining_tokens - share, remaining_chars - len(text)
        digest = compute_digest(text.encode() + b"%d" % message.depth)
        pieces.append(PromptPiece(digest=digest, tokens=share, kind=block["type"], area=Area.MESSAGES))
    return _MessagePieces(message, message.role == "user" and isinstance(content, str), tuple(pieces))

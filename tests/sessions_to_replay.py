"""Invented sessions with bills: each call is served by the simulated cache, with marks as agents put them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from foveate.cache.prompts import CachedPrompt, Piece, digest
from foveate.cache.rules import rules_for
from foveate.cache.simulate import Cache
from foveate.replay.recordings import Call, Lacking, Recording, Said, Source
from foveate.values import Area, Format, Ttl, Usage

MODEL = "claude-sonnet-4-6"
BEGAN_AT = 1_793_577_600.0
FRONT_TOKENS = 14_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One call: what is new before it, and what comes back.

    `gap_seconds` is how long after the last one it is sent. `changes`: the system prompt is another one from
    here on, which no log shows. `back` is how many of the last steps are taken back before it.
    """

    result_chars: int = 4_000
    asks: bool = False
    gap_seconds: float = 20.0
    changes: bool = False
    back: int = 0


def said(before: Said | None, role: str, content: object) -> Said:
    raw = json.dumps({"role": role, "content": content}).encode()
    return Said(before=before, role=role, raw=raw, depth=before.depth + 1 if before else 0)


def recorded(
    turns: Sequence[Turn],
    *,
    name: str = "talk",
    model: str = MODEL,
    front_tokens: int = FRONT_TOKENS,
    ttl: Ttl = Ttl.FIVE_MINUTES,
    has_bills: bool = True,
) -> Recording:
    """A session of these calls, as Claude Code would leave it."""
    rules, cache = rules_for(model), Cache()
    last = said(None, "user", f"{name}: find the fault, and say how you found it")
    at, changes, calls = BEGAN_AT, 0, []
    for number, turn in enumerate(turns):
        at += turn.gap_seconds if number else 0.0
        changes += turn.changes
        for _ in range(2 * turn.back):
            last = last.before.before if last.before is not None and last.before.before is not None else last
        prompt = _prompt(last, model, front_tokens, b"front %d" % changes, ttl)
        served = cache.serve(prompt, rules, at=at, answers_at=at + 3)
        cache = served.cache
        answer, following = _answered(last, f"{name}-{number}", turn)
        calls.append(
            Call(
                id=f"{name}-{number}",
                conversation=name,
                model=model,
                at=at,
                answers_at=at + 3,
                last=last,
                answer=answer.raw,
                billed=Usage(cache=served.usage, output_tokens=tokens_of(answer)) if has_bills else None,
            )
        )
        last = following
    return Recording(
        name=name,
        source=Source.CLAUDE_CODE,
        format=Format.ANTHROPIC,
        calls=tuple(calls),
        lacks=frozenset((Lacking.SYSTEM, Lacking.TOOLS, *(() if has_bills else (Lacking.BILL,)))),
        size_bytes=sum(len(call.last.raw) for call in calls),
    )


def _answered(last: Said, name: str, turn: Turn) -> tuple[Said, Said]:
    """What the model says, and what it is sent next: a result, or a question of the user's."""
    if turn.asks:
        answer = said(last, "assistant", [{"type": "text", "text": f"{name}: it is done. " * 20}])
        return answer, said(answer, "user", f"{name}: now the next one, please")
    called = {"type": "tool_use", "id": f"toolu_{name}", "name": "read", "input": {"path": f"src/{name}.py"}}
    answer = said(last, "assistant", [{"type": "text", "text": f"I read {name}."}, called])
    text = (f"{name} " + "the quick brown fox jumps over the lazy dog; " * 200)[: turn.result_chars]
    result = {"type": "tool_result", "tool_use_id": f"toolu_{name}", "content": text}
    return answer, said(answer, "user", [result])


def tokens_of(message: Said) -> int:
    """What a message really weighs: something that no counter says."""
    return 11 + len(message.raw) * 10 // 37


def _prompt(last: Said, model: str, front_tokens: int, front: bytes, ttl: Ttl) -> CachedPrompt:
    system = Piece(
        digest=digest(front), tokens=front_tokens, kind="text", area=Area.SYSTEM, mark=ttl, markable=True
    )
    pieces = [system]
    marked: dict[str, int] = {}
    for message in last.history():
        content = json.loads(message.raw)["content"]
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        sizes = [len(json.dumps(block)) for block in blocks]
        whole, left = tokens_of(message), sum(sizes)
        for block, size in zip(blocks, sizes, strict=True):
            share = whole * size // left
            whole, left = whole - share, left - size
            told = digest(json.dumps(block).encode() + b"%d" % message.depth)
            pieces.append(Piece(digest=told, tokens=share, kind=block["type"], area=Area.MESSAGES))
        marked[message.role] = len(pieces) - 1
    for at in marked.values():
        pieces[at] = replace(pieces[at], mark=ttl)
    return CachedPrompt(model=model, pieces=tuple(pieces))

"""The cache simulator beside recorded bills: how often reads and writes are those billed, and why one missed.

Each request of a log is served by the simulator in the order of time, sub-agents among them. It is told what the
log shows of the request (its messages, its model, when it was sent), and the sum of its input tokens, never how
a bill divides them. Only of the first request of a sequence, which is not scored, the whole bill is used: what it
read is the part of the system prompt that was kept from before. Tokens of blocks come from the growth of the
sums, divided among the new blocks as the offline counter weighs them. Not in the log, and so assumed: where the
agents put their marks (the ends of the system prompt, the last message of the model, the last of the user), and
that a turn is one with thinking if one of its answers shows some.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import BadData, Cell, Report
from benchmarks.recorded import DATA
from benchmarks.session_logs import LoggedBlock, LoggedRequest, read_logs
from foveate.cache.prompts import CachedPrompt, Piece, digest, prefixes
from foveate.cache.rules import Rules, rules_for
from foveate.cache.simulate import Cache
from foveate.tokens.claude import claude_ruler
from foveate.values import Area, CacheUsage, Ttl

# A read or a write agrees when it is off by no more than this share of the request's input tokens.
TOLERANCE = 0.02
_MARK = Ttl.FIVE_MINUTES
_BLOCK_TOKENS = 8
_IMAGE_TOKENS = 1_500
_UNSEEN = "nothing that the log shows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A request, what was billed for it, and what was to be expected; `cause` where the peer's read is off."""

    request: LoggedRequest
    ours: CacheUsage
    peer: CacheUsage
    cause: str

    @property
    def is_ours(self) -> bool:
        """Whether our reads and writes are those billed."""
        return _agree(self.ours, self.request.billed)

    @property
    def is_peers(self) -> bool:
        """Whether the peer's are."""
        return _agree(self.peer, self.request.billed)


@dataclass(slots=True)
class _Sequence:
    """What is known of a conversation: its system prompt, the tokens of its blocks, its last request."""

    system: tuple[Piece, ...]
    tokens: dict[bytes, int] = field(default_factory=dict)
    prompt: CachedPrompt | None = None
    request: LoggedRequest | None = None


def run(data: Path | None) -> Report:
    """`within_2pct` is the share of scored requests on which reads and writes both agree with the bill."""
    logs = read_logs(_logs(data or DATA / "sessions"))
    scored = list(_predictions(logs.requests))
    if not scored:
        raise BadData("no log shows two requests in a row")
    hard = [prediction for prediction in scored if prediction.cause]
    named = [prediction for prediction in hard if prediction.cause != _UNSEEN]
    seen = [prediction for prediction in scored if prediction.cause != _UNSEEN]
    return Report(
        figures={
            "requests": len(logs.requests),
            "scored": len(scored),
            "within_2pct": _share([prediction.is_ours for prediction in scored]),
            "read_within_2pct": _share([_near(p.ours.read, p.request) for p in scored]),
            "hard": len(hard),
            "hard_within_2pct": _share([prediction.is_ours for prediction in hard]),
            "hard_with_a_cause": len(named),
            "within_2pct_where_the_log_shows_why": _share([prediction.is_ours for prediction in seen]),
            "broken_lines": logs.broken_lines,
        },
        peers={
            "last read + last write": {
                "within_2pct": _share([prediction.is_peers for prediction in scored]),
                "read_within_2pct": _share([_near(p.peer.read, p.request) for p in scored]),
                "hard_within_2pct": 0.0,
            }
        },
        rows=[*_rows_of_logs(scored), *_rows_of_causes(hard), *_rows_of_misses(scored)],
    )


def _logs(where: Path) -> list[Path]:
    if where.is_file():
        return [where]
    found = sorted(path for path in where.rglob("*.jsonl*") if path.suffix in (".jsonl", ".gz"))
    if not found:
        raise BadData(f"there are no logs (*.jsonl, *.jsonl.gz) under {where}")
    return found


def _predictions(requests: Sequence[LoggedRequest]) -> Iterator[Prediction]:
    cache = Cache()
    sequences: dict[tuple[str, str], _Sequence] = {}
    for request in requests:
        rules = rules_for(request.model)
        key = request.log, request.sequence
        sequence = sequences.get(key)
        is_first = sequence is None
        if sequence is None:
            sequence = sequences[key] = _Sequence(_system(request))
            cache = _warmed(cache, request, sequence, rules)
        prompt = _prompt(request, sequence, rules)
        served = cache.serve(prompt, rules, at=request.at, answers_at=request.answers_at)
        cache = served.cache
        if not is_first and sequence.request is not None and sequence.prompt is not None:
            last = sequence.request.billed
            total = request.billed.input_tokens
            read = min(total, last.read + last.written_5m + last.written_1h)
            cause = "" if _near(read, request) else _cause(sequence, request, prompt, rules)
            yield Prediction(
                request=request,
                ours=served.usage,
                peer=CacheUsage(read=read, written_5m=total - read),
                cause=cause,
            )
        sequence.prompt, sequence.request = prompt, request


def _warmed(cache: Cache, request: LoggedRequest, sequence: _Sequence, rules: Rules) -> Cache:
    """The cache with what the first bill of a sequence shows to have been there before."""
    if not request.billed.read:
        return cache
    known = CachedPrompt(model=request.model, pieces=sequence.system[:1])
    return cache.serve(known, rules, at=request.at).cache


def _system(first: LoggedRequest) -> tuple[Piece, ...]:
    """The system prompt and tools, which are what the first request has beside its messages."""
    shown = sum(_weight(first.model, block) for message in first.messages for block in message.blocks)
    hidden = max(0, first.billed.input_tokens - round(shown))
    kept = min(first.billed.read, hidden)
    sizes = [kept, hidden - kept] if kept else [hidden]
    told = (first.client, first.log, first.sequence)
    return tuple(
        Piece(
            digest=digest(repr((told, part)).encode()), tokens=tokens, kind="text", area=Area.SYSTEM, mark=_MARK
        )
        for part, tokens in enumerate(sizes)
    )


def _prompt(request: LoggedRequest, sequence: _Sequence, rules: Rules) -> CachedPrompt:
    """The request as the provider's cache sees it, its tokens adding up to those billed."""
    opened = max((at for at, message in enumerate(request.messages) if message.opens_turn), default=-1)
    blocks = [
        (at, block)
        for at, message in enumerate(request.messages)
        for block in message.blocks
        if not (rules.drops_thinking and at < opened and block.kind in ("thinking", "redacted_thinking"))
    ]
    keys = [digest(block.said.encode()) for _, block in blocks]
    _measure(request, sequence, dict(zip(keys, (block for _, block in blocks), strict=True)), keys)
    marked = _marked(request, blocks)
    pieces = tuple(
        Piece(
            digest=key,
            tokens=sequence.tokens[key],
            kind=block.kind,
            area=Area.MESSAGES,
            mark=_MARK if index in marked else None,
        )
        for index, (key, (_, block)) in enumerate(zip(keys, blocks, strict=True))
    )
    settings = {Area.MESSAGES: b"thinking" if request.thinks else b""}
    return CachedPrompt(model=request.model, pieces=sequence.system + pieces, settings=settings)


def _measure(
    request: LoggedRequest, sequence: _Sequence, blocks: Mapping[bytes, LoggedBlock], keys: Sequence[bytes]
) -> None:
    """Shares what the sum has grown by among the blocks that are new."""
    known = sum(piece.tokens for piece in sequence.system)
    known += sum(sequence.tokens[key] for key in keys if key in sequence.tokens)
    new = {key: _weight(request.model, blocks[key]) for key in keys if key not in sequence.tokens}
    grown = max(0, request.billed.input_tokens - known)
    weights = sum(new[key] for key in keys if key in new)
    for key, weight in new.items():
        sequence.tokens[key] = round(grown * weight / weights)


def _weight(model: str, block: LoggedBlock) -> float:
    if block.kind == "image":
        return _IMAGE_TOKENS
    return _BLOCK_TOKENS + claude_ruler(model).lengths([block.text])[0].tokens


def _marked(request: LoggedRequest, blocks: Sequence[tuple[int, LoggedBlock]]) -> set[int]:
    """The last block that can be marked of the model's last message and of the user's."""
    found = {}
    for index, (at, block) in enumerate(blocks):
        if "thinking" not in block.kind and block.text.strip():
            found[request.messages[at].role] = index
    return set(found.values())


def _cause(sequence: _Sequence, request: LoggedRequest, prompt: CachedPrompt, rules: Rules) -> str:
    """Why less was to be read than the last request of the sequence left behind, by what the log shows."""
    before, last = sequence.prompt, sequence.request
    assert before is not None
    assert last is not None
    if last.model != request.model:
        return "another model"
    if request.at - last.at > rules.ttls[0].seconds:
        return "its time ran out"
    if before.settings != prompt.settings:
        return "thinking switched on or off"
    same = 0
    for one, other in zip(prefixes(before), prefixes(prompt), strict=False):
        if one != other:
            break
        same += 1
    if same == len(before.pieces):
        return _UNSEEN
    if before.pieces[same].kind in ("thinking", "redacted_thinking"):
        return "earlier thinking left out"
    return "compaction" if same <= len(sequence.system) else "edited history"


def _agree(expected: CacheUsage, billed: CacheUsage) -> bool:
    allowed = TOLERANCE * billed.input_tokens
    written = expected.written_5m + expected.written_1h - billed.written_5m - billed.written_1h
    return abs(expected.read - billed.read) <= allowed and abs(written) <= allowed


def _near(read: int, request: LoggedRequest) -> bool:
    return abs(read - request.billed.read) <= TOLERANCE * request.billed.input_tokens


def _share(agreed: Sequence[bool]) -> float:
    return sum(agreed) / len(agreed) if agreed else 1.0


def _rows_of_logs(scored: Sequence[Prediction]) -> Iterator[Mapping[str, Cell]]:
    for log in dict.fromkeys(prediction.request.log for prediction in scored):
        own = [prediction for prediction in scored if prediction.request.log == log]
        yield {
            "of": "log",
            "name": log,
            "requests": len(own),
            "ours": _share([prediction.is_ours for prediction in own]),
            "peer": _share([prediction.is_peers for prediction in own]),
        }


def _rows_of_causes(hard: Sequence[Prediction]) -> Iterator[Mapping[str, Cell]]:
    for cause, count in Counter(prediction.cause for prediction in hard).most_common():
        own = [prediction for prediction in hard if prediction.cause == cause]
        yield {
            "of": "cause",
            "name": cause,
            "requests": count,
            "ours": _share([prediction.is_ours for prediction in own]),
            "peer": _share([prediction.is_peers for prediction in own]),
        }


def _rows_of_misses(scored: Sequence[Prediction]) -> Iterator[Mapping[str, Cell]]:
    for prediction in scored:
        billed, ours = prediction.request.billed, prediction.ours
        if not prediction.is_ours or prediction.cause:
            yield {
                "of": "request",
                "name": prediction.request.log,
                "cause": prediction.cause or "-",
                "agrees": prediction.is_ours,
                "billed_read": billed.read,
                "billed_written": billed.written_5m + billed.written_1h,
                "read": ours.read,
                "written": ours.written_5m + ours.written_1h,
            }

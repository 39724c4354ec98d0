"""The cache simulator beside recorded bills: how often reads and writes are those billed, and why one missed.

Each request of a log is served by the simulator in the order of time, sub-agents among them. It is told what
the log shows of the request (its messages, its model, when it was sent), and the sum of its input tokens, never
how its bill or a later one divides them. The first request of a sequence is not scored: what it reads is what
of the system prompt was kept from before. Tokens of blocks come from the growth of the sums, divided among the
new blocks as the offline counter weighs them. What the log does not show of the first message is told from the
system prompt once a bill has read that alone; until then the agent's last known one stands for it.

Not in the log, and so assumed: where the agents put their marks (the ends of the system prompt, the last
message of the model, the last of the user), and that a turn is one with thinking if one of its answers shows
some.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from pathlib import Path

from benchmarks.harness import BadData, Cell, Report
from benchmarks.logged_requests import LoggedBlock, LoggedRequest, read_logs
from benchmarks.recorded import DATA
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
# Of 2025, when most logs were made, the documentation counts blocks; runs as one position came later.
_RUNS_ARE_ONE_FROM = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
# Misses of which a log has no trace; by what was read, the bill tells from where on the prompt was another.
_UNSEEN_START = "not in the log: all was another, system prompt and tools too"
_UNSEEN_LATER = "not in the log: what comes after the system prompt was another"
_UNSEEN = (_UNSEEN_START, _UNSEEN_LATER)


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
    """`within_2pct` is the share of scored requests whose read and written tokens both agree with the bill.

    Hard are those of which the peer's read is off. `where_the_log_shows_why` leaves out the hard ones of which
    the log has no trace, so it is chosen after the fact.
    """
    logs = read_logs(_logs(data or DATA / "sessions"))
    scored = list(_predictions(logs.requests))
    if not scored:
        raise BadData("no log shows two requests in a row")
    hard = [prediction for prediction in scored if prediction.cause]
    named = [prediction for prediction in hard if prediction.cause not in _UNSEEN]
    seen = [prediction for prediction in scored if prediction.cause not in _UNSEEN]
    return Report(
        figures={
            "requests": len(logs.requests),
            "scored": len(scored),
            "within_2pct": _share([prediction.is_ours for prediction in scored]),
            "read_within_2pct": _share([_near(p.ours.read, p.request) for p in scored]),
            "hard": len(hard),
            "hard_within_2pct": _share([prediction.is_ours for prediction in hard]),
            "hard_with_a_cause": len(named),
            "where_the_log_shows_why": _share([prediction.is_ours for prediction in seen]),
            "broken_lines": logs.broken_lines,
        },
        peers={
            "last read + last write": {
                "within_2pct": _share([prediction.is_peers for prediction in scored]),
                "read_within_2pct": _share([_near(p.peer.read, p.request) for p in scored]),
                "hard_within_2pct": 0.0,
            }
        },
        rows=[
            *_shares("agent", scored, lambda prediction: _agent(prediction.request)),
            *_shares("log", scored, lambda prediction: prediction.request.log),
            *_shares("cause", hard, lambda prediction: prediction.cause),
            *_misses(scored),
        ],
    )


def _logs(where: Path) -> list[Path]:
    if where.is_file():
        return [where]
    where = where / "sessions" if (where / "sessions").is_dir() else where
    found = sorted(path for path in where.rglob("*.jsonl*") if path.suffix in (".jsonl", ".gz"))
    if not found:
        raise BadData(f"there are no logs (*.jsonl, *.jsonl.gz) under {where}")
    return found


def _predictions(requests: Sequence[LoggedRequest]) -> Iterator[Prediction]:
    cache = Cache()
    sequences: dict[tuple[str, str], _Sequence] = {}
    system_tokens: dict[str, int] = {}  # by agent, as a bill last showed it
    for request in requests:
        rules = _rules(request)
        key = request.log, request.sequence
        agent = _agent(request)
        if key not in sequences:
            system = _system(request, request.billed.read or system_tokens.get(agent, 0))
            sequences[key] = _Sequence(system)
            cache = _warmed(cache, request, system, rules)
        sequence = sequences[key]
        before, prompt = cache, _prompt(request, sequence, rules)
        served = cache.serve(prompt, rules, at=request.at, answers_at=request.answers_at)
        if sequence.prompt is not None and sequence.request is not None:
            peer = _peer(sequence.request, request)
            cause = "" if _near(peer.read, request) else _cause(sequence, request, prompt, rules)
            yield Prediction(request=request, ours=served.usage, peer=peer, cause=cause)
        if 0 < request.billed.read < _ends(sequence.system)[-1]:
            system_tokens[agent] = request.billed.read
            sequence.system = _divided(sequence.system, request.billed.read)
            prompt = _prompt(request, sequence, rules)
            served = before.serve(prompt, rules, at=request.at, answers_at=request.answers_at)
        cache, sequence.prompt, sequence.request = served.cache, prompt, request


def _agent(request: LoggedRequest) -> str:
    """Whose system prompt a request has: that of another version is about as long, a sub-agent's is not."""
    return request.client.split()[0] + (", sub-agent" if request.is_agent else "")


def _peer(last: LoggedRequest, request: LoggedRequest) -> CacheUsage:
    total = request.billed.input_tokens
    read = min(total, last.billed.input_tokens - last.billed.uncached)
    return CacheUsage(read=read, written_5m=total - read)


def _rules(request: LoggedRequest) -> Rules:
    rules = rules_for(request.model)
    return replace(rules, runs_are_one_position=False) if request.at < _RUNS_ARE_ONE_FROM else rules


def _warmed(cache: Cache, first: LoggedRequest, system: tuple[Piece, ...], rules: Rules) -> Cache:
    """The cache with what the first bill of a sequence shows to have been there before."""
    if not first.billed.read:
        return cache
    return cache.serve(CachedPrompt(model=first.model, pieces=system[:1]), rules, at=first.at).cache


def _system(first: LoggedRequest, known_tokens: int) -> tuple[Piece, ...]:
    """What the first request has beside the messages that the log shows."""
    shown = sum(_weight(first.model, block) for message in first.messages for block in message.blocks)
    hidden = max(0, first.billed.input_tokens - round(shown))
    told = digest(repr((first.client, first.log, first.sequence)).encode())
    whole = Piece(digest=told, tokens=hidden, kind="text", area=Area.SYSTEM, mark=_MARK)
    return _divided((whole,), known_tokens)


def _divided(hidden: tuple[Piece, ...], at_tokens: int) -> tuple[Piece, ...]:
    """The same, with an end of the system prompt after so many tokens.

    What lies behind the last such end is the part of the first message that the log does not show.
    """
    ends = {end for end, piece in zip(_ends(hidden), hidden, strict=True) if piece.mark}
    whole = sum(piece.tokens for piece in hidden)
    if not 0 < at_tokens < whole:
        return hidden
    ends = (ends - {whole}) | {at_tokens}
    cuts = [0, *sorted(ends), whole]
    return tuple(
        replace(
            hidden[0],
            digest=digest(hidden[0].digest + bytes([part])),
            tokens=end - start,
            area=Area.SYSTEM if end in ends else Area.MESSAGES,
            mark=_MARK if end in ends else None,
        )
        for part, (start, end) in enumerate(pairwise(cuts))
    )


def _ends(pieces: Sequence[Piece]) -> list[int]:
    return list(accumulate(piece.tokens for piece in pieces))


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
    marked = _marked(request, [block for _, block in blocks])
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


def _marked(request: LoggedRequest, blocks: Sequence[LoggedBlock]) -> set[int]:
    """Of the model's last message and of the user's, the block logged last, or the last that takes a mark."""
    found = set()
    for role in ("assistant", "user"):
        message = next((one for one in reversed(request.messages) if one.role == role), None)
        if message is None:
            continue
        latest = [message.blocks[message.latest], *reversed(message.blocks)]
        wanted = next((one for one in latest if "thinking" not in one.kind and one.said), None)
        found |= {at for at, block in enumerate(blocks) if block is wanted}
    return found


def _cause(sequence: _Sequence, request: LoggedRequest, prompt: CachedPrompt, rules: Rules) -> str:
    """Why less was to be read than the last request of the sequence left behind, by what the log shows."""
    before, last = sequence.prompt, sequence.request
    assert before is not None
    assert last is not None
    if last.model != request.model:
        return "another model"
    if rules.ttls and request.at - last.at > rules.ttls[0].seconds:
        return "its time ran out"
    if before.settings != prompt.settings:
        return "thinking switched on or off"
    same = 0
    for one, other in zip(prefixes(before), prefixes(prompt), strict=False):
        if one != other:
            break
        same += 1
    if same == len(before.pieces):
        return _UNSEEN_LATER if request.billed.read else _UNSEEN_START
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


def _shares(
    of: str, scored: Sequence[Prediction], name: Callable[[Prediction], str]
) -> Iterator[Mapping[str, Cell]]:
    groups: dict[str, list[Prediction]] = {}
    for prediction in scored:
        groups.setdefault(name(prediction), []).append(prediction)
    for group, own in groups.items():
        yield {
            "of": of,
            "name": group,
            "requests": len(own),
            "ours": _share([prediction.is_ours for prediction in own]),
            "peer": _share([prediction.is_peers for prediction in own]),
        }


def _misses(scored: Sequence[Prediction]) -> Iterator[Mapping[str, Cell]]:
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

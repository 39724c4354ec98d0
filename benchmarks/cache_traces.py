"""Recorded agent sessions as the prompts that a provider's cache received.

A trace contains no text, only ids of blocks of 64 tokens, so message boundaries are inferred: a request's last
message ends where the next request continues, the response has the length that the usage reports, and the trace
gives the length of tools and system prompt.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import structs

from benchmarks.harness import BadData
from foveate.model import Area, Place
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, PromptPiece, compute_digest

Runs = Sequence[Sequence[int]]

# A request ends with a few tokens that prompt the response, belong to no message, and are not repeated by the
# next request: at most this many blocks. If more is not repeated, but no more than a short text, a block of
# the last message starts there, which can have a breakpoint like any other.
_ASKING_BLOCKS = 1
_LAST_BLOCKS = 4
_ANSWER = "tool_use"
BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """One request of a sequence: its prompt, its time, and the ids of its blocks.

    `answer` is the response as the next request contains it.
    """

    at: float
    prompt: CachedPrompt
    runs: Runs
    answer: PromptPiece

    @property
    def tokens(self) -> int:
        """Token count of the whole prompt."""
        return self.prompt.tokens


Line = tuple[TracedRequest, ...]


def read_lines(path: Path) -> list[Line]:
    """Return the requests of each session and each of its models, which can share cache entries."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            traces = [json.loads(line) for line in file if line.strip()]
        if any(trace["block_size"] != BLOCK_TOKENS for trace in traces):
            raise BadData(f"{path}: traces in blocks of other than {BLOCK_TOKENS} tokens")
        lines = [line for trace in traces for session in _sessions(trace) for line in _lines(session)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadData(f"{path}: no traces that can be read ({error})") from None
    if not lines:
        raise BadData(f"{path}: no requests in it")
    return lines


def _sessions(trace: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the trace itself, and every sub-agent in it."""
    yield trace
    for request in trace["requests"]:
        if "requests" in request:
            yield from _sessions(request)


def _lines(session: Mapping[str, Any]) -> Iterator[Line]:
    by_model = defaultdict(list)
    for request in session["requests"]:
        if "requests" not in request and request["hash_runs"]:
            by_model[request["model"]].append(request)
    for model, requests in by_model.items():
        yield tuple(_add_answers(list(_make_requests(session, model, requests))))


def _add_answers(line: Sequence[TracedRequest]) -> Iterator[TracedRequest]:
    """Add to each request its response as the next one contains it, if that can be identified."""
    for request, next_request in pairwise(line):
        going_on = request.prompt.pieces[:-1]
        next_runs = next_request.prompt.pieces[len(going_on) : len(going_on) + 1]
        goes_on = next_request.prompt.pieces[: len(going_on)] == going_on
        yield (
            replace(request, answer=next_runs[0])
            if goes_on and next_runs and next_runs[0].kind == _ANSWER
            else request
        )
    yield line[-1]


def _make_requests(
    session: Mapping[str, Any], model: str, requests: Sequence[Mapping[str, Any]]
) -> Iterator[TracedRequest]:
    size = BLOCK_TOKENS
    tools = session.get("tool_tokens", 0) // size
    borders = (tools, tools + session.get("system_tokens", 0) // size)
    shared = [common_blocks(a["hash_runs"], b["hash_runs"]) for a, b in pairwise(requests)]
    cut = _PieceCutter(size, borders)
    before = 0
    for number, request in enumerate(requests):
        length = count_blocks(request["hash_runs"])
        after = shared[number] if number < len(shared) else 0
        answer = requests[number - 1]["out"] if number else 0
        pieces = cut.advance(request["hash_runs"], before, after, length, request["in"], answer)
        yield TracedRequest(
            at=request["t"],
            prompt=CachedPrompt(model=model, pieces=pieces),
            runs=request["hash_runs"],
            answer=PromptPiece(
                digest=compute_digest(b"answer %d" % number),
                tokens=max(1, request["out"]),
                kind="text",
                area=Area.MESSAGES,
                place=Place(Area.MESSAGES, len(pieces) + 1, 0),
            ),
        )
        before = after


class _PieceCutter:
    """Cuts the prompts of a sequence into pieces, and retains pieces that continue across requests."""

    def __init__(self, block_tokens: int, borders: tuple[int, int]) -> None:
        self._block_tokens = block_tokens
        self._borders = borders
        self._pieces: list[PromptPiece] = []
        self._ends: list[int] = []

    def advance(
        self, runs: Runs, repeated: int, repeats: int, length: int, tokens: int, answer_tokens: int
    ) -> tuple[PromptPiece, ...]:
        """Return the pieces of the next request: `repeated` blocks are of the last one, `repeats` go on."""
        goes_on = bool(self._ends) and repeated == self._ends[-1]
        while self._ends and self._ends[-1] > repeated:
            self._ends.pop()
            self._pieces.pop()
        message_blocks = length - _ASKING_BLOCKS if repeats == length - _ASKING_BLOCKS else length
        answer = repeated + -(-answer_tokens // self._block_tokens) if goes_on else 0
        cuts = {*self._borders, repeated, answer, message_blocks}
        if length - _LAST_BLOCKS <= repeats:
            cuts.add(repeats)
        for to in sorted(cut for cut in cuts if (self._ends or [0])[-1] < cut <= message_blocks):
            start = (self._ends or [0])[-1]
            kind = "text" if to in self._borders else _ANSWER if to == answer else "tool_result"
            self._pieces.append(self._piece(runs, start, to, kind))
            self._ends.append(to)
        rest = max(0, tokens - message_blocks * self._block_tokens)
        uncached_tail = structs.replace(
            self._piece(runs, message_blocks, length, "asks"), tokens=rest, accepts_breakpoint=False
        )
        return (*self._pieces, uncached_tail)

    def _piece(self, runs: Runs, start: int, end: int, kind: str) -> PromptPiece:
        tools, system = self._borders
        area = Area.TOOLS if end <= tools else Area.SYSTEM if end <= system else Area.MESSAGES
        return PromptPiece(
            digest=compute_digest(json.dumps(slice_runs(runs, start, end)).encode()),
            tokens=(end - start) * self._block_tokens,
            kind="tool" if area is Area.TOOLS else kind,
            area=area,
            place=Place(area, len(self._pieces), 0 if area is Area.MESSAGES else None),
        )


def count_blocks(runs: Runs) -> int:
    """Count the blocks in runs of ids, each from its first id to its last."""
    return sum(last - first + 1 for first, last in runs)


def slice_runs(runs: Runs, start: int, end: int) -> list[list[int]]:
    """Return the runs of the blocks from `start` up to, but excluding, `end`."""
    found: list[list[int]] = []
    passed = 0
    for first, last in runs:
        length = last - first + 1
        begins, ends = max(start - passed, 0), min(end - passed, length)
        if begins < ends:
            found.append([first + begins, first + ends - 1])
        passed += length
    return found


def common_blocks(first_runs: Runs, second_runs: Runs) -> int:
    """Return the length of the common prefix of two prompts, in blocks."""
    shared = 0
    left, right = iter(first_runs), iter(second_runs)
    a, b = list(next(left, ())), list(next(right, ()))
    while a and b and a[0] == b[0]:
        length = min(a[1] - a[0], b[1] - b[0]) + 1
        shared += length
        a, b = [a[0] + length, a[1]], [b[0] + length, b[1]]
        a = a if a[0] <= a[1] else list(next(left, ()))
        b = b if b[0] <= b[1] else list(next(right, ()))
    return shared

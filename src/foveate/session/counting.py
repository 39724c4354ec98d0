"""A session's requests counted, each turn of them once by each counter.

What a counter says of a turn is kept raw, under the turn's hash: calibration is applied by who reads it. It is
taken only for a message that is spelled as it was when it was counted, so that a recount gives the same number.
Of requests that this process has counted itself the sum is remembered too, so that nothing is read for them.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

import msgspec
from msgspec.structs import astuple, replace

from foveate import wire
from foveate.errors import MalformedRequest
from foveate.session.chain import HASH_BYTES, Chain
from foveate.session.turns import Turns
from foveate.tokens import RequestCount, RequestCounter
from foveate.tokens.caches import register
from foveate.tokens.courtesy import courtesy
from foveate.tokens.memo import Memo, digest
from foveate.tokens.rendering import Measured
from foveate.tokens.tally import EMPTY, Tally
from foveate.values import (
    Document,
    Format,
    Image,
    Message,
    Opaque,
    Request,
    Source,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from foveate.wire.body import TOO_DEEP

Result = TypeVar("Result")

# A few long sessions, for requests whose system messages are others each time.
_KEPT_TURNS = 32 * 1024
_KEPT_TALLIES = 4 * 1024
_KEPT_COUNTERS = 64
# How far back a request that was counted before is looked for, where it is not told.
_LOOKBACK = 16
# Messages that are longer are counted beside the event loop.
_LONG_BYTES = 8 * 1024

# What is kept was counted by these rules: raised with each change by which a message comes to something else.
RULES = 1

_ROW = msgspec.msgpack.Decoder(tuple[bytes, Measured])
_NOTHING = Measured()

_RULE = "Never push; the 42 tests in src/näve.py take 3.5 s.\n"
_CODE = 'def f(x: int) -> str:\n    return f"{x:>8}" if x else "名前を入力"\n'
# Something of all that a message can hold, by which two counters of one model are told apart.
_SAMPLE = (
    Message(
        role="user",
        parts=(
            Text(_RULE),
            Image(source=Source.INLINE, width=640, height=480),
            Document(source=Source.INLINE, media_type="text/plain", text=_CODE),
        ),
    ),
    Message(
        role="assistant",
        parts=(
            Thinking(_RULE, 400),
            ToolCall(name="read_file", arguments='{"path":"a/b.py"}', format=Format.ANTHROPIC),
        ),
    ),
    Message(role="tool", parts=(ToolResult(parts=(Text(_CODE),), id="1"), Opaque("odd", b'{"type":"odd"}'))),
)


class TurnCounts:
    """Counts requests, and keeps in `turns` what each of their turns came to."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.drop()
        register(self)

    def drop(self) -> None:
        """Forget what is remembered of it beside."""
        self._each: Memo[Measured] = Memo(_KEPT_TURNS)
        self._together: Memo[Tally] = Memo(_KEPT_TALLIES)

    async def count(
        self,
        agent: str,
        request: Request,
        chain: Chain,
        counter: RequestCounter,
        *,
        known: int | None = None,
    ) -> RequestCount:
        """The count of a request with that chain, without its parts.

        Of turns behind the `known` ones, which were new with this request, nothing is asked for.

        Raises:
            MalformedRequest: a part cannot be read, or is nested too deeply to be rendered.
        """
        head = request.messages[: chain.head]
        said = (agent.encode("utf-8", "replace"), name_of(counter).encode(), request.format.encode())
        seed = digest(*said, *head)
        counted, tally = self._remembered(seed, chain, known)
        if not counted:
            tally = counter.add(EMPTY, await _measured(request.format, head, counter))
        if counted < len(chain):
            places = range(counted, len(chain))
            measured = await self._measured(agent, request, chain, places, counter, known)
            tally = counter.add(tally, measured)
            self._together.put(_key(seed, chain, len(chain)), replace(tally, before=None))
        around_bytes = len(request.body) - sum(map(len, request.messages))
        return await _beside(lambda: _total(request, counter, tally), around_bytes)

    def _remembered(self, seed: bytes, chain: Chain, known: int | None) -> tuple[int, Tally]:
        """How many messages were counted together before, and what they came to with the head."""
        back = range(len(chain), max(0, len(chain) - _LOOKBACK), -1)
        for length in (known, *back) if known else back:
            found = self._together.get(_key(seed, chain, length))
            if found is not None:
                return length, found
        return 0, EMPTY

    async def _measured(
        self,
        agent: str,
        request: Request,
        chain: Chain,
        places: range,
        counter: RequestCounter,
        known_turns: int | None,
    ) -> list[Measured]:
        """What the messages at `places` of the chain come to: as remembered, as kept, or counted now."""
        name = name_of(counter)
        named = digest(agent.encode("utf-8", "replace"), name.encode())
        keys = {at: named + chain.hashes[at] + chain.spelling(at) for at in places}
        known = {at: found for at in places if (found := self._each.get(keys[at])) is not None}
        old = places if known_turns is None else range(places.start, max(places.start, known_turns))
        hashes = [chain.hashes[at] for at in old if at not in known]
        kept = await self._turns.counts(agent, hashes, name) if hashes else {}
        for at in places:
            row = kept.get(chain.hashes[at])
            if row is not None and (found := _read(row, chain.spelling(at))) is not None:
                known[at] = found
        new = [at for at in places if at not in known]
        raws = [request.messages[chain.head + at] for at in new]
        known.update(zip(new, await _measured(request.format, raws, counter), strict=True))
        if rows := {chain.hashes[at]: _row(known[at], chain.spelling(at)) for at in new}:
            await self._turns.keep_counts(agent, rows, name)
        for at in places:
            self._each.put(keys[at], known[at])
        return [known[at] for at in places]


@lru_cache(_KEPT_COUNTERS)
def name_of(counter: RequestCounter) -> str:
    """The name under which a counter's counts are kept; another rule or vocabulary makes it another one.

    A sample tells vocabularies and families apart. It meets not every rule, so their version is in it too.
    """
    tally = counter.extend(EMPTY, *_SAMPLE)
    said = msgspec.msgpack.encode(astuple(replace(tally, before=None)))
    return f"{counter.model!a} {counter.backend} {RULES} {digest(said)[:8].hex()}"


def _key(seed: bytes, chain: Chain, length: int) -> bytes:
    return digest(seed, chain.spellings[: length * HASH_BYTES])


async def _measured(spoken: Format, raws: Sequence[bytes], counter: RequestCounter) -> list[Measured]:
    def measured() -> list[Measured]:
        return counter.measured(*(wire.message(spoken, wire.unmarked(raw)) for raw in raws))

    return await _beside(measured, sum(map(len, raws)))


async def _beside(work: Callable[[], Result], size_bytes: int) -> Result:
    """What `work` gives; beside the event loop where it takes long."""

    def done() -> Result:
        try:
            with courtesy(size_bytes):
                return work()
        except RecursionError:
            raise MalformedRequest(TOO_DEEP) from None

    return await asyncio.to_thread(done) if size_bytes >= _LONG_BYTES else done()


def _total(request: Request, counter: RequestCounter, tally: Tally) -> RequestCount:
    ends = request.messages[:1] + request.messages[-1:]
    first, last = [wire.message(request.format, raw) for raw in ends] or (None, None)
    opening = counter.opening(request, first, last, tally.loads)
    parts = (opening.system, opening.tools, opening.frame)
    unexplained = (*(name for part in parts for name in part.unexplained), *tally.unexplained)
    return RequestCount(
        model=counter.model,
        backend=counter.backend,
        total=counter.total(request, opening, tally),
        unexplained=tuple(dict.fromkeys(unexplained)),
    )


def _row(measured: Measured, spelling: bytes) -> bytes:
    names = Measured.__struct_fields__
    said = {name: inner for name in names if (inner := getattr(measured, name)) != getattr(_NOTHING, name)}
    return msgspec.msgpack.encode((spelling, said))


def _read(row: bytes, spelling: bytes) -> Measured | None:
    """What was counted of a message that is spelled so; None where that is not what was counted."""
    try:
        spelled, measured = _ROW.decode(row)
    except msgspec.DecodeError:  # by a version that wrote something else down
        return None
    return measured if spelled == spelling else None

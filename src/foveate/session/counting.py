"""A session's requests counted, each turn of them once by each counter.

What a counter says of a turn is kept raw, under the turn's hash: calibration is applied by who reads it. It is
taken only for a message that is spelled as it was when it was counted, so that a recount gives the same number.
Of conversations that this process has counted itself the sum is noted too, so that nothing is read for them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TypeVar

import msgspec
from msgspec.structs import astuple, replace

from foveate import wire
from foveate.errors import MalformedRequest
from foveate.session.chain import Chain
from foveate.session.news import News
from foveate.session.turns import CountRows, Turns
from foveate.tokens import RequestCount, RequestCounter
from foveate.tokens.caches import register
from foveate.tokens.memo import Memo, digest
from foveate.tokens.rendering import Measured
from foveate.tokens.tally import EMPTY
from foveate.tokens.threads import run_in_thread
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

# A few long sessions, for messages whose marks have moved.
_KEPT_TURNS = 32 * 1024
_KEPT_COUNTERS = 64
_MARKED = 4
# Messages that are longer are counted beside the event loop.
_LONG_BYTES = 8 * 1024
# Noting a count takes about as long as counting so much.
_NOTE_BYTES = 64
_NOTED_AT_ONCE = 1000

# What is kept was counted by these rules: raised with each change by which a message comes to something else.
RULES = 8

_ROW = msgspec.msgpack.Decoder(tuple[bytes, Measured])
_NOTHING = astuple(Measured())

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
        counted = await self.counted(agent, request, chain, counter, known=known)
        await self.keep(agent, counted)
        return counted.count

    async def counted(
        self, agent: str, request: Request, chain: Chain, counter: RequestCounter, *, known: int | None = None
    ) -> "Counted":
        """The same, for who keeps what is new about it in time.

        Raises:
            MalformedRequest: as `count`.
        """
        trail = wire.trail(request)
        start, tally = counter.tallied(trail)
        places = range(start, len(chain))
        found = await self._known(agent, request, chain, trail, places, counter, known) if places else {}
        new_bytes = sum([len(trail.links[at].raw) for at in places if at not in found])

        def together() -> Counted:
            measured = self._measured(request, chain, trail, places, counter, found)
            ended = counter.noted(trail, start, tally, measured)
            count = counter.counted(request, trail, counter.head(request, trail), ended, in_parts=False)
            return Counted(count, name_of(counter), self._new(agent, chain, trail, counter))

        return await beside(together, new_bytes + _NOTE_BYTES * len(places) + counter.new_around_bytes(request))

    async def keep(self, agent: str, counted: "Counted") -> None:
        """Keep what was counted and is not kept yet."""
        if not counted.new:
            return
        rows = await beside(counted.rows, _NOTE_BYTES * len(counted.new))
        await self._turns.keep_counts(agent, rows, counted.counter)
        for start in range(0, len(counted.new), _NOTED_AT_ONCE):
            if start:
                await asyncio.sleep(0)  # others are served meanwhile
            self._kept(agent, counted.counter, counted.new[start : start + _NOTED_AT_ONCE])

    def news(self, agent: str, counted: "Counted") -> News:
        """The same, for who keeps it together with others; what is long is kept alone."""
        alone = partial(self.keep, agent, counted)
        if _NOTE_BYTES * len(counted.new) >= _LONG_BYTES:
            return News(alone)
        return News(
            alone,
            rows=lambda: CountRows(agent=agent, counter=counted.counter, counts=counted.rows()),
            kept=lambda is_kept: self._kept(agent, counted.counter, counted.new) if is_kept else None,
        )

    def _kept(self, agent: str, counter: str, turns: "Sequence[CountedTurn]") -> None:
        for turn in turns:
            self._mark(turn.link, (agent, counter))

    def _new(self, agent: str, chain: Chain, trail: wire.Trail, counter: RequestCounter) -> list["CountedTurn"]:
        """The turns of which nothing was kept for the agent, the last one first."""
        own = agent, name_of(counter)
        found: list[CountedTurn] = []
        for at in range(len(trail.links) - 1, -1, -1):
            link = trail.links[at]
            if own in link.known.get(self, ()):
                break
            found.append(
                CountedTurn(link, chain.hashes[at], chain.spelling(at), counter.measured_at(trail, at))
            )
        return found

    def _mark(self, link: wire.Link, whose: tuple[str, str]) -> None:
        """Remember that a turn's count is kept; for the agents and counters that were last."""
        kept = link.known.get(self, ())
        if whose not in kept:
            link.known[self] = (*kept, whose)[-_MARKED:]

    async def _known(
        self,
        agent: str,
        request: Request,
        chain: Chain,
        trail: wire.Trail,
        places: range,
        counter: RequestCounter,
        known_turns: int | None,
    ) -> dict[int, Measured]:
        """What of the messages at `places` of the chain is remembered, or kept."""
        key = _key_of(counter, request.format)
        known = {at: found for at in places if (found := self._each.get(key + chain.spelling(at))) is not None}
        old = places if known_turns is None else range(places.start, known_turns)
        hashes = [chain.hashes[at] for at in old if at not in known]
        if not hashes:
            return known
        name = name_of(counter)
        kept = await self._turns.counts(agent, hashes, name)
        for at in places if kept else ():
            row = kept.get(chain.hashes[at])
            if row is not None and (found := _read(row, chain.spelling(at))) is not None:
                known[at] = found
                self._mark(trail.links[at], (agent, name))
        return known

    def _measured(
        self,
        request: Request,
        chain: Chain,
        trail: wire.Trail,
        places: range,
        counter: RequestCounter,
        known: Mapping[int, Measured],
    ) -> list[Measured]:
        """What the messages at `places` of the chain come to: as it is known, or counted now."""
        key = _key_of(counter, request.format)
        new = [at for at in places if at not in known]
        raws = [wire.unmarked(trail.links[at].raw) for at in new]
        counted = counter.measured(*[wire.message(request.format, raw) for raw in raws])
        for at, measured in zip(new, counted, strict=True):
            self._each.put(key + chain.spelling(at), measured)
        if not known:
            return counted
        fresh = dict(zip(new, counted, strict=True))
        return [fresh[at] if at in fresh else known[at] for at in places]


class CountedTurn(msgspec.Struct, frozen=True):
    """What one turn came to, and what it is told by."""

    link: wire.Link
    hash: bytes
    spelling: bytes
    measured: Measured


class Counted(msgspec.Struct, frozen=True):
    """A count, and the turns of which `counter` has something new to write down."""

    count: RequestCount
    counter: str
    new: Sequence[CountedTurn] = ()

    def rows(self) -> dict[bytes, bytes]:
        """That of each turn, by its hash."""
        return {turn.hash: _row(turn.measured, turn.spelling) for turn in self.new}


@lru_cache(_KEPT_COUNTERS)
def _key_of(counter: RequestCounter, spoken: Format) -> bytes:
    """What a counter's counts of messages in one format are remembered under."""
    return digest(name_of(counter).encode(), spoken.encode())


@lru_cache(_KEPT_COUNTERS)
def name_of(counter: RequestCounter) -> str:
    """The name under which a counter's counts are kept; another rule or vocabulary makes it another one.

    A sample tells vocabularies and families apart. It meets not every rule, so their version is in it too.
    """
    tally = counter.extend(EMPTY, *_SAMPLE)
    said = msgspec.msgpack.encode(astuple(replace(tally, before=None)))
    return f"{counter.model!a} {counter.backend} {RULES} {digest(said)[:8].hex()}"


async def counted_beside(request: Request, counter: RequestCounter) -> RequestCount:
    """The count of a request of which nothing is kept, without its parts.

    It is made beside the event loop where much of it is new.

    Raises:
        MalformedRequest: as `RequestCounter.request`.
    """
    trail = wire.trail(request)
    new = (*request.messages[: trail.head], *(link.raw for link in trail.links[counter.tallied(trail)[0] :]))
    size_bytes = counter.new_around_bytes(request) + sum(map(len, new))
    return await beside(lambda: counter.request(request, in_parts=False), size_bytes)


async def beside(work: Callable[[], Result], size_bytes: int, *, least_bytes: int = _LONG_BYTES) -> Result:
    """What `work` gives; beside the event loop where it takes long."""
    try:
        return await run_in_thread(work, size_bytes) if size_bytes >= least_bytes else work()
    except RecursionError:
        raise MalformedRequest(TOO_DEEP) from None


def _row(measured: Measured, spelling: bytes) -> bytes:
    fields = zip(Measured.__struct_fields__, astuple(measured), _NOTHING, strict=True)
    said = {name: inner for name, inner, usual in fields if inner != usual}
    return msgspec.msgpack.encode((spelling, said))


def _read(row: bytes, spelling: bytes) -> Measured | None:
    """What was counted of a message that is spelled so; None where that is not what was counted."""
    try:
        spelled, measured = _ROW.decode(row)
    except msgspec.DecodeError:  # by a version that wrote something else down
        return None
    return measured if spelled == spelling else None

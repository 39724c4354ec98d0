"""Count the requests of a session, each turn once per counter.

Raw counts are stored by the hash of the turn; calibration is applied by readers. A stored count is used only if
the message is spelled as it was when counted, so that a recount gives the same number. For conversations
counted by this process, sums are cached too, and nothing is read from the store.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TypeVar

import msgspec
from msgspec.structs import astuple, replace

from foveate import formats
from foveate.caching import LruCache, hash_bytes, register
from foveate.errors import MalformedRequest
from foveate.formats.json_text.parse import TOO_DEEP_MESSAGE
from foveate.model import (
    Document,
    Format,
    Image,
    MediaSource,
    Message,
    Opaque,
    Request,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from foveate.session.hash_chain import HashChain
from foveate.session.store import CountUpdate, PendingWrite, SessionStore
from foveate.tokens import RequestCount, RequestCounter
from foveate.tokens.counter import EMPTY_TALLY
from foveate.tokens.rendering.rendering import MeasuredRendering
from foveate.tokens.worker_threads import run_in_thread

Result = TypeVar("Result")

# A few long sessions, for messages whose breakpoints have moved.
_MAX_CACHED_TURNS = 32 * 1024
_MAX_CACHED_COUNTERS = 64
_MAX_SAVED_MARKERS = 4
# Longer messages are counted in a thread.
_THREAD_BYTES = 8 * 1024
# Storing a count takes about as long as counting this many bytes.
_TURN_OVERHEAD_BYTES = 64
_BATCH_TURNS = 1000

# Version of the counting rules: raise it with each change that changes the count of a message.
COUNTING_RULES_VERSION = 8

_ROW_DECODER = msgspec.msgpack.Decoder(tuple[bytes, MeasuredRendering])
_EMPTY_MEASUREMENT = astuple(MeasuredRendering())

_SAMPLE_TEXT = "Never push; the 42 tests in src/näve.py take 3.5 s.\n"
_SAMPLE_CODE = 'def f(x: int) -> str:\n    return f"{x:>8}" if x else "名前を入力"\n'
# All kinds of content, to distinguish two counters of one model.
_SAMPLE_MESSAGES = (
    Message(
        role="user",
        parts=(
            Text(_SAMPLE_TEXT),
            Image(source=MediaSource.INLINE, width=640, height=480),
            Document(source=MediaSource.INLINE, media_type="text/plain", text=_SAMPLE_CODE),
        ),
    ),
    Message(
        role="assistant",
        parts=(
            Thinking(_SAMPLE_TEXT, 400),
            ToolCall(name="read_file", arguments='{"path":"a/b.py"}', format=Format.ANTHROPIC),
        ),
    ),
    Message(
        role="tool", parts=(ToolResult(parts=(Text(_SAMPLE_CODE),), id="1"), Opaque("odd", b'{"type":"odd"}'))
    ),
)


class TurnCounter:
    def __init__(self, store: SessionStore, *, capacity: int = _MAX_CACHED_TURNS) -> None:
        self._store = store
        self._capacity = capacity
        self.clear()
        register(self)

    def clear(self) -> None:
        # Saves 13% of the CPU of a request with results of 60 KB whose client moves its breakpoints.
        self._measured_messages: LruCache[MeasuredRendering] = LruCache(self._capacity)

    async def count(
        self,
        agent: str,
        request: Request,
        chain: HashChain,
        counter: RequestCounter,
        *,
        known: int | None = None,
    ) -> RequestCount:
        """Count a request, without its parts.

        Turns after the `known` ones are new with this request, so the store is not asked for them.

        Raises:
            MalformedRequest: a part cannot be parsed, or is nested too deeply to be rendered.
        """
        count_result = await self.count_without_saving(agent, request, chain, counter, known=known)
        await self.save(agent, count_result)
        return count_result.count

    async def count_without_saving(
        self,
        agent: str,
        request: Request,
        chain: HashChain,
        counter: RequestCounter,
        *,
        known: int | None = None,
    ) -> "CountResult":
        """Count a request, and leave storing the new counts to the caller.

        Raises:
            MalformedRequest: as in `count`.
        """
        history = formats.message_history(request)
        start, tally = counter.cached_tally(history)
        places = range(start, len(chain))
        known_counts = (
            await self._find_known(agent, request, chain, history, places, counter, known) if places else {}
        )
        new_bytes = sum([len(history.nodes[at].raw) for at in places if at not in known_counts])

        def measure_and_sum() -> CountResult:
            measured = self._measure(request, chain, history, places, counter, known_counts)
            ended = counter.store_tally(history, start, tally, measured)
            count = counter.build_count(
                request, history, counter.tally_head(request, history), ended, with_parts=False
            )
            return CountResult(
                count, get_counter_name(counter), self._find_unsaved(agent, chain, history, counter)
            )

        return await run_in_thread_if_large(
            measure_and_sum,
            new_bytes + _TURN_OVERHEAD_BYTES * len(places) + counter.new_envelope_bytes(request),
        )

    async def save(self, agent: str, count_result: "CountResult") -> None:
        if not count_result.new:
            return
        rows = await run_in_thread_if_large(count_result.rows, _TURN_OVERHEAD_BYTES * len(count_result.new))
        await self._store.save_counts(agent, rows, count_result.counter)
        for start in range(0, len(count_result.new), _BATCH_TURNS):
            if start:
                await asyncio.sleep(0)  # let other requests run
            self._mark_turns_saved(agent, count_result.counter, count_result.new[start : start + _BATCH_TURNS])

    def make_pending_write(self, agent: str, count_result: "CountResult") -> PendingWrite:
        """Return a write that can be batched with others; a long one is written alone."""
        write_alone = partial(self.save, agent, count_result)
        if _TURN_OVERHEAD_BYTES * len(count_result.new) >= _THREAD_BYTES:
            return PendingWrite(write_alone)
        return PendingWrite(
            write_alone,
            make_rows=lambda: CountUpdate(
                agent=agent, counter=count_result.counter, counts=count_result.rows()
            ),
            on_saved=lambda is_kept: (
                self._mark_turns_saved(agent, count_result.counter, count_result.new) if is_kept else None
            ),
        )

    def _mark_turns_saved(self, agent: str, counter: str, turns: "Sequence[UnsavedTurn]") -> None:
        for turn in turns:
            self._mark_saved(turn.node, (agent, counter))

    def _find_unsaved(
        self, agent: str, chain: HashChain, history: formats.MessageHistory, counter: RequestCounter
    ) -> list["UnsavedTurn"]:
        marker = agent, get_counter_name(counter)
        unsaved: list[UnsavedTurn] = []
        for at in range(len(history.nodes) - 1, -1, -1):
            node = history.nodes[at]
            if marker in node.memo.get(self, ()):
                break
            unsaved.append(
                UnsavedTurn(node, chain.hashes[at], chain.spelling(at), counter.measured_at(history, at))
            )
        return unsaved

    def _mark_saved(self, node: formats.MessageNode, marker: tuple[str, str]) -> None:
        markers = node.memo.get(self, ())
        if marker not in markers:
            node.memo[self] = (*markers, marker)[-_MAX_SAVED_MARKERS:]

    async def _find_known(
        self,
        agent: str,
        request: Request,
        chain: HashChain,
        history: formats.MessageHistory,
        places: range,
        counter: RequestCounter,
        known_turns: int | None,
    ) -> dict[int, MeasuredRendering]:
        key = _counter_key(counter, request.format)

        def find_cached() -> dict[int, MeasuredRendering]:
            found = ((at, self._measured_messages.get(key + chain.spelling(at))) for at in places)
            return {at: measured for at, measured in found if measured is not None}

        known = await _run_in_thread_if_many(find_cached, len(places))
        old = places if known_turns is None else range(places.start, known_turns)
        hashes = [chain.hashes[at] for at in old if at not in known]
        if not hashes:
            return known
        name = get_counter_name(counter)
        saved = await self._store.get_counts(agent, hashes, name)

        def add_saved() -> None:
            for at in places if saved else ():
                row = saved.get(chain.hashes[at])
                if row is not None and (measured := _decode_row(row, chain.spelling(at))) is not None:
                    known[at] = measured
                    self._mark_saved(history.nodes[at], (agent, name))

        await _run_in_thread_if_many(add_saved, len(saved))
        return known

    def _measure(
        self,
        request: Request,
        chain: HashChain,
        history: formats.MessageHistory,
        places: range,
        counter: RequestCounter,
        known: Mapping[int, MeasuredRendering],
    ) -> list[MeasuredRendering]:
        key = _counter_key(counter, request.format)
        new = [at for at in places if at not in known]
        raws = [formats.strip_breakpoints(history.nodes[at].raw) for at in new]
        measurements = counter.measure_messages(*[formats.parse_message(request.format, raw) for raw in raws])
        if len(new) <= self._capacity // 4:  # a few long conversations would fill the cache
            for at, measured in zip(new, measurements, strict=True):
                self._measured_messages.put(key + chain.spelling(at), measured)
        if not known:
            return measurements
        fresh = dict(zip(new, measurements, strict=True))
        return [fresh[at] if at in fresh else known[at] for at in places]


class UnsavedTurn(msgspec.Struct, frozen=True):
    node: formats.MessageNode
    hash: bytes
    spelling: bytes
    measured: MeasuredRendering


class CountResult(msgspec.Struct, frozen=True):
    count: RequestCount
    counter: str
    new: Sequence[UnsavedTurn] = ()

    def rows(self) -> dict[bytes, bytes]:
        return {turn.hash: _encode_row(turn.measured, turn.spelling) for turn in self.new}


@lru_cache(_MAX_CACHED_COUNTERS)
def _counter_key(counter: RequestCounter, api_format: Format) -> bytes:
    return hash_bytes(get_counter_name(counter).encode(), api_format.encode())


@lru_cache(_MAX_CACHED_COUNTERS)
def get_counter_name(counter: RequestCounter) -> str:
    """Return the name under which a counter's counts are stored; it depends on rules and vocabulary.

    Counts of sample messages distinguish vocabularies and families. They do not cover every rule, so the
    version of the rules is part of the name.
    """
    tally = counter.extend_tally(EMPTY_TALLY, *_SAMPLE_MESSAGES)
    encoded = msgspec.msgpack.encode(astuple(replace(tally, previous=None)))
    return f"{counter.model!a} {counter.backend} {COUNTING_RULES_VERSION} {hash_bytes(encoded)[:8].hex()}"


async def count_in_thread(request: Request, counter: RequestCounter) -> RequestCount:
    """Count a request without stored counts and without its parts, in a thread if much of it is new.

    Raises:
        MalformedRequest: as in `RequestCounter.count_request`.
    """
    history = formats.message_history(request)
    new = (
        *request.messages[: history.leading_system_messages],
        *(node.raw for node in history.nodes[counter.cached_tally(history)[0] :]),
    )
    size_bytes = counter.new_envelope_bytes(request) + sum(map(len, new))
    return await run_in_thread_if_large(lambda: counter.count_request(request, with_parts=False), size_bytes)


async def run_in_thread_if_large(
    function: Callable[[], Result], size_bytes: int, *, min_bytes: int = _THREAD_BYTES
) -> Result:
    try:
        return await run_in_thread(function, size_bytes) if size_bytes >= min_bytes else function()
    except RecursionError:
        raise MalformedRequest(TOO_DEEP_MESSAGE) from None


async def _run_in_thread_if_many(function: Callable[[], Result], turns: int) -> Result:
    return await run_in_thread(function, _TURN_OVERHEAD_BYTES * turns) if turns > _BATCH_TURNS else function()


def _encode_row(measured: MeasuredRendering, spelling: bytes) -> bytes:
    fields = zip(MeasuredRendering.__struct_encode_fields__, astuple(measured), _EMPTY_MEASUREMENT, strict=True)
    changed = {name: inner for name, inner, default in fields if inner != default}
    return msgspec.msgpack.encode((spelling, changed))


def _decode_row(row: bytes, spelling: bytes) -> MeasuredRendering | None:
    """Decode a stored count; None if the message was spelled differently or the row is not readable."""
    try:
        row_spelling, measured = _ROW_DECODER.decode(row)
    except msgspec.DecodeError:  # written by another version
        return None
    return measured if row_spelling == spelling else None

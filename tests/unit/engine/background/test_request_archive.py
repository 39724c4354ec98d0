"""Requests are archived after their responses, if enabled, and nothing waits for that."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from foveate import formats
from foveate.engine.background.request_archive import RequestArchiver
from foveate.engine.completion import CompletionQueue
from foveate.engine.context import RequestContext
from foveate.engine.exchange import Exchange
from foveate.engine.observer import NO_OBSERVER
from foveate.engine.options import AgentOptions
from foveate.engine.request import RoutedRequest, UpstreamRequest
from foveate.errors import StoreUnavailable
from foveate.model import Format
from foveate.session.request_archive import ArchivedRequest

BODY = json.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}).encode()
ANSWER = b'{"type":"message","content":[],"usage":{"input_tokens":9,"output_tokens":7}}'


@dataclass
class Shelf:
    """Implements `Requests` in memory; while it `waits`, nothing is kept, and while `gone`, all raises."""

    kept: list[ArchivedRequest] = field(default_factory=list)
    trims: list[tuple[float, int]] = field(default_factory=list)
    waits: asyncio.Event | None = None
    gone: bool = False

    async def save(self, request: ArchivedRequest) -> int:
        if self.waits is not None:
            await self.waits.wait()
        if self.gone:
            raise StoreUnavailable("the store", "is gone")
        self.kept.append(request)
        return len(request.request_body)

    async def trim(self, *, before: float, max_bytes: int) -> int:
        if self.gone:
            raise StoreUnavailable("the store", "is gone")
        self.trims.append((before, max_bytes))
        return 0

    async def get(self, request_id: str) -> ArchivedRequest | None:
        raise NotImplementedError

    async def find_by_session(
        self, session_id: str, *, limit: int = 2, before: float | None = None
    ) -> Sequence[ArchivedRequest]:
        raise NotImplementedError


@dataclass(frozen=True)
class Options:
    enabled: bool = True
    days: float = 7.0
    most_bytes: int = 10**9


@dataclass
class Gateway:
    """What a gateway does with its exchanges, its options and its clock."""

    shelf: Shelf
    options: Options = Options()
    now: float = 1_000_000.0
    most_waiting_bytes: int = 10**9

    def __post_init__(self) -> None:
        self.keeping = RequestArchiver(
            self.shelf,
            lambda: self.options,
            clock=lambda: self.now,
            max_waiting_bytes=self.most_waiting_bytes,
        )

    async def call(
        self, id_: str = "req", *, sent: bytes = BODY, is_unsent: bool = False, is_readable: bool = True
    ) -> None:
        incoming = RoutedRequest(
            id=id_, agent="ana", api_format=Format.ANTHROPIC, provider="p", upstream="u", body=BODY, session="s"
        )
        request = formats.parse_request(BODY)
        context = RequestContext(
            incoming=incoming, options=AgentOptions(), received_at=self.now, original=request, request=request
        )
        exchange = Exchange(
            incoming,
            context if is_readable else None,
            UpstreamRequest(body=sent),
            background_hooks=(self.keeping,),
            clock=lambda: self.now,
            observer=NO_OBSERVER,
            completer=CompletionQueue(),
        )
        if is_unsent:
            exchange.mark_unsent()
        else:
            exchange.on_response_start(200, is_streaming=False)
            exchange.on_chunk(ANSWER)
            exchange.flush()
        exchange.finish(is_interrupted=is_unsent)
        await exchange.wait_until_completed()


async def test_a_request_is_archived_as_sent_and_as_received_if_they_differ() -> None:
    ours = Gateway(Shelf())
    changed = BODY.replace(b"Hello", b"Hullo")
    await ours.call("a")
    await ours.call("b", sent=changed)
    await ours.keeping.close()

    first, second = ours.shelf.kept
    assert (first.id, first.request_body, first.original_body) == ("a", BODY, None)
    assert (second.id, second.request_body, second.original_body) == ("b", changed, BODY)
    assert (first.model, first.agent, first.status, first.at) == ("m", "ana", 200, ours.now)
    assert first.usage is not None
    assert first.usage.output_tokens == 7


async def test_nothing_is_archived_while_off_and_a_change_applies_to_the_next_request() -> None:
    ours = Gateway(Shelf(), options=Options(enabled=False))
    await ours.call("a")
    ours.options = Options()
    await ours.call("b")
    await ours.call("never sent", is_unsent=True)
    await ours.call("not understood", is_readable=False)
    ours.options = Options(enabled=False)
    await ours.call("c")
    await ours.keeping.close()

    assert [one.id for one in ours.shelf.kept] == ["b"]


async def test_requests_do_not_wait_for_a_slow_store_and_the_queue_is_bounded() -> None:
    ours = Gateway(Shelf(waits=asyncio.Event()), most_waiting_bytes=3 * len(BODY))
    for number in range(9):
        await asyncio.wait_for(ours.call(f"{number}"), 1)
        await asyncio.sleep(0)
    assert ours.shelf.kept == []
    assert ours.keeping.dropped == 5
    assert ours.shelf.waits
    ours.shelf.waits.set()
    await ours.keeping.close()

    assert [one.id for one in ours.shelf.kept] == ["0", "1", "2", "3"]


async def test_an_unavailable_store_loses_only_the_requests_of_that_time() -> None:
    ours = Gateway(Shelf(gone=True))
    await ours.call("a")
    await ours.keeping.close()
    ours.shelf.gone = False
    await ours.call("b")
    await ours.keeping.close()

    assert [one.id for one in ours.shelf.kept] == ["b"]
    assert ours.keeping.dropped == 1


async def test_the_oldest_are_deleted_periodically_and_when_much_is_new_even_while_off() -> None:
    ours = Gateway(Shelf(), options=Options(days=2.0))
    day = 86_400.0
    for _ in range(3):
        await ours.call()
        await ours.keeping.close()
    assert ours.shelf.trims == [(ours.now - 2 * day, 10**9)]

    ours.options = replace(ours.options, most_bytes=50 * len(BODY))
    await ours.call()
    await ours.keeping.close()
    assert ours.shelf.trims[1:] == [(ours.now - 2 * day, 50 * len(BODY))]

    ours.options = replace(ours.options, enabled=False)
    ours.now += 3600
    for _ in range(3):
        await ours.call()
        await ours.keeping.close()
    assert ours.shelf.trims[2:] == [(ours.now - 2 * day, 50 * len(BODY))]

"""Requests are archived after their responses, if enabled, and nothing waits for that."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from foveate import formats
from foveate.engine.background.request_archive import RequestArchiver
from foveate.engine.completion_queue import CompletionQueue
from foveate.engine.exchange import CallHooks, Exchange
from foveate.engine.observer import NO_OBSERVER
from foveate.engine.options import AgentOptions
from foveate.engine.request import IncomingRequest, UpstreamRequest
from foveate.engine.request_context import RequestContext
from foveate.errors import StoreUnavailable
from foveate.model import Format
from foveate.session.store import ArchivedRequest

BODY = json.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}).encode()
RESPONSE = b'{"type":"message","content":[],"usage":{"input_tokens":9,"output_tokens":7}}'


@dataclass
class InMemoryArchive:
    """Implements `Requests` in memory; nothing is saved while `is_blocked`, everything raises while
    `is_unavailable`.
    """

    saved: list[ArchivedRequest] = field(default_factory=list)
    trims: list[tuple[float, int]] = field(default_factory=list)
    is_blocked: asyncio.Event | None = None
    is_unavailable: bool = False

    async def save(self, request: ArchivedRequest) -> int:
        if self.is_blocked is not None:
            await self.is_blocked.wait()
        if self.is_unavailable:
            raise StoreUnavailable("the store", "is gone")
        self.saved.append(request)
        return len(request.request_body)

    async def trim(self, *, before: float, max_bytes: int) -> int:
        if self.is_unavailable:
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
class ArchivingGateway:
    """The exchanges, options and clock of a gateway."""

    archive: InMemoryArchive
    options: Options = Options()
    now: float = 1_000_000.0
    max_waiting_bytes: int = 10**9

    def __post_init__(self) -> None:
        self.archiver = RequestArchiver(
            self.archive,
            lambda: self.options,
            clock=lambda: self.now,
            max_waiting_bytes=self.max_waiting_bytes,
        )

    async def call(
        self, id_: str = "req", *, sent_body: bytes = BODY, is_unsent: bool = False, is_readable: bool = True
    ) -> None:
        incoming = IncomingRequest(
            id=id_, agent="ana", api_format=Format.ANTHROPIC, provider="p", upstream="u", body=BODY, session="s"
        )
        request = formats.parse_request(BODY)
        context = RequestContext(
            incoming=incoming, options=AgentOptions(), received_at=self.now, original=request, request=request
        )
        exchange = Exchange(
            incoming,
            context if is_readable else None,
            UpstreamRequest(body=sent_body),
            hooks=CallHooks(in_background=(self.archiver,)),
            clock=lambda: self.now,
            observer=NO_OBSERVER,
            completer=CompletionQueue(),
        )
        if is_unsent:
            exchange.mark_unsent()
        else:
            exchange.on_response_start(200, is_streaming=False)
            exchange.on_chunk(RESPONSE)
            exchange.flush()
        exchange.finish(is_interrupted=is_unsent)
        await exchange.wait_until_completed()


async def test_a_request_is_archived_as_sent_and_as_received_if_they_differ() -> None:
    gateway = ArchivingGateway(InMemoryArchive())
    changed = BODY.replace(b"Hello", b"Hullo")
    await gateway.call("a")
    await gateway.call("b", sent_body=changed)
    await gateway.archiver.close()

    first, second = gateway.archive.saved
    assert (first.id, first.request_body, first.original_body) == ("a", BODY, None)
    assert (second.id, second.request_body, second.original_body) == ("b", changed, BODY)
    assert (first.model, first.agent, first.status, first.at) == ("m", "ana", 200, gateway.now)
    assert first.usage is not None
    assert first.usage.output_tokens == 7


async def test_nothing_is_archived_while_off_and_a_change_applies_to_the_next_request() -> None:
    gateway = ArchivingGateway(InMemoryArchive(), options=Options(enabled=False))
    await gateway.call("a")
    gateway.options = Options()
    await gateway.call("b")
    await gateway.call("never sent", is_unsent=True)
    await gateway.call("not understood", is_readable=False)
    gateway.options = Options(enabled=False)
    await gateway.call("c")
    await gateway.archiver.close()

    assert [request.id for request in gateway.archive.saved] == ["b"]


async def test_requests_do_not_wait_for_a_slow_store_and_the_queue_is_bounded() -> None:
    gateway = ArchivingGateway(InMemoryArchive(is_blocked=asyncio.Event()), max_waiting_bytes=3 * len(BODY))
    for number in range(9):
        await asyncio.wait_for(gateway.call(f"{number}"), 1)
        await asyncio.sleep(0)
    assert gateway.archive.saved == []
    assert gateway.archiver.dropped_count == 5
    assert gateway.archive.is_blocked
    gateway.archive.is_blocked.set()
    await gateway.archiver.close()

    assert [request.id for request in gateway.archive.saved] == ["0", "1", "2", "3"]


async def test_an_unavailable_store_loses_only_the_requests_of_that_time() -> None:
    gateway = ArchivingGateway(InMemoryArchive(is_unavailable=True))
    await gateway.call("a")
    await gateway.archiver.close()
    gateway.archive.is_unavailable = False
    await gateway.call("b")
    await gateway.archiver.close()

    assert [request.id for request in gateway.archive.saved] == ["b"]
    assert gateway.archiver.dropped_count == 1


async def test_the_oldest_are_deleted_periodically_and_when_much_is_new_even_while_off() -> None:
    gateway = ArchivingGateway(InMemoryArchive(), options=Options(days=2.0))
    day = 86_400.0
    for _ in range(3):
        await gateway.call()
        await gateway.archiver.close()
    assert gateway.archive.trims == [(gateway.now - 2 * day, 10**9)]

    gateway.options = replace(gateway.options, most_bytes=50 * len(BODY))
    await gateway.call()
    await gateway.archiver.close()
    assert gateway.archive.trims[1:] == [(gateway.now - 2 * day, 50 * len(BODY))]

    gateway.options = replace(gateway.options, enabled=False)
    gateway.now += 3600
    for _ in range(3):
        await gateway.call()
        await gateway.archiver.close()
    assert gateway.archive.trims[2:] == [(gateway.now - 2 * day, 50 * len(BODY))]

"""A call as the gateway, the chat and tests drive it: `Engine.send` with a transport."""

from contextlib import aclosing

import pytest

from foveate.engine.engine import Engine
from foveate.engine.exchange import CallHooks, Exchange
from foveate.engine.options import AgentOptions
from foveate.engine.relay import (
    CallPrepared,
    CountedLocally,
    ResponseChunk,
    ResponseEvent,
    ResponseFinished,
    ResponseStarted,
)
from foveate.engine.request import IncomingRequest
from foveate.engine.request_context import RequestContext
from foveate.errors import DoesNotFit, KeyRefused, UpstreamBroken, UpstreamError, UpstreamUnreachable
from foveate.model import Area, CacheBreakpoint, Format, Place, TokenCount
from tests.support.oracles.engine_observers import StepObserver
from tests.support.servers.scripted_transport import STREAM_HEADERS, ScriptedResponse, ScriptedTransport

BODY = b'{"model": "claude-opus-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}'
RESPONSE = b'{"type": "message", "content": [], "usage": {"input_tokens": 3, "output_tokens": 1}}'
REJECTION = b'{"error": {"message": "messages.0.cache_control: Extra inputs are not permitted"}}'
BREAKPOINT = CacheBreakpoint(place=Place(Area.MESSAGES, 0, 0), reason="it pays")


class FakeStep:
    """Places a breakpoint and counts nine tokens, or raises."""

    name = "fake"

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    async def apply(self, context: RequestContext) -> None:
        if self._error is not None:
            raise self._error
        context.cache.breakpoints = (BREAKPOINT,)
        context.count.total = TokenCount(9, exact=False, upper=12)


class Sent:
    """An engine with one step, and what happened to its exchanges."""

    def __init__(self, step: FakeStep | None = None) -> None:
        self.recorded: list[str] = []
        self.hooked: list[Exchange] = []
        self.events: list[ResponseEvent] = []
        self.engine = Engine(
            steps=(step or FakeStep(),),
            hooks=CallHooks(
                before_last_byte=(lambda _: self.recorded.append("charge"),),
                in_background=(self.hooked.append,),
            ),
            options=lambda _: AgentOptions(),
            clock=lambda: 1.0,
            observer=StepObserver(),
            admit_uncounted=admit_always,
        )

    async def send(self, transport: ScriptedTransport, *, is_count: bool = False) -> None:
        incoming = IncomingRequest(
            id="r", agent="ana", api_format=Format.ANTHROPIC, provider="anthropic", upstream="a", body=BODY
        )
        send = self.engine.count if is_count else self.engine.send
        async with aclosing(send(incoming, transport)) as events:
            async for event in events:
                self.events.append(event)
        await self.engine.close()

    @property
    def body(self) -> bytes:
        return b"".join(
            event.data for event in self.events if isinstance(event, ResponseChunk | ResponseFinished)
        )

    @property
    def exchange(self) -> Exchange:
        assert isinstance(self.events[0], CallPrepared)
        return self.events[0].exchange


async def admit_always(request_id: str, agent: str, reason: str) -> None: ...


async def test_a_call_is_prepared_started_and_finished() -> None:
    sent, response = Sent(), ScriptedResponse([RESPONSE[:20], RESPONSE[20:]])
    await sent.send(ScriptedTransport(response))

    kinds = [type(event) for event in sent.events]
    assert kinds == [CallPrepared, ResponseStarted, ResponseChunk, ResponseFinished]
    assert sent.body == RESPONSE
    assert sent.exchange.usage is not None
    assert sent.exchange.usage.output_tokens == 1
    assert sent.hooked == [sent.exchange]
    assert not response.is_open


async def test_the_charge_is_recorded_before_the_client_has_the_last_bytes() -> None:
    sent = Sent()
    incoming = IncomingRequest(
        id="r", agent="ana", api_format=Format.ANTHROPIC, provider="anthropic", upstream="a", body=BODY
    )
    received = b""
    transport = ScriptedTransport(ScriptedResponse([RESPONSE[:20], RESPONSE[20:]]))
    async for event in sent.engine.send(incoming, transport):
        if isinstance(event, ResponseChunk | ResponseFinished):
            received += event.data
            assert bool(sent.recorded) == (received == RESPONSE)
    assert sent.recorded == ["charge"]


async def test_chunks_of_a_stream_are_passed_on_at_once() -> None:
    sent = Sent()
    chunks = [b"event: ping\n\n", b"event: message_stop\ndata: {}\n\n"]
    await sent.send(ScriptedTransport(ScriptedResponse(chunks, headers=STREAM_HEADERS)))

    assert [event.data for event in sent.events if isinstance(event, ResponseChunk)] == chunks
    assert sent.exchange.is_streaming


async def test_a_response_can_be_a_stream_whatever_its_content_type() -> None:
    for status, is_streaming in ((200, True), (500, False)):
        sent = Sent()
        await sent.send(ScriptedTransport(ScriptedResponse([b"[]"], status=status), is_streaming=True))
        assert sent.exchange.is_streaming is is_streaming


async def test_a_call_is_sent_again_without_breakpoints_that_the_provider_rejects() -> None:
    sent = Sent()
    rejected = ScriptedResponse([REJECTION], status=400)
    transport = ScriptedTransport(rejected, ScriptedResponse([RESPONSE]))
    await sent.send(transport)

    first, second = transport.sent
    assert b"cache_control" in first
    assert second == BODY
    assert sent.body == RESPONSE
    assert not rejected.is_open


async def test_the_client_gets_an_error_that_is_not_about_our_changes() -> None:
    sent = Sent()
    transport = ScriptedTransport(ScriptedResponse([b'{"error": ', b'"busy"}'], status=429))
    await sent.send(transport)

    assert sent.body == b'{"error": "busy"}'
    assert sent.exchange.status == 429
    assert len(transport.sent) == 1


async def test_a_rejected_request_is_not_sent() -> None:
    sent, transport = (
        Sent(FakeStep(DoesNotFit("too long", tokens=9, limit_tokens=5, window_tokens=6))),
        ScriptedTransport(),
    )
    with pytest.raises(DoesNotFit):
        await sent.send(transport)

    assert not transport.sent
    assert not sent.events


@pytest.mark.parametrize("is_unsent", [True, False])
async def test_an_upstream_that_fails_interrupts_the_call(is_unsent: bool) -> None:
    sent = Sent()
    error = UpstreamUnreachable("http://upstream.test", "connection failed")
    with pytest.raises(UpstreamUnreachable):
        await sent.send(ScriptedTransport(error, is_unsent=is_unsent))

    assert sent.exchange.is_interrupted
    assert sent.exchange.is_unsent is is_unsent
    assert sent.hooked == [sent.exchange]  # completed before the client can try again


async def test_a_request_that_cannot_be_signed_is_not_sent() -> None:
    sent = Sent()
    with pytest.raises(KeyRefused):
        await sent.send(ScriptedTransport(KeyRefused("no credentials")))

    assert sent.exchange.is_unsent


async def test_the_client_gets_everything_that_arrived_before_the_response_broke_off() -> None:
    sent, broken = Sent(), UpstreamBroken("http://upstream.test", "cut off")
    with pytest.raises(UpstreamError):
        await sent.send(ScriptedTransport(ScriptedResponse([b"{", b'"type"', broken])))

    assert sent.body == b'{"type"'
    assert sent.exchange.is_interrupted


async def test_a_closed_generator_cancels_the_call() -> None:
    sent, response = Sent(), ScriptedResponse([b"event: a\n\n", b"event: b\n\n"], headers=STREAM_HEADERS)
    incoming = IncomingRequest(
        id="r", agent="ana", api_format=Format.ANTHROPIC, provider="anthropic", upstream="a", body=BODY
    )
    async with aclosing(sent.engine.send(incoming, ScriptedTransport(response))) as events:
        async for event in events:
            sent.events.append(event)
            if isinstance(event, ResponseChunk):
                break

    assert not response.is_open
    assert sent.exchange.is_interrupted
    assert sent.recorded == ["charge"]
    assert sent.hooked == [sent.exchange]


async def test_a_count_is_local_if_the_upstream_has_no_counting_endpoint() -> None:
    sent, transport = Sent(), ScriptedTransport(ScriptedResponse([b"Not Found"], status=404))
    await sent.send(transport, is_count=True)
    await sent.send(transport, is_count=True)  # the upstream is not asked again

    counts = [event for event in sent.events if isinstance(event, CountedLocally)]
    assert counts == [CountedLocally(b'{"input_tokens":9}', is_exact=False)] * 2
    assert len(transport.sent) == 1
    assert not sent.exchange.is_interrupted


async def test_a_count_request_with_an_unknown_model_is_answered_by_the_upstream() -> None:
    error_body = b'{"error": {"message": "model: claude-opus-99"}}'
    sent, transport = Sent(), ScriptedTransport(ScriptedResponse([error_body], status=404))
    await sent.send(transport, is_count=True)

    assert sent.body == error_body

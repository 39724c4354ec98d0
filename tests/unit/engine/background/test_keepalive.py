"""Keep-alive requests: the provider accepts them, and no more are planned than allowed."""

import asyncio
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from foveate import formats
from foveate.compaction.summarize.llm import SummarizerEndpoint
from foveate.cost.admission import Admission
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.background.keepalive import KeepAliveScheduler, apply_keep_alive, warm_session
from foveate.engine.completion_queue import CompletionQueue
from foveate.engine.exchange import CallHooks, Exchange
from foveate.engine.observer import NO_OBSERVER
from foveate.engine.options import AgentOptions, KeepAliveOptions, SpendingOptions
from foveate.engine.request import IncomingRequest, UpstreamRequest
from foveate.engine.request_context import RequestContext
from foveate.engine.session_state import SessionStates
from foveate.engine.steps.cache import PlaceBreakpoints, PrefixLogs, RejectionMemory
from foveate.engine.steps.savings import ReadSimulatedPrompts, SimulateSavings
from foveate.http import JsonClient, JsonReply
from foveate.model import ComparisonOutcome, Format, Savings, TokenCount
from foveate.prompt_cache.keepalive import KeepAlive
from foveate.sandbox import validate_request
from tests.support.harness.example_limits import limit_examples
from tests.support.servers.sandbox import KEY, ManualClock
from tests.support.stores.recording_ledger import RecordingLedger

MODEL = "claude-opus-4-5"
PRICES = PriceBook()


def make_body(turns: int, system_chars: int = 4_000) -> bytes:
    messages = [
        {"role": "user" if turn % 2 == 0 else "assistant", "content": f"Turn {turn} goes on."}
        for turn in range(2 * turns + 1)
    ]
    system = "You are a careful engineer. " * (system_chars // 4)
    return msgspec.json.encode({"model": MODEL, "max_tokens": 100, "system": system, "messages": messages})


class AgentSessions:
    """Sessions of one agent in one process, without a gateway."""

    def __init__(self, options: KeepAliveOptions) -> None:
        self.options = AgentOptions(keep_alive=options)
        self.clock, self.session_states, self.client = ManualClock(), SessionStates(), CachingProvider()
        self.logs = PrefixLogs()
        self._simulate = SimulateSavings(self.session_states, self.logs)
        spending = SpendingOptions(caps=(), prices=PRICES)
        self.ledger = RecordingLedger()
        self.keep_alive = KeepAliveScheduler(
            self.client,
            Admission(self.ledger, clock=self.clock),
            lambda: spending,
            lambda _: self.options,
            self.session_states,
            clock=self.clock,
        )

    async def start_request(self, session: str, body: bytes) -> RequestContext:
        """Run a request until it is sent."""
        incoming = IncomingRequest(
            id=session,
            agent="ana",
            api_format=Format.ANTHROPIC,
            provider="anthropic",
            upstream="anthropic",
            body=body,
            find_endpoint=lambda: SummarizerEndpoint(
                url="http://there/v1/messages", api_format=Format.ANTHROPIC, headers={"x-api-key": KEY}
            ),
        )
        request = formats.parse_request(body, Format.ANTHROPIC)
        context = RequestContext(
            incoming=incoming, options=self.options, received_at=self.clock(), original=request, request=request
        )
        tokens = context.counter.count_request(request).total.tokens
        context.count.total = TokenCount(tokens, True, tokens)
        await PlaceBreakpoints(self.session_states, RejectionMemory(), self.logs).apply(context)
        await ReadSimulatedPrompts().apply(context)
        self.keep_alive.cancel_planned(context)
        return context

    async def finish_request(self, context: RequestContext, *texts: str) -> Exchange:
        exchange = Exchange(
            context.incoming,
            context,
            UpstreamRequest(body=context.write_body()),
            hooks=CallHooks(in_background=(self._simulate, self.keep_alive)),
            clock=self.clock,
            observer=NO_OBSERVER,
            completer=CompletionQueue(),
        )
        exchange.on_response_start(200, is_streaming=False)
        usage = {"input_tokens": 10, "output_tokens": 10}
        content = [{"type": "text", "text": text} for text in texts]
        exchange.on_chunk(msgspec.json.encode({"content": content, "stop_reason": "end_turn", "usage": usage}))
        exchange.flush()
        exchange.finish()
        await exchange.wait_until_completed()
        return exchange


class CachingProvider(JsonClient):
    """Accepts every keep-alive as if everything were cached; or does not respond."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytes] = []
        self.has_request = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_stuck = False
        self.was_cancelled = False

    async def post_json(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> JsonReply:
        self.bodies.append(body)
        self.has_request.set()
        await self.may_answer.wait()
        if self.is_stuck:
            try:
                await asyncio.sleep(60)
            finally:
                self.was_cancelled = True
        payload = {"usage": {"input_tokens": 3, "cache_read_input_tokens": 10**6, "output_tokens": 0}}
        return msgspec.json.decode(msgspec.json.encode(payload), type=JsonReply)


async def wait_until_sent(agent: AgentSessions) -> None:
    async with asyncio.timeout(10):
        await agent.client.has_request.wait()


@pytest.mark.slow
async def test_only_the_sessions_that_save_most_are_kept_alive() -> None:
    agent = AgentSessions(KeepAliveOptions(enabled=True, max_sessions=2))
    for session, text in (("small", 3_500), ("large", 12_000), ("middling", 6_000)):
        await agent.finish_request(await agent.start_request(session, make_body(0, text)), "Yes.")
    planned_count = agent.keep_alive.planned_count
    agent.clock.now += 291
    await wait_until_sent(agent)
    await asyncio.sleep(0.3)
    await agent.keep_alive.close()

    assert planned_count == 2
    assert sorted(map(len, agent.client.bodies))[0] > 30_000  # the smallest has none
    assert len(agent.client.bodies) == 2
    assert {entry.call.category for entry in agent.ledger.settled} == {"ping"}
    assert all(-(entry.savings.keep_alive or 0) == entry.dollars != 0 for entry in agent.ledger.settled)


async def test_keep_alive_is_not_a_loss_for_a_session_that_would_exceed_the_window() -> None:
    agent = AgentSessions(KeepAliveOptions(enabled=True))
    await agent.finish_request(await agent.start_request("one", make_body(0)), "Yes.")
    state = agent.session_states.session("ana", "one")
    agent.session_states.put("ana", "one", structs.replace(state, would_exceed_window=True))
    agent.clock.now += 291
    await wait_until_sent(agent)
    await asyncio.sleep(0.1)
    await agent.keep_alive.close()

    assert [entry.savings for entry in agent.ledger.settled] == [
        Savings(comparison=ComparisonOutcome.WOULD_NOT_FIT)
    ]


async def test_a_request_cancels_the_plan_and_only_the_last_one_plans_again() -> None:
    agent = AgentSessions(KeepAliveOptions(enabled=True))
    await agent.finish_request(await agent.start_request("one", make_body(0)), "Yes.")
    planned = agent.keep_alive.planned_count
    first = await agent.start_request("one", make_body(1))
    second = await agent.start_request("one", make_body(2))
    during = agent.keep_alive.planned_count
    await agent.finish_request(second, "Yes.")
    planned_meanwhile = agent.keep_alive.planned_count
    await agent.finish_request(first, "Yes.")
    await agent.keep_alive.close()

    assert (planned, during, planned_meanwhile) == (1, 0, 0)


async def test_what_a_request_writes_during_a_keep_alive_stays_in_the_simulated_cache() -> None:
    """Defect: a keep-alive put back the cache as it was before, so the session's cache seemed to be shorter."""
    agent = AgentSessions(KeepAliveOptions(enabled=True))
    await agent.finish_request(await agent.start_request("one", make_body(0)), "Yes.")
    agent.client.may_answer.clear()
    agent.clock.now += 291
    await wait_until_sent(agent)
    await agent.finish_request(await agent.start_request("one", make_body(9)), "Yes.")
    written = set(agent.session_states.session("ana", "one").cache.entries)
    agent.client.may_answer.set()
    await asyncio.sleep(0.1)
    kept = set(agent.session_states.session("ana", "one").cache.entries)
    await agent.keep_alive.close()

    assert kept >= written


async def test_closing_cancels_keep_alive_requests_in_flight() -> None:
    agent = AgentSessions(KeepAliveOptions(enabled=True))
    agent.client.is_stuck = True
    await agent.finish_request(await agent.start_request("one", make_body(0)), "Yes.")
    await agent.finish_request(await agent.start_request("other", make_body(1)), "Yes.")
    agent.clock.now += 291
    await wait_until_sent(agent)
    async with asyncio.timeout(5):
        await agent.keep_alive.close()

    assert agent.keep_alive.planned_count == 0
    assert agent.client.was_cancelled


@pytest.mark.slow
async def test_nothing_is_sent_once_keep_alive_is_off() -> None:
    agent = AgentSessions(KeepAliveOptions(enabled=True))
    await agent.finish_request(await agent.start_request("one", make_body(0)), "Yes.")
    agent.options = AgentOptions()
    agent.clock.now += 291
    await asyncio.sleep(0.6)
    await agent.keep_alive.close()

    assert agent.client.bodies == []


@settings(max_examples=limit_examples(25))
@given(
    st.lists(st.text(min_size=1, max_size=40).filter(str.strip), min_size=1, max_size=3),
    st.integers(0, 12),
    st.booleans(),
)
def test_the_provider_accepts_a_keep_alive_that_begins_like_the_request(
    texts: list[str], turns: int, with_response: bool
) -> None:
    async def make_keep_alive() -> tuple[bytes, bytes]:
        agent = AgentSessions(KeepAliveOptions(enabled=True))
        exchange = await agent.finish_request(await agent.start_request("one", make_body(turns)), *texts)
        warm = warm_session(exchange)
        assert warm is not None
        keep_alive = KeepAlive(
            at=0.0, pieces=len(warm.prompt.pieces), includes_response=with_response, saved_tokens=1.0
        )
        state = agent.session_states.session("ana", "one")
        next_warm = apply_keep_alive(warm, keep_alive, state.cache, now=agent.clock())
        await agent.keep_alive.close()
        return exchange.upstream_request.body, next_warm.body

    request, body = asyncio.run(make_keep_alive())
    original, payload = msgspec.json.decode(request), msgspec.json.decode(body)

    assert validate_request(formats.parse_request(body, Format.ANTHROPIC)) is None
    assert (payload["max_tokens"], payload["stream"]) == (0, False)
    assert without_breakpoints(payload["messages"])[: 2 * turns + 1] == without_breakpoints(
        original["messages"]
    )
    assert len(payload["messages"]) == len(original["messages"]) + 2 * with_response
    assert body.count(b'"cache_control"') <= 4


def without_breakpoints(messages: list[dict[str, object]]) -> list[tuple[object, object]]:
    """The messages without breakpoints, strings as equivalent text blocks."""

    def texts(content: object) -> object:
        return [block["text"] for block in content] if isinstance(content, list) else [content]

    return [(message["role"], texts(message["content"])) for message in messages]

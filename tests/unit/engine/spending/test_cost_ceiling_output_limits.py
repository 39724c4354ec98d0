"""Requests without an output limit get one that fits under the caps."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.cost.admission import Admission
from foveate.cost.caps import DEFAULT_MIN_OUTPUT_TOKENS, Cap, CapScope
from foveate.cost.ledger import AccountBalance, AccountOverLimit, Reservation
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.completion_queue import CompletionQueue
from foveate.engine.engine import Engine
from foveate.engine.exchange import CallHooks, Exchange
from foveate.engine.options import AgentOptions, SpendingOptions
from foveate.engine.request import IncomingRequest
from foveate.engine.request_context import RequestContext
from foveate.engine.session_state import SessionStates
from foveate.engine.spending.charges import ChargeRecorder, CompareCosts
from foveate.engine.spending.observed_admission import CapUncounted
from foveate.engine.steps.caps import EnforceCaps
from foveate.errors import BadEdit, CallRefused, CapExceeded
from foveate.model import Area, CacheBreakpoint, Format, Place, SetParameter, TokenCount
from tests.support.oracles.engine_observers import StepObserver
from tests.support.servers.sandbox import ManualClock
from tests.support.stores.recording_ledger import RecordingLedger

INPUT_TOKENS = 10_000
# gpt-6-sol: $2 and $10 for a million tokens, cache writes 1.25 times, at most 128,000 tokens of output.
INPUT_DOLLARS, OUTPUT_PRICE = INPUT_TOKENS * Decimal("2.5e-6"), Decimal("10e-6")


class YieldingLedger(RecordingLedger):
    """A ledger that other calls reach while a reservation is made."""

    async def reserve(
        self, reservation: Reservation, *, now: float
    ) -> Mapping[str, AccountBalance] | AccountOverLimit:
        await asyncio.sleep(0)
        return await super().reserve(reservation, now=now)


class CountTokens:
    """Counts every request alike, and may place a breakpoint that cannot be written."""

    name = "count"

    def __init__(self, breakpoints: Sequence[CacheBreakpoint]) -> None:
        self._breakpoints = tuple(breakpoints)

    async def apply(self, context: RequestContext) -> None:
        context.count.total = TokenCount(INPUT_TOKENS, exact=True, upper=INPUT_TOKENS)
        context.cache.breakpoints = self._breakpoints


class CappedEngine:
    """An engine that only enforces caps."""

    def __init__(
        self,
        *caps: Cap,
        min_output_tokens: int = DEFAULT_MIN_OUTPUT_TOKENS,
        breakpoints: Sequence[CacheBreakpoint] = (),
    ) -> None:
        self.ledger, clock = YieldingLedger(), ManualClock()
        admission = Admission(self.ledger, clock=clock)
        spending = SpendingOptions(caps=caps, prices=PriceBook(), min_output_tokens=min_output_tokens)
        recorder = ChargeRecorder(admission, lambda: spending)
        self.engine = Engine(
            steps=(CountTokens(breakpoints), EnforceCaps(admission, lambda: spending)),
            hooks=CallHooks(
                before_last_byte=(recorder.complete,),
                after_response=(CompareCosts(lambda: spending, SessionStates()),),
            ),
            charges=recorder,
            completion_queue=CompletionQueue(recorder),
            options=lambda _: AgentOptions(),
            clock=clock,
            observer=StepObserver(),
            admit_uncounted=CapUncounted(admission, lambda: spending, clock),
        )
        self._calls = 0

    async def prepare(
        self,
        fields: Mapping[str, Any] | None = None,
        *,
        api_format: Format = Format.RESPONSES,
        provider: str = "openai",
        agent: str = "codex",
    ) -> Exchange:
        self._calls += 1
        extra = (
            {"input": "Hi"}
            if api_format is Format.RESPONSES
            else {"messages": [{"role": "user", "content": "Hi"}]}
        )
        body = json.dumps({"model": "gpt-6-sol", **extra, **(fields or {})}).encode()
        return await self.engine.prepare(
            IncomingRequest(
                id=f"call {self._calls}",
                agent=agent,
                api_format=api_format,
                provider=provider,
                upstream="u",
                body=body,
            )
        )


def cap(dollars: str | Decimal, scope: CapScope = CapScope.DAY, agent: str | None = None) -> Cap:
    return Cap(scope=scope, dollars=Decimal(dollars), agent=agent)


def sent_body(exchange: Exchange) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(exchange.upstream_request.body)
    return body


def dollars_for(tokens: int) -> Decimal:
    return INPUT_DOLLARS + tokens * OUTPUT_PRICE


async def test_a_request_whose_ceiling_fits_is_unchanged() -> None:
    exchange = await CappedEngine(cap("5")).prepare()

    assert exchange.upstream_request.body == exchange.incoming.body
    assert exchange.upstream_request.applied_edits == ()


async def test_a_request_whose_ceiling_does_not_fit_gets_a_limit_that_fits() -> None:
    engine = CappedEngine(cap(dollars_for(20_000)))
    exchange = await engine.prepare()

    assert sent_body(exchange)["max_output_tokens"] == 20_000
    assert engine.ledger.reserved[0].dollars == dollars_for(20_000)
    (applied,) = exchange.upstream_request.applied_edits
    assert (applied.step, applied.edit.reason) == (
        "cost",
        "the client sets no output limit, and the cap on a day leaves $0.225",
    )


@pytest.mark.parametrize(
    ("scope", "room_tokens", "limit"),
    [
        (CapScope.DAY, 100_000, 50_000),
        (CapScope.DAY, 50_000, 32_000),
        (CapScope.DAY, 20_000, 20_000),
        (CapScope.CALL, 100_000, 100_000),
    ],
)
async def test_a_high_limit_leaves_room_for_other_calls_under_a_shared_cap(
    scope: CapScope, room_tokens: int, limit: int
) -> None:
    exchange = await CappedEngine(cap(dollars_for(room_tokens), scope)).prepare()

    assert sent_body(exchange)["max_output_tokens"] == limit


@pytest.mark.parametrize(
    ("model", "provider", "name"),
    [
        ("gpt-6-sol", "openai", "max_completion_tokens"),
        ("o3", "azure", "max_completion_tokens"),
        ("openai/gpt-5.2", "openrouter", "max_tokens"),
        ("deepseek-chat", "deepseek", "max_tokens"),
    ],
)
async def test_a_chat_is_limited_by_the_parameter_that_its_model_accepts(
    model: str, provider: str, name: str
) -> None:
    engine = CappedEngine(cap("0.5", CapScope.CALL), cap("0.15"))
    exchange = await engine.prepare({"model": model, "n": 2}, api_format=Format.CHAT, provider=provider)

    limits = {key: value for key, value in sent_body(exchange).items() if key.startswith("max_")}
    assert list(limits) == [name]
    assert limits[name] >= DEFAULT_MIN_OUTPUT_TOKENS
    assert engine.ledger.reserved[0].dollars <= Decimal("0.15")


async def test_the_limit_applies_to_each_of_several_choices() -> None:
    exchange = await CappedEngine(cap(dollars_for(30_000))).prepare({"n": 3}, api_format=Format.CHAT)

    assert sent_body(exchange)["max_completion_tokens"] == 10_000


@pytest.mark.parametrize(
    ("api_format", "fields"),
    [
        (Format.RESPONSES, {"max_output_tokens": 100_000}),
        (Format.RESPONSES, {"max_output_tokens": "many"}),
        (Format.CHAT, {"max_tokens": 100_000}),
        (Format.ANTHROPIC, {"model": "claude-opus-4-5", "max_tokens": 60_000}),
        (Format.ANTHROPIC, {"model": "claude-opus-4-5"}),  # the API requires a limit
    ],
)
async def test_limits_that_the_client_set_or_the_api_requires_are_never_changed(
    api_format: Format, fields: Mapping[str, Any]
) -> None:
    provider = "anthropic" if api_format is Format.ANTHROPIC else "openai"
    with pytest.raises(CapExceeded):
        await CappedEngine(cap("0.3")).prepare(fields, api_format=api_format, provider=provider)


async def test_a_limit_of_null_is_not_a_limit() -> None:
    exchange = await CappedEngine(cap(dollars_for(9_000))).prepare({"max_output_tokens": None})

    assert sent_body(exchange)["max_output_tokens"] == 9_000


async def test_a_call_is_rejected_with_numbers_if_the_minimum_does_not_fit() -> None:
    assert sent_body(await CappedEngine(cap(dollars_for(4_000))).prepare())["max_output_tokens"] == 4_000
    with pytest.raises(CapExceeded) as raised:
        await CappedEngine(cap(dollars_for(3_999))).prepare()

    message = str(raised.value)
    assert (
        "may cost $0.065 even if its output is limited to 4,000 tokens, and the cap on a day is $0.06499"
        in message
    )
    assert "request fewer output tokens" in message


async def test_the_minimum_is_configurable() -> None:
    exchange = await CappedEngine(cap(dollars_for(500)), min_output_tokens=500).prepare()

    assert sent_body(exchange)["max_output_tokens"] == 500


async def test_a_minimum_above_half_of_the_room_is_kept() -> None:
    """Defect: the limit was 32,000 or half of the room, also if that is less than the minimum."""
    exchange = await CappedEngine(cap(dollars_for(50_000)), min_output_tokens=40_000).prepare()

    assert sent_body(exchange)["max_output_tokens"] == 40_000


async def test_the_tightest_of_several_caps_decides() -> None:
    caps = (
        cap("5", CapScope.TOTAL),
        cap(dollars_for(30_000), CapScope.CALL),
        cap(dollars_for(20_000), CapScope.SESSION),
        cap(dollars_for(7_000), agent="codex"),
        cap(dollars_for(25_000), CapScope.AGENT),
    )

    assert sent_body(await CappedEngine(*caps).prepare())["max_output_tokens"] == 7_000
    assert sent_body(await CappedEngine(*caps).prepare(agent="aider"))["max_output_tokens"] == 20_000


class AddInvalidLimit:
    """A step that adds a limit which cannot be written."""

    name = "spoil"

    async def apply(self, context: RequestContext) -> None:
        context.cost.output_limit = SetParameter(path=("input", "limit"), value=1, reason="")


async def test_a_call_that_cannot_be_written_reserves_nothing() -> None:
    capped = CappedEngine(cap("1000"))
    capped.engine = replace(capped.engine, steps=(*capped.engine.steps, AddInvalidLimit()))
    with pytest.raises(BadEdit):
        await capped.prepare()
    await capped.engine.completion_queue.close()

    assert (len(capped.ledger.reserved), capped.ledger.open, capped.ledger.settled) == (1, {}, [])


async def test_the_limit_is_sent_even_if_other_edits_cannot_be_written() -> None:
    invalid_breakpoint = CacheBreakpoint(place=Place(Area.MESSAGES, 7, 0), reason="")
    exchange = await CappedEngine(cap(dollars_for(9_000)), breakpoints=[invalid_breakpoint]).prepare()

    assert sent_body(exchange)["max_output_tokens"] == 9_000


@pytest.mark.slow
@given(
    dollars=st.lists(st.decimals("0.05", "3", places=3), min_size=4, max_size=4),
    calls=st.lists(
        st.tuples(st.sampled_from(("codex", "aider")), st.booleans(), st.floats(0, 1)), min_size=1, max_size=40
    ),
    concurrency=st.integers(1, 20),
)
async def test_concurrent_calls_without_limits_never_exceed_a_cap(
    dollars: list[Decimal], calls: list[tuple[str, bool, float]], concurrency: int
) -> None:
    """Charges stay within each cap, although every call may use all of its limit."""
    day, total, agent, call = dollars
    engine = CappedEngine(
        cap(day), cap(total, CapScope.TOTAL), cap(agent, CapScope.AGENT, "codex"), cap(call, CapScope.CALL)
    )
    charged = {"codex": Decimal(0), "aider": Decimal(0)}

    async def make_call(agent: str, streams: bool, share: float) -> None:
        try:
            exchange = await engine.prepare({"stream": streams}, agent=agent)
        except CallRefused:
            return
        limit = sent_body(exchange).get("max_output_tokens", 128_000)
        output_tokens = int(limit * share) if share < 0.5 else limit
        usage = {"input_tokens": INPUT_TOKENS, "output_tokens": output_tokens}
        cost = INPUT_TOKENS * Decimal("2e-6") + output_tokens * OUTPUT_PRICE
        assert cost <= call
        charged[agent] += cost
        await asyncio.sleep(0)
        exchange.on_response_start(200, is_streaming=streams)
        event = {"type": "response.completed", "response": {"object": "response", "usage": usage}}
        body = json.dumps(event if streams else event["response"]).encode()
        exchange.on_chunk(b"data: %b\n\n" % body if streams else body)
        exchange.flush()
        exchange.finish()
        await exchange.wait_until_completed()

    for start in range(0, len(calls), concurrency):
        await asyncio.gather(*(make_call(*call) for call in calls[start : start + concurrency]))

    assert sum(charged.values()) <= min(day, total)
    assert charged["codex"] <= agent
    assert engine.ledger.spent.get("total", Decimal(0)) == sum(charged.values())
    assert engine.ledger.open == {}

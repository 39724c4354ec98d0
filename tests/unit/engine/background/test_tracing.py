"""Traces are saved after responses, without text of requests, and nothing waits for them."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from foveate import formats
from foveate.engine.background.tracing import (
    MAX_EDITS,
    KeepSentMessages,
    SaveTraces,
    break_down_window,
    finished_request,
    make_trace,
)
from foveate.engine.completion_queue import CompletionQueue
from foveate.engine.exchange import Exchange
from foveate.engine.observer import NO_OBSERVER
from foveate.engine.options import AgentOptions
from foveate.engine.request import AppliedEdit, IncomingRequest, StepFailure, UpstreamRequest
from foveate.engine.request_context import RequestContext
from foveate.engine.steps import SECTIONS
from foveate.errors import StoreUnavailable
from foveate.model import (
    Area,
    CacheBreakpoint,
    Edit,
    Format,
    InsertParts,
    Place,
    ReorderTools,
    ReplaceMessages,
    ReplaceText,
    SetParameter,
    Text,
    Ttl,
)
from foveate.session.traces import CacheMiss, ChargedTrace, Trace, TracedSession

SECRET = "the garden gate is 4711"


@dataclass
class InMemoryTraces:
    """Implements `Traces` in memory; everything raises while `is_unavailable`."""

    saved: list[Trace] = field(default_factory=list)
    calls: int = 0
    is_unavailable: bool = False
    has_saved: asyncio.Event = field(default_factory=asyncio.Event)

    async def save(self, traces: Sequence[Trace], cache_misses: Sequence[tuple[str, CacheMiss]] = ()) -> None:
        assert not cache_misses
        self.calls += 1
        if self.is_unavailable:
            raise StoreUnavailable("the store", "is gone")
        self.saved += traces
        self.has_saved.set()

    async def get(self, request_id: str) -> ChargedTrace | None:
        raise NotImplementedError

    async def list_traces(self, **filters: Any) -> Sequence[ChargedTrace]:
        raise NotImplementedError

    async def list_sessions(
        self, *, limit: int, since: float | None = None, agent: str | None = None
    ) -> Sequence[TracedSession]:
        raise NotImplementedError

    async def find_ids(self, prefix: str, *, limit: int) -> tuple[list[str], list[str]]:
        raise NotImplementedError


def make_body(messages: Sequence[dict[str, Any]], **fields: Any) -> bytes:
    return json.dumps({"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": messages, **fields}).encode()


HELLO = make_body([{"role": "user", "content": SECRET}])


async def make_context(body: bytes, api_format: Format = Format.ANTHROPIC) -> RequestContext:
    """A request after all steps."""
    incoming = IncomingRequest(
        id="req",
        agent="ana",
        api_format=api_format,
        provider="anthropic",
        upstream="http://upstream",
        body=body,
    )
    request = formats.parse_request(body, api_format)
    context = RequestContext(
        incoming=incoming, options=AgentOptions(), received_at=5.0, original=request, request=request
    )
    await KeepSentMessages().apply(context)
    context.count.total = context.counter.count_request(request).total
    return context


async def make_exchange(*edits: Edit, body: bytes = HELLO, problems: Sequence[StepFailure] = ()) -> Exchange:
    context = await make_context(body)
    outgoing = UpstreamRequest(
        body=body, applied_edits=tuple(AppliedEdit("step", edit) for edit in edits), problems=tuple(problems)
    )
    exchange = Exchange(
        context.incoming,
        context,
        outgoing,
        clock=lambda: 7.0,
        received_at=6.5,
        observer=NO_OBSERVER,
        completer=CompletionQueue(),
    )
    exchange.on_response_start(200, is_streaming=False)
    return exchange


def trace_exchange(exchange: Exchange) -> Trace:
    finished = finished_request(exchange)
    assert finished is not None
    return make_trace(finished)


async def test_traces_of_a_short_time_are_saved_together() -> None:
    store = InMemoryTraces()
    tracing = SaveTraces(store, interval_seconds=0.01)
    for _ in range(3):
        tracing(await make_exchange())
    assert store.calls == 0
    await asyncio.wait_for(store.has_saved.wait(), 30)

    assert (store.calls, len(store.saved)) == (1, 3)
    tracing(await make_exchange())
    await tracing.close()
    assert (store.calls, len(store.saved), tracing.dropped_count) == (2, 4, 0)
    assert store.saved[0].added_seconds == 0.5


async def test_an_unavailable_or_slow_store_loses_traces_and_nothing_else() -> None:
    tracing = SaveTraces(InMemoryTraces(is_unavailable=True), interval_seconds=9.0, max_waiting=2)
    for _ in range(3):
        tracing(await make_exchange())
    await tracing.close()

    assert tracing.dropped_count == 3


async def test_waiting_bodies_are_bounded() -> None:
    store = InMemoryTraces()
    tracing = SaveTraces(store, interval_seconds=9.0, max_waiting_bytes=len(HELLO) + 1)
    for _ in range(2):
        tracing(await make_exchange())
    await tracing.close()

    assert (len(store.saved), tracing.dropped_count) == (1, 1)


async def test_a_request_that_was_never_sent_has_no_trace() -> None:
    store = InMemoryTraces()
    tracing = SaveTraces(store)
    unsent = await make_exchange()
    unsent.mark_unsent()
    tracing(unsent)
    await tracing.close()

    assert store.calls == 0


PLACE = Place(Area.MESSAGES, 3, 1)


@pytest.mark.parametrize(
    ("edit", "does", "place"),
    [
        (CacheBreakpoint(place=PLACE, reason="r", ttl=Ttl.ONE_HOUR), "mark 1h", "messages[3] block 1"),
        (ReplaceText(place=PLACE, text=SECRET, reason="r"), "cut", "messages[3] block 1"),
        (ReplaceMessages(start=2, end=9, messages=(), reason="r"), "drop", "messages[2-8]"),
        (ReplaceMessages(start=2, end=2, messages=(), reason="r"), "drop", "messages[2]"),
        (InsertParts(place=Place(Area.SYSTEM, 1), parts=(Text(SECRET),), reason="r"), "insert", "system[1]"),
        (ReorderTools(order=(1, 0), reason="r"), "reorder", "tools"),
        (SetParameter(path=("a", "b"), value=1, reason="r"), "set", "a.b"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
async def test_an_edit_is_traced_by_its_action_and_place_and_not_by_its_text(
    edit: Edit, does: str, place: str
) -> None:
    trace = trace_exchange(await make_exchange(edit))

    assert [(edit.does, edit.place, edit.reason) for edit in trace.edits] == [(does, place, "r")]
    assert SECRET not in repr(trace)


async def test_the_first_edits_are_traced_and_the_others_counted() -> None:
    edits = [SetParameter(path=("a",), value=at, reason="r") for at in range(MAX_EDITS + 7)]
    trace = trace_exchange(await make_exchange(*edits))

    assert (len(trace.edits), trace.edits_left_out) == (MAX_EDITS, 7)


async def test_keys_in_problems_are_redacted() -> None:
    trace = trace_exchange(await make_exchange(problems=[StepFailure("memory", "401 for sk-ant-1234567890")]))

    assert trace.problems == (("memory", "401 for [key]"),)


async def test_only_the_type_of_a_foreign_error_is_traced() -> None:
    """Its message may contain text of the conversation."""
    messages = [
        StepFailure("memory", "KeyError: 'my secret plan'"),
        StepFailure("fold", "StoreUnavailable: no answer"),
    ]
    trace = trace_exchange(await make_exchange(problems=messages))

    assert trace.problems == (("memory", "KeyError"), ("fold", "StoreUnavailable: no answer"))


def make_tool_conversation(count: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Find the slow parser."}]
    for at in range(count):
        call = {"type": "tool_use", "id": f"t{at}", "name": "read", "input": {"path": f"{at}.py"}}
        result = {"type": "tool_result", "tool_use_id": f"t{at}", "content": "def parse(text):\n" * 40}
        messages += [
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, call]},
            {"role": "user", "content": [result]},
        ]
    return messages


TOOLS = [{"name": "read", "description": "Reads a file.", "input_schema": {"type": "object"}}]


async def test_the_parts_of_a_window_add_up_to_its_count() -> None:
    context = await make_context(make_body(make_tool_conversation(5), system="Be careful. " * 50, tools=TOOLS))
    window_parts = {section.name: section.tokens for section in break_down_window(context)}
    parts = {part.name: part.tokens for part in context.counter.count_request(context.request).parts}

    assert context.count.total is not None
    assert sum(window_parts.values()) == context.count.total.tokens
    assert list(window_parts) == ["tools", "system", "user", "assistant", "tool results"]
    assert abs(window_parts["system"] - parts["system"]) <= 2
    assert abs(window_parts["tools"] - parts["tools"]) <= 2
    result_tokens = sum(parts[f"messages[{at}]"] for at in range(2, 11, 2))
    assert abs(window_parts["tool results"] - result_tokens) <= 5


async def test_a_grown_session_has_the_same_parts_as_a_new_one() -> None:
    from foveate.caching import drop_caches

    for rounds in (1, 2, 3):
        grown = break_down_window(await make_context(make_body(make_tool_conversation(rounds))))
    drop_caches()

    assert grown == break_down_window(await make_context(make_body(make_tool_conversation(3))))


async def test_injected_sections_are_parts_of_their_own() -> None:
    context = await make_context(
        make_body([{"role": "user", "content": "word " * 500}], system="Be careful. " * 400)
    )
    without_sections = {section.name: section.tokens for section in break_down_window(context)}
    stable = InsertParts(
        place=Place(Area.SYSTEM, 1), parts=(), reason="section workspace, 300 tokens", saved_tokens=-300
    )
    turn = InsertParts(
        place=Place(Area.MESSAGES, 0, 1), parts=(), reason="section time, 40 tokens", saved_tokens=-40
    )
    context.applied_edits += [AppliedEdit(SECTIONS, stable), AppliedEdit(SECTIONS, turn)]
    window_parts = {section.name: section.tokens for section in break_down_window(context)}

    assert list(window_parts) == ["system", "injected workspace", "user", "injected time"]
    assert abs(window_parts["injected workspace"] - 300) <= 2
    assert abs(without_sections["system"] - window_parts["system"] - 300) <= 2


async def test_images_thinking_and_system_messages_are_parts_of_their_own() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 9000}}
    thinking_block = {"type": "thinking", "thinking": "Is it a parser? " * 20, "signature": "A" * 40}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [picture, {"type": "text", "text": "What is it? " * 50}]},
        {"role": "assistant", "content": [thinking_block, {"type": "text", "text": "A parser."}]},
        {"role": "user", "content": "Go on."},
    ]
    names = {section.name for section in break_down_window(await make_context(make_body(messages)))}
    assert names == {"user", "assistant", "thinking", "images and files"}

    chat = make_body([{"role": "system", "content": "Be careful. " * 40}, {"role": "user", "content": "Hello"}])
    parts = break_down_window(await make_context(chat, Format.CHAT))
    assert [section.name for section in parts] == ["system", "user"]
    assert parts[0].tokens > 50


async def test_an_uncounted_request_has_no_parts() -> None:
    context = await make_context(HELLO)
    context.count.total = None

    assert break_down_window(context) == ()

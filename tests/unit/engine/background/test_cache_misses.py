"""Detection of cache misses while requests are served."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import chain, repeat

import pytest

from foveate import formats
from foveate.compaction.store import Compaction
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.background.cache_misses import CacheMissDetector, describe_miss, describe_miss_briefly
from foveate.engine.completion_queue import CompletionQueue
from foveate.engine.exchange import CallHooks, Exchange
from foveate.engine.observer import NO_OBSERVER, NullObserver, SessionCacheMiss
from foveate.engine.options import AgentOptions, SpendingOptions
from foveate.engine.request import AppliedEdit, IncomingRequest, UpstreamRequest
from foveate.engine.request_context import RequestContext
from foveate.model import Area, Format, ReplaceMessages
from foveate.prompt_cache.misses.causes import MissCause
from foveate.session.matching import SessionMatch
from tests.support.stores.records import COMPACTION, make_session

MODEL = "claude-opus-5-5"
BREAKPOINT = {"type": "ephemeral"}


class RecordingObserver(NullObserver):
    def __init__(self) -> None:
        self.misses: list[SessionCacheMiss] = []

    def on_cache_miss(self, miss: SessionCacheMiss) -> None:
        self.misses.append(miss)


def make_detector(
    observer: RecordingObserver | None = None,
    *,
    max_bytes: int = 10**9,
    max_single_body_bytes: int = 10**9,
    monotonic: Iterator[float] | None = None,
) -> CacheMissDetector:
    cost = SpendingOptions(caps=(), prices=PriceBook())
    clock = monotonic or iter(range(10**9))
    return CacheMissDetector(
        lambda: cost,
        observer=observer or RecordingObserver(),
        max_bytes=max_bytes,
        max_single_body_bytes=max_single_body_bytes,
        monotonic=lambda: next(clock),
    )


def make_body(system: str, *, turns: int = 1, word: str = "turn") -> bytes:
    payload: list[dict[str, object]] = [
        {"role": ("user", "assistant")[at % 2], "content": f"{word} {at}"} for at in range(2 * turns - 1)
    ]
    payload[-1]["content"] = [{"type": "text", "text": payload[-1]["content"], "cache_control": BREAKPOINT}]
    system_blocks = [{"type": "text", "text": system, "cache_control": BREAKPOINT}]
    return json.dumps({"model": MODEL, "max_tokens": 9, "system": system_blocks, "messages": payload}).encode()


async def finish_call(
    detector: CacheMissDetector,
    system: str,
    *,
    name: str = "s",
    at: float = 0.0,
    read: int = 0,
    written: int = 0,
    turns: int = 1,
    word: str = "turn",
    compaction: Compaction | None = None,
    applied_edits: Sequence[AppliedEdit] = (),
    status: int = 200,
) -> None:
    """Finish a call of a session with this usage."""
    body = make_body(system, turns=turns, word=word)
    incoming = IncomingRequest(
        id=f"req {name} {at}",
        agent="ana",
        api_format=Format.ANTHROPIC,
        provider="anthropic",
        upstream="anthropic",
        body=body,
    )
    request = formats.parse_request(body)
    context = RequestContext(
        incoming=incoming, options=AgentOptions(), received_at=at, original=request, request=request
    )
    context.compaction, context.applied_edits = compaction, list(applied_edits)
    context.session.match = SessionMatch(
        session=make_session(name, 2), known_messages=0, is_new=False, is_fork=False
    )
    exchange = Exchange(
        incoming,
        context,
        UpstreamRequest(body=body),
        hooks=CallHooks(in_background=(detector,)),
        clock=lambda: at,
        observer=NO_OBSERVER,
        completer=CompletionQueue(),
    )
    exchange.on_response_start(status, is_streaming=False)
    usage = {
        "input_tokens": 9,
        "output_tokens": 7,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
    }
    exchange.on_chunk(json.dumps({"type": "message", "content": [], "usage": usage}).encode())
    exchange.flush()
    exchange.finish()
    await exchange.wait_until_completed()


LONG = "You are a careful engineer. " * 600


async def test_a_miss_is_reported_with_the_changed_bytes_and_its_price() -> None:
    observer = RecordingObserver()
    detector = make_detector(observer)
    await finish_call(detector, f"{LONG} It is 12:00:01.", at=0, written=3600)
    await finish_call(detector, f"{LONG} It is 12:00:02.", at=20, written=3600)
    await finish_call(detector, f"{LONG} It is 12:00:02.", at=40, read=3600, turns=2)
    await detector.close()

    (miss,) = observer.misses
    assert list(detector.recent) == [miss]
    assert (miss.request_id, miss.previous_id, miss.session_id) == ("req s 20", "req s 0", "s")
    verdict = miss.verdict
    assert verdict.cause is MissCause.TIME
    assert verdict.place is not None
    assert verdict.place.area is Area.SYSTEM
    assert verdict.before is not None
    assert verdict.before.end_byte - verdict.before.start_byte < 20
    assert verdict.read_tokens == 0
    assert verdict.lost_dollars is not None
    assert Decimal("0.01") < verdict.lost_dollars < Decimal("0.1")
    assert describe_miss(miss).startswith("req s 20: cache miss in session s: time at system 0, bytes ")
    assert re.fullmatch(
        r"cache miss s: time changed in system; [\d,]+ of [\d,]+ tokens lost, \$0\.\d{4}",
        describe_miss_briefly(miss),
    )


async def test_a_new_compaction_is_reported_as_such_and_not_as_another_conversation() -> None:
    """Defect: if nothing of the last request remained, the cause was `other_conversation` or `edited`."""
    observer = RecordingObserver()
    detector = make_detector(observer)
    compactions = {
        "oak": None,
        "elm": COMPACTION,
        "ash": replace(COMPACTION, id="fold-3"),
        "fir": None,
        "yew": None,
    }
    for at, (word, compaction) in enumerate(compactions.items()):
        await finish_call(
            detector,
            LONG,
            at=at,
            read=3600,
            written=3600,
            turns=2,
            word=f"{word} " * 1200,
            compaction=compaction,
        )
    await detector.close()

    in_order = sorted(observer.misses, key=lambda miss: miss.request_id)  # they are explained concurrently
    causes = [miss.verdict.cause for miss in in_order]
    assert causes == [
        MissCause.COMPACTION,
        MissCause.COMPACTION,
        MissCause.COMPACTION_UNDONE,
        MissCause.OTHER_CONVERSATION,
    ]
    assert [miss.is_planned for miss in in_order] == [True, True, True, False]


async def test_messages_dropped_to_make_room_are_a_planned_rewrite() -> None:
    observer = RecordingObserver()
    detector = make_detector(observer)
    for at, (word, end) in enumerate((("oak", 0), ("elm", 2), ("ash", 4), ("fir", 4))):
        edits = (
            [AppliedEdit("room", ReplaceMessages(start=0, end=end, messages=(), reason="room"))] if end else []
        )
        await finish_call(
            detector, LONG, at=at, read=3600, written=3600, turns=2, word=f"{word} " * 1200, applied_edits=edits
        )
    await detector.close()

    in_order = sorted(observer.misses, key=lambda miss: miss.request_id)
    causes = [miss.verdict.cause for miss in in_order]
    assert causes == [MissCause.TRIMMING, MissCause.TRIMMING, MissCause.OTHER_CONVERSATION]


@pytest.mark.parametrize(
    ("read", "cached"),
    [(3600, 3600), (2900, 3600), (0, 900)],
    ids=["all", "nearly all", "too little to matter"],
)
async def test_a_request_that_reads_most_of_the_cache_is_not_explained(read: int, cached: int) -> None:
    observer = RecordingObserver()
    detector = make_detector(observer)
    await finish_call(detector, "one", at=0, written=cached)
    await finish_call(detector, "another", at=20, read=read)
    await detector.close()

    assert observer.misses == []


async def test_sessions_are_separate_and_failed_requests_cache_nothing() -> None:
    observer = RecordingObserver()
    detector = make_detector(observer)
    await finish_call(detector, f"{LONG} a", name="a", at=0, written=3600)
    await finish_call(detector, f"{LONG} b", name="b", at=1, written=3600)
    await finish_call(detector, f"{LONG} c", name="c", at=2, written=3600, status=529)
    await finish_call(detector, f"{LONG} d", name="c", at=3, written=3600)
    await detector.close()

    assert observer.misses == []


async def test_bodies_are_bounded_and_replaced_by_block_hashes() -> None:
    observer = RecordingObserver()
    size = len(make_body(f"{LONG} It is 12:00:01."))
    detector = make_detector(observer, max_bytes=2 * size + 10)
    for name in "abcd":
        await finish_call(detector, f"{LONG} It is 12:00:01.", name=name, at=0, written=3600)
        assert detector.body_bytes <= 2 * size + 10
        await detector.close()
    for name in "ad":
        await finish_call(detector, f"{LONG} It is 12:00:02.", name=name, at=20, written=3600)
    await detector.close()

    cold, warm = sorted(observer.misses, key=lambda miss: miss.session_id)
    assert warm.verdict.cause is MissCause.TIME
    assert cold.verdict.cause is MissCause.EDITED
    assert cold.verdict.place == warm.verdict.place
    assert cold.verdict.before is not None
    assert cold.verdict.before.end_byte > len(LONG)  # of the whole block
    assert cold.verdict.lost_tokens == warm.verdict.lost_tokens > 1500


async def test_a_large_body_is_replaced_by_block_hashes() -> None:
    """Regression: two bodies of 30 MB displaced those of all other sessions, and stayed in memory."""
    observer = RecordingObserver()
    size = len(make_body(f"{LONG} 1"))
    detector = make_detector(observer, max_single_body_bytes=size)
    for name, text in (("large", f"{LONG} 12"), ("small", f"{LONG} 1")):
        await finish_call(detector, text, name=name, at=0, written=3600)
    await detector.close()
    assert detector.body_bytes == size

    for name in ("large", "small"):
        await finish_call(detector, f"{LONG} 2", name=name, at=20, written=3600)
    await detector.close()
    assert {miss.session_id for miss in observer.misses} == {"large", "small"}


async def test_a_session_with_large_bodies_does_not_displace_the_hashes_of_others() -> None:
    """Regression: after 256 of its requests, misses of other sessions with large bodies were not explained."""
    observer = RecordingObserver()
    detector = make_detector(observer, max_single_body_bytes=0)
    await finish_call(detector, f"{LONG} 1", name="other", at=0, written=3600)
    for number in range(257):
        await finish_call(detector, f"{LONG} 1", name="active", at=number, read=3600)
        await detector.close()
    await finish_call(detector, f"{LONG} 2", name="other", at=300, written=3600)
    await detector.close()

    assert {miss.session_id for miss in observer.misses} == {"other"}


async def test_bodies_are_hashed_at_a_limited_rate() -> None:
    observer = RecordingObserver()
    detector = make_detector(observer, max_bytes=10, monotonic=chain([0.0, 0.05, 0.09, 0.2], repeat(0.21)))
    for name in "abcd":
        await finish_call(detector, f"{LONG} 1", name=name, at=0, written=3600)
    await detector.close()
    for name in "abcd":
        await finish_call(detector, f"{LONG} 2", name=name, at=20, written=3600)
    await detector.close()

    assert {miss.session_id for miss in observer.misses} == {"a", "d"}
    assert detector.body_bytes == 0


async def test_only_the_latest_misses_are_remembered() -> None:
    detector = make_detector()
    for number in range(104):
        await finish_call(detector, f"{number} {LONG}", at=number, written=3600)
        await detector.close()

    assert len(detector.recent) == 100
    assert (detector.recent[0].at, detector.recent[-1].at) == (103, 4)


async def test_a_loss_of_fewer_than_1024_tokens_is_not_a_miss() -> None:
    """Defect: the same gemini-2.5-pro request twice was reported as a miss of 0 tokens, and counted."""
    observer = RecordingObserver()
    detector = make_detector(observer)
    model, payload = "gemini-2.5-pro", {"contents": [{"role": "user", "parts": [{"text": LONG[:4000]}]}]}
    body = json.dumps(payload).encode()
    for at in (0.0, 20.0):
        incoming = IncomingRequest(
            id=f"req {at}",
            agent="ana",
            api_format=Format.GEMINI,
            provider="google",
            upstream="google",
            body=body,
            served_model=model,
        )
        request = formats.parse_request(body, Format.GEMINI, model=model)
        context = RequestContext(
            incoming=incoming, options=AgentOptions(), received_at=at, original=request, request=request
        )
        context.session.match = SessionMatch(
            session=make_session("s", 2), known_messages=0, is_new=False, is_fork=False
        )
        exchange = Exchange(
            incoming,
            context,
            UpstreamRequest(body=body),
            hooks=CallHooks(in_background=(detector,)),
            clock=iter(repeat(at)).__next__,
            observer=NO_OBSERVER,
            completer=CompletionQueue(),
        )
        exchange.on_response_start(200, is_streaming=False)
        usage = {"promptTokenCount": 2100, "candidatesTokenCount": 7, "totalTokenCount": 2107}
        exchange.on_chunk(json.dumps({"candidates": [], "usageMetadata": usage}).encode())
        exchange.flush()
        exchange.finish()
        await exchange.wait_until_completed()
    await detector.close()

    assert observer.misses == []

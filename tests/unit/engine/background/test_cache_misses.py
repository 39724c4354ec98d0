"""Cache misses as they happen: what is remembered of sessions, what is read of it, and what is reported."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import chain, repeat

import pytest

from foveate import formats
from foveate.compaction.store import Compaction
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.background.cache_misses import CacheMissDetector, describe_miss
from foveate.engine.completion import CompletionQueue
from foveate.engine.context import RequestContext
from foveate.engine.exchange import Exchange
from foveate.engine.observer import NO_OBSERVER, NullObserver, SessionCacheMiss
from foveate.engine.options import AgentOptions, SpendingOptions
from foveate.engine.request import AppliedEdit, RoutedRequest, UpstreamRequest
from foveate.model import Area, Format, ReplaceMessages
from foveate.prompt_cache.misses.causes import MissCause
from foveate.session.matching import SessionMatch
from tests.support.stores.records import COMPACTION, make_session

MODEL = "claude-opus-5-5"
MARK = {"type": "ephemeral"}


class Told(NullObserver):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.seen: list[SessionCacheMiss] = []

    def on_cache_miss(self, miss: SessionCacheMiss) -> None:
        self.seen.append(miss)


def breaks(
    watch: Told | None = None, *, most_bytes: int = 10**9, ticks: Iterator[float] | None = None
) -> CacheMissDetector:
    cost = SpendingOptions(caps=(), prices=PriceBook())
    clock = ticks or iter(range(10**9))
    return CacheMissDetector(
        lambda: cost, observer=watch or Told(), max_bytes=most_bytes, monotonic=lambda: next(clock)
    )


def body(system: str, *, turns: int = 1, word: str = "turn") -> bytes:
    said: list[dict[str, object]] = [
        {"role": ("user", "assistant")[at % 2], "content": f"{word} {at}"} for at in range(2 * turns - 1)
    ]
    said[-1]["content"] = [{"type": "text", "text": said[-1]["content"], "cache_control": MARK}]
    front = [{"type": "text", "text": system, "cache_control": MARK}]
    return json.dumps({"model": MODEL, "max_tokens": 9, "system": front, "messages": said}).encode()


async def call(
    ours: CacheMissDetector,
    system: str,
    *,
    name: str = "s",
    at: float = 0.0,
    read: int = 0,
    written: int = 0,
    turns: int = 1,
    word: str = "turn",
    fold: Compaction | None = None,
    done: Sequence[AppliedEdit] = (),
    status: int = 200,
) -> None:
    """A call of a session, billed so."""
    sent = body(system, turns=turns, word=word)
    incoming = RoutedRequest(
        id=f"req {name} {at}",
        agent="ana",
        api_format=Format.ANTHROPIC,
        provider="anthropic",
        upstream="anthropic",
        body=sent,
    )
    request = formats.parse_request(sent)
    context = RequestContext(
        incoming=incoming, options=AgentOptions(), received_at=at, original=request, request=request
    )
    context.compaction, context.applied_edits = fold, list(done)
    context.session_match = SessionMatch(
        session=make_session(name, 2), known_messages=0, is_new=False, is_fork=False
    )
    exchange = Exchange(
        incoming,
        context,
        UpstreamRequest(body=sent),
        background_hooks=(ours,),
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
    watch = Told()
    ours = breaks(watch)
    await call(ours, f"{LONG} It is 12:00:01.", at=0, written=3600)
    await call(ours, f"{LONG} It is 12:00:02.", at=20, written=3600)
    await call(ours, f"{LONG} It is 12:00:02.", at=40, read=3600, turns=2)
    await ours.close()

    (seen,) = watch.seen
    assert list(ours.recent) == [seen]
    assert (seen.request_id, seen.previous_id, seen.session_id) == ("req s 20", "req s 0", "s")
    verdict = seen.verdict
    assert verdict.cause is MissCause.TIME
    assert verdict.place is not None
    assert verdict.place.area is Area.SYSTEM
    assert verdict.before is not None
    assert verdict.before.end_byte - verdict.before.start_byte < 20
    assert verdict.read_tokens == 0
    assert verdict.lost_dollars is not None
    assert Decimal("0.01") < verdict.lost_dollars < Decimal("0.1")
    assert describe_miss(seen).startswith(
        "req s 20: session s could not read its cache: time at system 0, bytes "
    )


async def test_a_new_compaction_is_reported_as_such_and_not_as_another_conversation() -> None:
    """Defect: where nothing of the last request stayed, it was told as `other_conversation` or `edited`."""
    watch = Told()
    ours = breaks(watch)
    folds = {"oak": None, "elm": COMPACTION, "ash": replace(COMPACTION, id="fold-3"), "fir": None, "yew": None}
    for at, (word, fold) in enumerate(folds.items()):
        await call(ours, LONG, at=at, read=3600, written=3600, turns=2, word=f"{word} " * 1200, fold=fold)
    await ours.close()

    in_order = sorted(watch.seen, key=lambda seen: seen.request_id)  # they are looked into beside each other
    causes = [seen.verdict.cause for seen in in_order]
    assert causes == [
        MissCause.COMPACTION,
        MissCause.COMPACTION,
        MissCause.COMPACTION_UNDONE,
        MissCause.OTHER_CONVERSATION,
    ]
    assert [seen.is_planned for seen in in_order] == [True, True, True, False]


async def test_messages_dropped_to_make_room_are_a_planned_rewrite() -> None:
    watch = Told()
    ours = breaks(watch)
    for at, (word, end) in enumerate((("oak", 0), ("elm", 2), ("ash", 4), ("fir", 4))):
        edits = (
            [AppliedEdit("room", ReplaceMessages(start=0, end=end, messages=(), reason="room"))] if end else []
        )
        await call(ours, LONG, at=at, read=3600, written=3600, turns=2, word=f"{word} " * 1200, done=edits)
    await ours.close()

    in_order = sorted(watch.seen, key=lambda seen: seen.request_id)
    causes = [seen.verdict.cause for seen in in_order]
    assert causes == [MissCause.TRIMMING, MissCause.TRIMMING, MissCause.OTHER_CONVERSATION]


@pytest.mark.parametrize(
    ("read", "left"), [(3600, 3600), (2900, 3600), (0, 900)], ids=["all", "nearly all", "too little to matter"]
)
async def test_a_request_that_reads_most_of_the_cache_is_not_explained(read: int, left: int) -> None:
    watch = Told()
    ours = breaks(watch)
    await call(ours, "one", at=0, written=left)
    await call(ours, "another", at=20, read=read)
    await ours.close()

    assert watch.seen == []


async def test_sessions_are_separate_and_failed_requests_cache_nothing() -> None:
    watch = Told()
    ours = breaks(watch)
    await call(ours, f"{LONG} a", name="a", at=0, written=3600)
    await call(ours, f"{LONG} b", name="b", at=1, written=3600)
    await call(ours, f"{LONG} c", name="c", at=2, written=3600, status=529)
    await call(ours, f"{LONG} d", name="c", at=3, written=3600)
    await ours.close()

    assert watch.seen == []


async def test_bodies_are_bounded_and_replaced_by_block_hashes() -> None:
    watch = Told()
    size = len(body(f"{LONG} It is 12:00:01."))
    ours = breaks(watch, most_bytes=2 * size + 10)
    for name in "abcd":
        await call(ours, f"{LONG} It is 12:00:01.", name=name, at=0, written=3600)
        assert ours.body_bytes <= 2 * size + 10
        await ours.close()
    for name in "ad":
        await call(ours, f"{LONG} It is 12:00:02.", name=name, at=20, written=3600)
    await ours.close()

    cold, warm = sorted(watch.seen, key=lambda seen: seen.session_id)
    assert warm.verdict.cause is MissCause.TIME
    assert cold.verdict.cause is MissCause.EDITED
    assert cold.verdict.place == warm.verdict.place
    assert cold.verdict.before is not None
    assert cold.verdict.before.end_byte > len(LONG)  # of the whole block
    assert cold.verdict.lost_tokens == warm.verdict.lost_tokens > 1500


async def test_bodies_are_hashed_at_a_limited_rate() -> None:
    watch = Told()
    ours = breaks(watch, most_bytes=10, ticks=chain([0.0, 0.05, 0.09, 0.2], repeat(0.21)))
    for name in "abcd":
        await call(ours, f"{LONG} 1", name=name, at=0, written=3600)
    await ours.close()
    for name in "abcd":
        await call(ours, f"{LONG} 2", name=name, at=20, written=3600)
    await ours.close()

    assert {seen.session_id for seen in watch.seen} == {"a", "d"}
    assert ours.body_bytes == 0


async def test_only_the_last_misses_are_kept() -> None:
    ours = breaks()
    for number in range(104):
        await call(ours, f"{number} {LONG}", at=number, written=3600)
        await ours.close()

    assert len(ours.recent) == 100
    assert (ours.recent[0].at, ours.recent[-1].at) == (103, 4)


async def test_a_loss_of_fewer_than_1024_tokens_is_not_a_miss() -> None:
    """Defect: the same gemini-2.5-pro request twice was told as a miss of 0 tokens, and counted."""
    watch = Told()
    ours = breaks(watch)
    model, said = "gemini-2.5-pro", {"contents": [{"role": "user", "parts": [{"text": LONG[:4000]}]}]}
    sent = json.dumps(said).encode()
    for at in (0.0, 20.0):
        incoming = RoutedRequest(
            id=f"req {at}",
            agent="ana",
            api_format=Format.GEMINI,
            provider="google",
            upstream="google",
            body=sent,
            served_model=model,
        )
        request = formats.parse_request(sent, Format.GEMINI, model=model)
        context = RequestContext(
            incoming=incoming, options=AgentOptions(), received_at=at, original=request, request=request
        )
        context.session_match = SessionMatch(
            session=make_session("s", 2), known_messages=0, is_new=False, is_fork=False
        )
        exchange = Exchange(
            incoming,
            context,
            UpstreamRequest(body=sent),
            background_hooks=(ours,),
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
    await ours.close()

    assert watch.seen == []

"""The simulated cache reads, writes and counts as the provider documents it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from foveate.model import Area, CacheUsage, Ttl
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, PromptPiece, compute_digest, prefix_keys
from foveate.prompt_cache.rules import CacheRules, rules_for
from foveate.prompt_cache.simulator import SimulatedCache

SHORT, LONG = Ttl.FIVE_MINUTES, Ttl.ONE_HOUR
CLAUDE = rules_for("claude-opus-5")
GPT_4O = rules_for("gpt-4o")
GPT_5_6 = rules_for("gpt-5.6")
BLOCK_KINDS = ("text", "tool_use", "tool_result")


def make_prompt(
    texts: Sequence[str | int],
    breakpoints: Mapping[int, Ttl] | None = None,
    *,
    tokens: int = 1_000,
    kind: str = "text",
    model: str = "a-model",
    thinking: str = "",
) -> CachedPrompt:
    pieces = tuple(
        PromptPiece(
            digest=compute_digest(str(text).encode()),
            tokens=tokens,
            kind=kind,
            area=Area.MESSAGES,
            breakpoint_ttl=(breakpoints or {}).get(index),
        )
        for index, text in enumerate(texts)
    )
    return CachedPrompt(model=model, pieces=pieces, settings={Area.MESSAGES: thinking.encode()})


def serve_usage(
    cache: SimulatedCache, request: CachedPrompt, rules: CacheRules = CLAUDE, *, at: float = 0
) -> CacheUsage:
    return cache.serve(request, rules, at=at).usage


def cache_after(request: CachedPrompt, rules: CacheRules = CLAUDE, *, at: float = 0) -> SimulatedCache:
    return SimulatedCache().serve(request, rules, at=at).cache


def test_a_prompt_without_breakpoints_is_neither_written_nor_read() -> None:
    cache = cache_after(make_prompt("abc"))

    assert serve_usage(cache, make_prompt("abc", {2: SHORT})) == CacheUsage(written_5m=3_000)
    assert serve_usage(cache_after(make_prompt("abc", {2: SHORT})), make_prompt("abc")) == CacheUsage(
        uncached=3_000
    )


def test_usage_follows_from_the_hit_and_the_last_long_and_short_ttl_breakpoints() -> None:
    cache = cache_after(make_prompt("ab", {1: SHORT}))

    usage = serve_usage(cache, make_prompt("abcdef", {2: LONG, 4: SHORT}), at=10)

    assert usage == CacheUsage(read=2_000, written_1h=1_000, written_5m=2_000, uncached=1_000)


def test_the_longest_prefix_that_any_breakpoint_finds_is_read() -> None:
    cache = cache_after(make_prompt("abcd", {1: LONG, 3: SHORT}))

    assert serve_usage(cache, make_prompt("abcd", {1: LONG, 3: SHORT})).read == 4_000
    assert serve_usage(cache, make_prompt("abxy", {1: LONG, 3: SHORT})).read == 2_000


@pytest.mark.parametrize(("distance", "is_seen"), [(19, True), (20, False)])
def test_a_breakpoint_looks_back_twenty_positions_including_its_own(distance: int, is_seen: bool) -> None:
    cache = cache_after(make_prompt(range(5), {4: SHORT}))

    usage = serve_usage(cache, make_prompt(range(5 + distance), {4 + distance: SHORT}))

    assert usage.read == (5_000 if is_seen else 0)


def test_a_second_breakpoint_finds_a_distant_entry() -> None:
    cache = cache_after(make_prompt(range(5), {4: SHORT}))

    assert serve_usage(cache, make_prompt(range(60), {10: SHORT, 59: SHORT})).read == 5_000


@pytest.mark.parametrize("kind", ["tool_use", "tool_result"])
def test_a_run_of_tool_calls_or_of_tool_results_is_one_position(kind: str) -> None:
    cache = cache_after(make_prompt("a", {0: SHORT}))
    run_prompt = make_prompt(["a", *range(30)], {30: SHORT}, kind=kind)
    first, *others = run_prompt.pieces
    request = replace(run_prompt, pieces=(structs.replace(first, kind="text"), *others))

    assert serve_usage(cache, request).read == 1_000
    assert serve_usage(cache, request, replace(CLAUDE, runs_are_one_position=False)).read == 0


def test_a_prefix_below_the_minimum_is_not_cached_and_not_an_error() -> None:
    below = make_prompt("ab", {1: SHORT}, tokens=CLAUDE.minimum_tokens // 2 - 1)
    sufficient = make_prompt("ab", {1: SHORT}, tokens=CLAUDE.minimum_tokens // 2)

    assert serve_usage(SimulatedCache(), below) == CacheUsage(uncached=below.tokens)
    assert serve_usage(cache_after(below), below).read == 0
    assert serve_usage(cache_after(sufficient), sufficient).read == sufficient.tokens


@pytest.mark.parametrize("ttl", [SHORT, LONG])
def test_the_ttl_of_an_entry_starts_with_the_request(ttl: Ttl) -> None:
    request = make_prompt("abc", {2: ttl})
    cache = SimulatedCache().serve(request, CLAUDE, at=100, response_at=130).cache

    assert serve_usage(cache, request, at=100 + ttl.seconds).read == 3_000
    assert serve_usage(cache, request, at=100 + ttl.seconds + 1).read == 0


def test_each_use_restarts_the_ttl_of_an_entry() -> None:
    request = make_prompt("abc", {2: SHORT})
    cache = cache_after(request)
    for minutes in (4, 8, 12):
        served = cache.serve(request, CLAUDE, at=minutes * 60)
        assert served.usage.read == 3_000
        cache = served.cache


def test_an_entry_before_the_hit_is_refreshed_only_at_a_breakpoint() -> None:
    first = make_prompt("abcd", {1: SHORT, 3: SHORT})
    both_refreshed = cache_after(first).serve(first, CLAUDE, at=200).cache
    last_refreshed = cache_after(first).serve(make_prompt("abcd", {3: SHORT}), CLAUDE, at=200).cache
    other_end = make_prompt("abxy", {1: SHORT, 3: SHORT})

    assert serve_usage(both_refreshed, other_end, at=400).read == 2_000
    assert serve_usage(last_refreshed, other_end, at=400).read == 0


def test_an_entry_keeps_the_ttl_that_it_was_written_with() -> None:
    cache = cache_after(make_prompt("abc", {2: LONG}))
    reused = cache.serve(make_prompt("abc", {2: SHORT}), CLAUDE, at=600).cache

    assert serve_usage(reused, make_prompt("abc", {2: SHORT}), at=600 + 3_600).read == 3_000

    cache = cache_after(make_prompt("abc", {2: SHORT}))
    with_long_ttl = cache.serve(make_prompt("abc", {2: LONG}), CLAUDE, at=60)

    assert with_long_ttl.usage == CacheUsage(read=3_000)
    assert serve_usage(with_long_ttl.cache, make_prompt("abc", {2: LONG}), at=60 + 301).read == 0


def test_a_long_ttl_after_a_short_ttl_entry_keeps_the_whole_prefix() -> None:
    cache = cache_after(make_prompt("ab", {1: SHORT}))
    served = cache.serve(make_prompt("abc", {2: LONG}), CLAUDE, at=60)

    assert served.usage == CacheUsage(read=2_000, written_1h=1_000)
    assert serve_usage(served.cache, make_prompt("abc", {2: LONG}), at=3_000).read == 3_000


def test_an_entry_cannot_be_read_before_the_response_begins() -> None:
    request = make_prompt("abc", {2: SHORT})
    cache = SimulatedCache().serve(request, CLAUDE, at=0, response_at=3).cache
    concurrent = cache.serve(request, CLAUDE, at=1, response_at=20)

    assert concurrent.usage == CacheUsage(written_5m=3_000)
    assert serve_usage(concurrent.cache, request, at=3).read == 3_000  # the first of both responses has begun


def test_a_request_that_is_reported_late_does_not_shorten_a_ttl() -> None:
    request = make_prompt("abc", {2: SHORT})
    reused = cache_after(request).serve(request, CLAUDE, at=100).cache.serve(request, CLAUDE, at=50).cache
    rewritten = cache_after(request, at=100).serve(request, CLAUDE, at=50).cache

    assert serve_usage(reused, request, at=400).read == 3_000
    assert serve_usage(rewritten, request, at=400).read == 3_000


def test_a_short_ttl_does_not_shorten_a_long_ttl_in_flight() -> None:
    request = make_prompt("abc", {2: LONG})
    cache = SimulatedCache().serve(request, CLAUDE, at=0, response_at=20).cache
    concurrent = cache.serve(make_prompt("abc", {2: SHORT}), CLAUDE, at=10, response_at=30)
    reused = concurrent.cache.serve(make_prompt("abc", {2: SHORT}), CLAUDE, at=3_000).cache

    assert concurrent.usage == CacheUsage(written_5m=3_000)
    assert serve_usage(reused, request, at=3_000 + 3_600).read == 3_000  # each use restarts its TTL
    assert serve_usage(reused, request, at=3_000 + 3_601).read == 0


def test_a_long_ttl_extends_a_short_ttl_in_flight() -> None:
    cache = SimulatedCache().serve(make_prompt("abc", {2: SHORT}), CLAUDE, at=0, response_at=20).cache
    concurrent = cache.serve(make_prompt("abc", {2: LONG}), CLAUDE, at=10, response_at=15).cache
    request = make_prompt("abc", {2: SHORT})
    reused = concurrent.serve(request, CLAUDE, at=3_000).cache

    assert serve_usage(concurrent, request, at=15).read == 3_000  # as soon as one of both responses has begun
    assert serve_usage(concurrent, request, at=3_610).read == 3_000
    assert serve_usage(reused, request, at=3_000 + 3_600).read == 3_000


def test_models_do_not_share_entries() -> None:
    cache = cache_after(make_prompt("abc", {2: SHORT}, model="one"))

    assert serve_usage(cache, make_prompt("abc", {2: SHORT}, model="other")).read == 0


def test_a_parameter_that_invalidates_messages_leaves_the_system_prompt_cached() -> None:
    request = make_prompt("abc", {0: SHORT, 2: SHORT})
    system = structs.replace(request.pieces[0], area=Area.SYSTEM)
    request = replace(request, pieces=(system, *request.pieces[1:]))
    thinking = replace(request, settings={Area.MESSAGES: b"thinking"})

    assert serve_usage(cache_after(request), thinking).read == 1_000


def test_openai_reads_whole_pieces_in_steps_and_charges_no_writes() -> None:
    cache = cache_after(make_prompt("abcd", tokens=500), GPT_4O)

    assert serve_usage(cache, make_prompt("abcxy", tokens=500), GPT_4O, at=60) == CacheUsage(
        read=1_408, uncached=1_092
    )
    assert serve_usage(cache, make_prompt("abxy", tokens=500), GPT_4O, at=60) == CacheUsage(uncached=2_000)
    assert serve_usage(cache, make_prompt("abcd", tokens=500), GPT_4O, at=301).read == 0


def test_gpt_5_6_writes_the_whole_prompt_for_a_fee_and_reads_it_in_the_next_turn() -> None:
    first = SimulatedCache().serve(make_prompt("ab"), GPT_5_6, at=0)
    second = first.cache.serve(make_prompt("abcd"), GPT_5_6, at=1_000)

    assert first.usage == CacheUsage(written_5m=2_000)
    assert second.usage == CacheUsage(read=2_000, written_5m=2_000)


def test_gpt_5_6_with_a_changing_last_message_never_hits_without_a_breakpoint() -> None:
    without_breakpoint, with_breakpoint = make_prompt("abx"), make_prompt("abx", {1: Ttl.THIRTY_MINUTES})

    assert serve_usage(cache_after(without_breakpoint, GPT_5_6), make_prompt("aby"), GPT_5_6).read == 0
    assert serve_usage(cache_after(with_breakpoint, GPT_5_6), make_prompt("aby"), GPT_5_6).read == 2_000


def test_gpt_5_6_caches_nothing_in_explicit_mode_without_breakpoints() -> None:
    explicit = replace(make_prompt("abc"), explicit_only=True)
    served = SimulatedCache().serve(explicit, GPT_5_6, at=0)

    assert served.usage == CacheUsage(uncached=3_000)
    assert not served.cache.entries
    assert serve_usage(cache_after(make_prompt("abc"), GPT_5_6), explicit, GPT_5_6) == CacheUsage(
        uncached=3_000
    )


def test_gpt_5_6_reads_only_at_breakpoints_in_explicit_mode() -> None:
    ttl = Ttl.THIRTY_MINUTES
    cache = cache_after(replace(make_prompt("ab", {1: ttl}), explicit_only=True), GPT_5_6)
    moved_breakpoint = replace(make_prompt("abc", {2: ttl}), explicit_only=True)
    kept_breakpoint = replace(make_prompt("abc", {1: ttl, 2: ttl}), explicit_only=True)

    assert serve_usage(cache, moved_breakpoint, GPT_5_6) == CacheUsage(written_5m=3_000)
    assert serve_usage(cache, kept_breakpoint, GPT_5_6) == CacheUsage(read=2_000, written_5m=1_000)


def test_gpt_5_6_writes_at_most_four_entries() -> None:
    many_breakpoints = make_prompt("abcdef", dict.fromkeys(range(5), Ttl.THIRTY_MINUTES))
    explicit = replace(many_breakpoints, explicit_only=True)

    assert set(cache_after(many_breakpoints, GPT_5_6).entries) == set(
        prefix_keys(many_breakpoints)[2:]
    )  # the automatic one at the end counts as one
    assert set(cache_after(explicit, GPT_5_6).entries) == set(prefix_keys(many_breakpoints)[1:5])


def test_without_a_cache_everything_is_uncached() -> None:
    served = SimulatedCache().serve(make_prompt("abc", {2: SHORT}), rules_for("claude-2.1"), at=0)

    assert (served.usage, served.read_pieces) == (CacheUsage(uncached=3_000), 0)


def test_an_empty_prompt_costs_nothing() -> None:
    for rules in (CLAUDE, GPT_4O, GPT_5_6):
        assert serve_usage(SimulatedCache(), make_prompt(""), rules) == CacheUsage()


def test_expired_entries_are_dropped_eventually() -> None:
    cache = SimulatedCache()
    for minute in range(2_000):
        cache = cache.serve(make_prompt([minute, "end"], {1: SHORT}), CLAUDE, at=minute * 60).cache

    assert len(cache.entries) < 600


def test_serving_does_not_change_the_previous_cache() -> None:
    cache = cache_after(make_prompt("ab", {1: SHORT}))
    before = dict(cache.entries)
    cache.serve(make_prompt("abcd", {3: SHORT}), CLAUDE, at=60)

    assert dict(cache.entries) == before


@st.composite
def prompts(draw: st.DrawFn) -> CachedPrompt:
    """Generate prompts that often begin alike: a piece is identified by its position and one of two letters."""
    letters = draw(st.text("xxxxy", min_size=1, max_size=30))
    kinds = st.sampled_from(BLOCK_KINDS)
    breakpoints = st.sampled_from([None, None, None, SHORT, LONG])
    tokens = draw(
        st.sampled_from([40, 400])
    )  # few tokens keep a prefix below the minimum for long, many never do
    return CachedPrompt(
        explicit_only=draw(st.booleans()),
        model=draw(st.sampled_from(["one", "other"])),
        pieces=tuple(
            PromptPiece(
                digest=compute_digest(f"{index}{letter}{tokens}".encode()),
                tokens=50 * (index % 7) + tokens,
                kind=draw(kinds),
                area=Area.MESSAGES,
                breakpoint_ttl=draw(breakpoints),
            )
            for index, letter in enumerate(letters)
        ),
    )


GAPS = st.integers(0, 2_000)
HISTORIES = st.lists(st.tuples(prompts(), GAPS), max_size=8)
CACHE_RULES = st.sampled_from(
    [
        rules_for(model)
        for model in ("claude-sonnet-4-5", "claude-opus-5-5", "claude-opus-5", "gpt-5.6", "gpt-4o")
    ]
)


def replay_history(
    history: Sequence[tuple[CachedPrompt, int]], rules: CacheRules
) -> tuple[SimulatedCache, float]:
    cache, now = SimulatedCache(), 0.0
    for request, gap in history:
        now += gap
        cache = cache.serve(request, rules, at=now).cache
    return cache, now


@given(HISTORIES, prompts(), GAPS, CACHE_RULES)
def test_every_token_is_counted_once(
    history: Sequence[tuple[CachedPrompt, int]], request: CachedPrompt, gap: int, rules: CacheRules
) -> None:
    cache, now = replay_history(history, rules)
    usage = serve_usage(cache, request, rules, at=now + gap)

    assert usage.input_tokens == request.tokens
    assert min(usage.uncached, usage.read, usage.written_5m, usage.written_1h) >= 0


@given(HISTORIES, prompts(), GAPS, CACHE_RULES)
def test_nothing_is_read_that_was_not_sent_before_or_is_too_old(
    history: Sequence[tuple[CachedPrompt, int]], request: CachedPrompt, gap: int, rules: CacheRules
) -> None:
    cache, last = replay_history(history, rules)
    now = last + gap
    served = cache.serve(request, rules, at=now)
    max_ttl_seconds = max(ttl.seconds for ttl in rules.ttls)
    sent_at, known_keys = 0, set()
    for earlier, gap_before in history:
        sent_at += gap_before
        if now - sent_at <= max_ttl_seconds:
            known_keys |= set(prefix_keys(earlier))

    assert served.read_pieces == 0 or prefix_keys(request)[served.read_pieces - 1] in known_keys
    assert served.usage.read == 0 or served.usage.read >= rules.minimum_tokens


@pytest.mark.slow
@given(HISTORIES, prompts(), CACHE_RULES)
def test_a_request_repeated_at_once_reads_all_that_it_wrote_or_read(
    history: Sequence[tuple[CachedPrompt, int]], request: CachedPrompt, rules: CacheRules
) -> None:
    cache, now = replay_history(history, rules)
    first = cache.serve(request, rules, at=now)
    second = first.cache.serve(request, rules, at=now)

    assert second.usage.read >= first.usage.read + first.usage.written_5m + first.usage.written_1h
    assert second.usage.written_5m == second.usage.written_1h == 0


@given(HISTORIES, st.data(), CACHE_RULES)
def test_nothing_is_read_after_a_change(
    history: Sequence[tuple[CachedPrompt, int]], data: st.DataObject, rules: CacheRules
) -> None:
    request = data.draw(prompts())
    changed_index = data.draw(st.integers(0, len(request.pieces) - 1))
    pieces = list(request.pieces)
    pieces[changed_index] = structs.replace(pieces[changed_index], digest=compute_digest(b"never said before"))
    cache, now = replay_history([*history, (request, 0)], rules)

    assert cache.serve(replace(request, pieces=tuple(pieces)), rules, at=now).read_pieces <= changed_index


@pytest.mark.slow
@given(HISTORIES, prompts(), GAPS, GAPS, CACHE_RULES)
def test_waiting_longer_never_reads_more(
    history: Sequence[tuple[CachedPrompt, int]],
    request: CachedPrompt,
    gap: int,
    extra_gap: int,
    rules: CacheRules,
) -> None:
    cache, now = replay_history(history, rules)

    assert (
        serve_usage(cache, request, rules, at=now + gap).read
        >= serve_usage(cache, request, rules, at=now + gap + extra_gap).read
    )

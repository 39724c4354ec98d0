"""The simulated cache reads, writes and counts as the provider documents it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from foveate.model import Area, CacheUsage, Ttl
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, PromptPiece, compute_digest, prefix_keys
from foveate.prompt_cache.rules import CacheRules, rules_for
from foveate.prompt_cache.simulator import SimulatedCache
from tests.support.harness.example_limits import limit_examples

SHORT, LONG = Ttl.FIVE_MINUTES, Ttl.ONE_HOUR
CLAUDE = rules_for("claude-opus-5")
GPT_4O = rules_for("gpt-4o")
GPT_5_6 = rules_for("gpt-5.6")
KINDS = ("text", "tool_use", "tool_result")


def prompt(
    said: Sequence[str | int],
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
            breakpoint_ttl=(breakpoints or {}).get(at),
        )
        for at, text in enumerate(said)
    )
    return CachedPrompt(model=model, pieces=pieces, settings={Area.MESSAGES: thinking.encode()})


def usage_of(
    cache: SimulatedCache, asked: CachedPrompt, rules: CacheRules = CLAUDE, *, at: float = 0
) -> CacheUsage:
    return cache.serve(asked, rules, at=at).usage


def after(asked: CachedPrompt, rules: CacheRules = CLAUDE, *, at: float = 0) -> SimulatedCache:
    return SimulatedCache().serve(asked, rules, at=at).cache


def test_a_prompt_without_breakpoints_is_neither_written_nor_read() -> None:
    cache = after(prompt("abc"))

    assert usage_of(cache, prompt("abc", {2: SHORT})) == CacheUsage(written_5m=3_000)
    assert usage_of(after(prompt("abc", {2: SHORT})), prompt("abc")) == CacheUsage(uncached=3_000)


def test_usage_follows_from_the_hit_and_the_last_long_and_short_ttl_breakpoints() -> None:
    cache = after(prompt("ab", {1: SHORT}))

    usage = usage_of(cache, prompt("abcdef", {2: LONG, 4: SHORT}), at=10)

    assert usage == CacheUsage(read=2_000, written_1h=1_000, written_5m=2_000, uncached=1_000)


def test_the_longest_prefix_that_any_breakpoint_finds_is_read() -> None:
    cache = after(prompt("abcd", {1: LONG, 3: SHORT}))

    assert usage_of(cache, prompt("abcd", {1: LONG, 3: SHORT})).read == 4_000
    assert usage_of(cache, prompt("abxy", {1: LONG, 3: SHORT})).read == 2_000


@pytest.mark.parametrize(("distance", "is_seen"), [(19, True), (20, False)])
def test_a_breakpoint_looks_back_twenty_positions_including_its_own(distance: int, is_seen: bool) -> None:
    cache = after(prompt(range(5), {4: SHORT}))

    usage = usage_of(cache, prompt(range(5 + distance), {4 + distance: SHORT}))

    assert usage.read == (5_000 if is_seen else 0)


def test_a_second_breakpoint_finds_a_distant_entry() -> None:
    cache = after(prompt(range(5), {4: SHORT}))

    assert usage_of(cache, prompt(range(60), {10: SHORT, 59: SHORT})).read == 5_000


@pytest.mark.parametrize("kind", ["tool_use", "tool_result"])
def test_a_run_of_tool_calls_or_of_tool_results_is_one_position(kind: str) -> None:
    cache = after(prompt("a", {0: SHORT}))
    run = prompt(["a", *range(30)], {30: SHORT}, kind=kind)
    first, *others = run.pieces
    asked = replace(run, pieces=(structs.replace(first, kind="text"), *others))

    assert usage_of(cache, asked).read == 1_000
    assert usage_of(cache, asked, replace(CLAUDE, runs_are_one_position=False)).read == 0


def test_a_prefix_below_the_minimum_is_silently_not_cached() -> None:
    below = prompt("ab", {1: SHORT}, tokens=CLAUDE.minimum_tokens // 2 - 1)
    enough = prompt("ab", {1: SHORT}, tokens=CLAUDE.minimum_tokens // 2)

    assert usage_of(SimulatedCache(), below) == CacheUsage(uncached=below.tokens)
    assert usage_of(after(below), below).read == 0
    assert usage_of(after(enough), enough).read == enough.tokens


@pytest.mark.parametrize("ttl", [SHORT, LONG])
def test_the_ttl_of_an_entry_starts_with_the_request(ttl: Ttl) -> None:
    asked = prompt("abc", {2: ttl})
    cache = SimulatedCache().serve(asked, CLAUDE, at=100, response_at=130).cache

    assert usage_of(cache, asked, at=100 + ttl.seconds).read == 3_000
    assert usage_of(cache, asked, at=100 + ttl.seconds + 1).read == 0


def test_each_use_restarts_the_ttl_of_an_entry() -> None:
    asked = prompt("abc", {2: SHORT})
    cache = after(asked)
    for minutes in (4, 8, 12):
        served = cache.serve(asked, CLAUDE, at=minutes * 60)
        assert served.usage.read == 3_000
        cache = served.cache


def test_an_entry_before_the_hit_is_refreshed_only_at_a_breakpoint() -> None:
    written = prompt("abcd", {1: SHORT, 3: SHORT})
    both = after(written).serve(written, CLAUDE, at=200).cache
    last_alone = after(written).serve(prompt("abcd", {3: SHORT}), CLAUDE, at=200).cache
    other_end = prompt("abxy", {1: SHORT, 3: SHORT})

    assert usage_of(both, other_end, at=400).read == 2_000
    assert usage_of(last_alone, other_end, at=400).read == 0


def test_an_entry_keeps_the_ttl_that_it_was_written_with() -> None:
    cache = after(prompt("abc", {2: LONG}))
    used = cache.serve(prompt("abc", {2: SHORT}), CLAUDE, at=600).cache

    assert usage_of(used, prompt("abc", {2: SHORT}), at=600 + 3_600).read == 3_000

    cache = after(prompt("abc", {2: SHORT}))
    asked_for_long = cache.serve(prompt("abc", {2: LONG}), CLAUDE, at=60)

    assert asked_for_long.usage == CacheUsage(read=3_000)
    assert usage_of(asked_for_long.cache, prompt("abc", {2: LONG}), at=60 + 301).read == 0


def test_a_long_ttl_after_a_short_ttl_entry_keeps_the_whole_prefix() -> None:
    cache = after(prompt("ab", {1: SHORT}))
    served = cache.serve(prompt("abc", {2: LONG}), CLAUDE, at=60)

    assert served.usage == CacheUsage(read=2_000, written_1h=1_000)
    assert usage_of(served.cache, prompt("abc", {2: LONG}), at=3_000).read == 3_000


def test_an_entry_cannot_be_read_before_the_response_begins() -> None:
    asked = prompt("abc", {2: SHORT})
    cache = SimulatedCache().serve(asked, CLAUDE, at=0, response_at=3).cache
    beside = cache.serve(asked, CLAUDE, at=1, response_at=20)

    assert beside.usage == CacheUsage(written_5m=3_000)
    assert usage_of(beside.cache, asked, at=3).read == 3_000  # the first of both responses to begin


def test_a_request_that_is_reported_late_does_not_shorten_a_ttl() -> None:
    asked = prompt("abc", {2: SHORT})
    used = after(asked).serve(asked, CLAUDE, at=100).cache.serve(asked, CLAUDE, at=50).cache
    written = after(asked, at=100).serve(asked, CLAUDE, at=50).cache

    assert usage_of(used, asked, at=400).read == 3_000
    assert usage_of(written, asked, at=400).read == 3_000


def test_a_short_ttl_does_not_shorten_a_long_ttl_in_flight() -> None:
    asked = prompt("abc", {2: LONG})
    cache = SimulatedCache().serve(asked, CLAUDE, at=0, response_at=20).cache
    beside = cache.serve(prompt("abc", {2: SHORT}), CLAUDE, at=10, response_at=30)
    used = beside.cache.serve(prompt("abc", {2: SHORT}), CLAUDE, at=3_000).cache

    assert beside.usage == CacheUsage(written_5m=3_000)
    assert usage_of(used, asked, at=3_000 + 3_600).read == 3_000  # each use restarts its TTL
    assert usage_of(used, asked, at=3_000 + 3_601).read == 0


def test_a_long_ttl_extends_a_short_ttl_in_flight() -> None:
    cache = SimulatedCache().serve(prompt("abc", {2: SHORT}), CLAUDE, at=0, response_at=20).cache
    beside = cache.serve(prompt("abc", {2: LONG}), CLAUDE, at=10, response_at=15).cache
    asked = prompt("abc", {2: SHORT})
    used = beside.serve(asked, CLAUDE, at=3_000).cache

    assert usage_of(beside, asked, at=15).read == 3_000  # as soon as one of both responses has begun
    assert usage_of(beside, asked, at=3_610).read == 3_000
    assert usage_of(used, asked, at=3_000 + 3_600).read == 3_000


def test_models_do_not_share_entries() -> None:
    cache = after(prompt("abc", {2: SHORT}, model="one"))

    assert usage_of(cache, prompt("abc", {2: SHORT}, model="other")).read == 0


def test_a_parameter_that_invalidates_messages_leaves_the_system_prompt_cached() -> None:
    asked = prompt("abc", {0: SHORT, 2: SHORT})
    system = structs.replace(asked.pieces[0], area=Area.SYSTEM)
    asked = replace(asked, pieces=(system, *asked.pieces[1:]))
    thinking = replace(asked, settings={Area.MESSAGES: b"thinking"})

    assert usage_of(after(asked), thinking).read == 1_000


def test_openai_reads_whole_pieces_in_steps_and_charges_no_writes() -> None:
    cache = after(prompt("abcd", tokens=500), GPT_4O)

    assert usage_of(cache, prompt("abcxy", tokens=500), GPT_4O, at=60) == CacheUsage(read=1_408, uncached=1_092)
    assert usage_of(cache, prompt("abxy", tokens=500), GPT_4O, at=60) == CacheUsage(uncached=2_000)
    assert usage_of(cache, prompt("abcd", tokens=500), GPT_4O, at=301).read == 0


def test_gpt_5_6_writes_the_whole_prompt_for_a_fee_and_reads_it_in_the_next_turn() -> None:
    first = SimulatedCache().serve(prompt("ab"), GPT_5_6, at=0)
    second = first.cache.serve(prompt("abcd"), GPT_5_6, at=1_000)

    assert first.usage == CacheUsage(written_5m=2_000)
    assert second.usage == CacheUsage(read=2_000, written_5m=2_000)


def test_gpt_5_6_with_a_changing_last_message_never_hits_without_a_breakpoint() -> None:
    plain, with_breakpoint = prompt("abx"), prompt("abx", {1: Ttl.THIRTY_MINUTES})

    assert usage_of(after(plain, GPT_5_6), prompt("aby"), GPT_5_6).read == 0
    assert usage_of(after(with_breakpoint, GPT_5_6), prompt("aby"), GPT_5_6).read == 2_000


def test_gpt_5_6_caches_nothing_in_explicit_mode_without_breakpoints() -> None:
    explicit = replace(prompt("abc"), explicit_only=True)
    served = SimulatedCache().serve(explicit, GPT_5_6, at=0)

    assert served.usage == CacheUsage(uncached=3_000)
    assert not served.cache.entries
    assert usage_of(after(prompt("abc"), GPT_5_6), explicit, GPT_5_6) == CacheUsage(uncached=3_000)


def test_gpt_5_6_reads_only_at_breakpoints_in_explicit_mode() -> None:
    half_an_hour = Ttl.THIRTY_MINUTES
    cache = after(replace(prompt("ab", {1: half_an_hour}), explicit_only=True), GPT_5_6)
    moved = replace(prompt("abc", {2: half_an_hour}), explicit_only=True)
    left = replace(prompt("abc", {1: half_an_hour, 2: half_an_hour}), explicit_only=True)

    assert usage_of(cache, moved, GPT_5_6) == CacheUsage(written_5m=3_000)
    assert usage_of(cache, left, GPT_5_6) == CacheUsage(read=2_000, written_5m=1_000)


def test_gpt_5_6_writes_at_most_four_entries() -> None:
    everywhere = prompt("abcdef", dict.fromkeys(range(5), Ttl.THIRTY_MINUTES))
    explicit = replace(everywhere, explicit_only=True)

    assert set(after(everywhere, GPT_5_6).entries) == set(
        prefix_keys(everywhere)[2:]
    )  # its own at the end counts as one
    assert set(after(explicit, GPT_5_6).entries) == set(prefix_keys(everywhere)[1:5])


def test_without_a_cache_everything_is_uncached() -> None:
    served = SimulatedCache().serve(prompt("abc", {2: SHORT}), rules_for("claude-2.1"), at=0)

    assert (served.usage, served.read_pieces) == (CacheUsage(uncached=3_000), 0)


def test_an_empty_prompt_costs_nothing() -> None:
    for rules in (CLAUDE, GPT_4O, GPT_5_6):
        assert usage_of(SimulatedCache(), prompt(""), rules) == CacheUsage()


def test_expired_entries_are_dropped_eventually() -> None:
    cache = SimulatedCache()
    for minute in range(2_000):
        cache = cache.serve(prompt([minute, "end"], {1: SHORT}), CLAUDE, at=minute * 60).cache

    assert len(cache.entries) < 600


def test_serving_does_not_change_the_previous_cache() -> None:
    cache = after(prompt("ab", {1: SHORT}))
    before = dict(cache.entries)
    cache.serve(prompt("abcd", {3: SHORT}), CLAUDE, at=60)

    assert dict(cache.entries) == before


@st.composite
def prompts(draw: st.DrawFn) -> CachedPrompt:
    """Prompts that often begin alike: a piece is identified by its position and one of two letters."""
    letters = draw(st.text("xxxxy", min_size=1, max_size=30))
    kinds = st.sampled_from(KINDS)
    breakpoints = st.sampled_from([None, None, None, SHORT, LONG])
    tokens = draw(
        st.sampled_from([40, 400])
    )  # with few tokens a prefix stays below the minimum for long, with many it never is
    return CachedPrompt(
        explicit_only=draw(st.booleans()),
        model=draw(st.sampled_from(["one", "other"])),
        pieces=tuple(
            PromptPiece(
                digest=compute_digest(f"{at}{letter}{tokens}".encode()),
                tokens=50 * (at % 7) + tokens,
                kind=draw(kinds),
                area=Area.MESSAGES,
                breakpoint_ttl=draw(breakpoints),
            )
            for at, letter in enumerate(letters)
        ),
    )


GAPS = st.integers(0, 2_000)
HISTORIES = st.lists(st.tuples(prompts(), GAPS), max_size=8)
KINDS_OF_CACHE = st.sampled_from(
    [
        rules_for(model)
        for model in ("claude-sonnet-4-5", "claude-opus-5-5", "claude-opus-5", "gpt-5.6", "gpt-4o")
    ]
)


def replayed(history: Sequence[tuple[CachedPrompt, int]], rules: CacheRules) -> tuple[SimulatedCache, float]:
    cache, at = SimulatedCache(), 0.0
    for asked, gap in history:
        at += gap
        cache = cache.serve(asked, rules, at=at).cache
    return cache, at


@given(HISTORIES, prompts(), GAPS, KINDS_OF_CACHE)
@settings(max_examples=limit_examples(60))
def test_every_token_is_counted_once(
    history: Sequence[tuple[CachedPrompt, int]], asked: CachedPrompt, gap: int, rules: CacheRules
) -> None:
    cache, at = replayed(history, rules)
    usage = usage_of(cache, asked, rules, at=at + gap)

    assert usage.input_tokens == asked.tokens
    assert min(usage.uncached, usage.read, usage.written_5m, usage.written_1h) >= 0


@given(HISTORIES, prompts(), GAPS, KINDS_OF_CACHE)
@settings(max_examples=limit_examples(60))
def test_nothing_is_read_that_was_not_sent_before_or_is_too_old(
    history: Sequence[tuple[CachedPrompt, int]], asked: CachedPrompt, gap: int, rules: CacheRules
) -> None:
    cache, last = replayed(history, rules)
    now = last + gap
    served = cache.serve(asked, rules, at=now)
    longest = max(ttl.seconds for ttl in rules.ttls)
    at, sent = 0, set()
    for earlier, waited in history:
        at += waited
        if now - at <= longest:
            sent |= set(prefix_keys(earlier))

    assert served.read_pieces == 0 or prefix_keys(asked)[served.read_pieces - 1] in sent
    assert served.usage.read == 0 or served.usage.read >= rules.minimum_tokens


@pytest.mark.slow
@given(HISTORIES, prompts(), KINDS_OF_CACHE)
@settings(max_examples=limit_examples(60))
def test_a_request_repeated_at_once_reads_all_that_it_wrote_or_read(
    history: Sequence[tuple[CachedPrompt, int]], asked: CachedPrompt, rules: CacheRules
) -> None:
    cache, at = replayed(history, rules)
    first = cache.serve(asked, rules, at=at)
    again = first.cache.serve(asked, rules, at=at)

    assert again.usage.read >= first.usage.read + first.usage.written_5m + first.usage.written_1h
    assert again.usage.written_5m == again.usage.written_1h == 0


@given(HISTORIES, st.data(), KINDS_OF_CACHE)
@settings(max_examples=limit_examples(60))
def test_nothing_is_read_after_a_change(
    history: Sequence[tuple[CachedPrompt, int]], data: st.DataObject, rules: CacheRules
) -> None:
    asked = data.draw(prompts())
    changed = data.draw(st.integers(0, len(asked.pieces) - 1))
    pieces = list(asked.pieces)
    pieces[changed] = structs.replace(pieces[changed], digest=compute_digest(b"never said before"))
    cache, at = replayed([*history, (asked, 0)], rules)

    assert cache.serve(replace(asked, pieces=tuple(pieces)), rules, at=at).read_pieces <= changed


@pytest.mark.slow
@given(HISTORIES, prompts(), GAPS, GAPS, KINDS_OF_CACHE)
@settings(max_examples=limit_examples(60))
def test_waiting_longer_never_reads_more(
    history: Sequence[tuple[CachedPrompt, int]], asked: CachedPrompt, gap: int, more: int, rules: CacheRules
) -> None:
    cache, at = replayed(history, rules)

    assert (
        usage_of(cache, asked, rules, at=at + gap).read
        >= usage_of(cache, asked, rules, at=at + gap + more).read
    )

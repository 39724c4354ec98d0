"""What counts are worth by the evidence of recordings."""

from pathlib import Path
from typing import Any

import pytest

import foveate
from benchmarks import count_evidence, recorded
from benchmarks.count_evidence import TABLE, Counted, make_table, rendered
from benchmarks.recorded import Call
from foveate import wire
from foveate.tokens.evidence import Bound, Evidence, Profile, RawCount, Subject, evidence, groups
from foveate.tokens.features import Feature
from foveate.values import Format

CHAT = Subject("openai", "openai-chat", "gpt-4o", "gpt-4o")
REQUEST = wire.read({"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi" * 5000}]}, Format.CHAT)


def raw(tokens: int = 100, *features: str, margin: float = 0, bits: int = int(Feature.USER)) -> RawCount:
    return RawCount(tokens=tokens, upper=tokens + margin, profile=profile(*features, bits=bits))


def profile(*features: str, certain: bool = True, bits: int = int(Feature.USER)) -> Profile:
    return Profile(subject=CHAT, certain=certain, features=frozenset(features), message_features=bits)


def used(source: str, tokens: int, *features: str, off: int = 0) -> Counted:
    call = Call(
        source=source,
        provider="openai-chat",
        host="api.openai.com",
        route="completions",
        model="gpt-4o",
        format=Format.CHAT,
        asks_to_read=True,
        body={},
        billed=tokens + off,
    )
    return Counted(call=call, request=REQUEST, raw=raw(tokens, *features), used_tokens=tokens + off)


def chat(**fields: Any) -> foveate.RequestCount:
    messages = [{"role": "user", "content": "What is the weather?"}]
    return foveate.count_request({"model": "gpt-4o", "messages": messages, **fields})


def test_two_sources_confirm_a_feature_and_one_does_not() -> None:
    table = make_table([used("a", 10), used("b", 10), used("a", 10, "odd")])

    assert table.judge(raw(100)).exact
    assert not table.judge(raw(100, "odd")).exact


def test_a_feature_is_not_confirmed_if_counts_with_it_were_wrong() -> None:
    right = [used(source, 10) for source in "ab" for _ in range(40)]
    wrong = [used(source, 10, "odd", off=3) for source in "ab"]

    table = make_table([*right, *wrong])

    assert table.judge(raw(100)).exact
    assert not table.judge(raw(100, "odd")).exact


def test_another_feature_of_the_same_requests_is_not_blamed() -> None:
    right = [used(source, 10, "fine") for source in "ab" for _ in range(40)]
    wrong = [used(source, 10, "odd", "fine", off=3) for source in "ab"]

    assert make_table([*right, *wrong]).judge(raw(100, "fine")).exact


def test_what_the_rules_guess_is_never_exact() -> None:
    table = make_table([used("a", 10), used("b", 10)])
    assert not table.verdict(profile(certain=False)).exact


def test_a_bound_covers_what_was_off_in_the_recordings() -> None:
    calls = [used(source, 1000, "odd", off=off) for source in "ab" for off in (0, 20, 200) for _ in range(10)]

    table = make_table(calls)

    assert table.judge(raw(1000, "odd")).upper >= 1200


def test_requests_like_none_recorded_keep_the_margin_of_the_rules() -> None:
    table = Evidence(as_of="", sources=(), confirmed=frozenset(), refuted=frozenset(), bounds={})

    assert table.judge(raw(100, margin=50)).upper == 150


def test_few_sources_do_not_take_back_the_margin_of_the_rules() -> None:
    name = next(groups(profile(), exact=False))

    def upper(sources: int) -> int:
        bounds = {name: Bound("share", 0.1, sources)}
        table = Evidence(as_of="", sources=(), confirmed=frozenset(), refuted=frozenset(), bounds=bounds)
        return table.judge(raw(100, margin=50)).upper

    assert upper(sources=2) == 150
    assert upper(sources=4) < 120


def test_an_exact_count_has_a_close_bound_above_it() -> None:
    total = chat().total

    assert total.exact
    assert total.tokens < total.upper <= total.tokens + 3


@pytest.mark.parametrize(
    "fields",
    [
        {"field_of_next_year": True},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "A", "schema": {"not": {}}}}},
        {"tools": [{"type": "custom", "custom": {"name": "run"}}]},
        {"messages": [{"role": "user", "content": "Hi", "name": "ana"}]},
        {"messages": [{"role": "critic", "content": "Hi"}]},
        {"model": "gpt-4.9"},
    ],
)
def test_anything_that_no_recording_covers_makes_a_count_an_estimate(fields: dict[str, Any]) -> None:
    assert not chat(**fields).total.exact


def test_parameters_of_sampling_leave_a_count_exact() -> None:
    assert chat(temperature=0.2, max_tokens=100, seed=7, stop=["\n"]).total.exact


def test_a_hosted_tool_leaves_no_bound() -> None:
    search = foveate.count_request({"model": "gpt-5", "input": "News?", "tools": [{"type": "web_search"}]})

    assert search.upper is None
    assert chat().upper == chat().total.upper


@pytest.mark.slow
def test_the_table_is_the_one_that_the_recordings_give(shared_data: Path) -> None:
    """If this fails, run tools/count_evidence.py and read what changed."""
    calls = [found for call in recorded.pairs(shared_data) if (found := count_evidence.count(call))]

    assert rendered(make_table(calls)) == TABLE.read_text(encoding="utf-8")


@pytest.mark.slow
def test_held_out_sources_are_judged_honestly(shared_data: Path) -> None:
    """The shares are what was measured in November 2026, less a little."""
    calls = [found for call in recorded.pairs(shared_data) if (found := count_evidence.count(call))]
    seen = [found for found in calls if not found.raw.unexplained]

    judged = list(count_evidence.judge_held_out(seen))

    called = [found for found, count in judged if count.exact]
    assert sum(found.is_right for found in called) >= 0.98 * len(called)
    assert len(called) >= 0.25 * len(judged)
    assert sum(count.upper >= found.used_tokens for found, count in judged) >= 0.985 * len(judged)


def test_the_shipped_table_names_its_sources() -> None:
    assert len(evidence().sources) >= 2
    assert evidence().as_of

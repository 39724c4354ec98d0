"""Accuracy of counts by the evidence of recordings."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveate
from benchmarks import count_evidence, recorded
from benchmarks.count_evidence import TABLE, CountedCall, make_table, render_table
from benchmarks.recorded import RecordedCall
from foveate import formats
from foveate.model import Format
from foveate.tokens.accuracy import (
    BOUND_FORMS,
    AccuracyEvidence,
    AccuracyProfile,
    MessageFeature,
    RawCount,
    RequestOrigin,
    UsageBound,
    group_names,
    load_evidence,
)

CHAT = RequestOrigin("openai", "openai-chat", "gpt-4o", "gpt-4o")
REQUEST = formats.parse_request(
    {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi" * 5000}]}, Format.CHAT
)


def raw(tokens: int = 100, *features: str, margin: float = 0, bits: int = int(MessageFeature.USER)) -> RawCount:
    return RawCount(tokens=tokens, upper=tokens + margin, profile=profile(*features, bits=bits))


def profile(*features: str, certain: bool = True, bits: int = int(MessageFeature.USER)) -> AccuracyProfile:
    return AccuracyProfile(origin=CHAT, certain=certain, features=frozenset(features), message_features=bits)


def make_evidence(bounds: dict[str, UsageBound], confirmed: frozenset[str] = frozenset()) -> AccuracyEvidence:
    return AccuracyEvidence(as_of="", sources=(), confirmed=confirmed, refuted=frozenset(), bounds=bounds)


def make_counted_call(source: str, tokens: int, *features: str, off: int = 0, text: str = "") -> CountedCall:
    call = RecordedCall(
        source=source,
        provider="openai-chat",
        host="api.openai.com",
        route="completions",
        model="gpt-4o",
        format=Format.CHAT,
        has_messages=True,
        body={"text": text or f"{source} {tokens} {off}"},
        input_tokens=tokens + off,
    )
    return CountedCall(call=call, request=REQUEST, raw=raw(tokens, *features), used_tokens=tokens + off)


def chat(**fields: Any) -> foveate.RequestCount:
    messages = [{"role": "user", "content": "What is the weather?"}]
    return foveate.count_request({"model": "gpt-4o", "messages": messages, **fields})


def test_two_sources_confirm_a_feature_and_one_does_not() -> None:
    table = make_table(
        [make_counted_call("a", 10), make_counted_call("b", 10), make_counted_call("a", 10, "odd")]
    )

    assert table.apply(raw(100)).exact
    assert not table.apply(raw(100, "odd")).exact


def test_a_feature_is_not_confirmed_if_counts_with_it_were_wrong() -> None:
    right = [make_counted_call(source, 10) for source in "ab" for _ in range(40)]
    wrong = [make_counted_call(source, 10, "odd", off=3) for source in "ab"]

    table = make_table([*right, *wrong])

    assert table.apply(raw(100)).exact
    assert not table.apply(raw(100, "odd")).exact


def test_other_features_of_the_same_requests_stay_confirmed() -> None:
    right = [make_counted_call(source, 10, "fine") for source in "ab" for _ in range(40)]
    wrong = [make_counted_call(source, 10, "odd", "fine", off=3) for source in "ab"]

    assert make_table([*right, *wrong]).apply(raw(100, "fine")).exact


def test_guessed_counts_are_never_exact() -> None:
    table = make_table([make_counted_call("a", 10), make_counted_call("b", 10)])
    assert not table.assess(profile(certain=False)).exact


def test_a_bound_covers_the_errors_of_the_recordings() -> None:
    calls = [
        make_counted_call(source, 1000, "odd", off=off)
        for source in "ab"
        for off in (0, 20, 200)
        for _ in range(10)
    ]

    table = make_table(calls)

    assert table.apply(raw(1000, "odd")).upper >= 1200


def test_a_single_wrong_recording_refutes_only_features_with_few_confirmations() -> None:
    wrong = make_counted_call("b", 10, "odd", off=3)

    confirmed_often = make_table(
        [*(make_counted_call(source, 10, "odd") for source in "ab" for _ in range(6)), wrong]
    )
    confirmed_rarely = make_table(
        [*(make_counted_call(source, 10, "odd") for source in "ab" for _ in range(2)), wrong]
    )

    assert confirmed_often.apply(raw(100, "odd")).exact
    assert not confirmed_rarely.apply(raw(100, "odd")).exact


def test_contradictory_recordings_of_one_request_refute_nothing() -> None:
    right = [
        make_counted_call("a", 10, "odd"),
        make_counted_call("b", 10, "odd"),
        make_counted_call("a", 10, "odd", text="again"),
    ]
    other_usage = [make_counted_call("a", 10, "odd", off=off, text="again") for off in (1, 18)]

    assert make_table([*right, *other_usage]).apply(raw(100, "odd")).exact
    assert not make_table([*right[:2], *other_usage[1:]]).apply(raw(100, "odd")).exact


def test_unrecorded_kinds_of_requests_keep_the_margin_of_the_rules() -> None:
    assert make_evidence({}).apply(raw(100, margin=50)).upper == 150


def test_few_sources_do_not_remove_the_margin_of_the_rules() -> None:
    name = next(group_names(CHAT, "plain"))

    def upper(sources: int) -> int:
        return make_evidence({name: UsageBound("share", 0.1, sources)}).apply(raw(100, margin=50)).upper

    assert upper(sources=2) == 150
    assert upper(sources=4) < 120


def test_unrecorded_kinds_have_wider_bounds_than_recorded_ones() -> None:
    name = next(group_names(CHAT, "plain"))

    assert (
        make_evidence({}).apply(raw(100)).upper
        > make_evidence({name: UsageBound("share", 0.0, 4)}).apply(raw(100)).upper
    )


_BITS = st.integers(0, sum(MessageFeature))
_BOUNDS = st.builds(UsageBound, st.sampled_from(BOUND_FORMS), st.floats(0, 5), st.integers(2, 6))
_GROUPS = [
    name for kind in ("exact", "plain", "structured", "tools", "media") for name in group_names(CHAT, kind)
]
_KEYS = profile("schema", "tools", bits=sum(MessageFeature)).keys


@given(
    bounds=st.dictionaries(st.sampled_from(_GROUPS), _BOUNDS),
    confirmed=st.frozensets(st.sampled_from(sorted(_KEYS))),
    features=st.frozensets(st.sampled_from(("schema", "tools"))),
    bits=st.tuples(_BITS, _BITS),
    certain=st.tuples(st.booleans(), st.booleans()),
    tokens=st.tuples(st.floats(0, 1000), st.floats(0, 100)),
    margins=st.tuples(st.floats(0, 100), st.floats(0, 100)),
)
def test_the_bound_never_falls_as_messages_are_added(
    bounds: dict[str, UsageBound],
    confirmed: frozenset[str],
    features: frozenset[str],
    bits: tuple[int, int],
    certain: tuple[bool, bool],
    tokens: tuple[float, float],
    margins: tuple[float, float],
) -> None:
    table = make_evidence(bounds, confirmed)

    def upper(message_features: int, is_certain: bool, count: float, margin: float) -> int:
        accuracy_profile = profile(*features, certain=is_certain, bits=message_features)
        return table.apply(RawCount(tokens=count, upper=count + margin, profile=accuracy_profile)).upper

    before = upper(bits[0], certain[0], tokens[0], margins[0])
    after = upper(bits[0] | bits[1], all(certain), sum(tokens), sum(margins))

    assert after >= before


def test_an_exact_count_has_a_tight_bound() -> None:
    total = chat().total

    assert total.exact
    assert total.tokens < total.upper <= total.tokens + 3


@pytest.mark.parametrize(
    "fields",
    [
        {"field_of_next_year": True},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "A", "schema": {"not": {}}}}},
        {"tools": [{"type": "custom", "custom": {"name": "run"}}]},
        {"tools": [{"type": "function", "function": {"name": "a", "description": "Größe"}}]},
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": "1",
                            "type": "function",
                            "function": {"name": "a", "arguments": '{"b":"\\u00df"}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "1", "content": "c"},
            ]
        },
        {"messages": [{"role": "user", "content": "Hi", "name": "ana"}]},
        {"messages": [{"role": "critic", "content": "Hi"}]},
        {"model": "gpt-4.9"},
    ],
)
def test_an_unrecorded_feature_makes_a_count_an_estimate(fields: dict[str, Any]) -> None:
    assert not chat(**fields).total.exact


def test_sampling_parameters_keep_a_count_exact() -> None:
    assert chat(temperature=0.2, max_tokens=100, seed=7, stop=["\n"]).total.exact


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_a_tool_choice_keeps_the_count_of_gemini_exact(choice: str) -> None:
    tool = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    body = {
        "contents": [{"role": "user", "parts": [{"text": "What is the weather?"}]}],
        "tools": [{"functionDeclarations": [tool]}],
        "toolConfig": {"functionCallingConfig": {"mode": choice}},
    }

    assert foveate.count_request(body, model="gemini-2.5-flash").total.exact


def test_an_empty_field_keeps_a_count_exact_but_empty_instructions_do_not() -> None:
    def is_exact(**fields: Any) -> bool:
        return foveate.count_request({"model": "gpt-4.1", "input": "Hi", **fields}).total.exact

    assert is_exact(previous_response_id=None)
    assert not is_exact(instructions="")


def test_a_hosted_tool_has_no_bound() -> None:
    search = foveate.count_request({"model": "gpt-5", "input": "News?", "tools": [{"type": "web_search"}]})

    assert search.upper is None
    assert chat().upper == chat().total.upper


@pytest.mark.slow
def test_the_shipped_table_matches_the_recordings(shared_data: Path) -> None:
    """If this fails, run tools/count_evidence.py and read what changed."""
    calls = [counted for call in recorded.read_pairs(shared_data) if (counted := count_evidence.count(call))]

    assert render_table(make_table(calls)) == TABLE.read_text(encoding="utf-8")


@pytest.mark.slow
def test_bounds_hold_for_held_out_sources(shared_data: Path) -> None:
    """The shares measured in November 2026, minus a little."""
    calls = [counted for call in recorded.read_pairs(shared_data) if (counted := count_evidence.count(call))]
    explained = [counted for counted in calls if not counted.raw.unexplained]

    judgements = list(count_evidence.judge_held_out(explained))

    exact_calls = [counted for counted, count in judgements if count.exact]
    assert sum(counted.is_right for counted in exact_calls) >= 0.98 * len(exact_calls)
    assert len(exact_calls) >= 0.3 * len(judgements)
    assert sum(count.upper >= counted.used_tokens for counted, count in judgements) >= 0.99 * len(judgements)


def test_the_shipped_table_names_its_sources() -> None:
    assert len(load_evidence().sources) >= 2
    assert load_evidence().as_of

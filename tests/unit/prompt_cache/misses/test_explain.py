"""Every kind of change is explained with its cause and place, and harmless changes are not misses."""

import copy
import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from foveate.errors import MalformedRequest
from foveate.model import Area
from foveate.prompt_cache.misses.causes import MissCause
from foveate.prompt_cache.misses.explain import ExplainedMiss, NoMiss
from tests.support.scenarios.cached_sessions import (
    REPORT,
    SESSIONS,
    Body,
    change_next_turn,
    claude,
    explain,
    explain_cache_miss,
    next_turn,
)
from tests.support.strategies.request_mutations import CHANGING, KINDS, go_on, in_text, text_slots


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_that_continues_has_no_miss(name: str) -> None:
    body = SESSIONS[name]()
    explanation = explain(body, next_turn(body))

    assert isinstance(explanation, NoMiss)
    assert explanation.kept_tokens == explanation.read_tokens > 1000
    assert not explanation.remarks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SESSIONS)
def test_each_kind_of_change_is_reported_with_its_cause_and_place(name: str, kind: str) -> None:
    before, after = SESSIONS[name](), SESSIONS[name]()
    expected = KINDS[kind](before, after)
    assert expected is not None
    explanation = explain_cache_miss(before, next_turn(after))

    assert explanation.cause in expected.causes
    if expected.area is not None:
        assert explanation.place is not None
        assert (explanation.place.area, explanation.place.index) == (expected.area, expected.index)
    assert explanation.lost_tokens > 0


@pytest.mark.slow
def test_changes_of_recorded_requests_are_reported_with_their_cause(shared_data: Path) -> None:
    with gzip.open(shared_data / "usage_pairs.jsonl.gz") as lines:
        rows = [json.loads(line) for line in list(lines)[7::90]]
    explained_counts: Counter[str] = Counter()
    attempts: Counter[str] = Counter()
    for row in rows:
        for name, kind in list(KINDS.items())[:: 1 if row is rows[0] else 3]:
            before, after = copy.deepcopy(row["request"]), copy.deepcopy(row["request"])
            expected = kind(before, after)
            if expected is None:
                continue
            go_on(after)
            try:
                explanation = explain(before, after, model=None if name == "another model" else row["model"])
            except MalformedRequest:
                continue
            attempts[name] += 1
            has_expected_place = isinstance(explanation, ExplainedMiss) and (
                expected.area is None
                or (
                    explanation.place is not None
                    and (explanation.place.area, explanation.place.index) == (expected.area, expected.index)
                )
            )
            explained_counts[name] += (
                isinstance(explanation, ExplainedMiss)
                and explanation.cause in expected.causes
                and has_expected_place
            )
    assert len(attempts) >= 40
    assert explained_counts == attempts


@pytest.mark.parametrize(
    "kind", [f"{name} at the start" for name in ("an ISO timestamp", "a UUID", "a counter")]
)
def test_without_contents_the_explanation_names_the_block(kind: str) -> None:
    before, after = claude(), claude()
    KINDS[kind](before, after)
    explanation = explain_cache_miss(before, next_turn(after), keep_contents=False)

    assert explanation.cause is MissCause.EDITED
    assert explanation.place is not None
    assert explanation.place.area is Area.SYSTEM
    assert explanation.before is not None
    assert explanation.before.end_byte > 1000
    assert explanation.before.excerpt == ""


@pytest.mark.parametrize(
    "kind", ["a tool that moved", "a tool less", "a tool more at the end", "a tool more in front",
             "a tool described anew", "the head dropped", "the head folded", "a message put in",
             "another model"]
)  # fmt: skip
def test_without_contents_moved_added_and_removed_blocks_are_reported(kind: str) -> None:
    before, after = claude(), claude()
    expected = KINDS[kind](before, after)

    assert expected is not None
    assert explain_cache_miss(before, next_turn(after), keep_contents=False).cause in expected.causes


EDITS: dict[str, tuple[Callable[[Body], object], MissCause, Area | None]] = {
    "tool choice": (lambda b: b.update(tool_choice={"type": "any"}), MissCause.PARAMETER, None),
    "thinking": (
        lambda b: b.update(thinking={"type": "enabled", "budget_tokens": 2000}),
        MissCause.PARAMETER,
        None,
    ),
    "effort": (lambda b: b.update(output_config={"effort": "low"}), MissCause.PARAMETER, None),
    "speed": (lambda b: b.update(speed="fast"), MissCause.PARAMETER, None),
    "added system block": (
        lambda b: b["system"].insert(0, {"type": "text", "text": "Hello."}),
        MissCause.BLOCK_ADDED,
        Area.SYSTEM,
    ),
    "removed system block": (lambda b: b["system"].pop(0), MissCause.BLOCK_REMOVED, Area.SYSTEM),
    "no system prompt": (lambda b: b.pop("system"), MissCause.BLOCK_REMOVED, Area.SYSTEM),
    "reversed system blocks": (lambda b: b["system"].reverse(), MissCause.BLOCK_MOVED, Area.SYSTEM),
    "no tools": (lambda b: b.pop("tools"), MissCause.TOOL_REMOVED, Area.TOOLS),
    "reversed tools": (lambda b: b["tools"].reverse(), MissCause.TOOLS_REORDERED, Area.TOOLS),
    "removed thinking": (
        lambda b: b["messages"][3]["content"].pop(0),
        MissCause.THINKING_REMOVED,
        Area.MESSAGES,
    ),
    "cleared tool result": (
        lambda b: b["messages"][4]["content"][0].update(content="[cleared]"),
        MissCause.SHORTENED,
        Area.MESSAGES,
    ),
    "reordered arguments": (
        lambda b: b["messages"][3]["content"][2].update(input={"what": "all", "bay": "west"}),
        MissCause.KEY_ORDER,
        Area.MESSAGES,
    ),
    "added block in an old turn": (
        lambda b: b["messages"][4]["content"].append({"type": "text", "text": "Mind the wind."}),
        MissCause.BLOCK_ADDED,
        Area.MESSAGES,
    ),
    "removed block in an old turn": (
        lambda b: b["messages"][4]["content"].pop(),
        MissCause.BLOCK_REMOVED,
        Area.MESSAGES,
    ),
    "changed role": (lambda b: b["messages"][1].update(role="user"), MissCause.ROLE, Area.MESSAGES),
    "removed message in the middle": (
        lambda b: b["messages"].pop(5),
        MissCause.MESSAGES_DROPPED,
        Area.MESSAGES,
    ),
    "another conversation": (
        lambda b: b.update(messages=[{"role": "user", "content": t} for t in ("Ho!", "Who is there?", "Me.")]),
        MissCause.OTHER_CONVERSATION,
        Area.MESSAGES,
    ),
    "added image": (
        lambda b: b["messages"][-1]["content"].append(
            {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
        ),
        MissCause.IMAGES,
        None,
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_the_cause_of_a_miss_in_a_session_with_breakpoints_is_reported(name: str) -> None:
    change, cause, area = EDITS[name]
    explanation = explain_cache_miss(claude(), change_next_turn(change))

    assert explanation.cause is cause
    assert (explanation.place.area if explanation.place else None) == area
    assert explanation.lost_tokens > 0


def test_a_changed_parameter_is_reported_with_both_values() -> None:
    body = claude() | {"tool_choice": {"type": "auto"}}
    explanation = explain_cache_miss(
        body, change_next_turn(lambda b: b.update(tool_choice={"type": "any"}), body)
    )

    assert explanation.because.startswith('`tool_choice` changed from {"type":"auto"} to {"type":"any"}')
    assert explanation.read_tokens > 1000  # tools and system prompt are still read


def test_a_change_of_a_schema_too_long_to_be_shown_is_reported() -> None:
    def build_request(name: str) -> Body:
        schema = {
            "type": "object",
            "properties": {f"{name}{number}": {"type": "string"} for number in range(30)},
        }
        response_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        return SESSIONS["openai-chat"]() | {"response_format": response_format}

    explanation = explain_cache_miss(build_request("a"), build_request("b"))

    assert (explanation.cause, explanation.field) == (MissCause.PARAMETER, "schema")
    assert len(explanation.because) < 300


def test_bytes_are_those_of_the_field_in_utf_8() -> None:
    before, after = claude(), claude()
    in_text("2026-11-15T10:00:00Z", "2026-11-15T10:00:07Z", "timestamp")(before, after)
    for body in (before, after):
        body["system"][0]["text"] = "Ähem: " + body["system"][0]["text"]
    explanation = explain_cache_miss(before, next_turn(after))
    text = after["system"][0]["text"].encode()

    assert explanation.field == "text"
    assert explanation.after is not None
    assert text[explanation.after.start_byte : explanation.after.end_byte] == b"2026-11-15T10:00:07Z"


graphemes = st.builds(str.__mul__, st.text(alphabet="ab \u0301é👩\u200d🚀🇩🇪漢", max_size=20), st.integers(1, 8))


@given(head=graphemes, first_part=graphemes, second_part=graphemes, tail=graphemes)
def test_an_excerpt_is_always_short_and_never_splits_a_character(
    head: str, first_part: str, second_part: str, tail: str
) -> None:
    before, after = claude(), claude()
    texts = f"x{head}{first_part}{tail}", f"x{head}{second_part}{tail}"
    for body, text in zip((before, after), texts, strict=True):
        body["messages"][0]["content"] = text
    explanation = explain(before, next_turn(after))
    assert isinstance(explanation, ExplainedMiss) == (texts[0] != texts[1])
    excerpts = (explanation.before, explanation.after) if isinstance(explanation, ExplainedMiss) else ()
    for excerpt_range, text in zip(excerpts, texts, strict=False):
        assert excerpt_range is not None
        assert len(excerpt_range.excerpt) <= 60
        excerpt = excerpt_range.excerpt.strip("…")
        boundaries = {0, *(match.end() for match in regex.finditer(r"\X", text))}
        starts = (start for start in range(len(text) + 1) if text.startswith(excerpt, start))
        assert any(start in boundaries and start + len(excerpt) in boundaries for start in starts)


def test_the_first_of_a_parameter_and_a_text_change_is_reported() -> None:
    def edit_text(body: Body, area: str) -> None:
        block = body["system"][1] if area == "system" else body["messages"][2]
        block["text" if area == "system" else "content"] = "Quite another text."

    tool_choice = {"tool_choice": {"type": "any"}}  # invalidates the messages
    for area, cause in (("system", MissCause.EDITED), ("messages", MissCause.PARAMETER)):
        after = next_turn(claude()) | tool_choice
        edit_text(after, area)
        assert explain_cache_miss(claude(), after).cause is cause


SLOTS = len(list(text_slots(claude())))


@pytest.mark.slow
@given(
    slot=st.integers(0, SLOTS - 1), name=st.sampled_from(sorted(CHANGING)), other_slot=st.integers(0, SLOTS - 1)
)
def test_of_two_changes_the_first_is_always_reported(slot: int, name: str, other_slot: int) -> None:
    old_value, new_value, cause = CHANGING[name]
    before, after = claude(), claude()
    for body, value in ((before, old_value), (after, new_value)):
        slots = list(text_slots(body))
        slots[max(slot, other_slot)][0][slots[max(slot, other_slot)][1]] += (
            " Another end." if body is after else ""
        )
        block, key, area, index = slots[min(slot, other_slot)]
        block[key] = f"It is {value}, and so on.\n{block[key]}"
    explanation = explain_cache_miss(before, next_turn(after))

    assert explanation.place is not None
    assert (explanation.place.area, explanation.place.index) == (area, index)
    if slot != other_slot:
        assert explanation.cause == cause


def test_a_long_text_that_was_cut_is_recognized_by_its_ends() -> None:
    explanation = explain_cache_miss(
        claude(),
        change_next_turn(lambda b: b["messages"][4]["content"][0].update(content=REPORT[:200] + "[...]")),
    )

    assert (explanation.cause, explanation.field) == (MissCause.SHORTENED, "content")
    assert explanation.before is not None
    assert explanation.before.end_byte == len(REPORT)

"""Every kind of change is explained with its cause and place, and harmless changes are not misses."""

import copy
import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.errors import MalformedRequest
from foveate.model import Area
from foveate.prompt_cache.misses.causes import MissCause
from foveate.prompt_cache.misses.explain import ExplainedMiss, NoMiss
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.cached_sessions import (
    REPORT,
    SESSIONS,
    Body,
    changed,
    claude,
    explain,
    explain_cache_miss,
    next_turn,
)
from tests.support.strategies.request_mutations import CHANGING, KINDS, go_on, in_text, text_slots


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_that_continues_has_no_miss(name: str) -> None:
    body = SESSIONS[name]()
    found = explain(body, next_turn(body))

    assert isinstance(found, NoMiss)
    assert found.kept_tokens == found.read_tokens > 1000
    assert not found.remarks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SESSIONS)
def test_each_kind_of_change_is_reported_with_its_cause_and_place(name: str, kind: str) -> None:
    before, after = SESSIONS[name](), SESSIONS[name]()
    expected = KINDS[kind](before, after)
    assert expected is not None
    found = explain_cache_miss(before, next_turn(after))

    assert found.cause in expected.causes
    if expected.area is not None:
        assert found.place is not None
        assert (found.place.area, found.place.index) == (expected.area, expected.index)
    assert found.lost_tokens > 0


@pytest.mark.slow
def test_changes_of_recorded_requests_are_reported_with_their_cause(shared_data: Path) -> None:
    with gzip.open(shared_data / "usage_pairs.jsonl.gz") as lines:
        rows = [json.loads(line) for line in list(lines)[7::90]]
    explained: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    for row in rows:
        for name, kind in list(KINDS.items())[:: 1 if row is rows[0] else 3]:
            before, after = copy.deepcopy(row["request"]), copy.deepcopy(row["request"])
            expected = kind(before, after)
            if expected is None:
                continue
            go_on(after)
            try:
                found = explain(before, after, model=None if name == "another model" else row["model"])
            except MalformedRequest:
                continue
            tried[name] += 1
            right_place = isinstance(found, ExplainedMiss) and (
                expected.area is None
                or (
                    found.place is not None
                    and (found.place.area, found.place.index) == (expected.area, expected.index)
                )
            )
            explained[name] += (
                isinstance(found, ExplainedMiss) and found.cause in expected.causes and right_place
            )
    assert len(tried) >= 40
    assert explained == tried


@pytest.mark.parametrize(
    "kind", [f"{name} at the start" for name in ("an ISO timestamp", "a UUID", "a counter")]
)
def test_without_contents_the_explanation_names_the_block(kind: str) -> None:
    before, after = claude(), claude()
    KINDS[kind](before, after)
    found = explain_cache_miss(before, next_turn(after), keep_contents=False)

    assert found.cause is MissCause.EDITED
    assert found.place is not None
    assert found.place.area is Area.SYSTEM
    assert found.before is not None
    assert found.before.end_byte > 1000
    assert found.before.excerpt == ""


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


BY_HAND: dict[str, tuple[Callable[[Body], object], MissCause, Area | None]] = {
    "tool choice": (lambda b: b.update(tool_choice={"type": "any"}), MissCause.PARAMETER, None),
    "thinking": (
        lambda b: b.update(thinking={"type": "enabled", "budget_tokens": 2000}),
        MissCause.PARAMETER,
        None,
    ),
    "effort": (lambda b: b.update(output_config={"effort": "low"}), MissCause.PARAMETER, None),
    "speed": (lambda b: b.update(speed="fast"), MissCause.PARAMETER, None),
    "a system block more": (
        lambda b: b["system"].insert(0, {"type": "text", "text": "Hello."}),
        MissCause.BLOCK_ADDED,
        Area.SYSTEM,
    ),
    "a system block less": (lambda b: b["system"].pop(0), MissCause.BLOCK_REMOVED, Area.SYSTEM),
    "no system prompt": (lambda b: b.pop("system"), MissCause.BLOCK_REMOVED, Area.SYSTEM),
    "system blocks turned": (lambda b: b["system"].reverse(), MissCause.BLOCK_MOVED, Area.SYSTEM),
    "no tools": (lambda b: b.pop("tools"), MissCause.TOOL_REMOVED, Area.TOOLS),
    "all tools turned": (lambda b: b["tools"].reverse(), MissCause.TOOLS_REORDERED, Area.TOOLS),
    "thinking left out": (
        lambda b: b["messages"][3]["content"].pop(0),
        MissCause.THINKING_REMOVED,
        Area.MESSAGES,
    ),
    "a tool result cleared": (
        lambda b: b["messages"][4]["content"][0].update(content="[cleared]"),
        MissCause.SHORTENED,
        Area.MESSAGES,
    ),
    "arguments in another order": (
        lambda b: b["messages"][3]["content"][2].update(input={"what": "all", "bay": "west"}),
        MissCause.KEY_ORDER,
        Area.MESSAGES,
    ),
    "a block more in an old turn": (
        lambda b: b["messages"][4]["content"].append({"type": "text", "text": "Mind the wind."}),
        MissCause.BLOCK_ADDED,
        Area.MESSAGES,
    ),
    "a block less in an old turn": (
        lambda b: b["messages"][4]["content"].pop(),
        MissCause.BLOCK_REMOVED,
        Area.MESSAGES,
    ),
    "said by another": (lambda b: b["messages"][1].update(role="user"), MissCause.ROLE, Area.MESSAGES),
    "a message of the middle dropped": (
        lambda b: b["messages"].pop(5),
        MissCause.MESSAGES_DROPPED,
        Area.MESSAGES,
    ),
    "another conversation": (
        lambda b: b.update(messages=[{"role": "user", "content": t} for t in ("Ho!", "Who is there?", "Me.")]),
        MissCause.OTHER_CONVERSATION,
        Area.MESSAGES,
    ),
    "a picture": (
        lambda b: b["messages"][-1]["content"].append(
            {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
        ),
        MissCause.IMAGES,
        None,
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_the_cause_of_a_miss_in_a_session_with_breakpoints_is_reported(name: str) -> None:
    change, cause, area = BY_HAND[name]
    found = explain_cache_miss(claude(), changed(change))

    assert found.cause is cause
    assert (found.place.area if found.place else None) == area
    assert found.lost_tokens > 0


def test_a_changed_parameter_is_reported_with_both_values() -> None:
    one = claude() | {"tool_choice": {"type": "auto"}}
    found = explain_cache_miss(one, changed(lambda b: b.update(tool_choice={"type": "any"}), one))

    assert found.because.startswith('`tool_choice` changed from {"type":"auto"} to {"type":"any"}')
    assert found.read_tokens > 1000  # tools and system prompt are still read


def test_a_change_of_a_schema_too_long_to_be_shown_is_reported() -> None:
    def asking(name: str) -> Body:
        held = {"type": "object", "properties": {f"{name}{n}": {"type": "string"} for n in range(30)}}
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": held}}
        return SESSIONS["openai-chat"]() | {"response_format": form}

    found = explain_cache_miss(asking("a"), asking("b"))

    assert (found.cause, found.field) == (MissCause.PARAMETER, "schema")
    assert len(found.because) < 300


def test_bytes_are_those_of_the_field_in_utf_8() -> None:
    before, after = claude(), claude()
    in_text("2026-11-15T10:00:00Z", "2026-11-15T10:00:07Z", "timestamp")(before, after)
    for body in (before, after):
        body["system"][0]["text"] = "Ähem: " + body["system"][0]["text"]
    found = explain_cache_miss(before, next_turn(after))
    text = after["system"][0]["text"].encode()

    assert found.field == "text"
    assert found.after is not None
    assert text[found.after.start_byte : found.after.end_byte] == b"2026-11-15T10:00:07Z"


graphemes = st.builds(str.__mul__, st.text(alphabet="ab \u0301é👩\u200d🚀🇩🇪漢", max_size=20), st.integers(1, 8))


@settings(max_examples=limit_examples(80))
@given(head=graphemes, one=graphemes, other=graphemes, tail=graphemes)
def test_an_excerpt_is_always_short_and_never_splits_a_character(
    head: str, one: str, other: str, tail: str
) -> None:
    before, after = claude(), claude()
    texts = f"x{head}{one}{tail}", f"x{head}{other}{tail}"
    for body, text in zip((before, after), texts, strict=True):
        body["messages"][0]["content"] = text
    found = explain(before, next_turn(after))
    assert isinstance(found, ExplainedMiss) == (texts[0] != texts[1])
    sides = (found.before, found.after) if isinstance(found, ExplainedMiss) else ()
    for side, text in zip(sides, texts, strict=False):
        assert side is not None
        assert len(side.excerpt) <= 60
        shown = side.excerpt.strip("…")
        ends = {0, *(match.end() for match in regex.finditer(r"\X", text))}
        places = (at for at in range(len(text) + 1) if text.startswith(shown, at))
        assert any(at in ends and at + len(shown) in ends for at in places)


def test_the_first_of_a_parameter_and_a_text_change_is_reported() -> None:
    def stamp(body: Body, area: str) -> None:
        block = body["system"][1] if area == "system" else body["messages"][2]
        block["text" if area == "system" else "content"] = "Quite another text."

    choosing = {"tool_choice": {"type": "any"}}  # invalidates the messages
    for area, cause in (("system", MissCause.EDITED), ("messages", MissCause.PARAMETER)):
        after = next_turn(claude()) | choosing
        stamp(after, area)
        assert explain_cache_miss(claude(), after).cause is cause


SLOTS = len(list(text_slots(claude())))


@pytest.mark.slow
@settings(max_examples=limit_examples(60))
@given(slot=st.integers(0, SLOTS - 1), name=st.sampled_from(sorted(CHANGING)), later=st.integers(0, SLOTS - 1))
def test_of_two_changes_the_first_is_always_reported(slot: int, name: str, later: int) -> None:
    was, now, cause = CHANGING[name]
    before, after = claude(), claude()
    for body, line in ((before, was), (after, now)):
        slots = list(text_slots(body))
        slots[max(slot, later)][0][slots[max(slot, later)][1]] += " Another end." if body is after else ""
        holder, key, area, index = slots[min(slot, later)]
        holder[key] = f"It is {line}, and so on.\n{holder[key]}"
    found = explain_cache_miss(before, next_turn(after))

    assert found.place is not None
    assert (found.place.area, found.place.index) == (area, index)
    if slot != later:
        assert found.cause == cause


def test_a_long_text_that_was_cut_is_recognized_by_its_ends() -> None:
    found = explain_cache_miss(
        claude(), changed(lambda b: b["messages"][4]["content"][0].update(content=REPORT[:200] + "[...]"))
    )

    assert (found.cause, found.field) == (MissCause.SHORTENED, "content")
    assert found.before is not None
    assert found.before.end_byte == len(REPORT)

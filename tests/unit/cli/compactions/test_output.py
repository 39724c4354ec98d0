"""Compactions as text and as JSON objects."""

import json
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from decimal import Decimal

import pytest

from foveate import formats
from foveate.cli.compactions.output import (
    CompactionFormatter,
    compaction_details_object,
    compaction_object,
    compaction_row_object,
    undo_object,
)
from foveate.cli.compactions.undo import UndoResult
from foveate.cli.shared.console import Display
from foveate.cli.shared.options import shorten_ids
from foveate.compaction.inspection import (
    OUTCOME_MEANINGS,
    CompactionContents,
    RealizedGain,
    undone_meaning,
)
from foveate.compaction.store import ClearedBlock, Compaction, CompactionOutcome, EditDecision
from foveate.compaction.summarize.summarizer import EXTRACTIVE_MODEL
from foveate.model import Format
from tests.support.scenarios.compaction_sessions import claude_body
from tests.support.stores.records import (
    CLEARED_COMPACTION,
    COMPACTED_MESSAGES,
    COMPACTION,
    MOVED_SECTIONS,
    make_compaction,
)

WIDE, NARROW = Display(columns=200), Display(columns=80)
FAILED = replace(
    COMPACTION, id="failed", outcome=CompactionOutcome.FAILED, summary="", carried=(), tokens_after=9_000
)
NO_BOUNDARY = replace(
    FAILED, id="none", outcome=CompactionOutcome.NO_BOUNDARY, messages=0, tokens_before=0, tokens_after=0
)
TRUNCATED = replace(
    COMPACTION,
    id="cut",
    outcome=CompactionOutcome.TOOL_RESULT_TRUNCATED,
    summary="",
    carried=(),
    limit_tokens=700,
)
CONTENTS = CompactionContents(
    compaction=COMPACTION, messages=formats.parse_request(claude_body(2)).messages, api_format=Format.ANTHROPIC
)


@pytest.fixture(autouse=True)
def clocks_in_utc() -> Iterator[None]:
    """Times are shown in the local time zone."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def list_lines(*compactions: Compaction, display: Display = WIDE) -> list[str]:
    return list(CompactionFormatter(display).list_lines(compactions))


def show_details(contents: CompactionContents, *, display: Display = WIDE, full: bool = False) -> str:
    return "\n".join(CompactionFormatter(display).detail_lines(contents, full=full))


def undo_lines(result: UndoResult, display: Display = WIDE) -> list[str]:
    return list(CompactionFormatter(display).undo_lines(result))


def test_a_list_has_a_line_for_each_compaction() -> None:
    compaction = replace(COMPACTION, id="0123456789abcdef", model="m")

    assert list_lines(compaction, replace(FAILED, model="m")) == [
        "id        time              agent  session  messages       tokens  saved     cost  model  outcome",
        "01234567  1970-01-01 00:03  ana    s        1–4       9,000 → 700    92%  $0.0123  m      ok",
        "failed    1970-01-01 00:03  ana    s        1–4             9,000         $0.0123  m      failed",
    ]


def test_a_list_says_why_a_compaction_failed() -> None:
    failed = replace(FAILED, model="m", reason="529:\n overloaded\x1b[31m")
    long = replace(FAILED, model="m", reason="no " * 100)

    assert list_lines(failed)[-1] == "          529: overloaded\\x1b[31m"
    narrow = list_lines(long, display=NARROW)
    assert len(narrow) == 3
    assert narrow[0].startswith("id ")
    assert narrow[-1].startswith("          no no no")
    assert narrow[-1].endswith("…")
    assert len(narrow[-1]) <= NARROW.columns


def test_a_list_leaves_columns_out_on_a_narrow_terminal() -> None:
    assert list_lines(COMPACTION, display=Display(columns=71)) == [
        "id      time              session       tokens  saved     cost  outcome",
        "fold-1  1970-01-01 00:03  s        9,000 → 700    92%  $0.0123  ok",
    ]


def test_an_empty_list_has_no_heading() -> None:
    assert list_lines() == []


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (None, "unknown"),
        (Decimal(0), "$0.00"),
        (Decimal("0E-10"), "$0.00"),
        (Decimal("0.000012"), "<$0.0001"),
        (Decimal("1234.5"), "$1,234.50"),
    ],
)
def test_the_cost_of_a_compaction_is_unknown_or_a_nonzero_number(cost: Decimal | None, text: str) -> None:
    assert f" {text}  claude" in list_lines(replace(COMPACTION, cost=cost))[1]


def test_an_undone_compaction_is_marked_and_one_without_a_boundary_has_no_span() -> None:
    undone, without_boundary = list_lines(replace(COMPACTION, undone_at=1.0), NO_BOUNDARY)[1:]

    assert undone.endswith("  ok, undone")
    assert without_boundary.split() == [
        "none",
        "1970-01-01",
        "00:03",
        "ana",
        "s",
        "$0.0123",
        COMPACTION.model,
        "no_boundary",
    ]


def test_a_truncated_tool_result_names_its_message() -> None:
    assert " s        4         9,000 → 700 " in list_lines(TRUNCATED)[1]
    assert "The limit is 700 tokens for each tool result in this message." in show_details(
        CompactionContents(compaction=TRUNCATED, messages=(), api_format=None)
    )


def test_control_characters_are_escaped_everywhere() -> None:
    escape_sequence = "\x1b]0;x\x07"
    compaction = replace(
        COMPACTION,
        id=f"i{escape_sequence}",
        agent=escape_sequence,
        session_id=escape_sequence,
        model=escape_sequence,
        summary=f"a\n{escape_sequence}",
        carried=(escape_sequence,),
    )
    turn = json.dumps({"role": f"user{escape_sequence}", "content": f"hello {escape_sequence}"}).encode()
    contents = CompactionContents(
        compaction=compaction, messages=[turn, escape_sequence.encode()], api_format=None
    )

    for text in (
        *list_lines(compaction),
        *list_lines(compaction, display=NARROW),
        show_details(contents, full=True),
        *undo_lines(UndoResult(compaction=compaction, was_undone_before=False, restored=compaction)),
        *undo_lines(UndoResult(compaction=compaction, was_undone_before=False, still_in_force=compaction)),
    ):
        assert "\x1b" not in text
        assert "\x07" not in text
    assert r"\x1b]0;x\x07" in show_details(contents, full=True)


def test_colours_are_used_only_if_the_display_has_them() -> None:
    plain, coloured = (
        list_lines(COMPACTION, FAILED),
        list_lines(COMPACTION, FAILED, display=Display(columns=200, colours=True)),
    )

    assert "\x1b[32mok\x1b[0m" in coloured[1]
    assert "\x1b[31mfailed\x1b[0m" in coloured[2]
    assert not any("\x1b" in line for line in plain)


def test_an_encoding_without_arrows_gets_ascii() -> None:
    assert (
        " 1-4       9,000 -> 700 " in list_lines(COMPACTION, display=Display(columns=200, encoding="ascii"))[1]
    )


def test_a_time_out_of_range_is_shown_in_seconds() -> None:
    assert "  1e+30  " in list_lines(replace(COMPACTION, compacted_at=1e30))[1]


def test_long_names_are_truncated() -> None:
    compaction = replace(COMPACTION, agent="a" * 200)

    assert f"  {'a' * 200}  " in list_lines(compaction, display=Display(is_terminal=False))[1]
    assert " aaaaaaaa…aaaaaaa " in list_lines(compaction, display=Display(columns=116))[1]


def test_ids_are_shortened_to_distinct_prefixes() -> None:
    assert shorten_ids(["0123456789a", "0123456789b", "x"]) == {
        "0123456789a": "0123456789a",
        "0123456789b": "0123456789b",
        "x": "x",
    }
    assert shorten_ids(["0123456789a", "0123456789a"]) == {"0123456789a": "01234567"}
    assert shorten_ids([]) == {}


def test_the_reason_of_a_failed_compaction_is_shown_in_one_line() -> None:
    failed = replace(COMPACTION, outcome=CompactionOutcome.FAILED, reason="529:\n overloaded\x1b[31m")

    lines = show_details(replace(CONTENTS, compaction=failed)).splitlines()

    assert [line.strip() for line in lines if "Reason" in line] == ["Reason: 529: overloaded\\x1b[31m"]


def test_a_compaction_is_shown_with_all_details() -> None:
    compaction = replace(COMPACTION, earlier_id="before")

    assert show_details(replace(CONTENTS, compaction=compaction)).splitlines() == [
        "compaction fold-1",
        "Session s of agent ana, 1970-01-01 00:03:20 +0000.",
        "",
        "outcome: ok",
        f"  {OUTCOME_MEANINGS[CompactionOutcome.OK].capitalize()}.",
        "  Messages 1–4 of the 9 that the session had at that time: 9,000 → 700 tokens (8,300 fewer, 92%).",
        "  It replaces the earlier compaction before.",
        "  Made by claude-opus-5-5. It took 2.5 s and cost $0.012.",
        "",
        "original messages",
        f"  The store has 9 messages ({sum(map(len, CONTENTS.messages)):,} bytes), unchanged.",
        "  First message: user: Find the slow parser. Never push to the main branch.",
        "  Last message: user: Which one was it?",
        "",
        "summary",
        "  They looked at src/main.py.",
        "",
        "facts that Foveate added to the summary",
        "",
        "Also named",
        "  - src/main.py, port 8790",
    ]


def test_compacted_messages_are_shown_on_request() -> None:
    text = show_details(CONTENTS, full=True)

    assert "\nmessage 1 user\n  Find the slow parser." in text
    assert (
        '\nmessage 4 assistant\n  Step 0: I look into src/parsers/part_0.py.\n  [calls read_file] {"pa' in text
    )
    assert "\nmessage 5 user\n  [result] def parse_0_0(text)" in text
    assert "message 1" not in show_details(CONTENTS)


@pytest.mark.parametrize(
    ("compaction", "line"),
    [
        (
            replace(COMPACTION, undone_at=86_400.0),
            f"Undone on 1970-01-02 00:00:00 +0000: {undone_meaning(COMPACTION)}.",
        ),
        (replace(COMPACTION, undone_at=86_400.0), "outcome: ok, undone"),
        (COMPACTION, "The store no longer has them."),
        (FAILED, "outcome: failed"),
        (FAILED, "None, because no message was replaced."),
        (FAILED, "Messages 1–4 of the 9 that the session had at that time: 9,000 tokens."),
        (
            replace(COMPACTION, model=EXTRACTIVE_MODEL, cost=None),
            "Made by rules, without a model. It took 2.5 s and cost an unknown amount.",
        ),
        (
            replace(TRUNCATED, undone_at=0.0),
            f"Undone on 1970-01-01 00:00:00 +0000: {undone_meaning(TRUNCATED)}.",
        ),
        (
            TRUNCATED,
            "Message 4 of the 9 that the session had at that time: 9,000 → 700 tokens (8,300 fewer, 92%).",
        ),
    ],
)
def test_the_outcome_of_a_compaction_is_described(compaction: Compaction, line: str) -> None:
    text = show_details(CompactionContents(compaction=compaction, messages=(), api_format=None))

    assert line in [shown.strip() for shown in text.splitlines()]


def test_a_move_of_sections_is_shown_with_what_it_saved() -> None:
    details = CompactionContents(
        compaction=MOVED_SECTIONS,
        messages=(),
        api_format=None,
        realized=RealizedGain(dollars=Decimal("0.5"), requests=7),
    )

    lines = show_details(details).splitlines()
    assert lines[0] == "move of sections move-1"
    assert lines[3:] == [
        "outcome: sections_moved",
        "  Text that was added to injected sections is sent before the history, where it can be cached.",
        "  Messages 1–9 of the 9 that the session had at that time: 9,000 tokens.",
        "  Made by rules, for claude-opus-5-5.",
        "  Reason: 4,000 tokens were added to workspace/MEMORY.md",
        "",
        "money",
        "  Made before a request was sent, because it was expected to save $0.2500 in about 20 more requests"
        " and to cost $0.0312, so $0.2188 in all.",
        "  So far it has saved $0.5000 in 7 requests, writing the history again included.",
        "",
        "original messages",
        "  None, because no message was replaced.",
    ]


@pytest.mark.parametrize("outcome", CompactionOutcome)
def test_every_outcome_has_a_description(outcome: CompactionOutcome) -> None:
    text = show_details(
        CompactionContents(compaction=replace(FAILED, outcome=outcome), messages=(), api_format=None)
    )

    meaning = OUTCOME_MEANINGS[outcome]
    assert f"outcome: {outcome}\n  {meaning[0].upper()}{meaning[1:]}.\n" in text


def test_undoing_describes_the_next_request() -> None:
    assert undo_lines(UndoResult(compaction=COMPACTION, was_undone_before=False)) == [
        "Compaction fold-1 is undone.",
        "The next request of session s contains the original messages 1–4: about 8,300 more tokens.",
        "The gateway may compact these messages again at the next compaction. To prevent that, turn compaction "
        "off.",
    ]


def test_messages_covered_by_an_earlier_compaction_are_not_counted() -> None:
    earlier = replace(make_compaction("earlier"), messages=2, tokens_before=5_000, tokens_after=400)
    undone = UndoResult(compaction=COMPACTION, was_undone_before=False, restored=earlier)

    assert undone.more_tokens == 8_300 - 4_600
    assert undo_lines(undone)[1:3] == [
        "The next request of session s contains the original messages 3–4: about 3,700 more tokens.",
        "Compaction earlier applies again and replaces messages 1–2.",
    ]


def test_undoing_below_a_longer_compaction_says_that_nothing_changes() -> None:
    undone = UndoResult(
        compaction=COMPACTION,
        was_undone_before=False,
        still_in_force=replace(make_compaction("farther"), messages=9),
    )

    assert undone.more_tokens == 0
    assert undo_lines(undone)[1] == (
        "Compaction farther of messages 1–9 still applies, so the next request of session s does not change. "
        "To change it, undo that compaction too."
    )


def test_an_undone_truncation_sends_the_whole_result() -> None:
    assert undo_lines(UndoResult(compaction=TRUNCATED, was_undone_before=False)) == [
        "Truncation cut is undone.",
        "The next request of session s contains the whole tool results in message 4: about 8,300 more tokens.",
    ]


def test_undoing_again_says_when_it_was_undone() -> None:
    undone = UndoResult(compaction=replace(COMPACTION, undone_at=60.0), was_undone_before=True)

    assert undo_lines(undone) == [
        "Compaction fold-1 was already undone on 1970-01-01 00:01:00 +0000. Nothing has changed."
    ]
    assert (undone.first_message, undone.more_tokens) == (0, 0)


def test_a_compaction_object_has_every_field_without_loss() -> None:
    compaction = replace(CLEARED_COMPACTION, summary="a \ud83d", carried=("\x00", "ü"))

    decoded = json.loads(json.dumps(compaction_object(compaction)))

    assert list(decoded) == [field.name for field in fields(Compaction)]
    assert (
        Compaction(
            **decoded
            | {
                "boundary": bytes.fromhex(decoded["boundary"]),
                "carried": tuple(decoded["carried"]),
                "decision": EditDecision(**decoded["decision"]),
                "cleared": tuple(ClearedBlock(**block) for block in decoded["cleared"]),
                "cost": Decimal(decoded["cost"]),
                "outcome": CompactionOutcome(decoded["outcome"]),
            }
        )
        == compaction
    )


def test_a_row_object_leaves_out_the_texts() -> None:
    assert compaction_object(COMPACTION).keys() - compaction_row_object(COMPACTION).keys() == {
        "summary",
        "carried",
        "cleared",
    }


def test_a_details_object_has_messages_on_request() -> None:
    raw = CompactionContents(compaction=COMPACTION, messages=COMPACTED_MESSAGES, api_format=None)
    full = json.loads(json.dumps(compaction_details_object(raw, full=True)))

    assert [turn.encode("utf-8", "surrogateescape") for turn in full["turns"]] == list(COMPACTED_MESSAGES)
    assert full["turns_kept"] == 4
    assert "turns" not in compaction_details_object(raw, full=False)
    assert compaction_details_object(CONTENTS, full=False)["first"] == {
        "role": "user",
        "line": "Find the slow parser. Never push to the main branch.",
    }
    assert (
        compaction_details_object(
            CompactionContents(compaction=COMPACTION, messages=(), api_format=None), full=False
        )["last"]
        is None
    )


def test_an_undo_object_names_the_compaction_in_force() -> None:
    longer = replace(make_compaction("farther"), messages=9)

    assert undo_object(UndoResult(compaction=replace(COMPACTION, undone_at=9.0), was_undone_before=False)) == {
        "id": "fold-1",
        "session_id": "s",
        "undone_at": 9.0,
        "undone_before": False,
        "first_message": 1,
        "last_message": 4,
        "more_tokens": 8_300,
        "in_force": None,
    }
    covered = undo_object(UndoResult(compaction=COMPACTION, was_undone_before=False, still_in_force=longer))
    assert (covered["first_message"], covered["more_tokens"], covered["in_force"]) == (None, 0, "farther")

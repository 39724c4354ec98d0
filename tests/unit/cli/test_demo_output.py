"""Output of `foveate demo`."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from foveate.cli.demo import demo_lines, demo_object
from foveate.cli.shared.console import Display
from foveate.demo.recording import DemoRequest, DemoSession, add_client_breakpoints, load_session
from foveate.demo.run import VariantResult, VariantResults
from foveate.model import Format

OFF = VariantResult(
    requests=9,
    answered=5,
    refused=4,
    failed=0,
    uncached=1_000,
    read=0,
    written=0,
    output=50,
    refused_at=6,
    dollars=Decimal("0.5"),
    summary_dollars=Decimal(0),
    largest_context=300,
    folds=0,
    edits=0,
    added_ms=0.5,
    seconds=1.0,
)


ON = replace(OFF, answered=9, refused=0, uncached=100, read=800, written=100, dollars=Decimal("0.18"), folds=2)


SESSION = DemoSession(name="mine", model="claude-sonnet-4-5", format=Format.ANTHROPIC, requests=())


def make_results(off: VariantResult, on: VariantResult) -> VariantResults:
    """A session that costs two fifths with client breakpoints of what it costs without a cache."""
    usual = replace(off, uncached=50, read=900, written=50, dollars=off.dollars and off.dollars * 2 / 5)
    return VariantResults(off=off, usual=usual, on=on)


def test_variants_are_shown_side_by_side_with_conclusions() -> None:
    text = "\n".join(
        demo_lines(SESSION, make_results(OFF, ON), Display(columns=200), window_tokens=400, is_bundled=False)
    )

    assert "Session mine, model claude-sonnet-4-5." in text
    assert "The context window is 400 tokens." in text
    assert ["requests answered", "5 of 9", "5 of 9", "9 of 9"] in [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()
    ]
    assert "request 6: it and 3 more are rejected as too long. With Foveate, 9 of 9 requests are" in text
    assert ["no cache", "usual breakpoints", "Foveate"] in [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()
    ]
    assert "costs 50% less than with the usual breakpoints and 80% less than without a cache." in text
    assert "foveate replay ~/.claude/projects" in text
    assert "other failures" not in text


def test_unreadable_lines_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"role": "user", "content": "hi"}\nbroken\n{"role": "assistant", "content": "yo"}\n')
    session = load_session(path)
    text = " ".join(
        demo_lines(session, make_results(OFF, ON), Display(columns=200), window_tokens=None, is_bundled=False)
    )

    assert session.broken_lines == 1
    assert "1 line of the recording could not be read" in text


def test_the_first_rejected_request_marks_the_end_without_foveate() -> None:
    off, on = replace(OFF, answered=4, failed=1, refused_at=3), replace(ON, answered=8, refused=1)
    text = " ".join(
        demo_lines(SESSION, make_results(off, on), Display(columns=200), window_tokens=None, is_bundled=False)
    )

    assert "request 3: it and 3 more are rejected as too long. With Foveate, 8 of 9 requests are" in text


def test_failures_and_unknown_prices_are_shown() -> None:
    on = replace(ON, failed=2, failure="max_tokens: too many", dollars=None)
    session = replace(SESSION, left_out=7, is_thinking_removed=True)
    text = "\n".join(
        demo_lines(session, make_results(OFF, on), Display(columns=200), window_tokens=None, is_bundled=True)
    )

    assert "The sandbox rejects 2 of the requests as invalid; the first error: max_tokens: too many" in text
    assert "7 more are left out" in text
    assert "Thinking is left out" in text
    assert "unknown" in text
    assert "SmolLM2" in text


@pytest.mark.parametrize("columns", [20, 60, 80])
def test_text_is_wrapped_and_colours_are_optional(columns: int) -> None:
    printed = list(
        demo_lines(SESSION, make_results(OFF, ON), Display(columns=columns), window_tokens=400, is_bundled=True)
    )

    assert all(len(line) <= max(columns, 54) for line in printed)
    assert not any("\x1b" in line for line in printed)
    assert "\x1b[1m" in "\n".join(
        demo_lines(SESSION, make_results(OFF, ON), Display(colours=True), window_tokens=None, is_bundled=True)
    )


def test_the_demo_object_has_all_variants_and_money_as_strings() -> None:
    result = demo_object(SESSION, make_results(OFF, ON), window_tokens=400, is_bundled=True)

    assert result["overflows_prevented"] == 4
    off, on = result["off"], result["on"]
    assert isinstance(off, dict)
    assert isinstance(on, dict)
    assert (off["dollars"], on["dollars"]) == ("0.5", "0.18")
    assert isinstance(result["usual"], dict)
    assert result["usual"]["dollars"] == "0.2"
    assert on["hit_ratio"] == 0.8
    assert json.loads(json.dumps(result)) == result


def test_a_provider_with_automatic_caching_gets_no_breakpoints() -> None:
    session = replace(SESSION, format=Format.CHAT, requests=[DemoRequest(b'{"messages": []}', 0.0)])

    assert add_client_breakpoints(session) is session
    text = "\n".join(
        demo_lines(session, make_results(OFF, ON), Display(columns=200), window_tokens=None, is_bundled=False)
    )
    assert "caches automatically" in text
    assert "costs 80% less than without Foveate." in text

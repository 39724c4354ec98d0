"""Sessions and requests of `foveate explain` as text and as JSON objects."""

import re
from dataclasses import replace as with_
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from foveate.cli.explain.traces import (
    BackgroundCalls,
    SessionHistory,
    TracedRequest,
    TraceFormatter,
    price_edits,
    request_object,
    session_object,
    sessions_object,
)
from foveate.cli.shared.console import Display
from foveate.compaction.inspection import EditGain, RealizedGain
from foveate.model import CacheUsage, ComparisonOutcome, Savings
from foveate.session.traces import ChargedTrace, Trace, TracedCharge, TracedSession
from tests.support.stores.records import MOVED_SECTIONS, TRACE

CHARGE = TracedCharge(
    cache=CacheUsage(uncached=10, read=30_000, written_5m=4_000, written_1h=600),
    output_tokens=77,
    dollars=Decimal("0.0271"),
    savings=Savings(
        comparison=ComparisonOutcome.SIMULATED,
        without=Decimal("0.135"),
        breakpoints=Decimal("0.08"),
        compaction=Decimal("0.03"),
        context=Decimal("-0.002"),
        keep_alive=Decimal(0),
        simulation_error=Decimal("0.0001"),
    ),
)


def make_formatter(**display: Any) -> TraceFormatter:
    return TraceFormatter(Display(**display))


def make_history(*traces: Trace) -> SessionHistory:
    return SessionHistory(
        session_id="s", agent="ana", requests=[ChargedTrace(trace=trace, charge=CHARGE) for trace in traces]
    )


def test_a_move_of_sections_is_shown_with_its_expected_and_realized_gain() -> None:
    gain = EditGain(
        MOVED_SECTIONS.outcome, MOVED_SECTIONS.decision, RealizedGain(dollars=Decimal("-0.02"), requests=1)
    )
    history = with_(make_history(TRACE), gains={MOVED_SECTIONS.id: gain})
    lines = list(make_formatter(columns=300).session_lines(history, last=9))

    assert (
        "move of sections move-1: Made before a request was sent, because it was expected to save $0.2500 in"
        " about 20 more requests and to cost $0.0312, so $0.2188 in all. So far it has lost $0.0200 in"
        " 1 request, writing the history again included."
    ) in lines
    session: dict[str, Any] = session_object(history)
    (edit,) = session["edits"]
    assert (edit["id"], edit["outcome"]) == ("move-1", "sections_moved")
    assert (edit["expected_dollars"], edit["realized_dollars"]) == (0.21875, "-0.02")


def test_a_session_has_a_line_for_each_request_and_the_last_window() -> None:
    first = replace(TRACE, id="a", compaction_id=None, cache_miss=None, problems=())
    second = replace(TRACE, id="b", compaction_id="f", cache_miss=None, problems=())
    third = replace(second, id="c", status=529, tokens=None, sections=())
    lines = list(make_formatter(columns=140).session_lines(make_history(first, second, TRACE, third), last=9))

    assert lines[0] == "session s, agent ana"
    rows = [line for line in lines if line[:1].isdigit()]
    assert [row.split()[0] for row in rows[:4]] == ["1", "2", "3", "4"]
    assert "34,650     17%" in rows[0]
    assert rows[1].endswith("  new compaction")
    assert "cache miss: timestamp" in rows[2]
    assert "status 529" in rows[3]
    assert rows[4] == "4 requests, $0.1084, cache hit ratio 0.87, 2 compactions, 1 cache miss"
    assert "context window: unknown (tokens were not counted, or the provider stores earlier messages)" in lines


def test_notes_of_a_request_go_below_it_on_a_narrow_display() -> None:
    lines = list(make_formatter(columns=80).session_lines(make_history(TRACE), last=9))

    row = next(at for at, line in enumerate(lines) if line.startswith("1 "))
    assert "30,000    4,600" in lines[row], "tokens read and written are still shown"
    assert lines[row + 1] == "    new compaction; cache miss: timestamp; failed: memory"


def test_only_the_last_requests_of_a_long_session_are_shown() -> None:
    traces = [replace(TRACE, id=f"{at}") for at in range(30)]
    lines = list(make_formatter(columns=120).session_lines(make_history(*traces), last=2))

    assert "28 earlier requests are not shown: use --last 30" in lines
    assert [line.split()[0] for line in lines if line[:2].isdigit() and "$" in line][:2] == ["29", "30"]


def test_a_request_shows_every_edit_with_its_reason_tokens_and_dollars() -> None:
    traced = ChargedTrace(trace=TRACE, charge=CHARGE)
    lines = list(
        make_formatter(columns=120).request_lines(
            TracedRequest(number=3, charged_trace=traced, edits=price_edits(traced))
        )
    )
    text = "\n".join(lines)

    assert "request call-1, number 3 of session s" in text
    assert "cache miss: a timestamp changed, at system[0]; 3,000 tokens paid again, $0.0123" in text
    assert "5 edits" in text
    (breakpoint_line,) = [line for line in lines if "breakpoint 1h" in line]
    assert breakpoint_line.split() == [
        "prompt",
        "cache",
        "breakpoint",
        "1h",
        "system[0]",
        "-3,600",
        "-$0.0800",
        "saves",
        "most",
    ]
    assert "and 3 more" in text
    assert "step failed: memory: ☃: gone" in text


def test_a_request_without_edits_says_so() -> None:
    bare = ChargedTrace(trace=replace(TRACE, edits=(), edits_left_out=0, problems=(), cache_miss=None))
    text = "\n".join(make_formatter().request_lines(TracedRequest(number=1, charged_trace=bare)))

    assert "no edits: Foveate forwarded the request unchanged" in text
    assert "no charge was recorded for this request" in text


@pytest.mark.parametrize("columns", [1, 20, 40, 80, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_tables_and_bars_fit_any_width(columns: int, encoding: str) -> None:
    unusual = replace(TRACE, model="模型\x1b[31m" * 9, agent="🙂" * 30)
    formatter = make_formatter(columns=columns, encoding=encoding)
    traced = ChargedTrace(trace=unusual, charge=CHARGE)
    lines = [
        *formatter.session_lines(make_history(unusual, TRACE), last=9),
        *formatter.request_lines(TracedRequest(number=1, charged_trace=traced, edits=price_edits(traced))),
        *formatter.session_list_lines(
            [TracedSession(session_id="s" * 40, agent=unusual.agent, requests=9, first_at=0.0, last_at=9.0)]
        ),
    ]

    for line in lines:
        assert line.encode(encoding).decode(encoding).isprintable()
    rows = [line for line in lines if "$0.0271" in line and "charged" not in line]
    assert all(len(line) <= max(columns, 20) for line in rows)


def test_every_row_fits_a_narrow_terminal() -> None:
    trace = replace(TRACE, compaction_id=None, cache_miss=None, problems=())
    formatter = make_formatter(columns=40)
    traced = ChargedTrace(trace=trace, charge=CHARGE)
    lines = [
        *formatter.session_lines(make_history(trace, trace), last=9),
        *formatter.request_lines(TracedRequest(number=1, charged_trace=traced, edits=price_edits(traced))),
    ]

    assert [line for line in lines if len(line) > 40] == []
    assert not [line for line in lines if line and not line.strip()], "lines of blanks"
    rows = [line.split() for line in lines if "$0.0271" in line and "charged" not in line]
    assert [(row[0], row[-1]) for row in rows] == [("1", "5"), ("2", "5")]


def test_the_cost_of_summaries_is_shown() -> None:
    history = with_(
        make_history(TRACE),
        background_calls=[BackgroundCalls(category="compaction", calls=2, dollars=Decimal("0.0233"))],
    )

    assert "2 compaction calls in the background: $0.0233" in list(
        make_formatter().session_lines(history, last=9)
    )
    assert session_object(history)["beside"] == [
        {"category": "compaction", "calls": 2, "dollars": "0.0233", "unknown_calls": 0}
    ]


def test_calls_of_unknown_price_are_not_counted_as_free() -> None:
    unknown = with_(CHARGE, dollars=None)
    requests = [
        ChargedTrace(trace=TRACE, charge=CHARGE),
        ChargedTrace(trace=replace(TRACE, id="b"), charge=unknown),
    ]
    history = SessionHistory(session_id="s", agent="ana", requests=requests)

    assert "2 requests, $0.0271 and 1 call of unknown price," in "\n".join(
        make_formatter(columns=200).session_lines(history, last=9)
    )
    without_prices = with_(history, requests=requests[1:])
    assert "1 request, cost unknown," in "\n".join(
        make_formatter(columns=200).session_lines(without_prices, last=9)
    )


def test_times_of_a_session_over_several_days_have_dates() -> None:
    one_day = "\n".join(
        make_formatter().session_lines(make_history(TRACE, replace(TRACE, id="b", at=TRACE.at + 1)), last=9)
    )
    two_days = "\n".join(
        make_formatter().session_lines(
            make_history(TRACE, replace(TRACE, id="b", at=TRACE.at + 86_400)), last=9
        )
    )

    assert not re.search(r"\d{4}-\d\d-\d\d \d\d:", one_day)
    assert len(re.findall(r"\d{4}-\d\d-\d\d \d\d:", two_days)) == 2


def test_traces_use_colours_only_if_the_display_has_them() -> None:
    history = make_history(TRACE)

    assert "\x1b[" in "\n".join(make_formatter(colours=True).session_lines(history, last=9))
    assert "\x1b" not in "\n".join(make_formatter().session_lines(history, last=9))


def test_the_session_object_has_all_fields_and_money_as_strings() -> None:
    traced = ChargedTrace(trace=TRACE, charge=CHARGE)
    result = request_object(2, traced, price_edits(traced))

    assert result["number"] == 2
    assert result["sections"] == [
        {"name": "system", "tokens": 4_000},
        {"name": "tool results", "tokens": 30_650},
    ]
    edits = result["edits"]
    assert isinstance(edits, list)
    assert edits[0]["dollars"] == "0.080000"
    charge = result["bill"]
    assert isinstance(charge, dict)
    assert charge["dollars"] == "0.0271"
    requests = session_object(make_history(TRACE))["requests"]
    assert isinstance(requests, list)
    assert [(request["id"], request["edits"][0]["dollars"]) for request in requests] == [("call-1", "0.080000")]
    last = session_object(make_history(TRACE, replace(TRACE, id="b")), last=1)["requests"]
    assert isinstance(last, list)
    assert [(request["number"], request["id"]) for request in last] == [(2, "b")]
    session = TracedSession(session_id="s", agent="a", requests=1, first_at=0.0, last_at=9.0)
    assert sessions_object([session]) == {
        "sessions": [
            {
                "session_id": "s",
                "agent": "a",
                "requests": 1,
                "first_at": 0.0,
                "last_at": 9.0,
                "title": "",
                "parent_id": None,
            }
        ]
    }

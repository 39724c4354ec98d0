"""The page of one session."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace as with_
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from foveate import formats
from foveate.compaction.store import Compaction, CompactionOutcome
from foveate.cost.caps import list_accounts
from foveate.cost.ledger import Category
from foveate.session.hash_chain import compute_chain
from foveate.session.store import SessionUpdate
from foveate.session.traces import TracedEdit
from foveate.web.pages.sessions import COMPACTIONS_PER_PAGE, REQUESTS_PER_PAGE
from tests.support.clients.dashboard import NOW, Dashboard, open_dashboard, page_to_text
from tests.support.scenarios.compaction_sessions import claude_body
from tests.support.stores.ledger_records import CALL, CHARGE, settle_one
from tests.support.stores.records import (
    COMPACTION,
    FAILED_COMPACTION,
    MOVED_SECTIONS,
    TRACE,
    make_session,
    make_turns,
)

MALICIOUS_NAME = "<script>alert('x')</script>/?#&% 🦊 مرحبا"
AT = NOW - 600


@pytest.fixture
async def dashboard(tmp_path: Path) -> AsyncIterator[Dashboard]:
    async with open_dashboard(tmp_path) as opened:
        yield opened


async def page_text(dashboard: Dashboard, address: str) -> str:
    """Return the text of a page, without a blank before a comma."""
    return (await dashboard.text(address)).replace(" ,", ",")


async def record_requests(dashboard: Dashboard, count: int = 1, session_id: str = "s") -> None:
    traces = [replace(TRACE, id=f"r{at}", session_id=session_id, at=AT + at) for at in range(1, count + 1)]
    await dashboard.store.traces.save(traces)


async def make_compaction(dashboard: Dashboard, turns: int, id_: str = "fold-1", **fields: Any) -> Compaction:
    """Return a compaction of a conversation with Claude."""
    request = formats.parse_request(claude_body(turns))
    compaction = with_(
        COMPACTION,
        id=id_,
        boundary=compute_chain(request).hashes[-1],
        messages=len(request.messages),
        compacted_at=AT,
        **fields,
    )
    await dashboard.store.compactions.record(compaction, request.messages, lease=None)
    return compaction


async def test_an_unknown_session_is_not_found(dashboard: Dashboard) -> None:
    text = await dashboard.text(f"/-/sessions/{quote(MALICIOUS_NAME, safe='')}", status=404)

    assert "No session" in text
    assert "alert" in text
    assert "No compaction" in await dashboard.text("/-/compactions/nobody's", status=404)


async def test_an_id_may_contain_any_character(dashboard: Dashboard) -> None:
    for number, id_ in enumerate((MALICIOUS_NAME, "a/b//c", "?", "#", "%2F", "x" * 240, " blanks ", "e\u0301")):
        await dashboard.store.traces.save([replace(TRACE, id=f"of {number}", session_id=id_, at=AT)])
        page = await dashboard.page(f"/-/sessions/{quote(id_, safe='')}")

        assert "17.3%" in page, id_
        assert "<script>alert" not in page
        assert f'&amp;session={quote(id_, safe="")}"' in page, "and it is what is listened to"


async def test_the_head_shows_costs_and_losses(dashboard: Dashboard) -> None:
    await record_requests(dashboard, 2)
    await make_compaction(dashboard, 2)
    for category in (Category.MAIN, Category.COMPACTION):
        call = replace(CALL, id=f"c-{category}", category=category)
        await settle_one(dashboard.store.ledger, replace(CHARGE, call=call), accounts=list_accounts(call))
    text = await page_text(dashboard, "/-/sessions/s")

    for expected in (
        "Agent ana",
        "Context window 17.3% 34,650 of 200,000 tokens",
        "Cost $0.1225 2 calls",
        "Cache hit ratio 98.1% of its requests; 98.1% of all calls",
        "Saved $0.306 $0.428 without Foveate",
        "Breakpoints −$0.3060",
        "With Foveate $0.1220",
        "Requests 2 none failed, 2.1 ms added per request",
        "Cache misses 2 6k tokens paid again, $0.0246",
        "Other calls: 1 compaction call, $0.0612",
    ):
        assert expected in text


async def test_the_contents_of_the_window_add_up(dashboard: Dashboard) -> None:
    await record_requests(dashboard)
    text = await page_text(dashboard, "/-/sessions/s")

    assert "system 4,000 11.5%" in text
    assert "tool results 30,650 88.5%" in text
    assert "counted exactly; 8,000 tokens are reserved for the response" in text


async def test_a_requests_details_show_edits_problems_and_cache_misses(dashboard: Dashboard) -> None:
    await record_requests(dashboard)
    call = replace(CALL, id="r1")
    await settle_one(dashboard.store.ledger, replace(CHARGE, call=call), accounts=list_accounts(call))
    text = await page_text(dashboard, "/-/sessions/s")
    row = text[text.index("Latency added Status") :]

    for expected in (
        "34,650 17.3% 34,000 638 12 900 $0.0612 2.1 ms 200",
        "5 edits, compacted, 1 step failed, cache miss: a timestamp changed, at system[0];"
        " 3,000 tokens paid again, $0.0123",
        "Sent without memory, which failed: ☃: gone",
        "prompt cache breakpoint 1h system[0] 3,600 saves most",
        "inject insert messages[9] +40 section time",
        "and 3 more edits without stored details",
    ):
        assert expected in row


async def test_a_request_without_edits_usage_or_response_says_so(dashboard: Dashboard) -> None:
    bare = replace(TRACE, at=AT, status=0, tokens=None, sections=(), edits=(), edits_left_out=0, problems=())
    await dashboard.store.traces.save([replace(bare, compaction_id=None, cache_miss=None)])
    text = await page_text(dashboard, "/-/sessions/s")

    assert "unknown no charge recorded 2.1 ms no response" in text
    assert "the size of these requests is unknown" in text
    assert "edit," not in text


async def test_message_content_is_escaped(dashboard: Dashboard) -> None:
    edit = TracedEdit(step=MALICIOUS_NAME, does=MALICIOUS_NAME, place=MALICIOUS_NAME, reason=MALICIOUS_NAME)
    await dashboard.store.traces.save(
        [
            replace(
                TRACE, at=AT, edits=(edit,), problems=((MALICIOUS_NAME, MALICIOUS_NAME),), model=MALICIOUS_NAME
            )
        ]
    )
    message = b'{"role":"user","content":"<script>alert(1)</script>"}'
    await dashboard.store.compactions.record(
        with_(
            COMPACTION,
            summary=MALICIOUS_NAME,
            carried=(MALICIOUS_NAME,),
            reason=MALICIOUS_NAME,
            model=MALICIOUS_NAME,
            agent=MALICIOUS_NAME,
        ),
        [message],
        lease=None,
    )
    for path in ("/-/sessions/s", "/-/compactions/fold-1"):
        page = await dashboard.page(path)
        assert "<script>alert" not in page
        assert "<script>alert(1)</script>" in page_to_text(page), "and it is all there"


async def test_requests_are_listed_in_pages_with_their_numbers(dashboard: Dashboard) -> None:
    count = 2 * REQUESTS_PER_PAGE + 5
    await record_requests(dashboard, count)
    pages, address = [], "/-/sessions/s"
    while address:
        page = await dashboard.page(address)
        pages.append([int(number) for number in re.findall(r'<th scope="row" class="figure">(\d+)</th>', page)])
        older = re.findall(r'href="(\?before=[^"#]*)[^"]*" rel="next"', page)
        address = f"/-/sessions/s{older[0]}" if older else ""

    assert [number for item in pages for number in item] == list(range(count, 0, -1))
    last = await dashboard.page(f"/-/sessions/s?before=r{count - 2 * REQUESTS_PER_PAGE + 1}")
    assert 'href="?before=r56#requests" rel="prev"' in last
    middle = await dashboard.page("/-/sessions/s?before=r56")
    assert f"{count} requests, newest first; 6 to 55 on this page" in page_to_text(middle)
    assert 'href="/-/sessions/s#requests">Newest' in middle
    assert "has no request 'x'" in await dashboard.text("/-/sessions/s?before=x", status=400)


async def test_a_compactions_details_show_the_messages_and_the_summary(dashboard: Dashboard) -> None:
    await record_requests(dashboard)
    compaction = await make_compaction(dashboard, 6)
    text = await page_text(dashboard, "/-/sessions/s")
    section = text[text.index("Compactions Messages") : text.index("Requests 1 request")]

    for expected in (
        f"Messages 1–{compaction.messages} compacted from 9k to 700 tokens, 10 min ago",
        "Outcome done: the summary is sent instead of these messages",
        "9,000 before, 700 after, 92.2% saved",
        "Created by claude-opus-5-5",
        "Cost $0.0123",
        "Duration 2.5 s",
        "Summary They looked at src/main.py.",
        "Facts added because the summary omits them Also named src/main.py, port 8790",
        "Message 1, user",
        "messages not shown: show all",
        f"Message {compaction.messages}, ",
    ):
        assert expected in section
    assert '"role"' not in section, "messages are read by their format"


async def test_an_undone_failed_or_replaced_compaction_is_not_in_force(dashboard: Dashboard) -> None:
    await record_requests(dashboard)
    first = await make_compaction(dashboard, 4, id_="first")
    later = with_(first, id="later", messages=40, earlier_id="first", compacted_at=AT + 1)
    await dashboard.store.compactions.record(later, [b'{"role":"user","content":"last words"}'], lease=None)
    await dashboard.store.compactions.record(with_(FAILED_COMPACTION, compacted_at=AT + 2), (), lease=None)
    await dashboard.store.compactions.record(
        with_(
            COMPACTION,
            id="cut",
            outcome=CompactionOutcome.TOOL_RESULT_TRUNCATED,
            limit_tokens=700,
            compacted_at=AT + 3,
        ),
        (),
        lease=None,
    )
    text = await page_text(dashboard, "/-/sessions/s")

    assert "to 700 tokens, included in a later compaction," in text
    assert "Outcome done: included in a later compaction" in text
    assert "Not compacted: failed" in text
    assert "Outcome failed: no summary could be written" in text
    assert "Tool results in message 4 shortened" in text
    assert "Limit 700 tokens per tool result" in text
    assert "last words" in text
    assert await dashboard.store.compactions.undo("later", now=NOW)
    text = await page_text(dashboard, "/-/sessions/s")
    assert "to 700 tokens, undone," in text
    assert "Outcome done: the messages are sent unchanged" in text
    assert "included in" not in text


async def test_a_move_of_sections_is_shown_with_its_gain_and_is_not_a_compaction(dashboard: Dashboard) -> None:
    await record_requests(dashboard)
    move = with_(MOVED_SECTIONS, compacted_at=AT + 1)
    await dashboard.store.compactions.record(move, (), lease=None)
    text = await page_text(dashboard, "/-/sessions/s")
    own_page = await dashboard.text("/-/compactions/move-1")

    assert "Compactions 0" in text
    for page in (text, own_page):
        assert "Sections moved before the history of 9k tokens" in page
        assert "it was expected to save $0.2500 in about 20 more requests and to cost $0.0312" in page
        assert "So far it has lost $0.0312 in 0 requests, writing the history again included." in page
        assert "Reason 4,000 tokens were added to workspace/MEMORY.md" in page


async def test_a_compaction_has_its_own_page(dashboard: Dashboard) -> None:
    compaction = await make_compaction(dashboard, 40)
    page = await dashboard.page("/-/compactions/fold-1")
    (next_query,) = re.findall(r'href="(\?from=\d+)" rel="next"', page)
    second = await dashboard.text(f"/-/compactions/fold-1{next_query}")

    assert f"{compaction.messages} messages; 1–30 on this page" in page_to_text(page)
    assert "Message 1, user" in page_to_text(page)
    assert "Message 31, " in second
    assert "Earlier messages" in second
    assert "from must be a whole number" in await dashboard.text("/-/compactions/fold-1?from=0", status=400)
    beyond = (await dashboard.text("/-/compactions/fold-1?from=1000")).partition("Compacted messages")[2]
    assert "No more messages" in beyond
    assert "Message" not in beyond


async def test_unreadable_messages_are_shown_as_received(dashboard: Dashboard) -> None:
    await record_requests(dashboard)
    long_message = b'{"role": "user", "content": "' + b"x" * 1_000_000 + b'"}'
    await dashboard.store.compactions.record(
        with_(COMPACTION, messages=3), [b"\xff\0", b"{}", long_message], lease=None
    )
    text = await page_text(dashboard, "/-/sessions/s")

    assert "Message 1, 2 bytes, unparsed \\xff" in text
    assert f"Message 3, {len(long_message):,} bytes, unparsed" in text
    assert len(text) < 20_000
    family = "👩‍👩‍👧‍👦"
    await dashboard.store.compactions.record(with_(COMPACTION, id="b", summary=family * 900), (), lease=None)
    page = await dashboard.page("/-/sessions/s")
    summary = page[page.index(f">{family}") + 1 :].partition("<span")[0]
    assert set(summary.split(family)) == {""}, "no character is cut in two"


async def test_many_compactions_are_listed_in_pages(dashboard: Dashboard) -> None:
    await record_requests(dashboard)
    for at in range(COMPACTIONS_PER_PAGE + 2):
        await dashboard.store.compactions.record(
            with_(COMPACTION, id=f"f{at}", compacted_at=AT + at), (), lease=None
        )
    page = await dashboard.page("/-/sessions/s")
    (earlier,) = re.findall(r'href="(\?compactions=[^"#]*)#compactions"', page)
    older = await dashboard.page(f"/-/sessions/s{earlier}")

    assert page.count('data-name="compaction-') == COMPACTIONS_PER_PAGE
    assert older.count('data-name="compaction-') == 2
    assert "compactions must be the time of a compaction" in await dashboard.text(
        "/-/sessions/s?compactions=nan", status=400
    )


async def test_compactions_of_one_moment_are_on_the_same_page(dashboard: Dashboard) -> None:
    await record_requests(dashboard)
    for at in range(COMPACTIONS_PER_PAGE + 5):
        compaction = with_(COMPACTION, id=f"f{at}", compacted_at=AT + (at > COMPACTIONS_PER_PAGE + 2))
        await dashboard.store.compactions.record(compaction, (), lease=None)
    await dashboard.store.compactions.record(with_(COMPACTION, id="first", compacted_at=AT - 1), (), lease=None)
    page = await dashboard.page("/-/sessions/s")
    (earlier,) = re.findall(r'href="(\?compactions=[^"#]*)#compactions"', page)

    assert page.count('data-name="compaction-') == COMPACTIONS_PER_PAGE + 5
    assert re.findall('data-name="compaction-([^"]*)"', await dashboard.page(f"/-/sessions/s{earlier}")) == [
        "first"
    ]


async def test_forks_link_to_each_other(dashboard: Dashboard) -> None:
    parent = make_session("parent", 3)
    await dashboard.store.sessions.save([SessionUpdate(session=parent, turns=make_turns("parent", 0, 3))])
    await dashboard.store.sessions.save(
        [SessionUpdate(session=make_session("child", 4, parent=parent), turns=make_turns("child", 3, 4))]
    )
    await record_requests(dashboard, session_id="parent")
    await dashboard.store.traces.save([replace(TRACE, id="c", session_id="child", at=AT)])

    assert 'child session: <a href="/-/sessions/child"' in await dashboard.page("/-/sessions/parent")
    assert 'parent session <a href="/-/sessions/parent"' in await dashboard.page("/-/sessions/child")


async def test_sessions_without_requests_are_not_linked(dashboard: Dashboard) -> None:
    rejected = make_session("refused", 3)
    await dashboard.store.sessions.save([SessionUpdate(session=rejected, turns=make_turns("refused", 0, 3))])
    await dashboard.store.sessions.save(
        [SessionUpdate(session=make_session("child", 4, parent=rejected), turns=make_turns("child", 3, 4))]
    )
    await record_requests(dashboard, session_id="child")

    assert "fork" not in await page_text(dashboard, "/-/sessions/child")
    await dashboard.page("/-/sessions/refused", status=404)


async def test_a_session_keeps_its_totals_after_its_requests_are_deleted(dashboard: Dashboard) -> None:
    await settle_one(dashboard.store.ledger, CHARGE, accounts=list_accounts(CALL))
    text = await page_text(dashboard, "/-/sessions/s")

    assert "Cost $0.0612" in text
    assert "The requests of this session are no longer stored." in text
    assert "This session has no compactions." in text


async def test_a_long_session_is_a_small_page(dashboard: Dashboard) -> None:
    await record_requests(dashboard, 1_000)
    page = await dashboard.page("/-/sessions/s")

    assert "1,000 requests" in page_to_text(page)
    assert len(page) < 200_000

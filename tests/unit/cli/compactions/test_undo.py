"""Folds as a user asks for them, in a real store: found, listed, undone, and written out to be read back."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from foveate.cli.compactions.output import select_for_export, write_compactions
from foveate.cli.compactions.selection import (
    CompactionFilter,
    find_compaction,
    find_session_id,
    iterate_compactions,
    list_compactions,
)
from foveate.cli.compactions.undo import undo_compaction
from foveate.compaction.compact import CompactionRunner
from foveate.compaction.inspection import load_contents
from foveate.compaction.store import Compaction, CompactionOutcome
from foveate.errors import BadOption
from foveate.model import Format
from foveate.store import Store, open_store
from foveate.tokens import counter_for
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.compaction_sessions import (
    MODEL,
    OPTIONS,
    apply_compactions,
    chat_body,
    claude_body,
    make_subject,
    require_fit,
)
from tests.support.stores.records import COMPACTED_MESSAGES, COMPACTION, compaction_ids, make_compaction
from tests.support.stores.templates import ensure_store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await open_store(ensure_store(tmp_path / "foveate.sqlite")) as opened:
        yield opened


async def keep(store: Store, *some: Compaction) -> None:
    await asyncio.gather(*(store.compactions.record(one, COMPACTED_MESSAGES, lease=None) for one in some))


async def made(
    store: Store, body: Any, earlier: Compaction | None = None, *, api_format: Format | None = None
) -> Compaction:
    """A session folded by rules, on top of an earlier fold if there is one."""
    clock = iter(range(1_000)).__next__
    folder = CompactionRunner(
        store.compactions, None, counter_for(MODEL), holder="me", clock=clock, options=OPTIONS
    )
    subject = make_subject(body, [earlier] if earlier is not None else (), api_format=api_format)
    folded = await folder.compact(require_fit(subject))
    assert folded is not None
    assert folded.compaction is not None
    assert folded.outcome is CompactionOutcome.OK
    return folded.compaction


Kind = tuple[int, str, str, CompactionOutcome]
KINDS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(("ana", "bob")),
        st.sampled_from("st"),
        st.sampled_from(CompactionOutcome),
    ),
    max_size=5,
)
BOUNDS = st.none() | st.integers(-1, 4)


@pytest.mark.slow
@settings(max_examples=limit_examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kinds=KINDS, copies=st.sampled_from((1, 40, 90)), agent=st.sampled_from((None, "ana")),
       session=st.sampled_from((None, "s")), outcome=st.none() | st.sampled_from(CompactionOutcome), since=BOUNDS,
       until=BOUNDS)  # fmt: skip
@example(kinds=[(0, "ana", "s", CompactionOutcome.OK), (1, "ana", "s", CompactionOutcome.OK)], copies=90, agent=None, session=None,
         outcome=None, since=None, until=None)  # fmt: skip
def test_every_matching_compaction_is_listed_exactly_once(
    tmp_path: Path,
    kinds: list[Kind],
    copies: int,
    agent: str | None,
    session: str | None,
    outcome: CompactionOutcome | None,
    since: int | None,
    until: int | None,
) -> None:
    """Many are made at the same time, so that pages end among them."""
    kept = [
        replace(
            COMPACTION, id=f"{number:03}", compacted_at=float(at), agent=whose, session_id=of, outcome=ended
        )
        for number, (at, whose, of, ended) in enumerate(kinds * copies)
    ]
    asked = CompactionFilter(agent=agent, session_id=session, outcome=outcome, since=since, until=until)

    async def found() -> list[Compaction]:
        path = tmp_path / "copy.sqlite"
        path.unlink(missing_ok=True)
        async with await open_store(ensure_store(path)) as store:
            await asyncio.gather(*(store.compactions.record(one, (), lease=None) for one in kept))
            return [fold async for fold in iterate_compactions(store.compactions, asked)]

    def is_asked(one: Compaction) -> bool:
        return (
            agent in (None, one.agent)
            and session in (None, one.session_id)
            and outcome in (None, one.outcome)
            and (since is None or one.compacted_at >= since)
            and (until is None or one.compacted_at <= until)
        )

    wanted = sorted(filter(is_asked, kept), key=lambda one: (one.compacted_at, one.id), reverse=True)
    assert asyncio.run(found()) == wanted


async def test_a_list_ends_at_its_limit_and_says_that_there_are_more(store: Store) -> None:
    await keep(store, *(make_compaction(f"f{number}", at=float(number)) for number in range(5)))

    newest, is_more = await list_compactions(store, CompactionFilter(), limit=3)
    everything, no_more = await list_compactions(store, CompactionFilter(), limit=5)

    assert (compaction_ids(newest), is_more) == (["f4", "f3", "f2"], True)
    assert (len(everything), no_more) == (5, False)


async def test_a_compaction_is_found_by_a_unique_prefix_of_its_id(store: Store) -> None:
    await keep(
        store,
        make_compaction("abcdef0123"),
        make_compaction("abcdef9999"),
        make_compaction("abd"),
        make_compaction("abd0"),
    )

    assert (await find_compaction(store, "abcdef0")).id == "abcdef0123"
    assert (await find_compaction(store, "abd")).id == "abd", "a whole id is never ambiguous"
    with pytest.raises(BadOption, match=r"several folds begin with 'abc': abcdef01, abcdef99; say more of it"):
        await find_compaction(store, "abc")
    for unknown in ("x", "abcdef0123x", "%", "abc_"):
        with pytest.raises(BadOption, match="no fold whose id begins with"):
            await find_compaction(store, unknown)
    with pytest.raises(BadOption, match="is expected"):
        await find_compaction(store, "")


async def test_an_ambiguous_prefix_lists_some_of_its_matches(store: Store) -> None:
    await keep(store, *(make_compaction(f"a{number:02}") for number in range(40)))

    with pytest.raises(BadOption, match=r"a00, a01, .*, a09, …; say more") as refused:
        await find_compaction(store, "a")
    assert "a10" not in str(refused.value)


async def test_a_session_is_found_by_a_unique_prefix_of_its_id(store: Store) -> None:
    await keep(
        store,
        make_compaction("1", session_id="abc"),
        make_compaction("2", session_id="abd"),
        make_compaction("3", session_id="abd"),
    )

    assert await find_session_id(store, "abd") == "abd"
    assert await find_session_id(store, "abc") == "abc"
    assert await find_session_id(store, "x") is None
    with pytest.raises(BadOption, match="several sessions"):
        await find_session_id(store, "ab")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "api_format"),
    [(claude_body(12), Format.ANTHROPIC), (chat_body(12), Format.CHAT)],
    ids=["claude", "chat"],
)
async def test_the_api_format_of_compacted_messages_is_detected(
    store: Store, body: Any, api_format: Format
) -> None:
    fold = await made(store, body, api_format=api_format)

    shown = await load_contents(store.compactions, fold)

    assert shown.api_format is api_format
    assert len(shown.messages) == fold.messages
    assert shown.hashes[-1] == fold.boundary


async def test_messages_that_cannot_be_parsed_are_shown_unchanged(store: Store) -> None:
    await keep(store, COMPACTION)

    shown = await load_contents(store.compactions, COMPACTION)

    assert (shown.api_format, tuple(shown.messages)) == (None, COMPACTED_MESSAGES)


async def next_request(store: Store, body: Any) -> tuple[bytes, int]:
    """What goes out, and how many tokens that is."""
    subject = make_subject(body)
    sent = apply_compactions(
        subject.original, await store.compactions.find_compactions("ana", subject.chain.hashes)
    )
    return sent.body, counter_for(MODEL).count_request(sent).total.tokens


async def test_the_next_request_grows_by_the_reported_tokens(store: Store) -> None:
    body = claude_body(24)
    fold = await made(store, body)
    _, before = await next_request(store, body)

    undone = await undo_compaction(store, fold.id[:6], now=50.0)

    sent, after = await next_request(store, body)
    assert sent == make_subject(body).original.body
    assert undone.more_tokens == pytest.approx(after - before, rel=0.02)
    assert undone.compaction == replace(fold, undone_at=50.0)
    assert await store.compactions.get_compaction(fold.id) == undone.compaction


async def test_an_earlier_compaction_is_in_force_again_and_its_saving_is_not_counted(store: Store) -> None:
    first = await made(store, claude_body(12))
    second = await made(store, claude_body(30), first)
    _, before = await next_request(store, claude_body(30))

    undone = await undo_compaction(store, second.id, now=50.0)

    _, after = await next_request(store, claude_body(30))
    assert undone.restored == first
    assert undone.first_message == first.messages + 1
    assert undone.more_tokens == pytest.approx(after - before, rel=0.05)


async def test_undoing_a_compaction_covered_by_a_longer_one_changes_nothing(store: Store) -> None:
    first = await made(store, claude_body(12))
    second = await made(store, claude_body(30), first)
    before = await next_request(store, claude_body(30))

    undone = await undo_compaction(store, first.id, now=50.0)

    assert undone.still_in_force == second
    assert undone.more_tokens == 0
    assert await next_request(store, claude_body(30)) == before


async def test_another_conversation_of_the_same_session_is_ignored(store: Store) -> None:
    """A session that a header names may hold conversations that have nothing to do with each other."""
    longer = claude_body(30)
    longer["messages"][0] = {"role": "user", "content": "Something else."}
    own, other = await made(store, claude_body(12)), await made(store, longer)
    assert own.session_id == other.session_id

    undone = await undo_compaction(store, own.id, now=50.0)

    assert (undone.still_in_force, undone.restored) == (None, None)
    assert undone.more_tokens > 0


async def test_of_two_compactions_of_the_same_messages_the_later_one_stays_in_force(store: Store) -> None:
    first = await made(store, claude_body(12))
    later = replace(first, id="later", summary="Shorter.", compacted_at=first.compacted_at + 1)
    await store.compactions.record(later, await store.compactions.load_messages(first.id), lease=None)

    assert (await undo_compaction(store, first.id, now=50.0)).still_in_force == later
    undone = await undo_compaction(store, "later", now=60.0)
    assert (undone.still_in_force, undone.restored) == (None, None)


async def test_undoing_twice_is_the_same_as_undoing_once(store: Store) -> None:
    fold = await made(store, claude_body(12))
    await undo_compaction(store, fold.id, now=50.0)

    again = await undo_compaction(store, fold.id, now=60.0)

    assert again.was_undone_before
    assert again.compaction.undone_at == 50.0
    assert again.more_tokens == 0


@pytest.mark.parametrize(
    "outcome", [CompactionOutcome.FAILED, CompactionOutcome.LOCK_HELD, CompactionOutcome.NO_BOUNDARY]
)
async def test_a_compaction_that_changed_nothing_cannot_be_undone(
    store: Store, outcome: CompactionOutcome
) -> None:
    await keep(store, replace(COMPACTION, outcome=outcome))

    with pytest.raises(BadOption, match=f"nothing to undo: fold fold-1 ended with {outcome}"):
        await undo_compaction(store, COMPACTION.id, now=50.0)
    assert await store.compactions.get_compaction(COMPACTION.id) == replace(COMPACTION, outcome=outcome)


async def test_a_truncated_tool_result_can_be_undone(store: Store) -> None:
    await keep(store, replace(COMPACTION, outcome=CompactionOutcome.TOOL_RESULT_TRUNCATED, limit_tokens=700))

    undone = await undo_compaction(store, COMPACTION.id, now=50.0)

    assert (undone.first_message, undone.more_tokens) == (4, 8_300)


async def exported(store: Store, *given: str, session: str | None = None, as_list: bool = False) -> bytes:
    file = io.BytesIO()
    await write_compactions(store, await select_for_export(store, given, session), file, as_list=as_list)
    return file.getvalue()


async def test_an_export_preserves_every_byte(store: Store) -> None:
    await keep(
        store,
        replace(COMPACTION, summary="half \ud83d and \0", carried=("a\nb",)),
        make_compaction("second", at=100.0),
    )

    rows = [json.loads(line) for line in (await exported(store)).splitlines()]

    assert [row["id"] for row in rows] == [COMPACTION.id, "second"]
    assert [turn.encode("utf-8", "surrogateescape") for turn in rows[0]["turns"]] == list(COMPACTED_MESSAGES)
    assert rows[0]["summary"] == "half \ud83d and \0"
    assert rows[0]["carried"] == ["a\nb"]
    assert rows[0]["cost"] == str(COMPACTION.cost)


async def test_an_export_as_a_list_has_the_same_content(store: Store) -> None:
    assert json.loads(await exported(store, as_list=True)) == []
    await keep(store, COMPACTION, make_compaction("second", at=100.0))

    lines = [json.loads(line) for line in (await exported(store)).splitlines()]

    assert json.loads(await exported(store, as_list=True)) == lines


async def test_a_compaction_of_a_compaction_is_exported_with_all_its_messages(store: Store) -> None:
    first = await made(store, claude_body(12))
    second = await made(store, claude_body(30), first)

    row = json.loads(await exported(store, second.id[:8]))

    sent = make_subject(claude_body(30)).original.messages
    assert [turn.encode() for turn in row["turns"]] == list(sent[: second.messages])
    assert row["earlier_id"] == first.id


async def test_named_compactions_are_exported_once_and_must_exist(store: Store) -> None:
    await keep(
        store, COMPACTION, make_compaction("second", session_id="t"), make_compaction("third", session_id="t")
    )

    named = [json.loads(line)["id"] for line in (await exported(store, "third", "fold", "third")).splitlines()]
    of_session = [json.loads(line)["id"] for line in (await exported(store, session="t")).splitlines()]

    assert named == ["third", "fold-1"]
    assert sorted(of_session) == ["second", "third"]
    with pytest.raises(BadOption, match="no fold whose id begins with 'x'"):
        await select_for_export(store, ["fold", "x"], None)
    with pytest.raises(BadOption, match="no fold of a session whose id begins with 'x'"):
        await select_for_export(store, [], "x")

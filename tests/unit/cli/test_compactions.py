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

from foveate.cli.compactions_export import chosen, written
from foveate.cli.compactions_found import (
    Asked,
    fold_named,
    folds,
    listed,
    session_named,
)
from foveate.cli.compactions_undone import undo
from foveate.errors import BadOption
from foveate.fold.folding import Folder
from foveate.fold.journal import Fold, Outcome
from foveate.fold.unfolding import unfolded
from foveate.store import Store, open_store
from foveate.tokens import counter_for
from foveate.values import Format
from tests.kept import FOLD, FOLDED, fold, ids
from tests.sessions_to_fold import MODEL, OPTIONS, chat_body, claude_body, must_fit, sent_after, subject_of
from tests.support.examples import limit_examples
from tests.support.stores import ensure_store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await open_store(ensure_store(tmp_path / "foveate.sqlite")) as opened:
        yield opened


async def keep(store: Store, *some: Fold) -> None:
    await asyncio.gather(*(store.journal.record(one, FOLDED, lease=None) for one in some))


async def made(store: Store, body: Any, earlier: Fold | None = None, *, spoken: Format | None = None) -> Fold:
    """A session folded by rules, on top of an earlier fold if there is one."""
    clock = iter(range(1_000)).__next__
    folder = Folder(store.journal, None, counter_for(MODEL), holder="me", clock=clock, options=OPTIONS)
    subject = subject_of(body, [earlier] if earlier is not None else (), spoken=spoken)
    folded = await folder.fold(must_fit(subject))
    assert folded is not None
    assert folded.fold is not None
    assert folded.outcome is Outcome.OK
    return folded.fold


Kind = tuple[int, str, str, Outcome]
KINDS = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from(("ana", "bob")), st.sampled_from("st"), st.sampled_from(Outcome)
    ),
    max_size=5,
)
BOUNDS = st.none() | st.integers(-1, 4)


@pytest.mark.slow
@settings(max_examples=limit_examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kinds=KINDS, copies=st.sampled_from((1, 40, 90)), agent=st.sampled_from((None, "ana")),
       session=st.sampled_from((None, "s")), outcome=st.none() | st.sampled_from(Outcome), since=BOUNDS,
       until=BOUNDS)  # fmt: skip
@example(kinds=[(0, "ana", "s", Outcome.OK), (1, "ana", "s", Outcome.OK)], copies=90, agent=None, session=None,
         outcome=None, since=None, until=None)  # fmt: skip
def test_all_that_is_asked_for_is_always_listed_and_nothing_twice(
    tmp_path: Path,
    kinds: list[Kind],
    copies: int,
    agent: str | None,
    session: str | None,
    outcome: Outcome | None,
    since: int | None,
    until: int | None,
) -> None:
    """Many are made at the same time, so that pages end among them."""
    kept = [
        replace(FOLD, id=f"{number:03}", compacted_at=float(at), agent=whose, session_id=of, outcome=ended)
        for number, (at, whose, of, ended) in enumerate(kinds * copies)
    ]
    asked = Asked(agent=agent, session_id=session, outcome=outcome, since=since, until=until)

    async def found() -> list[Fold]:
        path = tmp_path / "copy.sqlite"
        path.unlink(missing_ok=True)
        async with await open_store(ensure_store(path)) as store:
            await asyncio.gather(*(store.journal.record(one, (), lease=None) for one in kept))
            return [fold async for fold in folds(store.journal, asked)]

    def is_asked(one: Fold) -> bool:
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
    await keep(store, *(fold(f"f{number}", at=float(number)) for number in range(5)))

    newest, is_more = await listed(store, Asked(), limit=3)
    everything, no_more = await listed(store, Asked(), limit=5)

    assert (ids(newest), is_more) == (["f4", "f3", "f2"], True)
    assert (len(everything), no_more) == (5, False)


async def test_a_fold_is_named_by_as_much_of_its_id_as_only_it_has(store: Store) -> None:
    await keep(store, fold("abcdef0123"), fold("abcdef9999"), fold("abd"), fold("abd0"))

    assert (await fold_named(store, "abcdef0")).id == "abcdef0123"
    assert (await fold_named(store, "abd")).id == "abd", "a whole id is never ambiguous"
    with pytest.raises(BadOption, match=r"several folds begin with 'abc': abcdef01, abcdef99; say more of it"):
        await fold_named(store, "abc")
    for unknown in ("x", "abcdef0123x", "%", "abc_"):
        with pytest.raises(BadOption, match="no fold whose id begins with"):
            await fold_named(store, unknown)
    with pytest.raises(BadOption, match="is expected"):
        await fold_named(store, "")


async def test_of_very_many_that_begin_so_some_are_listed(store: Store) -> None:
    await keep(store, *(fold(f"a{number:02}") for number in range(40)))

    with pytest.raises(BadOption, match=r"a00, a01, .*, a09, …; say more") as refused:
        await fold_named(store, "a")
    assert "a10" not in str(refused.value)


async def test_a_session_is_named_in_the_same_way(store: Store) -> None:
    await keep(store, fold("1", session_id="abc"), fold("2", session_id="abd"), fold("3", session_id="abd"))

    assert await session_named(store, "abd") == "abd"
    assert await session_named(store, "abc") == "abc"
    assert await session_named(store, "x") is None
    with pytest.raises(BadOption, match="several sessions"):
        await session_named(store, "ab")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "spoken"),
    [(claude_body(12), Format.ANTHROPIC), (chat_body(12), Format.CHAT)],
    ids=["claude", "chat"],
)
async def test_the_format_of_what_was_folded_is_found_again(store: Store, body: Any, spoken: Format) -> None:
    fold = await made(store, body, spoken=spoken)

    shown = await unfolded(store.journal, fold)

    assert shown.spoken is spoken
    assert len(shown.turns) == fold.messages
    assert shown.hashes[-1] == fold.boundary


async def test_what_cannot_be_read_any_more_is_shown_as_it_is(store: Store) -> None:
    await keep(store, FOLD)

    shown = await unfolded(store.journal, FOLD)

    assert (shown.spoken, tuple(shown.turns)) == (None, FOLDED)


async def next_request(store: Store, body: Any) -> tuple[bytes, int]:
    """What goes out, and how many tokens that is."""
    subject = subject_of(body)
    sent = sent_after(subject.request, await store.journal.folds("ana", subject.chain.hashes))
    return sent.body, counter_for(MODEL).request(sent).total.tokens


async def test_the_next_request_is_as_much_longer_as_is_said(store: Store) -> None:
    body = claude_body(24)
    fold = await made(store, body)
    _, before = await next_request(store, body)

    undone = await undo(store, fold.id[:6], now=50.0)

    sent, after = await next_request(store, body)
    assert sent == subject_of(body).request.body
    assert undone.more_tokens == pytest.approx(after - before, rel=0.02)
    assert undone.fold == replace(fold, undone_at=50.0)
    assert await store.journal.fold(fold.id) == undone.fold


async def test_an_earlier_fold_is_in_force_again_and_what_it_saves_is_not_counted(store: Store) -> None:
    first = await made(store, claude_body(12))
    second = await made(store, claude_body(30), first)
    _, before = await next_request(store, claude_body(30))

    undone = await undo(store, second.id, now=50.0)

    _, after = await next_request(store, claude_body(30))
    assert undone.beneath == first
    assert undone.first_message == first.messages + 1
    assert undone.more_tokens == pytest.approx(after - before, rel=0.05)


async def test_a_fold_that_another_reaches_beyond_changes_nothing_when_it_is_undone(store: Store) -> None:
    first = await made(store, claude_body(12))
    second = await made(store, claude_body(30), first)
    before = await next_request(store, claude_body(30))

    undone = await undo(store, first.id, now=50.0)

    assert undone.above == second
    assert undone.more_tokens == 0
    assert await next_request(store, claude_body(30)) == before


async def test_another_conversation_of_the_same_session_is_not_mixed_in(store: Store) -> None:
    """A session that a header names may hold conversations that have nothing to do with each other."""
    longer = claude_body(30)
    longer["messages"][0] = {"role": "user", "content": "Something else."}
    own, other = await made(store, claude_body(12)), await made(store, longer)
    assert own.session_id == other.session_id

    undone = await undo(store, own.id, now=50.0)

    assert (undone.above, undone.beneath) == (None, None)
    assert undone.more_tokens > 0


async def test_of_two_folds_of_the_same_messages_the_later_one_stays_in_force(store: Store) -> None:
    first = await made(store, claude_body(12))
    later = replace(first, id="later", summary="Shorter.", compacted_at=first.compacted_at + 1)
    await store.journal.record(later, await store.journal.folded(first.id), lease=None)

    assert (await undo(store, first.id, now=50.0)).above == later
    undone = await undo(store, "later", now=60.0)
    assert (undone.above, undone.beneath) == (None, None)


async def test_undoing_twice_is_undoing_once(store: Store) -> None:
    fold = await made(store, claude_body(12))
    await undo(store, fold.id, now=50.0)

    again = await undo(store, fold.id, now=60.0)

    assert again.before
    assert again.fold.undone_at == 50.0
    assert again.more_tokens == 0


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.LOCK_HELD, Outcome.NO_BOUNDARY])
async def test_what_changed_nothing_cannot_be_undone(store: Store, outcome: Outcome) -> None:
    await keep(store, replace(FOLD, outcome=outcome))

    with pytest.raises(BadOption, match=f"nothing to undo: fold fold-1 ended with {outcome}"):
        await undo(store, FOLD.id, now=50.0)
    assert await store.journal.fold(FOLD.id) == replace(FOLD, outcome=outcome)


async def test_a_cut_tool_result_can_be_undone(store: Store) -> None:
    await keep(store, replace(FOLD, outcome=Outcome.TOOL_RESULT_TRUNCATED, limit_tokens=700))

    undone = await undo(store, FOLD.id, now=50.0)

    assert (undone.first_message, undone.more_tokens) == (4, 8_300)


async def exported(store: Store, *given: str, session: str | None = None, as_list: bool = False) -> bytes:
    file = io.BytesIO()
    await written(store, await chosen(store, given, session), file, as_list=as_list)
    return file.getvalue()


async def test_what_is_exported_gives_every_byte_back(store: Store) -> None:
    await keep(store, replace(FOLD, summary="half \ud83d and \0", carried=("a\nb",)), fold("second", at=100.0))

    rows = [json.loads(line) for line in (await exported(store)).splitlines()]

    assert [row["id"] for row in rows] == [FOLD.id, "second"]
    assert [turn.encode("utf-8", "surrogateescape") for turn in rows[0]["turns"]] == list(FOLDED)
    assert rows[0]["summary"] == "half \ud83d and \0"
    assert rows[0]["carried"] == ["a\nb"]
    assert rows[0]["cost"] == str(FOLD.cost)


async def test_as_one_list_the_same_is_exported(store: Store) -> None:
    assert json.loads(await exported(store, as_list=True)) == []
    await keep(store, FOLD, fold("second", at=100.0))

    lines = [json.loads(line) for line in (await exported(store)).splitlines()]

    assert json.loads(await exported(store, as_list=True)) == lines


async def test_a_fold_on_a_fold_is_exported_with_all_that_it_stands_for(store: Store) -> None:
    first = await made(store, claude_body(12))
    second = await made(store, claude_body(30), first)

    row = json.loads(await exported(store, second.id[:8]))

    sent = subject_of(claude_body(30)).request.messages
    assert [turn.encode() for turn in row["turns"]] == list(sent[: second.messages])
    assert row["earlier_id"] == first.id


async def test_what_is_named_is_exported_once_and_all_of_it_has_to_be_there(store: Store) -> None:
    await keep(store, FOLD, fold("second", session_id="t"), fold("third", session_id="t"))

    named = [json.loads(line)["id"] for line in (await exported(store, "third", "fold", "third")).splitlines()]
    of_session = [json.loads(line)["id"] for line in (await exported(store, session="t")).splitlines()]

    assert named == ["third", "fold-1"]
    assert sorted(of_session) == ["second", "third"]
    with pytest.raises(BadOption, match="no fold whose id begins with 'x'"):
        await chosen(store, ["fold", "x"], None)
    with pytest.raises(BadOption, match="no fold of a session whose id begins with 'x'"):
        await chosen(store, [], "x")

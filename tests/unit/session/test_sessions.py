"""Which session a request belongs to, whoever sends it, and whoever else is looking."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from foveate.session.chain import Chain
from foveate.session.sessions import Found, Tips, find
from tests.unit.session.in_memory import InMemory, side_by_side, words

Words = tuple[str, ...]

NUMBERS = tuple(str(number) for number in range(2000))


async def found(store: InMemory, *said: str, now: float = 1.0, name: str | None = None) -> Found:
    return await find("agent", words(*said), store, now=now, header_id=name)


async def test_a_session_goes_on_with_each_request_that_says_more() -> None:
    store = InMemory()
    first = await found(store, "a", now=1)
    later = await found(store, "a", "b", "c", now=5)

    assert (first.is_new, first.is_fork, first.known) == (True, False, 0)
    assert (later.is_new, later.is_fork, later.known) == (False, False, 1)
    assert later.session.id == first.session.id
    assert (later.session.messages, later.session.created_at, later.session.seen_at) == (3, 1, 5)
    assert store.sessions == {first.session.id: later.session}
    assert store.path(later.session) == list(words("a", "b", "c").hashes)


@pytest.mark.parametrize("again", ["abc", "ab", "a"])
async def test_what_was_said_before_is_the_same_session_and_no_fork(again: str) -> None:
    store = InMemory()
    whole = await found(store, *"abc", now=1)
    repeated = await found(store, *again, now=2)

    assert repeated.session == replace(whole.session, seen_at=2)
    assert (repeated.known, repeated.is_new, repeated.is_fork) == (len(again), False, False)


async def test_going_on_after_a_shorter_resend_goes_on_from_the_tip() -> None:
    store = InMemory()
    whole = await found(store, *"abc")
    await found(store, *"ab")

    assert (await found(store, *"abcd")).session.id == whole.session.id


async def test_a_request_that_goes_on_from_an_earlier_turn_is_a_child() -> None:
    store = InMemory()
    parent = await found(store, *"abc")
    child = await found(store, *"abx")
    grandchild = await found(store, *"aby")

    assert (child.is_new, child.is_fork, child.known) == (True, True, 2)
    assert child.session.parent_id == grandchild.session.parent_id == parent.session.id
    assert child.session.forked_at == words(*"ab").hashes[-1]
    assert len({parent.session.id, child.session.id, grandchild.session.id}) == 3
    assert (await found(store, *"abxz")).session.id == child.session.id
    assert (await found(store, *"abcz")).session.id == parent.session.id


async def test_two_sessions_with_the_same_beginning_are_one_until_they_differ() -> None:
    store = InMemory()
    one = await found(store, "hello")
    other = await found(store, "hello")
    one_goes_on = await found(store, "hello", "first")
    other_goes_on = await found(store, "hello", "second")

    assert one.session.id == other.session.id == one_goes_on.session.id
    assert other_goes_on.session.parent_id == one.session.id


async def test_agents_do_not_share_sessions() -> None:
    store = InMemory()
    mine = await find("mine", words("a"), store, now=1)
    yours = await find("yours", words("a"), store, now=1)

    assert mine.session.id != yours.session.id
    assert yours.is_new
    assert (await find("mine", words("a"), store, now=1, header_id="s")).session.id != (
        await find("yours", words("a"), store, now=1, header_id="s")
    ).session.id


async def test_a_request_without_messages_is_new_each_time_and_nothing_is_kept_of_it() -> None:
    store = InMemory()
    one, other = await found(store), await found(store)

    assert one.is_new
    assert other.is_new
    assert one.session.messages == 0
    assert not store.sessions


async def test_a_named_session_is_the_same_whatever_it_says() -> None:
    store = InMemory()
    empty = await found(store, name="s")
    first = await found(store, *"ab", name="s")
    edited = await found(store, *"xyz", name="s", now=9)
    back = await found(store, *"ab", name="s")

    assert empty.is_new
    assert not any(one.is_new or one.is_fork for one in (first, edited, back))
    assert {one.session.id for one in (empty, first, edited, back)} == set(store.sessions)
    assert (edited.session.messages, edited.session.tip) == (3, words(*"xyz").hashes[-1])
    assert (back.known, back.session.tip, back.session.seen_at) == (2, words(*"ab").hashes[-1], 9)


async def test_a_name_wins_over_the_chain() -> None:
    store = InMemory()
    unnamed = await found(store, *"ab")
    named = await found(store, *"abc", name="s")
    other = await found(store, *"abc", name="t")

    assert len({unnamed.session.id, named.session.id, other.session.id}) == 3
    assert (named.known, other.known) == (2, 3)
    assert store.sessions[unnamed.session.id] == unnamed.session
    assert not named.is_fork


async def test_a_named_session_is_a_child_of_whose_words_it_goes_on_from() -> None:
    store = InMemory()
    alone = await found(store, "m", name="s")
    other, third = await found(store, *"ab", name="t"), await found(store, *"xy")
    moved = await found(store, *"abc", name="s")
    again = await found(store, *"abcd", name="s")
    same = await found(store, *"xy", name="s")

    assert (alone.session.parent_id, alone.session.forked_at) == (None, None)
    assert (moved.session.parent_id, moved.session.forked_at) == (other.session.id, words(*"ab").hashes[-1])
    assert (again.session.parent_id, again.session.forked_at) == (other.session.id, words(*"ab").hashes[-1])
    assert (same.session.parent_id, same.session.forked_at) == (third.session.id, words(*"xy").hashes[-1])
    assert (await found(store, *"abq", name="new")).session.parent_id == other.session.id


async def test_a_named_session_that_says_what_a_forgotten_one_said_is_nobodys_child() -> None:
    store = InMemory()
    gone = await found(store, *"ab")
    del store.sessions[gone.session.id]
    named = await found(store, *"abc", name="s")

    assert store.sessions[named.session.id] == named.session
    assert named.session.parent_id is None


async def test_two_processes_with_stores_of_their_own_give_a_new_session_the_same_id() -> None:
    for said in (("a",), tuple("abc")):
        one, other = [await found(InMemory(), *said, now=now) for now in (1, 2)]
        assert one.session.id == other.session.id


@pytest.mark.parametrize("length", [1, 2, 9, 10, 11, 100, 2000])
@pytest.mark.parametrize("share", [0, 0.001, 0.3, 0.5, 0.99, 1])
async def test_the_end_of_what_is_known_is_found_with_few_questions(length: int, share: float) -> None:
    store = InMemory()
    known = min(length, round(length * share))
    if known:
        await found(store, *NUMBERS[:known])
    store.asked.clear()

    assert (await found(store, *NUMBERS[:length])).known == known
    assert len(store.asked) <= 5
    assert max(store.asked) <= 9


async def test_a_session_that_goes_on_asks_once_for_its_turns() -> None:
    store = InMemory()
    await found(store, *NUMBERS[:1990])
    store.asked.clear()
    await found(store, *NUMBERS[:1995])

    assert len(store.asked) == 1


async def test_a_session_whose_row_was_forgotten_is_written_again() -> None:
    store = InMemory()
    before = await found(store, *"abc")
    store.sessions.clear()
    after = await found(store, *"abcd")

    assert after.session.id == before.session.id
    assert store.path(after.session) == list(words(*"abcd").hashes)


async def test_an_id_that_is_taken_by_what_is_half_forgotten_is_not_waited_for() -> None:
    store = InMemory()
    first = await found(store, *"abc")
    fork = await found(store, *"abx")
    for chain in (words(*"abc"), words(*"abx")):
        for one in chain.hashes:
            store.turns.pop(("agent", one), None)
    again = await found(store, *"abc")
    fork_again = await found(store, *"abx")

    assert len({one.session.id for one in (first, fork, again, fork_again)}) == 4
    assert store.path(again.session) == list(words(*"abc").hashes)
    assert store.path(fork_again.session) == list(words(*"abx").hashes)


async def test_turns_that_were_lost_in_the_middle_are_kept_again() -> None:
    store = InMemory()
    chain = words(*NUMBERS[:130])
    whole = await found(store, *NUMBERS[:100])
    for number in range(1, 99):  # so that all questions but the last ones meet what is lost
        del store.turns["agent", chain.hashes[number]]
    longer = await found(store, *NUMBERS[:130])

    assert (longer.session.id, longer.is_new, longer.known) == (whole.session.id, False, 100)
    assert store.path(longer.session) == list(chain.hashes)


async def test_a_process_that_remembers_the_tip_asks_for_nothing() -> None:
    store, tips = InMemory(), Tips()
    first = await find("agent", words(*"ab"), store, now=1, tips=tips)
    store.asked.clear()
    grown = await find("agent", words(*"abcd"), store, now=2, tips=tips)
    again = await find("agent", words(*"abcd"), store, now=3, tips=tips)

    assert not store.asked
    assert (grown.session.id, grown.known, grown.is_new) == (first.session.id, 2, False)
    assert (again.session.id, again.known, again.session.seen_at) == (first.session.id, 4, 2)
    assert store.path(again.session) == list(words(*"abcd").hashes)


async def test_what_says_nothing_new_of_a_session_that_was_just_seen_is_not_written_down() -> None:
    store, tips = InMemory(), Tips()
    first = await find("agent", words(*"ab"), store, now=100, tips=tips)

    for now, seen_at in ((101, 100), (159, 100), (160, 160), (170, 160), (90, 160)):
        again = await find("agent", words(*"ab"), store, now=now, tips=tips)
        assert again.session.id == first.session.id
        assert store.sessions[first.session.id].seen_at == seen_at, now


async def test_what_a_process_remembers_of_a_session_that_another_one_took_on_is_not_believed() -> None:
    store, tips = InMemory(), Tips()
    await find("agent", words(*"ab"), store, now=1, tips=tips)
    taken_on = await find("agent", words(*"abc"), store, now=2)
    fork = await find("agent", words(*"abx"), store, now=3, tips=tips)
    repeated = await find("agent", words(*"ab"), store, now=64, tips=tips)

    assert (fork.is_fork, fork.session.parent_id) == (True, taken_on.session.id)
    assert repeated.session == replace(taken_on.session, seen_at=64)


async def test_what_is_remembered_of_one_agent_or_name_is_nothing_to_another() -> None:
    store, tips = InMemory(), Tips()
    unnamed = await find("agent", words(*"ab"), store, now=1, tips=tips)
    await find("agent", words(*"ab"), store, now=1, tips=tips, header_id="s")
    other = await find("other", words(*"abc"), store, now=1, tips=tips)

    assert other.is_new
    assert (await find("agent", words(*"abc"), store, now=1, tips=tips)).session.id == unnamed.session.id


conversations = st.lists(st.sampled_from("abc"), max_size=6).map(tuple)


@pytest.mark.slow
@given(
    batches=st.lists(
        st.lists(st.tuples(conversations, st.integers(0, 2)), min_size=1, max_size=4), min_size=1, max_size=5
    ),
    order=st.lists(st.integers(0, 3), max_size=60),
)
@settings(max_examples=120)
def test_every_request_is_of_a_session_whose_turns_are_its_messages(
    batches: list[list[tuple[Words, int]]], order: list[int]
) -> None:
    """Sessions grow, fork and are rewound, by processes that come in between each other at any question."""
    store = InMemory(pauses=True)
    tips = (Tips(), Tips(), None)  # of each process what it remembers; one begins anew each time
    said: set[bytes] = set()
    for time, batch in enumerate(batches):
        chains = [words(*one) for one, _ in batch]
        runs = [
            find("agent", chain, store, now=time, tips=tips[process])
            for chain, (_, process) in zip(chains, batch, strict=True)
        ]
        answers = side_by_side(runs, order[time:])
        said.update(one for chain in chains for one in chain.hashes)

        for chain, answer in zip(chains, answers, strict=True):
            if chain:
                assert store.path(answer.session)[: len(chain)] == list(chain.hashes)
                assert answer.session.id in store.sessions
        assert {one for _, one in store.turns} == said
        _each_session_ends_where_nothing_follows(store)
        _a_retry_finds_what_is_there(store, chains)


def _each_session_ends_where_nothing_follows(store: InMemory) -> None:
    paths = {session.id: store.path(session) for session in store.sessions.values()}
    followed = {before for path in paths.values() for before in path[:-1]}
    for session in store.sessions.values():
        assert session.tip == paths[session.id][-1]
        assert session.messages == len(paths[session.id])
        assert session.tip not in followed


def _a_retry_finds_what_is_there(store: InMemory, chains: list[Chain]) -> None:
    for chain in filter(None, chains):
        (again,) = side_by_side([find("agent", chain, store, now=0)], ())
        assert (again.is_new, again.known) == (False, len(chain))
        assert again.session == store.sessions[again.session.id]


@given(
    requests=st.lists(conversations.filter(bool), min_size=2, max_size=4),
    order=st.lists(st.integers(0, 3), max_size=60),
)
@settings(max_examples=100)
def test_requests_of_one_named_session_at_once_lose_no_turn(requests: list[Words], order: list[int]) -> None:
    store = InMemory(pauses=True)
    chains = [words(*one) for one in requests]
    answers = side_by_side([find("agent", one, store, now=1, header_id="s") for one in chains], order)

    assert {answer.session.id for answer in answers} == set(store.sessions)
    assert {one for _, one in store.turns} == {one for chain in chains for one in chain.hashes}
    assert sum(answer.is_new for answer in answers) == 1

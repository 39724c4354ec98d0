"""Compactions, the messages they replaced, and leases, on both databases."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from foveate.compaction.store import (
    ApplicationChange,
    Compaction,
    CompactionLease,
    CompactionOutcome,
    CompactionStore,
)
from foveate.errors import BadOption
from foveate.store import Store, open_store
from tests.support.harness.example_limits import limit_examples
from tests.support.stores.records import (
    AGENT,
    COMPACTED_MESSAGES,
    COMPACTION,
    FAILED_COMPACTION,
    MOVED_SECTIONS,
    compaction_ids,
    hash_word,
    make_compaction,
)


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await open_store(database_url) as opened:
        yield opened


def as_compaction_store(store: Store) -> CompactionStore:
    """The type checker verifies that the store implements the protocol."""
    return store.compactions


async def test_a_compaction_is_loaded_as_recorded_with_every_message_it_replaced(store: Store) -> None:
    compactions = as_compaction_store(store)

    assert await compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=None)

    assert await compactions.get_compaction(COMPACTION.id) == COMPACTION
    assert await compactions.load_messages(COMPACTION.id) == list(COMPACTED_MESSAGES)
    assert await compactions.get_compaction("another") is None
    assert await compactions.load_messages("another") == []


def new_name() -> str:
    """Return a name that no other example uses: they share a database, and Hypothesis may repeat examples."""
    return uuid.uuid4().hex


COMPACTIONS = st.builds(
    Compaction,
    id=st.builds(new_name),
    agent=st.just(AGENT),
    session_id=st.just("s"),
    boundary=st.binary(min_size=32, max_size=32),
    messages=st.integers(0, 10_000),
    summary=st.text(st.characters(), max_size=60),  # including lone surrogates and NUL
    carried=st.lists(st.text(st.characters(), max_size=9), max_size=3).map(tuple),
    tokens_before=st.integers(0, 2**53),
    tokens_after=st.integers(0, 2**53),
    model=st.sampled_from(["", "gpt-5.6", "extractive"]),
    cost=st.none() | st.decimals(allow_nan=False, allow_infinity=False, places=20),
    duration_seconds=st.floats(0, 1e6),
    outcome=st.sampled_from(CompactionOutcome),
    compacted_at=st.floats(0, 4e9),
    undone_at=st.none() | st.floats(0, 4e9),
    limit_tokens=st.none() | st.integers(0, 2**53),
)


@pytest.mark.slow
@settings(max_examples=limit_examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recorded=st.lists(st.tuples(COMPACTIONS, st.lists(st.binary(max_size=20), max_size=4)), max_size=4))
def test_any_compaction_is_loaded_exactly_as_recorded(
    database_url: str, recorded: list[tuple[Compaction, list[bytes]]]
) -> None:
    async def check() -> None:
        async with await open_store(database_url) as store:
            for compaction, messages in recorded:
                assert await store.compactions.record(compaction, messages, lease=None)
            for compaction, messages in recorded:
                loaded = await store.compactions.get_compaction(compaction.id)
                assert loaded == compaction
                assert loaded is not None
                assert str(loaded.cost) == str(compaction.cost)
                assert await store.compactions.load_messages(compaction.id) == messages

    asyncio.run(check())


async def test_a_compaction_recorded_twice_is_stored_once_as_the_first_time(store: Store) -> None:
    assert await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=None)

    assert await store.compactions.record(
        replace(COMPACTION, summary="another"), COMPACTED_MESSAGES[:1], lease=None
    )

    assert await store.compactions.list_compactions() == [COMPACTION]
    assert await store.compactions.load_messages(COMPACTION.id) == list(COMPACTED_MESSAGES)


async def test_a_compaction_on_top_of_another_stores_only_new_messages_and_loads_all(
    store: Store,
) -> None:
    second = replace(COMPACTION, id="second", messages=6, earlier_id=COMPACTION.id)
    third = replace(COMPACTION, id="third", messages=7, earlier_id="second")
    await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=None)
    await store.compactions.record(second, (b"5", b"6"), lease=None)
    await store.compactions.record(third, (b"7",), lease=None)

    assert await store.compactions.load_messages("third") == [*COMPACTED_MESSAGES, b"5", b"6", b"7"]
    assert await store.compactions.load_messages("second") == [*COMPACTED_MESSAGES, b"5", b"6"]
    assert await store.compactions.load_messages(COMPACTION.id) == list(COMPACTED_MESSAGES)


async def test_compactions_and_truncations_are_found_by_boundary_even_if_undone(store: Store) -> None:
    compactions = store.compactions
    for outcome in CompactionOutcome:
        await compactions.record(
            replace(COMPACTION, id=outcome.value, outcome=outcome), COMPACTED_MESSAGES, lease=None
        )
    await compactions.record(make_compaction("undone"), COMPACTED_MESSAGES, lease=None)
    await compactions.record(
        make_compaction("elsewhere", boundary=hash_word("elsewhere")), COMPACTED_MESSAGES, lease=None
    )
    assert await compactions.undo("undone", now=300.0)

    expected = ["ok", "results_cleared", "tool_result_truncated", "undone"]
    assert compaction_ids(await compactions.find_compactions(AGENT, [COMPACTION.boundary])) == expected
    assert sorted(
        compaction_ids(await compactions.find_compactions(AGENT, [COMPACTION.boundary, hash_word("elsewhere")]))
    ) == [
        "elsewhere",
        *expected,
    ]
    assert await compactions.find_compactions("another agent", [COMPACTION.boundary]) == []
    assert await compactions.find_compactions(AGENT, []) == []


async def test_compactions_are_sorted_by_length_and_then_by_age(store: Store) -> None:
    boundaries = [COMPACTION.boundary, hash_word("later")]
    await store.compactions.record(make_compaction("old", at=1.0), (), lease=None)
    await store.compactions.record(make_compaction("new", at=2.0), (), lease=None)
    await store.compactions.record(
        replace(make_compaction("long", at=1.5), messages=9, boundary=boundaries[1]), (), lease=None
    )

    assert compaction_ids(await store.compactions.find_compactions(AGENT, boundaries)) == ["long", "new", "old"]


async def test_a_compaction_is_undone_once_and_its_messages_stay(store: Store) -> None:
    await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=None)

    undone = await asyncio.gather(*(store.compactions.undo(COMPACTION.id, now=300.0 + n) for n in range(5)))

    assert sorted(undone) == [False] * 4 + [True]
    stored = await store.compactions.get_compaction(COMPACTION.id)
    assert stored
    assert stored == replace(COMPACTION, undone_at=300.0 + undone.index(True))
    assert await store.compactions.load_messages(COMPACTION.id) == list(COMPACTED_MESSAGES)
    assert not await store.compactions.undo("another", now=300.0)


async def test_a_failed_compaction_cannot_be_undone(store: Store) -> None:
    await store.compactions.record(replace(COMPACTION, outcome=CompactionOutcome.FAILED), (), lease=None)

    assert not await store.compactions.undo(COMPACTION.id, now=300.0)


async def test_a_move_of_sections_is_listed_with_its_decision_but_never_applied_nor_undone(
    store: Store,
) -> None:
    await store.compactions.record(MOVED_SECTIONS, (), lease=None)

    assert await store.compactions.list_compactions(session_id="s") == [MOVED_SECTIONS]
    assert await store.compactions.find_compactions(AGENT, [MOVED_SECTIONS.boundary]) == []
    assert not await store.compactions.undo(MOVED_SECTIONS.id, now=400.0)
    assert (await store.dashboard.count_compactions(["s"]))["s"].succeeded == 0


async def test_compactions_are_listed_newest_first_by_agent_session_and_time(store: Store) -> None:
    for number in range(5):
        await store.compactions.record(
            make_compaction(f"f{number}", at=float(number), session_id="s" if number % 2 else "t"),
            (),
            lease=None,
        )
    await store.compactions.record(replace(make_compaction("other", at=9.0), agent="bo"), (), lease=None)

    assert compaction_ids(await store.compactions.list_compactions()) == ["other", "f4", "f3", "f2", "f1", "f0"]
    assert compaction_ids(await store.compactions.list_compactions(agent=AGENT, limit=2)) == ["f4", "f3"]
    assert compaction_ids(await store.compactions.list_compactions(agent=AGENT, session_id="s")) == ["f3", "f1"]
    assert compaction_ids(await store.compactions.list_compactions(agent=AGENT, before=2.0)) == ["f1", "f0"]
    assert await store.compactions.list_compactions(agent="nobody") == []


@pytest.mark.slow
async def test_a_model_with_an_unstorable_name_is_rejected_and_nothing_is_stored(store: Store) -> None:
    with pytest.raises(BadOption, match="model"):
        await store.compactions.record(replace(COMPACTION, model="gpt\0"), COMPACTED_MESSAGES, lease=None)

    assert await store.compactions.list_compactions() == []


async def test_money_is_not_rounded(store: Store) -> None:
    await store.compactions.record(replace(COMPACTION, cost=Decimal("0.1") + Decimal("0.2")), (), lease=None)

    stored = await store.compactions.get_compaction(COMPACTION.id)

    assert stored
    assert stored.cost == Decimal("0.3")


async def test_only_one_of_many_concurrent_callers_gets_the_lease(store: Store) -> None:
    requests = [store.compactions.acquire_lease("s", f"h{n}", ttl_seconds=300, now=1000.0) for n in range(20)]

    leases = [lease for lease in await asyncio.gather(*requests) if lease]

    assert [lease.fence for lease in leases] == [1]


async def test_a_lease_for_one_session_does_not_cover_another(store: Store) -> None:
    lease = await store.compactions.acquire_lease("t", "me", ttl_seconds=300, now=1000.0)
    await store.compactions.acquire_lease("s", "me", ttl_seconds=300, now=1000.0)

    assert lease
    assert not await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=lease)
    assert await store.compactions.get_compaction(COMPACTION.id) is None


@dataclass
class LeaseModel:
    """A simple model of the lease of one session."""

    holder: str = ""
    fence: int = 0
    expires_at: float = 0.0
    leases: list[CompactionLease] = field(default_factory=list)

    def is_current(self, lease: CompactionLease) -> bool:
        return (self.holder, self.fence) == (lease.holder, lease.fence)


HOLDERS = st.sampled_from(["anna", "bert", "carl"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.sampled_from([0.0, 4.0, 10.0, 11.0])),
        st.tuples(st.just("lease"), HOLDERS),
        st.tuples(st.sampled_from(["renew", "release", "record"]), st.integers(0, 5)),
    ),
    min_size=4,
    max_size=14,
)


@pytest.mark.slow
@settings(max_examples=limit_examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
@example(
    steps=[("lease", "anna"), ("release", 0), ("renew", 0), ("record", 0), ("release", 0), ("lease", "anna")]
)
@example(steps=[("lease", "anna"), ("wait", 11.0), ("renew", 0), ("lease", "bert"), ("record", 0)])
def test_a_holder_that_lost_its_lease_can_neither_release_nor_renew_nor_record(
    database_url: str, steps: list[tuple[str, object]]
) -> None:
    """In any order of operations, only the newest lease of a session counts."""

    async def check() -> None:
        model, now, name = LeaseModel(), 1000.0, new_name()
        async with await open_store(database_url) as store:
            for number, (step, argument) in enumerate(steps):
                if isinstance(argument, float):
                    now += argument
                elif isinstance(argument, str):
                    is_free = not model.holder or model.expires_at <= now
                    lease = await store.compactions.acquire_lease(name, argument, ttl_seconds=10.0, now=now)
                    assert (lease is not None) == is_free
                    if lease:
                        assert lease == CompactionLease(
                            session_id=name, holder=argument, fence=model.fence + 1, expires_at=now + 10.0
                        )
                        model = LeaseModel(argument, lease.fence, lease.expires_at, [*model.leases, lease])
                elif isinstance(argument, int) and model.leases:
                    lease = model.leases[argument % len(model.leases)]
                    await do_by_lease(store, step, lease, model, now, f"{name} {number}")

    async def do_by_lease(
        store: Store, step: str, lease: CompactionLease, model: LeaseModel, now: float, new: str
    ) -> None:
        is_current = model.is_current(lease)
        match step:
            case "renew":
                renewed = await store.compactions.renew_lease(lease, ttl_seconds=10.0, now=now)
                assert renewed == (replace(lease, expires_at=now + 10.0) if is_current else None)
                if is_current:
                    model.expires_at = now + 10.0
            case "release":
                await store.compactions.release_lease(lease)
                if is_current:
                    model.holder = ""
            case _:
                stored = await store.compactions.record(
                    make_compaction(new, session_id=lease.session_id), COMPACTED_MESSAGES, lease=lease
                )
                assert stored == is_current
                assert bool(await store.compactions.get_compaction(new)) == is_current
                assert bool(await store.compactions.load_messages(new)) == is_current

    asyncio.run(check())


async def test_application_changes_are_stored_once_per_message_and_the_last_one_counts(
    store: Store,
) -> None:
    changes = [
        ApplicationChange(
            compaction_id=compaction_id, last_hash=hash_word(at), messages=at, is_applied=is_applied
        )
        for compaction_id, at, is_applied in (("a", 9, True), ("a", 12, False), ("b", 9, None))
    ]
    await store.compactions.record_application_changes(changes)
    await store.compactions.record_application_changes(changes[:1])

    assert await store.compactions.list_application_changes([]) == []
    assert await store.compactions.list_application_changes(["never"]) == []
    assert (
        sorted(await store.compactions.list_application_changes(["a", "b", "b"]), key=changes.index) == changes
    )
    await store.compactions.record_application_changes([replace(changes[0], is_applied=None)])
    assert replace(changes[0], is_applied=None) in await store.compactions.list_application_changes(["a"])


async def test_the_reason_of_a_failed_compaction_is_stored_whatever_its_text(store: Store) -> None:
    assert await store.compactions.record(FAILED_COMPACTION, (), lease=None)
    long = replace(FAILED_COMPACTION, id="long", reason="x" * 9_999)
    assert await store.compactions.record(long, (), lease=None)

    assert await store.compactions.get_compaction(FAILED_COMPACTION.id) == FAILED_COMPACTION
    assert await store.compactions.get_compaction("long") == replace(long, reason="x" * 2_000)

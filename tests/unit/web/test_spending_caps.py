"""Cap usage on pages is the same as that of `foveate cost caps`, computed from totals."""

from decimal import Decimal
from pathlib import Path

from foveate.cost.caps import Cap, CapLevel, CapScope, list_accounts, read_cap_status
from foveate.store import Store, open_store
from foveate.web.spending import MAX_USES, list_agent_cap_usage, list_cap_usage
from tests.support.stores.ledger_records import NOON, make_call, make_cap, make_charge, settle_one
from tests.support.stores.templates import ensure_store

CAPS = (
    make_cap(CapScope.CALL, 1),
    make_cap(CapScope.SESSION, 4),
    make_cap(CapScope.SESSION, 9, "bob"),
    make_cap(CapScope.AGENT, 5),
    make_cap(CapScope.AGENT, 2, "ana"),
    make_cap(CapScope.DAY, 10),
    make_cap(CapScope.DAY, 3, "bob"),
    make_cap(CapScope.TOTAL, 100),
)
DAY = 86_400.0


async def record_charges(store: Store) -> None:
    for number, (agent, session_id, dollars, at) in enumerate(
        (
            ("ana", "s", "1.5", NOON),
            ("ana", "s", None, NOON - 60),
            ("ana", "t", "3.9", NOON - 2 * DAY),
            ("bob", "u", "2.75", NOON),
            ("bob", "v", None, NOON - 3 * DAY),
        )
    ):
        call = make_call(f"call {number}", agent=agent, session_id=session_id, at=at)
        await settle_one(store.ledger, make_charge(call, dollars), accounts=list_accounts(call))


async def test_cap_usage_is_the_same_as_in_the_command(tmp_path: Path) -> None:
    async with await open_store(ensure_store(tmp_path / "store.sqlite")) as store:
        await record_charges(store)
        rows = await list_cap_usage(store, CAPS, now=NOON)
        statuses = await read_cap_status(store.ledger, CAPS, now=NOON)

    assert [row.use for row in rows if row.use is not None] == [
        use for status in statuses for use in status.uses
    ]
    assert [row.about for row in rows] == [
        "each call", "session u of bob", "session s of ana", "session u of bob", "agent ana", "agent bob",
        "agent ana", "day 2026-11-15", "day 2026-11-15 of bob", "all",
    ]  # fmt: skip


async def test_of_many_sessions_the_ones_closest_to_the_cap_are_shown(tmp_path: Path) -> None:
    async with await open_store(ensure_store(tmp_path / "store.sqlite")) as store:
        for number in range(9):
            call = make_call(f"call {number}", session_id=f"s{number}")
            await settle_one(store.ledger, make_charge(call, number), accounts=list_accounts(call))
        *shown, rest = await list_cap_usage(store, [make_cap(CapScope.SESSION, 8)], now=NOON)

    assert [row.session_id for row in shown] == [f"s{8 - place}" for place in range(MAX_USES)]
    assert (shown[0].text, shown[0].level, shown[0].share) == ("nothing left", CapLevel.FULL, 1.0)
    assert rest.text == "4 more sessions with lower use"
    assert (rest.use, rest.level, rest.share) == (None, CapLevel.FINE, 0.0)


async def test_a_cap_of_zero_is_full_and_an_unused_one_is_shown(tmp_path: Path) -> None:
    caps = [Cap(scope=CapScope.TOTAL, dollars=Decimal(0)), make_cap(CapScope.SESSION, 1)]
    async with await open_store(ensure_store(tmp_path / "store.sqlite")) as store:
        zero, session = await list_cap_usage(store, caps, now=NOON)
        assert await list_cap_usage(store, [], now=NOON) == []

    assert (zero.level, zero.text) == (CapLevel.FULL, "nothing left")
    assert (session.about, session.text) == ("each session", "no recent calls")


async def test_a_session_cap_of_one_agent_is_shown_however_expensive_others_are(
    tmp_path: Path,
) -> None:
    async with await open_store(ensure_store(tmp_path / "store.sqlite")) as store:
        for number in range(25):
            call = make_call(f"call {number}", agent="ana", session_id=f"s{number}")
            await settle_one(store.ledger, make_charge(call, 2), accounts=list_accounts(call))
        call = make_call("of bob", agent="bob", session_id="cheap")
        await settle_one(store.ledger, make_charge(call, 1), accounts=list_accounts(call))
        *_, rest, bob = await list_cap_usage(
            store, [make_cap(CapScope.SESSION, 8), make_cap(CapScope.SESSION, 4, "bob")], now=NOON
        )

    assert (bob.about, bob.text) == ("session cheap of bob", "25% used")
    assert rest.text.startswith("at least ")


async def test_cap_usage_of_one_agent_is_the_same_as_in_the_overview(tmp_path: Path) -> None:
    async with await open_store(ensure_store(tmp_path / "store.sqlite")) as store:
        await record_charges(store)
        rows = await list_agent_cap_usage(store, CAPS, "ana", now=NOON)
        all_rows = await list_cap_usage(store, CAPS, now=NOON)

    assert [row.about for row in rows] == [
        "each call", "session s of ana", "agent ana", "agent ana", "day 2026-11-15", "all",
    ]  # fmt: skip
    assert all(row in all_rows for row in rows)

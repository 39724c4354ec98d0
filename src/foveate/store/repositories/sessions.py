"""Stores sessions, their turns and token counts, and reads their titles and the costs of their descendants."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import itemgetter
from typing import Any

from msgspec.structs import replace

from foveate.cost.money import to_dollars
from foveate.session.store import (
    AnswerRecord,
    AnswerUpdate,
    CountUpdate,
    Session,
    SessionUpdate,
    SessionWrite,
    Turn,
)
from foveate.session.titles import make_session_title
from foveate.store.database import (
    Database,
    Reader,
    Transaction,
    batch_inserts,
    check_storable_names,
    enqueue_inserts,
    group_placeholders,
)

_FIND_TURNS = "SELECT hash, position, session_id FROM turns_v1 WHERE agent = ? AND hash IN ({})"
_SESSION_COLUMNS = (
    *("id", "agent", "tip", "messages", "created_at", "seen_at", "parent_id", "forked_at"),
    *("caller", "setting", "first_messages", "folder", "opening"),
)
_SESSION_FIELDS = tuple("prompt_digest" if column == "setting" else column for column in _SESSION_COLUMNS)
_QUALIFIED_SESSION_COLUMNS = ", ".join(f"sessions_v1.{column}" for column in _SESSION_COLUMNS)
_FIND_SESSION = f"SELECT {_QUALIFIED_SESSION_COLUMNS} FROM sessions_v1 WHERE id = ?"
# If more sessions match, none is chosen.
_MAX_CANDIDATES = 32
_FIND_SESSIONS_BY_TIP = f"""
SELECT {_QUALIFIED_SESSION_COLUMNS} FROM sessions_v1
WHERE agent = ? AND tip IN ({{}}) AND (caller = ? OR caller IS NULL) LIMIT {_MAX_CANDIDATES}
"""
_FIND_ANSWERS = f"""
SELECT mark, answers_v1.session_id, answers_v1.tip, at, {_QUALIFIED_SESSION_COLUMNS}
FROM answers_v1 JOIN sessions_v1 ON sessions_v1.id = answers_v1.session_id
WHERE mark IN ({{}}) LIMIT {_MAX_CANDIDATES}
"""
_ADD_ANSWER = """
INSERT INTO answers_v1 (mark, session_id, tip, at) VALUES {}
ON CONFLICT (mark, session_id) DO UPDATE SET tip = excluded.tip, at = excluded.at
"""
_PUT_SESSION = f"""
INSERT INTO sessions_v1 ({", ".join(_SESSION_COLUMNS)}) VALUES {{}}
ON CONFLICT (id) DO UPDATE SET tip = excluded.tip, messages = excluded.messages, seen_at = excluded.seen_at,
parent_id = coalesce(sessions_v1.parent_id, excluded.parent_id),
caller = coalesce(sessions_v1.caller, excluded.caller),
setting = coalesce(excluded.setting, sessions_v1.setting)
WHERE excluded.seen_at >= sessions_v1.seen_at AND excluded.agent = sessions_v1.agent
"""
# A session must not be deleted while another one that depends on it is stored.
_TOUCH_PARENT = """
UPDATE sessions_v1 SET seen_at = CASE WHEN seen_at < ? THEN ? ELSE seen_at END WHERE id = ? AND agent = ?
"""
_FIND_OWNERS = "SELECT DISTINCT session_id FROM turns_v1 WHERE agent = ? AND session_id <> ? AND hash IN ({})"
_ADD_PARENTS = """
INSERT INTO session_parents_v1 (session_id, parent_id) VALUES {}
ON CONFLICT (session_id, parent_id) DO NOTHING
"""
_ADD_TURN = """
INSERT INTO turns_v1 (agent, hash, position, session_id) VALUES {}
ON CONFLICT (agent, hash) DO NOTHING
"""
_FIND_COUNTS = "SELECT hash, counted FROM turn_counts_v1 WHERE agent = ? AND counter = ? AND hash IN ({})"
_ADD_COUNT = """
INSERT INTO turn_counts_v1 (agent, hash, counter, counted) VALUES {}
ON CONFLICT (agent, hash, counter) DO UPDATE SET counted = excluded.counted
WHERE turn_counts_v1.counted <> excluded.counted
"""
_FIND_LABELS = "SELECT id, agent, created_at, folder, opening, parent_id FROM sessions_v1 WHERE id IN ({})"
# A session whose only request was rejected has no totals and is not shown.
_FIND_CHILDREN = """
SELECT child.id FROM sessions_v1 AS child JOIN session_totals_v1 AS own ON own.session_id = child.id
WHERE child.parent_id = ? ORDER BY own.first_at, child.id LIMIT ?
"""
# A client can name two sessions as parents of each other; UNION visits each pair once.
_MAX_DESCENDANTS = 10_000
_FIND_DESCENDANTS = f"""
WITH RECURSIVE tree(root, id) AS (
    SELECT parent_id, id FROM sessions_v1 WHERE parent_id IN ({{}})
    UNION SELECT tree.root, child.id FROM sessions_v1 AS child JOIN tree ON child.parent_id = tree.id
)
SELECT tree.root, own.picodollars, own.calls, own.unpriced
FROM tree JOIN session_totals_v1 AS own ON own.session_id = tree.id
WHERE tree.id <> tree.root LIMIT {_MAX_DESCENDANTS}
"""


class SqlSessionStore:
    """`foveate.session.store.SessionStore` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_turns(self, agent: str, hashes: Sequence[bytes]) -> Mapping[bytes, Turn]:
        check_storable_names(agent=agent)

        def find(transaction: Transaction) -> dict[bytes, Turn]:
            return {
                hash_: Turn(hash=hash_, position=position, session_id=session_id)
                for placeholders, group in group_placeholders(hashes)
                for hash_, position, session_id in transaction.fetch_all(
                    _FIND_TURNS.format(placeholders), (agent, *group)
                )
            }

        return await self._database.read(find) if hashes else {}

    async def get_session(self, session_id: str) -> Session | None:
        check_storable_names(session_id=session_id)
        rows = await self._database.read(
            lambda transaction: transaction.fetch_all(_FIND_SESSION, (session_id,))
        )
        return _to_session(*rows[0]) if rows else None

    async def find_answers(self, digests: Sequence[bytes]) -> Sequence[tuple[AnswerRecord, Session]]:
        def find(transaction: Transaction) -> list[tuple[Any, ...]]:
            return [
                row
                for placeholders, group in group_placeholders(digests)
                for row in transaction.fetch_all(_FIND_ANSWERS.format(placeholders), group)
            ]

        if len(digests) == 1:
            rows = await self._database.look_up(_FIND_ANSWERS.format("?"), digests)
        else:
            rows = await self._database.read(find) if digests else []
        return [
            (AnswerRecord(digest=digest, session_id=session_id, tip=tip, at=at), _to_session(*session))
            for digest, session_id, tip, at, *session in rows
        ]

    async def find_sessions_ending_at(
        self, agent: str, caller: str, last_hashes: Sequence[bytes]
    ) -> Sequence[Session]:
        check_storable_names(agent=agent)

        def find(transaction: Transaction) -> list[Session]:
            return [
                _to_session(*row)
                for placeholders, group in group_placeholders(last_hashes)
                for row in transaction.fetch_all(
                    _FIND_SESSIONS_BY_TIP.format(placeholders), (agent, *group, caller)
                )
            ]

        return await self._database.read(find) if last_hashes else []

    async def save(self, rows: Sequence[SessionWrite]) -> None:
        moves = [stored for stored in rows if isinstance(stored, SessionUpdate)]
        latest = {
            move.session.id: move.session for move in sorted(moves, key=lambda move: move.session.seen_at)
        }
        sessions = [_session_row(latest[id_]) for id_ in sorted(latest)]
        for session_id in {turn.session_id for move in moves for turn in move.turns}:
            check_storable_names(session_id=session_id)
        answers = _answer_rows([stored for stored in rows if isinstance(stored, AnswerUpdate)])
        counts = _count_rows([stored for stored in rows if isinstance(stored, CountUpdate)])

        def write(transaction: Transaction) -> None:
            turns = _turn_rows(moves)  # there may be thousands, so the writer thread sorts them
            has_shared = _insert_rows(transaction, _ADD_TURN, turns) != len(turns)
            parents = _find_parents(transaction, moves, has_shared=has_shared)
            _put_sessions(transaction, sessions, parents)
            if has_shared:  # again, because their session may have been deleted before it was touched
                enqueue_inserts(transaction, _ADD_TURN, turns)
            pairs = {(session.id, parent_id) for session, parent_id in parents}
            enqueue_inserts(transaction, _ADD_PARENTS, sorted(pairs))
            enqueue_inserts(transaction, _ADD_ANSWER, answers)
            enqueue_inserts(transaction, _ADD_COUNT, counts)

        if rows:
            await self._database.write(write, is_idempotent=True)

    async def get_counts(self, agent: str, hashes: Sequence[bytes], counter: str) -> Mapping[bytes, bytes]:
        check_storable_names(agent=agent, counter=counter)

        def find(transaction: Transaction) -> dict[bytes, bytes]:
            return {
                hash_: count_row
                for placeholders, group in group_placeholders(hashes)
                for hash_, count_row in transaction.fetch_all(
                    _FIND_COUNTS.format(placeholders), (agent, counter, *group)
                )
            }

        return await self._database.read(find) if hashes else {}

    async def save_counts(self, agent: str, counts: Mapping[bytes, bytes], counter: str) -> None:
        check_storable_names(agent=agent, counter=counter)
        new = CountUpdate(agent=agent, counter=counter, counts=counts)
        if counts:  # there may be thousands, so the writer thread sorts them
            await self._database.write(
                lambda transaction: enqueue_inserts(transaction, _ADD_COUNT, _count_rows([new])),
                is_idempotent=True,
            )


def _to_session(*row: Any) -> Session:
    session = Session(**dict(zip(_SESSION_FIELDS, row, strict=True)))
    return replace(session, folder=_decode_text(row[-2]), opening=_decode_text(row[-1]))


def _session_row(session: Session) -> tuple[Any, ...]:
    check_storable_names(session_id=session.id, agent=session.agent, parent_id=session.parent_id)
    *others, folder, opening = (getattr(session, name) for name in _SESSION_FIELDS)
    return (*others, _encode_text(folder), _encode_text(opening))


def _decode_text(stored: bytes | None) -> str | None:
    return None if stored is None else stored.decode("utf-8", "replace")


def _encode_text(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "replace")


def _turn_rows(moves: Sequence[SessionUpdate]) -> list[tuple[Any, ...]]:
    """Return rows sorted by hash, so that two transactions that store the same turns do not deadlock."""
    return sorted(
        (move.session.agent, turn.hash, turn.position, turn.session_id) for move in moves for turn in move.turns
    )


def _count_rows(updates: Sequence[CountUpdate]) -> list[tuple[Any, ...]]:
    """Return rows sorted by key without duplicates: a statement may change a row only once."""
    counts: dict[tuple[str, bytes, str], bytes] = {}
    for rows in updates:
        check_storable_names(agent=rows.agent, counter=rows.counter)
        for hash_, count in rows.counts.items():
            counts[rows.agent, hash_, rows.counter] = count
    return [(*key, counts[key]) for key in sorted(counts)]


def _insert_rows(transaction: Transaction, statement: str, new: Sequence[tuple[Any, ...]]) -> int:
    return sum([transaction.execute(insert, batch) for insert, batch in batch_inserts(statement, new)])


def _answer_rows(updates: Sequence[AnswerUpdate]) -> list[tuple[Any, ...]]:
    """Return rows sorted by key without duplicates: a statement may change a row only once."""
    rows_by_key = {(row.digest, row.session_id): (row.tip, row.at) for update in updates for row in update.rows}
    return [(*key, *rows_by_key[key]) for key in sorted(rows_by_key)]


def _find_parents(
    transaction: Transaction, moves: Sequence[SessionUpdate], *, has_shared: bool
) -> list[tuple[Session, str]]:
    """Return sessions, each with the id of one that it forks from or that owns some of its turns."""
    parents: list[tuple[Session, str]] = []
    for move in moves:
        session = move.session
        parent_ids = {session.parent_id} if session.parent_id and session.forked_at is not None else set()
        if has_shared:
            for placeholders, group in group_placeholders([turn.hash for turn in move.turns]):
                values = (session.agent, session.id, *group)
                rows = transaction.fetch_all(_FIND_OWNERS.format(placeholders), values)
                parent_ids.update(parent_id for (parent_id,) in rows)
        parents += [(session, parent_id) for parent_id in parent_ids]
    return parents


def _put_sessions(
    transaction: Transaction, rows: Sequence[tuple[Any, ...]], parents: Sequence[tuple[Session, str]]
) -> None:
    """Store sessions and touch their parents, in order of ids, so that two transactions do not deadlock."""
    seen_at: dict[tuple[str, str], float] = {}
    for session, parent_id in parents:
        key = parent_id, session.agent
        seen_at[key] = max(seen_at.get(key, session.seen_at), session.seen_at)
    first = 0
    for (parent_id, agent), at in sorted(seen_at.items()):
        end = bisect_right(rows, parent_id, lo=first, key=itemgetter(0))
        enqueue_inserts(transaction, _PUT_SESSION, rows[first:end])
        transaction.enqueue(_TOUCH_PARENT, (at, at, parent_id, agent))
        first = end
    enqueue_inserts(transaction, _PUT_SESSION, rows[first:])


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLabel:
    title: str
    folder: str | None = None
    opening: str | None = None
    parent_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescendantTotals:
    """Number and cost of all sessions that a session started or that forked from it, and of theirs."""

    sessions: int = 0
    calls: int = 0
    unpriced: int = 0
    dollars: Decimal = Decimal(0)


class SessionTree:
    def __init__(self, database: Reader) -> None:
        self._database = database

    async def labels(self, session_ids: Sequence[str]) -> Mapping[str, SessionLabel]:
        def find(transaction: Transaction) -> dict[str, SessionLabel]:
            return {
                id_: _to_label(agent, started_at, folder, opening, parent_id)
                for placeholders, group in group_placeholders(session_ids)
                for id_, agent, started_at, folder, opening, parent_id in transaction.fetch_all(
                    _FIND_LABELS.format(placeholders), group
                )
            }

        return await self._database.read(find) if session_ids else {}

    async def children(self, session_id: str, *, limit: int) -> Sequence[str]:
        """Return the sessions that a session started or that forked from it, oldest first."""
        check_storable_names(session_id=session_id)
        rows = await self._database.read(
            lambda transaction: transaction.fetch_all(_FIND_CHILDREN, (session_id, limit))
        )
        return [id_ for (id_,) in rows]

    async def descendants(self, session_ids: Sequence[str]) -> Mapping[str, DescendantTotals]:
        def find(transaction: Transaction) -> dict[str, DescendantTotals]:
            sums: dict[str, list[int]] = {}
            for placeholders, group in group_placeholders(session_ids):
                for root, *numbers in transaction.fetch_all(_FIND_DESCENDANTS.format(placeholders), group):
                    known = sums.setdefault(root, [0, 0, 0, 0])
                    sums[root] = [total + added for total, added in zip(known, (*numbers, 1), strict=True)]
            return {
                root: DescendantTotals(
                    dollars=to_dollars(spent), calls=calls, unpriced=unpriced, sessions=sessions
                )
                for root, (spent, calls, unpriced, sessions) in sums.items()
            }

        return await self._database.read(find) if session_ids else {}


def _to_label(
    agent: str, started_at: float, folder: bytes | None, opening: bytes | None, parent_id: str | None
) -> SessionLabel:
    folder_text, opening_text = (
        None if value is None else value.decode("utf-8", "replace") for value in (folder, opening)
    )
    return SessionLabel(
        title=make_session_title(agent, started_at, folder_text, opening_text),
        folder=folder_text,
        opening=opening_text,
        parent_id=parent_id,
    )

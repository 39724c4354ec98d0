"""Sessions, their turns and what was counted of them, as `foveate.session` asks to have them kept."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foveate.session.turns import CountRows, Move, Session, Turn
from foveate.store.database import Database, Rows, check_names, in_groups, in_rows

_FIND_TURNS = "SELECT hash, position, session_id FROM turns_v1 WHERE agent = ? AND hash IN ({})"
_FIND_SESSION = """
SELECT id, agent, tip, messages, created_at, seen_at, parent_id, forked_at FROM sessions_v1 WHERE id = ?
"""
_ADD_SESSION = """
INSERT INTO sessions_v1 (id, agent, tip, messages, created_at, seen_at, parent_id, forked_at)
VALUES {} ON CONFLICT (id) DO NOTHING
"""
_MOVE_SESSION = """
UPDATE sessions_v1 SET tip = ?, messages = ?, seen_at = ?, parent_id = ?, forked_at = ?
WHERE id = ? AND agent = ? AND tip = ?
"""
_MOVE_ON = _MOVE_SESSION + " AND coalesce(parent_id, '') = ?"
# A parent is seen in its child: it must not be forgotten while the child is kept.
_SEE_PARENT = """
UPDATE sessions_v1 SET seen_at = CASE WHEN seen_at < ? THEN ? ELSE seen_at END WHERE id = ? AND agent = ?
"""
_ADD_PARENT = """
INSERT INTO session_parents_v1 (session_id, parent_id) VALUES (?, ?)
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


class _Overtaken(Exception):
    """Somebody else was quicker."""


class KeptTurns:
    """Implements `foveate.session.turns.Turns` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def known(self, agent: str, hashes: Sequence[bytes]) -> Mapping[bytes, Turn]:
        """Those of `hashes` that are kept for `agent`."""
        check_names(agent=agent)

        def find(rows: Rows) -> dict[bytes, Turn]:
            return {
                hash_: Turn(hash=hash_, position=position, session_id=session_id)
                for marks, some in in_groups(hashes)
                for hash_, position, session_id in rows.all(_FIND_TURNS.format(marks), (agent, *some))
            }

        return await self._database.read(find) if hashes else {}

    async def session(self, session_id: str) -> Session | None:
        """A session by its id."""
        check_names(session_id=session_id)
        found = await self._database.read(lambda rows: rows.all(_FIND_SESSION, (session_id,)))
        return _session(*found[0]) if found else None

    async def keep(self, session: Session, turns: Sequence[Turn], *, after: bytes | None) -> bool:
        """Keep a session as it is now and its new turns, all in one; False where somebody else was quicker.

        Of a fork's parent it is kept that it was seen; where it was forgotten meanwhile, that is False too.
        """
        new = _turn_rows(session, turns)

        def write(rows: Rows) -> None:
            if not (_add(rows, session) if after is None else _move(rows, session, after)):
                raise _Overtaken
            if _insert(rows, _ADD_TURN, new) != len(new):
                raise _Overtaken

        return await self._is_kept(write)

    async def keep_all(self, rows: Sequence[Move | CountRows]) -> bool:
        """Keep the sessions and counts of many requests, all in one; False where one of them cannot be."""
        moves = sorted((one for one in rows if isinstance(one, Move)), key=lambda move: move.session.id)
        added = [_added(move.session) for move in moves if move.after is None]
        moved = [_moved_on(move.session, move.after) for move in moves if move.after is not None]
        turns = sorted(row for move in moves for row in _turn_rows(move.session, move.turns))
        counts = _count_rows([one for one in rows if isinstance(one, CountRows)])

        def write(rows: Rows) -> None:
            if _insert(rows, _ADD_SESSION, added) != len(added):
                raise _Overtaken
            if moved and rows.change_many(_MOVE_ON, moved) != len(moved):
                raise _Overtaken
            if _insert(rows, _ADD_TURN, turns) != len(turns):
                raise _Overtaken
            _insert(rows, _ADD_COUNT, counts)

        return await self._is_kept(write)

    async def counts(self, agent: str, hashes: Sequence[bytes], counter: str) -> Mapping[bytes, bytes]:
        """What `counter` wrote down of each of those turns, as far as that is kept."""
        check_names(agent=agent, counter=counter)

        def find(rows: Rows) -> dict[bytes, bytes]:
            return {
                hash_: counted
                for marks, some in in_groups(hashes)
                for hash_, counted in rows.all(_FIND_COUNTS.format(marks), (agent, counter, *some))
            }

        return await self._database.read(find) if hashes else {}

    async def keep_counts(self, agent: str, counts: Mapping[bytes, bytes], counter: str) -> None:
        """Keep what `counter` wrote down of turns; what it wrote before of the same ones is replaced."""
        check_names(agent=agent, counter=counter)
        new = CountRows(agent=agent, counter=counter, counts=counts)
        if counts:  # there may be thousands, which are put in order by the thread that writes them
            await self._database.write(lambda rows: _insert(rows, _ADD_COUNT, _count_rows([new])), again=True)

    async def _is_kept(self, write: Callable[[Rows], None]) -> bool:
        try:
            # Again is no harm: the second time finds the first one's tip, and the caller has to look.
            await self._database.write(write, again=True)
        except _Overtaken:
            return False
        return True


def _session(*row: object) -> Session:
    names = ("id", "agent", "tip", "messages", "created_at", "seen_at", "parent_id", "forked_at")
    return Session(**dict(zip(names, row, strict=True)))  # type: ignore[arg-type]


def _add(rows: Rows, session: Session) -> int:
    if session.parent_id is not None:
        _stand(rows, session, session.parent_id)
    return _insert(rows, _ADD_SESSION, [_added(session)])


def _added(session: Session) -> tuple[Any, ...]:
    return (
        session.id,
        session.agent,
        session.tip,
        session.messages,
        session.created_at,
        session.seen_at,
        session.parent_id,
        session.forked_at,
    )


def _move(rows: Rows, session: Session, after: bytes) -> int:
    # One statement for the usual turn, which is of a session that stands where it stood.
    values = _moved_on(session, after)
    moved = rows.change(_MOVE_ON, values)
    if not moved and session.parent_id is not None:
        _stand(rows, session, session.parent_id)
        moved = rows.change(_MOVE_SESSION, values[:-1])
    return moved


def _moved_on(session: Session, after: bytes) -> tuple[Any, ...]:
    return (
        session.tip,
        session.messages,
        session.seen_at,
        session.parent_id,
        session.forked_at,
        session.id,
        session.agent,
        after,
        session.parent_id or "",
    )


def _turn_rows(session: Session, turns: Sequence[Turn]) -> list[tuple[Any, ...]]:
    """In the order of their hashes, so that two who keep the same turns never wait for each other."""
    check_names(session_id=session.id, agent=session.agent, parent_id=session.parent_id)
    for turn in turns:
        check_names(session_id=turn.session_id)
    return sorted((session.agent, turn.hash, turn.position, turn.session_id) for turn in turns)


def _count_rows(counted: Sequence[CountRows]) -> list[tuple[Any, ...]]:
    """In the order of their keys, each of them once: a statement may change a row only once."""
    kept: dict[tuple[str, bytes, str], bytes] = {}
    for rows in counted:
        check_names(agent=rows.agent, counter=rows.counter)
        for hash_, said in rows.counts.items():
            kept[rows.agent, hash_, rows.counter] = said
    return [(*key, kept[key]) for key in sorted(kept)]


def _insert(rows: Rows, statement: str, new: Sequence[tuple[Any, ...]]) -> int:
    """How many rows were inserted, many in one statement: between two, others take hold of the interpreter."""
    return sum([rows.change(inserting, some) for inserting, some in in_rows(statement, new)])


def _stand(rows: Rows, session: Session, parent_id: str) -> None:
    """Have a session stand on another one, which has to be there."""
    if not rows.change(_SEE_PARENT, (session.seen_at, session.seen_at, parent_id, session.agent)):
        raise _Overtaken
    rows.change(_ADD_PARENT, (session.id, parent_id))

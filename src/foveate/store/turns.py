"""Sessions, their turns and what was counted of them, as `foveate.session` asks to have them kept."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from foveate.session.turns import Answer, Answers, CountRows, Move, Session, Stored, Turn
from foveate.store.database import Database, Rows, check_names, in_groups, in_rows

_FIND_TURNS = "SELECT hash, position, session_id FROM turns_v1 WHERE agent = ? AND hash IN ({})"
_SESSION_COLUMNS = (
    *("id", "agent", "tip", "messages", "created_at", "seen_at", "parent_id", "forked_at"),
    *("caller", "setting", "first_messages", "folder", "opening"),
)
_SESSION = ", ".join(f"sessions_v1.{column}" for column in _SESSION_COLUMNS)
_FIND_SESSION = f"SELECT {_SESSION} FROM sessions_v1 WHERE id = ?"
# Of more sessions that are alike, none is chosen.
_MAX_ALIKE = 32
_FIND_ENDING = f"""
SELECT EXISTS (
    SELECT 1 FROM answers_v1 WHERE answers_v1.session_id = sessions_v1.id AND answers_v1.tip = sessions_v1.tip
), {_SESSION} FROM sessions_v1
WHERE agent = ? AND tip IN ({{}}) AND (caller = ? OR caller IS NULL) LIMIT {_MAX_ALIKE}
"""
_FIND_ANSWERED = f"""
SELECT mark, answers_v1.session_id, answers_v1.tip, at, {_SESSION}
FROM answers_v1 JOIN sessions_v1 ON sessions_v1.id = answers_v1.session_id
WHERE mark IN ({{}}) LIMIT {_MAX_ALIKE}
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
# A session that another one depends on must not be forgotten while that one is stored.
_SEE_PARENT = """
UPDATE sessions_v1 SET seen_at = CASE WHEN seen_at < ? THEN ? ELSE seen_at END WHERE id = ? AND agent = ?
"""
_FIND_OWNERS = "SELECT DISTINCT session_id FROM turns_v1 WHERE agent = ? AND session_id <> ? AND hash IN ({})"
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

    async def answered(self, marks: Sequence[bytes]) -> Sequence[tuple[Answer, Session]]:
        """Return the answers with these digests, and their sessions."""

        def find(rows: Rows) -> list[tuple[Answer, Session]]:
            return [
                (Answer(mark=mark, session_id=session_id, tip=tip, at=at), _session(*session))
                for places, some in in_groups(marks)
                for mark, session_id, tip, at, *session in rows.all(_FIND_ANSWERED.format(places), some)
            ]

        return await self._database.read(find) if marks else []

    async def ending_at(self, agent: str, caller: str, tips: Sequence[bytes]) -> Sequence[tuple[Session, bool]]:
        """Return sessions of a caller that end at one of `tips`, and whether each was answered there."""
        check_names(agent=agent)

        def find(rows: Rows) -> list[tuple[Session, bool]]:
            return [
                (_session(*session), bool(is_answered))
                for places, some in in_groups(tips)
                for is_answered, *session in rows.all(_FIND_ENDING.format(places), (agent, *some, caller))
            ]

        return await self._database.read(find) if tips else []

    async def keep(self, rows: Sequence[Stored]) -> None:
        """Store the sessions, answers and counts of requests in one transaction."""
        moves = sorted((one for one in rows if isinstance(one, Move)), key=lambda move: move.session.id)
        latest = {
            move.session.id: move.session for move in sorted(moves, key=lambda move: move.session.seen_at)
        }
        sessions = [_session_row(latest[id_]) for id_ in sorted(latest)]
        turns = sorted(row for move in moves for row in _turn_rows(move.session, move.turns))
        answers = _answer_rows([one for one in rows if isinstance(one, Answers)])
        counts = _count_rows([one for one in rows if isinstance(one, CountRows)])

        def write(rows: Rows) -> None:
            _insert(rows, _PUT_SESSION, sessions)
            has_shared = _insert(rows, _ADD_TURN, turns) != len(turns)
            for move in sorted(moves, key=_by_id):
                _depend(rows, move, has_shared=has_shared)
            _insert(rows, _ADD_ANSWER, answers)
            _insert(rows, _ADD_COUNT, counts)

        if rows:
            await self._database.write(write, again=True)

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


def _by_time(move: Move) -> float:
    return move.session.seen_at


def _by_id(move: Move) -> str:
    return move.session.id


def _session(*row: Any) -> Session:
    found = Session(**dict(zip(_SESSION_COLUMNS, row, strict=True)))
    return replace(found, folder=_text(row[-2]), opening=_text(row[-1]))


def _session_row(session: Session) -> tuple[Any, ...]:
    check_names(session_id=session.id, agent=session.agent, parent_id=session.parent_id)
    *others, folder, opening = (getattr(session, column) for column in _SESSION_COLUMNS)
    return (*others, _bytes(folder), _bytes(opening))


def _text(stored: bytes | None) -> str | None:
    return None if stored is None else stored.decode("utf-8", "replace")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "replace")


def _turn_rows(session: Session, turns: Sequence[Turn]) -> list[tuple[Any, ...]]:
    """In the order of their hashes, so that two who keep the same turns never wait for each other."""
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


def _answer_rows(answers: Sequence[Answers]) -> list[tuple[Any, ...]]:
    """In the order of their keys, each of them once: a statement may change a row only once."""
    found = {(row.mark, row.session_id): (row.tip, row.at) for one in answers for row in one.rows}
    return [(*key, *found[key]) for key in sorted(found)]


def _depend(rows: Rows, move: Move, *, has_shared: bool) -> None:
    """Have a session depend on the one that it forks from and on those that had some of its turns first."""
    session = move.session
    on = {session.parent_id} if session.parent_id and session.forked_at is not None else set()
    if has_shared:
        for places, some in in_groups([turn.hash for turn in move.turns]):
            found = rows.all(_FIND_OWNERS.format(places), (session.agent, session.id, *some))
            on.update(owner for (owner,) in found)
    for owner in sorted(on):
        rows.change(_SEE_PARENT, (session.seen_at, session.seen_at, owner, session.agent))
        rows.change(_ADD_PARENT, (session.id, owner))

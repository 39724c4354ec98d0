"""Folds and sessions found by the beginning of their ids, since nobody types all of one."""

from foveate.store.database import Database, check_names

# Not LIKE, to which some letters mean something else, nor a range, which PostgreSQL sorts by its language.
_FIND_FOLDS = "SELECT id FROM compactions_v1 WHERE substr(id, 1, ?) = ? ORDER BY id LIMIT ?"
_FIND_SESSIONS = """
SELECT DISTINCT session_id FROM compactions_v1 WHERE substr(session_id, 1, ?) = ? ORDER BY session_id LIMIT ?
"""


_FIND_KEPT = """
SELECT id, 1 FROM requests_v1 WHERE substr(id, 1, ?) = ?
UNION SELECT DISTINCT session_id, 0 FROM requests_v1 WHERE substr(session_id, 1, ?) = ?
ORDER BY 1 LIMIT ?
"""


async def kept_ids(database: Database, beginning: str, *, limit: int) -> tuple[list[str], list[str]]:
    """The ids, of those that begin so, of sessions with kept requests, and of such requests."""
    check_names(id=beginning)
    values = (len(beginning), beginning, len(beginning), beginning, limit)
    found = await database.read(lambda rows: rows.all(_FIND_KEPT, values))
    sessions, requests = ([id_ for id_, kind in found if kind == wanted] for wanted in (0, 1))
    return sessions, requests


async def fold_ids(database: Database, beginning: str, *, limit: int) -> list[str]:
    """The ids of folds that begin so."""
    return await _found(database, _FIND_FOLDS, beginning, limit)


async def folded_sessions(database: Database, beginning: str, *, limit: int) -> list[str]:
    """The ids, of those that begin so, of sessions with a row on a fold, whatever became of it."""
    return await _found(database, _FIND_SESSIONS, beginning, limit)


async def _found(database: Database, statement: str, beginning: str, limit: int) -> list[str]:
    check_names(id=beginning)
    found = await database.read(lambda rows: rows.all(statement, (len(beginning), beginning, limit)))
    return [id_ for (id_,) in found]

"""Folds and sessions found by the beginning of their ids, since nobody types all of one."""

from foveate.store.database import Database, check_storable_names

# Not LIKE, to which some letters mean something else, nor a range, which PostgreSQL sorts by its language.
_FIND_COMPACTION_IDS = "SELECT id FROM compactions_v1 WHERE substr(id, 1, ?) = ? ORDER BY id LIMIT ?"
_FIND_COMPACTED_SESSION_IDS = """
SELECT DISTINCT session_id FROM compactions_v1 WHERE substr(session_id, 1, ?) = ? ORDER BY session_id LIMIT ?
"""


_FIND_ARCHIVED_IDS = """
SELECT id, 1 FROM requests_v1 WHERE substr(id, 1, ?) = ?
UNION SELECT DISTINCT session_id, 0 FROM requests_v1 WHERE substr(session_id, 1, ?) = ?
ORDER BY 1 LIMIT ?
"""


async def find_archived_ids(database: Database, prefix: str, *, limit: int) -> tuple[list[str], list[str]]:
    """The ids, of those that begin so, of sessions with kept requests, and of such requests."""
    check_storable_names(id=prefix)
    values = (len(prefix), prefix, len(prefix), prefix, limit)
    found = await database.read(lambda transaction: transaction.fetch_all(_FIND_ARCHIVED_IDS, values))
    sessions, requests = ([id_ for id_, kind in found if kind == wanted] for wanted in (0, 1))
    return sessions, requests


async def find_compaction_ids(database: Database, prefix: str, *, limit: int) -> list[str]:
    """The ids of folds that begin so."""
    return await _find_ids(database, _FIND_COMPACTION_IDS, prefix, limit)


async def find_compacted_session_ids(database: Database, prefix: str, *, limit: int) -> list[str]:
    """The ids, of those that begin so, of sessions with a row on a fold, whatever became of it."""
    return await _find_ids(database, _FIND_COMPACTED_SESSION_IDS, prefix, limit)


async def _find_ids(database: Database, statement: str, prefix: str, limit: int) -> list[str]:
    check_storable_names(id=prefix)
    found = await database.read(
        lambda transaction: transaction.fetch_all(statement, (len(prefix), prefix, limit))
    )
    return [id_ for (id_,) in found]

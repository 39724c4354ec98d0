"""What bills have taught of counters, as `foveate.tokens` asks to have it kept."""

from collections.abc import Mapping

import msgspec

from foveate.store.database import Database, check_names
from foveate.tokens.calibration import Calibration, Learner

_FIND = "SELECT upstream, counter, learnt FROM lessons_v1 ORDER BY at DESC LIMIT ?"
# Of two processes that learn beside each other, the one that has heard more is right.
_KEEP = """
INSERT INTO lessons_v1 (upstream, counter, responses, learnt, at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (upstream, counter) DO UPDATE
SET responses = excluded.responses, learnt = excluded.learnt, at = excluded.at
WHERE excluded.responses >= lessons_v1.responses
"""
# Of longer names PostgreSQL keeps no key.
_LONGEST_CHARS = 500


class KeptLessons:
    """Implements `foveate.tokens.calibration.Lessons` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def learnt(self, *, limit: int) -> Mapping[Learner, Calibration]:
        """What was kept last, the newest at the end."""
        found = await self._database.read(lambda rows: rows.all(_FIND, (limit,)))
        return {
            (upstream, counter): known
            for upstream, counter, learnt in reversed(found)
            if (known := _calibration(learnt)) is not None
        }

    async def keep(self, lessons: Mapping[Learner, Calibration], *, now: float) -> None:
        """Keep these, unless what is there has been learnt from more responses."""
        rows = []
        for (upstream, counter), learnt in lessons.items():
            check_names(upstream=upstream, counter=counter)
            if len(upstream) + len(counter) <= _LONGEST_CHARS:
                rows.append((upstream, counter, learnt.responses, msgspec.json.encode(learnt), now))
        if rows:
            await self._database.write(lambda inside: inside.change_many(_KEEP, rows), again=True)


def _calibration(learnt: bytes) -> Calibration | None:
    """What a row says; None where this Foveate cannot read it, and learns anew."""
    try:
        return msgspec.json.decode(learnt, type=Calibration)
    except msgspec.MsgspecError:
        return None

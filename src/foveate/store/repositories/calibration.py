"""Stores what each token counter has learnt from reported usage."""

from collections.abc import Mapping
from operator import itemgetter

import msgspec

from foveate.store.database import Database, check_storable_names
from foveate.tokens.calibration import Calibration, CalibrationKey

_FIND_CALIBRATIONS = "SELECT upstream, counter, learnt FROM lessons_v1 ORDER BY at DESC LIMIT ?"
# Of two processes that calibrate at the same time, the one with more responses wins.
_SAVE_CALIBRATION = """
INSERT INTO lessons_v1 (upstream, counter, responses, learnt, at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (upstream, counter) DO UPDATE
SET responses = excluded.responses, learnt = excluded.learnt, at = excluded.at
WHERE excluded.responses >= lessons_v1.responses
"""
# PostgreSQL cannot index longer keys.
_MAX_KEY_CHARS = 500


class SqlCalibrationStore:
    """`foveate.tokens.calibration.CalibrationStore` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load_latest(self, *, limit: int) -> Mapping[CalibrationKey, Calibration]:
        rows = await self._database.read(
            lambda transaction: transaction.fetch_all(_FIND_CALIBRATIONS, (limit,))
        )
        return {
            (upstream, counter): calibration
            for upstream, counter, learnt in reversed(rows)
            if (calibration := _decode_calibration(learnt)) is not None
        }

    async def save(self, calibrations: Mapping[CalibrationKey, Calibration], *, now: float) -> None:
        rows = []
        for (upstream, counter), learnt in sorted(calibrations.items(), key=itemgetter(0)):
            check_storable_names(upstream=upstream, counter=counter)
            if len(upstream) + len(counter) <= _MAX_KEY_CHARS:
                rows.append((upstream, counter, learnt.responses, msgspec.json.encode(learnt), now))
        if rows:
            await self._database.write(
                lambda transaction: transaction.execute_many(_SAVE_CALIBRATION, rows), is_idempotent=True
            )


def _decode_calibration(learnt: bytes) -> Calibration | None:
    """Decode a row; None if another version wrote it in a format that this one cannot read."""
    try:
        return msgspec.json.decode(learnt, type=Calibration)
    except msgspec.MsgspecError:
        return None

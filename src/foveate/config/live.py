"""The configuration as it is now: a changed file takes effect on the next request, an invalid one on none."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from foveate.config.cost import CostOptions
from foveate.config.documents import SETTINGS_LIMIT_BYTES
from foveate.config.files import read_bytes, shown
from foveate.config.loading import Configuration, made_from
from foveate.errors import FoveateError

_LOG = logging.getLogger(__name__)

Made = TypeVar("Made")
# A request asks many times what holds, and nobody changes a file and asks again so soon.
LOOK_EVERY_SECONDS = 0.005
# What tells one state of a file from another; None for one that is not there.
_Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class InForce(Generic[Made]):
    """What was made of the configuration that holds, and what is wrong with the file since, if anything."""

    made: Made
    problem: FoveateError | None = None
    changes: int = 0


class LiveSettings(Generic[Made]):
    """What `make` makes of a configuration, made anew whenever its file has changed.

    Looking whether it has costs a few microseconds, so each request does. `make` may refuse a configuration
    too; then all stays as it is.
    """

    def __init__(
        self,
        path: Path | None,
        make: Callable[[Configuration], Made],
        *,
        held: bytes | None = None,
        tells: bool = True,
        look_every_seconds: float = LOOK_EVERY_SECONDS,
    ) -> None:
        """Without a path there is no file, and everything is as it is by default.

        `held` is what the file said when it last could be used: where it cannot be now, that holds. One that
        `tells` has changes in the log; of several processes that look at one file, one is enough.

        Raises:
            FoveateError: the file cannot be used: nothing holds yet that could go on.
        """
        from foveate.config.settings import Settings

        self._path = path
        self._make = make
        self._tells = tells
        self._stamp = _stamp(path)
        self._looked_at = 0.0
        self._look_every_seconds = look_every_seconds
        self.text: bytes | None = None
        """What the file said when it last could be used."""
        if path is None:
            self._now = InForce(make(Configuration(Settings(), CostOptions())))
            return
        try:
            self._now = InForce(self._read(path))
        except FoveateError as error:
            if held is None:
                raise
            self._now = InForce(made_from(held, shown(path), make), error)
            self.text = held

    def now(self) -> InForce[Made]:
        """What holds now."""
        at = time.monotonic()
        if at - self._looked_at < self._look_every_seconds:
            return self._now
        self._looked_at = at
        stamp = _stamp(self._path)
        if stamp != self._stamp and self._path is not None:
            self._stamp = stamp
            self._now = self._changed(self._path)
        return self._now

    def _changed(self, path: Path) -> InForce[Made]:
        try:
            made = self._read(path)
        except FoveateError as error:
            if self._tells:
                _LOG.error("the configuration stays as it was: %s", error)
            return InForce(self._now.made, error, self._now.changes)
        if self._tells:
            _LOG.info("%s has changed, and holds from now on", path)
        return InForce(made, None, self._now.changes + 1)

    def _read(self, path: Path) -> Made:
        text = read_bytes(path, limit_bytes=SETTINGS_LIMIT_BYTES)
        made = made_from(text, shown(path), self._make)
        self.text = text
        return made


def _stamp(path: Path | None) -> _Stamp:
    if path is None:
        return None
    try:
        found = os.stat(path)  # noqa: PTH116 - on the way of every request
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino

"""The configuration as it is now: a changed file takes effect on the next request, an invalid one on none."""

import logging
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from foveate.config.documents import SETTINGS_LIMIT_BYTES
from foveate.config.files import read_bytes, shown
from foveate.config.loading import Configuration, made_from
from foveate.errors import FoveateError

_LOG = logging.getLogger(__name__)

Made = TypeVar("Made")
# Who shows much of what holds asks many times, and looks once.
LOOK_EVERY_SECONDS = 0.05
# What a file says that says nothing.
_ALL_BY_DEFAULT = b"# all by default\n"
# What tells one state of a file from another; None for one that is not there.
Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class InForce(Generic[Made]):
    """What was made of the configuration that holds, since when, and what is wrong with the file since."""

    made: Made
    since: float
    problem: FoveateError | None = None
    changes: int = 0


class LiveSettings(Generic[Made]):
    """What `make` makes of a configuration, made anew whenever its file has changed.

    Looking whether it has costs a few microseconds, so each request does, by `look_again`. `make` may refuse a
    configuration too; then all stays as it is.
    """

    def __init__(
        self,
        path: Path | None,
        make: Callable[[Configuration], Made],
        *,
        usual: Sequence[Path] = (),
        held: bytes | None = None,
        tells: bool = True,
        fixed: Callable[[Made], Mapping[str, object]] = lambda _: {},
        look_every_seconds: float = LOOK_EVERY_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Where no path is named, the first file of the `usual` places holds, also one that appears later.

        Without any, everything is as it is by default. `held` is what the file said when it last could be used:
        where it cannot be now, that holds. One that `tells` has changes in the log; of several processes that
        look at one file, one is enough. What is `fixed` at the start is named there where it has changed.
        `clock` tells the time since when a configuration is in force.

        Raises:
            FoveateError: the file cannot be used: nothing holds yet that could go on.
        """
        self._places = tuple(map(str, usual if path is None else (path,)))
        self._make = make
        self._tells = tells
        self._fixed = fixed
        self._clock = clock
        self._looked_at = 0.0
        self._look_every_seconds = look_every_seconds
        self._stamp = self._look()
        self.text = _ALL_BY_DEFAULT
        """What the file said when it last could be used."""
        self.path: Path | None = None
        """The file that holds, or should; None where there is none."""
        if path is None and self._stamp is None and held in (None, _ALL_BY_DEFAULT):
            self._now = InForce(made_from(_ALL_BY_DEFAULT, "no file", make), clock())
        else:
            self.path = Path(self._places[-1])
            self._now = self._first(self.path, held)
        self._at_start = fixed(self._now.made)

    def _first(self, path: Path, held: bytes | None) -> InForce[Made]:
        try:
            return InForce(self._read(path), self._clock())
        except FoveateError as error:
            if held is None:
                raise
            self.text = held
            return InForce(made_from(held, shown(path), self._make), self._clock(), error)

    def now(self) -> InForce[Made]:
        """What holds now."""
        at = time.monotonic()
        if at - self._looked_at < self._look_every_seconds:
            return self._now
        self._looked_at = at
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp = stamp
            self._now = self._changed(Path(self._places[-1]))
        return self._now

    def look_again(self) -> None:
        """Have the next who asks look at the file, however lately that was done."""
        self._looked_at = 0.0

    @property
    def waiting(self) -> Mapping[str, object]:
        """What of the file holds from the next start on only, by its names: what is used until then."""
        return self._waiting(self._now.made)

    def _waiting(self, made: Made) -> dict[str, object]:
        now = self._fixed(made)
        return {name: before for name, before in self._at_start.items() if now[name] != before}

    def _look(self) -> Stamp:
        """How the file at the last of the places is; those behind the first that has one are forgotten."""
        for number, place in enumerate(self._places, 1):
            stamp = stamp_of(place)
            if stamp is not None:
                self._places = self._places[:number]
                return stamp
        return None

    def _changed(self, path: Path) -> InForce[Made]:
        is_new, self.path = path != self.path, path
        try:
            made = self._read(path)
        except FoveateError as error:
            if self._tells:
                _LOG.error("the configuration stays as it was: %s", error)
            return replace(self._now, problem=error)
        if self._tells:
            waiting = ", ".join(self._waiting(made))
            _LOG.log(
                logging.WARNING if waiting else logging.INFO,
                "%s %s, and holds from now on%s",
                path,
                "is there" if is_new else "has changed",
                f", except for {waiting}: start the gateway anew for that" if waiting else "",
            )
        return InForce(made, self._clock(), changes=self._now.changes + 1)

    def _read(self, path: Path) -> Made:
        text = read_bytes(path, limit_bytes=SETTINGS_LIMIT_BYTES)
        made = made_from(text, shown(path), self._make)
        self.text = text
        return made


def stamp_of(path: str) -> Stamp:
    """What tells this state of a file from others."""
    try:
        found = os.stat(path)  # noqa: PTH116 - on the way of every request
    except OSError:
        return None
    return None if stat.S_ISDIR(found.st_mode) else (found.st_mtime_ns, found.st_size, found.st_ino)

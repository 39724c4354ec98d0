"""The configuration as it is now: a changed file takes effect on the next request, an invalid one on none."""

import logging
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from foveate.config.document import MAX_SETTINGS_BYTES
from foveate.config.files import display_path, read_bytes
from foveate.config.load import Configuration, build_from_bytes
from foveate.errors import FoveateError

_LOG = logging.getLogger(__name__)

Made = TypeVar("Made")
# Who shows much of what holds asks many times, and looks once.
CHECK_INTERVAL_SECONDS = 0.05
# What a file says that says nothing.
_EMPTY_CONFIG = b"# all by default\n"
# What tells one state of a file from another; None for one that is not there.
FileStamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class ActiveConfig(Generic[Made]):
    """What was made of the configuration that holds, since when, and what is wrong with the file since."""

    value: Made
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
        build: Callable[[Configuration], Made],
        *,
        default_paths: Sequence[Path] = (),
        last_valid: bytes | None = None,
        logs_changes: bool = True,
        read_fixed: Callable[[Made], Mapping[str, object]] = lambda _: {},
        check_interval_seconds: float = CHECK_INTERVAL_SECONDS,
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
        self._paths = tuple(map(str, default_paths if path is None else (path,)))
        self._build = build
        self._logs_changes = logs_changes
        self._read_fixed = read_fixed
        self._clock = clock
        self._checked_at = 0.0
        self._check_interval_seconds = check_interval_seconds
        self._stamp = self._read_stamp()
        self.text = _EMPTY_CONFIG
        """What the file said when it last could be used."""
        self.path: Path | None = None
        """The file that holds, or should; None where there is none."""
        if path is None and self._stamp is None and last_valid in (None, _EMPTY_CONFIG):
            self._active = ActiveConfig(build_from_bytes(_EMPTY_CONFIG, "no file", build), clock())
        else:
            self.path = Path(self._paths[-1])
            self._active = self._load_first(self.path, last_valid)
        self._fixed_at_start = read_fixed(self._active.value)

    def _load_first(self, path: Path, last_valid: bytes | None) -> ActiveConfig[Made]:
        try:
            return ActiveConfig(self._load(path), self._clock())
        except FoveateError as error:
            if last_valid is None:
                raise
            self.text = last_valid
            return ActiveConfig(
                build_from_bytes(last_valid, display_path(path), self._build), self._clock(), error
            )

    def current(self) -> ActiveConfig[Made]:
        """What holds now."""
        at = time.monotonic()
        if at - self._checked_at < self._check_interval_seconds:
            return self._active
        self._checked_at = at
        stamp = self._read_stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            self._active = self._reload(Path(self._paths[-1]))
        return self._active

    def check_next_time(self) -> None:
        """Have the next who asks look at the file, however lately that was done."""
        self._checked_at = 0.0

    @property
    def needs_restart(self) -> Mapping[str, object]:
        """What of the file holds from the next start on only, by its names: what is used until then."""
        return self._find_changed_fixed(self._active.value)

    def _find_changed_fixed(self, value: Made) -> dict[str, object]:
        now = self._read_fixed(value)
        return {name: before for name, before in self._fixed_at_start.items() if now[name] != before}

    def _read_stamp(self) -> FileStamp:
        """How the file at the last of the places is; those behind the first that has one are forgotten."""
        for number, path in enumerate(self._paths, 1):
            stamp = read_file_stamp(path)
            if stamp is not None:
                self._paths = self._paths[:number]
                return stamp
        return None

    def _reload(self, path: Path) -> ActiveConfig[Made]:
        is_new, self.path = path != self.path, path
        try:
            value = self._load(path)
        except FoveateError as error:
            if self._logs_changes:
                _LOG.error("the configuration stays as it was: %s", error)
            return replace(self._active, problem=error)
        if self._logs_changes:
            needs_restart = ", ".join(self._find_changed_fixed(value))
            _LOG.log(
                logging.WARNING if needs_restart else logging.INFO,
                "%s %s, and holds from now on%s",
                path,
                "is there" if is_new else "has changed",
                f", except for {needs_restart}: start the gateway anew for that" if needs_restart else "",
            )
        return ActiveConfig(value, self._clock(), changes=self._active.changes + 1)

    def _load(self, path: Path) -> Made:
        text = read_bytes(path, limit_bytes=MAX_SETTINGS_BYTES)
        value = build_from_bytes(text, display_path(path), self._build)
        self.text = text
        return value


def read_file_stamp(path: str) -> FileStamp:
    """What tells this state of a file from others."""
    try:
        status = os.stat(path)  # noqa: PTH116 - on the way of every request
    except OSError:
        return None
    return None if stat.S_ISDIR(status.st_mode) else (status.st_mtime_ns, status.st_size, status.st_ino)

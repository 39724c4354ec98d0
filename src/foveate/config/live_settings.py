"""Live configuration: a changed file takes effect on the next request; an invalid one is ignored."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from foveate.config.document import MAX_SETTINGS_BYTES
from foveate.config.files import FileStamp, display_path, read_bytes, read_file_stamp
from foveate.config.load import Configuration, build_from_bytes
from foveate.errors import FoveateError

_LOG = logging.getLogger(__name__)

BuiltT = TypeVar("BuiltT")
# A page that reads many settings checks the file once.
CHECK_INTERVAL_SECONDS = 0.05
# Used if there is no file.
_EMPTY_CONFIG = b"# all by default\n"


@dataclass(frozen=True, slots=True)
class ActiveConfig(Generic[BuiltT]):
    """The value built from the active configuration, its activation time, and the error of a newer file."""

    value: BuiltT
    since: float
    problem: FoveateError | None = None
    changes: int = 0


class LiveSettings(Generic[BuiltT]):
    """A value that `build` makes from a configuration file, and makes again when the file changes.

    Checking for a change costs a few microseconds, so every request does, through `check_next_time`. If `build`
    rejects a configuration, the previous value stays.
    """

    def __init__(
        self,
        path: Path | None,
        build: Callable[[Configuration], BuiltT],
        *,
        default_paths: Sequence[Path] = (),
        last_valid: bytes | None = None,
        logs_changes: bool = True,
        read_fixed: Callable[[BuiltT], Mapping[str, object]] = lambda _: {},
        check_interval_seconds: float = CHECK_INTERVAL_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Load the configuration now.

        Args:
            path: the file; None means the first existing file of `default_paths`, also one that appears later.
                Without any file, all settings have their defaults.
            build: makes the value, and may reject a configuration.
            default_paths: candidates if no file is named.
            last_valid: the last valid content of the file, used if the file is invalid now.
            logs_changes: whether to log changes. Of several processes that watch one file, one should.
            read_fixed: returns the settings that need a restart; the log names those that have changed.
            check_interval_seconds: how long the result of a check is reused.
            clock: returns the time since when a configuration is active.

        Raises:
            FoveateError: the file cannot be used, and there is no `last_valid`.
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
        """The last valid content of the file."""
        self.path: Path | None = None
        """The active file; None if there is none."""
        if path is None and self._stamp is None and last_valid in (None, _EMPTY_CONFIG):
            self._active = ActiveConfig(build_from_bytes(_EMPTY_CONFIG, "no file", build), clock())
        else:
            self.path = Path(self._paths[-1])
            self._active = self._load_first(self.path, last_valid)
        self._fixed_at_start = read_fixed(self._active.value)

    def _load_first(self, path: Path, last_valid: bytes | None) -> ActiveConfig[BuiltT]:
        try:
            return ActiveConfig(self._load(path), self._clock())
        except FoveateError as error:
            if last_valid is None:
                raise
            self.text = last_valid
            return ActiveConfig(
                build_from_bytes(last_valid, display_path(path), self._build), self._clock(), error
            )

    def current(self) -> ActiveConfig[BuiltT]:
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
        """Make the next call of `current` check the file, however recent the last check was."""
        self._checked_at = 0.0

    @property
    def needs_restart(self) -> Mapping[str, object]:
        """The settings that need a restart to take effect, with the values in use until then."""
        return self._find_changed_fixed(self._active.value)

    def _find_changed_fixed(self, value: BuiltT) -> dict[str, object]:
        now = self._read_fixed(value)
        return {name: before for name, before in self._fixed_at_start.items() if now[name] != before}

    def _read_stamp(self) -> FileStamp:
        """Return the stamp of the first file that exists, and forget the candidates after it."""
        for number, path in enumerate(self._paths, 1):
            stamp = read_file_stamp(path)
            if stamp is not None:
                self._paths = self._paths[:number]
                return stamp
        return None

    def _reload(self, path: Path) -> ActiveConfig[BuiltT]:
        is_new, self.path = path != self.path, path
        try:
            value = self._load(path)
        except FoveateError as error:
            if self._logs_changes:
                _LOG.error("the new configuration is invalid, keeping the previous one: %s", error)
            return replace(self._active, problem=error)
        if self._logs_changes:
            needs_restart = ", ".join(self._find_changed_fixed(value))
            _LOG.log(
                logging.WARNING if needs_restart else logging.INFO,
                "%s %s, the new settings are in effect%s",
                path,
                "was created" if is_new else "has changed",
                f", except {needs_restart}: restart the gateway to apply" if needs_restart else "",
            )
        return ActiveConfig(value, self._clock(), changes=self._active.changes + 1)

    def _load(self, path: Path) -> BuiltT:
        text = read_bytes(path, limit_bytes=MAX_SETTINGS_BYTES)
        value = build_from_bytes(text, display_path(path), self._build)
        self.text = text
        return value

"""Paths as users write them in settings, with `~`, variables and stray quotes; and the data folder."""

import os
import pwd
import re
import string
from collections.abc import Mapping
from pathlib import Path

from foveate.errors import BadOption

StrPath = str | os.PathLike[str]
"""A path as a string or `PathLike`."""

SQLITE_PREFIX = "sqlite:///"

_CONFIG_NAME = "foveate.yaml"
_STRIPPED_CHARS = string.whitespace + "\"'"
_VARIABLE = re.compile(r"\$(?:(?P<bare>\w+)|\{(?P<braced>[^{}]*)\})", re.ASCII)


def expand_path(path: StrPath, environ: Mapping[str, str], *, key: tuple[str | int, ...] = ("path",)) -> str:
    """Expand `$VAR`, `${VAR}`, `~` and `~name`, and strip surrounding spaces and quotes.

    The value of a variable is expanded for `~` and stripped of quotes, but not for further variables. A dollar
    sign without a name stays.

        >>> expand_path("'$NOTES/garden'", {"NOTES": "~/notes", "HOME": "/home/ana"})
        '/home/ana/notes/garden'

    Raises:
        BadOption: there is no such variable or user, or the path is empty; `key` is the path of the setting.
    """
    written = os.fspath(path)

    def value(found: re.Match[str]) -> str:
        name = found["braced"] if found["bare"] is None else found["bare"]
        if name not in environ:
            raise BadOption(f"{written!r}: the environment variable {name!r} is not set", path=key)
        return _strip_quotes(environ[name])

    expanded = _strip_quotes(_VARIABLE.sub(value, _strip_quotes(written)))
    if "\0" in expanded:
        raise BadOption(f"{written!r}: a path cannot contain a NUL byte", path=key)
    if expanded.startswith("~"):
        name, slash, rest = expanded[1:].partition("/")
        expanded = (_home_folder(name, environ, written, key).rstrip("/") + slash + rest) or "/"
    if not expanded:
        raise BadOption(f"{written!r}: the path is empty", path=key)
    return expanded


def data_folder(environ: Mapping[str, str], platform: str) -> Path:
    """The folder for Foveate's data: `FOVEATE_HOME`, or the platform's default.

    Raises:
        BadOption: it contains an unknown variable or user, or there is no home folder.
    """
    if environ.get("FOVEATE_HOME"):
        return Path(expand_path(environ["FOVEATE_HOME"], environ, key=("FOVEATE_HOME",)))
    if platform == "darwin":
        return Path(expand_path("~/Library/Application Support/foveate", environ))
    return Path(expand_path(environ.get("XDG_DATA_HOME") or "~/.local/share", environ)) / "foveate"


def sqlite_path(url: str, environ: Mapping[str, str]) -> Path:
    """The file of a store with the URL `sqlite:///path`, or a path itself.

    Raises:
        BadOption: it contains an unknown variable or user, or is empty.
    """
    return Path(expand_path(url.removeprefix(SQLITE_PREFIX), environ, key=("store", "url")))


def find_default_config(folder: Path, home: Path) -> Path | None:
    return next((path for path in default_config_paths(folder, home) if path.is_file()), None)


def default_config_paths(folder: Path, home: Path) -> tuple[Path, ...]:
    """Where the configuration is if none is named: in the current folder, or in the data folder."""
    return folder / _CONFIG_NAME, home / _CONFIG_NAME


def _strip_quotes(text: str) -> str:
    """Strip spaces and quotes, which may be unbalanced."""
    return text.strip(_STRIPPED_CHARS)


def _home_folder(name: str, environ: Mapping[str, str], written: str, key: tuple[str | int, ...]) -> str:
    if not name and environ.get("HOME"):
        return environ["HOME"]
    try:
        return (pwd.getpwnam(name) if name else pwd.getpwuid(os.getuid())).pw_dir
    except (KeyError, UnicodeEncodeError):
        missing = f"user {name!r}" if name else "home folder: set HOME"
        raise BadOption(f"{written!r}: there is no {missing}", path=key) from None

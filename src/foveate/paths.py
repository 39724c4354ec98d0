"""Paths as people write them in configuration: with `~`, with variables, and with quotes that got in."""

import os
import pwd
import re
import string
from collections.abc import Mapping
from pathlib import Path

from foveate.errors import BadOption

StrPath = str | os.PathLike[str]
"""Wherever the name of a file or a folder is asked for."""

_STRIPPED_CHARS = string.whitespace + "\"'"
_VARIABLE = re.compile(r"\$(?:(?P<bare>\w+)|\{(?P<braced>[^{}]*)\})", re.ASCII)


def expand_path(path: StrPath, environ: Mapping[str, str], *, key: tuple[str | int, ...] = ("path",)) -> str:
    """The path that is meant: `$VAR`, `${VAR}`, `~` and `~name` put in, blanks and quotes around it taken off.

    What a variable holds is not looked through for further variables, only for `~` and quotes. A dollar sign
    that begins no name stays.

        >>> expanded("'$NOTES/garden'", {"NOTES": "~/notes", "HOME": "/home/ana"})
        '/home/ana/notes/garden'

    Raises:
        BadOption: there is no such variable or user, or nothing is left; `key` leads to the setting.
    """
    written = os.fspath(path)

    def value(found: re.Match[str]) -> str:
        name = found["braced"] if found["bare"] is None else found["bare"]
        if name not in environ:
            raise BadOption(f"{written!r}: there is no variable {name!r} in the environment", path=key)
        return _strip_quotes(environ[name])

    expanded = _strip_quotes(_VARIABLE.sub(value, _strip_quotes(written)))
    if "\0" in expanded:
        raise BadOption(f"{written!r}: a path has no zero byte in it", path=key)
    if expanded.startswith("~"):
        name, slash, rest = expanded[1:].partition("/")
        expanded = (_home_folder(name, environ, written, key).rstrip("/") + slash + rest) or "/"
    if not expanded:
        raise BadOption(f"{written!r} names no file or folder", path=key)
    return expanded


def data_folder(environ: Mapping[str, str], platform: str) -> Path:
    """Where Foveate keeps what it has: `FOVEATE_HOME`, otherwise where the platform puts data of programs."""
    if environ.get("FOVEATE_HOME"):
        return Path(environ["FOVEATE_HOME"]).expanduser()
    if platform == "darwin":
        return Path("~/Library/Application Support/foveate").expanduser()
    return Path(environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "foveate"


def _strip_quotes(text: str) -> str:
    """Without blanks and quotes at its ends, of which there may be one too few."""
    return text.strip(_STRIPPED_CHARS)


def _home_folder(name: str, environ: Mapping[str, str], written: str, key: tuple[str | int, ...]) -> str:
    if not name and environ.get("HOME"):
        return environ["HOME"]
    try:
        return (pwd.getpwnam(name) if name else pwd.getpwuid(os.getuid())).pw_dir
    except (KeyError, UnicodeEncodeError):
        missing = f"user {name!r}" if name else "home folder: set HOME"
        raise BadOption(f"{written!r}: there is no {missing}", path=key) from None

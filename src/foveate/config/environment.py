"""The file `.env`: variables beside those of the environment, which wins."""

import re
from collections.abc import Mapping
from pathlib import Path

from foveate.config.files import read_bytes, shown, text_in
from foveate.errors import BadSetting

NAME = ".env"
"""Where it is looked for: in the working folder."""

_LIMIT_BYTES = 1_000_000
_ASSIGNED = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.-]*)\s*=[ \t]*(.*)", re.DOTALL)
_COMMENT = re.compile(r"(^|\s)#.*")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$"}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
# A folder that somebody else filled must not choose which programs run, or what Python loads.
_NEVER = re.compile(r"PATH|PYTHON.*|LD_.*|DYLD_.*")


def with_env_file(environment: Mapping[str, str], path: Path) -> dict[str, str]:
    """The environment, and what a file adds to it; where there is no such file, nothing.

    Raises:
        UnreadableInput: it is larger than 1 MB, or not UTF-8.
        BadSetting: a line of it cannot be read; names the line, and nothing of what stands there.
    """
    if not path.is_file():  # some have a folder of that name, with another Python in it
        return dict(environment)
    source = shown(path)
    said = variables_in(text_in(read_bytes(path, limit_bytes=_LIMIT_BYTES), source), source)
    return {**{name: text for name, text in said.items() if not _NEVER.fullmatch(name)}, **environment}


def variables_in(text: str, source: str) -> dict[str, str]:
    r"""The variables that a text in the format of `.env` sets; of one that is there twice, the last.

    `NAME=value` each on a line, `export` before it or not. A value in double quotes may go over several lines
    and hold `\n`, one in single quotes is taken as it is, and one in none ends at a `#` after a space.

    Raises:
        BadSetting: a line is no such thing; its text is not told, since it may hold a key.
    """
    lines = text.split("\n")
    found: dict[str, str] = {}
    number = 0
    while number < len(lines):
        line, first = lines[number].rstrip("\r"), number + 1
        number += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        assigned = _ASSIGNED.fullmatch(line)
        if assigned is None:
            raise BadSetting(source, "this is no NAME=value", line=first)
        name, rest = assigned[1], assigned[2]
        if rest[:1] in ("'", '"') and rest:
            while (end := _end_of_quoted(rest)) is None and number < len(lines):
                rest += "\n" + lines[number].rstrip("\r")
                number += 1
            if end is None:
                raise BadSetting(source, f"the quote of {name} is not closed", line=first, key=name)
            if _COMMENT.sub("", rest[end + 1 :]).strip():
                raise BadSetting(source, f"there is something behind the quote of {name}", line=first, key=name)
            found[name] = _unquoted(rest[0], rest[1:end])
        else:
            found[name] = _COMMENT.sub("", rest).strip()
    return found


def _end_of_quoted(text: str) -> int | None:
    """Where the quote that a text begins with is closed."""
    quote, at = text[0], 1
    while at < len(text):
        if text[at] == "\\" and quote == '"':
            at += 1
        elif text[at] == quote:
            return at
        at += 1
    return None


def _unquoted(quote: str, inner: str) -> str:
    if quote == "'":
        return inner
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[0]), inner)

"""Reads variables from a `.env` file. The environment takes precedence."""

import re
from collections.abc import Mapping
from pathlib import Path

from foveate.config.files import decode_text, display_path, read_bytes
from foveate.errors import BadSetting

ENV_FILE_NAME = ".env"
"""Looked up in the working folder."""

_MAX_BYTES = 1_000_000
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.-]*)\s*=[ \t]*(.*)", re.DOTALL)
_QUOTED = re.compile(r"'[^']*+'|\"[^\"\\]*+(?:\\.[^\"\\]*+)*+\"", re.DOTALL)
_COMMENT = re.compile(r"(^|\s)#.*")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$"}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
# Security: a `.env` file in an untrusted folder must not set programs, libraries, proxies or CA certificates.
# Only Foveate's own variables and credentials are read.
_OWN_VARIABLES = frozenset(
    ("TIME_AWARENESS", "TIME_FORMAT", "DEADLINE_WARNING_MINUTES", "ANTHROPIC_CACHE_BETA", "NO_COLOR")
)
_OWN_PREFIXES = ("FOVEATE_", "CONTEXT_")
_REGIONS = frozenset(("AWS_REGION", "AWS_DEFAULT_REGION"))
_CREDENTIAL_WORDS = frozenset(("KEY", "APIKEY", "TOKEN", "SECRET"))
_LOCATION_WORDS = frozenset(("FILE", "PATH", "DIR", "URL", "URI"))


def _is_allowed(name: str) -> bool:
    """True for `OPENAI_API_KEY`, False for `AWS_WEB_IDENTITY_TOKEN_FILE`."""
    if name in _OWN_VARIABLES or name in _REGIONS or name.startswith(_OWN_PREFIXES):
        return True
    _, *words = name.upper().split("_")
    return not _CREDENTIAL_WORDS.isdisjoint(words) and words[-1] not in _LOCATION_WORDS


def load_env_file(environment: Mapping[str, str], path: Path) -> dict[str, str]:
    """Return the environment with the variables that a file adds; a missing file adds none.

    Only Foveate's own variables and credentials are read.

    Raises:
        UnreadableInput: the file exceeds 1 MB, or is not UTF-8.
        BadSetting: a line cannot be parsed; names the line, but never its text.
    """
    if not path.is_file():  # `.env` may be a folder, such as a virtual environment
        return dict(environment)
    source = display_path(path)
    variables = parse_env(decode_text(read_bytes(path, limit_bytes=_MAX_BYTES), source), source)
    return {**{name: text for name, text in variables.items() if _is_allowed(name)}, **environment}


def parse_env(text: str, source: str) -> dict[str, str]:
    r"""Parse the variables in a `.env` file; the last one of a name counts.

    Each line is `NAME=value`, with or without `export`. A value in double quotes may span lines and contain
    `\n`, a value in single quotes is literal, and an unquoted value ends at a `#` after a space.

    Raises:
        BadSetting: a line is not an assignment. The error omits its text, which may contain a key.
    """
    text = "\n".join(line.rstrip("\r") for line in text.split("\n"))
    found: dict[str, str] = {}
    start, number = 0, 1
    while start < len(text):
        end = _end_of_line(text, start)
        line = text[start:end]
        if line.strip() and not line.lstrip().startswith("#"):
            assignment = _ASSIGNMENT.fullmatch(line)
            if assignment is None:
                raise BadSetting(source, "expected NAME=value", line=number)
            name, rest = assignment[1], assignment[2]
            if rest.startswith(("'", '"')):
                quoted = _QUOTED.match(text, start + assignment.start(2))
                if quoted is None:
                    raise BadSetting(source, f"the value of {name} has no closing quote", line=number, key=name)
                end = _end_of_line(text, quoted.end())
                if _COMMENT.sub("", text[quoted.end() : end]).strip():
                    reason = f"unexpected text after the closing quote of {name}"
                    raise BadSetting(source, reason, line=number, key=name)
                found[name] = _unquote(rest[0], quoted[0][1:-1])
            else:
                found[name] = _COMMENT.sub("", rest).strip()
        number += text.count("\n", start, end + 1)
        start = end + 1
    return found


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _unquote(quote: str, inner: str) -> str:
    if quote == "'":
        return inner
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[0]), inner)

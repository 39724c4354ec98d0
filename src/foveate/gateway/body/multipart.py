"""Fields of a multipart/form-data body (RFC 7578), found in one pass over it."""

import re
from collections.abc import Iterator

from foveate.errors import MalformedRequest

_FORM = "multipart/form-data"
# Far more than any client sends; they bound the work that a form can cause.
_MAX_PARTS = 10_000
_MAX_HEADER_BYTES = 16 * 1024
# One call of bytes.find keeps all threads waiting, so a large body is searched by pieces of this size.
_WINDOW_BYTES = 1024 * 1024

# A parameter of a header (RFC 9110, 5.6.6). Possessive: what one attempt has read, no other reads again.
_PARAMETER = re.compile(
    r';[ \t]*+(?P<name>[^\s;="]++)[ \t]*+=[ \t]*+(?:"(?P<quoted>(?:[^"\\]|\\.)*+)"|(?P<token>[^\s;"]*+))'
)
_QUOTED_PAIR = re.compile(r"\\(.)")
_DISPOSITION = re.compile(rb"^content-disposition[ \t]*+:[ \t]*+(form-data[ \t]*+;[^\r\n]*+)", re.I | re.M)
# Behind a delimiter (RFC 2046, 5.1.1): `--` if it is the last one, blanks, and the end of the line.
_DELIMITER_END = re.compile(rb"(?P<last>--)?+[ \t]*+(?:(?=\r\n)|\Z)")


def form_boundary(content_type: str) -> bytes | None:
    """The boundary that the content type of a form names; None if it is not a form or names none.

    Raises:
        MalformedRequest: it names two.
    """
    if content_type.partition(";")[0].strip().lower() != _FORM:
        return None
    boundary = _parameter(content_type, "boundary")
    return boundary.encode("latin-1") if boundary else None


def form_field(body: bytes, boundary: bytes, name: str) -> str | None:
    """The value of a field; None if the form does not have it.

    Raises:
        MalformedRequest: it has the field twice, and servers differ in which of them they read. Or it has more
            parts, or longer part headers, than any client sends.
    """
    found = [
        (start, end)
        for headers, start, end in _parts(body, boundary)
        for disposition in _DISPOSITION.findall(headers)
        if _parameter(disposition.decode("utf-8", "replace"), "name") == name
    ]
    if len(found) > 1:
        raise MalformedRequest(f"the form has the field {name!r} {len(found)} times: send it once")
    return body[slice(*found[0])].decode("utf-8", "replace") if found else None


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The headers of each part, and where its content starts and ends."""
    for start, end in _between_delimiters(body, boundary):
        # The blank line may directly follow the delimiter: a part without headers.
        blank_line = body.find(b"\r\n\r\n", start, min(end, start + _MAX_HEADER_BYTES))
        if blank_line >= 0:
            yield body[start:blank_line], blank_line + 4, end
        elif end - start > _MAX_HEADER_BYTES:
            raise MalformedRequest(f"a part of the form has headers of more than {_MAX_HEADER_BYTES:,} bytes")


def _between_delimiters(body: bytes, boundary: bytes) -> Iterator[tuple[int, int]]:
    delimiter = b"\r\n--" + boundary
    start: int | None = None
    # The first delimiter may lack its line break, as if that stood before the body.
    at = -2 if body.startswith(delimiter[2:]) else _find(body, delimiter, 0)
    for _ in range(_MAX_PARTS):
        if at == -1:
            break
        ended = _DELIMITER_END.match(body, at + len(delimiter))
        if ended is not None:
            if start is not None:
                yield start, at
            if ended["last"]:
                return
            start = ended.end()
        at = _find(body, delimiter, at + len(delimiter))
    else:
        raise MalformedRequest(f"the form has more than {_MAX_PARTS:,} parts")
    if start is not None:  # cut off before the last delimiter
        yield start, len(body)


def _find(body: bytes, needle: bytes, start: int) -> int:
    """As `body.find(needle, start)`, with pauses in which other threads can run."""
    for at in range(start, len(body), _WINDOW_BYTES):
        found = body.find(needle, at, at + _WINDOW_BYTES + len(needle) - 1)
        if found >= 0:
            return found
    return -1


def _parameter(header: str, name: str) -> str | None:
    """The value of a parameter of a header, whose names are case-insensitive.

    Raises:
        MalformedRequest: the header has it twice.
    """
    found = [match for match in _PARAMETER.finditer(header) if match["name"].lower() == name]
    if len(found) > 1:
        raise MalformedRequest(f"a header of the form has the parameter {name!r} twice: {header[:200]!r}")
    if not found:
        return None
    quoted = found[0]["quoted"]
    return found[0]["token"] if quoted is None else _QUOTED_PAIR.sub(r"\1", quoted)

"""The model that a request names in its path, a form (RFC 7578) or JSON: how it is found and replaced."""

import re
from collections.abc import Iterator
from urllib.parse import quote, unquote

import msgspec

from foveate import formats
from foveate.engine.request import check_model_name
from foveate.errors import DuplicateKey, FoveateError, MalformedRequest, RequestLimitExceeded
from foveate.formats.json_text.duplicate_keys import check_unique_keys
from foveate.formats.json_text.parse import parse_fields, parse_json
from foveate.formats.request_limits import RequestLimits
from foveate.gateway.endpoints import Operation
from foveate.gateway.request import ClientRequest
from foveate.model import Format, SetParameter

_FORM = "multipart/form-data"
# Far more than any client sends. These bound the work that a form can cause.
_MAX_PARTS = 10_000
_MAX_HEADER_BYTES = 16 * 1024
# One call of bytes.find blocks all threads, so a large body is searched in pieces of this size.
_WINDOW_BYTES = 1024 * 1024

# Path segments that precede the name of a model. Other segments may be equal to it: a project, or an operation.
_MODEL_COLLECTIONS = frozenset(("deployments", "dynamic", "model", "models", "tunedModels"))

# A parameter of a header (RFC 9110, 5.6.6). Possessive quantifiers prevent backtracking.
_PARAMETER = re.compile(
    r';[ \t]*+(?P<name>[^\s;="]++)[ \t]*+=[ \t]*+'
    r'(?:"(?P<quoted>[^"\\]*+(?:\\.[^"\\]*+)*+)"|(?P<token>[^\s;"]*+))'
)
_QUOTED_PAIR = re.compile(r"\\(.)")
_DISPOSITION = re.compile(rb"^content-disposition[ \t]*+:[ \t]*+(form-data[ \t]*+;[^\r\n]*+)", re.I | re.M)
# After a delimiter (RFC 2046, 5.1.1): `--` if it is the last one, blanks, and the end of the line.
_DELIMITER_END = re.compile(rb"(?>(?P<last>--)?)[ \t]*+(?:(?=\r\n)|\Z)")


def form_boundary(content_type: str) -> bytes | None:
    """Return the boundary of a form; None if it is not a form or has no boundary.

    Raises:
        MalformedRequest: the content type has two.
    """
    if content_type.partition(";")[0].strip().lower() != _FORM:
        return None
    boundary = _parameter(content_type, "boundary")
    return boundary.encode("latin-1") if boundary else None


def form_field(body: bytes, boundary: bytes, name: str) -> str | None:
    """Return the value of a field; None if the form does not have it.

    Raises:
        MalformedRequest: the form has the field twice (servers differ in which one they read), too many
            parts, or too long part headers.
    """
    span = _find_field(body, boundary, name)
    return None if span is None else body[slice(*span)].decode("utf-8", "replace")


def _find_field(body: bytes, boundary: bytes, name: str) -> tuple[int, int] | None:
    values = [
        (start, end)
        for headers, start, end in _parts(body, boundary)
        for disposition in _DISPOSITION.findall(headers)
        if _parameter(disposition.decode("utf-8", "replace"), "name") == name
    ]
    if len(values) > 1:
        raise MalformedRequest(f"the form has the field {name!r} {len(values)} times: send it once")
    return values[0] if values else None


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the headers of each part, and the start and end of its content."""
    for start, end in _between_delimiters(body, boundary):
        # The blank line may directly follow the delimiter: a part without headers.
        blank_line = body.find(b"\r\n\r\n", start, min(end, start + _MAX_HEADER_BYTES))
        if blank_line >= 0:
            yield body[start:blank_line], blank_line + 4, end
        elif end - start > _MAX_HEADER_BYTES:
            raise MalformedRequest(f"a part of the form has more than {_MAX_HEADER_BYTES:,} bytes of headers")


def _between_delimiters(body: bytes, boundary: bytes) -> Iterator[tuple[int, int]]:
    delimiter = b"\r\n--" + boundary
    start: int | None = None
    # The first delimiter may lack its line break.
    at = -2 if body.startswith(delimiter[2:]) else _find(body, delimiter, 0)
    for _ in range(_MAX_PARTS):
        if at == -1:
            break
        end = _DELIMITER_END.match(body, at + len(delimiter))
        if end is not None:
            if start is not None:
                yield start, at
            if end["last"]:
                return
            start = end.end()
        at = _find(body, delimiter, at + len(delimiter))
    else:
        raise MalformedRequest(f"the form has more than {_MAX_PARTS:,} parts")
    if start is not None:  # the last delimiter is missing
        yield start, len(body)


def _find(body: bytes, needle: bytes, start: int) -> int:
    """Like `body.find(needle, start)`, but lets other threads run in between."""
    for at in range(start, len(body), _WINDOW_BYTES):
        position = body.find(needle, at, at + _WINDOW_BYTES + len(needle) - 1)
        if position >= 0:
            return position
    return -1


def _parameter(header: str, name: str) -> str | None:
    """Return the value of a header parameter. Names are case-insensitive.

    Raises:
        MalformedRequest: the header has it twice.
    """
    matches = [match for match in _PARAMETER.finditer(header) if match["name"].lower() == name]
    if len(matches) > 1:
        raise MalformedRequest(f"a header of the form has the parameter {name!r} twice: {header[:200]!r}")
    if not matches:
        return None
    quoted = matches[0]["quoted"]
    return matches[0]["token"] if quoted is None else _QUOTED_PAIR.sub(r"\1", quoted)


def read_model(body: bytes) -> str:
    """Return the model that a JSON body names; empty if it names none.

    Raises:
        MalformedRequest: the name is too long.
    """
    try:
        model = parse_json(parse_fields(body).get("model"))
    except MalformedRequest:
        return ""
    if not isinstance(model, str):
        return ""
    check_model_name(model)
    return model


def _read_model_strictly(body: bytes) -> str:
    """Return the model of a body that nothing else checks for duplicate keys.

    Raises:
        DuplicateKey: an object has the same key twice.
    """
    try:
        check_unique_keys(body, parse_fields(body))
    except DuplicateKey:
        raise
    except MalformedRequest:
        return ""
    return read_model(body)


def find_requested_model(request: ClientRequest, body: bytes) -> str:
    """Return the model that any request names in its path, form or JSON; empty if it names none.

    Raises:
        DuplicateKey: a JSON object has the same key twice.
        MalformedRequest: a form names it twice or exceeds the limits, or the name is too long.
    """
    if request.endpoint.model:
        return request.endpoint.model
    if request.endpoint.operation is Operation.LIST_MODELS:
        return unquote(request.raw_path.rpartition("/models")[2].strip("/"))
    if not body:
        return ""
    boundary = form_boundary(request.headers.get("content-type", ""))
    if boundary is not None:
        name = (form_field(body, boundary, "model") or "").strip()
        check_model_name(name)
        return name
    return _read_model_strictly(body)


def replace_path_model(request: ClientRequest, model: str) -> ClientRequest:
    """Replace the model in the path.

    Raises:
        MalformedRequest: the path does not contain the model.
    """
    if request.endpoint.operation is Operation.LIST_MODELS:
        root = request.raw_path.rpartition("/models")[0]
        return msgspec.structs.replace(request, raw_path=f"{root}/models/{quote(model, safe='')}")
    segments = request.raw_path.split("/")
    previous = ""
    for at, segment in enumerate(segments):
        name, method = unquote(segment), ""
        if name.startswith(f"{request.endpoint.model}:"):  # Google: models/NAME:generateContent
            name, method = request.endpoint.model, name[len(request.endpoint.model) :]
        if previous in _MODEL_COLLECTIONS and name == request.endpoint.model:
            segments[at] = quote(model, safe="") + method
            return msgspec.structs.replace(request, raw_path="/".join(segments))
        previous = unquote(segment) or previous
    raise MalformedRequest(
        f"{request.path[:100]} does not contain the model's name, so it cannot be replaced by {model!r}"
    )


def replace_body_model(request: ClientRequest, body: bytes, model: str, limits: RequestLimits) -> bytes:
    """Replace the model that `find_requested_model` found in a form or JSON; return any other body unchanged.

    Raises:
        RequestLimitExceeded: it has too many messages, tools or levels.
    """
    boundary = form_boundary(request.headers.get("content-type", ""))
    if boundary is not None:
        span = _find_field(body, boundary, "model")
        return body if span is None else body[: span[0]] + model.encode() + body[span[1] :]
    edit = SetParameter(path=("model",), value=model, reason="the upstream's name of the model")
    try:
        return formats.apply_edits(formats.parse_request(body, Format.CHAT, limits=limits), (edit,))
    except RequestLimitExceeded:
        raise
    except FoveateError:
        return body

"""Finds the model that a request names, and replaces it with the upstream's name for it."""

from urllib.parse import quote, unquote

import msgspec

from foveate import formats
from foveate.engine.request import check_model_name
from foveate.errors import DuplicateKey, FoveateError, MalformedRequest, RequestLimitExceeded
from foveate.formats.json_text.duplicate_keys import check_unique_keys
from foveate.formats.json_text.parse import parse_fields, parse_json
from foveate.formats.request_limits import RequestLimits
from foveate.gateway.body.multipart import form_boundary, form_field
from foveate.gateway.endpoints import Operation
from foveate.gateway.request import ClientRequest
from foveate.model import Format, SetParameter


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
    segments = request.raw_path.split("/")
    for at, segment in enumerate(segments):
        name, method = unquote(segment), ""
        if name.startswith(f"{request.endpoint.model}:"):  # Google: models/NAME:generateContent
            name, method = request.endpoint.model, name[len(request.endpoint.model) :]
        if at and name == request.endpoint.model:
            segments[at] = quote(model, safe="") + method
            return msgspec.structs.replace(request, raw_path="/".join(segments))
    raise MalformedRequest(
        f"{request.path[:100]} does not contain the model's name, so it cannot be replaced by {model!r}"
    )


def replace_body_model(body: bytes, model: str, limits: RequestLimits) -> bytes:
    """Replace the model in a JSON body; return any other body unchanged.

    Raises:
        RequestLimitExceeded: it has too many messages, tools or levels.
    """
    edit = SetParameter(path=("model",), value=model, reason="the upstream's name of the model")
    try:
        return formats.apply_edits(formats.parse_request(body, Format.CHAT, limits=limits), (edit,))
    except RequestLimitExceeded:
        raise
    except FoveateError:
        return body

"""The model that a request names, and the same request with the name that it has elsewhere."""

from urllib.parse import quote, unquote

import msgspec

from foveate import wire
from foveate.engine.calls import check_model
from foveate.errors import DuplicateKey, FoveateError, MalformedRequest, RequestLimitExceeded
from foveate.gateway.asks import Ask
from foveate.gateway.doors import Asks
from foveate.gateway.multipart import form_boundary, form_field
from foveate.values import Format, SetParameter
from foveate.wire.body import fields, value
from foveate.wire.duplicate_keys import check_unique_keys
from foveate.wire.limits import RequestLimits


def model_in(body: bytes) -> str:
    """The model that a JSON body names; empty where it names none.

    Raises:
        MalformedRequest: the name is too long for one.
    """
    try:
        found = value(fields(body).get("model"))
    except MalformedRequest:
        return ""
    if not isinstance(found, str):
        return ""
    check_model(found)
    return found


def _checked_model_in(body: bytes) -> str:
    """The same of a body that nobody else checks for duplicate keys.

    Raises:
        DuplicateKey: one of its objects has the same key twice.
    """
    try:
        check_unique_keys(body, fields(body))
    except DuplicateKey:
        raise
    except MalformedRequest:
        return ""
    return model_in(body)


def model_of(ask: Ask, body: bytes) -> str:
    """The model that a request of any kind names, in its path, a form or JSON; empty where it names none.

    Raises:
        DuplicateKey: one of the JSON objects of the body has the same key twice.
        MalformedRequest: a form that names it twice, or is beyond what clients send; a name that is too long.
    """
    if ask.door.model:
        return ask.door.model
    if ask.door.asks is Asks.MODELS:
        return unquote(ask.raw_path.rpartition("/models")[2].strip("/"))
    if not body:
        return ""
    boundary = form_boundary(ask.headers.get("content-type", ""))
    if boundary is not None:
        name = (form_field(body, boundary, "model") or "").strip()
        check_model(name)
        return name
    return _checked_model_in(body)


def with_path_model(ask: Ask, model: str) -> Ask:
    """The same request for another model, of an API that names it in the path.

    Raises:
        MalformedRequest: the path does not show where the name stands.
    """
    segments = ask.raw_path.split("/")
    for at, segment in enumerate(segments):
        name, method = unquote(segment), ""
        if name.startswith(f"{ask.door.model}:"):  # Google's: models/NAME:generateContent
            name, method = ask.door.model, name[len(ask.door.model) :]
        if at and name == ask.door.model:
            segments[at] = quote(model, safe="") + method
            return msgspec.structs.replace(ask, raw_path="/".join(segments))
    raise MalformedRequest(f"no place for the model {model!r} in {ask.path[:100]}")


def renamed(body: bytes, model: str, limits: RequestLimits) -> bytes:
    """A JSON body with another name for its model; what is none stays as it is.

    Raises:
        RequestLimitExceeded: it has more messages, tools or levels than are read.
    """
    named = SetParameter(path=("model",), value=model, reason="its name at the upstream")
    try:
        return wire.write(wire.read(body, Format.CHAT, limits=limits), (named,))
    except RequestLimitExceeded:
        raise
    except FoveateError:
        return body

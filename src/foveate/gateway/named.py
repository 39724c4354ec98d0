"""The model that a request names, and the same request with the name that it has elsewhere."""

import re
from urllib.parse import unquote

from foveate import wire
from foveate.errors import DuplicateKey, FoveateError, MalformedRequest
from foveate.gateway.asks import Ask
from foveate.gateway.doors import Asks
from foveate.values import Format, SetParameter
from foveate.wire.body import fields, value
from foveate.wire.duplicate_keys import check_unique_keys

_FORM = "multipart/form-data"
# A field of a form (RFC 7578, 4.2), as files are sent with.
_FIELD = re.compile(rb'name="?model"?[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]*)\r\n', re.IGNORECASE)


def model_in(body: bytes) -> str:
    """The model that a JSON body names; empty where it names none."""
    try:
        found = value(fields(body).get("model"))
    except MalformedRequest:
        return ""
    return found if isinstance(found, str) else ""


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
    """
    if ask.door.asks is Asks.MODELS:
        return unquote(ask.raw_path.rpartition("/models")[2].strip("/"))
    if not body:
        return ""
    if ask.headers.get("content-type", "").lower().startswith(_FORM):
        found = _FIELD.search(body)
        return "" if found is None else found[1].decode("utf-8", "replace").strip()
    return _checked_model_in(body)


def renamed(body: bytes, model: str) -> bytes:
    """A JSON body with another name for its model; what is none stays as it is."""
    named = SetParameter(path=("model",), value=model, reason="its name at the upstream")
    try:
        return wire.write(wire.read(body, Format.CHAT), (named,))
    except FoveateError:
        return body

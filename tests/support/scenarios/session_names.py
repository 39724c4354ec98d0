"""Ids of sessions that clients name with `x-foveate-session`."""

from foveate.gateway.auth.callers import hash_name_scope
from foveate.gateway.request import parse_request
from foveate.session.client_names import derive_named_session_id


def named_session_id(agent: str, name: str, *, key: str) -> str:
    """Return the id of an agent's session that a client with this key names."""
    headers = [(b"x-api-key", key.encode())]
    scope = {"method": "POST", "path": "/v1/messages", "query_string": b"", "headers": headers}
    return derive_named_session_id(agent, name, hash_name_scope(parse_request(scope)))

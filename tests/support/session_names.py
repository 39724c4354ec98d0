"""Ids of sessions that clients name by `x-foveate-session`."""

from foveate.gateway.asks import ask_of
from foveate.gateway.callers import name_scope
from foveate.session.ids import named_id


def id_of_name(agent: str, name: str, *, key: str) -> str:
    """Return the id of an agent's session that a client with this key names so."""
    headers = [(b"x-api-key", key.encode())]
    scope = {"method": "POST", "path": "/v1/messages", "query_string": b"", "headers": headers}
    return named_id(agent, name, name_scope(ask_of(scope)))

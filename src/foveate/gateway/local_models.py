"""The list of models, with the one on this machine in it."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from foveate.config.overriding import LOCAL
from foveate.gateway.asks import Receive, Scope, Send, ask_of
from foveate.gateway.doors import Family
from foveate.gateway.headers import KEYS
from foveate.gateway.traffic import UNSEEN, Traffic, seen

App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LIST = "/v1/models"
# Of no day in particular: the weights are older than whoever asks.
_MADE = 1_730_419_200
_MADE_AS_TEXT = "2024-11-01T00:00:00Z"


def entry(family: Family) -> dict[str, object]:
    """How the model on this machine is listed to clients of a family."""
    if family is Family.ANTHROPIC:
        return {"type": "model", "id": LOCAL, "display_name": "on this machine", "created_at": _MADE_AS_TEXT}
    return {"id": LOCAL, "object": "model", "created": _MADE, "owned_by": "foveate"}


def listed(family: Family) -> dict[str, object]:
    """A list with only that model in it."""
    if family is Family.ANTHROPIC:
        return {"data": [entry(family)], "has_more": False, "first_id": LOCAL, "last_id": LOCAL}
    return {"object": "list", "data": [entry(family)]}


def with_local(body: bytes, family: Family) -> bytes:
    """A provider's list with that model as its first; what is no list stays as it is."""
    try:
        said = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body
    if not isinstance(said, dict) or not isinstance(said.get("data"), list):
        return body
    said["data"] = [entry(family), *said["data"]]
    if "first_id" in said:
        said["first_id"] = LOCAL
    return msgspec.json.encode(said)


class LocalModels:
    """An app that has the model on this machine in the list of models."""

    def __init__(self, app: App, traffic: Traffic = UNSEEN) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and scope["path"].rstrip("/") == _LIST:
            await self._listed(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _listed(self, scope: Scope, receive: Receive, send: Send) -> None:
        family = ask_of(scope).door.family
        if scope["method"] == "GET" and not any(name in KEYS for name, _ in scope["headers"]):
            # Who shows no key has no other models.
            with seen(scope, send, self._traffic) as client:
                await client.said(200, msgspec.json.encode(listed(family)), [_JSON])
            return
        headers = [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]
        head: MutableMapping[str, Any] = {}
        pieces: list[bytes] = []

        async def gather(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                head.update(message)
                return
            pieces.append(message.get("body", b""))
            if not message.get("more_body"):
                body = b"".join(pieces)
                is_list = head["status"] == 200 and scope["method"] == "GET"
                kept = [pair for pair in head["headers"] if pair[0].lower() != b"content-length"]
                await _answer(send, head["status"], kept, with_local(body, family) if is_list else body)

        await self._app({**scope, "headers": [*headers, (b"accept-encoding", b"identity")]}, receive, gather)


_JSON = (b"content-type", b"application/json")


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    size = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, size]})
    await send({"type": "http.response.body", "body": body})

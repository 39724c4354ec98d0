"""Adds the local model to the list of models."""

from collections.abc import MutableMapping
from typing import Any

import msgspec

from foveate.config.overrides import LOCAL_UPSTREAM
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.headers import KEY_HEADERS
from foveate.gateway.observability.request_observer import (
    NO_REQUEST_OBSERVER,
    RequestObserver,
    observe_response,
)
from foveate.gateway.request import AsgiApp, Receive, Scope, Send, parse_request

_LIST_PATH = "/v1/models"
# An arbitrary date; the weights are older.
_CREATED_AT = 1_730_419_200
_CREATED_AT_TEXT = "2024-11-01T00:00:00Z"


def build_model_entry(family: ApiFamily) -> dict[str, object]:
    """Return the entry of the local model in the format of a family."""
    if family is ApiFamily.ANTHROPIC:
        return {
            "type": "model",
            "id": LOCAL_UPSTREAM,
            "display_name": "on this machine",
            "created_at": _CREATED_AT_TEXT,
        }
    return {"id": LOCAL_UPSTREAM, "object": "model", "created": _CREATED_AT, "owned_by": "foveate"}


def build_model_list(family: ApiFamily) -> dict[str, object]:
    """Return a list with only the local model."""
    if family is ApiFamily.ANTHROPIC:
        return {
            "data": [build_model_entry(family)],
            "has_more": False,
            "first_id": LOCAL_UPSTREAM,
            "last_id": LOCAL_UPSTREAM,
        }
    return {"object": "list", "data": [build_model_entry(family)]}


def add_local_model(body: bytes, family: ApiFamily) -> bytes:
    """Add the local model as the first of a provider's list; return anything else unchanged."""
    try:
        model_list = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body
    if not isinstance(model_list, dict) or not isinstance(model_list.get("data"), list):
        return body
    model_list["data"] = [build_model_entry(family), *model_list["data"]]
    if "first_id" in model_list:
        model_list["first_id"] = LOCAL_UPSTREAM
    return msgspec.json.encode(model_list)


class LocalModelMiddleware:
    """ASGI middleware that adds the local model to `/v1/models`."""

    def __init__(self, app: AsgiApp, observer: RequestObserver = NO_REQUEST_OBSERVER) -> None:
        self._app = app
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].rstrip("/") == _LIST_PATH:
            await self._serve_list(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _serve_list(self, scope: Scope, receive: Receive, send: Send) -> None:
        family = parse_request(scope).endpoint.family
        if scope["method"] == "GET" and not any(name in KEY_HEADERS for name, _ in scope["headers"]):
            # Without a key, no other models can be used.
            with observe_response(scope, send, self._observer) as response:
                await response.send_response(200, msgspec.json.encode(build_model_list(family)), [_JSON])
            return
        headers = [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]
        head: MutableMapping[str, Any] = {}
        pieces: list[bytes] = []

        async def collect(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                head.update(message)
                return
            pieces.append(message.get("body", b""))
            if not message.get("more_body"):
                body = b"".join(pieces)
                is_list = head["status"] == 200 and scope["method"] == "GET"
                response_headers = [pair for pair in head["headers"] if pair[0].lower() != b"content-length"]
                await _send_response(
                    send, head["status"], response_headers, add_local_model(body, family) if is_list else body
                )

        await self._app({**scope, "headers": [*headers, (b"accept-encoding", b"identity")]}, receive, collect)


_JSON = (b"content-type", b"application/json")


async def _send_response(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    size = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, size]})
    await send({"type": "http.response.body", "body": body})

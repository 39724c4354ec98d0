"""JSON over HTTP with one time-out, and every failure translated into the tree of `errors`."""

import asyncio
import os
from collections.abc import Mapping
from importlib import import_module
from io import BytesIO
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from foveate.errors import UpstreamGarbled, UpstreamStatus, UpstreamTimeout, UpstreamUnreachable

if TYPE_CHECKING:
    import aiohttp

DEFAULT_TIMEOUT_SECONDS = 2.0

# A reply is read no further than this: the token ids of a megabyte of text are two.
_LONGEST_REPLY_BYTES = 64 * 1024 * 1024
_DETAIL_CHARS = 200

Reply = dict[str, msgspec.Raw]
_REPLY = msgspec.json.Decoder(Reply)


class Client:
    """A pool of connections, opened at the first call and closed with `async with` or `close`."""

    def __init__(self, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        self.timeout_seconds = timeout_seconds
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Client":
        """The client itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all connections."""
        await self.close()

    async def close(self) -> None:
        """Close all connections; the next call opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def post_json(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
        """What `url` answers to `body`, both JSON: the fields of an object, each still in its bytes.

        A list of a million token ids is read faster than it is made into a million numbers.

        Raises:
            UpstreamUnreachable: no connection.
            UpstreamTimeout: no whole answer within `timeout_seconds`.
            UpstreamStatus: any status but 200 to 299; redirects are not followed.
            UpstreamGarbled: the answer is no JSON object, or longer than anything that could be meant.
        """
        if self._session is None:  # importing it takes half a second, which the event loop has not got
            await asyncio.to_thread(import_module, "aiohttp")
        import aiohttp

        # A stream is sent piece by piece; bytes would be sent at once, and hold up the event loop.
        sent = {"content-type": "application/json", **(headers or {})}
        try:
            async with (
                asyncio.timeout(self.timeout_seconds),
                self._opened().post(url, data=BytesIO(body), headers=sent, allow_redirects=False) as response,
            ):
                reply = await _read(response, url)
        except TimeoutError:
            raise UpstreamTimeout(url, self.timeout_seconds) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UpstreamUnreachable(url, _reason(error)) from None
        if not 200 <= response.status < 300:
            raise UpstreamStatus(url, response.status, _one_line(reply.decode("utf-8", "replace")))
        try:
            return _REPLY.decode(reply)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise UpstreamGarbled(url, "the answer is not a JSON object") from None

    def _opened(self) -> "aiohttp.ClientSession":
        import aiohttp

        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession()
        return self._session


async def _read(response: "aiohttp.ClientResponse", url: str) -> bytes:
    reply = bytearray()
    if (response.content_length or 0) > _LONGEST_REPLY_BYTES:
        raise _too_long(url)
    async for chunk in response.content.iter_chunked(256 * 1024):
        reply += chunk
        if len(reply) > _LONGEST_REPLY_BYTES:
            raise _too_long(url)
    return bytes(reply)


def _too_long(url: str) -> UpstreamGarbled:
    return UpstreamGarbled(url, f"the answer is longer than {_LONGEST_REPLY_BYTES} bytes")


def _reason(error: Exception) -> str:
    """Why there was no connection, in the system's words where they are to be had."""
    import aiohttp

    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and cause.errno is not None:
        said = os.strerror(cause.errno) if cause.errno > 0 else cause.strerror
        return f"no connection ({said})"
    return _one_line(str(error) or type(error).__name__)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_DETAIL_CHARS]

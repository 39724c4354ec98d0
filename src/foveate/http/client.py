"""JSON over HTTP with one time-out, and every failure translated into the tree of `errors`."""

import asyncio
from collections.abc import Mapping
from types import TracebackType

import msgspec

from foveate.errors import UpstreamGarbled, UpstreamStatus, UpstreamTimeout, UpstreamUnreachable
from foveate.http.pool import ConnectionPool, Timeouts, parse_url, read_body

DEFAULT_TIMEOUT_SECONDS = 2.0

# A reply is read no further than this: the token ids of a megabyte of text are two.
_MAX_REPLY_BYTES = 64 * 1024 * 1024
_DETAIL_CHARS = 200

JsonReply = dict[str, msgspec.Raw]
_REPLY_DECODER = msgspec.json.Decoder(JsonReply)


class JsonClient:
    """A pool of connections, opened at the first call and closed with `async with` or `close`."""

    def __init__(self, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS, reuse: bool = True) -> None:
        """Without `reuse`, each call has a connection of its own, which is closed after it."""
        self.timeout_seconds = timeout_seconds
        self._reuse = reuse
        self._pool = ConnectionPool()

    def with_reuse(self, reuse: bool) -> "JsonClient":
        """Return this client, or one with the same time-out that never reuses a connection."""
        return self if reuse else JsonClient(timeout_seconds=self.timeout_seconds, reuse=False)

    async def __aenter__(self) -> "JsonClient":
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
        await self._pool.close()

    async def post_json(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> JsonReply:
        """What `url` answers to `body`, both JSON: the fields of an object, each still in its bytes.

        A list of a million token ids is read faster than it is made into a million numbers.

        Raises:
            UpstreamUnreachable: no connection.
            UpstreamTimeout: no whole answer within `timeout_seconds`.
            UpstreamStatus: any status but 200 to 299; redirects are not followed.
            UpstreamGarbled: the answer is no JSON object, or longer than anything that could be meant.
        """
        seconds = self.timeout_seconds
        timeouts = Timeouts(connect_seconds=seconds, idle_seconds=seconds, total_seconds=seconds)
        encoded_headers = _encode_headers(
            {"content-type": "application/json", "accept": "application/json", **(headers or {})}, url
        )
        try:
            async with (
                asyncio.timeout(seconds),
                self._pool.stream(
                    "POST", parse_url(url), encoded_headers, body, timeouts=timeouts, reuse=self._reuse
                ) as response,
            ):
                reply = await read_body(response, max_bytes=_MAX_REPLY_BYTES, url=url)
        except TimeoutError:
            raise UpstreamTimeout(url, seconds) from None
        if not 200 <= response.status < 300:
            raise UpstreamStatus(url, response.status, _shorten_to_line(reply.decode("utf-8", "replace")))
        try:
            return _REPLY_DECODER.decode(reply)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise UpstreamGarbled(url, "the answer is not a JSON object") from None


def _encode_headers(headers: Mapping[str, str], url: str) -> list[tuple[bytes, bytes]]:
    try:
        return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
    except UnicodeEncodeError as error:
        raise UpstreamUnreachable(url, f"a header cannot be sent ({error.reason})") from None


def _shorten_to_line(text: str) -> str:
    return " ".join(text.split())[:_DETAIL_CHARS]

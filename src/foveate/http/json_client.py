"""JSON over HTTP with one timeout. Every failure becomes an error of `foveate.errors`."""

import asyncio
from collections.abc import Mapping
from types import TracebackType

import msgspec

from foveate.errors import UpstreamGarbled, UpstreamStatus, UpstreamTimeout, UpstreamUnreachable
from foveate.http.pool import ConnectionPool, Timeouts, parse_url, read_body
from foveate.http.proxies import ProxyRules

DEFAULT_TIMEOUT_SECONDS = 2.0

# Longer replies are rejected. The token ids of a megabyte of text take two megabytes.
_MAX_REPLY_BYTES = 64 * 1024 * 1024
_DETAIL_CHARS = 200

JsonReply = dict[str, msgspec.Raw]
_REPLY_DECODER = msgspec.json.Decoder(JsonReply)


class JsonClient:
    """Close it with `async with` or `close`."""

    def __init__(
        self,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        reuse: bool = True,
        proxies: ProxyRules | None = None,
    ) -> None:
        """Create a client. Without `reuse`, each call has its own connection, which is closed afterwards.

        `proxies` are by default those of the environment.
        """
        self.timeout_seconds = timeout_seconds
        self._reuse = reuse
        self._proxies = proxies
        self._pool = ConnectionPool(proxies=proxies)

    def with_reuse(self, reuse: bool) -> "JsonClient":
        """Return this client, or one with the same timeout that never reuses a connection."""
        if reuse:
            return self
        return JsonClient(timeout_seconds=self.timeout_seconds, reuse=False, proxies=self._proxies)

    async def __aenter__(self) -> "JsonClient":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """The next call opens new connections."""
        await self._pool.close()

    async def post_json(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> JsonReply:
        """Post JSON and return the fields of the response, each as bytes.

        Callers parse only the fields they need: a list can have a million token ids.

        Raises:
            UpstreamUnreachable: no connection.
            UpstreamTimeout: no complete response within `timeout_seconds`.
            UpstreamStatus: any status but 200 to 299; redirects are not followed.
            UpstreamGarbled: the response is not a JSON object, or too long.
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
            raise UpstreamGarbled(url, "the response is not a JSON object") from None


def _encode_headers(headers: Mapping[str, str], url: str) -> list[tuple[bytes, bytes]]:
    try:
        return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
    except UnicodeEncodeError as error:
        raise UpstreamUnreachable(url, f"a header contains invalid characters ({error.reason})") from None


def _shorten_to_line(text: str) -> str:
    return " ".join(text.split())[:_DETAIL_CHARS]

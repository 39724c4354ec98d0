"""HTTP as the gateway reads it: uvicorn's own protocol, that stays with HTTP/1.1 and has a limit for heads."""

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from foveate.gateway.headers import OWN

MOST_HEAD_BYTES = 256 * 1024

# A request to go on in another protocol may be overlooked (RFC 9110, 7.8), but the parser drops the body of one
# that asks for it. Java's own client asks with every request to an http address.
_UPGRADE = re.compile(rb"(?<=\r\n)(?=upgrade[ \t]*:)", re.IGNORECASE)


class PlainHttp(HttpToolsProtocol):
    """Reads requests from one connection."""

    def __init__(self, *given: Any, **named: Any) -> None:
        """As uvicorn makes it."""
        super().__init__(*given, **named)
        self._is_in_head = True
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection begins, with a head."""
        super().connection_made(transport)
        self._is_in_head = True

    def data_received(self, data: bytes) -> None:
        """Some bytes have come."""
        if not self._is_in_head:
            super().data_received(data)
            return
        end = data.find(b"\r\n\r\n")
        head = data if end < 0 else data[:end]
        if b"upgrade" in head.lower():
            data = _UPGRADE.sub(OWN, head) + data[len(head) :]
        super().data_received(data)
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"The head of the request has more than {MOST_HEAD_BYTES} bytes.")

    def on_headers_complete(self) -> None:
        """The body comes next."""
        self._is_in_head = False
        self._head_bytes = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next head comes next."""
        self._is_in_head = True
        super().on_message_complete()

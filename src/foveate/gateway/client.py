"""What a client gets: an answer as it comes, or an error as its provider would put it."""

from collections.abc import Awaitable, Sequence

from foveate.engine.exchange import Exchange
from foveate.gateway.asks import REQUEST_ID, USUAL_AGENT, Ask, Send
from foveate.gateway.counting import COUNT
from foveate.gateway.headers import brought_back
from foveate.gateway.refusing import SHOULD_RETRY
from foveate.upstream.pool import Answer
from foveate.values import Format
from foveate.wire.refusals import Refusal, error_body

_NO_CONTENT = 204
_ID = REQUEST_ID.encode()
_ERROR_ID = {Format.ANTHROPIC: b"request-id"}


class Client:
    """The way back to whoever asked. Once an answer has begun, it can only go on or break off."""

    def __init__(self, ask: Ask, send: Send) -> None:
        self._ask = ask
        self.spoken = ask.error_format
        self._send = send
        self.has_begun = self.has_ended = False
        # What is told of it at its end. `refused` is the code of an error of our own, `reason` what it says.
        self.agent = USUAL_AGENT
        self.provider = ""
        self.exchange: Exchange | None = None
        self.came_at = 0.0
        self.status = self.received_bytes = self.sent_bytes = 0
        self.refused = self.reason = ""

    def begin(self, answer: Answer, *, is_changed: bool) -> Awaitable[None]:
        """The head of a provider's answer, and the id under which the log has it."""
        # A length on a response without a body makes some clients wait for one (RFC 9110, 8.6).
        headers = brought_back(answer.headers, is_changed=is_changed or answer.status == _NO_CONTENT)
        headers.append((_ID, self._ask.id.encode()))
        return self._start(answer.status, headers)

    def piece(self, piece: bytes) -> Awaitable[None]:
        """A piece of its body."""
        self.sent_bytes += len(piece)
        return self._send({"type": "http.response.body", "body": piece, "more_body": True})

    def end(self, rest: bytes = b"") -> Awaitable[None]:
        """The last piece of it."""
        self.sent_bytes += len(rest)
        self.has_ended = True
        return self._send({"type": "http.response.body", "body": rest})

    async def counted(self, body: bytes, sureness: str) -> None:
        """A count that was made here, but for its end; a header says how sure it is."""
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (_ID, self._ask.id.encode()),
            (COUNT.encode(), sureness.encode()),
        ]
        await self._start(200, headers)
        await self.piece(body)

    async def said(self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """An answer of the gateway's own, whole."""
        size = [] if status == _NO_CONTENT else [(b"content-length", str(len(body)).encode())]
        await self._start(status, [*headers, *size, (_ID, self._ask.id.encode())])
        await self.end(body)

    async def refuse(
        self, refusal: Refusal, *, retry: bool, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """An error of the gateway's own, where no answer has begun yet."""
        told = [
            (b"content-type", b"application/json"),
            (_ERROR_ID.get(self.spoken, b"x-request-id"), self._ask.id.encode()),
            *headers,
        ]
        if self.spoken is Format.BEDROCK:  # where AWS's clients look for the kind of an error
            told.append((b"x-amzn-errortype", refusal.kind.encode()))
        if not retry:
            told.append((SHOULD_RETRY.encode(), b"false"))
        await self.said(refusal.status, error_body(self.spoken, refusal, self._ask.id), told)

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> Awaitable[None]:
        self.has_begun = True
        self.status = status
        return self._send({"type": "http.response.start", "status": status, "headers": headers})

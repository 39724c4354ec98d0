"""A session that grows: each turn is counted once for each model that asks."""

from collections.abc import Mapping
from typing import Any

from foveate import wire
from foveate.errors import MalformedRequest
from foveate.tokens.bodies import with_model
from foveate.tokens.counter import RequestCounter
from foveate.tokens.families import counter_for
from foveate.tokens.opening import Opening
from foveate.tokens.tally import EMPTY, Tally
from foveate.values import Message, Request, TokenCount
from foveate.wire.body import TOO_DEEP, to_bytes

# A session that went from model to model forgets what the first ones counted.
_KEPT_MODELS = 4


class Conversation:
    """A request whose messages are added one by one.

    Counting after each new turn costs what the new turn costs, however long the session is. Counts are kept per
    model, raw, so that switching to another model and back never reads a stale one.
    """

    def __init__(self, body: Mapping[str, Any] | str | bytes) -> None:
        """`body` is a whole request, with the messages there are so far."""
        self._request = wire.read(body)
        self._messages = [self._read(raw) for raw in self._request.messages]
        self._counted: dict[str | None, _Counted] = {}

    def append(self, *messages: Mapping[str, Any] | bytes) -> None:
        """Add messages in the format of the body.

        Raises:
            MalformedRequest: one of them cannot be read; then none is added.
        """
        self._messages += [self._read(to_bytes(message)) for message in messages]

    def _read(self, raw: bytes) -> Message:
        return wire.message(self._request.format, wire.unmarked(raw))

    def count(self, model: str | None = None) -> TokenCount:
        """The whole conversation as it would be sent now to `model`, or to the body's own.

        Raises:
            MalformedRequest: a part is nested too deeply to be rendered.
        """
        counted = self._counted.pop(model, None)
        if counted is None:
            request = with_model(self._request, model)
            counted = _Counted(counter_for(request.model), request)
        self._counted[model] = counted  # now the latest of them
        while len(self._counted) > _KEPT_MODELS:
            del self._counted[next(iter(self._counted))]
        try:
            return counted.count(self._messages)
        except RecursionError:
            raise MalformedRequest(TOO_DEEP) from None


class _Counted:
    """One model's count of a conversation, and how far it has come."""

    def __init__(self, counter: RequestCounter, request: Request) -> None:
        self._counter = counter
        self._request = request
        self._tally: Tally = EMPTY
        self._opening: Opening | None = None

    def count(self, messages: list[Message]) -> TokenCount:
        if self._opening is None or self._tally.messages < len(messages):
            tally = self._counter.extend(self._tally, *messages[self._tally.messages :])
            self._opening = self._opened(messages, tally)
            self._tally = tally
        return self._counter.total(self._request, self._opening, self._tally)

    def _opened(self, messages: list[Message], tally: Tally) -> Opening:
        """Once there is a first message, only the frame and the loaded tools can still change."""
        first, last = (messages[0], messages[-1]) if messages else (None, None)
        loaded = len(tally.loads) > len(self._tally.loads)
        if self._opening is None or not self._tally.messages or loaded:
            return self._counter.opening(self._request, first, last, tally.loads)
        frame = self._counter.frame(self._request, first, last)
        known = self._opening
        return known if frame is known.frame else Opening.of(known.system, known.tools, frame, known.features)

"""Offline counts of request bodies in any format, and of conversations that grow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from foveate import formats
from foveate.caching import LruCache
from foveate.errors import MalformedRequest
from foveate.formats.json_text.parse import TOO_DEEP_MESSAGE, to_bytes, to_json
from foveate.model import ZERO_TOKENS, Format, Message, Request, TokenCount
from foveate.tokens.counter import EMPTY_TALLY, EnvelopeCount, PartCount, RequestCount, RequestCounter, Tally
from foveate.tokens.offline_counters import counter_for
from foveate.tokens.worker_threads import frequent_thread_switches

# Whose rules apply if neither the body nor the caller names a model. Such counts are never exact.
_DEFAULT_MODELS = {
    Format.ANTHROPIC: "claude",
    Format.CHAT: "gpt",
    Format.RESPONSES: "gpt",
    Format.GEMINI: "gemini",
    Format.BEDROCK: "bedrock",
}
# A conversation that switches models often drops the counts of the earliest ones.
_MAX_MODELS = 4


def count_body(body: Mapping[str, Any] | Sequence[Any] | str | bytes, model: str | None = None) -> RequestCount:
    """Count a request body, or a list of messages, offline.

    Raises:
        DuplicateKey: an object in it has the same key twice.
        MalformedRequest: not JSON, or none of the known formats.
    """
    if not isinstance(body, (Mapping, str, bytes, bytearray)) and isinstance(body, Sequence):
        request = parse_message_list(body, model or "")
        return counter_for(request.model).count_request(request)
    data = to_bytes(body)
    with frequent_thread_switches(len(data)):
        request = with_model(formats.parse_request(data), model)
        return counter_for(request.model).count_request(request)


def parse_message_list(messages: Sequence[Any], model: str, api_format: Format | None = None) -> Request:
    """Parse messages as a request without anything else. The format is detected unless it is given.

    Raises:
        MalformedRequest: a message is not an object, or cannot be written as JSON.
    """
    # A string would be taken for JSON.
    raws = [to_json(message) if isinstance(message, str) else to_bytes(message) for message in messages]
    detected = api_format or formats.detect_message_format(raws, model)
    return with_model(formats.parse_request(formats.wrap_messages(raws, detected), detected), model)


def with_model(request: Request, model: str | None) -> Request:
    """Return `request` for `model`; if None, for its own model, or for the default model of its format."""
    model_name = model or request.model or _DEFAULT_MODELS[request.format]
    return request if model_name == request.model else replace(request, model=model_name, envelope=None)


def sum_counts(model: str, counts: Sequence[tuple[str, RequestCount]]) -> RequestCount:
    nonempty = [count for _, count in counts if count.total.tokens] or [count for _, count in counts]
    return RequestCount(
        model=model,
        backend=", ".join(dict.fromkeys(count.backend for count in nonempty)),
        total=sum((count.total for _, count in counts), ZERO_TOKENS),
        parts=tuple(PartCount(name, count.total.tokens, count.total.exact) for name, count in counts),
    )


class Conversation:
    """A request whose messages are added one by one.

    Counting after a new turn costs what that turn costs, however long the session is. Raw counts are kept for
    each model, so switching models and back never returns a stale count.
    """

    def __init__(self, body: Mapping[str, Any] | str | bytes) -> None:
        self._request = formats.parse_request(body)
        self._messages = [self._parse_message(raw) for raw in self._request.messages]
        self._counts_by_model: LruCache[_ModelCount] = LruCache(_MAX_MODELS)

    def append(self, *messages: Mapping[str, Any] | bytes) -> None:
        """Add messages in the format of the body.

        Raises:
            MalformedRequest: one of them cannot be parsed; none is added then.
        """
        self._messages += [self._parse_message(to_bytes(message)) for message in messages]

    def _parse_message(self, raw: bytes) -> Message:
        return formats.parse_message(self._request.format, formats.strip_breakpoints(raw))

    def count(self, model: str | None = None) -> TokenCount:
        """Count the whole conversation for `model`, or for the model of the body.

        Raises:
            MalformedRequest: a part is nested too deeply to be rendered.
        """
        model_count = self._counts_by_model.get(model)
        if model_count is None:
            request = with_model(self._request, model)
            model_count = _ModelCount(counter_for(request.model), request)
            self._counts_by_model.put(model, model_count)
        try:
            return model_count.count(self._messages)
        except RecursionError:
            raise MalformedRequest(TOO_DEEP_MESSAGE) from None


class _ModelCount:
    def __init__(self, counter: RequestCounter, request: Request) -> None:
        self._counter = counter
        self._request = request
        self._tally: Tally = EMPTY_TALLY
        self._envelope_count: EnvelopeCount | None = None

    def count(self, messages: list[Message]) -> TokenCount:
        if self._envelope_count is None or self._tally.messages < len(messages):
            tally = self._counter.extend_tally(self._tally, *messages[self._tally.messages :])
            self._envelope_count = self._update_envelope_count(messages, tally)
            self._tally = tally
        return self._counter.total(self._request, self._envelope_count, self._tally)

    def _update_envelope_count(self, messages: list[Message], tally: Tally) -> EnvelopeCount:
        """After the first message, only the frame and the loaded tools can change."""
        first, last = (messages[0], messages[-1]) if messages else (None, None)
        has_new_loads = len(tally.loaded_tools) > len(self._tally.loaded_tools)
        if self._envelope_count is None or not self._tally.messages or has_new_loads:
            return self._counter.count_envelope(self._request, first, last, tally.loaded_tools)
        frame = self._counter.measure_frame(self._request, first, last)
        previous = self._envelope_count
        return (
            previous
            if frame is previous.frame
            else EnvelopeCount.combine(previous.system, previous.tools, frame, previous.features)
        )

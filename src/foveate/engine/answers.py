"""An answer on its way back: it passes as it comes, and what it says of itself is read beside."""

import re

from foveate import wire
from foveate.values import Format, Usage
from foveate.wire.answer_parts import AnswerParts, StreamPartCollector, read_answer_parts

# An answer that does not stream is looked at whole, and there is no need to keep more of it than any can have.
_MAX_BODY_BYTES = 64 * 1024 * 1024
# What a model writes, in the deltas of any format. A token is hardly ever less than two bytes of JSON.
_OUTPUT_TEXT = re.compile(
    rb'"(?:text|content|thinking|partial_json|arguments|delta|refusal|reasoning|reasoning_content)"\s*+:\s*+'
    rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)',
    re.DOTALL,
)
_BYTES_PER_TOKEN = 2
# Of each stream, to be counted where its bill does not come: a few hundred tokens in their events. There may
# be a thousand streams, and all may break off at once.
_MAX_UNCOUNTED_BYTES = 64 * 1024


class ResponseReader:
    """Looks at the pieces of one answer. `hides_usage`: the client gets it without the extra chunk of usage.

    `keeps`: it can be had whole at its end, also where it streams.
    """

    def __init__(
        self,
        api_format: Format,
        *,
        is_streaming: bool,
        hides_usage: bool,
        keeps_body: bool = False,
        is_framed: bool = False,
    ) -> None:
        self._spoken = api_format
        self._keeps_body = keeps_body or not is_streaming
        self._stream = wire.StreamReader(api_format, is_framed=is_framed) if is_streaming else None
        self._stream_parts = StreamPartCollector(api_format) if is_streaming else None
        self._filter = wire.UsageChunkFilter() if is_streaming and hides_usage else None
        self._chunks: list[bytes] = []
        self._size_bytes = 0
        self._output_meter = _OutputMeter()
        self._body_usage: Usage | None = None

    @property
    def changes_body(self) -> bool:
        """Whether the client may get other bytes than the provider sent."""
        return self._filter is not None

    def on_chunk(self, chunk: bytes) -> bytes:
        """What the client gets of a piece."""
        if self._stream is not None:
            self._stream.feed(chunk)
            self._output_meter.add(chunk)
        if self._stream_parts is not None:
            self._stream_parts.feed(chunk)
        if self._keeps_body and self._size_bytes <= _MAX_BODY_BYTES:
            self._chunks.append(chunk)
            self._size_bytes += len(chunk)
        return self._filter.feed(chunk) if self._filter is not None else chunk

    def finish(self) -> bytes:
        """What the client gets at the end."""
        if self._stream is not None:
            self._stream.end()
        elif self._size_bytes <= _MAX_BODY_BYTES:
            self._body_usage = wire.read_response_usage(self._spoken, b"".join(self._chunks))
        return self._filter.end() if self._filter is not None else b""

    @property
    def usage(self) -> Usage | None:
        """The bill, as far as it came."""
        return self._stream.usage if self._stream is not None else self._body_usage

    @property
    def body(self) -> bytes | None:
        """All of it; None where that was not kept."""
        return b"".join(self._chunks) if self._keeps_body and self._size_bytes <= _MAX_BODY_BYTES else None

    def parts(self) -> AnswerParts:
        """Return the parts by which the answer is recognised when the client sends it back; for its end."""
        if self._stream_parts is not None:
            return self._stream_parts.end()
        return read_answer_parts(self._spoken, b"".join(self._chunks))

    @property
    def is_streaming(self) -> bool:
        """Whether it comes as it is written."""
        return self._stream is not None

    @property
    def estimated_output_tokens(self) -> int:
        """About how many tokens of a stream have come, rather more than fewer."""
        return -(-self._output_meter.counted_bytes() // _BYTES_PER_TOKEN)

    @property
    def has_ended(self) -> bool:
        """Whether the last event of a stream has come: nothing is told after it."""
        return self._stream is not None and self._stream.has_ended

    @property
    def has_failed(self) -> bool:
        """Whether it told of an error in its middle."""
        return self._stream is not None and self._stream.error is not None

    @property
    def is_complete(self) -> bool:
        """Whether the answer came to its end by its own account."""
        return self._stream.is_complete if self._stream is not None else self.usage is not None


class _OutputMeter:
    """How much a model has written of a stream, of which only one without a whole bill has to know.

    So the last pieces are not looked at until somebody asks, and many together: that takes half the time.
    """

    def __init__(self) -> None:
        self._uncounted: list[bytes] = []
        self._uncounted_bytes = 0
        self._counted_bytes = 0

    def add(self, chunk: bytes) -> None:
        """One more piece has come."""
        self._uncounted.append(chunk)
        self._uncounted_bytes += len(chunk)
        if self._uncounted_bytes > _MAX_UNCOUNTED_BYTES:
            self._count()

    def counted_bytes(self) -> int:
        """What is written in all of them."""
        self._count()
        return self._counted_bytes

    def _count(self) -> None:
        self._counted_bytes += sum(map(len, _OUTPUT_TEXT.findall(b"".join(self._uncounted))))
        self._uncounted.clear()
        self._uncounted_bytes = 0

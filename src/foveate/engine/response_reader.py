"""Reads a response while it is forwarded: its usage, its body, and an estimate of its output."""

import re

from foveate import formats
from foveate.formats.response.answers import AnswerParts, StreamPartCollector, read_answer_parts
from foveate.model import Format, Usage

# A response that does not stream is parsed whole; no real one is larger.
_MAX_BODY_BYTES = 64 * 1024 * 1024
# The output of a model, in the deltas of all formats. A token is rarely less than two bytes of JSON.
_OUTPUT_TEXT = re.compile(
    rb'"(?:text|content|thinking|partial_json|arguments|delta|refusal|reasoning|reasoning_content)"\s*+:\s*+'
    rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)',
    re.DOTALL,
)
_BYTES_PER_TOKEN = 2
# Per stream: a few hundred tokens in their events. A thousand streams may be interrupted at once.
_MAX_UNCOUNTED_BYTES = 64 * 1024


class ResponseReader:
    """Reads a response while it is forwarded.

    `hides_usage`: the extra usage chunk is removed. `keeps_body`: the whole body is available at the end, also
    of a stream.
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
        self._api_format = api_format
        self._keeps_body = keeps_body or not is_streaming
        self._stream = formats.StreamReader(api_format, is_framed=is_framed) if is_streaming else None
        self._stream_parts = StreamPartCollector(api_format) if is_streaming else None
        self._filter = formats.UsageChunkFilter() if is_streaming and hides_usage else None
        self._chunks: list[bytes] = []
        self._size_bytes = 0
        self._output_meter = _OutputMeter()
        self._body_usage: Usage | None = None

    @property
    def changes_body(self) -> bool:
        """Return whether the client may get other bytes than the provider sent."""
        return self._filter is not None

    def on_chunk(self, chunk: bytes) -> bytes:
        """Return what the client gets for a chunk."""
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
        """Return what the client gets after the last chunk."""
        if self._stream is not None:
            self._stream.end()
        elif self._size_bytes <= _MAX_BODY_BYTES:
            self._body_usage = formats.read_response_usage(self._api_format, b"".join(self._chunks))
        return self._filter.end() if self._filter is not None else b""

    @property
    def usage(self) -> Usage | None:
        return self._stream.usage if self._stream is not None else self._body_usage

    @property
    def body(self) -> bytes | None:
        """The whole body, None if it was not kept."""
        return b"".join(self._chunks) if self._keeps_body and self._size_bytes <= _MAX_BODY_BYTES else None

    def parts(self) -> AnswerParts:
        """The parts by which the response is recognised when the client sends it back; valid at the end."""
        if self._stream_parts is not None:
            return self._stream_parts.end()
        return read_answer_parts(self._api_format, b"".join(self._chunks))

    @property
    def is_streaming(self) -> bool:
        return self._stream is not None

    @property
    def estimated_output_tokens(self) -> int:
        """An upper estimate of the output tokens received so far."""
        return -(-self._output_meter.counted_bytes() // _BYTES_PER_TOKEN)

    @property
    def has_ended(self) -> bool:
        return self._stream is not None and self._stream.has_ended

    @property
    def has_failed(self) -> bool:
        return self._stream is not None and self._stream.error is not None

    @property
    def is_complete(self) -> bool:
        """Return whether the response itself says that it is complete."""
        return self._stream.is_complete if self._stream is not None else self.usage is not None


class _OutputMeter:
    """Measures the output of a stream.

    Only interrupted streams need it. So chunks are parsed on demand and many at a time, which takes half the
    time.
    """

    def __init__(self) -> None:
        self._uncounted: list[bytes] = []
        self._uncounted_bytes = 0
        self._counted_bytes = 0

    def add(self, chunk: bytes) -> None:
        self._uncounted.append(chunk)
        self._uncounted_bytes += len(chunk)
        if self._uncounted_bytes > _MAX_UNCOUNTED_BYTES:
            self._count()

    def counted_bytes(self) -> int:
        self._count()
        return self._counted_bytes

    def _count(self) -> None:
        self._counted_bytes += sum(map(len, _OUTPUT_TEXT.findall(b"".join(self._uncounted))))
        self._uncounted.clear()
        self._uncounted_bytes = 0

"""Responses are measured while they are forwarded."""

from foveate.engine.exchange import ResponseReader
from foveate.model import Format


def test_the_whole_output_of_a_stream_is_counted_however_long() -> None:
    reader = ResponseReader(Format.ANTHROPIC, is_streaming=True, hides_usage=False)
    delta = b'data: {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "%b"}}\n\n'
    for _ in range(600):  # more than are kept uncounted
        piece = delta % (b"word" * 250)
        assert reader.on_chunk(piece) == piece

    assert reader.estimated_output_tokens == 600 * 500
    reader.on_chunk(delta % b"word")
    assert reader.estimated_output_tokens == 600 * 500 + 2


def test_a_text_in_two_chunks_is_counted_completely() -> None:
    reader = ResponseReader(Format.ANTHROPIC, is_streaming=True, hides_usage=False)
    delta = b'data: {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "%b"}}\n\n' % (
        b"w" * 40
    )
    for piece in (delta[:-30], delta[-30:]):
        reader.on_chunk(piece)

    assert reader.estimated_output_tokens == 20

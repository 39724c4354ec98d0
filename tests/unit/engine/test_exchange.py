"""What is read of an answer beside its passing."""

from foveate.engine.exchange import ResponseReader
from foveate.model import Format


def test_all_that_was_written_of_a_stream_is_counted_however_long_it_was() -> None:
    answer = ResponseReader(Format.ANTHROPIC, is_streaming=True, hides_usage=False)
    delta = b'data: {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "%b"}}\n\n'
    for _ in range(600):  # more than is kept to be counted
        piece = delta % (b"word" * 250)
        assert answer.on_chunk(piece) == piece

    assert answer.estimated_output_tokens == 600 * 500
    answer.on_chunk(delta % b"word")
    assert answer.estimated_output_tokens == 600 * 500 + 2


def test_a_text_that_comes_in_two_pieces_is_counted_whole() -> None:
    answer = ResponseReader(Format.ANTHROPIC, is_streaming=True, hides_usage=False)
    delta = b'data: {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "%b"}}\n\n' % (
        b"w" * 40
    )
    for piece in (delta[:-30], delta[-30:]):
        answer.on_chunk(piece)

    assert answer.estimated_output_tokens == 20

"""What is read of an answer beside its passing."""

from foveate.engine.answers import AnswerReader
from foveate.values import Format


def test_all_that_was_written_of_a_stream_is_counted_however_long_it_was() -> None:
    answer = AnswerReader(Format.ANTHROPIC, streams=True, hides_usage=False)
    delta = b'data: {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "%b"}}\n\n'
    for _ in range(600):  # more than is kept to be counted
        piece = delta % (b"word" * 250)
        assert answer.passed(piece) == piece

    assert answer.written_tokens == 600 * 500
    answer.passed(delta % b"word")
    assert answer.written_tokens == 600 * 500 + 2


def test_a_text_that_comes_in_two_pieces_is_counted_whole() -> None:
    answer = AnswerReader(Format.ANTHROPIC, streams=True, hides_usage=False)
    delta = b'data: {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "%b"}}\n\n' % (
        b"w" * 40
    )
    for piece in (delta[:-30], delta[-30:]):
        answer.passed(piece)

    assert answer.written_tokens == 20

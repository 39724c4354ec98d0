"""What a model has said in an answer of Anthropic's, where that is text alone and it ended by itself."""

from foveate.errors import MalformedRequest
from foveate.wire.body import as_dict, as_list, as_text
from foveate.wire.events import SseSplitter
from foveate.wire.replies import parse_object_leniently

# platform.claude.com/docs/en/build-with-claude/handling-stop-reasons (November 2026).
_COMPLETE_STOP_REASONS = frozenset(("end_turn", "stop_sequence"))


def read_complete_texts(response: bytes, *, streams: bool) -> tuple[str, ...]:
    """The texts of an answer, as a client sends them back; none where it holds other things, or was cut off."""
    try:
        texts, stop = _read_streamed_response(response) if streams else _read_whole_response(response)
    except MalformedRequest:
        return ()
    return tuple(texts) if stop in _COMPLETE_STOP_REASONS and all(texts) else ()


def _read_whole_response(response: bytes) -> tuple[list[str], str]:
    message = parse_object_leniently(response)
    blocks = [as_dict(block) for block in as_list(message.get("content"))]
    return [_read_text_block(block) for block in blocks], as_text(message.get("stop_reason"))


def _read_streamed_response(response: bytes) -> tuple[list[str], str]:
    splitter = SseSplitter()
    texts: dict[int, str] = {}
    stop = ""
    for piece in (*splitter.feed(response), *splitter.end()):
        event = parse_object_leniently(piece.data) if piece.data else {}
        at = event.get("index")
        match event.get("type"):
            case "content_block_start" if isinstance(at, int):
                block = as_dict(event.get("content_block"))
                texts[at] = as_text(block.get("text")) if block.get("type") == "text" else _NOT_TEXT
            case "content_block_delta" if isinstance(at, int) and texts.get(at, _NOT_TEXT) != _NOT_TEXT:
                texts[at] += as_text(as_dict(event.get("delta")).get("text"))
            case "message_delta":
                stop = as_text(as_dict(event.get("delta")).get("stop_reason")) or stop
    return ["" if text == _NOT_TEXT else text for _, text in sorted(texts.items())], stop


# No text that a model writes is this.
_NOT_TEXT = "\0"


def _read_text_block(block: dict[str, object]) -> str:
    return as_text(block.get("text")) if block.get("type") == "text" else ""

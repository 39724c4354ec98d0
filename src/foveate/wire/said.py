"""What a model has said in an answer of Anthropic's, where that is text alone and it ended by itself."""

from foveate.errors import MalformedRequest
from foveate.wire.body import as_list, as_record, as_text
from foveate.wire.events import EventSplitter
from foveate.wire.replies import record

# platform.claude.com/docs/en/build-with-claude/handling-stop-reasons (November 2026).
_ENDED = frozenset(("end_turn", "stop_sequence"))


def texts_said(answer: bytes, *, streams: bool) -> tuple[str, ...]:
    """The texts of an answer, as a client sends them back; none where it holds other things, or was cut off."""
    try:
        texts, stop = _streamed(answer) if streams else _whole(answer)
    except MalformedRequest:
        return ()
    return tuple(texts) if stop in _ENDED and all(texts) else ()


def _whole(answer: bytes) -> tuple[list[str], str]:
    said = record(answer)
    blocks = [as_record(block) for block in as_list(said.get("content"))]
    return [_text(block) for block in blocks], as_text(said.get("stop_reason"))


def _streamed(answer: bytes) -> tuple[list[str], str]:
    splitter = EventSplitter()
    texts: dict[int, str] = {}
    stop = ""
    for piece in (*splitter.feed(answer), *splitter.end()):
        event = record(piece.data) if piece.data else {}
        at = event.get("index")
        match event.get("type"):
            case "content_block_start" if isinstance(at, int):
                block = as_record(event.get("content_block"))
                texts[at] = as_text(block.get("text")) if block.get("type") == "text" else _NOT_TEXT
            case "content_block_delta" if isinstance(at, int) and texts.get(at, _NOT_TEXT) != _NOT_TEXT:
                texts[at] += as_text(as_record(event.get("delta")).get("text"))
            case "message_delta":
                stop = as_text(as_record(event.get("delta")).get("stop_reason")) or stop
    return ["" if text == _NOT_TEXT else text for _, text in sorted(texts.items())], stop


# No text that a model writes is this.
_NOT_TEXT = "\0"


def _text(block: dict[str, object]) -> str:
    return as_text(block.get("text")) if block.get("type") == "text" else ""

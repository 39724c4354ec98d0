"""What of a block that is not known a model could be shown."""

from foveate.tokens.rendering import Rendering
from foveate.tokens.rules.joined import estimate_margin_tokens
from foveate.values import Opaque
from foveate.wire.body import parse_json, to_json

# Names, marks and seals: never shown.
_HIDDEN_KEYS = frozenset(
    ("type", "id", "call_id", "tool_use_id", "cache_control", "signature", "encrypted_content")
)
# A string of this length without a blank is a picture, a sound or a seal, and no text.
_MAX_WORD_CHARS = 1024


def render_unknown_block(block: Opaque) -> Rendering:
    """An unknown block by the text in it: a guess, so that something that is sent does not count as nothing."""
    text = _visible_text(parse_json(block.raw))
    return Rendering(
        texts=(text,), margin_tokens=estimate_margin_tokens(text) / 2, certain=False, unexplained=(block.kind,)
    )


def _visible_text(content: object) -> str:
    if isinstance(content, str):
        return content
    return to_json(_without_hidden(content)).decode()


def _without_hidden(content: object) -> object:
    match content:
        case dict():
            return {name: _without_hidden(inner) for name, inner in content.items() if name not in _HIDDEN_KEYS}
        case list():
            return [_without_hidden(inner) for inner in content]
        case str() if len(content) > _MAX_WORD_CHARS and len(content.split(maxsplit=1)) == 1:
            return ""
        case _:
            return content

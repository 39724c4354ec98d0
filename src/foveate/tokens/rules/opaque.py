"""What of a block that is not known a model could be shown."""

from foveate.tokens.rendering import Rendering
from foveate.tokens.rules.joined import roughly
from foveate.values import Opaque
from foveate.wire.body import compact, value

# Names, marks and seals: never shown.
_HIDDEN = frozenset(("type", "id", "call_id", "tool_use_id", "cache_control", "signature", "encrypted_content"))
# A string of this length without a blank is a picture, a sound or a seal, and no text.
_LONGEST_WORD_CHARS = 1024


def unknown(block: Opaque) -> Rendering:
    """An unknown block by the text in it: a guess, so that something that is sent does not count as nothing."""
    text = _readable(value(block.raw))
    return Rendering(texts=(text,), margin_tokens=roughly(text) / 2, certain=False, unexplained=(block.kind,))


def _readable(found: object) -> str:
    if isinstance(found, str):
        return found
    return compact(_shown(found)).decode()


def _shown(found: object) -> object:
    match found:
        case dict():
            return {name: _shown(inner) for name, inner in found.items() if name not in _HIDDEN}
        case list():
            return [_shown(inner) for inner in found]
        case str() if len(found) > _LONGEST_WORD_CHARS and len(found.split(maxsplit=1)) == 1:
            return ""
        case _:
            return found

"""Cache marks as the formats write them: found on a block, taken off it, and the JSON of a new one."""

from typing import Any

from foveate.values import Mark, MarkStyle, RemoveMark, Ttl
from foveate.wire.body import as_record

# Those that are members of what they mark.
MEMBERS = (MarkStyle.CACHE_CONTROL.value, MarkStyle.BREAKPOINT.value)
_TTLS = {ttl.value: ttl for ttl in Ttl}
POINT = MarkStyle.CACHE_POINT.value


def mark_of(found: dict[str, Any], breakpoint_ttl: Ttl) -> Ttl | None:
    """The mark that an object bears; `breakpoint_ttl` is that of all breakpoints of its request."""
    if found.get("cache_control") is not None:
        return ttl_of(found["cache_control"])
    return None if found.get("prompt_cache_breakpoint") is None else breakpoint_ttl


def ttl_of(mark: object, usual: Ttl = Ttl.FIVE_MINUTES) -> Ttl:
    """How long a mark asks for: the usual time where it does not say, or says what nobody knows."""
    said = mark.get("ttl") if isinstance(mark, dict) else None
    return _TTLS.get(said, usual) if isinstance(said, str) else usual


def is_point(block: object) -> bool:
    """Whether it is no block but Bedrock's mark on the one before it."""
    return POINT in as_record(block)


def without_marks(entry: Any) -> Any:
    """A message or block without its marks; the same word in a tool's arguments is a word like any other."""
    if not isinstance(entry, dict):
        return entry
    kept = {name: inner for name, inner in entry.items() if name not in MEMBERS}
    if isinstance(kept.get("content"), list):
        kept["content"] = [without_marks(block) for block in kept["content"]]
    return kept


def written(mark: Mark | RemoveMark, style: MarkStyle) -> bytes:
    """The JSON of a mark: a member's value, or for Bedrock a whole block; `null` for one that is removed."""
    if isinstance(mark, RemoveMark):
        return b"null"
    if style is MarkStyle.BREAKPOINT:
        return b'{"mode":"explicit"}'
    asked = b"" if mark.ttl in (None, Ttl.FIVE_MINUTES) else b',"ttl":"' + str(mark.ttl).encode() + b'"'
    if style is MarkStyle.CACHE_POINT:
        return b'{"cachePoint":{"type":"default"' + asked + b"}}"
    return b'{"type":"ephemeral"' + asked + b"}"

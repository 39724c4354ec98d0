"""Cache marks as the formats write them: found on a block, taken off it, and the JSON of a new one."""

from typing import Any

from foveate.values import BreakpointStyle, CacheBreakpoint, RemoveBreakpoint, Ttl
from foveate.wire.body import as_dict

# Those that are members of what they mark.
BREAKPOINT_FIELDS = (BreakpointStyle.CACHE_CONTROL.value, BreakpointStyle.PROMPT_CACHE_BREAKPOINT.value)
_TTLS = {ttl.value: ttl for ttl in Ttl}
CACHE_POINT_FIELD = BreakpointStyle.CACHE_POINT.value


def read_breakpoint(fields: dict[str, Any], breakpoint_ttl: Ttl) -> Ttl | None:
    """The mark that an object bears; `breakpoint_ttl` is that of all breakpoints of its request."""
    if fields.get("cache_control") is not None:
        return read_ttl(fields["cache_control"])
    return None if fields.get("prompt_cache_breakpoint") is None else breakpoint_ttl


def read_ttl(value: object, default: Ttl = Ttl.FIVE_MINUTES) -> Ttl:
    """How long a mark asks for: the usual time where it does not say, or says what nobody knows."""
    ttl = value.get("ttl") if isinstance(value, dict) else None
    return _TTLS.get(ttl, default) if isinstance(ttl, str) else default


def is_cache_point(block: object) -> bool:
    """Whether it is no block but Bedrock's mark on the one before it."""
    return CACHE_POINT_FIELD in as_dict(block)


def remove_breakpoints(entry: Any) -> Any:
    """A message or block without its marks; the same word in a tool's arguments is a word like any other."""
    if not isinstance(entry, dict):
        return entry
    kept = {name: inner for name, inner in entry.items() if name not in BREAKPOINT_FIELDS}
    if isinstance(kept.get("content"), list):
        kept["content"] = [remove_breakpoints(block) for block in kept["content"]]
    return kept


def breakpoint_json(cache_breakpoint: CacheBreakpoint | RemoveBreakpoint, style: BreakpointStyle) -> bytes:
    """The JSON of a mark: a member's value, or for Bedrock a whole block; `null` for one that is removed."""
    if isinstance(cache_breakpoint, RemoveBreakpoint):
        return b"null"
    if style is BreakpointStyle.PROMPT_CACHE_BREAKPOINT:
        return b'{"mode":"explicit"}'
    ttl = (
        b""
        if cache_breakpoint.ttl in (None, Ttl.FIVE_MINUTES)
        else b',"ttl":"' + str(cache_breakpoint.ttl).encode() + b'"'
    )
    if style is BreakpointStyle.CACHE_POINT:
        return b'{"cachePoint":{"type":"default"' + ttl + b"}}"
    return b'{"type":"ephemeral"' + ttl + b"}"

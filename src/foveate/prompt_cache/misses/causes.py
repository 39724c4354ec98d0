"""Causes of cache misses: values, classification of differences, and descriptions.

A provider reads tools, then the system prompt, then messages. The first difference ends the shared prefix,
and its surroundings show the likely cause.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from foveate.formats.json_text.parse import parse_json
from foveate.model import Area, Place
from foveate.prompt_cache.misses import field_diff
from foveate.prompt_cache.misses.field_diff import (
    ChangeKind,
    FieldChange,
    TextChangeKind,
    find_first_change,
    make_excerpt,
    size_bytes,
)
from foveate.prompt_cache.misses.snapshot import RequestSnapshot
from foveate.prompt_cache.prompt.parameters import CITATIONS, IMAGES, WEB_SEARCH

TEXT_CHANGE_DESCRIPTIONS: Mapping[TextChangeKind, str] = {
    TextChangeKind.TIMESTAMP: "a timestamp changed",
    TextChangeKind.DATE: "a date changed",
    TextChangeKind.TIME: "a time of day changed",
    TextChangeKind.UUID: "a UUID changed",
    TextChangeKind.RANDOM_ID: "a random id changed",
    TextChangeKind.COUNTER: "a counter increased",
    TextChangeKind.NUMBER: "a number changed",
    TextChangeKind.WHITESPACE: "only whitespace changed; the cache compares every byte",
    TextChangeKind.UNICODE: "only the Unicode normalization changed; the cache compares every byte",
    TextChangeKind.JSON_SPELLING: "the key order or spacing of JSON inside a string changed; "
    "the cache compares every byte",
    TextChangeKind.EDITED: "the text was edited",
    TextChangeKind.SHORTENED: "the text was shortened after it had been sent",
    TextChangeKind.EXTENDED: "text was appended",
}
"""Descriptions of text changes. The name of a field is inserted before the semicolon."""
_SWITCH_DESCRIPTIONS = {
    IMAGES: ("the first image was added", "the last image was removed"),
    CITATIONS: ("citations were turned on", "citations were turned off"),
    WEB_SEARCH: ("web search was turned on", "web search was turned off"),
}
_MAX_VALUE_CHARS = 60


class MissCause(StrEnum):
    """Reasons why a prefix was not read. The values are stable across releases."""

    MODEL = "model"
    PARAMETER = "parameter"
    IMAGES = "images"
    TOOL_ADDED = "tool_added"
    TOOL_REMOVED = "tool_removed"
    TOOL_CHANGED = "tool_changed"
    TOOLS_REORDERED = "tools_reordered"
    KEY_ORDER = "key_order"
    TIMESTAMP = "timestamp"
    DATE = "date"
    TIME = "time"
    UUID = "uuid"
    RANDOM_ID = "random_id"
    COUNTER = "counter"
    NUMBER = "number"
    WHITESPACE = "whitespace"
    UNICODE = "unicode_form"
    JSON_SPELLING = "json_spelling"
    EDITED = "edited"
    SHORTENED = "shortened"
    EXTENDED = "extended"
    BLOCK_ADDED = "block_added"
    BLOCK_REMOVED = "block_removed"
    BLOCK_MOVED = "block_moved"
    THINKING_REMOVED = "thinking_removed"
    ROLE = "role"
    MESSAGES_DROPPED = "messages_dropped"
    MESSAGES_REPLACED = "messages_replaced"
    MESSAGES_INSERTED = "messages_inserted"
    OTHER_CONVERSATION = "other_conversation"
    BREAKPOINT_MISSING = "mark_missing"
    BREAKPOINT_TOO_FAR = "mark_too_far"
    BELOW_MINIMUM = "below_minimum"
    NOT_CACHED = "not_cached"
    CUT_BACK = "cut_back"
    EXPIRED = "expired"
    CACHE_KEY = "cache_key"
    COMPACTION = "compaction"
    COMPACTION_UNDONE = "compaction_undone"
    TRIMMING = "trimming"
    UNEXPLAINED = "unexplained"


PLANNED_CAUSES = frozenset((MissCause.COMPACTION, MissCause.COMPACTION_UNDONE, MissCause.TRIMMING))
"""Causes of misses that Foveate plans: it rewrites a history because that is expected to pay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceSide:
    place: Place
    kind: str
    start_byte: int
    end_byte: int
    excerpt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixDifference:
    """The first difference between two prefixes, and its cause.

    `at` is the first piece that can no longer be read, `field` the field in the block. A side is None if the
    block exists only on the other side.
    """

    at: int
    cause: MissCause
    because: str
    field: str = ""
    before: DifferenceSide | None = None
    after: DifferenceSide | None = None


def find_parameter_change(previous: RequestSnapshot, current: RequestSnapshot) -> PrefixDifference | None:
    """The first change of the model or of a parameter that invalidates the prefix."""
    if previous.prompt.model != current.prompt.model:
        because = (
            f"the model changed from {previous.prompt.model} to {current.prompt.model}; each has its own cache"
        )
        return PrefixDifference(at=0, cause=MissCause.MODEL, because=because, field="model")
    previous_values = {parameter.name: parameter.json_text for parameter in previous.cache_parameters}
    order = list(Area)
    for parameter in current.cache_parameters:  # in the order of the areas
        before = previous_values.get(parameter.name, "")
        if before != parameter.json_text:
            pieces = previous.prompt.pieces
            at = sum(order.index(piece.area) < order.index(parameter.area) for piece in pieces)
            return _describe_parameter_change(at, parameter.name, parameter.area, before, parameter.json_text)
    return None


def _describe_parameter_change(
    at: int, name: str, area: Area, old_value: str, new_value: str
) -> PrefixDifference:
    words = _SWITCH_DESCRIPTIONS.get(name)
    if words is not None:
        because = words[0] if new_value else words[1]
    elif not old_value or not new_value:
        change = (
            f"set to {_shorten_value(new_value)}"
            if new_value
            else f"removed; it was {_shorten_value(old_value)}"
        )
        because = f"`{name}` was {change}"
    else:
        because = f"`{name}` changed from {_shorten_value(old_value)} to {_shorten_value(new_value)}"
    lost_part = {Area.TOOLS: "the whole prefix", Area.SYSTEM: "the system prompt and all messages"}.get(
        area, "all messages"
    )
    cause = MissCause.IMAGES if name == IMAGES else MissCause.PARAMETER
    return PrefixDifference(at=at, cause=cause, because=f"{because}; this invalidates {lost_part}", field=name)


def _shorten_value(json: str) -> str:
    return make_excerpt(json, 0, _MAX_VALUE_CHARS)


def describe_place(snapshot: RequestSnapshot, place: Place) -> str:
    """A place as text: `tools[3]`, `system[0]`, `messages[12] (user)`."""
    role = snapshot.role(place)
    label = f"{place.area}[{place.index}]"
    if place.block:
        label += f" block {place.block}"
    return f"{label} ({role})" if role else label


def describe_changed_block(
    previous: RequestSnapshot, current: RequestSnapshot, before_at: int, after_at: int
) -> PrefixDifference:
    old_piece, new_piece = previous.prompt.pieces[before_at], current.prompt.pieces[after_at]
    before, after = make_side(previous, before_at), make_side(current, after_at)
    old_content, new_content = previous.content(before_at), current.content(after_at)
    place = describe_place(current, after.place)
    if new_content is not None and new_piece.area is Area.TOOLS:
        place = f"the tool `{field_diff.tool_name(parse_json(new_content))}` ({place})"
    if old_content is not None and old_content == new_content:
        because = f"{place}: the role changed from {previous.role(before.place)} to {current.role(after.place)}"
        return PrefixDifference(
            at=after_at, cause=MissCause.ROLE, because=because, field="role", before=before, after=after
        )
    if old_content is None or new_content is None:
        sizes = f"{before.end_byte:,} to {after.end_byte:,} bytes"
        because = f"{place}: the {new_piece.kind} block changed from {sizes}"
        cause = MissCause.TOOL_CHANGED if old_piece.area is Area.TOOLS else MissCause.EDITED
        return PrefixDifference(at=after_at, cause=cause, because=because, before=before, after=after)
    change = find_first_change(parse_json(old_content), parse_json(new_content))
    cause, words = _classify_change(change, old_piece.area)
    return PrefixDifference(
        at=after_at,
        cause=cause,
        because=f"{place}: {words}",
        field=change.name,
        before=_narrow_side(before, change.before, change.text_change.start, change.text_change.end_before),
        after=_narrow_side(after, change.after, change.text_change.start, change.text_change.end_after),
    )


def _classify_change(change: FieldChange, area: Area) -> tuple[MissCause, str]:
    name = change.name
    inside = f" in `{name}`" if name not in ("", "text") else ""
    match change.kind:
        case ChangeKind.KEY_ORDER:
            effect = "the cache compares every byte" if change.path else "the cache may depend on it"
            return MissCause.KEY_ORDER, f"the order of the keys{inside} changed; {effect}"
        case ChangeKind.ITEM_ORDER:
            words = f"the order of the items{inside} changed"
            return (MissCause.TOOL_CHANGED if area is Area.TOOLS else MissCause.EDITED), words
        case ChangeKind.ADDED | ChangeKind.REMOVED:
            cause = MissCause.TOOL_CHANGED if area is Area.TOOLS else MissCause.EDITED
            return cause, f"`{name}` was {change.kind}"
    wording = change.text_change.kind
    is_plain = wording in (
        TextChangeKind.EDITED,
        TextChangeKind.SHORTENED,
        TextChangeKind.EXTENDED,
    ) or name.endswith("name")
    if is_plain and area is Area.TOOLS:
        return MissCause.TOOL_CHANGED, f"`{name}` changed"
    description, semicolon, effect = TEXT_CHANGE_DESCRIPTIONS[wording].partition(";")
    return MissCause(wording), f"{description}{inside}{semicolon}{effect}"


def _narrow_side(side: DifferenceSide, text: str, start: int, end: int) -> DifferenceSide:
    start_byte = size_bytes(text[:start])
    return DifferenceSide(
        place=side.place,
        kind=side.kind,
        start_byte=start_byte,
        end_byte=start_byte + size_bytes(text[start:end]),
        excerpt=make_excerpt(text, start, end),
    )


def make_side(snapshot: RequestSnapshot, at: int) -> DifferenceSide:
    piece = snapshot.prompt.pieces[at]
    body = snapshot.content(at)
    content = None if body is None else parse_json(body)
    text = field_diff.tool_name(content) if piece.area is Area.TOOLS else field_diff.main_text(content)
    place = piece.place or Place(piece.area, at)
    return DifferenceSide(
        place=place,
        kind=piece.kind,
        start_byte=0,
        end_byte=snapshot.lengths_bytes[at],
        excerpt=make_excerpt(text, 0, len(text)),
    )


_CAUSE_DESCRIPTIONS: Mapping[str, str] = {
    **{wording.value: text for wording, text in TEXT_CHANGE_DESCRIPTIONS.items()},
    MissCause.MODEL: "the model changed, and each model has its own cache",
    MissCause.PARAMETER: "a parameter that the cache depends on changed",
    MissCause.IMAGES: "the first image was added, or the last one removed",
    MissCause.TOOL_ADDED: "a tool was added",
    MissCause.TOOL_REMOVED: "a tool was removed",
    MissCause.TOOL_CHANGED: "a tool changed",
    MissCause.TOOLS_REORDERED: "the order of the tools changed",
    MissCause.KEY_ORDER: "the order of JSON keys changed",
    MissCause.BLOCK_ADDED: "a content block was added",
    MissCause.BLOCK_REMOVED: "a content block was removed",
    MissCause.BLOCK_MOVED: "the order of the content blocks changed",
    MissCause.THINKING_REMOVED: "the thinking of an earlier turn was removed",
    MissCause.ROLE: "the role of a message changed",
    MissCause.MESSAGES_DROPPED: "messages were removed",
    MissCause.MESSAGES_REPLACED: "messages were replaced, for example by a summary",
    MissCause.MESSAGES_INSERTED: "messages were inserted",
    MissCause.OTHER_CONVERSATION: "the request belongs to another conversation",
    MissCause.BREAKPOINT_MISSING: "a cache breakpoint is missing",
    MissCause.BREAKPOINT_TOO_FAR: "the nearest cache breakpoint is too far from the cached prefix",
    MissCause.BELOW_MINIMUM: "the prefix is shorter than the model's minimum for caching",
    MissCause.NOT_CACHED: "no prompt cache is known for this model",
    MissCause.CUT_BACK: "the request ends before the cached prefix does",
    MissCause.EXPIRED: "the cache entry expired before the request arrived",
    MissCause.CACHE_KEY: "the cache key changed, so a different server may have handled the request",
    MissCause.COMPACTION: "Foveate replaced old messages with a summary",
    MissCause.COMPACTION_UNDONE: "a compaction was undone, and the original messages are sent again",
    MissCause.TRIMMING: "Foveate shortened tool results or removed old messages",
    MissCause.UNEXPLAINED: "the prefix is unchanged; the provider may have evicted it",
}


def describe_cause(cause: str) -> str:
    """A short description, such as `a timestamp changed`; for an unknown cause, its name."""
    return _CAUSE_DESCRIPTIONS.get(cause) or cause.replace("_", " ")

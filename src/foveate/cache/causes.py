"""Where the prefix of one request leaves that of another, and the likely cause, in words.

A provider reads tools, then system prompt, then messages. The first difference is what breaks the prefix, and
what stands around it tells why it is there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from foveate.cache import fields
from foveate.cache.fields import FieldChange, How, excerpt, first_change, size_bytes
from foveate.cache.parameters import CITATIONS, IMAGES, WEB_SEARCH
from foveate.cache.remembered import Remembered
from foveate.cache.wording import Wording
from foveate.values import Area, Place
from foveate.wire.body import value


class Cause(StrEnum):
    """Why a prefix was not read. The values stay the same from release to release."""

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
    MARK_MISSING = "mark_missing"
    MARK_TOO_FAR = "mark_too_far"
    BELOW_MINIMUM = "below_minimum"
    NOT_CACHED = "not_cached"
    CUT_BACK = "cut_back"
    EXPIRED = "expired"
    CACHE_KEY = "cache_key"
    COMPACTION = "compaction"
    COMPACTION_UNDONE = "compaction_undone"
    TRIMMING = "trimming"
    UNEXPLAINED = "unexplained"


PLANNED = frozenset((Cause.COMPACTION, Cause.COMPACTION_UNDONE, Cause.TRIMMING))
"""Causes of misses that Foveate plans: it rewrites a history because that is expected to pay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a difference: the block, the bytes of its field that differ, a little of what they say."""

    place: Place
    kind: str
    start_byte: int
    end_byte: int
    excerpt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place where a prefix is another one, and why.

    `at` is the first piece that cannot be read any more. `field` is where in the block it is; a side is missing
    where the block, or the whole, is only on the other.
    """

    at: int
    cause: Cause
    because: str
    field: str = ""
    before: Side | None = None
    after: Side | None = None


WORDS: Mapping[Wording, str] = {
    Wording.TIMESTAMP: "a timestamp changed",
    Wording.DATE: "a date changed",
    Wording.TIME: "a time of day changed",
    Wording.UUID: "a UUID changed",
    Wording.RANDOM_ID: "a random id changed",
    Wording.COUNTER: "a counter went up",
    Wording.NUMBER: "a number changed",
    Wording.WHITESPACE: "only spaces or line ends changed, and a cache goes by every one of them",
    Wording.UNICODE: "letters are composed differently (Unicode), and a cache goes by their bytes",
    Wording.JSON_SPELLING: "the same JSON is written in another order or spacing inside of a string, which a "
    "cache goes by",
    Wording.EDITED: "the text was edited",
    Wording.SHORTENED: "the text was cut after it had been sent",
    Wording.EXTENDED: "text was added at its end",
}
"""What is said of a text that changed."""
_SWITCHES = {
    IMAGES: ("there are images in the request now, and there were none", "the last image is gone"),
    CITATIONS: ("citations were switched on", "citations were switched off"),
    WEB_SEARCH: ("web search was switched on", "web search was switched off"),
}
_LONGEST_VALUE_CHARS = 60


def parameter_changed(previous: Remembered, current: Remembered) -> Difference | None:
    """The model, or the first parameter of those that break the prefix, that is another one."""
    if previous.prompt.model != current.prompt.model:
        because = (
            f"the model changed from {previous.prompt.model} to {current.prompt.model}; each has its own cache"
        )
        return Difference(at=0, cause=Cause.MODEL, because=because, field="model")
    was = {setting.name: setting.said for setting in previous.settings}
    order = list(Area)
    for setting in current.settings:  # those of the start come first
        before = was.get(setting.name, "")
        if before != setting.said:
            pieces = previous.prompt.pieces
            at = sum(order.index(piece.area) < order.index(setting.area) for piece in pieces)
            return _parameter(at, setting.name, setting.area, before, setting.said)
    return None


def _parameter(at: int, name: str, area: Area, was: str, now: str) -> Difference:
    words = _SWITCHES.get(name)
    if words is not None:
        because = words[0] if now else words[1]
    elif not was or not now:
        because = f"`{name}` was {'set to ' + _shown(now) if now else 'left out; it was ' + _shown(was)}"
    else:
        because = f"`{name}` changed from {_shown(was)} to {_shown(now)}"
    lost = (
        "everything" if area is Area.TOOLS else f"the {area} {'prompt and all' if area is Area.SYSTEM else ''}"
    )
    cause = Cause.IMAGES if name == IMAGES else Cause.PARAMETER
    return Difference(at=at, cause=cause, because=f"{because}; that breaks {lost.strip()} after it", field=name)


def _shown(said: str) -> str:
    return excerpt(said, 0, _LONGEST_VALUE_CHARS)


def where(found: Remembered, place: Place) -> str:
    """A place in words: `tools[3]`, `system[0]`, `messages[12] (user)`."""
    role = found.role(place)
    named = f"{place.area}[{place.index}]"
    if place.block:
        named += f" block {place.block}"
    return f"{named} ({role})" if role else named


def reworded_block(previous: Remembered, current: Remembered, before_at: int, after_at: int) -> Difference:
    """A block that stands in the same place and says something else."""
    one, other = previous.prompt.pieces[before_at], current.prompt.pieces[after_at]
    before, after = side(previous, before_at), side(current, after_at)
    was, now = previous.body(before_at), current.body(after_at)
    place = where(current, after.place)
    if now is not None and other.area is Area.TOOLS:
        place = f"the tool `{fields.tool_name(value(now))}` ({place})"
    if was is not None and was == now:
        because = f"{place}: {previous.role(before.place)} said it before, and {current.role(after.place)} now"
        return Difference(
            at=after_at, cause=Cause.ROLE, because=because, field="role", before=before, after=after
        )
    if was is None or now is None:
        sizes = f"{before.end_byte:,} to {after.end_byte:,} bytes"
        because = f"{place}: the {other.kind} block changed, from {sizes}"
        cause = Cause.TOOL_CHANGED if one.area is Area.TOOLS else Cause.EDITED
        return Difference(at=after_at, cause=cause, because=because, before=before, after=after)
    change = first_change(value(was), value(now))
    cause, words = _cause_of(change, one.area)
    return Difference(
        at=after_at,
        cause=cause,
        because=f"{place}: {words}",
        field=change.name,
        before=_part(before, change.before, change.change.start, change.change.end_before),
        after=_part(after, change.after, change.change.start, change.change.end_after),
    )


def _cause_of(change: FieldChange, area: Area) -> tuple[Cause, str]:
    name = change.name
    inside = f" in `{name}`" if name not in ("", "text") else ""
    match change.how:
        case How.KEY_ORDER:
            certainty = "a cache goes" if change.path else "a cache may go"
            return Cause.KEY_ORDER, f"the keys{inside} are in another order, and {certainty} by that"
        case How.ITEM_ORDER:
            words = f"the items{inside} are in another order"
            return (Cause.TOOL_CHANGED if area is Area.TOOLS else Cause.EDITED), words
        case How.ADDED | How.REMOVED:
            cause = Cause.TOOL_CHANGED if area is Area.TOOLS else Cause.EDITED
            return cause, f"`{name}` was {change.how}"
    wording = change.change.wording
    is_plain = wording in (Wording.EDITED, Wording.SHORTENED, Wording.EXTENDED) or name.endswith("name")
    if is_plain and area is Area.TOOLS:
        return Cause.TOOL_CHANGED, f"`{name}` changed"
    return Cause(wording), WORDS[wording] + inside


def _part(found: Side, text: str, start: int, end: int) -> Side:
    opens = size_bytes(text[:start])
    return Side(
        place=found.place,
        kind=found.kind,
        start_byte=opens,
        end_byte=opens + size_bytes(text[start:end]),
        excerpt=excerpt(text, start, end),
    )


def side(found: Remembered, at: int) -> Side:
    """A whole block as one side of a difference."""
    piece = found.prompt.pieces[at]
    body = found.body(at)
    said = None if body is None else value(body)
    shown = fields.tool_name(said) if piece.area is Area.TOOLS else fields.gist(said)
    place = piece.place or Place(piece.area, at)
    return Side(
        place=place,
        kind=piece.kind,
        start_byte=0,
        end_byte=found.lengths_bytes[at],
        excerpt=excerpt(shown, 0, len(shown)),
    )

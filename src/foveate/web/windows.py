"""A session's context window over time, as a chart of what filled it, and what fills it now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from foveate.cache.cause_words import describe_cause
from foveate.fold.journal import Compaction
from foveate.session.telling import describe_cache_break
from foveate.store.glances import WindowContents, WindowSample
from foveate.web.charts import OTHER_COLOUR, Chart, ChartEvent, Series, Shape, Unit
from foveate.web.words import format_count, format_money, format_percent, format_tokens

MAX_POINTS = 150
"""So many a chart shows, of each stretch of requests the fullest."""
MAX_MISSES = 100
"""So many breaks of the cache, the last ones, are told on a chart."""

_KIND_COLOURS = {
    "tools": "six",
    "system": "one",
    "injected": "seven",
    "summary": "four",
    "user": "three",
    "assistant": "two",
    "thinking": "five",
    "tool results": "nine",
    "images and files": "ten",
}
"""Of the kinds of sections, in the order in which a model reads them."""
_OTHER_KIND = "other"
_INJECTED_KIND = "injected"
# A window that is so many times larger would leave nothing to be seen of what is in it.
_MAX_WINDOW_FACTOR = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPart:
    """A section of a window with its share of all that is in it; `colour` is that of its kind."""

    name: str
    tokens: int
    share: float
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentWindow:
    """What fills a window, and how large it is; None where nobody knows."""

    parts: Sequence[WindowPart]
    tokens: int
    window_tokens: int | None
    exact: bool
    reserved_tokens: int

    @property
    def share(self) -> float | None:
        """How full it is."""
        return self.tokens / self.window_tokens if self.window_tokens else None


def choose_points(points: Sequence[WindowSample], max_points: int = MAX_POINTS) -> list[int]:
    """The places of the points that are shown: of each stretch the fullest, and in the end the last."""
    stretches = min(len(points), max_points)
    found = [
        max(
            range(_stretch_start(at, points, stretches), _stretch_start(at + 1, points, stretches)),
            key=lambda place: _token_count(points[place]),
        )
        for at in range(stretches)
    ]
    return [*found[:-1], len(points) - 1] if found else []


def list_required_requests(points: Sequence[WindowSample]) -> list[str]:
    """The ids of the requests of which a chart has to know what was in their windows, or why caches broke."""
    misses = [point.id for point in points if point.is_cache_miss][-MAX_MISSES:]
    last = [point.id for point in points if point.tokens is not None][-1:]
    return list(dict.fromkeys([*(points[at].id for at in choose_points(points)), *misses, *last]))


def describe_current_window(
    points: Sequence[WindowSample], fillings: Mapping[str, WindowContents]
) -> CurrentWindow | None:
    """Return what the last request had in its window; None if that is unknown."""
    last = points[-1] if points else None
    filling = fillings.get(last.id) if last is not None else None
    if last is None or last.tokens is None or filling is None:
        return None
    sizes = {section.name: section.tokens for section in filling.sections}
    if rest := last.tokens - sum(sizes.values()):
        sizes[_OTHER_KIND] = sizes.get(_OTHER_KIND, 0) + rest
    return CurrentWindow(
        parts=[
            WindowPart(name=name, tokens=size, share=size / max(1, last.tokens), colour=_colour(name))
            for name, size in sizes.items()
        ],
        tokens=last.tokens,
        window_tokens=last.window_tokens,
        exact=filling.exact,
        reserved_tokens=filling.reserved_tokens,
    )


def build_window_chart(
    points: Sequence[WindowSample],
    fillings: Mapping[str, WindowContents],
    compactions: Mapping[str, Compaction],
    *,
    first_number: int = 1,
) -> Chart | None:
    """The window at each request of a session; None where none was counted.

    `first_number` is that of the first point among the session's requests.
    """
    counts = [point.tokens for point in points if point.tokens is not None]
    if not counts:
        return None
    places = choose_points(points)
    shown = [points[at] for at in places]
    tokens_by_kind = [_group_by_kind(point, fillings.get(point.id)) for point in shown]
    names = [kind for kind in (*_KIND_COLOURS, _OTHER_KIND) if any(kind in parts for parts in tokens_by_kind)]
    series = [
        Series(
            name=name,
            values=[
                None if point.tokens is None else parts.get(name, 0)
                for point, parts in zip(shown, tokens_by_kind, strict=True)
            ],
            colour=_colour(name),
        )
        for name in names
    ]
    limits = [point.window_tokens for point in shown]
    known = [limit for limit in limits if limit is not None]
    title = "Context window over time"
    if known and min(known) <= _MAX_WINDOW_FACTOR * max(counts):
        series.append(Series(name="limit", values=limits, colour="limit", shape=Shape.LIMIT))
    elif known:
        title += f", far below its limit of {format_tokens(min(known))} tokens"
    events = _list_events(points, fillings, compactions, is_whole=first_number == 1)
    return Chart(
        id="window",
        title=title,
        says=_describe_chart(points, counts, events),
        labels=_format_labels([(first_number + at, points[at].at) for at in places]),
        series=series,
        unit=Unit.TOKENS,
        stacked=True,
        events=events,
    )


def _stretch_start(stretch: int, points: Sequence[WindowSample], stretches: int) -> int:
    return stretch * len(points) // stretches


def _token_count(point: WindowSample) -> int:
    return -1 if point.tokens is None else point.tokens


def _kind(name: str) -> str:
    """The kind of a section: injected ones are one, whatever their names."""
    if name.startswith(_INJECTED_KIND):
        return _INJECTED_KIND
    return name if name in _KIND_COLOURS else _OTHER_KIND


def _colour(name: str) -> str:
    return _KIND_COLOURS.get(_kind(name), OTHER_COLOUR)


def _group_by_kind(point: WindowSample, filling: WindowContents | None) -> dict[str, int]:
    """The tokens of a window by kind; what nobody has parted is of the other kind."""
    sizes: dict[str, int] = {}
    for section in filling.sections if filling is not None else ():
        kind = _kind(section.name)
        sizes[kind] = sizes.get(kind, 0) + section.tokens
    if rest := (point.tokens or 0) - sum(sizes.values()):
        sizes[_OTHER_KIND] = sizes.get(_OTHER_KIND, 0) + rest
    return sizes


def _list_events(
    points: Sequence[WindowSample],
    fillings: Mapping[str, WindowContents],
    compactions: Mapping[str, Compaction],
    *,
    is_whole: bool,
) -> list[ChartEvent]:
    """Folds and breaks, those of a stretch in one."""
    stretches = min(len(points), MAX_POINTS)
    found: dict[tuple[int, str], list[str]] = {}
    stretch = 0
    # What stands before the first point is known only where that is the first of all.
    compaction_id = None if is_whole else points[0].compaction_id
    for at, point in enumerate(points):
        while at >= _stretch_start(stretch + 1, points, stretches):
            stretch += 1
        is_newly_compacted, compaction_id = point.compaction_id != compaction_id, point.compaction_id
        if is_newly_compacted:
            found.setdefault((stretch, "fold"), []).append(
                _describe_compaction(point.compaction_id, compactions)
            )
        if not point.is_cache_miss:
            continue
        filling = fillings.get(point.id)
        if filling is None or filling.broke is None or not filling.broke.is_planned:
            found.setdefault((stretch, "break"), []).append(_describe_cache_miss(filling))
        elif not is_newly_compacted:
            found.setdefault((stretch, "fold"), []).append(_describe_cache_miss(filling))
    return [
        ChartEvent(
            label=label, kind=kind, says=says[-1] + (f" (and {len(says) - 1:,} more)" if says[1:] else "")
        )
        for (label, kind), says in found.items()
    ]


def _describe_compaction(compaction_id: str | None, compactions: Mapping[str, Compaction]) -> str:
    if compaction_id is None:
        return "No longer folded"
    compaction = compactions.get(compaction_id)
    if compaction is None:
        return "Folded"
    return f"Folded: {format_tokens(compaction.tokens_before)} tokens became {format_tokens(compaction.tokens_after)}"


def _describe_cache_miss(filling: WindowContents | None) -> str:
    cache_miss = filling.broke if filling is not None else None
    if cache_miss is None:
        return "Cache broke"
    lost = "" if cache_miss.lost_dollars is None else format_money(cache_miss.lost_dollars)
    text = describe_cache_break(cache_miss, describe_cause(cache_miss.cause), lost)
    return text[:1].upper() + text[1:]


def _format_labels(numbered: Sequence[tuple[int, float]]) -> list[str]:
    moments = [datetime.fromtimestamp(at, UTC) for _, at in numbered]
    form = "%H:%M:%S" if len({moment.date() for moment in moments}) == 1 else "%m-%d %H:%M"
    return [f"#{number} {at.strftime(form)}" for (number, _), at in zip(numbered, moments, strict=True)]


def _describe_chart(points: Sequence[WindowSample], counts: Sequence[int], events: Sequence[ChartEvent]) -> str:
    last = next(point for point in reversed(points) if point.tokens is not None)
    text = f"{format_tokens(last.tokens)} tokens at the last of {format_count(len(points), 'request')}"
    if last.window_tokens and last.tokens is not None:
        share = format_percent(last.tokens / last.window_tokens)
        text += f", {share} of a window of {format_tokens(last.window_tokens)}"
    kinds = [event.kind for event in events]
    happened = [f"{format_tokens(max(counts))} at most"]
    happened += [f"folds at {format_count(kinds.count('fold'), 'place')}"] if "fold" in kinds else []
    happened += (
        [f"the cache broke at {format_count(kinds.count('break'), 'place')}"] if "break" in kinds else []
    )
    return f"{text}; {', '.join(happened)}"

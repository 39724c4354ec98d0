"""A session's context window over time, as a chart of what filled it, and what fills it now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from foveate.cache.cause_words import cause_in_words
from foveate.fold.journal import Fold
from foveate.session.telling import broke_in_words
from foveate.store.glances import Filling, WindowAt
from foveate.web.charts import REST, Chart, Event, Series, Shape, Unit
from foveate.web.words import counted, money, percent, tokens

MOST_POINTS = 150
"""So many a chart shows, of each stretch of requests the fullest."""
MOST_BREAKS = 100
"""So many breaks of the cache, the last ones, are told on a chart."""

_COLOURS = {
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
_OTHER = "other"
_INJECTED = "injected"
# A window that is so many times larger would leave nothing to be seen of what is in it.
_FAR = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A section of a window with its share of all that is in it; `colour` is that of its kind."""

    name: str
    tokens: int
    share: float
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """What fills a window, and how large it is; None where nobody knows."""

    parts: Sequence[Part]
    tokens: int
    window_tokens: int | None
    exact: bool
    reserved_tokens: int

    @property
    def share(self) -> float | None:
        """How full it is."""
        return self.tokens / self.window_tokens if self.window_tokens else None


def chosen(points: Sequence[WindowAt], most: int = MOST_POINTS) -> list[int]:
    """The places of the points that are shown: of each stretch the fullest, and in the end the last."""
    stretches = min(len(points), most)
    found = [
        max(
            range(_start(at, points, stretches), _start(at + 1, points, stretches)),
            key=lambda place: _fullness(points[place]),
        )
        for at in range(stretches)
    ]
    return [*found[:-1], len(points) - 1] if found else []


def needed(points: Sequence[WindowAt]) -> list[str]:
    """The ids of the requests of which a chart has to know what was in their windows, or why caches broke."""
    broken = [point.id for point in points if point.is_broken][-MOST_BREAKS:]
    last = [point.id for point in points if point.tokens is not None][-1:]
    return list(dict.fromkeys([*(points[at].id for at in chosen(points)), *broken, *last]))


def full_now(points: Sequence[WindowAt], fillings: Mapping[str, Filling]) -> Full | None:
    """Return what the last request had in its window; None if that is unknown."""
    last = points[-1] if points else None
    filling = fillings.get(last.id) if last is not None else None
    if last is None or last.tokens is None or filling is None:
        return None
    sizes = {section.name: section.tokens for section in filling.sections}
    if rest := last.tokens - sum(sizes.values()):
        sizes[_OTHER] = sizes.get(_OTHER, 0) + rest
    return Full(
        parts=[
            Part(name=name, tokens=size, share=size / max(1, last.tokens), colour=_colour(name))
            for name, size in sizes.items()
        ],
        tokens=last.tokens,
        window_tokens=last.window_tokens,
        exact=filling.exact,
        reserved_tokens=filling.reserved_tokens,
    )


def window_chart(
    points: Sequence[WindowAt],
    fillings: Mapping[str, Filling],
    folds: Mapping[str, Fold],
    *,
    first_number: int = 1,
) -> Chart | None:
    """The window at each request of a session; None where none was counted.

    `first_number` is that of the first point among the session's requests.
    """
    counts = [point.tokens for point in points if point.tokens is not None]
    if not counts:
        return None
    places = chosen(points)
    shown = [points[at] for at in places]
    parted = [_parted(point, fillings.get(point.id)) for point in shown]
    names = [kind for kind in (*_COLOURS, _OTHER) if any(kind in parts for parts in parted)]
    series = [
        Series(
            name=name,
            values=[
                None if point.tokens is None else parts.get(name, 0)
                for point, parts in zip(shown, parted, strict=True)
            ],
            colour=_colour(name),
        )
        for name in names
    ]
    limits = [point.window_tokens for point in shown]
    known = [limit for limit in limits if limit is not None]
    title = "Context window over time"
    if known and min(known) <= _FAR * max(counts):
        series.append(Series(name="limit", values=limits, colour="limit", shape=Shape.LIMIT))
    elif known:
        title += f", far below its limit of {tokens(min(known))} tokens"
    events = _events(points, fillings, folds, is_whole=first_number == 1)
    return Chart(
        id="window",
        title=title,
        says=_says(points, counts, events),
        labels=_labels([(first_number + at, points[at].at) for at in places]),
        series=series,
        unit=Unit.TOKENS,
        stacked=True,
        events=events,
    )


def _start(stretch: int, points: Sequence[WindowAt], stretches: int) -> int:
    return stretch * len(points) // stretches


def _fullness(point: WindowAt) -> int:
    return -1 if point.tokens is None else point.tokens


def _kind(name: str) -> str:
    """The kind of a section: injected ones are one, whatever their names."""
    if name.startswith(_INJECTED):
        return _INJECTED
    return name if name in _COLOURS else _OTHER


def _colour(name: str) -> str:
    return _COLOURS.get(_kind(name), REST)


def _parted(point: WindowAt, filling: Filling | None) -> dict[str, int]:
    """The tokens of a window by kind; what nobody has parted is of the other kind."""
    sizes: dict[str, int] = {}
    for section in filling.sections if filling is not None else ():
        kind = _kind(section.name)
        sizes[kind] = sizes.get(kind, 0) + section.tokens
    if rest := (point.tokens or 0) - sum(sizes.values()):
        sizes[_OTHER] = sizes.get(_OTHER, 0) + rest
    return sizes


def _events(
    points: Sequence[WindowAt],
    fillings: Mapping[str, Filling],
    folds: Mapping[str, Fold],
    *,
    is_whole: bool,
) -> list[Event]:
    """Folds and breaks, those of a stretch in one."""
    stretches = min(len(points), MOST_POINTS)
    found: dict[tuple[int, str], list[str]] = {}
    stretch = 0
    # What stands before the first point is known only where that is the first of all.
    fold_id = None if is_whole else points[0].fold_id
    for at, point in enumerate(points):
        while at >= _start(stretch + 1, points, stretches):
            stretch += 1
        is_folded_anew, fold_id = point.fold_id != fold_id, point.fold_id
        if is_folded_anew:
            found.setdefault((stretch, "fold"), []).append(_folded(point.fold_id, folds))
        if not point.is_broken:
            continue
        filling = fillings.get(point.id)
        if filling is None or filling.broke is None or not filling.broke.is_planned:
            found.setdefault((stretch, "break"), []).append(_broke(filling))
        elif not is_folded_anew:
            found.setdefault((stretch, "fold"), []).append(_broke(filling))
    return [
        Event(label=label, kind=kind, says=says[-1] + (f" (and {len(says) - 1:,} more)" if says[1:] else ""))
        for (label, kind), says in found.items()
    ]


def _folded(fold_id: str | None, folds: Mapping[str, Fold]) -> str:
    if fold_id is None:
        return "No longer folded"
    fold = folds.get(fold_id)
    if fold is None:
        return "Folded"
    return f"Folded: {tokens(fold.tokens_before)} tokens became {tokens(fold.tokens_after)}"


def _broke(filling: Filling | None) -> str:
    broke = filling.broke if filling is not None else None
    if broke is None:
        return "Cache broke"
    lost = "" if broke.lost_dollars is None else money(broke.lost_dollars)
    told = broke_in_words(broke, cause_in_words(broke.cause), lost)
    return told[:1].upper() + told[1:]


def _labels(numbered: Sequence[tuple[int, float]]) -> list[str]:
    moments = [datetime.fromtimestamp(at, UTC) for _, at in numbered]
    form = "%H:%M:%S" if len({moment.date() for moment in moments}) == 1 else "%m-%d %H:%M"
    return [f"#{number} {at.strftime(form)}" for (number, _), at in zip(numbered, moments, strict=True)]


def _says(points: Sequence[WindowAt], counts: Sequence[int], events: Sequence[Event]) -> str:
    last = next(point for point in reversed(points) if point.tokens is not None)
    told = f"{tokens(last.tokens)} tokens at the last of {counted(len(points), 'request')}"
    if last.window_tokens and last.tokens is not None:
        share = percent(last.tokens / last.window_tokens)
        told += f", {share} of a window of {tokens(last.window_tokens)}"
    kinds = [event.kind for event in events]
    happened = [f"{tokens(max(counts))} at most"]
    happened += [f"folds at {counted(kinds.count('fold'), 'place')}"] if "fold" in kinds else []
    happened += [f"the cache broke at {counted(kinds.count('break'), 'place')}"] if "break" in kinds else []
    return f"{told}; {', '.join(happened)}"

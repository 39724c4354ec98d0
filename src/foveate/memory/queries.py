"""Queries for nodes by tag, state, type, text or modification time.

Nodes contain only public text. Their times are naive local times, like dates in notes.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from heapq import nlargest
from typing import Self

from foveate.errors import BadOption
from foveate.memory.nodes import Node
from foveate.memory.parsing.outline import PlanningKind
from foveate.memory.privacy import normalize_tag
from foveate.unicode_normalization import normalize_unicode

PROJECT = "project"
DEFAULT_RECENT_TASKS = 10

_STATE_GROUPS: dict[str, Callable[[Node], bool]] = {
    "any": lambda node: bool(node.todo),
    "open": lambda node: bool(node.todo) and not node.entry.is_done,
    "done": lambda node: node.entry.is_done,
}
_AGO = re.compile(r"([0-9]{1,9})\s*([hdw])", re.IGNORECASE)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_AGO_HOURS = {"h": 1, "d": 24, "w": 7 * 24}
_MOMENTS = "a date (2026-11-01), a time (2026-11-01T09:30) or an age (12h, 7d, 2w)"
_PHRASE = re.compile(r'"([^"]*)"|(\S+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Conditions that a node must all match; None means any.

    - `tag`: a tag of the node or its ancestors, complete, in any case, with or without colons; several as
      `:a:b:`.
    - `todo`: a state in any case, or a group: `any`, `open` (not done), `done` (every state that the file
      counts as done, perhaps CANCELLED).
    - `type`: the declared type, or `project`, `task`, `document`, `note`; in any case.
    - `text`: words that all occur in title or text, in any order and case, also inside longer words. A phrase
      in double quotes must occur as written, across line breaks.
    - `since`, `until`: the modification time, both inclusive.
    """

    tag: str | None = None
    todo: str | None = None
    type: str | None = None
    text: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    _tags: frozenset[str] = field(init=False, repr=False, compare=False, default=frozenset())
    _phrases: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        """Reject queries that cannot match anything.

        Raises:
            BadOption: tag, state, type or text is empty, or `since` is after `until`.
        """
        object.__setattr__(self, "_tags", frozenset(map(normalize_tag, _split_tags(self.tag or ""))))
        object.__setattr__(self, "_phrases", tuple(_phrases(self.text or "")))
        for name, value in (
            ("tag", self._tags),
            ("todo", (self.todo or "").strip()),
            ("type", (self.type or "").strip()),
            ("text", self._phrases),
        ):
            if getattr(self, name) is not None and not value:
                raise BadOption(f"{name} must not be empty: set a value or omit it", path=(name,))
        for name in ("since", "until"):
            moment = getattr(self, name)
            if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo):
                raise BadOption(
                    f"{name} must be a local datetime without a time zone, not {moment!r}; "
                    "use Query.parse for text",
                    path=(name,),
                )
        if self.since and self.until and self.since > self.until:
            raise BadOption(f"since ({self.since}) is later than until ({self.until})", path=("since",))

    @classmethod
    def parse(
        cls,
        *,
        tag: str | None = None,
        todo: str | None = None,
        type: str | None = None,  # noqa: A002 - public name
        text: str | None = None,
        since: str | None = None,
        until: str | None = None,
        now: datetime,
    ) -> Self:
        """Parse a query as users write it.

        A moment is a date (`2026-11-01`), a time (`2026-11-01T09:30`, with or without a zone) or an age before
        `now` (`12h`, `7d`, `2w`). `since` a date means from its start, `until` a date to its end. Times
        are those of the zone of `now`, or of this machine if it has none.

        Raises:
            BadOption: a value cannot be parsed; says what is valid.
        """
        return cls(
            tag=tag,
            todo=todo,
            type=type,
            text=text,
            since=None if since is None else _parse_moment(since, now, "since", time.min),
            until=None if until is None else _parse_moment(until, now, "until", time.max),
        )

    def matches(self, node: Node) -> bool:
        return (
            (self.todo is None or _has_state(node, self.todo))
            and (self.type is None or node.type.casefold() == self.type.strip().casefold())
            and (not self._tags or self._tags.issubset(map(normalize_tag, node.tags)))
            and self._is_in_time(node)
            and (not self._phrases or self._contains_phrases(node))
        )

    def _is_in_time(self, node: Node) -> bool:
        changed = node.modified
        return (self.since is None or self.since <= changed) and (self.until is None or changed <= self.until)

    def _contains_phrases(self, node: Node) -> bool:
        # A phrase never spans title and text: it would have to contain this character.
        text = _normalize(f"{node.title}\0{node.full_text}")
        return all(phrase.search(text) for phrase in self._phrases)


def filter_nodes(nodes: Iterable[Node], query: Query) -> Iterator[Node]:
    return filter(query.matches, nodes)


def active_projects(nodes: Iterable[Node]) -> Iterator[Node]:
    """Unfinished nodes with their own tag `project`, not an inherited one."""
    return (node for node in nodes if not node.entry.is_done and is_project(node))


def is_project(node: Node) -> bool:
    return any(normalize_tag(tag) == PROJECT for tag in node.entry.tags)


def recent_tasks(nodes: Iterable[Node], limit: int = DEFAULT_RECENT_TASKS) -> list[Node]:
    """Finished tasks, the newest first, by closing time or else modification time.

    Tasks with equal times keep their order in the files.

    Raises:
        BadOption: `limit` is below 0.
    """
    if limit < 0:
        raise BadOption(f"limit must be a number of tasks, 0 or more, not {limit}", path=("limit",))
    return nlargest(limit, (node for node in nodes if node.entry.is_done), key=finished_at)


def finished_at(node: Node) -> datetime:
    """The closing time, or else the modification time."""
    closed = (stamp.at for stamp in node.entry.planning_dates if stamp.kind is PlanningKind.CLOSED)
    return max(closed, default=node.modified)


def _has_state(node: Node, state: str) -> bool:
    state = state.strip().casefold()
    return node.todo.casefold() == state or (state in _STATE_GROUPS and _STATE_GROUPS[state](node))


def _parse_moment(written: str, now: datetime, name: str, time_of_day: time) -> datetime:
    text = written.strip()
    try:
        if ago := _AGO.fullmatch(text):
            # Elapsed hours, independent of clock changes.
            age = timedelta(hours=int(ago[1]) * _AGO_HOURS[ago[2].lower()])
            return _to_local(now.astimezone(UTC) - age, now)
        if not _DATE.match(text):
            raise ValueError(text)
        if len(text) == len("2026-11-01"):
            return datetime.combine(date.fromisoformat(text), time_of_day)
        return _to_local(datetime.fromisoformat(text), now)
    except (ValueError, OverflowError):
        raise BadOption(f"{name} must be {_MOMENTS}, not {written!r:.60}", path=(name,)) from None


def _to_local(moment: datetime, now: datetime) -> datetime:
    """Convert to naive local time in the zone of `now`, or of this machine; naive times stay unchanged."""
    return moment.astimezone(now.tzinfo).replace(tzinfo=None) if moment.tzinfo else moment


def _phrases(text: str) -> Iterator[re.Pattern[str]]:
    for quoted, word in _PHRASE.findall(_normalize(text)):
        words = quoted.split() or [word]
        if any(words):
            yield re.compile(r"\s+".join(map(re.escape, words)))


def _normalize(text: str) -> str:
    return normalize_unicode(text).casefold()


def _split_tags(tag: str) -> list[str]:
    return [part for part in tag.split(":") if normalize_tag(part)]

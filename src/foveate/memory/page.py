"""A page: a view while it is being filled, within its limit."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from foveate.budget.cutting import TRUNCATED, Body, Parts, Room, cut
from foveate.budget.sections import Keep
from foveate.budget.standing import text_of
from foveate.memory.blocks import content, heading, planning
from foveate.memory.excerpts import Stretch, stretches
from foveate.memory.forest import Forest
from foveate.memory.view import Level, View, ViewFormat, ViewNode
from foveate.tokens.gauge import Gauge, Part
from foveate.tokens.tape import NOTHING
from foveate.values import TokenCount

_BETWEEN = "\n"
# So many blocks are measured at once, which is much quicker than one by one.
_BATCH = 64
# After so many that do not fit, hardly any other will.
_PATIENCE = 24

# The longest tokens of all are rows of so many blanks.
_MOST_CHARS_PER_TOKEN = 128
# So many blanks between two lines are kept.
_MOST_BLANKS = 128

_RANKS = {Level.HIDDEN: 0, Level.TITLE: 1, Level.EXCERPT: 2, Level.FULL: 3}


@dataclass(frozen=True, slots=True)
class Block:
    """A node on a page: how much of it, as which text, and how many tokens that is with the end of its line."""

    level: Level
    parts: Parts
    tokens: int


@dataclass(slots=True)
class Page:
    """Nodes by their place in the forest, each with what is shown of it.

    A node never stands without what it stands in: whoever puts it there pays for those titles too.
    """

    forest: Forest
    gauge: Gauge
    form: ViewFormat
    first: int = 0
    """What stands before this place is never shown."""
    promoted: Mapping[int, float] = field(default_factory=dict)
    """The similarity of the nodes that are shown for it, which say so."""
    blocks: dict[int, Block] = field(default_factory=dict)
    """In the order in which they were put there."""
    used_tokens: int = 0

    def put_all(
        self, places: Sequence[int], level: Level, room_tokens: int, *, patience: int = _PATIENCE
    ) -> int | None:
        """Put those nodes on the page that fit in `room_tokens`; gives the first that did not.

        After more than `patience` of these no others are tried.
        """
        missed: list[int] = []
        for start in range(0, len(places), _BATCH):
            batch = [place for place in places[start : start + _BATCH] if self._adds(place, level)]
            tapes = self.gauge.tapes([self._text(place, level) for place in batch])
            for place, tape in zip(batch, tapes, strict=True):
                if not (
                    self._put(place, Block(level, (tape,), tape.total.upper + 1), room_tokens)
                    or self._put_without_score(place, level, room_tokens)
                ):
                    missed.append(place)
                if len(missed) > patience:
                    return missed[0]
        return missed[0] if missed else None

    def put_together(self, places: Sequence[int], room_tokens: int) -> bool:
        """Put nodes that follow each other on the page, all of them whole or none."""
        adding = [place for place in places if self._adds(place, Level.FULL)]
        # One id is enough for all of it: whoever wants more has it. What has shown its own keeps it.
        own = {places[0], *self.blocks}
        texts = [self._text(place, Level.FULL, shows_id=place in own) for place in adding]
        tapes = self.gauge.tapes(texts)
        blocks = {
            place: Block(Level.FULL, (tape,), tape.total.upper + 1)
            for place, tape in zip(adding, tapes, strict=True)
        }
        there = sum(self.blocks[place].tokens for place in adding if place in self.blocks)
        tokens = self.used_tokens - there + sum(block.tokens for block in blocks.values())
        if tokens > room_tokens:
            return False
        self.blocks |= blocks
        self.used_tokens = tokens
        return True

    def put_excerpt(
        self,
        place: int,
        room_tokens: int,
        relevant: Sequence[Stretch] | None = None,
        *,
        needs_stretch: bool = False,
    ) -> bool:
        """Put as much of a node on the page as fits: all of it, its beginning, or what is `relevant`.

        `relevant` are stretches of its content, the most relevant first. Where there is no room for more than
        the heading nothing is put there; with `needs_stretch`, where the first stretch has no room whole.
        """
        above = self._missing_above(place)
        free_tokens = room_tokens - self._used_without(place) - (1 if self.blocks else 0)
        node, head = self.forest.nodes[place], self._heading(place)
        said, plan = content(node, self.form), planning(node)
        block = self._cut(above, _joined(head, plan), said, free_tokens, relevant)
        if needs_stretch:
            start, end = relevant[0] if relevant else next(stretches(said))
            if block is None or said[start:end].rstrip() not in text_of(block.parts):
                return False
        elif block is None and plan:
            block = self._planned(above, head, plan.split(_BETWEEN), free_tokens)
        if block is None:
            return False
        self._add(place, block, above)
        return True

    def put_alone(self, place: int, room_tokens: int) -> bool:
        """Put the title of a node on the page, and of what it stands in the nearest titles that fit."""
        tape = self.gauge.tape(self._text(place, Level.TITLE))
        if tape.total.upper > room_tokens:
            return False
        above = list(self._missing_above(place).items())[::-1]
        self.blocks[place] = Block(Level.TITLE, (tape,), tape.total.upper + 1)
        tokens = tape.total.upper
        for each, block in above:
            # What a title takes beside others can be a token less, hardly ever more.
            tokens += block.tokens - 1
            if tokens > room_tokens:
                break
            self.blocks[each] = block
        while self.count().upper > room_tokens:
            self.take_off_last()
        return True

    def stands_free(self, place: int) -> bool:
        """Whether something that a node stands in is not on the page."""
        while (place := int(self.forest.parent[place])) >= self.first:
            if place not in self.blocks:
                return True
        return False

    def take_off_last(self) -> None:
        """Take off again what was put on the page last."""
        self.used_tokens -= self.blocks.popitem()[1].tokens

    def count(self) -> TokenCount:
        """How many tokens the page is, counted whole; from then on this is what it takes."""
        count = self.gauge.count(self._parts())
        self.used_tokens = count.upper
        return count

    def view(self, limit_tokens: int | None, scores: Mapping[int, float]) -> View:
        """The page as it is."""
        nodes = self.forest.nodes
        return View(
            text=text_of(self._parts()),
            count=self.count(),
            limit_tokens=limit_tokens,
            nodes=tuple(
                ViewNode(nodes[place].id, nodes[place].title, block.level, scores[place], block.tokens - 1)
                for place, block in sorted(self.blocks.items())
            ),
        )

    def _cut(
        self,
        above: Mapping[int, Block],
        opening: str,
        said: str,
        room_tokens: int,
        relevant: Sequence[Stretch] | None = None,
    ) -> Block | None:
        """As much of a text as fits below the titles `above` and its opening; None where that is nothing."""
        opening += _BETWEEN if said else ""
        before = self.gauge.run([*_parts_of(above), _BETWEEN, opening] if above else [opening])
        room = Room(self.gauge, room_tokens, (before, NOTHING), (before, NOTHING))
        # What certainly has no room is not even measured: there may be megabytes of it.
        most_chars = max(room_tokens, 1) * _MOST_CHARS_PER_TOKEN
        if relevant:
            body = _ranked(self.gauge, said, _within(relevant, most_chars))
        else:
            text = said[:most_chars]
            body = Body(tape=self.gauge.tape(text), keep=Keep.HEAD, start=0, end=len(text))
        is_whole = body.tape.text.rstrip() == said.rstrip() and room.left((body.tape,)) >= 0
        kept = (body.tape,) if is_whole else cut(body, room)
        if kept is None:
            return None
        parts = (opening, *kept)
        level = Level.FULL if is_whole else Level.EXCERPT
        return Block(level, parts, self.gauge.count(parts).upper + 1)

    def _planned(
        self, above: Mapping[int, Block], head: str, lines: Sequence[str], room_tokens: int
    ) -> Block | None:
        """A heading with as many lines of its planning as fit, where there is room for nothing else.

        None is cut inside, since half a date is another one; rather nothing says that there is more.
        """
        for size in range(len(lines), 0, -1):
            for marker in (TRUNCATED, ""):
                text = _joined(head, *lines[:size], marker)
                if self.gauge.count([*_parts_of(above), _BETWEEN if above else "", text]).upper <= room_tokens:
                    tape = self.gauge.tape(text)
                    return Block(Level.EXCERPT, (tape,), tape.total.upper + 1)
        return None

    def _put_without_score(self, place: int, level: Level, room_tokens: int) -> bool:
        """Rather without saying how similar it is than not at all."""
        if level is Level.TITLE or place not in self.promoted:
            return False
        node = self.forest.nodes[place]
        head = heading(node, self.form, int(self.forest.depth[place]))
        tape = self.gauge.tape(_joined(head, planning(node), content(node, self.form)))
        return self._put(place, Block(level, (tape,), tape.total.upper + 1), room_tokens)

    def _text(self, place: int, level: Level, *, shows_id: bool = True) -> str:
        node = self.forest.nodes[place]
        if level is Level.TITLE:
            return heading(node, self.form, int(self.forest.depth[place]))
        return _joined(self._opening(place, shows_id=shows_id), content(node, self.form))

    def _opening(self, place: int, *, shows_id: bool = True) -> str:
        """What is shown of a node before its content, whatever is cut of that."""
        return _joined(self._heading(place, shows_id=shows_id), planning(self.forest.nodes[place]))

    def _heading(self, place: int, *, shows_id: bool = True) -> str:
        node, depth = self.forest.nodes[place], int(self.forest.depth[place])
        return heading(node, self.form, depth, self.promoted.get(place), shows_id=shows_id)

    def _adds(self, place: int, level: Level) -> bool:
        there = self.blocks.get(place)
        return there is None or _RANKS[level] > _RANKS[there.level]

    def _put(self, place: int, block: Block, room_tokens: int) -> bool:
        above = self._missing_above(place)
        tokens = block.tokens + sum(each.tokens for each in above.values())
        if self._used_without(place) + tokens > room_tokens:
            return False
        self._add(place, block, above)
        return True

    def _add(self, place: int, block: Block, above: Mapping[int, Block]) -> None:
        self.used_tokens = (
            self._used_without(place) + block.tokens + sum(each.tokens for each in above.values())
        )
        self.blocks.update(above)
        self.blocks[place] = block

    def _used_without(self, place: int) -> int:
        there = self.blocks.get(place)
        return self.used_tokens - (there.tokens if there else 0)

    def _missing_above(self, place: int) -> dict[int, Block]:
        """The titles of what a node stands in, as far as they are not there yet."""
        missing = []
        while (place := int(self.forest.parent[place])) >= self.first and place not in self.blocks:
            missing.append(place)
        tapes = self.gauge.tapes([self._text(place, Level.TITLE) for place in reversed(missing)])
        return {
            place: Block(Level.TITLE, (tape,), tape.total.upper + 1)
            for place, tape in zip(reversed(missing), tapes, strict=True)
        }

    def _parts(self) -> list[Part]:
        return _parts_of(dict(sorted(self.blocks.items())))


def _parts_of(blocks: Mapping[int, Block]) -> list[Part]:
    """Blocks that stand below each other."""
    return [part for block in blocks.values() for part in (_BETWEEN, *block.parts)][1:]


def _joined(*texts: str) -> str:
    return _BETWEEN.join(filter(None, texts))


def _within(ranked: Sequence[Stretch], most_chars: int) -> Sequence[Stretch]:
    """As many of the first as are not longer together; at least one."""
    ends = list(accumulate(end - start for start, end in ranked))
    return ranked[: bisect_right(ends, most_chars, lo=min(1, len(ends)))]


def _ranked(gauge: Gauge, said: str, relevant: Sequence[Stretch]) -> Body:
    """A text of these stretches in the order in which they stand, each an item, and the blanks between."""
    texts: list[str] = []
    items: dict[Stretch, tuple[int, int]] = {}
    at = before = 0
    for start, end in sorted(relevant):
        blanks = said[before:start]
        if blanks.strip() or len(blanks) > _MOST_BLANKS:
            blanks = _BETWEEN
        texts += [blanks, said[start:end]]
        at += len(blanks)
        items[start, end] = (at, at + end - start)
        at, before = items[start, end][1], end
    numbers = {stretch: number for number, stretch in enumerate(items)}
    return Body(
        tape=gauge.tape("".join(texts)),
        keep=Keep.RELEVANT,
        start=0,
        end=at,
        items=[*items.values()],
        ranking=[numbers[stretch] for stretch in relevant],
    )

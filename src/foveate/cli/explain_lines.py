"""What `foveate explain` shows: lines for people, an object for programs."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from decimal import Decimal

import msgspec
from rich.cells import cell_len, set_cell_size

from foveate.cache.causes import Side
from foveate.cache.explain import Break, NoBreak
from foveate.cache.rules import Rules
from foveate.cli.screen import Look, number

_BOLD, _DIM, _RED, _GREEN, _YELLOW = "1", "2", "31", "32", "33"
_LEAST_COLUMNS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPair:
    """Two requests of a session that were kept, and what was billed for the later one."""

    session_id: str
    previous_id: str
    request_id: str
    gap_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A verdict, and what it rests on: the model, its rules, and whether its tokens were counted exactly.

    `kept` says which requests these are, where they were kept.
    """

    verdict: Break | NoBreak
    model: str
    rules: Rules
    exact: bool
    kept: KeptPair | None = None


def as_object(explained: Explained) -> dict[str, object]:
    """The verdict as JSON can say it; money is a string, so that nothing of it is lost."""
    verdict, rules = explained.verdict, explained.rules
    shown: dict[str, object] = {
        "broken": isinstance(verdict, Break),
        **msgspec.to_builtins(verdict, builtin_types=(Decimal,)),
    }
    if isinstance(verdict, Break):
        shown["lost_dollars"] = None if verdict.lost_dollars is None else _plain(verdict.lost_dollars)
    return (shown if explained.kept is None else shown | asdict(explained.kept)) | {
        "model": explained.model,
        "exact": explained.exact,
        "rules": {
            "provider": rules.provider,
            "family": rules.family,
            "source": rules.source,
            "as_of": rules.as_of,
            "inherited": rules.inherited,
        },
    }


def lines(explained: Explained, look: Look) -> Iterator[str]:
    """The verdict for a person: the cause, both sides, what it cost, and what is behind that."""
    writing = _Writing(look, exact=explained.exact)
    if explained.kept is not None:
        pair = explained.kept
        named = f"request {pair.request_id}, {pair.gap_seconds:,.0f} s after {pair.previous_id}"
        yield from writing.wrapped(f"session {pair.session_id}: {named}", _DIM)
    match explained.verdict:
        case Break() as found:
            yield from writing.of_break(found)
        case NoBreak() as found:
            yield from writing.of_no_break(found)
    yield from writing.wrapped(_basis(explained), _DIM)


class _Writing:
    def __init__(self, look: Look, *, exact: bool) -> None:
        self._look = look
        self._exact = exact
        self._columns = max(look.columns, _LEAST_COLUMNS)
        self._dash = "–" if look.can_show("–") else "-"

    def of_break(self, found: Break) -> Iterator[str]:
        yield from self.wrapped(found.because, _BOLD)
        yield from self._side("before", found.before, found.field, _RED)
        yield from self._side("now", found.after, found.field, _GREEN)
        yield from self.wrapped(self._cost(found))
        for reason in found.also:
            yield from self.wrapped(f"also: {reason}", _YELLOW)

    def of_no_break(self, found: NoBreak) -> Iterator[str]:
        yield from self.wrapped("the prefix holds", _BOLD)
        kept, read = self._number(found.kept_tokens), self._number(found.read_tokens)
        yield from self.wrapped(f"{kept} tokens were kept, and {read} of them can be read")
        for remark in found.remarks:
            yield from self.wrapped(f"also: {remark}", _YELLOW)

    def _side(self, name: str, side: Side | None, field: str, colour: str) -> Iterator[str]:
        if side is None:
            return
        place = f"{side.place.area}[{side.place.index}]"
        place += "" if side.place.block is None else f" block {side.place.block}"
        extent = f"bytes {side.start_byte:,}{self._dash}{side.end_byte:,}"
        within = f" of {field}" if field else ""
        yield from self.wrapped(f"{name:<6}  {place}, {extent}{within}", _DIM, indent=2)
        if side.excerpt:
            yield self._painted(self._fitted(f"    {self._look.plain(side.excerpt)}"), colour)

    def _cost(self, found: Break) -> str:
        kept, read, lost = (
            self._number(tokens) for tokens in (found.kept_tokens, found.read_tokens, found.lost_tokens)
        )
        if not found.lost_tokens:
            return (
                "nothing that was kept is lost" if found.kept_tokens else "nothing was kept, so nothing is lost"
            )
        worth = self._number(found.lost_uncached_tokens)
        paid = f"{lost} are paid again, which costs as much as {worth} uncached input tokens"
        if found.lost_dollars is not None:
            paid += f", ${_rounded(found.lost_dollars)}"
        return f"{kept} tokens were kept and {read} of them can be read: {paid}"

    def wrapped(self, text: str, colour: str = "", *, indent: int = 0) -> Iterator[str]:
        """Lines that fit; what a terminal would obey is escaped."""
        line = ""
        for word in self._look.plain(text).split(" "):
            if line and indent + cell_len(f"{line} {word}") > self._columns:
                yield self._painted(" " * indent + line, colour)
                line = word
            else:
                line = f"{line} {word}" if line else word
        yield self._painted(" " * indent + self._fitted(line), colour)

    def _number(self, tokens: int) -> str:
        return number(tokens, self._exact or not tokens)  # nothing is nothing, whoever counts

    def _fitted(self, text: str) -> str:
        return text if cell_len(text) <= self._columns else set_cell_size(text, self._columns).rstrip()

    def _painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if colour and self._look.colours else text


def _basis(explained: Explained) -> str:
    rules = explained.rules
    if not rules.family:
        return f"{explained.model}: {rules.source}"
    kin = "its kin " if rules.inherited else ""
    counted = "exact" if explained.exact else "estimated"
    rested = f"the cache of {kin}{rules.family} at {rules.provider}, as of {rules.as_of}"
    return f"{explained.model}: {rested}; tokens {counted}"


def _plain(dollars: Decimal) -> str:
    return f"{dollars.normalize():f}"


def _rounded(dollars: Decimal) -> str:
    """Dollars as people say them: two digits behind the point, or as many as show something."""
    digits = 2
    while digits < 8 and 0 < dollars < Decimal(10) ** (1 - digits):
        digits += 1
    return f"{dollars:,.{digits}f}"

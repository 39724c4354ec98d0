"""What `foveate explain` shows: lines for people, an object for programs."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from decimal import Decimal

import msgspec
from rich.cells import cell_len, set_cell_size

from foveate.cache.causes import DifferenceSide
from foveate.cache.explain import ExplainedMiss, NoMiss
from foveate.cache.rules import CacheRules
from foveate.cli.screen import Display, format_tokens

_BOLD, _DIM, _RED, _GREEN, _YELLOW = "1", "2", "31", "32", "33"
_MIN_COLUMNS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPair:
    """Two requests of a session that were kept, and what was billed for the later one."""

    session_id: str
    previous_id: str
    request_id: str
    gap_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheExplanation:
    """A verdict, and what it rests on: the model, its rules, and whether its tokens were counted exactly.

    `kept` says which requests these are, where they were kept.
    """

    verdict: ExplainedMiss | NoMiss
    model: str
    rules: CacheRules
    exact: bool
    stored_pair: StoredPair | None = None


def explanation_object(explanation: CacheExplanation) -> dict[str, object]:
    """The verdict as JSON can say it; money is a string, so that nothing of it is lost."""
    verdict, rules = explanation.verdict, explanation.rules
    fields: dict[str, object] = {
        "broken": isinstance(verdict, ExplainedMiss),
        **msgspec.to_builtins(verdict, builtin_types=(Decimal,)),
    }
    if isinstance(verdict, ExplainedMiss):
        fields["lost_dollars"] = None if verdict.lost_dollars is None else _exact_dollars(verdict.lost_dollars)
    return (fields if explanation.stored_pair is None else fields | asdict(explanation.stored_pair)) | {
        "model": explanation.model,
        "exact": explanation.exact,
        "rules": {
            "provider": rules.provider,
            "family": rules.family,
            "source": rules.source,
            "as_of": rules.as_of,
            "inherited": rules.inherited,
        },
    }


def explanation_lines(explanation: CacheExplanation, display: Display) -> Iterator[str]:
    """The verdict for a person: the cause, both sides, what it cost, and what is behind that."""
    formatter = _ExplanationFormatter(display, exact=explanation.exact)
    if explanation.stored_pair is not None:
        pair = explanation.stored_pair
        requests = f"request {pair.request_id}, {pair.gap_seconds:,.0f} s after {pair.previous_id}"
        yield from formatter.wrap(f"session {pair.session_id}: {requests}", _DIM)
    match explanation.verdict:
        case ExplainedMiss() as found:
            yield from formatter.miss_lines(found)
        case NoMiss() as found:
            yield from formatter.hit_lines(found)
    yield from formatter.wrap(_describe_basis(explanation), _DIM)


class _ExplanationFormatter:
    def __init__(self, display: Display, *, exact: bool) -> None:
        self._display = display
        self._exact = exact
        self._columns = max(display.columns, _MIN_COLUMNS)
        self._dash = "–" if display.can_show("–") else "-"

    def miss_lines(self, found: ExplainedMiss) -> Iterator[str]:
        yield from self.wrap(found.because, _BOLD)
        yield from self._side_lines("before", found.before, found.field, _RED)
        yield from self._side_lines("now", found.after, found.field, _GREEN)
        yield from self.wrap(self._describe_cost(found))
        for reason in found.also:
            yield from self.wrap(f"also: {reason}", _YELLOW)

    def hit_lines(self, found: NoMiss) -> Iterator[str]:
        yield from self.wrap("the prefix holds", _BOLD)
        kept, read = self._format_tokens(found.kept_tokens), self._format_tokens(found.read_tokens)
        yield from self.wrap(f"{kept} tokens were kept, and {read} of them can be read")
        for remark in found.remarks:
            yield from self.wrap(f"also: {remark}", _YELLOW)

    def _side_lines(self, name: str, side: DifferenceSide | None, field: str, colour: str) -> Iterator[str]:
        if side is None:
            return
        place = f"{side.place.area}[{side.place.index}]"
        place += "" if side.place.block is None else f" block {side.place.block}"
        extent = f"bytes {side.start_byte:,}{self._dash}{side.end_byte:,}"
        within = f" of {field}" if field else ""
        yield from self.wrap(f"{name:<6}  {place}, {extent}{within}", _DIM, indent=2)
        if side.excerpt:
            yield self._paint(self._fit(f"    {self._display.escape(side.excerpt)}"), colour)

    def _describe_cost(self, found: ExplainedMiss) -> str:
        kept, read, lost = (
            self._format_tokens(tokens) for tokens in (found.kept_tokens, found.read_tokens, found.lost_tokens)
        )
        if not found.lost_tokens:
            return (
                "nothing that was kept is lost" if found.kept_tokens else "nothing was kept, so nothing is lost"
            )
        worth = self._format_tokens(found.lost_uncached_tokens)
        paid = f"{lost} are paid again, which costs as much as {worth} uncached input tokens"
        if found.lost_dollars is not None:
            paid += f", ${_rounded_dollars(found.lost_dollars)}"
        return f"{kept} tokens were kept and {read} of them can be read: {paid}"

    def wrap(self, text: str, colour: str = "", *, indent: int = 0) -> Iterator[str]:
        """Lines that fit; what a terminal would obey is escaped."""
        line = ""
        for word in self._display.escape(text).split(" "):
            if line and indent + cell_len(f"{line} {word}") > self._columns:
                yield self._paint(" " * indent + line, colour)
                line = word
            else:
                line = f"{line} {word}" if line else word
        yield self._paint(" " * indent + self._fit(line), colour)

    def _format_tokens(self, tokens: int) -> str:
        return format_tokens(tokens, self._exact or not tokens)  # nothing is nothing, whoever counts

    def _fit(self, text: str) -> str:
        return text if cell_len(text) <= self._columns else set_cell_size(text, self._columns).rstrip()

    def _paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if colour and self._display.colours else text


def _describe_basis(explanation: CacheExplanation) -> str:
    rules = explanation.rules
    if not rules.family:
        return f"{explanation.model}: {rules.source}"
    kin = "its kin " if rules.inherited else ""
    counted = "exact" if explanation.exact else "estimated"
    rules_text = f"the cache of {kin}{rules.family} at {rules.provider}, as of {rules.as_of}"
    return f"{explanation.model}: {rules_text}; tokens {counted}"


def _exact_dollars(dollars: Decimal) -> str:
    return f"{dollars.normalize():f}"


def _rounded_dollars(dollars: Decimal) -> str:
    """Dollars as people say them: two digits behind the point, or as many as show something."""
    digits = 2
    while digits < 8 and 0 < dollars < Decimal(10) ** (1 - digits):
        digits += 1
    return f"{dollars:,.{digits}f}"

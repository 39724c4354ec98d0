"""Explain cache misses between two requests, and format the explanation as text or JSON."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
from rich.cells import cell_len, set_cell_size

from foveate import formats
from foveate.cli.shared.console import Display, format_tokens
from foveate.cli.shared.options import MAX_LISTED_IDS, resolve_prefix
from foveate.cli.shared.tables import style_text, wrap_text
from foveate.errors import BadOption
from foveate.model import CacheUsage, Usage
from foveate.prompt_cache.misses.causes import DifferenceSide
from foveate.prompt_cache.misses.explain import ExplainedMiss, NoMiss, explain_miss
from foveate.prompt_cache.misses.snapshot import take_snapshot
from foveate.prompt_cache.prompt.build import block_tokens_for
from foveate.prompt_cache.rules import CacheRules, rules_for

if TYPE_CHECKING:
    from foveate.session.store import ArchivedRequest
    from foveate.store import Store


_MIN_COLUMNS = 20
# How many requests of a session are searched for a miss, newest first.
_MAX_REQUESTS = 50
_PRICED_TOKENS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPair:
    session_id: str
    previous_id: str
    request_id: str
    gap_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheExplanation:
    """A verdict with its basis: the model, its cache rules, and whether its tokens were counted exactly.

    `stored_pair` names the requests if they come from the store.
    """

    verdict: ExplainedMiss | NoMiss
    model: str
    rules: CacheRules
    exact: bool
    stored_pair: StoredPair | None = None


def explanation_object(explanation: CacheExplanation) -> dict[str, object]:
    """Return the verdict as JSON: money as strings."""
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
    formatter = _ExplanationFormatter(display, exact=explanation.exact)
    if explanation.stored_pair is not None:
        pair = explanation.stored_pair
        requests = f"request {pair.request_id}, sent {pair.gap_seconds:,.0f} s after {pair.previous_id}"
        yield from formatter.wrap(f"session {pair.session_id}: {requests}", "dim")
    match explanation.verdict:
        case ExplainedMiss() as found:
            yield from formatter.miss_lines(found)
        case NoMiss() as found:
            yield from formatter.hit_lines(found)
    yield from formatter.wrap(_describe_basis(explanation), "dim")


class _ExplanationFormatter:
    def __init__(self, display: Display, *, exact: bool) -> None:
        self._display = display
        self._exact = exact
        self._dash = "–" if display.can_show("–") else "-"

    def miss_lines(self, found: ExplainedMiss) -> Iterator[str]:
        yield from self.wrap(found.because, "bold")
        yield from self._side_lines("before", found.before, found.field, "red")
        yield from self._side_lines("now", found.after, found.field, "green")
        yield from self.wrap(self._describe_cost(found))
        for reason in found.also:
            yield from self.wrap(f"also: {reason}", "yellow")

    def hit_lines(self, found: NoMiss) -> Iterator[str]:
        yield from self.wrap("no cache miss: the prefix is unchanged", "bold")
        cached, read = self._format_tokens(found.kept_tokens), self._format_tokens(found.read_tokens)
        yield from self.wrap(f"{read} of {cached} cached tokens can be read")
        for remark in found.remarks:
            yield from self.wrap(f"also: {remark}", "yellow")

    def _side_lines(self, name: str, side: DifferenceSide | None, field: str, style: str) -> Iterator[str]:
        if side is None:
            return
        place = f"{side.place.area}[{side.place.index}]"
        place += "" if side.place.block is None else f" block {side.place.block}"
        extent = f"bytes {side.start_byte:,}{self._dash}{side.end_byte:,}"
        within = f" of {field}" if field else ""
        yield from self.wrap(f"{name}: {place}, {extent}{within}", "dim", indent=2)
        if side.excerpt:
            yield style_text(self._fit(f"    {self._display.escape(side.excerpt)}"), style, self._display)

    def _describe_cost(self, found: ExplainedMiss) -> str:
        cached, read, lost = (
            self._format_tokens(tokens) for tokens in (found.kept_tokens, found.read_tokens, found.lost_tokens)
        )
        if not found.lost_tokens:
            return (
                "no cached tokens are lost" if found.kept_tokens else "nothing was cached, so nothing is lost"
            )
        uncached = self._format_tokens(found.lost_uncached_tokens)
        paid = f"{lost} are paid again. Extra cost: the price of {uncached} uncached input tokens"
        if found.lost_dollars is not None:
            paid += f" (${_rounded_dollars(found.lost_dollars)})"
        return f"{read} of {cached} cached tokens can be read; {paid}"

    def wrap(self, text: str, style: str = "", *, indent: int = 0) -> Iterator[str]:
        yield from wrap_text(text, self._display, style=style, indent=indent)

    def _format_tokens(self, tokens: int) -> str:
        return format_tokens(tokens, self._exact or not tokens)  # zero is exact even in an estimate

    def _fit(self, text: str) -> str:
        columns = max(self._display.columns, _MIN_COLUMNS)
        return text if cell_len(text) <= columns else set_cell_size(text, columns).rstrip()


def _describe_basis(explanation: CacheExplanation) -> str:
    rules = explanation.rules
    if not rules.family:
        return f"{explanation.model}: {rules.source}"
    family_text = "the related model " if rules.inherited else ""
    counted = "exact" if explanation.exact else "estimated"
    rules_text = f"cache rules of {family_text}{rules.family} at {rules.provider}, as of {rules.as_of}"
    return f"{explanation.model}: {rules_text}; token counts are {counted}"


def _exact_dollars(dollars: Decimal) -> str:
    return f"{dollars.normalize():f}"


def _rounded_dollars(dollars: Decimal) -> str:
    """Format dollars with two decimals, or as many as show a nonzero digit."""
    digits = 2
    while digits < 8 and 0 < dollars < Decimal(10) ** (1 - digits):
        digits += 1
    return f"{dollars:,.{digits}f}"


async def explain_stored(store: "Store", prefix: str, price_per_token: Decimal | None) -> CacheExplanation:
    """Explain the last cache miss of the session, or one request, whose id starts with `prefix`.

    If a session has no miss, explain its last request.

    Raises:
        BadOption: nothing matches, or several ids match.
    """
    if not prefix:
        raise BadOption("the id of a session or request is missing: give it or its first characters")
    requests = await _load_requests(store, prefix)
    if len(requests) < 2:
        raise BadOption(
            f"the store has no request before {requests[0].id}, so there is nothing to compare it with"
        )
    last, *earlier = pairwise(requests)
    newest = _explain_pair(last[1], last[0], price_per_token)
    if isinstance(newest.verdict, ExplainedMiss):
        return newest
    for current, previous in earlier:
        explanation = _explain_pair(previous, current, price_per_token)
        if isinstance(explanation.verdict, ExplainedMiss):
            return explanation
    return newest


async def _load_requests(store: "Store", prefix: str) -> "Sequence[ArchivedRequest]":
    sessions, ids = await store.find_archived_ids(prefix, limit=MAX_LISTED_IDS + 1)
    session_id = resolve_prefix(sessions, prefix, "session") if sessions and prefix not in ids else None
    if session_id is not None:
        found = await store.request_archive.find_by_session(session_id, limit=_MAX_REQUESTS)
        return [request for request in found if 200 <= request.status < 300] or found[:1]
    request_id = resolve_prefix(ids, prefix, "request")
    requested = await store.request_archive.get(request_id) if request_id is not None else None
    if requested is None:
        raise BadOption(
            f"no file has the name {prefix!r:.80}, and no stored session or request has an id that starts with"
            " it: the gateway stores requests only if `keep_requests` is on"
        )
    earlier = await store.request_archive.find_by_session(
        requested.session_id, limit=_MAX_REQUESTS, before=requested.at
    )
    return [requested, *[request for request in earlier if 200 <= request.status < 300][:1]]


def _explain_pair(
    previous: "ArchivedRequest", current: "ArchivedRequest", price_per_token: Decimal | None
) -> CacheExplanation:
    rules = rules_for(current.model, current.provider)
    tokens = block_tokens_for(current.model)
    before, after = (
        formats.parse_request(stored.request_body, stored.format) for stored in (previous, current)
    )
    gap_seconds = max(0.0, current.at - previous.at)
    verdict = explain_miss(
        take_snapshot(before, rules, tokens),
        take_snapshot(after, rules, tokens),
        rules,
        gap_seconds=gap_seconds,
        usage=current.usage.cache if current.usage is not None else None,
        price_per_token=_find_price_per_token(current) if price_per_token is None else price_per_token,
    )
    from foveate.tokens import counter_for

    return CacheExplanation(
        verdict=verdict,
        model=current.model,
        rules=rules,
        exact=counter_for(current.model).count_request(after).total.exact,
        stored_pair=StoredPair(
            session_id=current.session_id,
            previous_id=previous.id,
            request_id=current.id,
            gap_seconds=gap_seconds,
        ),
    )


def _find_price_per_token(request: "ArchivedRequest") -> Decimal | None:
    from foveate.config.price_file import default_price_file
    from foveate.cost.pricing.price_book import PriceBook

    book = PriceBook(load_imported=default_price_file(os.environ).current_prices)
    usage = Usage(cache=CacheUsage(uncached=_PRICED_TOKENS))
    found = book.price(request.model, usage, provider=request.provider, at=request.at)
    return None if found is None or found.dollars is None else found.dollars / _PRICED_TOKENS

"""Breaks of the cache in what is kept: the last one of a session, or that of one request."""

import os
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING

from foveate import wire
from foveate.cache.explain import ExplainedMiss, explain_miss
from foveate.cache.remembered import take_snapshot
from foveate.cache.requests import block_tokens_for
from foveate.cache.rules import rules_for
from foveate.cli.explain_lines import CacheExplanation, StoredPair
from foveate.cli.ids import MAX_LISTED_IDS, resolve_prefix
from foveate.errors import BadOption
from foveate.values import CacheUsage, Usage

if TYPE_CHECKING:
    from foveate.session.requests import ArchivedRequest
    from foveate.store import Store

# So many requests of a session are looked through for a break, the newest first.
_MAX_REQUESTS = 50
_PRICED_TOKENS = 1000


async def explain_stored(store: "Store", prefix: str, price_per_token: Decimal | None) -> CacheExplanation:
    """The last break of the session whose id begins so, or what became of the request.

    Where a session has no break, its last request.

    Raises:
        BadOption: nothing of the kind is kept, or several begin so.
    """
    if not prefix:
        raise BadOption("the id of a session or of a request is expected, or how it begins")
    requests = await _load_requests(store, prefix)
    if len(requests) < 2:
        raise BadOption(f"nothing is kept before {requests[0].id}: there is nothing to hold it against")
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
    """The requests to be looked at, the newest first."""
    sessions, ids = await store.find_archived_ids(prefix, limit=MAX_LISTED_IDS + 1)
    session_id = resolve_prefix(sessions, prefix, "session") if sessions and prefix not in ids else None
    if session_id is not None:
        found = await store.request_archive.find_by_session(session_id, limit=_MAX_REQUESTS)
        return [request for request in found if 200 <= request.status < 300] or found[:1]
    request_id = resolve_prefix(ids, prefix, "request")
    requested = await store.request_archive.get(request_id) if request_id is not None else None
    if requested is None:
        raise BadOption(
            f"no file, and no kept session or request whose id begins with {prefix!r:.80}: requests are"
            " kept where `keep_requests` is on"
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
    before, after = (wire.parse_request(stored.request_body, stored.format) for stored in (previous, current))
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
    """What an uncached input token costs, where that is known."""
    from foveate.config.price_file import default_price_file
    from foveate.cost.price_book import PriceBook

    book = PriceBook(load_imported=default_price_file(os.environ).current_prices)
    usage = Usage(cache=CacheUsage(uncached=_PRICED_TOKENS))
    found = book.price(request.model, usage, provider=request.provider, at=request.at)
    return None if found is None or found.dollars is None else found.dollars / _PRICED_TOKENS

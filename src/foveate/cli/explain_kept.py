"""Breaks of the cache in what is kept: the last one of a session, or that of one request."""

import os
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING

from foveate import wire
from foveate.cache.explain import Break, explain
from foveate.cache.remembered import remember
from foveate.cache.requests import block_tokens_for
from foveate.cache.rules import rules_for
from foveate.cli.explain_lines import Explained, KeptPair
from foveate.cli.ids import MOST_NAMED, the_one
from foveate.errors import BadOption
from foveate.values import CacheUsage, Usage

if TYPE_CHECKING:
    from foveate.session.requests import KeptRequest
    from foveate.store import Store

# So many requests of a session are looked through for a break, the newest first.
_MOST_LOOKED_AT = 50
_PRICED_TOKENS = 1000


async def explained_of(store: "Store", beginning: str, price_per_token: Decimal | None) -> Explained:
    """The last break of the session whose id begins so, or what became of the request.

    Where a session has no break, its last request.

    Raises:
        BadOption: nothing of the kind is kept, or several begin so.
    """
    if not beginning:
        raise BadOption("the id of a session or of a request is expected, or how it begins")
    requests = await _last_of(store, beginning)
    if len(requests) < 2:
        raise BadOption(f"nothing is kept before {requests[0].id}: there is nothing to hold it against")
    last, *earlier = pairwise(requests)
    newest = _explained(last[1], last[0], price_per_token)
    if isinstance(newest.verdict, Break):
        return newest
    for current, previous in earlier:
        explained = _explained(previous, current, price_per_token)
        if isinstance(explained.verdict, Break):
            return explained
    return newest


async def _last_of(store: "Store", beginning: str) -> "Sequence[KeptRequest]":
    """The requests to be looked at, the newest first."""
    sessions, ids = await store.kept_ids(beginning, limit=MOST_NAMED + 1)
    session_id = the_one(sessions, beginning, "session") if sessions and beginning not in ids else None
    if session_id is not None:
        found = await store.requests.of_session(session_id, limit=_MOST_LOOKED_AT)
        return [one for one in found if 200 <= one.status < 300] or found[:1]
    request_id = the_one(ids, beginning, "request")
    asked = await store.requests.request(request_id) if request_id is not None else None
    if asked is None:
        raise BadOption(
            f"no file, and no kept session or request whose id begins with {beginning!r:.80}: requests are"
            " kept where `keep_requests` is on"
        )
    earlier = await store.requests.of_session(asked.session_id, limit=_MOST_LOOKED_AT, before=asked.at)
    return [asked, *[one for one in earlier if 200 <= one.status < 300][:1]]


def _explained(previous: "KeptRequest", current: "KeptRequest", price_per_token: Decimal | None) -> Explained:
    rules = rules_for(current.model, current.provider)
    tokens = block_tokens_for(current.model)
    before, after = (wire.read(one.sent, one.format) for one in (previous, current))
    gap_seconds = max(0.0, current.at - previous.at)
    verdict = explain(
        remember(before, rules, tokens),
        remember(after, rules, tokens),
        rules,
        gap_seconds=gap_seconds,
        billed=current.usage.cache if current.usage is not None else None,
        price_per_token=_price(current) if price_per_token is None else price_per_token,
    )
    from foveate.tokens import counter_for

    return Explained(
        verdict=verdict,
        model=current.model,
        rules=rules,
        exact=counter_for(current.model).request(after).total.exact,
        kept=KeptPair(
            session_id=current.session_id,
            previous_id=previous.id,
            request_id=current.id,
            gap_seconds=gap_seconds,
        ),
    )


def _price(request: "KeptRequest") -> Decimal | None:
    """What an uncached input token costs, where that is known."""
    from foveate.config.price_file import price_file
    from foveate.cost.price_book import PriceBook

    book = PriceBook(updates=price_file(os.environ).now)
    usage = Usage(cache=CacheUsage(uncached=_PRICED_TOKENS))
    found = book.price(request.model, usage, provider=request.provider, at=request.at)
    return None if found is None or found.dollars is None else found.dollars / _PRICED_TOKENS

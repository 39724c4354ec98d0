"""Keep-alive pings: a cheap read just before an entry dies, while a return is likely enough to pay for it.

Two kinds. One repeats the last request up to an entry, which refreshes that entry for its time. The other
repeats the request and its answer, and marks the answer as long-lived: for the price of reading the prompt once
and of writing the answer, all of it is kept for the long time, and the next request begins with that answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from foveate.cache.layout import kept
from foveate.cache.prompts import CachedPrompt, Piece, ends_of
from foveate.cache.rhythm import Forecast
from foveate.cache.rules import Caching, Rules
from foveate.cache.simulate import Cache, Entry
from foveate.values import Ttl

# A ping has to have begun before the entry dies: so long before, for clocks that differ and slow connections.
MARGIN_SECONDS = 10.0
DEFAULT_MOST_PINGS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """A read to be sent at `at`, of the last request's first `pieces`; `with_answer`, of its answer as well.

    `saved_tokens` is what it is expected to save, in uncached tokens, its own price taken off.
    """

    at: float
    pieces: int
    with_answer: bool
    saved_tokens: float


def next_ping(
    prompt: CachedPrompt,
    rules: Rules,
    cache: Cache,
    expected: Forecast,
    *,
    answer_tokens: int,
    last_at: float,
    now: float,
    sent: int = 0,
    most_pings: int = DEFAULT_MOST_PINGS,
) -> Ping | None:
    """The next ping that is expected to pay, after a request of `last_at` and `sent` pings since; or none.

    Only entries that were paid for are worth it, so there is none for providers that keep things unasked.
    """
    if sent >= most_pings or rules.caching is not Caching.MARKS:
        return None
    live = kept(prompt, cache, now)
    if not live:
        return None
    ends = ends_of(prompt)
    last = max(live)
    lasting = max((at for at, entry in live.items() if entry.ttl is not rules.ttls[0]), default=-1)
    worth = _Worth(rules, expected, last_at, now)
    found = []
    if last != lasting:
        protected = ends[last] - (ends[lasting] if lasting >= 0 else 0)
        found += worth.of_refreshing(live[last], last, ends[last], protected)
        found += worth.of_prolonging(live[last], last, ends[last], protected, answer_tokens)
    best = max(found, key=lambda ping: ping.saved_tokens, default=None)
    if best is None and lasting >= 0:
        best = next(iter(worth.of_refreshing(live[lasting], lasting, ends[lasting], ends[lasting])), None)
    return best


def pinged(
    prompt: CachedPrompt, ping: Ping, answer: Piece, rules: Rules, live: Mapping[int, Entry]
) -> CachedPrompt:
    """The request that `ping` sends, as the cache sees it; `live` are the entries along `prompt` then.

    The long-lived ones that reach farthest are used with it, as many as there are places for marks.
    """
    pieces = [structs.replace(piece, mark=None) for piece in prompt.pieces[: ping.pieces]]
    lasting = [at for at, entry in sorted(live.items()) if at < ping.pieces and entry.ttl is not rules.ttls[0]]
    for at in lasting[-(rules.most_marks - 1) :]:
        pieces[at] = structs.replace(pieces[at], mark=live[at].ttl)
    if ping.with_answer:
        pieces.append(structs.replace(answer, mark=rules.ttls[-1]))
    elif pieces[-1].mark is None:
        pieces[-1] = structs.replace(pieces[-1], mark=live[ping.pieces - 1].ttl)
    return replace(prompt, pieces=tuple(pieces), double_marks=0, keys=None, ends=None, landmarks=None)


class _Worth:
    """What pings are expected to save, where no request has come from `last_at` until `now`."""

    def __init__(self, rules: Rules, expected: Forecast, last_at: float, now: float) -> None:
        self._rules = rules
        self._expected = expected
        self._last_at = last_at
        self._now = now
        self._write_price = rules.write_prices[rules.ttls[0]]

    def of_refreshing(self, entry: Entry, at: int, tokens: int, protected: int) -> list[Ping]:
        """One that keeps an entry for its own time again, if it pays."""
        due = self._due(entry)
        chance = self._chance(due, entry.ttl)
        saved = (
            chance * protected * (self._write_price - self._rules.read_price) - tokens * self._rules.read_price
        )
        return [Ping(at=due, pieces=at + 1, with_answer=False, saved_tokens=saved)] if saved > 0 else []

    def of_prolonging(self, entry: Entry, at: int, tokens: int, protected: int, answer: int) -> list[Ping]:
        """One that keeps prompt and answer for the long time, if there is one and it pays."""
        long = self._rules.ttls[-1]
        if long is self._rules.ttls[0]:
            return []
        due = self._due(entry)
        price = tokens * self._rules.read_price + answer * self._rules.write_prices[long]
        kept = protected + answer
        saved = self._chance(due, long) * kept * (self._write_price - self._rules.read_price) - price
        return [Ping(at=due, pieces=at + 1, with_answer=True, saved_tokens=saved)] if saved > 0 else []

    def _due(self, entry: Entry) -> float:
        return max(self._now, entry.expires_at - MARGIN_SECONDS)

    def _chance(self, due: float, ttl: Ttl) -> float:
        silence = due - self._last_at
        return self._expected.chance(silence, silence + ttl.seconds)

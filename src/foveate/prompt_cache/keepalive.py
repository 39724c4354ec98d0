"""Keep-alive requests: a cheap read just before an entry expires, if a return is likely enough to pay for it.

There are two kinds. One repeats the last request up to an entry, which restarts that entry's TTL. The other
repeats the request and its response with a long-TTL breakpoint on the response: for the price of reading the
prompt and writing the response, everything is kept for the long TTL, and the next request begins with that
response.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from foveate.model import Ttl
from foveate.prompt_cache.placement.arrival_times import ArrivalForecast
from foveate.prompt_cache.placement.breakpoints import readable_entries
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, PromptPiece, token_ends
from foveate.prompt_cache.rules import CacheRules, CachingMode
from foveate.prompt_cache.simulator import CacheEntry, SimulatedCache

# A keep-alive must begin this long before the entry expires, to allow for clock skew and slow connections.
MARGIN_SECONDS = 10.0
DEFAULT_MAX_KEEPALIVES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAlive:
    """A read to be sent at `at`, of the first `pieces` of the last request; with `includes_response`, of its
    response too.

    `saved_tokens` is the expected saving, in uncached tokens, after its own price.
    """

    at: float
    pieces: int
    includes_response: bool
    saved_tokens: float


def plan_keepalive(
    prompt: CachedPrompt,
    rules: CacheRules,
    cache: SimulatedCache,
    forecast: ArrivalForecast,
    *,
    response_tokens: int,
    last_at: float,
    now: float,
    sent_keepalives: int = 0,
    max_keepalives: int = DEFAULT_MAX_KEEPALIVES,
) -> KeepAlive | None:
    """Return the next keep-alive that is expected to pay for itself, or None.

    `sent_keepalives` were sent since the last request at `last_at`. Only entries that were paid for are worth
    it, so there is none for automatic caches.
    """
    if sent_keepalives >= max_keepalives or rules.caching is not CachingMode.BREAKPOINTS:
        return None
    live = readable_entries(prompt, cache, now)
    if not live:
        return None
    ends = token_ends(prompt)
    last = max(live)
    last_long_entry = max((at for at, entry in live.items() if entry.ttl is not rules.ttls[0]), default=-1)
    value = _KeepAliveValue(rules, forecast, last_at, now)
    options = []
    if last != last_long_entry:
        protected = ends[last] - (ends[last_long_entry] if last_long_entry >= 0 else 0)
        options += value.plan_refresh(live[last], last, ends[last], protected)
        options += value.plan_extension(live[last], last, ends[last], protected, response_tokens)
    best = max(options, key=lambda keepalive: keepalive.saved_tokens, default=None)
    if best is None and last_long_entry >= 0:
        best = next(
            iter(
                value.plan_refresh(
                    live[last_long_entry], last_long_entry, ends[last_long_entry], ends[last_long_entry]
                )
            ),
            None,
        )
    return best


def build_keepalive_prompt(
    prompt: CachedPrompt,
    keepalive: KeepAlive,
    response: PromptPiece,
    rules: CacheRules,
    live: Mapping[int, CacheEntry],
) -> CachedPrompt:
    """The request that `keepalive` sends, as the cache sees it; `live` are the entries along `prompt` at that
    time.

    It also refreshes the long-TTL entries that reach farthest, within the breakpoint limit.
    """
    pieces = [structs.replace(piece, breakpoint_ttl=None) for piece in prompt.pieces[: keepalive.pieces]]
    long_entries = [
        at for at, entry in sorted(live.items()) if at < keepalive.pieces and entry.ttl is not rules.ttls[0]
    ]
    for at in long_entries[-(rules.max_breakpoints - 1) :]:
        pieces[at] = structs.replace(pieces[at], breakpoint_ttl=live[at].ttl)
    if keepalive.includes_response:
        pieces.append(structs.replace(response, breakpoint_ttl=rules.ttls[-1]))
    elif pieces[-1].breakpoint_ttl is None:
        pieces[-1] = structs.replace(pieces[-1], breakpoint_ttl=live[keepalive.pieces - 1].ttl)
    return replace(prompt, pieces=tuple(pieces), duplicate_breakpoints=0, keys=None, ends=None, layout=None)


class _KeepAliveValue:
    """Expected savings of keep-alives, if no request has arrived between `last_at` and `now`."""

    def __init__(self, rules: CacheRules, forecast: ArrivalForecast, last_at: float, now: float) -> None:
        self._rules = rules
        self._forecast = forecast
        self._last_at = last_at
        self._now = now
        self._write_price = rules.write_prices[rules.ttls[0]]

    def plan_refresh(self, entry: CacheEntry, at: int, tokens: int, protected: int) -> list[KeepAlive]:
        """A keep-alive that restarts an entry's own TTL, if it pays."""
        due = self._due_at(entry)
        probability = self._return_probability(due, entry.ttl)
        saved = (
            probability * protected * (self._write_price - self._rules.read_price)
            - tokens * self._rules.read_price
        )
        return (
            [KeepAlive(at=due, pieces=at + 1, includes_response=False, saved_tokens=saved)] if saved > 0 else []
        )

    def plan_extension(
        self, entry: CacheEntry, at: int, tokens: int, protected: int, response_tokens: int
    ) -> list[KeepAlive]:
        """A keep-alive that keeps prompt and response for the long TTL, if there is one and it pays."""
        long_ttl = self._rules.ttls[-1]
        if long_ttl is self._rules.ttls[0]:
            return []
        due = self._due_at(entry)
        price = tokens * self._rules.read_price + response_tokens * self._rules.write_prices[long_ttl]
        kept_tokens = protected + response_tokens
        saved = (
            self._return_probability(due, long_ttl) * kept_tokens * (self._write_price - self._rules.read_price)
            - price
        )
        return (
            [KeepAlive(at=due, pieces=at + 1, includes_response=True, saved_tokens=saved)] if saved > 0 else []
        )

    def _due_at(self, entry: CacheEntry) -> float:
        return max(self._now, entry.expires_at - MARGIN_SECONDS)

    def _return_probability(self, due: float, ttl: Ttl) -> float:
        silence = due - self._last_at
        return self._forecast.probability(silence, silence + ttl.seconds)

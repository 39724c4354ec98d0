"""Explains why a request did not read what the previous one left in the provider's cache, and what that cost.

Both are run through the cache simulator: what the first leaves there is what the second could have read. The
reason that it did not is the first difference between them, a breakpoint, the time between them, or the size
of the prefix.
"""

from dataclasses import dataclass
from decimal import Decimal

from foveate.model import CacheUsage, Place, Ttl
from foveate.prompt_cache.misses.causes import DifferenceSide, MissCause, PrefixDifference
from foveate.prompt_cache.misses.prefix_diff import find_first_difference
from foveate.prompt_cache.misses.snapshot import RequestSnapshot
from foveate.prompt_cache.prompt.cached_prompt import prefix_keys
from foveate.prompt_cache.rules import CacheRules, CachingMode
from foveate.prompt_cache.simulator import SimulatedCache

# Token counts are estimates for some models: if this share was read according to the usage, nothing was
# missed.
_MIN_READ_SHARE = 0.8
_UNEXPLAINED = (
    "the prefix is the same and should have been read: the provider may have dropped it early, have served the "
    "request elsewhere, or not have had it ready yet"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMiss:
    """The cached prefix could be read. `remarks` are changes that did no harm, with the reason."""

    kept_tokens: int
    read_tokens: int
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedMiss:
    """Why the cached prefix could not be read, and what that costs.

    `kept_tokens` is what the previous request left in the cache, `read_tokens` what this one could read of it
    (or did, according to its usage), `lost_tokens` what was paid for again. `lost_uncached_tokens` is the
    extra cost, in uncached input tokens; `lost_dollars` is None without a price. `same_tokens` is the length
    of the common prefix. `also` are further reasons, each of which would have been sufficient.
    """

    cause: MissCause
    because: str
    place: Place | None
    field: str
    before: DifferenceSide | None
    after: DifferenceSide | None
    same_tokens: int
    kept_tokens: int
    read_tokens: int
    lost_tokens: int
    lost_uncached_tokens: int
    lost_dollars: Decimal | None
    also: tuple[str, ...] = ()


def explain_miss(
    previous: RequestSnapshot,
    current: RequestSnapshot,
    rules: CacheRules,
    *,
    gap_seconds: float | None = None,
    usage: CacheUsage | None = None,
    price_per_token: Decimal | None = None,
) -> ExplainedMiss | NoMiss:
    """Explain why `current` could not read what `previous` left in the cache, or state that it could.

    `rules` are those of the current model, `gap_seconds` is the time between the starts of both requests,
    `usage` what the provider reported for the current one, `price_per_token` the dollars per uncached input
    token.
    """
    return _MissAnalysis(previous, current, rules, gap_seconds, usage, price_per_token).conclude()


class _MissAnalysis:
    """Two requests, and what the cache would have done for them."""

    def __init__(
        self,
        previous: RequestSnapshot,
        current: RequestSnapshot,
        rules: CacheRules,
        gap_seconds: float | None,
        usage: CacheUsage | None,
        price_per_token: Decimal | None,
    ) -> None:
        self.previous = previous
        self.current = current
        self.rules = rules
        self.gap_seconds = gap_seconds
        self.usage = usage
        self.price_per_token = price_per_token
        cache = SimulatedCache().serve(previous.prompt, rules, at=0.0).cache
        cached = [at for at, key in enumerate(prefix_keys(previous.prompt)) if key in cache.entries]
        # Pieces are compared instead of tokens, since the tokens of the first piece may be rounded
        # differently later.
        self.kept_pieces = cached[-1] + 1 if cached else 0
        self.readable_pieces = cache.serve(current.prompt, rules, at=0.0).read_pieces
        later = cache.serve(current.prompt, rules, at=gap_seconds or 0.0)
        self.unexpired_pieces = later.read_pieces
        kept_tokens = sum(piece.tokens for piece in previous.prompt.pieces[: self.kept_pieces])
        # Reads are counted in steps, and cannot exceed the request.
        limit = min(kept_tokens, current.prompt.tokens)
        self.kept_tokens = limit // rules.step_tokens * rules.step_tokens
        self.unexpired_tokens = (
            self.kept_tokens if self._reads_all_kept(later.read_pieces) else later.usage.read
        )
        entries = cache.entries.values()
        self.lifetime_seconds = max(entries, key=lambda entry: entry.tokens).ttl.seconds if entries else 0

    def _reads_all_kept(self, pieces: int) -> bool:
        return 0 < self.kept_pieces <= pieces

    @property
    def read_tokens(self) -> int:
        return self.usage.read if self.usage is not None else min(self.unexpired_tokens, self.kept_tokens)

    def conclude(self) -> ExplainedMiss | NoMiss:
        found = find_first_difference(self.previous, self.current)
        if self._was_read():
            return NoMiss(
                kept_tokens=self.kept_tokens, read_tokens=self.read_tokens, remarks=self._remarks(found)
            )
        if found is not None and not self.kept_pieces:
            return self._make_miss(found, also=(self._explain_not_kept()[1],))
        if found is not None and not self._reads_all_kept(self.readable_pieces):
            return self._make_miss(found, also=self._further_causes(found))
        return self._make_miss(self._explain_same_prefix())

    def _was_read(self) -> bool:
        if self.usage is not None:
            return self.usage.read >= _MIN_READ_SHARE * self.kept_tokens > 0
        return self._reads_all_kept(self.unexpired_pieces) and not self._has_different_key()

    def _has_different_key(self) -> bool:
        return self.previous.cache_key != self.current.cache_key

    def _explain_same_prefix(self) -> PrefixDifference:
        """Why an unchanged prefix was not read."""
        at = len(self.previous.prompt.pieces)
        if not self.kept_pieces:
            cause, because = self._explain_not_kept()
        elif self.unexpired_pieces < self.readable_pieces or self._has_expired():
            cause, because = MissCause.EXPIRED, self._describe_expiry()
        elif not self._reads_all_kept(self.readable_pieces):
            cause, because = self._explain_not_found()
        elif self._has_different_key():
            cause, because = MissCause.CACHE_KEY, self._describe_key_change()
        else:
            cause, because = MissCause.UNEXPLAINED, _UNEXPLAINED
        return PrefixDifference(at=at, cause=cause, because=because)

    def _explain_not_kept(self) -> tuple[MissCause, str]:
        """Why nothing of the previous request was cached."""
        rules, prompt = self.rules, self.previous.prompt
        if rules.caching is CachingMode.NONE:
            return MissCause.NOT_CACHED, f"nothing is known of a cache for {prompt.model}"
        breakpoints = [at for at, piece in enumerate(prompt.pieces) if piece.breakpoint_ttl is not None]
        needs_breakpoints = rules.caching is CachingMode.BREAKPOINTS or (
            rules.caching is CachingMode.BOTH and prompt.explicit_only
        )
        if not breakpoints and needs_breakpoints:
            return MissCause.BREAKPOINT_MISSING, "nothing was kept: the previous request bears no cache mark"
        end = breakpoints[-1] + 1 if rules.caching is CachingMode.BREAKPOINTS else len(prompt.pieces)
        tokens = sum(piece.tokens for piece in prompt.pieces[:end])
        return MissCause.BELOW_MINIMUM, (
            f"nothing was kept: {tokens:,} tokens are below this model's minimum of {rules.minimum_tokens:,}"
        )

    def _explain_not_found(self) -> tuple[MissCause, str]:
        """Why no breakpoint of the current request found the entry, although the prefix is the same."""
        ours = self.current.prompt
        breakpoints = [at for at, piece in enumerate(ours.pieces) if piece.breakpoint_ttl is not None]
        if len(ours.pieces) < len(self.previous.prompt.pieces):
            because = (
                "this request ends before what was kept does: it begins as the previous one and stops short"
            )
            return MissCause.CUT_BACK, because
        if self.rules.caching is CachingMode.AUTOMATIC:
            return MissCause.UNEXPLAINED, _UNEXPLAINED
        if not breakpoints:
            return (
                MissCause.BREAKPOINT_MISSING,
                "this request bears no cache mark, and only a mark looks for what is kept",
            )
        if breakpoints[-1] < self.kept_pieces - 1:
            return (
                MissCause.BREAKPOINT_MISSING,
                "no cache mark of this request stands where something was kept, or behind it",
            )
        lookback = self.rules.lookback_positions
        because = (
            f"the last mark stands more than {lookback} positions behind what was kept, "
            "and looks back no further"
            if lookback
            else "no mark stands where something was kept"
        )
        return MissCause.BREAKPOINT_TOO_FAR, because

    def _has_expired(self) -> bool:
        return self.gap_seconds is not None and self.gap_seconds > self.lifetime_seconds > 0

    def _describe_expiry(self) -> str:
        gap, lifetime = _format_duration(self.gap_seconds or 0), _format_duration(self.lifetime_seconds)
        return f"the cache entry ran out: it lived {lifetime} and the next request came after {gap}"

    def _describe_key_change(self) -> str:
        was, now = (found.cache_key or "none" for found in (self.previous, self.current))
        name = self.rules.key_parameter
        changed = f"`{name}` changed from {was[:40]} to {now[:40]}"
        return f"{changed}, so another machine may have served the request, one that has nothing of it"

    def _further_causes(self, found: PrefixDifference) -> tuple[str, ...]:
        also = []
        if self._has_expired():
            also.append(self._describe_expiry())
        if self._has_different_key() and found.cause is not MissCause.MODEL:
            also.append(self._describe_key_change())
        return tuple(also)

    def _remarks(self, found: PrefixDifference | None) -> tuple[str, ...]:
        if found is not None:
            return (f"{found.because}; nothing that was kept stands behind it",)
        ours, theirs = self.previous.raw_digests, self.current.raw_digests
        if any(a != b for a, b in zip(ours, theirs, strict=False) if a and b):
            return ("JSON is spelled differently (spaces, escapes), which the provider's cache does not mind",)
        return ()

    def _make_miss(self, found: PrefixDifference, *, also: tuple[str, ...] = ()) -> ExplainedMiss:
        ours = self.current.prompt
        if found.cause is MissCause.THINKING_REMOVED and self.rules.drops_thinking:
            also = (
                *also,
                "this model is never shown the reasoning of earlier turns once the user speaks again",
            )
        read = self.read_tokens
        if found.cause is MissCause.CACHE_KEY and self.usage is None:
            read = 0  # another machine has nothing to read
            also = (*also, "where the same machine served it nothing is lost; the bill would tell")
        lost = max(0, self.kept_tokens - read)
        multiple = max(Decimal(0), self._paid_multiple() - Decimal(str(self.rules.read_price)))
        uncached = lost * multiple
        side = found.after or found.before
        return ExplainedMiss(
            cause=found.cause,
            because=found.because,
            place=None if side is None else side.place,
            field=found.field,
            before=found.before,
            after=found.after,
            same_tokens=sum(piece.tokens for piece in ours.pieces[: found.at]),
            kept_tokens=self.kept_tokens,
            read_tokens=read,
            lost_tokens=lost,
            lost_uncached_tokens=round(uncached),
            lost_dollars=None if self.price_per_token is None else uncached * self.price_per_token,
            also=also,
        )

    def _paid_multiple(self) -> Decimal:
        """The price of the lost tokens, as a multiple of the uncached price."""
        rules, prompt = self.rules, self.current.prompt
        breakpoint_ttls = [piece.breakpoint_ttl for piece in prompt.pieces if piece.breakpoint_ttl is not None]
        ttl: Ttl | None = breakpoint_ttls[-1] if breakpoint_ttls else None
        if ttl is None and rules.caching is CachingMode.BOTH and not prompt.explicit_only:
            ttl = prompt.ttl or rules.ttls[0]
        return Decimal(str(rules.write_prices.get(ttl, 1.0))) if ttl is not None else Decimal(1)


def _format_duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"

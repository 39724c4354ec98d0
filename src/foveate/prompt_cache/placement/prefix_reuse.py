"""Expected value of cache breakpoints, learned from which prefixes an agent requests again.

A breakpoint pays if the saving of the expected read exceeds the price of the write:

P(the prefix is requested again within its TTL) × (1 − read price) > write price − 1

P is learned per agent and per layer of the prompt. Prefix keys show whether a later request has the same
prefix, whether or not it was written, so learning costs nothing. For a new agent, P comes from a prior
(`prefix_reuse.toml`) that depends on the shape of the request.

An account limits the cost of wrong estimates. It adds the price of writes and subtracts the savings of reads
as they happen. Writing stops once it has cost a quarter of five of the agent's largest prompts more than it
saved, as five unread writes of a whole prompt do. Reads start it again, and so do prefixes that are requested
again without having been written.
"""

import tomllib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from math import exp, inf, log, sqrt
from pathlib import Path
from typing import Protocol, TypedDict, cast

import msgspec
from msgspec.structs import replace

from foveate.prompt_cache.rules import CacheRules

_REUSE_TABLE = Path(__file__).with_name("prefix_reuse.toml")
MAX_UNREAD_PROMPTS = 5
"""Number of writes of a whole prompt that may stay unread before writing stops."""
_MAX_LOSS_SHARE = 0.25  # of the price of that many prompts
# Savings offset later losses up to this multiple of the maximum loss. So an agent with a good record can
# start a dozen conversations at once, but cannot lose everything it ever saved.
_MAX_CREDIT = 2.0
_SIZE_FADING = 0.99
_RETURN_WEIGHT = 0.1


class PromptLayer(StrEnum):
    """The layers of a prompt that later requests may share, each including those before it.

    `CONTEXT` is the rest of a request that does not continue an earlier one, `HISTORY` of one that does. The
    `SHARED` layers are prefixes that were requested before.
    """

    TOOLS = "tools"
    SYSTEM = "system"
    CONTEXT = "context"
    HISTORY = "history"
    SHARED_TOOLS = "shared_tools"
    SHARED_SYSTEM = "shared_system"
    SHARED_CONTEXT = "shared_context"


SHARED_LAYERS = {
    PromptLayer.TOOLS: PromptLayer.SHARED_TOOLS,
    PromptLayer.SYSTEM: PromptLayer.SHARED_SYSTEM,
    PromptLayer.CONTEXT: PromptLayer.SHARED_CONTEXT,
    PromptLayer.HISTORY: PromptLayer.SHARED_CONTEXT,
}


class _ReusePrior(TypedDict):
    weight_requests: float
    fading: float
    change: float
    deviations: float
    patience: float
    late_share: float
    long_reads: float
    probabilities: dict[str, float]
    context: dict[str, float]


@cache
def _load_reuse_prior() -> _ReusePrior:
    return cast("_ReusePrior", tomllib.loads(_REUSE_TABLE.read_text(encoding="utf-8")))


class RequestShape(msgspec.Struct, frozen=True, kw_only=True):
    has_tools: bool
    has_history: bool
    has_breakpoints: bool
    tokens: int


def prior_probability(layer: PromptLayer, shape: RequestShape) -> float:
    """The probability that a prefix up to this layer is requested again, for an unknown agent."""
    prior = _load_reuse_prior()
    if layer is not PromptLayer.CONTEXT:
        return prior["probabilities"][layer]
    weights = prior["context"]
    logit = (
        weights["intercept"]
        + weights["has_tools"] * shape.has_tools
        + weights["has_history"] * shape.has_history
        + weights["has_breakpoints"] * shape.has_breakpoints
        + weights["log_tokens"] * log(max(1, shape.tokens) / 1000)
    )
    return max(weights["minimum"], 1 / (1 + exp(-logit)))


class ReuseRate(msgspec.Struct, frozen=True):
    """Number of prefixes of a layer that were requested, and of those requested again; older ones count less.

    `short_returns` counts those requested again within the short TTL, `long_returns` those within the long one
    only. Stored values have the encoded names.
    """

    prefixes: float = msgspec.field(default=0.0, name="asked")
    short_returns: float = msgspec.field(default=0.0, name="again")
    long_returns: float = msgspec.field(default=0.0, name="late")

    def with_outcome(self, *, is_again: bool) -> "ReuseRate":
        """Count one more prefix. The less likely its outcome was, the more of the past is forgotten."""
        prior = _load_reuse_prior()
        probability = (self.short_returns + 0.5) / (self.prefixes + 1)
        likelihood = probability if is_again else 1 - probability
        # If the agent has changed its behaviour, both outcomes are equally likely.
        unchanged = (1 - prior["change"]) * likelihood
        decay = prior["fading"] * unchanged / (unchanged + prior["change"] * 0.5)
        return ReuseRate(
            self.prefixes * decay + 1, self.short_returns * decay + is_again, self.long_returns * decay
        )

    def with_return(self) -> "ReuseRate":
        """Correct a prefix that was counted as not requested again: it was, within the short TTL."""
        return replace(self, short_returns=min(self.prefixes - self.long_returns, self.short_returns + 1))

    def with_late_outcome(self) -> "ReuseRate":
        """Correct a prefix that was counted as not requested again: it was, within the long TTL."""
        return replace(self, long_returns=min(self.prefixes - self.short_returns, self.long_returns + 1))

    def probabilities(self, prior: float, *, is_optimistic: bool = False) -> tuple[float, float]:
        """The probabilities that the next prefix of the layer is requested again: within the short TTL, and
        within the long one only.

        An optimistic estimate adds the uncertainty of the first.
        """
        table = _load_reuse_prior()
        weight, late_share = table["weight_requests"], table["late_share"]
        total = self.prefixes + weight
        short_probability = (self.short_returns + weight * prior * (1 - late_share)) / total
        long_probability = (self.long_returns + weight * prior * late_share) / total
        if is_optimistic:
            short_probability = min(
                1 - long_probability,
                short_probability
                + table["deviations"] * sqrt(short_probability * (1 - short_probability) / (total + 1)),
            )
        return short_probability, long_probability


class AgentReuse(msgspec.Struct, frozen=True):
    """Observations from the `requests` of an agent: a rate for each layer, and the cost of its breakpoints.

    `balance` is the price of writes less the savings of reads, in uncached input tokens: positive if
    breakpoints have cost more than they saved. `largest` is the size of the largest prompt in tokens; older
    ones count less. `return_seconds` is the mean time until a conversation continues, 0 if none has.
    """

    rates: dict[str, ReuseRate] = {}
    requests: int = 0
    balance: float = 0.0
    largest: float = 0.0
    return_seconds: float = 0.0

    def rate(self, layer: PromptLayer) -> ReuseRate:
        return self.rates.get(layer, _NO_RATE)

    def with_rate(self, layer: PromptLayer, rate: ReuseRate) -> "AgentReuse":
        return replace(self, rates={**self.rates, layer: rate})

    def with_return(self, seconds: float) -> "AgentReuse":
        mean = self.return_seconds
        return replace(self, return_seconds=mean + (seconds - mean) * _RETURN_WEIGHT if mean else seconds)

    def with_request(self, tokens: int) -> "AgentReuse":
        return replace(self, requests=self.requests + 1, largest=max(tokens, self.largest * _SIZE_FADING))

    def with_cost(self, tokens: float) -> "AgentReuse":
        """Add what the breakpoints of a request cost or, if negative, save."""
        balance = self.balance if tokens > 0 else min(self.balance, self.max_loss)
        return replace(self, balance=max(balance + tokens, -_MAX_CREDIT * self.max_loss))

    def with_missed_read(self, tokens: float) -> "AgentReuse":
        """Allow more writes: a prefix that was not written was requested again, a read of this value."""
        return replace(self, balance=min(self.balance, max(0.0, self.max_loss - tokens))) if tokens else self

    def with_spared_write(self, tokens: float) -> "AgentReuse":
        """Allow fewer writes: a prefix that was not written, and would have cost this much, was not requested
        again.
        """
        if self.balance <= 0:
            return self
        return replace(self, balance=max(self.balance, min(self.balance + tokens, self.max_loss)))

    def without_credit(self) -> "AgentReuse":
        """Forget savings that would offset later losses."""
        return replace(self, balance=max(0.0, self.balance))

    @property
    def max_loss(self) -> float:
        """Limit of how much more breakpoints may cost than they save."""
        return _MAX_LOSS_SHARE * MAX_UNREAD_PROMPTS * self.largest

    @property
    def patience_seconds(self) -> float:
        """Time for which a prefix is expected to be requested again."""
        return _load_reuse_prior()["patience"] * self.return_seconds or inf

    def can_write(self, cost: float) -> bool:
        return self.balance + cost <= self.max_loss


class ReuseStore(Protocol):
    async def load(self, *, since: float, limit: int) -> Mapping[str, AgentReuse]:
        """Load what was saved since a time, by agent, newest last."""

    async def save(self, learnt: Mapping[str, AgentReuse], *, now: float) -> None:
        """Save these, unless the stored value was learned from more requests."""


_NO_RATE = ReuseRate()
UNKNOWN_AGENT = AgentReuse()


class PrefixLevel(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix of a request that may be worth a breakpoint: the first `pieces`, of `tokens` tokens.

    `short_probability` is the probability that it is requested again within the short TTL, `long_probability`
    within the long one only. `is_written`: an entry exists for it, or will once a pending response begins.
    """

    layer: PromptLayer
    pieces: int
    tokens: int
    short_probability: float
    long_probability: float = 0.0
    is_written: bool = False


class CacheReach(msgspec.Struct, frozen=True, kw_only=True):
    """Prefix of a request that is worth a breakpoint: the first `pieces`, which end with `layer`.

    Probabilities are those of `PrefixLevel`; with `preamble_`, of the system prompt or, without one, of the
    tools. `value` is the saving, in uncached input tokens, of writing `written_tokens`. `allows_long`: they may
    be written with the long TTL.
    """

    pieces: int = 0
    short_probability: float = 0.0
    long_probability: float = 0.0
    preamble_short_probability: float = 0.0
    preamble_long_probability: float = 0.0
    layer: PromptLayer | None = None
    value: float = 0.0
    written_tokens: int = 0
    allows_long: bool = True


_FRONT_LAYERS = frozenset(
    (PromptLayer.TOOLS, PromptLayer.SYSTEM, PromptLayer.SHARED_TOOLS, PromptLayer.SHARED_SYSTEM)
)


def find_best_reach(
    levels: Sequence[PrefixLevel],
    rules: CacheRules,
    reuse: AgentReuse,
    *,
    read_pieces: int = 0,
    read_tokens: int = 0,
    long_ttl: bool = True,
) -> CacheReach:
    """Find the most valuable prefix: what its layers are expected to save, less what writing them costs.

    `levels` are in the order of the prompt. What can be read is not written again, and a layer that another
    request already writes saves nothing more.
    """
    saving = 1 - rules.read_price
    short_write = min(rules.write_prices.values(), default=1.0) - 1
    long_write = max(rules.write_prices.values(), default=1.0) - 1
    levels = _make_monotonic(levels)
    best = CacheReach(pieces=read_pieces)
    for level in levels:
        if level.layer in _FRONT_LAYERS:
            best = replace(
                best,
                preamble_short_probability=level.short_probability,
                preamble_long_probability=level.long_probability,
            )
    value, end = 0.0, read_tokens
    for level in levels:
        if level.pieces <= read_pieces:
            best = replace(
                best,
                short_probability=level.short_probability,
                long_probability=level.long_probability,
                layer=level.layer,
            )
            continue
        tokens, end, written_tokens = level.tokens - end, level.tokens, level.tokens - read_tokens
        if not reuse.can_write(written_tokens * short_write):
            break
        gain = (0.0 if level.is_written else level.short_probability * saving) - short_write
        allows_long = reuse.can_write(written_tokens * long_write)
        if long_ttl and allows_long and not level.is_written:
            gain = max(
                gain,
                (level.short_probability + level.long_probability) * saving * _load_reuse_prior()["long_reads"]
                - long_write,
            )
        value += gain * tokens
        if value > best.value and level.tokens >= rules.minimum_tokens:
            best = replace(
                best,
                pieces=level.pieces,
                short_probability=level.short_probability,
                long_probability=level.long_probability,
                layer=level.layer,
                value=value,
                written_tokens=written_tokens,
                allows_long=allows_long,
            )
    return best


def _make_monotonic(levels: Sequence[PrefixLevel]) -> list[PrefixLevel]:
    """Make each level at least as likely as the next: a request for a prefix is one for every shorter prefix
    too.
    """
    monotonic: list[PrefixLevel] = []
    for level in reversed(levels):
        if monotonic:
            short_probability = max(level.short_probability, monotonic[-1].short_probability)
            total = max(
                level.short_probability + level.long_probability,
                monotonic[-1].short_probability + monotonic[-1].long_probability,
            )
            level = replace(
                level, short_probability=short_probability, long_probability=total - short_probability
            )
        monotonic.append(level)
    return monotonic[::-1]

"""Expected value of cache breakpoints, learnt from which prefixes an agent asks for again.

A breakpoint pays if the saving of the expected read exceeds the price of the write:

    P(the prefix is asked for again within its TTL) × (1 − read price) > write price − 1

P is learnt per agent and per layer of the prompt. Prefix hashes show whether a later request has the same
prefix, whether or not it was written, so that learning costs nothing. Until an agent has shown what it does, P
comes from a prior (`cache/reuse.toml`) that knows the shape of the request.

That a prefix is not asked for again is known only when its TTL is over. Until then a limit holds: writing a
layer stops when the writes that nobody has read yet add up to five times the prompt. The first prefix that is
asked for again starts it again.
"""

import tomllib
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from math import exp, inf, log
from pathlib import Path
from typing import TypedDict

import msgspec
from msgspec.structs import replace

from foveate.cache.rules import Rules

_TABLE = Path(__file__).with_name("reuse.toml")
MAX_UNREAD_PROMPTS = 5
"""How many writes of a whole prompt may stay unread before writing stops."""


class PromptLayer(StrEnum):
    """The layers of a prompt that later requests may share, each including those before it.

    `CONTEXT` is the rest of a request that does not continue an earlier one, `HISTORY` of one that does. The
    `shared` layers are prefixes that were asked for before.
    """

    TOOLS = "tools"
    SYSTEM = "system"
    CONTEXT = "context"
    HISTORY = "history"
    SHARED_TOOLS = "shared_tools"
    SHARED_SYSTEM = "shared_system"
    SHARED_CONTEXT = "shared_context"


SHARED = {
    PromptLayer.TOOLS: PromptLayer.SHARED_TOOLS,
    PromptLayer.SYSTEM: PromptLayer.SHARED_SYSTEM,
    PromptLayer.CONTEXT: PromptLayer.SHARED_CONTEXT,
    PromptLayer.HISTORY: PromptLayer.SHARED_CONTEXT,
}


class _Prior(TypedDict):
    weight_requests: float
    fading: float
    late_share: float
    long_reads: float
    probabilities: dict[str, float]
    context: dict[str, float]


@cache
def _prior() -> _Prior:
    table: _Prior = tomllib.loads(_TABLE.read_text(encoding="utf-8"))  # type: ignore[assignment]
    return table


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request when nothing is known of its agent."""

    has_tools: bool
    has_history: bool
    has_breakpoints: bool
    tokens: int


def prior_probability(layer: PromptLayer, shape: Shape) -> float:
    """The probability that a prefix up to this layer is asked for again, for an agent that is not known."""
    prior = _prior()
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
    return 1 / (1 + exp(-logit))


class Rate(msgspec.Struct, frozen=True):
    """How many prefixes of a layer were asked for, and how many again; older ones count less.

    `again` counts those asked for again within the short TTL, `late` those within the long one only.
    `unread_tokens` were written since one of them was last asked for again.
    """

    asked: float = 0.0
    again: float = 0.0
    late: float = 0.0
    unread_tokens: float = 0.0

    def with_outcome(self, *, is_again: bool) -> "Rate":
        """Count one more prefix."""
        fading = _prior()["fading"]
        return Rate(
            self.asked * fading + 1, self.again * fading + is_again, self.late * fading, self.unread_tokens
        )

    def with_late_outcome(self) -> "Rate":
        """Count a prefix as asked for late that was counted as not asked for again."""
        return replace(self, late=min(self.asked - self.again, self.late + 1))

    def with_unread(self, tokens: float) -> "Rate":
        """Count tokens that are written or, with a minus sign, not written after all."""
        return replace(self, unread_tokens=max(0.0, self.unread_tokens + tokens))

    def probabilities(self, prior: float) -> tuple[float, float]:
        """The probabilities that the next prefix of the layer is asked for again: soon, and only late."""
        table = _prior()
        weight, late_share = table["weight_requests"], table["late_share"]
        total = self.asked + weight
        return (
            (self.again + weight * prior * (1 - late_share)) / total,
            (self.late + weight * prior * late_share) / total,
        )


class AgentReuse(msgspec.Struct, frozen=True):
    """What an agent has shown so far, by layer."""

    rates: dict[str, Rate] = {}

    def rate(self, layer: PromptLayer) -> Rate:
        """The rate of a layer."""
        return self.rates.get(layer, _NO_RATE)

    def with_rate(self, layer: PromptLayer, rate: Rate) -> "AgentReuse":
        """The same with another rate of a layer."""
        return AgentReuse({**self.rates, layer: rate})

    def with_outcome(self, layer: PromptLayer, *, is_again: bool) -> "AgentReuse":
        """Count one more prefix of a layer."""
        return self.with_rate(layer, self.rate(layer).with_outcome(is_again=is_again))

    def with_late_outcome(self, layer: PromptLayer) -> "AgentReuse":
        """Count a prefix as asked for again that was counted as not."""
        return self.with_rate(layer, self.rate(layer).with_late_outcome())

    def may_write(self, layer: PromptLayer, tokens: float, *, prompt_tokens: int) -> bool:
        """Whether unread writes leave room for one more; those of prefixes never seen before count together."""
        layers = _OPENING if layer in _OPENING else (layer,)
        unread = sum(self.rate(each).unread_tokens for each in layers)
        return unread + tokens <= MAX_UNREAD_PROMPTS * prompt_tokens

    def with_read(self, layer: PromptLayer, tokens: int, rules: Rules, *, prompt_tokens: int) -> "AgentReuse":
        """Count `tokens` of a layer as read: what that saves pays for several writes."""
        rate = self.rate(layer)
        if not rate.unread_tokens:
            return self
        write_price = min(rules.write_prices.values(), default=1.0) - 1
        paid = tokens * (1 - rules.read_price) / write_price if write_price > 0 else inf
        unread = min(rate.unread_tokens, MAX_UNREAD_PROMPTS * prompt_tokens) - paid
        return self.with_rate(layer, replace(rate, unread_tokens=max(0.0, unread)))


_OPENING = (PromptLayer.TOOLS, PromptLayer.SYSTEM, PromptLayer.CONTEXT)
_NO_RATE = Rate()
UNKNOWN_AGENT = AgentReuse()


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix of a request that may be worth a breakpoint: the first `pieces`, `tokens` long.

    `soon` and `late` are the probabilities that it is asked for again within the short TTL, and within the long
    one only. `is_written`: an entry exists for it, or will once a response that is under way begins.
    """

    layer: PromptLayer
    pieces: int
    tokens: int
    soon: float
    late: float = 0.0
    is_written: bool = False


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a request is worth a breakpoint: the first `pieces`, which end with `layer`.

    `soon` and `late` are the probabilities of that prefix, `front` that of the system prompt or, without one,
    of the tools. `value` is what is saved, in uncached input tokens, and `written` what each layer writes, in
    tokens at the price of the short TTL.
    """

    pieces: int = 0
    soon: float = 0.0
    late: float = 0.0
    front: float = 0.0
    layer: PromptLayer | None = None
    value: float = 0.0
    written: dict[PromptLayer, float] = {}


_FRONT = frozenset((PromptLayer.TOOLS, PromptLayer.SYSTEM, PromptLayer.SHARED_TOOLS, PromptLayer.SHARED_SYSTEM))


def best_reach(
    levels: Sequence[Level],
    rules: Rules,
    reuse: AgentReuse = UNKNOWN_AGENT,
    *,
    read_pieces: int = 0,
    read_tokens: int = 0,
    long_ttl: bool = True,
) -> Reach:
    """Find the prefix that is worth most: what its layers are expected to save, less what writing them costs.

    `levels` are in the order of the prompt. What can be read is not written again, and a layer that another
    request writes already saves nothing more.
    """
    saving = 1 - rules.read_price
    short_write = min(rules.write_prices.values(), default=1.0) - 1
    long_write = max(rules.write_prices.values(), default=1.0) - 1
    levels = _nest(levels)
    front = [level.soon + level.late for level in levels if level.layer in _FRONT]
    best = Reach(pieces=read_pieces, front=front[-1] if front else 0.0)
    value, end = 0.0, read_tokens
    written: dict[PromptLayer, float] = {}
    for level in levels:
        if level.pieces <= read_pieces:
            best = replace(best, soon=level.soon, late=level.late, layer=level.layer)
            continue
        tokens, end = level.tokens - end, level.tokens
        gain, cost = (0.0 if level.is_written else level.soon * saving) - short_write, 1.0
        long_gain = (level.soon + level.late) * saving * _prior()["long_reads"] - long_write
        if long_ttl and not level.is_written and long_gain > gain:
            gain, cost = long_gain, long_write / short_write if short_write else 1.0
        value += gain * tokens
        written = {**written, level.layer: cost * tokens}
        if not reuse.may_write(level.layer, cost * tokens, prompt_tokens=levels[-1].tokens):
            break
        if value > best.value and level.tokens >= rules.minimum_tokens:
            best = Reach(
                pieces=level.pieces,
                soon=level.soon,
                late=level.late,
                front=best.front,
                layer=level.layer,
                value=value,
                written=written,
            )
    return best


def _nest(levels: Sequence[Level]) -> list[Level]:
    """The same with each at least as likely as the next: who asks for a prefix asks for every shorter one."""
    found: list[Level] = []
    for level in reversed(levels):
        if found:
            soon = max(level.soon, found[-1].soon)
            total = max(level.soon + level.late, found[-1].soon + found[-1].late)
            level = replace(level, soon=soon, late=total - soon)
        found.append(level)
    return found[::-1]

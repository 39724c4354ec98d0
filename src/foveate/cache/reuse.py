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
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from math import exp, inf, log
from pathlib import Path
from typing import Protocol, TypedDict

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
    return max(weights["least"], 1 / (1 + exp(-logit)))


class Rate(msgspec.Struct, frozen=True):
    """How many prefixes of a layer were asked for, and how many again; older ones count less.

    `again` counts those asked for again within the short TTL, `late` those within the long one only.
    """

    asked: float = 0.0
    again: float = 0.0
    late: float = 0.0

    def with_outcome(self, *, is_again: bool) -> "Rate":
        """Count one more prefix."""
        fading = _prior()["fading"]
        return Rate(self.asked * fading + 1, self.again * fading + is_again, self.late * fading)

    def with_late_outcome(self) -> "Rate":
        """Count a prefix as asked for late that was counted as not asked for again."""
        return replace(self, late=min(self.asked - self.again, self.late + 1))

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
    """What the `requests` of an agent have shown: a rate for each layer, and how many tokens nobody read yet.

    These are counted at the price of the short TTL, apart for prefixes that nobody asked for before.
    """

    rates: dict[str, Rate] = {}
    requests: int = 0
    unread_new: float = 0.0
    unread_shared: float = 0.0

    def rate(self, layer: PromptLayer) -> Rate:
        """The rate of a layer."""
        return self.rates.get(layer, _NO_RATE)

    def with_outcome(self, layer: PromptLayer, *, is_again: bool) -> "AgentReuse":
        """Count one more prefix of a layer."""
        return replace(self, rates={**self.rates, layer: self.rate(layer).with_outcome(is_again=is_again)})

    def with_late_outcome(self, layer: PromptLayer) -> "AgentReuse":
        """Count a prefix as asked for late that was counted as not asked for again."""
        return replace(self, rates={**self.rates, layer: self.rate(layer).with_late_outcome()})

    def unread_tokens(self, layer: PromptLayer) -> float:
        """What was written of this layer, and those that count with it, and was not read yet."""
        return self.unread_new if layer in _NEW else self.unread_shared

    def with_unread(self, layer: PromptLayer, tokens: float) -> "AgentReuse":
        """Count so many unread tokens more or, with a minus sign, fewer."""
        unread = max(0.0, self.unread_tokens(layer) + tokens)
        return replace(self, unread_new=unread) if layer in _NEW else replace(self, unread_shared=unread)

    def with_read(self, layer: PromptLayer, tokens: int, rules: Rules, *, prompt_tokens: int) -> "AgentReuse":
        """Count `tokens` of a layer as read: what that saves pays for several writes."""
        unread = self.unread_tokens(layer)
        if not unread:
            return self
        write_price = min(rules.write_prices.values(), default=1.0) - 1
        paid = tokens * (1 - rules.read_price) / write_price if write_price > 0 else inf
        too_many = max(0.0, unread - MAX_UNREAD_PROMPTS * prompt_tokens)
        return self.with_unread(layer, -paid - too_many)

    def may_write(self, layer: PromptLayer, tokens: float, *, prompt_tokens: int) -> bool:
        """Whether unread writes leave room for one more."""
        return self.unread_tokens(layer) + tokens <= MAX_UNREAD_PROMPTS * prompt_tokens


class ReuseStore(Protocol):
    """Keeps what agents have shown."""

    async def load(self, *, since: float, limit: int) -> Mapping[str, AgentReuse]:
        """What was saved since a time, by agent, the newest at the end."""

    async def save(self, learnt: Mapping[str, AgentReuse], *, now: float) -> None:
        """Save these, unless what is there was learnt from more requests."""


_NEW = (PromptLayer.TOOLS, PromptLayer.SYSTEM, PromptLayer.CONTEXT)
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

    `soon` and `late` are the probabilities of that prefix, `front_soon` and `front_late` those of the system
    prompt or, without one, of the tools. `value` is what is saved, in uncached input tokens, by writing
    `written_tokens`.
    """

    pieces: int = 0
    soon: float = 0.0
    late: float = 0.0
    front_soon: float = 0.0
    front_late: float = 0.0
    layer: PromptLayer | None = None
    value: float = 0.0
    written_tokens: int = 0


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
    best = Reach(pieces=read_pieces)
    for level in levels:
        if level.layer in _FRONT:
            best = replace(best, front_soon=level.soon, front_late=level.late)
    value, end = 0.0, read_tokens
    for level in levels:
        if level.pieces <= read_pieces:
            best = replace(best, soon=level.soon, late=level.late, layer=level.layer)
            continue
        tokens, end, written = level.tokens - end, level.tokens, level.tokens - read_tokens
        if not reuse.may_write(level.layer, written, prompt_tokens=levels[-1].tokens):
            break
        gain = (0.0 if level.is_written else level.soon * saving) - short_write
        if long_ttl and not level.is_written:
            gain = max(gain, (level.soon + level.late) * saving * _prior()["long_reads"] - long_write)
        value += gain * tokens
        if value > best.value and level.tokens >= rules.minimum_tokens:
            best = replace(
                best,
                pieces=level.pieces,
                soon=level.soon,
                late=level.late,
                layer=level.layer,
                value=value,
                written_tokens=written,
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

"""How large and how dear a call can be at most, by what its request asks for."""

from dataclasses import dataclass
from decimal import Decimal

from foveate import wire
from foveate.budget.answers import longest_answer_of
from foveate.cost.price_book import PriceBook
from foveate.fold.overflow import lower_end
from foveate.values import Format, Request, TokenCount, Ttl
from foveate.wire.around import around_of
from foveate.wire.body import Fields, as_text, fields, value

# Hosts take each other's names, and which of two they heed nobody knows: the largest counts.
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
# What the provider has, and adds to the input: earlier answers, whole conversations, kept prompts.
_KEPT_THERE = ("previous_response_id", "conversation", "prompt")
# So long an answer can be where the window is that of the prompt alone, or is not known (November 2026: GPT-5).
_LONG_ANSWER_TOKENS = 128_000
_MOST_DIGITS = 18
_TTL = b'"ttl"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request asks for that its price depends on.

    `output_tokens` is the limit that it sets an answer, None where it sets none that can be read. `answers` is
    how many it asks for, None where nobody can say. `tier` and `region` are the provider's own words.
    `adds_input`: something is added to its input that the provider has kept.
    """

    output_tokens: int | None = None
    answers: int | None = 1
    tier: str = ""
    region: str | None = None
    adds_input: bool = False


def asked_of(request: Request) -> Asked:
    """What a request asks for."""
    around = around_of(request)
    if around is None:
        return _asked(request.format, fields(request.body))
    known: Asked | None = around.known.get(Asked)
    if known is None:
        known = around.known[Asked] = _asked(request.format, around.fields)
    return known


def _asked(spoken: Format, said: Fields) -> Asked:
    found = {name: value(said[name]) for name in _NAMES if name in said}
    given = [_whole(found[name]) for name in _LIMITS if found.get(name) is not None]
    limits = [limit for limit in given if limit is not None]
    is_fast = as_text(found.get("speed")) == "fast"
    return Asked(
        output_tokens=max(limits) if limits and len(limits) == len(given) else None,
        answers=1 if found.get("n") is None else _whole(found["n"]),
        tier="fast" if is_fast else as_text(found.get("service_tier")),
        region=as_text(found.get("inference_geo")) or None,
        adds_input=spoken is Format.RESPONSES and any(found.get(name) for name in _KEPT_THERE),
    )


_NAMES = frozenset((*_LIMITS, *_KEPT_THERE, "n", "service_tier", "speed", "inference_geo"))


def _whole(said: object) -> int | None:
    """A number above zero, also as hosts take it that are not strict; None where it is none."""
    if isinstance(said, str) and said.isdecimal() and len(said) <= _MOST_DIGITS:
        said = int(said)
    if isinstance(said, float) and said.is_integer():
        said = int(said)
    return said if type(said) is int and said > 0 else None


def longest_mark(request: Request) -> Ttl | None:
    """The longest time for which a mark in a request asks; None where there is none that says how long."""
    if _TTL not in request.body:
        return None
    marks = [wire.automatic_mark(request), *(block.mark for block in wire.blocks(request))]
    return max((ttl for ttl in marks if ttl is not None), key=lambda ttl: ttl.seconds, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtMost:
    """The most tokens that a call can have, and how it is paid for."""

    model: str
    provider: str
    input_tokens: int
    output_tokens: int
    at: float
    ttl: Ttl | None = None
    tier: str = ""
    region: str | None = None

    def dollars(self, prices: PriceBook) -> Decimal | None:
        """The most that it can cost; None where that is not known."""
        return prices.ceiling(
            self.model,
            provider=self.provider,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            at=self.at,
            ttl=self.ttl,
            tier=self.tier,
            region=self.region,
        )


def at_most(
    request: Request,
    count: TokenCount,
    *,
    provider: str,
    window_tokens: int | None,
    ttl: Ttl | None,
    at: float,
) -> AtMost | None:
    """The most that a request can come to; None where nobody can say."""
    asked = asked_of(request)
    if asked.answers is None or (asked.adds_input and window_tokens is None):
        return None
    input_tokens = max(count.upper, window_tokens or 0) if asked.adds_input else count.upper
    longest = asked.output_tokens
    if longest is None:
        known = longest_answer_of(request.model)
        before = 0 if asked.adds_input else lower_end(count)
        longest = known.tokens if known is not None else _longest_answer(before, window_tokens)
    return AtMost(
        model=request.model,
        provider=provider,
        input_tokens=input_tokens,
        output_tokens=longest * asked.answers,
        at=at,
        ttl=ttl,
        tier=asked.tier,
        region=asked.region,
    )


def _longest_answer(input_tokens: int, window_tokens: int | None) -> int:
    """How long an answer can be to which no limit is set, of a model that nothing more is known of."""
    if window_tokens is None:
        return _LONG_ANSWER_TOKENS
    return max(window_tokens - input_tokens, min(window_tokens, _LONG_ANSWER_TOKENS))

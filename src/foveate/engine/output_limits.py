"""Output limits for requests that set none, so that their worst case fits under the caps."""

from bisect import bisect_right
from collections.abc import Sequence
from decimal import Decimal

from msgspec.structs import replace as replace_struct

from foveate.cache.rules import rules_for
from foveate.cost.caps import Cap, Scope, exceeded
from foveate.cost.ledger import Standing
from foveate.cost.money import in_words
from foveate.cost.price_book import PriceBook
from foveate.engine.bounds import LIMITS, AtMost, asked_of
from foveate.errors import CapExceeded
from foveate.values import Format, Request, SetParameter
from foveate.wire.around import parameters_of
from foveate.wire.body import Fields, record, value

# A limit above this leaves half of the room under a shared cap to calls at the same time.
_AMPLE_OUTPUT_TOKENS = 32_000
# OpenAI's reasoning models refuse `max_tokens`; other providers may not know the newer name.
_NEW_NAME_PROVIDERS = frozenset(("openai", "azure"))


# Where formats have the limit inside of an object; Gemini reads its names in two spellings.
_NESTED = {
    Format.GEMINI: (("generationConfig", "maxOutputTokens"), ("generation_config", "max_output_tokens")),
    Format.BEDROCK: (("inferenceConfig", "maxTokens"),),
}


def limit_parameter(request: Request, provider: str) -> tuple[str, ...] | None:
    """The path of the parameter that limits the output; None if the client set one, or the API requires it."""
    found = parameters_of(request)
    if request.format in _NESTED:
        return _nested_parameter(request.format, found)
    if any(value(found.get(name)) is not None for name in LIMITS):
        return None
    if request.format is Format.RESPONSES:
        return ("max_output_tokens",)
    if request.format is not Format.CHAT:
        return None
    rules = rules_for(request.model, provider)
    is_openai = rules.provider in _NEW_NAME_PROVIDERS and rules.family.startswith("gpt")
    return ("max_completion_tokens",) if is_openai else ("max_tokens",)


def _nested_parameter(spoken: Format, found: Fields) -> tuple[str, ...] | None:
    """The path in the spelling that the request has; None if a limit is there, or no object to put it into."""
    spellings = _NESTED[spoken]
    used = [path for path in spellings if path[0] in found]
    if any(not isinstance(value(found[path[0]]), dict) for path in used):
        return None
    limits = [record(found[path[0]]).get(name) for path in used for _, name in spellings]
    if len(used) > 1 or any(limit is not None for limit in limits):
        return None
    return used[0] if used else spellings[0]


def limit_output(
    request: Request,
    most: AtMost,
    refused: CapExceeded,
    caps: Sequence[Cap],
    *,
    prices: PriceBook,
    min_tokens: int,
) -> tuple[SetParameter, AtMost]:
    """Choose the output limit with which a refused call fits under the cap that refused it.

    Returns the edit, and what the call can come to with it. Under a cap that calls share, a limit above 32,000
    tokens takes only half of the room, so that other calls can be made at the same time.

    Raises:
        CapExceeded: the client set a limit, or not even `min_tokens` fit.
    """
    path, answers = limit_parameter(request, most.provider), asked_of(request).answers
    if path is None or not answers:
        raise refused
    cap = next(cap for cap in caps if str(cap) == refused.cap)
    standing = Standing(spent=refused.spent, reserved=refused.reserved)

    def dollars(tokens: int) -> Decimal:
        return replace_struct(most, output_tokens=tokens * answers).dollars(prices) or Decimal(0)

    longest = most.output_tokens // answers
    shortest = min(min_tokens, longest)
    fitting = bisect_right(range(longest + 1), refused.room, lo=shortest, key=dollars) - 1
    if fitting < shortest:
        raise exceeded(cap, standing, dollars(shortest), output_tokens=shortest) from refused
    if cap.scope is not Scope.CALL:
        fitting = max(min(fitting, _AMPLE_OUTPUT_TOKENS), fitting // 2)
    reason = f"the client sets no output limit, and {cap} has room for {in_words(refused.room)}"
    return (
        SetParameter(path=path, value=fitting, reason=reason),
        replace_struct(most, output_tokens=fitting * answers),
    )

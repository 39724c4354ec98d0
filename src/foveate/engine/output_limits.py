"""Output limits for requests that set none, so that their worst case fits under the caps."""

from bisect import bisect_right
from collections.abc import Sequence
from decimal import Decimal

from msgspec.structs import replace as replace_struct

from foveate.cache.rules import rules_for
from foveate.cost.caps import Cap, CapScope, make_cap_exceeded
from foveate.cost.ledger import AccountBalance
from foveate.cost.money import format_dollars
from foveate.cost.price_book import PriceBook
from foveate.engine.bounds import OUTPUT_LIMIT_NAMES, CostCeiling, read_cost_parameters
from foveate.errors import CapExceeded
from foveate.values import Format, Request, SetParameter
from foveate.wire.around import get_parameters
from foveate.wire.body import Fields, parse_json, parse_object

# A limit above this leaves half of the room under a shared cap to calls at the same time.
_AMPLE_OUTPUT_TOKENS = 32_000
# OpenAI's reasoning models refuse `max_tokens`; other providers may not know the newer name.
_MAX_COMPLETION_TOKENS_PROVIDERS = frozenset(("openai", "azure"))


# Where formats have the limit inside of an object; Gemini reads its names in two spellings.
_NESTED_LIMIT_PATHS = {
    Format.GEMINI: (("generationConfig", "maxOutputTokens"), ("generation_config", "max_output_tokens")),
    Format.BEDROCK: (("inferenceConfig", "maxTokens"),),
}


def output_limit_path(request: Request, provider: str) -> tuple[str, ...] | None:
    """The path of the parameter that limits the output; None if the client set one, or the API requires it."""
    parameters = get_parameters(request)
    if request.format in _NESTED_LIMIT_PATHS:
        return _nested_limit_path(request.format, parameters)
    if any(parse_json(parameters.get(name)) is not None for name in OUTPUT_LIMIT_NAMES):
        return None
    if request.format is Format.RESPONSES:
        return ("max_output_tokens",)
    if request.format is not Format.CHAT:
        return None
    rules = rules_for(request.model, provider)
    is_openai = rules.provider in _MAX_COMPLETION_TOKENS_PROVIDERS and rules.family.startswith("gpt")
    return ("max_completion_tokens",) if is_openai else ("max_tokens",)


def _nested_limit_path(api_format: Format, parameters: Fields) -> tuple[str, ...] | None:
    """The path in the spelling that the request has; None if a limit is there, or no object to put it into."""
    spellings = _NESTED_LIMIT_PATHS[api_format]
    used_paths = [path for path in spellings if path[0] in parameters]
    if any(not isinstance(parse_json(parameters[path[0]]), dict) for path in used_paths):
        return None
    limits = [parse_object(parameters[path[0]]).get(name) for path in used_paths for _, name in spellings]
    if len(used_paths) > 1 or any(limit is not None for limit in limits):
        return None
    return used_paths[0] if used_paths else spellings[0]


def limit_output(
    request: Request,
    ceiling: CostCeiling,
    rejection: CapExceeded,
    caps: Sequence[Cap],
    *,
    prices: PriceBook,
    min_tokens: int,
) -> tuple[SetParameter, CostCeiling]:
    """Choose the output limit with which a refused call fits under the cap that refused it.

    Returns the edit, and what the call can come to with it. Under a cap that calls share, a limit above 32,000
    tokens takes only half of the room, so that other calls can be made at the same time.

    Raises:
        CapExceeded: the client set a limit, or not even `min_tokens` fit.
    """
    path, choices = output_limit_path(request, ceiling.provider), read_cost_parameters(request).choices
    if path is None or not choices:
        raise rejection
    cap = next(cap for cap in caps if str(cap) == rejection.cap)
    standing = AccountBalance(spent=rejection.spent, reserved=rejection.reserved)

    def dollars(tokens: int) -> Decimal:
        return replace_struct(ceiling, output_tokens=tokens * choices).dollars(prices) or Decimal(0)

    max_tokens = ceiling.output_tokens // choices
    lower_limit = min(min_tokens, max_tokens)
    limit_tokens = bisect_right(range(max_tokens + 1), rejection.room, lo=lower_limit, key=dollars) - 1
    if limit_tokens < lower_limit:
        raise make_cap_exceeded(cap, standing, dollars(lower_limit), output_tokens=lower_limit) from rejection
    if cap.scope is not CapScope.CALL:
        limit_tokens = max(min(limit_tokens, _AMPLE_OUTPUT_TOKENS), limit_tokens // 2)
    reason = f"the client sets no output limit, and {cap} has room for {format_dollars(rejection.room)}"
    return (
        SetParameter(path=path, value=limit_tokens, reason=reason),
        replace_struct(ceiling, output_tokens=limit_tokens * choices),
    )

"""The worst-case cost of a call, and output limits that make it fit under the caps."""

import re
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

import msgspec
from msgspec.structs import replace as replace_struct

from foveate import formats
from foveate.budget.model_limits import find_context_window, find_output_limit
from foveate.compaction.overflow import lower_bound_tokens
from foveate.cost.caps import Cap, CapScope, make_cap_exceeded
from foveate.cost.ledger import AccountBalance
from foveate.cost.money import format_dollars
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.spending.unknown_costs import (
    MAX_NAME_CHARS,
    CostFeature,
    envelope_features,
    fallback_models,
    find_cost_features,
    is_client_tool,
    modalities,
    searches_by_itself,
    without_allowed,
)
from foveate.errors import CapExceeded
from foveate.formats.gemini import unwrap_fields
from foveate.formats.incremental.envelope import get_envelope, get_parameters
from foveate.formats.json_text.large_json import contains
from foveate.formats.json_text.parse import (
    Fields,
    as_dict,
    as_list,
    as_text,
    is_set,
    parse_inner_fields,
    parse_json,
    parse_object,
)
from foveate.formats.response.usage import BillableUnit
from foveate.model import Format, Request, SetParameter, TokenCount, Ttl
from foveate.prompt_cache.rules import rules_for
from foveate.tokens import counter_for
from foveate.tokens.counter import BOUNDED_UNEXPLAINED

# Hosts accept each other's names, and it is unknown which of two they use: the largest counts.
OUTPUT_LIMIT_NAMES = ("max_tokens", "max_completion_tokens", "max_output_tokens")
# Assumed uses of a server's tools if the request does not limit them. Anthropic's loop ends after ten rounds
# (https://docs.anthropic.com/en/api/handling-stop-reasons, November 2026); others document no limit.
_DEFAULT_TOOL_USES = 10
# The longest definition that a provider has for a tool of its own which the client runs.
_MAX_TOOL_DEFINITION_TOKENS = 2_000
_BOUNDED_INPUTS = dict.fromkeys(BOUNDED_UNEXPLAINED, 0)
# If the window is that of the prompt alone, or is unknown (November 2026: GPT-5).
_DEFAULT_MAX_OUTPUT_TOKENS = 128_000
_MAX_DIGITS = 18
# Searches among tools, which are free.
_FREE_SEARCH_TOOL = "tool_search"
_UNIT_NAMES = {
    BillableUnit.INPUT_AUDIO: "audio input",
    BillableUnit.OUTPUT_AUDIO: "audio output",
    BillableUnit.OUTPUT_IMAGE: "generated images",
}
_UNIT_BY_MODALITY = {"audio": BillableUnit.OUTPUT_AUDIO, "image": BillableUnit.OUTPUT_IMAGE}
_TTL = b'"ttl"'
# Letters and the underscore written as escapes: valid in names, although no encoder writes them.
_ESCAPED, _ESCAPED_LETTER = b"\\u00", re.compile(rb"\\u00(?:5[fF]|[67])")
_COST_FIELDS = ("service_tier", "speed", "inference_geo", "context_management")
_PARAMETER_NAMES = frozenset(
    (*OUTPUT_LIMIT_NAMES, "n", "best_of", "prediction", "thinking_budget", *_COST_FIELDS)
)
# A limit above this leaves half of the room under a shared cap to concurrent calls.
_AMPLE_OUTPUT_TOKENS = 32_000
# OpenAI's reasoning models reject `max_tokens`; other providers may not know the newer name.
_MAX_COMPLETION_TOKENS_PROVIDERS = frozenset(("openai", "azure"))
# Formats with the limit inside an object; Gemini accepts two spellings.
_NESTED_LIMIT_PATHS = {
    Format.GEMINI: (("generationConfig", "maxOutputTokens"), ("generation_config", "max_output_tokens")),
    Format.BEDROCK: (("inferenceConfig", "maxTokens"),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CostParameters:
    """Parameters of a request that its price depends on.

    `output_tokens` is its output limit, None if it sets none that can be read. `choices` is the number of
    responses, None if unknown. `tier` and `region` are the provider's own words. The provider reads the input
    up to `input_passes` times, since its tools run there, and makes up to `searches`. `bounded_inputs` are
    upper bounds of invisible input, by name. `other_models` may respond too. The output may have `modalities`
    besides text, and more tokens than the limit: those of an unused `prediction`, `extra_output_tokens`, and a
    summary if the provider `compacts`. `features` are those of unknown cost.
    """

    output_tokens: int | None = None
    choices: int | None = 1
    tier: str = ""
    region: str | None = None
    input_passes: int = 1
    searches: int = 0
    bounded_inputs: Mapping[str, int] = field(default_factory=lambda: _BOUNDED_INPUTS)
    other_models: tuple[str, ...] = ()
    modalities: frozenset[str] = frozenset()
    prediction: str = ""
    extra_output_tokens: int = 0
    compacts: bool = False
    features: tuple[CostFeature, ...] = ()

    @property
    def adds_input(self) -> bool:
        return self.input_passes > 1


def read_cost_parameters(request: Request) -> CostParameters:
    envelope = get_envelope(request)
    if envelope is None:
        return _parse_cost_parameters(request, get_parameters(request))
    parameters: CostParameters | None = envelope.memo.get(CostParameters)
    if parameters is None:
        parameters = envelope.memo[CostParameters] = _parse_cost_parameters(request, envelope.fields)
    return parameters


def _parse_cost_parameters(request: Request, body_fields: Fields | Mapping[str, bytes]) -> CostParameters:
    parameters = _read_parameters(request.format, body_fields)
    # No output at Anthropic, which fills the cache: "max_tokens: 0" (platform.claude.com, November 2026).
    given_limits = [
        0 if limit is not False and limit == 0 and request.format is Format.ANTHROPIC else _positive_int(limit)
        for limit in _output_limits(request.format, body_fields, parameters)
    ]
    limits = [limit for limit in given_limits if limit is not None]
    is_fast = as_text(parameters.get("speed")) == "fast"
    tools = [(_tool_kind(request.format, raw), raw) for raw in request.tools]
    uses, searches = _server_tool_uses(request.format, body_fields, tools)
    manages_context = "context_management" in request.unexplained
    is_clearing = manages_context and _only_clears_context(parameters["context_management"])
    return CostParameters(
        output_tokens=max(limits) if limits and len(limits) == len(given_limits) else None,
        choices=_choice_count(parameters),
        tier="fast" if is_fast else as_text(parameters.get("service_tier")),
        region=as_text(parameters.get("inference_geo")) or None,
        input_passes=1 + uses + (1 if manages_context and not is_clearing else 0),
        searches=searches,
        bounded_inputs=_BOUNDED_INPUTS
        | _client_tool_definitions(tools)
        | ({"context_management": 0} if is_clearing else {}),
        other_models=tuple(fallback_models(request.format, body_fields)),
        modalities=modalities(request.format, body_fields),
        prediction=_prediction_text(parameters.get("prediction")),
        extra_output_tokens=_positive_int(parameters.get("thinking_budget")) or 0,
        compacts=manages_context and not is_clearing,
        features=envelope_features(request.format, body_fields, request.tools),
    )


def _choice_count(parameters: Mapping[str, object]) -> int | None:
    """The number of responses: all of `best_of` are charged, although `n` are returned."""
    numbers = [_positive_int(parameters[name]) for name in ("n", "best_of") if parameters.get(name) is not None]
    return None if None in numbers else max((number for number in numbers if number is not None), default=1)


def _prediction_text(prediction: object) -> str:
    """The predicted output; all of it is charged as output if it is not used.

    `rejected_prediction_tokens` are counted in the completion tokens "for purposes of billing" (OpenAI's API
    reference, read November 2026).
    """
    content = as_dict(prediction).get("content")
    if isinstance(content, str):
        return content
    return "".join(as_text(as_dict(part).get("text")) for part in as_list(content))


def _output_limits(api_format: Format, body_fields: Fields, parameters: Mapping[str, object]) -> list[object]:
    """All output limits of a request.

    Gemini accepts two spellings, and its limit bounds thinking and output together: measured in
    https://github.com/googleapis/python-genai/issues/2062 (read November 2026).
    """
    if api_format is Format.GEMINI:
        limits = _gemini_config_values(body_fields, "maxOutputTokens", "max_output_tokens")
    elif api_format is Format.BEDROCK:
        limits = [parse_object(body_fields.get("inferenceConfig")).get("maxTokens")]
    else:
        limits = [parameters.get(name) for name in OUTPUT_LIMIT_NAMES]
    return [limit for limit in limits if limit is not None]


def _read_parameters(api_format: Format, body_fields: Fields) -> dict[str, object]:
    """The parameters in `_PARAMETER_NAMES`, whatever a format calls them."""
    if api_format is Format.GEMINI:
        choices = _gemini_config_values(body_fields, "candidateCount", "candidate_count")
        inner = unwrap_fields(body_fields)
        tiers = [parse_json(inner.get(name)) for name in ("serviceTier", "service_tier")]
        return {"n": _first_value(choices), "service_tier": _first_value(tiers)}
    if api_format is Format.BEDROCK:
        return {"service_tier": parse_object(body_fields.get("serviceTier")).get("type")}
    return {name: parse_json(body_fields[name]) for name in _PARAMETER_NAMES if name in body_fields}


def _gemini_config_values(body_fields: Fields, *names: str) -> list[object]:
    inner = unwrap_fields(body_fields)
    configs = [parse_object(inner.get(name)) for name in ("generationConfig", "generation_config")]
    return [config.get(name) for config in configs for name in names]


def _first_value(values: Sequence[object]) -> object:
    return next((value for value in values if value is not None), None)


def _server_tool_uses(
    api_format: Format, body_fields: Fields | Mapping[str, bytes], tools: Sequence[tuple[str, bytes]]
) -> tuple[int, int]:
    """Return the maximum number of tool runs at the provider, and of its web searches."""
    server_tools = [
        (kind, _positive_int(parse_object(raw).get("max_uses")))
        for kind, raw in tools
        if not _is_run_by_client(kind)
    ]
    if is_set(body_fields.get("mcp_servers")):
        server_tools.append(("mcp", None))
    searches = [
        limit
        for kind, limit in server_tools
        if "search" in kind.lower() and not kind.startswith(_FREE_SEARCH_TOOL)
    ]
    if is_set(body_fields.get("web_search_options")):  # one search, before the response
        searches.append(1)
    total = (
        _positive_int(parse_json(body_fields.get("max_tool_calls"))) if api_format is Format.RESPONSES else None
    )
    if total is not None and all(kind != "mcp" for kind, _ in server_tools):
        return (total if server_tools else 0), (total if searches else 0)
    return _total_uses([limit for _, limit in server_tools]), _total_uses(searches)


def _total_uses(limits: list[int | None]) -> int:
    return sum(limit for limit in limits if limit is not None) + (_DEFAULT_TOOL_USES if None in limits else 0)


def _tool_kind(api_format: Format, raw: bytes) -> str:
    """The kind of a tool, without parsing the rest if possible."""
    if api_format in (Format.GEMINI, Format.BEDROCK):
        return formats.parse_tool(api_format, raw).kind
    return as_text(parse_json(parse_inner_fields(raw).get("type"))) or "function"


def _is_run_by_client(kind: str) -> bool:
    return is_client_tool(kind)


def _client_tool_definitions(tools: Sequence[tuple[str, bytes]]) -> dict[str, int]:
    token_bounds: dict[str, int] = {}
    for kind, raw in tools:
        if _is_run_by_client(kind) and kind not in ("function", "custom"):
            for name in (kind, f"server tool {kind}"):
                token_bounds[name] = token_bounds.get(name, 0) + _MAX_TOOL_DEFINITION_TOKENS + len(raw)
    return token_bounds


def _only_clears_context(management: object) -> bool:
    """Return whether the provider only removes context, and writes no summary of it."""
    edits = as_list(as_dict(management).get("edits")) if isinstance(management, dict) else as_list(management)
    return all(as_text(as_dict(edit).get("type")).startswith("clear_") for edit in edits)


def _positive_int(value: object) -> int | None:
    """Parse a positive number as lenient hosts do; None if it is not one."""
    if (isinstance(value, str) and value.isdecimal() and len(value) <= _MAX_DIGITS) or (
        isinstance(value, float) and value.is_integer()
    ):
        value = int(value)
    return value if type(value) is int and value > 0 else None


def max_breakpoint_ttl(request: Request) -> Ttl | None:
    body = request.body
    if not contains(body, _TTL) and not (contains(body, _ESCAPED) and _ESCAPED_LETTER.search(body)):
        return None
    ttls = [
        formats.automatic_breakpoint(request),
        *(block.breakpoint_ttl for block in formats.request_blocks(request)),
    ]
    return max((ttl for ttl in ttls if ttl is not None), key=lambda ttl: ttl.seconds, default=None)


class CostCeiling(msgspec.Struct, frozen=True, kw_only=True):
    """Upper bounds of a call's tokens, and how they are priced.

    `extra_output_tokens` are charged as output beyond any limit. `other_models` may respond instead of `model`.
    `units` may be charged too, so they need a price.
    """

    model: str
    provider: str
    input_tokens: int
    output_tokens: int
    at: float
    ttl: Ttl | None = None
    tier: str = ""
    region: str | None = None
    searches: int = 0
    extra_output_tokens: int = 0
    other_models: tuple[str, ...] = ()
    units: tuple[BillableUnit, ...] = ()

    def dollars(self, prices: PriceBook) -> Decimal | None:
        """The maximum cost; None if it is unknown for one of the models that may respond."""
        highest = Decimal(0)
        for model in (self.model, *self.other_models):
            dollars = prices.ceiling(
                model,
                provider=self.provider,
                input_tokens=self.input_tokens,
                output_tokens=self.output_tokens + self.extra_output_tokens,
                at=self.at,
                ttl=self.ttl,
                tier=self.tier,
                region=self.region,
                searches=self.searches,
                units=self.units,
            )
            if dollars is None:
                return None
            highest = max(highest, dollars)
        return highest

    def describe_unpriced(self, prices: PriceBook) -> str:
        """Name what may be charged and has no price although the tokens have; empty if nothing."""
        tokens_only = replace_struct(self, searches=0, units=(), other_models=())
        if tokens_only.dollars(prices) is None:
            return ""
        for model in self.other_models:
            if replace_struct(tokens_only, model=model).dollars(prices) is None:
                return f"the fallback model `{model[:MAX_NAME_CHARS]}`"
        names = [_UNIT_NAMES[unit] for unit in self.units]
        names += ["web searches"] if self.searches else []
        return " and ".join(names)


def compute_cost_ceiling(
    request: Request,
    count: TokenCount,
    *,
    provider: str,
    window_tokens: int | None,
    ttl: Ttl | None,
    at: float,
    unexplained: Collection[str] = (),
    counted_inputs: Collection[str] = (),
    region: str | None = None,
    allowed: Collection[str] = (),
) -> CostCeiling | None:
    """Compute the cost ceiling of a request; None if it is unknown.

    Features of unknown cost are checked separately (`unknown_features`); fees of those that are `allowed` are
    ignored if they have no price. `unexplained` names inputs that the provider adds, and `counted_inputs` those
    of them that `count` includes. `region` is where the call is served, if it is known from elsewhere than the
    request.
    """
    parameters = read_cost_parameters(request)
    input_tokens = max_input_tokens(
        request, count.upper, unexplained, window_tokens=window_tokens, counted_inputs=counted_inputs
    )
    if parameters.choices is None or input_tokens is None:
        return None
    min_input_tokens = 0 if unexplained or request.unexplained else lower_bound_tokens(count)
    max_output_tokens = _max_output_tokens(
        request.model, parameters.output_tokens, min_input_tokens, window_tokens
    )
    for model in parameters.other_models:
        # Another model may count more tokens, have a larger window and write longer responses.
        window = find_context_window(model)
        window_tokens = window.tokens if window is not None else None
        upper = counter_for(model).count_request(replace(request, model=model)).total.upper
        model_input_tokens = max_input_tokens(
            request, upper, unexplained, window_tokens=window_tokens, counted_inputs=counted_inputs
        )
        if model_input_tokens is None:
            return None
        input_tokens = max(input_tokens, model_input_tokens)
        max_output_tokens = max(
            max_output_tokens, _max_output_tokens(model, parameters.output_tokens, 0, window_tokens)
        )
    extra_output_tokens = parameters.extra_output_tokens
    if parameters.prediction:
        extra_output_tokens += counter_for(request.model).text(parameters.prediction).upper
    if parameters.compacts:
        extra_output_tokens += _max_output_tokens(request.model, None, 0, window_tokens)
    searches, units = _fees(parameters, (request.model, *parameters.other_models), allowed)
    return CostCeiling(
        model=request.model,
        provider=provider,
        input_tokens=input_tokens,
        output_tokens=max_output_tokens * parameters.choices,
        extra_output_tokens=extra_output_tokens * parameters.choices,
        other_models=parameters.other_models,
        units=units,
        at=at,
        ttl=ttl,
        tier=parameters.tier,
        region=region or parameters.region,
        searches=searches,
    )


def _fees(
    parameters: CostParameters, models: Sequence[str], allowed: Collection[str]
) -> tuple[int, tuple[BillableUnit, ...]]:
    """The number of searches and the other units that are charged, without those that are `allowed`."""
    kinds = [CostFeature("field", "modalities"), CostFeature("tool", "web_search")]
    counted_names = {
        name.name
        for name in without_allowed([*kinds, *(CostFeature("model", name) for name in models)], allowed)
    }
    is_searching = any(searches_by_itself(model) for model in models if model in counted_names)
    searches = max(
        parameters.searches if "web_search" in counted_names else 0, _DEFAULT_TOOL_USES if is_searching else 0
    )
    units = {
        _UNIT_BY_MODALITY[name]
        for name in parameters.modalities
        if name in _UNIT_BY_MODALITY and "modalities" in counted_names
    }
    if any("audio" in model.lower() for model in models if model in counted_names):
        units.add(BillableUnit.INPUT_AUDIO)
    return searches, tuple(sorted(units))


def unknown_features(request: Request, provider: str, allowed: Collection[str] = ()) -> tuple[CostFeature, ...]:
    parameters = read_cost_parameters(request)
    return without_allowed(
        (*parameters.features, *find_cost_features(request, parameters.other_models, provider)), allowed
    )


def max_input_tokens(
    request: Request,
    upper: int,
    unexplained: Collection[str],
    *,
    window_tokens: int | None,
    counted_inputs: Collection[str] = (),
) -> int | None:
    """The maximum input that is charged for a request whose own input is at most `upper`; None if unknown.

    What the provider fetches or stores fits into the window, and so does what each use of its tools adds.
    """
    parameters = read_cost_parameters(request)
    if not unexplained and not request.unexplained and not parameters.adds_input:
        return upper
    hidden_inputs = {*unexplained, *request.unexplained}.difference(counted_inputs)
    bounded_tokens = sum(
        parameters.bounded_inputs[name] for name in hidden_inputs if name in parameters.bounded_inputs
    )
    if not parameters.adds_input and hidden_inputs <= parameters.bounded_inputs.keys():
        return upper + bounded_tokens
    return (
        None if window_tokens is None else parameters.input_passes * max(upper + bounded_tokens, window_tokens)
    )


def _max_output_tokens(
    model: str, limit_tokens: int | None, input_tokens: int, window_tokens: int | None
) -> int:
    model_output = find_output_limit(model)
    if model_output is not None:
        return model_output.tokens if limit_tokens is None else min(limit_tokens, model_output.tokens)
    return _max_output_tokens_in_window(input_tokens, window_tokens) if limit_tokens is None else limit_tokens


def _max_output_tokens_in_window(input_tokens: int, window_tokens: int | None) -> int:
    """The maximum output of an unknown model without a limit."""
    if window_tokens is None:
        return _DEFAULT_MAX_OUTPUT_TOKENS
    return max(window_tokens - input_tokens, min(window_tokens, _DEFAULT_MAX_OUTPUT_TOKENS))


def output_limit_path(request: Request, provider: str) -> tuple[str, ...] | None:
    """The path of the output limit; None if the client has set one, or the API requires it."""
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
    """The path in the request's own spelling; None if a limit is set, or there is no object to set it in."""
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
    """Choose the output limit with which a rejected call fits under the cap that rejected it.

    Returns the edit and the new ceiling. Under a shared cap, a limit above 32,000 tokens takes only half of the
    room, so that other calls can be made at the same time.

    Raises:
        CapExceeded: the client set a limit, or not even `min_tokens` fit.
    """
    path, choices = output_limit_path(request, ceiling.provider), read_cost_parameters(request).choices
    if path is None or not choices:
        raise rejection
    cap = next(cap for cap in caps if str(cap) == rejection.cap)
    balance = AccountBalance(spent=rejection.spent, reserved=rejection.reserved)

    def dollars(tokens: int) -> Decimal:
        return replace_struct(ceiling, output_tokens=tokens * choices).dollars(prices) or Decimal(0)

    max_tokens = ceiling.output_tokens // choices
    lower_limit = min(min_tokens, max_tokens)
    limit_tokens = bisect_right(range(max_tokens + 1), rejection.room, lo=lower_limit, key=dollars) - 1
    if limit_tokens < lower_limit:
        raise make_cap_exceeded(cap, balance, dollars(lower_limit), output_tokens=lower_limit) from rejection
    if cap.scope is not CapScope.CALL:
        limit_tokens = max(min(limit_tokens, _AMPLE_OUTPUT_TOKENS), limit_tokens // 2, lower_limit)
    reason = f"the client sets no output limit, and {cap} leaves {format_dollars(rejection.room)}"
    return (
        SetParameter(path=path, value=limit_tokens, reason=reason),
        replace_struct(ceiling, output_tokens=limit_tokens * choices),
    )

"""Usage as providers report it, whatever they call their numbers (read November 2026).

There are two families: the input number excludes cached tokens (Anthropic, Bedrock Converse), or includes them
(all others). A number that is null counts as missing. If any other is not a possible number of tokens
(negative, a string, a fraction, more than any call has), the whole usage is unreadable: it has no tokens and
keeps its raw block, so that the call is recorded with unknown cost.

`split_usage` adds what prices depend on besides tokens: images and audio, searches, and calls of other models
within a call.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Context, Decimal
from enum import StrEnum
from functools import reduce
from typing import Any

import msgspec
from msgspec.structs import replace

from foveate.errors import MalformedRequest
from foveate.formats.json_text.lenient_parse import (
    parse_inner_fields_leniently,
    parse_items_leniently,
    parse_json_leniently,
    parse_object_leniently,
    parse_objects_leniently,
)
from foveate.formats.json_text.parse import Fields, as_dict, as_list, as_text, to_json
from foveate.model import CacheUsage, Format, Usage

_MAX_JSON_INTEGER = 2**53 - 1  # the largest integer that every JSON parser preserves
_MAX_CALL_TOKENS = 10**9  # hundreds of times the largest context window (November 2026)
_MAX_UNREADABLE_BYTES = 4096
_MAX_THINKING_TOKENS = 400_000  # no model writes more in one answer (November 2026)

# Calls within a Messages call that its totals exclude; others (`message`, `fallback_message`) are included.
_EXCLUDED_FROM_TOTALS = frozenset(("compaction", "advisor_message"))

_Numbers = Mapping[str, Any]
_TokenCounts = tuple[CacheUsage, int, int]
"""Input tokens, output tokens, and reasoning tokens among the output."""


def read_response_usage(api_format: Format, response: bytes) -> Usage | None:
    """Return the usage in a response body or in one chunk of a stream; None if it has none."""
    try:
        for fields in reversed(parse_objects_leniently(response)):  # a Gemini stream may be a list
            if usage := find_usage(api_format, fields):
                return usage
    except MalformedRequest:
        return None
    return None


def find_usage(api_format: Format, response: Fields) -> Usage | None:
    """Return the usage among the fields of a response.

    Raises:
        MalformedRequest: the field that should contain it cannot be parsed.
    """
    response = {**parse_inner_fields_leniently(response.get("response")), **response}  # OpenAI's last event
    timings = parse_object_leniently(response.get("timings"))
    # OpenAI and Bedrock have it outside of the usage.
    tier = as_text(parse_json_leniently(response.get("service_tier"))) or as_text(
        parse_object_leniently(response.get("serviceTier")).get("type")
    )
    for block in _usage_candidates(response):
        usage = _parse_block(api_format, block, timings, tier)
        if usage:
            return _add_searches(usage, _count_searches(api_format, response))
    return None


def _count_searches(api_format: Format, response: Fields) -> _Numbers:
    """Count the searches that OpenAI charges for, which its usage lacks, under Anthropic's names.

    Responses report those of the web in `tool_usage`, where opened pages are free, or only as items of the
    output. For chat, OpenAI's search models search once before each response. Sources, read November 2026:
    openai-python 3.49 (`ToolUsage`), https://developers.openai.com/api/docs/guides/tools-web-search
    """
    if api_format is not Format.RESPONSES:
        model = as_text(parse_json_leniently(response.get("model")))
        return {"web_search_requests": 1} if _SEARCH_MODEL.search(model) else {}
    tool_usage = parse_object_leniently(response.get("tool_usage"))
    reported = as_dict(tool_usage.get("web_search")).get("num_requests")
    output = response.get("output")
    has_calls = output is not None and b"_search_call" in bytes(output)
    calls = [
        call
        for call in (map(parse_object_leniently, parse_items_leniently(output)) if has_calls else ())
        if call.get("status") != "failed" and as_dict(call.get("action")).get("type", "search") == "search"
    ]
    kinds = [as_text(call.get("type")) for call in calls]
    counts = {
        "web_search_requests": kinds.count("web_search_call") if reported is None else reported,
        "file_search_requests": kinds.count("file_search_call"),
    }
    return {name: count for name, count in counts.items() if count}


def _add_searches(usage: Usage, counts: _Numbers) -> Usage:
    """Add searches to the usage block, unless it has its own number of them."""
    if not counts or usage.is_unreadable or not _SEARCH_FIELDS.isdisjoint(_parse_numbers(usage.raw)):
        return usage
    if not all(map(is_token_count, counts.values())):
        return _make_unreadable_usage(usage.raw)
    added = b',"server_tool_use":' + to_json(counts) + b"}"
    return replace(usage, raw=usage.raw[: usage.raw.rindex(b"}")] + added)


_SEARCH_MODEL = re.compile(r"(?:^|/)gpt-.*-search-(?:preview|api)")
_SEARCH_FIELDS = frozenset(("server_tool_use", "server_tool_use_details", "tool_calls_details"))


def _make_unreadable_usage(block: msgspec.Raw | bytes) -> Usage:
    return Usage(cache=CacheUsage(), raw=bytes(block)[:_MAX_UNREADABLE_BYTES], is_unreadable=True)


def parse_usage(api_format: Format, block: bytes) -> Usage | None:
    try:
        return _parse_block(api_format, block, {})
    except MalformedRequest:
        return None


def _usage_candidates(response: Fields) -> Iterator[msgspec.Raw | bytes | None]:
    yield response.get("usage")
    yield response.get("usageMetadata")  # Gemini
    yield parse_inner_fields_leniently(response.get("x_groq")).get("usage")  # Groq, in a stream
    yield response.get("meta")  # Cohere, for embeddings
    yield response.get("timings")  # llama.cpp
    for choice in parse_items_leniently(response.get("choices")):  # Moonshot, in a stream
        yield parse_inner_fields_leniently(choice).get("usage")
    yield parse_inner_fields_leniently(response.get("response")).get(
        "usage"
    )  # OpenAI, in the last event of a stream or of speech
    yield parse_inner_fields_leniently(response.get("result")).get("usage")  # Cloudflare


def _parse_block(
    api_format: Format, block: msgspec.Raw | bytes | None, timings: _Numbers, tier: str = ""
) -> Usage | None:
    numbers = parse_object_leniently(block)
    parse = _choose_parser(api_format, numbers) if numbers else None
    if block is None or parse is None:
        return None
    try:
        _check_fees(numbers)
        cache, output, reasoning = parse({**numbers, "timings": timings} if timings else numbers)
    except _UnreadableNumber:
        return _make_unreadable_usage(block)
    return Usage(
        cache=cache,
        output_tokens=output,
        reasoning_tokens=reasoning,
        reported_dollars=_read_dollars(numbers, block),
        tier=tier or _read_tier(numbers),
        raw=bytes(block),
    )


def _choose_parser(api_format: Format, numbers: _Numbers) -> Callable[[_Numbers], _TokenCounts] | None:
    """Choose a parser by the names in the block, because hosts use other dialects than those of their endpoint.

    Only `input_tokens` is ambiguous: Anthropic and Responses use it with different meanings.
    """
    for names, parse in _PARSERS:
        if not names.isdisjoint(numbers):
            return parse
    if "input_tokens" in numbers or "output_tokens" in numbers:
        is_responses = api_format is Format.RESPONSES or not numbers.keys().isdisjoint(_INPUT_DETAILS)
        return _parse_responses if is_responses else _parse_anthropic
    return _parse_chat if "total_tokens" in numbers else None


def _parse_anthropic(numbers: _Numbers) -> _TokenCounts:
    """`input_tokens` excludes cached tokens. Usage of server-side compaction is in `iterations` only."""
    calls = [numbers]
    if "iterations" in numbers:
        calls += [
            call for call in map(as_dict, as_list(numbers["iterations"])) if is_excluded_from_totals(call)
        ]
    uncached = read = short = long = output = 0
    for call in calls:
        uncached += _token_count(call.get("input_tokens"))
        read += _token_count(call.get("cache_read_input_tokens"))
        written = _split_written(call.get("cache_creation_input_tokens"), call.get("cache_creation"))
        short, long = short + written[0], long + written[1]
        output += _token_count(call.get("output_tokens"))
    thinking = _token_count(as_dict(numbers.get("output_tokens_details")).get("thinking_tokens"))
    cache = CacheUsage(uncached=uncached, read=read, written_5m=short, written_1h=long)
    return cache, output, min(thinking, output)


def is_excluded_from_totals(call: _Numbers) -> bool:
    return as_text(call.get("type")) in _EXCLUDED_FROM_TOTALS


def _parse_bedrock(numbers: _Numbers) -> _TokenCounts:
    """`inputTokens` excludes cached tokens. Older names of the cached ones end in `Count`."""
    read = _max_count(numbers, "cacheReadInputTokens", "cacheReadInputTokenCount")
    details = [as_dict(entry) for entry in as_list(numbers.get("cacheDetails"))]
    long = sum(_token_count(entry.get("inputTokens")) for entry in details if entry.get("ttl") == "1h")
    short = max(_max_count(numbers, "cacheWriteInputTokens", "cacheWriteInputTokenCount") - long, 0)
    output = _token_count(numbers.get("outputTokens"))
    rest = _token_count(numbers.get("totalTokens")) - output - read - short - long
    uncached = _optional_token_count(numbers.get("inputTokens"))
    uncached = max(rest, 0) if uncached is None else uncached
    cache = CacheUsage(uncached=uncached, read=read, written_5m=short, written_1h=long)
    return cache, output, 0


# DeepSeek; Moonshot and Hugging Face; LiteLLM; xAI. Not Mistral's `num_cached_tokens`: only those in
# the details are cheaper (https://docs.mistral.ai, prompt caching, November 2026).
_CACHE_READ_FIELDS = (
    "prompt_cache_hit_tokens",
    "cached_tokens",
    "cache_read_input_tokens",
    "cached_prompt_text_tokens",
)


def _parse_chat(numbers: _Numbers) -> _TokenCounts:
    """`prompt_tokens` includes cached tokens, for which each host has its own name."""
    details = as_dict(numbers.get("prompt_tokens_details")) or as_dict(numbers.get("prompt_token_details"))
    read = max(
        _token_count(details.get("cached_tokens")),
        _token_count(as_dict(numbers.get("timings")).get("cache_n")),  # llama.cpp
        _max_count(numbers, *_CACHE_READ_FIELDS),
    )
    written = _split_written(
        max(  # OpenAI and OpenRouter; LiteLLM; Qwen
            _max_count(details, "cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens"),
            _token_count(numbers.get("cache_creation_input_tokens")),
        ),
        _find_ttl_split(details),
    )
    output_details = as_dict(numbers.get("completion_tokens_details")) or as_dict(
        numbers.get("completion_token_details")
    )
    reasoning = _max_count(output_details, "reasoning_tokens") or _token_count(numbers.get("reasoning_tokens"))
    prompt, completion = (
        _optional_token_count(numbers.get("prompt_tokens")),
        _optional_token_count(numbers.get("completion_tokens")),
    )
    if prompt is None and "prompt_cache_miss_tokens" in numbers:
        prompt = read + _token_count(numbers.get("prompt_cache_miss_tokens"))
    if (
        completion is not None and "citation_tokens" in numbers
    ):  # Perplexity's research counts thinking separately
        completion += reasoning
    return _split_inclusive_prompt(
        prompt,
        completion,
        total=_token_count(numbers.get("total_tokens")),
        read=read,
        written=written,
        reasoning=reasoning,
    )


_INPUT_DETAILS = ("input_tokens_details", "input_token_details")  # the second for speech


def _parse_responses(numbers: _Numbers) -> _TokenCounts:
    """Like chat, with other names."""
    details = next((as_dict(numbers[name]) for name in _INPUT_DETAILS if numbers.get(name)), {})
    return _split_inclusive_prompt(
        _optional_token_count(numbers.get("input_tokens")),
        _optional_token_count(numbers.get("output_tokens")),
        total=_token_count(numbers.get("total_tokens")),
        read=_max_count(details, "cached_tokens", "cache_read_input_tokens"),  # the second: Perplexity
        written=_split_written(details.get("cache_write_tokens"), _find_ttl_split(details)),
        reasoning=_token_count(as_dict(numbers.get("output_tokens_details")).get("reasoning_tokens")),
    )


def _parse_gemini(numbers: _Numbers) -> _TokenCounts:
    """Thinking is not part of the candidates, and tool results are not part of the prompt."""
    thinking = _token_count(numbers.get("thoughtsTokenCount"))
    names = ("candidatesTokenCount", "responseTokenCount")  # the live API says response
    output = _max_count(numbers, *names) + thinking
    total, read = (
        _token_count(numbers.get("totalTokenCount")),
        _token_count(numbers.get("cachedContentTokenCount")),
    )
    prompt = _optional_token_count(numbers.get("promptTokenCount"))
    if prompt is None:  # a request that only stores a prefix has just a total
        input_tokens = max(total - output, read)
    else:
        input_tokens = prompt + _token_count(numbers.get("toolUsePromptTokenCount"))
        if all(_optional_token_count(numbers.get(name)) is None for name in names):
            output = max(total - input_tokens, thinking)
    return _make_cache_usage(input_tokens, read), output, thinking


def _parse_cohere(numbers: _Numbers) -> _TokenCounts:
    """`tokens` is what the model read and wrote, including `cached_tokens`; `billed_units` is less."""
    units = as_dict(numbers.get("tokens")) or as_dict(numbers.get("billed_units"))
    cache = _make_cache_usage(
        _token_count(units.get("input_tokens")), _token_count(numbers.get("cached_tokens"))
    )
    return cache, _token_count(units.get("output_tokens")), 0


def _parse_llama(numbers: _Numbers) -> _TokenCounts:
    """Timings of llama.cpp without usage. `prompt_n` excludes cached tokens."""
    cache = CacheUsage(
        uncached=_token_count(numbers.get("prompt_n")), read=_token_count(numbers.get("cache_n"))
    )
    return cache, _token_count(numbers.get("predicted_n")), 0


_PARSERS: tuple[tuple[frozenset[str], Callable[[_Numbers], _TokenCounts]], ...] = (
    (
        frozenset(("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "totalTokenCount")),
        _parse_gemini,
    ),
    (frozenset(("inputTokens", "outputTokens", "totalTokens")), _parse_bedrock),
    (frozenset(("prompt_tokens", "completion_tokens", "prompt_cache_miss_tokens")), _parse_chat),
    (frozenset(("tokens", "billed_units")), _parse_cohere),
    (frozenset(("prompt_n", "predicted_n")), _parse_llama),
)


def _split_inclusive_prompt(
    prompt: int | None,
    completion: int | None,
    *,
    total: int,
    read: int,
    written: tuple[int, int],
    reasoning: int,
) -> _TokenCounts:
    """Split a prompt number that includes cached tokens. If a number is missing, it follows from the total.

    xAI, and Gemini behind its OpenAI endpoint, count reasoning in the total only, and only xAI says how much it
    was. The difference is limited to what a model can think.
    """
    if prompt is None:
        prompt = max(total - (completion or 0), read)
    if completion is None:
        uncounted_reasoning, output = 0, max(total - prompt, 0)
    else:
        uncounted_reasoning = max(min(total - prompt - completion, reasoning or _MAX_THINKING_TOKENS), 0)
        output = completion + uncounted_reasoning
    return _make_cache_usage(prompt, read, *written), output, min(max(reasoning, uncounted_reasoning), output)


def _make_cache_usage(input_tokens: int, read: int, short: int = 0, long: int = 0) -> CacheUsage:
    """Split `input_tokens` into read, written and uncached tokens; parts never exceed the whole.

    OpenRouter reports some prefixes of Gemini as both read and written; they count as read.
    """
    read = min(read, input_tokens)
    long = min(long, input_tokens - read)
    short = min(short, input_tokens - read - long)
    rest = input_tokens - read - long - short
    return CacheUsage(uncached=rest, read=read, written_5m=short, written_1h=long)


# Names of the short and the long TTL in a split of the written tokens.
_SHORT_TTL_FIELDS = ("ephemeral_5m_input_tokens", "ttl_30m_tokens")
_LONG_TTL_FIELDS = ("ephemeral_1h_input_tokens", "ttl_12h_tokens")


def _find_ttl_split(details: _Numbers) -> object:
    """Find the split of written tokens by TTL: OpenRouter; LiteLLM; OpenAI's Responses."""
    names = ("cache_creation", "cache_creation_token_details", "cache_write_tokens_details")
    return next((details[name] for name in names if details.get(name)), None)


def _split_written(total: object, by_ttl: object) -> tuple[int, int]:
    """Return the tokens written with the short and with the long TTL. An unsplit sum has the short one."""
    if not by_ttl:
        return _token_count(total), 0
    split = as_dict(by_ttl)
    short, long = _max_count(split, *_SHORT_TTL_FIELDS), _max_count(split, *_LONG_TTL_FIELDS)
    return max(short, _token_count(total) - long), long


def _max_count(numbers: _Numbers, *names: str) -> int:
    """Return the largest of several names for one number, because a host may fill only one of them."""
    return max([_token_count(numbers[name]) for name in names if name in numbers], default=0)


class _UnreadableNumber(Exception):
    pass


def _check_fees(numbers: _Numbers) -> None:
    """Check the numbers of searches and citations.

    Raises:
        _UnreadableNumber: one of them is impossible.
    """
    server = as_dict(numbers.get("server_tool_use")) or as_dict(numbers.get("server_tool_use_details"))
    for value in (
        server.get("web_search_requests"),
        numbers.get("num_search_queries"),
        numbers.get("citation_tokens"),
    ):
        _token_count(value)


def _token_count(value: object) -> int:
    """Return a token count; 0 if it is missing.

    Raises:
        _UnreadableNumber: it is impossible.
    """
    return _optional_token_count(value) or 0


def _optional_token_count(value: object) -> int | None:
    """Return a token count; None if it is missing.

    Raises:
        _UnreadableNumber: it is impossible.
    """
    if value is None:
        return None
    number = _whole_number(value)
    if number is None or number > _MAX_CALL_TOKENS:
        raise _UnreadableNumber
    return number


def is_token_count(value: object) -> bool:
    number = _whole_number(value)
    return number is not None and number <= _MAX_CALL_TOKENS


def tokens_or_zero(value: object) -> int:
    return (_whole_number(value) or 0) if value else 0


def _whole_number(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():  # some hosts write all numbers as floats
        value = int(value)
    return value if type(value) is int and 0 <= value <= _MAX_JSON_INTEGER else None


def _read_tier(numbers: _Numbers) -> str:
    """Return the service tier: Anthropic's fast mode; Anthropic and Groq; Gemini; Vertex."""
    if numbers.get("speed") == "fast":
        return "fast"
    tier = as_text(numbers.get("service_tier")) or as_text(numbers.get("serviceTier"))
    return tier or as_text(numbers.get("trafficType"))


_EXACT = Context(prec=200)
_NUMBER = re.compile(rb"[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,9})?")
_MAX_DIGITS = 40  # more digits are not an amount, and sums would take too long
_TICK = Decimal("1e-10")  # of a dollar: https://docs.x.ai/developers/cost-tracking, November 2026


def _read_dollars(numbers: _Numbers, block: msgspec.Raw | bytes) -> Decimal | None:
    """Return the cost that a provider states: OpenRouter, Perplexity, xAI (in ticks).

    With one's own provider key at OpenRouter, it is the sum of its fee and the provider's price.
    """
    ticks = _whole_number(numbers.get("cost_in_usd_ticks"))
    if ticks is not None:
        return ticks * _TICK
    if "cost" not in numbers:
        return None
    raw_numbers = parse_inner_fields_leniently(block)
    is_split = isinstance(numbers["cost"], dict)
    costs = [
        _parse_amount(
            parse_inner_fields_leniently(raw_numbers["cost"]).get("total_cost")
            if is_split
            else raw_numbers["cost"]
        )
    ]
    if numbers.get("is_byok") is True:
        costs.append(
            _parse_amount(
                parse_inner_fields_leniently(raw_numbers.get("cost_details")).get("upstream_inference_cost")
            )
        )
    known = [cost for cost in costs if cost is not None]
    return reduce(_EXACT.add, known) if len(known) == len(costs) else None


def _parse_amount(raw: msgspec.Raw | bytes | None) -> Decimal | None:
    text = b"" if raw is None else bytes(raw).strip()
    if len(text) > _MAX_DIGITS or not _NUMBER.fullmatch(text):
        return None
    amount = Decimal(text.decode())
    return amount if abs(amount.adjusted()) <= _MAX_DIGITS else None


def count_response_body(api_format: Format, tokens: int) -> bytes:
    """Return the response of a token-counting endpoint: Anthropic, OpenAI, llama.cpp (chat), or Google."""
    if api_format is Format.GEMINI:
        return to_json({"totalTokens": tokens})
    if api_format is Format.RESPONSES:
        return to_json({"object": "response.input_tokens", "input_tokens": tokens})
    return to_json({"input_tokens": tokens})


class BillableUnit(StrEnum):
    """Units that can have their own price besides the kinds of tokens.

    Tokens of audio, images and video are included in the usage as uncached, read or output tokens; other units
    are not.
    """

    INPUT_AUDIO = "input_audio"
    INPUT_IMAGE = "input_image"
    INPUT_VIDEO = "input_video"
    READ_AUDIO = "read_audio"
    READ_IMAGE = "read_image"
    READ_VIDEO = "read_video"
    OUTPUT_AUDIO = "output_audio"
    OUTPUT_IMAGE = "output_image"
    OUTPUT_VIDEO = "output_video"
    CITATIONS = "citations"  # tokens
    WEB_SEARCHES = "web_searches"
    FILE_SEARCHES = "file_searches"
    SEARCH_QUERIES = "search_queries"  # Perplexity reports them for all models, and charges for some
    RERANKS = "reranks"
    REQUESTS = "requests"


class UsagePart(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one call with its own price. `model` is set if it differs from the requested one.

    `units` have a fixed order; `region` is the provider's name for where the call was served.
    """

    usage: Usage
    model: str = ""
    units: tuple[tuple[BillableUnit, int], ...] = ()
    region: str = ""


def split_usage(usage: Usage) -> tuple[UsagePart, ...]:
    """Split a usage into calls with their own prices, usually one.

    Anthropic's server may call other models while it responds. All parts add up to the usage.
    """
    numbers = _parse_numbers(usage.raw)
    if _RELEVANT_FIELDS.isdisjoint(numbers):
        return (UsagePart(usage=usage),)
    region = as_text(numbers.get(_REGION))
    separate = (
        tuple(_find_separate_calls(numbers, usage.tier, region))
        if "iterations" in numbers and _is_anthropic(usage)
        else ()
    )
    rest = _subtract_parts(usage, separate) if separate else usage
    billed_units = as_dict(numbers.get("billed_units"))  # Cohere charges for less than its model read
    if billed_units:
        cache = CacheUsage(uncached=tokens_or_zero(billed_units.get("input_tokens")))
        rest = replace(
            rest,
            cache=cache,
            output_tokens=tokens_or_zero(billed_units.get("output_tokens")),
            reasoning_tokens=0,
        )
    return (UsagePart(usage=rest, units=_count_units(numbers, billed_units, rest), region=region), *separate)


def _parse_numbers(raw: bytes) -> _Numbers:
    try:
        return parse_object_leniently(raw) if raw else {}
    except MalformedRequest:
        return {}


def _is_anthropic(usage: Usage) -> bool:
    as_anthropic = parse_usage(Format.ANTHROPIC, usage.raw)
    return as_anthropic is not None and as_anthropic.cache == usage.cache


def _find_separate_calls(numbers: _Numbers, tier: str, region: str) -> Iterator[UsagePart]:
    """Yield the inner calls that the totals exclude, or that went to another model."""
    for call in map(as_dict, as_list(numbers.get("iterations"))):
        model = as_text(call.get("model"))
        if model or is_excluded_from_totals(call):
            usage = parse_usage(Format.ANTHROPIC, to_json({**call, "iterations": None}))
            if usage:
                yield UsagePart(usage=replace(usage, tier=usage.tier or tier), model=model, region=region)


def _subtract_parts(usage: Usage, separate: tuple[UsagePart, ...]) -> Usage:
    def subtract(total: int, *parts: int) -> int:
        return max(total - sum(parts), 0)

    caches = [call.usage.cache for call in separate]
    cache = CacheUsage(
        uncached=subtract(usage.cache.uncached, *(part.uncached for part in caches)),
        read=subtract(usage.cache.read, *(part.read for part in caches)),
        written_5m=subtract(usage.cache.written_5m, *(part.written_5m for part in caches)),
        written_1h=subtract(usage.cache.written_1h, *(part.written_1h for part in caches)),
    )
    output = subtract(usage.output_tokens, *(call.usage.output_tokens for call in separate))
    reasoning = subtract(usage.reasoning_tokens, *(call.usage.reasoning_tokens for call in separate))
    return replace(usage, cache=cache, output_tokens=output, reasoning_tokens=min(reasoning, output))


_REGION = "inference_geo"
_ALL_INPUT_DETAILS = ("prompt_tokens_details", "input_tokens_details", "input_token_details")
_OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details", "output_token_details")
_MEDIA = ("audio", "image", "video")
_GEMINI_INPUT_DETAILS = ("promptTokensDetails", "toolUsePromptTokensDetails")
_GEMINI_OUTPUT_DETAILS = ("candidatesTokensDetails", "responseTokensDetails")
# Fields with other units, and all fields that matter here.
_UNIT_FIELDS = frozenset(
    (
        *_ALL_INPUT_DETAILS,
        *_OUTPUT_DETAILS,
        *_GEMINI_INPUT_DETAILS,
        *_GEMINI_OUTPUT_DETAILS,
        "server_tool_use",
        "server_tool_use_details",
        "tool_calls_details",
        "num_search_queries",
        "citation_tokens",
        "billed_units",
    )
)
_RELEVANT_FIELDS = _UNIT_FIELDS | {_REGION, "iterations"}


def _count_units(
    numbers: _Numbers, billed_units: _Numbers, usage: Usage
) -> tuple[tuple[BillableUnit, int], ...]:
    if _UNIT_FIELDS.isdisjoint(numbers):
        return ()
    counts = _count_media(numbers, usage)
    server = as_dict(numbers.get("server_tool_use")) or as_dict(numbers.get("server_tool_use_details"))
    tools = as_dict(as_dict(numbers.get("tool_calls_details")).get("search_web"))  # Perplexity, in Responses
    counts[BillableUnit.WEB_SEARCHES] = max(
        tokens_or_zero(server.get("web_search_requests")), tokens_or_zero(tools.get("invocation"))
    )
    counts[BillableUnit.FILE_SEARCHES] = tokens_or_zero(server.get("file_search_requests"))
    counts[BillableUnit.SEARCH_QUERIES] = tokens_or_zero(numbers.get("num_search_queries"))
    counts[BillableUnit.CITATIONS] = tokens_or_zero(numbers.get("citation_tokens"))
    counts[BillableUnit.RERANKS] = tokens_or_zero(billed_units.get("search_units"))
    return (
        tuple((unit, counts[unit]) for unit in BillableUnit if counts.get(unit)) if any(counts.values()) else ()
    )


def _count_media(numbers: _Numbers, usage: Usage) -> dict[BillableUnit, int]:
    """Count the tokens of each medium, at most those of their kind in the usage.

    If it is unknown which of them were cached, text is assumed to be cached first.
    """
    input_tokens, read, written = _read_media_tokens(numbers)
    counts: dict[BillableUnit, int] = {}
    if not input_tokens and not written:
        return counts
    cache = usage.cache
    remaining_uncached, remaining_read, remaining_output = cache.uncached, cache.read, usage.output_tokens
    for medium in _MEDIA:
        if medium in input_tokens:
            medium_tokens = min(input_tokens[medium], remaining_uncached + remaining_read)
            cached = min(
                read.get(medium, max(medium_tokens - remaining_uncached, 0)), remaining_read, medium_tokens
            )
            fresh = min(medium_tokens - cached, remaining_uncached)
            remaining_uncached, remaining_read = remaining_uncached - fresh, remaining_read - cached
            counts[BillableUnit(f"input_{medium}")] = fresh
            counts[BillableUnit(f"read_{medium}")] = cached
        if medium in written:
            counts[BillableUnit(f"output_{medium}")] = min(written[medium], remaining_output)
            remaining_output -= counts[BillableUnit(f"output_{medium}")]
    return counts


def _read_media_tokens(numbers: _Numbers) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Return the tokens of each medium: input, cached input, and output."""
    if "promptTokensDetails" in numbers or "candidatesTokensDetails" in numbers:
        input_tokens, read = (
            _gemini_media(numbers, *_GEMINI_INPUT_DETAILS),
            _gemini_media(numbers, "cacheTokensDetails"),
        )
        return input_tokens, read, _gemini_media(numbers, *_GEMINI_OUTPUT_DETAILS)
    details = next((as_dict(numbers[name]) for name in _ALL_INPUT_DETAILS if numbers.get(name)), {})
    output_details = next((as_dict(numbers[name]) for name in _OUTPUT_DETAILS if numbers.get(name)), {})
    return (
        _openai_media(details),
        _openai_media(details.get("cached_tokens_details")),
        _openai_media(output_details),
    )


def _openai_media(details: object) -> dict[str, int]:
    fields = as_dict(details)
    return (
        {medium: count for medium in _MEDIA if (count := tokens_or_zero(fields.get(f"{medium}_tokens")))}
        if fields
        else {}
    )


def _gemini_media(numbers: _Numbers, *names: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in (as_dict(entry) for name in names for entry in as_list(numbers.get(name))):
        medium = as_text(entry.get("modality")).lower()
        medium = "image" if medium == "document" else medium  # a page is read and charged as an image
        count = tokens_or_zero(entry.get("tokenCount"))
        if medium in _MEDIA and count:
            counts[medium] = counts.get(medium, 0) + count
    return counts

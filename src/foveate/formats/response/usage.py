"""What a provider billed, whatever it calls its numbers (read November 2026).

Two families: those whose input number is only what no cache served (Anthropic, Bedrock Converse), and those
whose input number holds the cached tokens too (all others). A number that is null counts as missing. If any
other is not a possible number of tokens (negative, a string, half a token, more than any call has), the whole
usage is unreadable: it has no tokens and keeps its raw block, so that the call is recorded as one of unknown
cost.

What a bill says beside its tokens: pictures and sound among them, searches, and calls of other models.

A usage adds up all tokens of a call; what they cost needs to know a little more, and finds it in the block of
numbers that came (read November 2026).

A count as providers answer it.
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
from foveate.formats.json_text.lenient import (
    parse_inner_fields_leniently,
    parse_items_leniently,
    parse_json_leniently,
    parse_object_leniently,
    parse_objects_leniently,
)
from foveate.formats.json_text.parse import Fields, as_dict, as_list, as_text, to_json
from foveate.model import CacheUsage, Format, Usage

_MAX_JSON_INTEGER = 2**53 - 1  # the largest whole number that every reader of JSON keeps
_MAX_CALL_TOKENS = 10**9  # hundreds of times the largest context window that is sold (November 2026)
_MAX_UNREADABLE_BYTES = 4096
_MAX_THINKING_TOKENS = 400_000  # no model that is sold writes more in one answer (November 2026)

# Calls within a Messages call that its totals leave out; they hold all others (`message`, `fallback_message`).
_EXCLUDED_FROM_TOTALS = frozenset(("compaction", "advisor_message"))

_Numbers = Mapping[str, Any]
_TokenCounts = tuple[CacheUsage, int, int]
"""The input tokens, those of the output, and of these the ones of reasoning."""


def read_response_usage(api_format: Format, response: bytes) -> Usage | None:
    """The usage in a whole reply body, or in one chunk of a streamed one; None where it says nothing of it."""
    try:
        for fields in reversed(
            parse_objects_leniently(response)
        ):  # a Gemini stream may be a list, and no events
            if usage := find_usage(api_format, fields):
                return usage
    except MalformedRequest:
        return None
    return None


def find_usage(api_format: Format, response: Fields) -> Usage | None:
    """The usage among the fields of a reply.

    Raises:
        MalformedRequest: the field that should hold it cannot be read.
    """
    timings = parse_object_leniently(response.get("timings"))
    tier = as_text(parse_json_leniently(response.get("service_tier")))  # OpenAI says it beside its numbers
    for block in _usage_candidates(response):
        usage = _parse_block(api_format, block, timings, tier)
        if usage:
            return usage
    return None


def _make_unreadable_usage(block: msgspec.Raw | bytes) -> Usage:
    return Usage(cache=CacheUsage(), raw=bytes(block)[:_MAX_UNREADABLE_BYTES], is_unreadable=True)


def parse_usage(api_format: Format, block: bytes) -> Usage | None:
    """The usage that a provider's own block of numbers tells; None where it has no number that is known."""
    try:
        return _parse_block(api_format, block, {})
    except MalformedRequest:
        return None


def _usage_candidates(response: Fields) -> Iterator[msgspec.Raw | bytes | None]:
    """Where usage may stand, the usual places first."""
    yield response.get("usage")
    yield response.get("usageMetadata")  # Gemini
    yield parse_inner_fields_leniently(response.get("x_groq")).get("usage")  # Groq, in a stream
    yield response.get("meta")  # Cohere, beside a vector
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
        said_dollars=_read_dollars(numbers, block),
        tier=tier or _read_tier(numbers),
        raw=bytes(block),
    )


def _choose_parser(api_format: Format, numbers: _Numbers) -> Callable[[_Numbers], _TokenCounts] | None:
    """How to read a block, told by its own names: hosts answer in other dialects than their route's.

    Only `input_tokens` is ambiguous: Anthropic and Responses share it, and mean different things.
    """
    for names, parse in _PARSERS:
        if not names.isdisjoint(numbers):
            return parse
    if "input_tokens" in numbers or "output_tokens" in numbers:
        is_responses = api_format is Format.RESPONSES or not numbers.keys().isdisjoint(_INPUT_DETAILS)
        return _parse_responses if is_responses else _parse_anthropic
    return _parse_chat if "total_tokens" in numbers else None


def _parse_anthropic(numbers: _Numbers) -> _TokenCounts:
    """`input_tokens` is what no cache served. What server-side compaction took stands in `iterations` alone."""
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
    """Whether a call within a Messages call is not in its totals."""
    return as_text(call.get("type")) in _EXCLUDED_FROM_TOTALS


def _parse_bedrock(numbers: _Numbers) -> _TokenCounts:
    """`inputTokens` is what no cache served; an older spelling of the cached ones ends in `Count`."""
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


# DeepSeek; Moonshot and Hugging Face; LiteLLM; xAI. Not Mistral's `num_cached_tokens`, what its servers had at
# hand: it bills less only for those in the details (https://docs.mistral.ai, prompt caching, November 2026).
_CACHE_READ_FIELDS = (
    "prompt_cache_hit_tokens",
    "cached_tokens",
    "cache_read_input_tokens",
    "cached_prompt_text_tokens",
)


def _parse_chat(numbers: _Numbers) -> _TokenCounts:
    """`prompt_tokens` holds the cached ones, for which each host has a name of its own."""
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
    ):  # Perplexity's research thinks beside its answer
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
    """As chat, with names of its own."""
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
    """Thoughts stand beside the candidates, what tools brought in beside the prompt."""
    thinking = _token_count(numbers.get("thoughtsTokenCount"))
    names = ("candidatesTokenCount", "responseTokenCount")  # the live API says response
    output = _max_count(numbers, *names) + thinking
    total, read = (
        _token_count(numbers.get("totalTokenCount")),
        _token_count(numbers.get("cachedContentTokenCount")),
    )
    prompt = _optional_token_count(numbers.get("promptTokenCount"))
    if prompt is None:  # a prefix that is only stored has just a total
        input_tokens = max(total - output, read)
    else:
        input_tokens = prompt + _token_count(numbers.get("toolUsePromptTokenCount"))
        if all(_optional_token_count(numbers.get(name)) is None for name in names):
            output = max(total - input_tokens, thinking)
    return _make_cache_usage(input_tokens, read), output, thinking


def _parse_cohere(numbers: _Numbers) -> _TokenCounts:
    """`tokens` is what the model read and wrote, `cached_tokens` a part of it; `billed_units` is less."""
    units = as_dict(numbers.get("tokens")) or as_dict(numbers.get("billed_units"))
    cache = _make_cache_usage(
        _token_count(units.get("input_tokens")), _token_count(numbers.get("cached_tokens"))
    )
    return cache, _token_count(units.get("output_tokens")), 0


def _parse_llama(numbers: _Numbers) -> _TokenCounts:
    """The timings of llama.cpp, where they come without usage; `prompt_n` is what its cache did not hold."""
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
    """Usage whose input number holds the cached tokens; where a number is missing, the total helps.

    xAI, and Gemini behind its OpenAI route, count reasoning in the total alone, and only the first says how
    much it was. What both numbers leave open is never more than a model can have thought.
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
    """`input_tokens`, of which some were read and some written: never more than there are.

    OpenRouter bills some prefixes of Gemini as read and as written at once; they are taken as read.
    """
    read = min(read, input_tokens)
    long = min(long, input_tokens - read)
    short = min(short, input_tokens - read - long)
    rest = input_tokens - read - long - short
    return CacheUsage(uncached=rest, read=read, written_5m=short, written_1h=long)


# What a split of the written tokens calls the provider's short time, and its long one.
_SHORT_TTL_FIELDS = ("ephemeral_5m_input_tokens", "ttl_30m_tokens")
_LONG_TTL_FIELDS = ("ephemeral_1h_input_tokens", "ttl_12h_tokens")


def _find_ttl_split(details: _Numbers) -> object:
    """What was written by how long it lives: OpenRouter; LiteLLM; OpenAI's Responses."""
    names = ("cache_creation", "cache_creation_token_details", "cache_write_tokens_details")
    return next((details[name] for name in names if details.get(name)), None)


def _split_written(total: object, by_ttl: object) -> tuple[int, int]:
    """What was written for the short time and for the long one; a mere sum is all for the short one."""
    if not by_ttl:
        return _token_count(total), 0
    split = as_dict(by_ttl)
    short, long = _max_count(split, *_SHORT_TTL_FIELDS), _max_count(split, *_LONG_TTL_FIELDS)
    return max(short, _token_count(total) - long), long


def _max_count(numbers: _Numbers, *names: str) -> int:
    """The largest of several names for one number: a host may fill only one of them."""
    return max([_token_count(numbers[name]) for name in names if name in numbers], default=0)


class _UnreadableNumber(Exception):
    """A number is not a possible number of tokens."""


def _check_fees(numbers: _Numbers) -> None:
    """Check what is billed beside tokens: searches and citations.

    Raises:
        _Unreadable: a number of them is not a possible one.
    """
    server = as_dict(numbers.get("server_tool_use")) or as_dict(numbers.get("server_tool_use_details"))
    for value in (
        server.get("web_search_requests"),
        numbers.get("num_search_queries"),
        numbers.get("citation_tokens"),
    ):
        _token_count(value)


def _token_count(value: object) -> int:
    """Return a number of tokens; 0 if it is missing.

    Raises:
        _Unreadable: it is not a possible one.
    """
    return _optional_token_count(value) or 0


def _optional_token_count(value: object) -> int | None:
    """Return a number of tokens; None if it is missing.

    Raises:
        _Unreadable: it is not a possible one.
    """
    if value is None:
        return None
    number = _whole_number(value)
    if number is None or number > _MAX_CALL_TOKENS:
        raise _UnreadableNumber
    return number


def is_token_count(value: object) -> bool:
    """Whether it is a possible number of tokens of one call."""
    number = _whole_number(value)
    return number is not None and number <= _MAX_CALL_TOKENS


def tokens_or_zero(value: object) -> int:
    """A number of tokens; 0 where `said` cannot be one."""
    return (_whole_number(value) or 0) if value else 0


def _whole_number(value: object) -> int | None:
    """Return a whole number; None if `said` is not one, or less than nothing."""
    if isinstance(value, float) and value.is_integer():  # some hosts write every number with a point
        value = int(value)
    return value if type(value) is int and 0 <= value <= _MAX_JSON_INTEGER else None


def _read_tier(numbers: _Numbers) -> str:
    """How a call was served: Anthropic's fast mode; Anthropic and Groq; Gemini; Vertex."""
    if numbers.get("speed") == "fast":
        return "fast"
    tier = as_text(numbers.get("service_tier")) or as_text(numbers.get("serviceTier"))
    return tier or as_text(numbers.get("trafficType"))


_EXACT = Context(prec=200)
_NUMBER = re.compile(rb"[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,9})?")
_MAX_DIGITS = 40  # what has more is no money, and sums of it would take for ever
_TICK = Decimal("1e-10")  # of a dollar: https://docs.x.ai/developers/cost-tracking, November 2026


def _read_dollars(numbers: _Numbers, block: msgspec.Raw | bytes) -> Decimal | None:
    """What a provider itself says a call cost: OpenRouter, Perplexity, xAI (in ticks), as it is written.

    With a key of one's own at OpenRouter it is its fee and the provider's price together.
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
    """A number of dollars to the last digit that is written; None where it cannot be one."""
    text = b"" if raw is None else bytes(raw).strip()
    if len(text) > _MAX_DIGITS or not _NUMBER.fullmatch(text):
        return None
    amount = Decimal(text.decode())
    return amount if abs(amount.adjusted()) <= _MAX_DIGITS else None


def count_response_body(api_format: Format, tokens: int) -> bytes:
    """The answer of a format's counting route: Anthropic's, OpenAI's, llama.cpp's for chats, or Google's."""
    if api_format is Format.GEMINI:
        return to_json({"totalTokens": tokens})
    if api_format is Format.RESPONSES:
        return to_json({"object": "response.input_tokens", "input_tokens": tokens})
    return to_json({"input_tokens": tokens})


_NumbersBills = Mapping[str, Any]


class BillableUnit(StrEnum):
    """What can have a price of its own beside the kinds of tokens.

    Sound, pictures and video are tokens that a usage holds, as uncached, read or output; the others are not.
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
    SEARCH_QUERIES = "search_queries"  # Perplexity bills them for some models, and names them for all
    RERANKS = "reranks"
    REQUESTS = "requests"


class UsagePart(msgspec.Struct, frozen=True, kw_only=True):
    """A call that has a price by itself; `model` is the one that it went to, where the bill names it.

    `units` come in one order whatever the bill's; `region` is the provider's word for where it was served.
    """

    usage: Usage
    model: str = ""
    units: tuple[tuple[BillableUnit, int], ...] = ()
    region: str = ""


def split_usage(usage: Usage) -> tuple[UsagePart, ...]:
    """The calls that a usage is the bill of: mostly one.

    Anthropic's server calls models while it answers, each at its own price; together they are all of the usage.
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
    billed = as_dict(numbers.get("billed_units"))  # Cohere: what it bills is less than what its model read
    if billed:
        cache = CacheUsage(uncached=tokens_or_zero(billed.get("input_tokens")))
        rest = replace(
            rest, cache=cache, output_tokens=tokens_or_zero(billed.get("output_tokens")), reasoning_tokens=0
        )
    return (UsagePart(usage=rest, units=_count_units(numbers, billed, rest), region=region), *separate)


def _parse_numbers(raw: bytes) -> _NumbersBills:
    try:
        return parse_object_leniently(raw) if raw else {}
    except MalformedRequest:
        return {}


def _is_anthropic(usage: Usage) -> bool:
    """Whether a usage was read as Anthropic's, and so holds the calls within it."""
    as_anthropic = parse_usage(Format.ANTHROPIC, usage.raw)
    return as_anthropic is not None and as_anthropic.cache == usage.cache


def _find_separate_calls(numbers: _NumbersBills, tier: str, region: str) -> Iterator[UsagePart]:
    """The calls within a Messages call that its totals leave out, or that went to another model."""
    for call in map(as_dict, as_list(numbers.get("iterations"))):
        model = as_text(call.get("model"))
        if model or is_excluded_from_totals(call):
            usage = parse_usage(Format.ANTHROPIC, to_json({**call, "iterations": None}))
            if usage:
                yield UsagePart(usage=replace(usage, tier=usage.tier or tier), model=model, region=region)


def _subtract_parts(usage: Usage, separate: tuple[UsagePart, ...]) -> Usage:
    """What is left of a usage without some of its calls."""

    def left(whole: int, *parts: int) -> int:
        return max(whole - sum(parts), 0)

    caches = [call.usage.cache for call in separate]
    cache = CacheUsage(
        uncached=left(usage.cache.uncached, *(part.uncached for part in caches)),
        read=left(usage.cache.read, *(part.read for part in caches)),
        written_5m=left(usage.cache.written_5m, *(part.written_5m for part in caches)),
        written_1h=left(usage.cache.written_1h, *(part.written_1h for part in caches)),
    )
    output = left(usage.output_tokens, *(call.usage.output_tokens for call in separate))
    reasoning = left(usage.reasoning_tokens, *(call.usage.reasoning_tokens for call in separate))
    return replace(usage, cache=cache, output_tokens=output, reasoning_tokens=min(reasoning, output))


_REGION = "inference_geo"
_ALL_INPUT_DETAILS = ("prompt_tokens_details", "input_tokens_details", "input_token_details")
_OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details", "output_token_details")
_MEDIA = ("audio", "image", "video")
_GEMINI_INPUT_DETAILS = ("promptTokensDetails", "toolUsePromptTokensDetails")
_GEMINI_OUTPUT_DETAILS = ("candidatesTokensDetails", "responseTokensDetails")
# Where other units are told, and the rest of what is looked at here.
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
    numbers: _NumbersBills, billed: _NumbersBills, usage: Usage
) -> tuple[tuple[BillableUnit, int], ...]:
    if _UNIT_FIELDS.isdisjoint(numbers):
        return ()
    counts = _count_media(numbers, usage)
    server = as_dict(numbers.get("server_tool_use")) or as_dict(numbers.get("server_tool_use_details"))
    tools = as_dict(as_dict(numbers.get("tool_calls_details")).get("search_web"))  # Perplexity, in Responses
    counts[BillableUnit.WEB_SEARCHES] = max(
        tokens_or_zero(server.get("web_search_requests")), tokens_or_zero(tools.get("invocation"))
    )
    counts[BillableUnit.SEARCH_QUERIES] = tokens_or_zero(numbers.get("num_search_queries"))
    counts[BillableUnit.CITATIONS] = tokens_or_zero(numbers.get("citation_tokens"))
    counts[BillableUnit.RERANKS] = tokens_or_zero(billed.get("search_units"))
    return (
        tuple((unit, counts[unit]) for unit in BillableUnit if counts.get(unit)) if any(counts.values()) else ()
    )


def _count_media(numbers: _NumbersBills, usage: Usage) -> dict[BillableUnit, int]:
    """The tokens of each medium, never more than the usage has of their kind.

    Where the bill does not say which of them the cache served, it is taken to have served text first.
    """
    input_tokens, read, written = _read_media_tokens(numbers)
    counts: dict[BillableUnit, int] = {}
    if not input_tokens and not written:
        return counts
    cache = usage.cache
    uncached_left, read_left, output_left = cache.uncached, cache.read, usage.output_tokens
    for medium in _MEDIA:
        if medium in input_tokens:
            whole = min(input_tokens[medium], uncached_left + read_left)
            cached = min(read.get(medium, max(whole - uncached_left, 0)), read_left, whole)
            fresh = min(whole - cached, uncached_left)
            uncached_left, read_left = uncached_left - fresh, read_left - cached
            counts[BillableUnit(f"input_{medium}")] = fresh
            counts[BillableUnit(f"read_{medium}")] = cached
        if medium in written:
            counts[BillableUnit(f"output_{medium}")] = min(written[medium], output_left)
            output_left -= counts[BillableUnit(f"output_{medium}")]
    return counts


def _read_media_tokens(numbers: _NumbersBills) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """The tokens of each medium that came in, that of them the cache served, and that came out."""
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


def _gemini_media(numbers: _NumbersBills, *names: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in (as_dict(entry) for name in names for entry in as_list(numbers.get(name))):
        medium = as_text(entry.get("modality")).lower()
        medium = "image" if medium == "document" else medium  # a page is read as a picture, and billed as one
        count = tokens_or_zero(entry.get("tokenCount"))
        if medium in _MEDIA and count:
            counts[medium] = counts.get(medium, 0) + count
    return counts

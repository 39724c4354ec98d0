"""What a bill says beside its tokens: pictures and sound among them, searches, and calls of other models.

A usage adds up all tokens of a call; what they cost needs to know a little more, and finds it in the block of
numbers that came (read November 2026).
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from foveate.errors import MalformedRequest
from foveate.values import CacheUsage, Format, Usage
from foveate.wire.body import as_dict, as_list, as_text, to_json
from foveate.wire.replies import parse_object_leniently
from foveate.wire.usage import is_excluded_from_totals, parse_usage, tokens_or_zero

_Numbers = Mapping[str, Any]


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


def _parse_numbers(raw: bytes) -> _Numbers:
    try:
        return parse_object_leniently(raw) if raw else {}
    except MalformedRequest:
        return {}


def _is_anthropic(usage: Usage) -> bool:
    """Whether a usage was read as Anthropic's, and so holds the calls within it."""
    as_anthropic = parse_usage(Format.ANTHROPIC, usage.raw)
    return as_anthropic is not None and as_anthropic.cache == usage.cache


def _find_separate_calls(numbers: _Numbers, tier: str, region: str) -> Iterator[UsagePart]:
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
_INPUT_DETAILS = ("prompt_tokens_details", "input_tokens_details", "input_token_details")
_OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details", "output_token_details")
_MEDIA = ("audio", "image", "video")
_GEMINI_INPUT_DETAILS = ("promptTokensDetails", "toolUsePromptTokensDetails")
_GEMINI_OUTPUT_DETAILS = ("candidatesTokensDetails", "responseTokensDetails")
# Where other units are told, and the rest of what is looked at here.
_UNIT_FIELDS = frozenset(
    (
        *_INPUT_DETAILS,
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


def _count_units(numbers: _Numbers, billed: _Numbers, usage: Usage) -> tuple[tuple[BillableUnit, int], ...]:
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


def _count_media(numbers: _Numbers, usage: Usage) -> dict[BillableUnit, int]:
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


def _read_media_tokens(numbers: _Numbers) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """The tokens of each medium that came in, that of them the cache served, and that came out."""
    if "promptTokensDetails" in numbers or "candidatesTokensDetails" in numbers:
        input_tokens, read = (
            _gemini_media(numbers, *_GEMINI_INPUT_DETAILS),
            _gemini_media(numbers, "cacheTokensDetails"),
        )
        return input_tokens, read, _gemini_media(numbers, *_GEMINI_OUTPUT_DETAILS)
    details = next((as_dict(numbers[name]) for name in _INPUT_DETAILS if numbers.get(name)), {})
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
        medium = "image" if medium == "document" else medium  # a page is read as a picture, and billed as one
        count = tokens_or_zero(entry.get("tokenCount"))
        if medium in _MEDIA and count:
            counts[medium] = counts.get(medium, 0) + count
    return counts
